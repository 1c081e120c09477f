"""The ClickHouse sink against the public suites: a copy, and a log."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import (
    MirrorConformance,
    SinkConformance,
    TargetConformance,
    TargetFaults,
)
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import VALUES, Event, MakeSink, ReadEvents
from tailer.testing.conformance.target import Change, ReadIds
from tests.conformance.faults import POISON
from tests.support.clickhouse import ClickHouse

pytestmark = pytest.mark.usefixtures("one_attempt")

#: A time that ClickHouse holds; what it does not hold is tried in tests/sinks.
HELD = {**VALUES, "date": dt.date(1900, 1, 1), "timestamp_ntz": dt.datetime(2299, 12, 31)}  # noqa: DTZ001


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with nested values, which are JSON texts, as Arrow has them."""
    found = {name: json.loads(row[name]) for name in ("list", "map", "struct") if row.get(name)}
    found = {name: list(v.items()) if name == "map" else v for name, v in found.items()}
    if row.get("timestamp_ntz"):
        found["timestamp_ntz"] = row["timestamp_ntz"].replace(tzinfo=None)
    return {**row, **found}


@pytest.fixture
def database(clickhouse: ClickHouse) -> Iterator[str]:
    name = clickhouse.database()
    yield name
    clickhouse.query(f"DROP DATABASE {name}")


def clickhouse_faults(server: ClickHouse, options: dict[str, Any]) -> TargetFaults:
    """Those of ClickHouse: its engine's own, and the names of its server's."""
    table = f"{options['database']}.orders"

    @contextmanager
    def detached() -> Iterator[None]:
        server.query(f"DETACH TABLE {table}")
        yield
        server.query(f"ATTACH TABLE {table}")

    def failing(name: str, code: int) -> AbstractContextManager[None]:
        return server.failing(of="INSERT", name=name, code=code)

    def refused() -> str:
        server.query(f"ALTER TABLE {table} ADD CONSTRAINT c CHECK name != '{POISON}'")
        return POISON

    names = {"READONLY": 164, "TABLE_IS_READ_ONLY": 242, "NOT_ENOUGH_SPACE": 243,
             "MEMORY_LIMIT_EXCEEDED": 241, "TOO_MANY_SIMULTANEOUS_QUERIES": 202,
             "TOO_MANY_PARTS": 252,
             "ACCESS_DENIED": 497, "TIMEOUT_EXCEEDED": 159}  # fmt: skip
    return TargetFaults(
        hasty=lambda: made_sink("clickhouse", {**options, "timeout_s": 2}, Path()),
        still=server.still,
        forbidden=[detached, *(partial(failing, name, code) for name, code in names.items())],
        unknown=lambda: failing("NOBODY_HAS_HEARD_OF_IT", 9999),
        refused=refused,
    )


class TestClickHouseMirror(MirrorConformance):
    @pytest.fixture
    def options(self, clickhouse: ClickHouse, database: str) -> dict[str, Any]:
        return {"url": clickhouse.url, "database": database, "key": ["id"]}

    @pytest.fixture
    def target_faults(self, clickhouse: ClickHouse, options: dict[str, Any]) -> TargetFaults:
        return clickhouse_faults(clickhouse, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("clickhouse", options, Path())

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return HELD

    @pytest.fixture
    def read_rows(self, clickhouse: ClickHouse, database: str) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            columns = "* EXCEPT (_version, _is_deleted)"
            rows = clickhouse.rows(f"SELECT {columns} FROM {database}.orders FINAL")
            return list(map(typed, rows))

        return read

    @pytest.mark.parametrize(("rows", "said"), [([], "")])
    async def test_rows_that_the_key_does_not_identify_are_refused(
        self, rows: list[Any], said: str
    ) -> None:
        """Those of one batch alone: see tests/sinks. ClickHouse is not asked what it has before it
        is written."""


class TestClickHouseLog(SinkConformance):
    @pytest.fixture
    def options(self, clickhouse: ClickHouse, database: str) -> dict[str, Any]:
        return {"url": clickhouse.url, "database": database, "mode": "log"}

    @pytest.fixture
    def target_faults(self, clickhouse: ClickHouse, options: dict[str, Any]) -> TargetFaults:
        return clickhouse_faults(clickhouse, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("clickhouse", options, Path())

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return HELD

    @pytest.fixture
    def read_events(self, clickhouse: ClickHouse, database: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            rows = clickhouse.rows(f"SELECT * FROM {database}.orders FINAL ORDER BY _seq")
            return [
                Event(row["_event_id"], row["_change_type"], row["_commit_version"], row)
                for row in rows
            ]

        return read


class ClickHouseTarget(TargetConformance):
    options: Mapping[str, Any]

    @pytest.fixture
    def make_sink(self, clickhouse: ClickHouse, database: str) -> MakeSink:
        options = {"url": clickhouse.url, "database": database, **self.options}
        return lambda: made_sink("clickhouse", options, Path())

    @pytest.fixture
    def changes(self, clickhouse: ClickHouse, database: str) -> Mapping[str, Change]:
        table = f"{database}.orders"

        def run(*statements: str) -> Callable[[], object]:
            return lambda: [clickhouse.query(each) for each in statements]

        drop = f"DROP TABLE {table} SYNC"
        return {
            "removed": run(drop, f"TRUNCATE TABLE {database}.delta_tailer_offsets"),
            "emptied": run(f"TRUNCATE TABLE {table}"),
            "replaced": run(
                f"CREATE TABLE {database}.other AS {table}", drop,
                f"RENAME TABLE {database}.other TO {table}",
            ),
        }  # fmt: skip

    @pytest.fixture
    def read_ids(self, clickhouse: ClickHouse, database: str) -> ReadIds:
        def read() -> Sequence[int]:
            name = f"database = '{database}' AND name = 'orders'"
            if not clickhouse.rows(f"SELECT 1 FROM system.tables WHERE {name}"):
                return []
            return [row["id"] for row in clickhouse.rows(f"SELECT id FROM {database}.orders FINAL")]

        return read


class TestClickHouseMirrorTarget(ClickHouseTarget):
    options = {"key": ["id"]}  # noqa: RUF012


class TestClickHouseLogTarget(ClickHouseTarget):
    options = {"mode": "log"}  # noqa: RUF012
