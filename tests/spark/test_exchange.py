"""A comparison whose rows the tasks of a frame exchange says what one comparison says."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.compare.blocks import unpacked
from tailer.compare.comparison import value_schema
from tailer.spark import changes, foreach_batch, orders
from tailer.spark.frames import exchange
from tailer.spark.orders import RewriteOrder, shared
from tailer.spark.tasks import blocks_of
from tailer.testing.table import TableBuilder
from tests.golden.test_golden import GoldenCase, golden
from tests.spark.test_fan_out import SMALL, reader, rewrite, told, values
from tests.spark.test_fan_out import orders as planned
from tests.spark.test_frames import plan
from tests.spark.test_golden_tables import ALL, READABLE, first_version

__all__ = ["golden"]  # a fixture

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(38, 2)),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ]
)
EXCHANGED = "Exchange shufflepartitionidpassthrough"


def some(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows of which many are equal."""
    return [{**row, "d": rng.choice([None, 1, 2])} for row in values(rng, count)]


def rows_of(frame: DataFrame) -> Counter[str]:
    return told([row.asDict(recursive=True) for row in frame.collect()])


def read(spark: SparkSession, table: Path, *, exchanged: bool, **options: Any) -> Counter[str]:
    """All changes from version 2 on, of a comparison that is divided in this way or not at all."""
    given = {"startingVersion": 2, **(SMALL if exchanged else {"derivedFanOut": 1}), **options}
    frame = changes(spark, str(table), **given)
    assert (EXCHANGED in plan(frame)) == exchanged
    return rows_of(frame)


@pytest.mark.parametrize("options", [{}, {"withIds": True}, {"columns": ["s"]}, {"key": "id"}])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_exchanged_is_what_one_comparison_finds(
    seed: int, options: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    old, new = ([some(rng, 60) for _ in range(4)] for _ in range(2))
    rewrite(table, [table.add(r) for r in old], [table.add(old[0] + r) for r in new])
    whole = read(spark, table.folder, exchanged=False, **options)
    assert whole.total() > 20
    assert read(spark, table.folder, exchanged=True, **options) == whole


def test_a_key_pairs_the_images_of_updates(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    old: list[dict[str, Any]] = [
        {"id": i or None, "v": 0.0, "s": str(i), "d": None} for i in range(200)
    ]
    new = [{**row, "v": 1.0} if i % 3 == 0 else row for i, row in enumerate(old) if i % 7]
    new += [{**row, "id": 1000 + i} for i, row in enumerate(old[1:10])]
    rewrite(table, [table.add(old[:90]), table.add(old[90:])], [table.add(new[::-1])])
    options = {"key": "id,s"}
    whole = read(spark, table.folder, exchanged=False, **options)
    assert read(spark, table.folder, exchanged=True, **options) == whole
    frame = changes(spark, str(table.folder), startingVersion=2, **SMALL, **options)
    kinds = Counter(row._change_type for row in frame.collect())
    assert kinds == {"delete": 29, "insert": 9, "update_preimage": 57, "update_postimage": 57}


@pytest.mark.parametrize(("ids", "travelling"), [(False, 40), (True, 2000)])
def test_rows_that_stay_in_place_do_not_travel(
    tmp_path: Path, *, ids: bool, travelling: int
) -> None:
    """Files that are rewritten in their order are compared where they are read, where nobody asks
    for places."""
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    parts: list[list[dict[str, Any]]] = [
        [{"id": i, "v": 0.0, "s": "a", "d": 1} for i in range(n, n + 500)] for n in (0, 500)
    ]
    changed = [[{**r, "v": 1.0} if r["id"] % 50 == 0 else r for r in rows] for rows in parts]
    rewrite(table, [table.add(r) for r in parts], [table.add(r) for r in changed])
    found = reader(table, withIds=ids, **SMALL)
    order = planned(found)[0]
    assert isinstance(order, RewriteOrder)
    blocks = [
        block.as_buffer()
        for share in shared(order.rewrite, 2)
        for batch in blocks_of(share, order, found.options, found.decoding(()), 8)
        for block in batch.column("rows")
    ]
    schema = value_schema(order.commit.after)
    batches = [batch for block in blocks for batch in unpacked(block)]
    assert all(batch.schema == schema for batch in batches)
    rows = [batch.num_rows for batch in batches]
    assert sum(rows) == travelling


def test_each_version_of_a_batch_is_compared_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(1)
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    first, second, third = (table.add(some(rng, 50)) for _ in range(3))
    rewrite(table, [first], [second])
    table.commit(table.remove(second), third)
    whole = read(spark, table.folder, exchanged=False)
    assert {version for row in whole for version in (2, 3) if f"_version', {version}" in row} == {
        2, 3,
    }  # fmt: skip
    assert read(spark, table.folder, exchanged=True) == whole


def test_a_stream_s_batches_are_exchanged_too(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(2)
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    rewrite(table, [table.add(some(rng, 50))], [table.add(some(rng, 50))])
    found = Counter[str]()
    plans = list[str]()

    def take(frame: DataFrame, _: int) -> None:
        plans.append(plan(frame))
        found.update(rows_of(frame))

    options: dict[str, Any] = {"startingVersion": 2, **SMALL}
    writer = foreach_batch(spark, str(table.folder), str(tmp_path / "checkpoint"), take, **options)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert any(EXCHANGED in text for text in plans)
    assert found == read(spark, table.folder, exchanged=False)


@pytest.mark.parametrize("name", READABLE if ALL else ("plain", "plain_dv"))
def test_golden_tables_exchanged(name: str, golden: GoldenCase, spark: SparkSession) -> None:
    case = golden(name)
    given = {"startingVersion": first_version(case), "changeSource": "derived"}
    whole, divided = (
        changes(spark, str(case.table), **given, **how) for how in ({"derivedFanOut": 1}, SMALL)
    )
    assert rows_of(divided) == rows_of(whole)
    assert ALL or EXCHANGED in plan(divided)


def test_maps_have_no_order(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int64()))])
    table = TableBuilder(tmp_path / "t", schema)
    table.create()
    old: list[dict[str, Any]] = [{"m": [("a", i), ("b", 2)]} for i in range(9)] + [{"m": []}]
    new: list[dict[str, Any]] = [{"m": row["m"][::-1]} for row in old[:9]] + [{"m": None}]
    rewrite(table, [table.add(old)], [table.add(new)])
    assert read(spark, table.folder, exchanged=True).total() == 2


def test_large_files_are_divided(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "OPEN_COST_BYTES", 100)
    rng = random.Random(3)
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    old, new = some(rng, 400), some(rng, 300)
    rewrite(table, [table.add(old[:50]), table.add(old[50:])], [table.add(new + old)])
    for options in ({}, {"withIds": True}):
        whole = read(spark, table.folder, exchanged=False, **options)
        assert whole.total() > 50
        assert read(spark, table.folder, exchanged=True, **options) == whole


def test_an_executor_with_another_engine_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    rewrite(table, [table.add([{"id": 1}])], [table.add([{"id": 2}])])
    versions = iter(["0.1"])
    monkeypatch.setattr(exchange, "_engine_version", lambda: next(versions))
    frame = changes(spark, str(table.folder), startingVersion=2, **SMALL)
    with pytest.raises(PySparkException, match=r"the driver has DuckDB 0\.1 and this executor"):
        frame.collect()
