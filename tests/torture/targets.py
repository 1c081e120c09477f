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
import pyarrow as pa

from tailer.changes import COMING_KINDS
from tests.integration.killing import without_repeats
from tests.support.published import tables

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
            return Target('type = "files"\npath = "out"', lambda: _files(out))
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
    return _left(without_repeats(lines))


def _files(folder: Path) -> list[dict[str, Any]]:
    events = pa.concat_tables(tables(folder), promote_options="default").to_pylist()
    ids = [event["_event_id"] for event in events]
    assert len(set(ids)) == len(ids), "an event is there twice"
    return _left(events)


def _left(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that events leave."""
    told = list(events)
    versions = [event["_commit_version"] for event in told]
    assert versions == sorted(versions), "events are out of order"
    rows: dict[int, dict[str, Any]] = {}
    # Within a version, what leaves comes first: delta-rs writes postimages before preimages.
    for event in sorted(told, key=lambda e: (e["_commit_version"], _coming(e))):
        row = {name: value for name, value in event.items() if not name.startswith("_")}
        if _coming(event):
            assert row["id"] not in rows, f"came and was there: {event}"
            rows[row["id"]] = row
        else:
            left = rows.pop(row["id"], None)
            assert left is not None, f"left and was not there: {event}"
            same = {name: value for name, value in row.items() if value is not None}
            assert same.items() <= left.items(), f"left as another row than came: {event}, {left}"
    return list(rows.values())


def _coming(event: dict[str, Any]) -> bool:
    return event["_change_type"] in COMING_KINDS


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
