"""Rows in blocks, compared label by label, change as all rows together do. No Spark is started."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.compare.blocks import changed, unpacked
from tailer.compare.comparison import value_schema
from tailer.compare.row_cache import kept_rows
from tailer.decode.options import DiffOptions
from tailer.decode.rows import Skip
from tailer.spark.orders import RewriteOrder, shared
from tailer.spark.source.data_source import ChangeReader
from tailer.spark.tasks import blocks_of
from tailer.testing.table import TableBuilder
from tests.spark.test_fan_out import SMALL, by_tasks, orders, plain, reader, rewrite, told, values

LABELS = 4


def blocks(found: ChangeReader, order: RewriteOrder) -> dict[int, list[pa.RecordBatch]]:
    """The blocks of each label, of as many tasks as the order is worth."""
    by_label: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for share in shared(order.rewrite, order.tasks):
        for batch in blocks_of(share, order, found.options, found.decoding(()), LABELS):
            for at, label in enumerate(batch.column("label").to_pylist()):
                by_label[label].append(batch.slice(at, 1))
    return by_label


def rows_of(
    found: ChangeReader, order: RewriteOrder, some: list[pa.RecordBatch], options: DiffOptions
) -> list[dict[str, Any]]:
    """The changed rows among those of one label."""
    after = order.commit.after
    files = changed(some, order.rewrite, after, None, options, found.options.key)
    return [
        row for file in files for rows in kept_rows(file, Skip()) for row in rows.batch.to_pylist()
    ]


@pytest.mark.parametrize("key", ["", "id", "s,id"])
@pytest.mark.parametrize("bytes_max", [0, 2000, 10**9])
def test_labels_are_compared_one_by_one(key: str, bytes_max: int, tmp_path: Path) -> None:
    """In memory, in a file, or in both: the temporary file is gone afterwards."""
    rng = random.Random(bytes_max)
    table = plain(tmp_path)
    old, new = ([values(rng, 60) for _ in range(3)] for _ in range(2))
    rewrite(table, [table.add(r) for r in old], [table.add(old[0] + r) for r in new])
    options: dict[str, Any] = {"withIds": "false", **({"key": key} if key else {})}
    found = reader(table, **SMALL, **options)
    (order,) = orders(found)
    assert isinstance(order, RewriteOrder)
    spill = tmp_path / "spill"
    spill.mkdir()
    bounds = DiffOptions(keep_bytes_max=bytes_max, spill_folder=str(spill))
    by_label = blocks(found, order)
    assert len(by_label) > 1
    rows = [row for some in by_label.values() for row in rows_of(found, order, some, bounds)]
    whole = by_tasks(reader(table, derivedFanOut=1, **options))
    assert told(rows) == told(whole)
    assert len(rows) > 20
    assert not [*spill.iterdir()]


def test_rows_are_spread_over_the_labels(tmp_path: Path) -> None:
    """Each task compares about its part of the rows: that is what bounds its memory."""
    table = plain(tmp_path)
    old: list[dict[str, Any]] = [{"id": i, "v": None, "s": str(i), "m": None} for i in range(400)]
    new = [{**row, "v": 1.0} if row["id"] % 2 else row for row in old]
    rewrite(table, [table.add(old)], [table.add(new[::-1])])
    found = reader(table, **SMALL)
    (order,) = orders(found)
    assert isinstance(order, RewriteOrder)
    schema = value_schema(order.commit.after)
    counts = Counter[int]()
    for label, some in blocks(found, order).items():
        for batch in some:
            for rows in unpacked(batch.column("rows")[0].as_buffer()):
                assert rows.schema == schema
                counts[label] += rows.num_rows
    assert counts.total() == 800
    assert sorted(counts) == [*range(LABELS)]
    assert all(120 < count < 280 for count in counts.values())


def test_a_label_without_rows_changes_nothing(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    rewrite(table, [table.add([{"id": 1}])], [table.add([{"id": 2}])])
    found = reader(table, **SMALL)
    (order,) = orders(found)
    assert isinstance(order, RewriteOrder)
    assert rows_of(found, order, [], DiffOptions()) == []
