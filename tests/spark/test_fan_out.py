"""A rewrite that is compared in several tasks says what one comparison says, with the same ids.

The readers are called as Spark does; no Spark is started here.
"""

from __future__ import annotations

import json
import math
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.spark.orders import FAN_OUT, FileOrder, Order, RewriteOrder
from tailer.spark.source import planning
from tailer.spark.source.data_source import ChangeReader, TailerSource
from tailer.spark.source.driver import TaskPartition
from tailer.testing.table import Action, TableBuilder
from tests.feed.test_derive import PRESERVED, rewritten, tracked
from tests.golden.test_golden import GoldenCase
from tests.spark.test_golden_tables import first_version
from tests.support.extent import rest_slow
from tests.support.feeds import events

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ]
)
# So little fits into a task that what has to be read whole is read by all of them.
SMALL = {"maxPartitionBytes": 1, "minPartitions": 1}


def reader(table: TableBuilder | Path, **options: Any) -> ChangeReader:
    """The batch reader; it begins at version 2 unless it is told otherwise."""
    folder = table.folder if isinstance(table, TableBuilder) else table
    given = {"path": folder, "startingVersion": 2, "withIds": "true", **options}
    source = TailerSource({name: str(value) for name, value in given.items()})
    found = source.reader(source.schema())
    assert isinstance(found, ChangeReader)
    return found


def orders(found: ChangeReader) -> list[Order]:
    """What all tasks do."""
    tasks = found.partitions()
    assert all(isinstance(task, TaskPartition) for task in tasks)
    return [order for task in tasks for order in task.orders]  # type: ignore[attr-defined]


def by_tasks(found: ChangeReader) -> list[dict[str, Any]]:
    """The rows of all tasks, each of which gets what travels."""
    rows: list[dict[str, Any]] = []
    for task in pickle.loads(pickle.dumps(found.partitions())):  # noqa: S301  # our own
        for batch in found.read(task):
            rows += batch.to_pylist()
    return rows


