"""A table with every kind of change, and its feed to a topic."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from sinks.kafka.sink import KafkaSink
from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.testing.table import TableBuilder
from tests.support.feeds import table_log

#: What ``v`` is called in the end.
RENAMED = "value"


def _mapped(name: str, physical: str, number: int, data_type: pa.DataType) -> pa.Field:
    keys = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return pa.field(name, data_type, metadata={k: json.dumps(v) for k, v in keys.items()})


def _schema(*columns: tuple[str, str, pa.DataType]) -> pa.Schema:
    return pa.schema([_mapped(*column[:2], i + 1, column[2]) for i, column in enumerate(columns)])


def history_table(folder: Path, *, duplicates: bool) -> TableBuilder:
    """Inserts, updates, a change of keys, deletes, a column's new name, and an insert under it.

    With ``duplicates`` some rows are there more than once, so that no key tells them apart.
    """
    decimal = pa.decimal128(20, 3)
    physical = _schema(("a", "a", pa.int64()), ("b", "b", pa.string()), ("c", "c", decimal))
    first = _schema(("id", "a", pa.int64()), ("v", "b", pa.string()), ("n", "c", decimal))
    last = _schema(("id", "a", pa.int64()), (RENAMED, "b", pa.string()), ("n", "c", decimal))
    table = TableBuilder(
        folder / "orders", first, cdf=True, properties={"delta.columnMapping.mode": "name"}
    )
    table.create(table.protocol(2, 5))

    def rows(ids: list[int], value: str) -> list[dict[str, Any]]:
        return [{"a": i, "b": value, "c": None if i % 3 else "1.500"} for i in ids]

    def typed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "c": None if row["c"] is None else Decimal(row["c"])} for row in found]

    def commit(old: list[Any], come: list[Any], images: list[Any]) -> Any:
        table.schema = physical
        added = table.add(typed(come))
        actions = [*(table.remove(o) for o in old), added]
        if images:
            actions.append(table.cdc(typed(images)))
        table.schema = current
        table.commit(*actions)
        return added

    def image(kind: str, key: int, value: str) -> dict[str, Any]:
        return {**rows([key], value)[0], "_change_type": kind}

    current = first
    start = rows([1, 2, 3, 4], "a") + (rows([2, 2, 4], "a") if duplicates else [])
    one = commit([], start, [])
    pre, post = "update_preimage", "update_postimage"
    doubled = rows([2, 2, 4], "a") if duplicates else []
    # 1 is updated, 3 becomes 30, 4 is deleted (once, where there are two).
    two = commit(
        [one], rows([1], "b") + rows([2], "a") + rows([30], "a") + doubled,
        [
            image(pre, 1, "a"), image(post, 1, "b"), image("delete", 4, "a"),
            image(pre, 3, "a"), image(post, 30, "a"),
        ],
    )  # fmt: skip
    current = last
    table.schema = last
    table.commit(table.metadata())
    three = rows([1], "c") + rows([2], "a") + rows([30], "a") + doubled
    commit([two], three, [image(pre, 1, "b"), image(post, 1, "c")])
    commit([], rows([50, 51], "é\n"), [])
    return table


async def deliver(table: TableBuilder, sink: KafkaSink, start: str = "0") -> None:
    """Run a feed over the whole table into an open Kafka."""

    async def first(log: TableLog) -> Offset:
        return await find_start_offset(log, start)

    await run_feed(
        Feed(
            name="orders",
            log=table_log(table),
            sink=sink,
            offsets=MemoryOffsetStore(),
            start=first,
            progress=FeedProgress("orders", lambda: 0.0),
            jitter=lambda: 0.0,
            options=FeedOptions(),
            last=table.version,
        )
    )


def snapshot_rows(table: TableBuilder) -> list[dict[str, Any]]:
    """The rows of the newest snapshot."""
    from tests.support.feeds import batches

    start = Offset(table.version, snapshot=True)
    return [
        {k: v for k, v in row.items() if not k.startswith("_")}
        for batch in batches(table, start)
        for row in batch.rows.to_pylist()
    ]
