"""What the tests of the log and of its changes share: short ways to states, commits and events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

from tailer.changes import ChangeBatch, Offset
from tailer.decode.rows import DecodeOptions
from tailer.delta.actions import Metadata, Protocol
from tailer.delta.commit import Commit, read_header
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder, delta_schema

#: The smallest schema: one column ``id``.
ID = pa.schema([("id", pa.int64())])


def metadata(schema: pa.Schema = ID, *partitions: str, **properties: str) -> Metadata:
    """A typed metaData action; a property's dots are written as two underscores."""
    configuration = {name.replace("__", "."): value for name, value in properties.items()}
    return Metadata("an-id", delta_schema(schema), partitions, configuration)


def state(
    schema: pa.Schema = ID, *partitions: str, protocol: Protocol | None = None, **properties: str
) -> TableState:
    """The state of a table with these columns."""
    return TableState.from_actions(
        protocol or Protocol(1, 4), metadata(schema, *partitions, **properties)
    )


def log_lines(*actions: Mapping[str, Any]) -> list[bytes]:
    """Actions as the lines of a commit file."""
    return [json.dumps(action).encode() + b"\n" for action in actions]


def commit_of(
    *actions: Mapping[str, Any], before: TableState | None = None, version: int = 1
) -> Commit:
    """A commit in memory, upon a table that has the column ``id`` if nothing else is said."""
    lines, name = log_lines(*actions), f"{version:020d}.json"
    before = before or state()
    header = read_header(name, lambda: lines)
    after = before.after(header.protocol, header.metadata)
    return Commit(version, name, 1000, 1000, 0, header, lambda: lines, before, after)


def table_log(table: TableBuilder | Path) -> TableLog:
    """The log of a table on the disk; a half-written commit is waited for only briefly."""
    folder = table.folder if isinstance(table, TableBuilder) else table
    # A test may have files beside its table, as a shallow clone has.
    store = LocalStore(str(folder), also=[str(Path(folder).parent)])
    return TableLog(store, torn_commit_max_s=0.2)


def batches(
    table: TableBuilder,
    start: int | Offset = 0,
    last: int | None = None,
    *,
    source: ChangeSource = "auto",
    **decode: Any,
) -> list[ChangeBatch]:
    """The change batches from a version or offset up to version ``last`` (None: the newest)."""
    offset = Offset(start) if isinstance(start, int) else start
    options = FeedOptions(change_source=source, decode=DecodeOptions(**decode))

    async def read() -> list[ChangeBatch]:
        end = table.version if last is None else last
        async with aclosing(read_changes(table_log(table), offset, end, options)) as found:
            return [batch async for batch in found]

    return anyio.run(read)


def events(
    table: TableBuilder, start: int | Offset = 0, last: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The change events, in order, each with its ``_event_id``; options as of :func:`batches`."""
    return [
        {**row, "_event_id": event_id}
        for batch in batches(table, start, last, **options)
        for row, event_id in zip(batch.rows.to_pylist(), batch.event_ids().to_pylist(), strict=True)
    ]


def offset_of(table: TableBuilder, version: int, index: int = 0) -> Offset:
    """The offset of a change of this table."""
    return Offset(version, index, table_id=table.table_id)


def position_of(offset: Offset | None) -> tuple[int, int] | None:
    """Version and index of an offset, if there is one."""
    return None if offset is None else offset.position


def refusal(work: Callable[[], object], kind: type[TableError] = TableError) -> str:
    """The sentence with which ``work`` is refused, by an error of exactly this kind or below."""
    try:
        work()
    except kind as e:
        return str(e)
    raise AssertionError(f"nothing was refused; a {kind.__name__} was expected")


def without_ids(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without what only a reader adds to them."""
    return [{k: v for k, v in row.items() if k not in ("_event_id", "_commit_timestamp")}
            for row in found]  # fmt: skip


def without_pages(file: Path) -> None:
    """Leave nothing of a Parquet file but its footer, so that it can be counted and not read."""
    data = file.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    file.write_bytes(b"PAR1" + bytes(len(data) - footer - 4) + data[-footer:])
