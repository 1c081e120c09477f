"""Every built-in sink against the public suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailer.sink import load_sink
from tailer.testing.conformance import SinkConformance
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents


def json_lines_events(file: Path) -> Sequence[Event]:
    if not file.exists():
        return []
    data = file.read_bytes()
    assert not data or data.endswith(b"\n")
    events = []
    for line in data.split(b"\n")[:-1]:
        fields = json.loads(line)
        if "_notice" in fields:
            continue
        events.append(
            Event(fields["_event_id"], fields["_change_type"], fields["_commit_version"], line)
        )
    return events


class TestJsonlSink(SinkConformance):
    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "out/orders.jsonl"}
        return lambda: load_sink("jsonl").from_options(options, tmp_path)

    @pytest.fixture
    def read_events(self, tmp_path: Path) -> ReadEvents:
        return lambda: json_lines_events(tmp_path / "out" / "orders.jsonl")
