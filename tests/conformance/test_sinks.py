"""Every built-in sink against the public suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from tailer.sink import load_sink, make_sink
from tailer.testing.conformance import MirrorConformance, SinkConformance
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents
from tests.s3.fixture import Bucket
from tests.support.duckdb_files import rows_of
from tests.support.published import Files


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


@pytest.fixture(params=["local", "s3"])
def files_path(request: pytest.FixtureRequest) -> str:
    """An empty target of the files sink."""
    if request.param == "local":
        return "out"
    bucket: Bucket = request.getfixturevalue("bucket")
    return bucket.address("out")


class TestFilesSink(SinkConformance):
    @pytest.fixture
    def files(self, files_path: str, tmp_path: Path, request: pytest.FixtureRequest) -> Files:
        local = "://" not in files_path
        return Files(
            files_path, tmp_path, {} if local else request.getfixturevalue("bucket").options
        )

    @pytest.fixture
    def make_sink(self, files: Files) -> MakeSink:
        return files.sink

    @pytest.fixture
    def read_events(self, files: Files) -> ReadEvents:
        def read() -> Sequence[Event]:
            return [
                Event(row["_event_id"], row["_change_type"], row["_commit_version"], row)
                for row in files.rows()
            ]

        return read


class TestDuckdbLog(SinkConformance):
    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "lake.duckdb", "mode": "log"}
        return lambda: make_sink("duckdb", options, tmp_path)

    @pytest.fixture
    def read_events(self, tmp_path: Path) -> ReadEvents:
        def read() -> Sequence[Event]:
            with duckdb.connect(tmp_path / "lake.duckdb") as file:
                if not file.execute(
                    "SELECT * FROM _delta_tailer WHERE columns NOT NULL"
                ).fetchall():
                    return []
                rows = file.execute(
                    "SELECT _event_id, _change_type, _commit_version, orders::VARCHAR FROM orders "
                    "ORDER BY rowid"
                ).fetchall()
            return [Event(*row) for row in rows]

        return read


class TestDuckdbMirror(MirrorConformance):
    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "lake.duckdb", "key": ["id"]}
        return lambda: make_sink("duckdb", options, tmp_path)

    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> ReadRows:
        return lambda: rows_of(tmp_path / "lake.duckdb", "FROM orders")
