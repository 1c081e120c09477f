"""A round's sink, and what it holds at the end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb

from tests.integration.killing import rows_left, rows_of_files, without_repeats

__all__ = ["Target", "plain", "target_of"]


@dataclass(frozen=True)
class Target:
    """``options``: of the sink, in a configuration. ``rows``: what it holds, or what its events
    leave; an event that is lost, doubled or out of order is an AssertionError. ``fences``: a second
    daemon with another state is kept from writing by the target itself."""

    options: str
    rows: Callable[[], list[dict[str, Any]]]
    fences: bool = True


def target_of(sink: str, folder: Path) -> Target:
    """A new target in a folder."""
    out = folder / "out"
    match sink:
        case "jsonl":
            options = 'type = "jsonl"\npath = "out.jsonl"'
            return Target(options, lambda: _lines(folder / "out.jsonl"), fences=False)
        case "files":
            return Target('type = "files"\npath = "out"', lambda: rows_of_files(out))
        case "delta":
            read = lambda: deltalake.DeltaTable(out).to_pyarrow_table().to_pylist()  # noqa: E731
            return Target('type = "delta"\npath = "out"\nkey = ["id"]', read)
        case "sqlite":
            options = 'type = "sqlite"\npath = "out.sqlite"\nkey = ["id"]'
            return Target(options, lambda: _sqlite(folder / "out.sqlite"))
        case "duckdb":
            options = 'type = "duckdb"\npath = "out.duckdb"\nkey = ["id"]'
            return Target(options, lambda: _duckdb(folder / "out.duckdb"))
    raise AssertionError(sink)


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = [line for line in file.read_bytes().splitlines() if b'"_notice"' not in line]
    return rows_left(without_repeats(lines))


def _sqlite(file: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM orders")]


def _duckdb(file: Path) -> list[dict[str, Any]]:
    with duckdb.connect(file) as connection:
        found: list[dict[str, Any]] = connection.sql("FROM orders").to_arrow_table().to_pylist()
        return found


def plain(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows to be compared: a column that a row lacks is null, and our own are left out."""
    kept = [
        {name: row[name] for name in sorted(row) if row[name] is not None and name[0] != "_"}
        for row in rows
    ]
    return [json.dumps(row) for row in sorted(kept, key=lambda row: row["id"])]
