"""The sinks for SQL databases against the public suites."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import psycopg.rows
import pyarrow as pa
import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import MirrorConformance, SinkConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import VALUES, Event, MakeSink, ReadEvents
from tests.conformance.faults import (
    mysql_faults,
    mysql_options,
    postgres_faults,
    postgres_options,
    sqlite_faults,
)
from tests.support.mysql import Mysql
from tests.support.postgres import Postgres

#: Without the character NUL, and a map in the order of jsonb.
NO_NUL = {**VALUES, "string": VALUES["string"].replace("\x00", ""), "map": {"": None, "a": 1}}
#: Without infinity.
FINITE = {**VALUES, "double": 1.5e300}

MIRROR, LOG = {"key": ["id"]}, {"mode": "log"}


@pytest.fixture
def database(mysql: Mysql) -> str:
    return mysql.database()


@pytest.fixture
def schema(postgres: Postgres) -> str:
    return postgres.schema()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the types of Arrow."""
    if row.get("map") is not None:
        row["map"] = list(row["map"].items())
    if row.get("float") is not None:
        row["float"] = pa.scalar(row["float"], pa.float32()).as_py()
    return row


class PostgresFixtures:
    """The fixtures of both modes of the sink."""

    mode: ClassVar[dict[str, Any]] = MIRROR

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return NO_NUL

    @pytest.fixture
    def options(self, postgres: Postgres, schema: str) -> dict[str, Any]:
        return {**postgres_options(postgres, schema), **self.mode, "table": "orders"}

    @pytest.fixture
    def target_faults(self, postgres: Postgres, options: dict[str, Any]) -> TargetFaults:
        return postgres_faults(postgres, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("postgres", options, Path())


class TestPostgresMirror(PostgresFixtures, MirrorConformance):
    @pytest.fixture
    def read_rows(self, postgres: Postgres, schema: str) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            dsn = postgres.dsn(options="-c TimeZone=UTC")
            with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
                return [plain(r) for r in connection.execute(f"SELECT * FROM {schema}.orders")]

        return read


@pytest.mark.slow
class TestPostgresLog(PostgresFixtures, SinkConformance):
    mode: ClassVar[dict[str, Any]] = LOG

    @pytest.fixture
    def read_events(self, postgres: Postgres, schema: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            if not postgres.query("SELECT to_regclass(%s)", [f"{schema}.orders"])[0][0]:
                return []
            found = postgres.query(
                "SELECT _event_id, _change_type, _commit_version, (to_jsonb(o) - '_seq')::text "
                f"FROM {schema}.orders o ORDER BY _seq"
            )
            return [Event(*row) for row in found]

        return read


class MysqlFixtures:
    """The fixtures of both modes of the sink."""

    mode: ClassVar[dict[str, Any]] = MIRROR

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return FINITE

    @pytest.fixture
    def options(self, mysql: Mysql, database: str) -> dict[str, Any]:
        return {**mysql_options(mysql, database), **self.mode, "table": "orders"}

    @pytest.fixture
    def target_faults(self, mysql: Mysql, options: dict[str, Any]) -> TargetFaults:
        return mysql_faults(mysql, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("mysql", options, Path())


@pytest.mark.slow
class TestMysqlMirror(MysqlFixtures, MirrorConformance):
    @pytest.fixture
    def read_rows(self, mysql: Mysql, database: str) -> ReadRows:
        return lambda: [
            parsed(row, timestamp=lambda time: time.replace(tzinfo=dt.UTC))
            for row in rows_of_mysql(mysql, database)
        ]


class TestMysqlLog(MysqlFixtures, SinkConformance):
    mode: ClassVar[dict[str, Any]] = LOG

    @pytest.fixture
    def read_events(self, mysql: Mysql, database: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            return [event(row) for row in rows_of_mysql(mysql, database, " ORDER BY _seq")]

        return read


def event(row: dict[str, Any]) -> Event:
    """A row of a log, as an event without its number."""
    del row["_seq"]
    return Event(row["_event_id"], row["_change_type"], row["_commit_version"], row)


def rows_of_mysql(server: Mysql, database: str, order: str = "") -> list[dict[str, Any]]:
    """The rows of the table, if it is there."""
    columns = server.query(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND "
        "table_name = 'orders' ORDER BY ordinal_position", [database],
    )  # fmt: skip
    if not columns:
        return []
    names = [name for (name,) in columns]
    found = server.query(f"SELECT * FROM {database}.orders{order}")
    return [dict(zip(names, row, strict=True)) for row in found]


def parsed(row: dict[str, Any], **parsers: Callable[[Any], Any]) -> dict[str, Any]:
    """A row with the types of Arrow: JSON and numbers stand for some, ``parsers`` for others."""
    parse: dict[str, Callable[[Any], Any]] = {
        "bool": bool,
        "list": json.loads,
        "map": lambda text: list(json.loads(text).items()),
        "struct": json.loads,
        **parsers,
    }
    return {n: parse.get(n, lambda v: v)(v) if v is not None else v for n, v in row.items()}


class SqliteFixtures:
    """The fixtures of both modes of the sink."""

    mode: ClassVar[dict[str, Any]] = MIRROR

    @pytest.fixture
    def target_faults(self, tmp_path: Path) -> TargetFaults:
        return sqlite_faults(tmp_path / "lake.sqlite")

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        options = {"path": "lake.sqlite", **self.mode, "table": "orders"}
        return lambda: made_sink("sqlite", options, tmp_path)


class TestSqliteMirror(SqliteFixtures, MirrorConformance):
    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            with closing(sqlite3.connect(tmp_path / "lake.sqlite")) as file:
                cursor = file.execute("SELECT * FROM orders")
                names = [column[0] for column in cursor.description]
                return [typed(dict(zip(names, row, strict=True))) for row in cursor]

        return read


def typed(row: dict[str, Any]) -> dict[str, Any]:
    """A row of SQLite in the types of Arrow."""
    return parsed(
        row,
        decimal=Decimal,
        date=dt.date.fromisoformat,
        timestamp=dt.datetime.fromisoformat,
        timestamp_ntz=dt.datetime.fromisoformat,
    )


class TestSqliteLog(SqliteFixtures, SinkConformance):
    mode: ClassVar[dict[str, Any]] = LOG

    @pytest.fixture
    def read_events(self, tmp_path: Path) -> ReadEvents:
        def read() -> Sequence[Event]:
            with closing(sqlite3.connect(tmp_path / "lake.sqlite")) as file:
                if not file.execute("SELECT * FROM pragma_table_info('orders')").fetchall():
                    return []
                cursor = file.execute("SELECT * FROM orders ORDER BY _seq")
                names = [column[0] for column in cursor.description]
                return [event(dict(zip(names, row, strict=True))) for row in cursor]

        return read
