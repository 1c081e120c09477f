"""Places for copies and logs in tables with columns, one for each sink that makes some."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import psycopg.rows
import pytest

from tests.support.clickhouse import ClickHouse
from tests.support.iceberg import Lake
from tests.support.mysql import Mysql
from tests.support.postgres import Postgres

COLUMN_TARGETS = ("sqlite", "duckdb", "delta", "iceberg", "mysql", "postgres", "clickhouse")


@dataclass
class ColumnTarget:
    """A place for tables; each history has one of its own."""

    options: Callable[[int], dict[str, Any]]
    read: Callable[[int], list[dict[str, Any]]]
    folded: bool = True
    kept_bytes: int | None = None
    made: int = 0

    def new(self) -> int:
        self.made += 1
        return self.made


def _sqlite(folder: Path) -> ColumnTarget:
    def read(number: int) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(folder / "x.db")) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(f"SELECT * FROM t{number}")]

    return ColumnTarget(lambda n: {"type": "sqlite", "path": "x.db", "table": f"t{n}"}, read)


def _duckdb(folder: Path) -> ColumnTarget:
    def read(number: int) -> list[dict[str, Any]]:
        with duckdb.connect(folder / "x.duckdb") as file:
            return file.sql(f"SELECT * FROM t{number}").to_arrow_table().to_pylist()  # type: ignore[no-any-return]

    return ColumnTarget(lambda n: {"type": "duckdb", "path": "x.duckdb", "table": f"t{n}"}, read)


def _delta(folder: Path) -> ColumnTarget:
    def read(number: int) -> list[dict[str, Any]]:
        table = deltalake.DeltaTable(str(folder / f"t{number}"))
        return table.to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    return ColumnTarget(lambda n: {"type": "delta", "path": f"t{n}"}, read)


def _iceberg(folder: Path) -> ColumnTarget:
    lake = Lake(folder)

    def read(number: int) -> list[dict[str, Any]]:
        return lake.rows(f"lake.t{number}")

    catalog = lake.properties
    return ColumnTarget(
        lambda n: {"type": "iceberg", "table": f"lake.t{n}", "catalog": catalog}, read
    )


def _mysql(server: Mysql) -> ColumnTarget:
    database = server.database()

    def read(number: int) -> list[dict[str, Any]]:
        statement = (
            "SELECT column_name FROM information_schema.columns "
            f"WHERE table_schema = '{database}' AND table_name = 't{number}' "
            "ORDER BY ordinal_position"
        )
        names = [name for (name,) in server.query(statement)]
        rows = server.query(f"SELECT * FROM t{number}", database=database)
        return [dict(zip(names, row, strict=True)) for row in rows]

    url = server.url(database)
    return ColumnTarget(
        lambda n: {"type": "mysql", "url": url, "tls": False, "table": f"t{n}"}, read
    )


def _postgres(server: Postgres) -> ColumnTarget:
    schema = server.schema()

    def read(number: int) -> list[dict[str, Any]]:
        with psycopg.connect(server.dsn(), row_factory=psycopg.rows.dict_row) as connection:
            return list(connection.execute(f"SELECT * FROM {schema}.t{number}"))

    options = {"type": "postgres", "dsn": server.dsn(), "schema": schema}
    return ColumnTarget(lambda n: {**options, "table": f"t{n}"}, read, folded=False, kept_bytes=63)


def _clickhouse(server: ClickHouse) -> ColumnTarget:
    database = server.database()

    def read(number: int) -> list[dict[str, Any]]:
        rows = server.rows(f"SELECT * FROM {database}.t{number} FINAL")
        return [
            {n: v for n, v in row.items() if n not in ("_version", "_is_deleted")} for row in rows
        ]

    options = {"type": "clickhouse", "url": server.url, "database": database}
    return ColumnTarget(lambda n: {**options, "table": f"t{n}"}, read, folded=False)


def column_target(kind: str, folder: Path, request: pytest.FixtureRequest) -> ColumnTarget:
    """Return a new place of one of :data:`COLUMN_TARGETS`."""
    made: dict[str, Callable[[Any], ColumnTarget]] = {
        "mysql": _mysql, "postgres": _postgres, "clickhouse": _clickhouse,
    }  # fmt: skip
    if kind in made:
        return made[kind](request.getfixturevalue(kind))
    places = {"sqlite": _sqlite, "duckdb": _duckdb, "delta": _delta, "iceberg": _iceberg}
    return places[kind](folder)
