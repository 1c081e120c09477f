"""The targets of the sinks for SQL databases, as their tests and a user's programs reach them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

SQL_SINKS = ("duckdb", "mysql", "postgres", "sqlite")


@dataclass(frozen=True, slots=True)
class SqlTarget:
    """A database: the options that lead to it, and its answers. ``prefix`` is that of tables."""

    kind: str
    options: dict[str, Any]
    query: Callable[[str], list[tuple[Any, ...]]]
    prefix: str = ""

    def toml(self, **more: Any) -> str:
        """The options in a configuration."""
        options = {"type": self.kind, **self.options, **more}
        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())


def sql_target(kind: str, folder: Path, request: pytest.FixtureRequest) -> SqlTarget:
    """A database without tables."""
    if kind == "postgres":
        server = request.getfixturevalue("postgres")
        schema = server.schema()
        return SqlTarget(kind, {"dsn": server.dsn(), "schema": schema}, server.query, f"{schema}.")
    if kind == "mysql":
        maria = request.getfixturevalue("mysql")
        database = maria.database()
        options = {"url": maria.url(database), "tls": False}
        ask: Callable[[str], list[tuple[Any, ...]]]
        ask = lambda statement: maria.query(statement.replace('"', "`"))  # noqa: E731
        return SqlTarget(kind, options, ask, f"{database}.")
    file = folder / f"lake.{kind}"

    def query(statement: str) -> list[tuple[Any, ...]]:
        if kind == "duckdb":
            with duckdb.connect(file) as connection:
                return connection.execute(statement).fetchall()
        with closing(sqlite3.connect(file, isolation_level=None)) as lite:
            return lite.execute(statement).fetchall()

    return SqlTarget(kind, {"path": file.name}, query)