def told(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Rows as text, in which NaN equals NaN; timestamps come as text in one of the two."""
    return Counter(
        repr(sorted((k, v) for k, v in row.items() if k != "_commit_timestamp")) for row in rows
    )


def undivided(table: TableBuilder | Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of comparisons that are not divided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "FAN_OUT", 1)
        return by_tasks(reader(table, **options))


def same(table: TableBuilder, *, buckets: int, **options: Any) -> list[dict[str, Any]]:
    """The rows that any fan-out gives, which one task alone gives too."""
    whole = undivided(table, **options)
    divided = reader(table, **{**SMALL, **options})
    found = [o.bucket for o in orders(divided) if isinstance(o, RewriteOrder) and o.bucket]
    assert len(found) == buckets
    rows = by_tasks(divided)
    assert told(rows) == told(whole)
    return rows


def values(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows of which many are equal, with all that makes equality hard."""
    return [
        {
            "id": rng.choice([None, 1, 2, 3]),
            "v": rng.choice([None, 0.0, -0.0, math.nan, 1.5]),
            "s": rng.choice([None, "", "a", "NULL"]),
            "m": rng.choice([None, [], [("a", [1]), ("b", None)], [("b", None), ("a", [1])]]),
        }
        for _ in range(count)
    ]


def plain(folder: Path, **options: Any) -> TableBuilder:
    table = TableBuilder(folder / "t", SCHEMA, **options)
    table.create()
    return table


def rewrite(table: TableBuilder, old: Sequence[Action], new: Sequence[Action]) -> None:
    """Version 1 adds the old files, version 2 replaces them by the new ones."""
    table.commit(*old)
    removes = [table.remove(f, **{k: v for k, v in f["add"].items() if k == "stats"}) for f in old]
    table.commit(*removes, *new)


def test_row_ids_are_shared_out_and_looked_up_by_all(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rows = [(0, 0.0, 0, 1), (1, 5.0, 1, None), (2, 0.0, 2, None), (7, 0.0, None, None)]
    table.commit(PRESERVED, table.remove(first), rewritten(table, rows))
    found = same(table, buckets=FAN_OUT)
    assert {row["_origin"] for row in found} == {"row_ids"}
    assert sorted(row["_change_type"] for row in found) == [
        "insert", "update_postimage", "update_preimage",
    ]  # fmt: skip


def test_an_id_that_is_there_twice_sends_all_buckets_to_the_values(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rows = [(0, 0.0, 0, 1), (1, 5.0, 1, None), (2, 0.0, 1, None), (7, 0.0, None, None)]
    table.commit(PRESERVED, table.remove(first), rewritten(table, rows))
    found = same(table, buckets=FAN_OUT)
    assert {row["_origin"] for row in found} == {"cancel_out"}
    assert len(found) == 3


TABLES = ("rowtracking", "rowtracking_dv", "plain", "types", "duplicates")


@pytest.mark.parametrize("name", rest_slow(TABLES, "rowtracking", "duplicates"))
def test_golden_tables_in_parts(name: str, golden: GoldenCase) -> None:
    case = golden(name)
    options: dict[str, Any] = {"startingVersion": first_version(case), "changeSource": "derived"}
    whole = undivided(case.table, **options)
    divided = reader(case.table, **{**SMALL, **options})
    buckets = [o for o in orders(divided) if isinstance(o, RewriteOrder) and o.bucket]
    assert bool(buckets) == name.startswith("rowtracking")
    assert told(by_tasks(divided)) == told(whole)


def stats(low: int, high: int) -> str:
    bounds = {"minValues": {"id": low}, "maxValues": {"id": high}}
    return json.dumps({**bounds, "nullCount": {"id": 0}})


def ranges(table: TableBuilder, *bounds: tuple[int, int], v: float) -> list[Action]:
    """A file for each range of ids, with its statistics; of each id one row."""
    return [
        table.add(
            [{"id": i, "v": v if i % 5 == 0 else 0.0} for i in range(low, high + 1)],
            stats=stats(low, high),
        )
        for low, high in bounds
    ]


def test_files_that_share_no_range_are_compared_apart_and_read_once(tmp_path: Path) -> None:
    table = plain(tmp_path)
    old = ranges(table, (0, 9), (10, 19), (20, 29), (40, 49), (90, 95), v=0.0)
    new = ranges(table, (0, 9), (15, 24), (44, 46), (47, 48), (60, 61), v=1.0)
    rewrite(table, old, new)
    whole = undivided(table)
    # Without a bound that makes each of them a task of its own, small groups go together.
    assert len(orders(reader(table))) == 3
    found = orders(reader(table, maxPartitionBytes=20_000, minPartitions=1))
    compared = [o for o in found if isinstance(o, RewriteOrder)]
    alone = [o for o in found if isinstance(o, FileOrder)]
    assert {o.file.path for o in alone} == {old[4]["add"]["path"], new[4]["add"]["path"]}
    assert {o.file.origin for o in alone} == {"cancel_out"}
    paths = [f.path for o in compared for f in (*o.rewrite.leaving, *o.rewrite.coming)]
    assert len(paths) == len(set(paths)) == 8
    for options in ({}, {"maxPartitionBytes": 1}):
        assert told(by_tasks(reader(table, **options))) == told(whole)
    assert {row["_event_id"] for row in whole} == {e["_event_id"] for e in events(table, 2)}


@pytest.mark.parametrize("key", ["id", "p,id", "s"])
def test_a_key_keeps_its_rows_together(key: str, tmp_path: Path) -> None:
    """Files are compared apart where no key can be in both: by the key's own columns alone."""
    schema = pa.schema([*SCHEMA, ("p", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["p"])
    table.create()

    def file(low: int, high: int, part: str, v: float) -> Action:
        rows = [{"id": i, "v": v if i % 3 else 0.0, "s": str(i % 40)} for i in range(low, high)]
        return table.add(rows, partition={"p": part}, stats=stats(low, high - 1))

    old = [file(0, 50, "a", 0.0), file(50, 90, "a", 0.0), file(0, 30, "b", 0.0)]
    new = [file(0, 50, "a", 1.0), file(50, 80, "b", 1.0), file(10, 30, "b", 1.0)]
    rewrite(table, old, new)
    whole = undivided(table, key=key)
    divided = reader(table, maxPartitionBytes=1, key=key)
    compared = [o for o in orders(divided) if isinstance(o, RewriteOrder)]
    # By id: 0 to 50 of all partitions, and the rest; by p and id: a's first, b's last.
    assert sorted(o.files for o in compared) == {"id": [2, 4], "p,id": [2, 2], "s": [6]}[key]
    assert told(by_tasks(divided)) == told(whole)
    assert {row["_change_type"] for row in whole} >= {"update_preimage", "update_postimage"}


def test_one_partition_spelled_in_two_ways_is_one(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.float64())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["p"])
    table.create()
    rows = [{"id": i} for i in range(50)]
    old = [table.add(rows, partition={"p": "1.0"})]
    new = [table.add(rows[1:], partition={"p": "1.00"})]
    rewrite(table, old, new)
    for options in ({}, SMALL):
        (row,) = by_tasks(reader(table, **options))
        assert (row["_change_type"], row["id"]) == ("delete", 0)


def test_rows_that_the_new_schema_cannot_hold_come_once(tmp_path: Path) -> None:
    """Then nothing can be compared: all rows leave and come."""
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.string()), ("n", pa.int64())]))
    table.create()
    old = table.add([{"id": "a", "n": 1}, {"id": "b", "n": 2}])
    table.commit(old)
    removed = table.remove(old)
    table.schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table.commit(table.metadata(), removed, table.add([{"id": 1, "n": 1}, {"id": 2, "n": 2}]))
    rows = same(table, buckets=0, columns="n")
    assert {row["_origin"] for row in rows} == {"files"}
    assert sorted((row["_change_type"], row["n"]) for row in rows) == [
        ("delete", 1), ("delete", 2), ("insert", 1), ("insert", 2),
    ]  # fmt: skip
