"""Every built-in sink against the public suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow.parquet as pq
import pytest

import tailer.store.objects.options
from tailer.sink import Sink, make_sink
from tailer.testing.conformance import MirrorConformance, SinkConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents
from tests.clouds.servers import SERVERS, CloudServer, Container
from tests.conformance.faults import delta_faults, duckdb_faults
from tests.s3.fixture import S3Server
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
    def target_faults(self) -> TargetFaults:
        return TargetFaults()

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "out/orders.jsonl"}
        return lambda: make_sink("jsonl", options, tmp_path)

    @pytest.fixture
    def read_events(self, tmp_path: Path) -> ReadEvents:
        return lambda: json_lines_events(tmp_path / "out" / "orders.jsonl")


@pytest.fixture(params=["local", *SERVERS])
def files_place(request: pytest.FixtureRequest) -> Container | None:
    """An empty target of the files sink; None: a folder."""
    if request.param == "local":
        return None
    server: CloudServer | S3Server = request.getfixturevalue(request.param)
    return server.container()


class TestFilesSink(SinkConformance):
    @pytest.fixture
    def target_faults(
        self,
        files: Files,
        files_place: Container | None,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
    ) -> TargetFaults:
        if files_place is None:
            return TargetFaults()
        server = request.getfixturevalue(
            {"azure": "azurite", "gcs": "gcs_server", "s3": "s3_server"}[files_place.cloud]
        )

        def hasty() -> Sink:
            for name in ("CONNECT_TIMEOUT", "READ_TIMEOUT"):
                monkeypatch.setattr(tailer.store.objects.options, name, timedelta(seconds=1))
            monkeypatch.setitem(tailer.store.objects.options.RETRIES, "max_retries", 0)
            return files.sink()

        return TargetFaults(hasty=hasty, still=server.still)

    @pytest.fixture
    def files(self, files_place: Container | None, tmp_path: Path) -> Files:
        if files_place is None:
            return Files("out", tmp_path, {})
        return Files(files_place.address("out"), tmp_path, files_place.options)

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
    def target_faults(self, tmp_path: Path) -> TargetFaults:
        return duckdb_faults(tmp_path / "lake.duckdb")

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "lake.duckdb", "mode": "log", "table": "orders"}
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
    def target_faults(self, tmp_path: Path) -> TargetFaults:
        return duckdb_faults(tmp_path / "lake.duckdb")

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "lake.duckdb", "key": ["id"], "table": "orders"}
        return lambda: make_sink("duckdb", options, tmp_path)

    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> ReadRows:
        return lambda: rows_of(tmp_path / "lake.duckdb", "FROM orders")


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a local Delta table; none before it is there."""
    if not (folder / "_delta_log").exists():
        return []
    rows: list[dict[str, Any]] = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
    return rows


class TestDeltaLog(SinkConformance):
    @pytest.fixture
    def target_faults(self, tmp_path: Path) -> TargetFaults:
        return delta_faults(tmp_path / "copy")

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        return lambda: make_sink("delta", {"path": "copy", "mode": "log"}, tmp_path)

    @pytest.fixture
    def read_events(self, tmp_path: Path) -> ReadEvents:
        def read() -> Sequence[Event]:
            # A snapshot has no order of files; the log has that in which they were written.
            commits = sorted((tmp_path / "copy" / "_delta_log").glob("*.json"))
            lines = [line for path in commits for line in path.read_text().splitlines()]
            adds = [add for line in lines if (add := json.loads(line).get("add"))]
            paths = [tmp_path / "copy" / add["path"] for add in adds]
            rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
            return [
                Event(row["_event_id"], row["_change_type"], row["_commit_version"], row)
                for row in rows
            ]

        return read


class TestDeltaMirror(MirrorConformance):
    @pytest.fixture
    def target_faults(self, tmp_path: Path) -> TargetFaults:
        return delta_faults(tmp_path / "copy")

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        return lambda: make_sink("delta", {"path": "copy", "key": ["id"]}, tmp_path)

    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> ReadRows:
        return lambda: delta_rows(tmp_path / "copy")
