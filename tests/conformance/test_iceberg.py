"""The Iceberg sink against the public suites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailer.testing.conformance import MirrorConformance, SinkConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents
from tests.support.iceberg import Lake, make_lake


@pytest.fixture(params=["sql_catalog", "rest_catalog"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    return make_lake(tmp_path, request)


class TestIcebergMirror(MirrorConformance):
    @pytest.fixture
    def target_faults(self) -> TargetFaults:
        return TargetFaults()

    @pytest.fixture
    def make_sink(self, lake: Lake) -> MakeSink:
        return lambda: lake.make_sink(key=["id"])

    @pytest.fixture
    def read_rows(self, lake: Lake) -> ReadRows:
        return lake.rows


class TestIcebergLog(SinkConformance):
    @pytest.fixture
    def target_faults(self) -> TargetFaults:
        return TargetFaults()

    @pytest.fixture
    def make_sink(self, lake: Lake) -> MakeSink:
        return lambda: lake.make_sink(mode="log")

    @pytest.fixture
    def read_events(self, lake: Lake) -> ReadEvents:
        def read() -> Sequence[Event]:
            return [
                Event(row["_event_id"], row["_change_type"], row["_commit_version"], row)
                for row in lake.rows()
            ]

        return read
