"""Copies in databases: a mirror of the table, or a log of its changes, exactly once."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import duckdb
import psycopg
import pymysql
from psycopg.rows import dict_row

from tests.support.mysql import MYSQL_PASSWORD
from tests.torture.events import Record, Rename, Seen, proven
from tests.torture.servers import Servers
from tests.torture.target import Setting, Target


class CopyTarget(Target):
    """A table of rows, or of events."""

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.proof = "mirror" if setting.format == "mirror" else "exactly once"

    def mode(self) -> dict[str, Any]:
        """The option ``mode``, and the key of a mirror."""
        return {"mode": "mirror", "key": ["id"]} if self.proof == "mirror" else {"mode": "log"}

    @abstractmethod
    def table_rows(self) -> list[dict[str, Any]]:
        """All rows of the target's table."""

    def seen(self, rename: Rename) -> Seen:
        rows = self.table_rows()
        if self.proof == "mirror":
            return Seen(rows)
        # A table has no order of its own.
        rows.sort(key=lambda row: row["_commit_version"])
        records = [Record(json.dumps(row, default=str).encode(), row["_event_id"]) for row in rows]
        return proven(records, rename, exactly_once=True)


class Sqlite(CopyTarget):
    """A SQLite file."""

    local = True

    def options(self) -> dict[str, Any]:
        return {"path": "out.sqlite", "table": "orders", **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.setting.folder / "out.sqlite")) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM orders")]


class DuckDb(CopyTarget):
    """A DuckDB file."""

    local = True

    def options(self) -> dict[str, Any]:
        return {"path": "out.duckdb", "table": "orders", **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        with duckdb.connect(self.setting.folder / "out.duckdb") as connection:
            rows: list[dict[str, Any]] = connection.sql("FROM orders").to_arrow_table().to_pylist()
            return rows


class Postgres(CopyTarget):
    """A PostgreSQL table in a schema of its own."""

    server = "postgres"

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.schema = self.peer.server.schema()

    def options(self) -> dict[str, Any]:
        dsn = self.peer.server.dsn(port=str(self.peer.link.port))
        return {"dsn": dsn, "schema": self.schema, "timeout_s": 8, "table": "orders", **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.peer.server.dsn(), row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {self.schema}.orders").fetchall()


class MySql(CopyTarget):
    """A MariaDB table in a database of its own."""

    server = "mysql"

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.database = self.peer.server.database()

    def options(self) -> dict[str, Any]:
        url = self.through(self.peer.server.url(self.database))
        return {"url": url, "tls": False, "timeout_s": 8, "table": "orders", **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        with (
            closing(pymysql.connect(
                host="127.0.0.1", port=self.peer.server.port, user="tester",
                password=MYSQL_PASSWORD, database=self.database, charset="utf8mb4",
                cursorclass=pymysql.cursors.DictCursor,
            )) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute("SELECT * FROM orders")
            return list(cursor.fetchall())


COPIES: Mapping[str, type[Target]] = {
    "sqlite": Sqlite, "duckdb": DuckDb, "postgres": Postgres, "mysql": MySql,
}  # fmt: skip
