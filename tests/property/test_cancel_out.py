"""Cancel-out against the rule itself: of equal rows the surplus stays, the first ones of it.

The files that come are those that leave, a little changed, so that most of them are compared in
place; the rule must not show where that was done and where not.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.testing.table import TableBuilder
from tests.support.extent import examples
from tests.support.feeds import batches

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.float64()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)
Row = dict[str, Any]
#: A file: its rows, and which of them are deleted by a vector.
File = tuple[list[Row], set[int]]


def row(chance: Random) -> Row:
    """One of few rows, so that most are there several times."""
    return {
        "id": chance.randrange(chance.choice([2, 50])),
        "v": chance.choice([0.0, -0.0, math.nan, None]),
        "l": chance.choice([[], ["a"], None]),
        "m": chance.choice([None, [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]]),
    }


def value(row: Row) -> Any:
    """A form in which equal rows, and no others, are equal."""
    v = row["v"]
    number = "NaN" if v is not None and math.isnan(v) else v
    entries = None if row["m"] is None else tuple(sorted(row["m"]))
    return row["id"], number, row["l"] if row["l"] is None else tuple(row["l"]), entries


def rewrites(chance: Random) -> tuple[list[File], list[File]]:
    """Files that leave, and those that come in their place."""
    leaving: list[File] = []
    coming: list[File] = []
    for _ in range(chance.randint(1, 4)):
        old = [row(chance) for _ in range(chance.choice([1, 5, 100]))]
        gone = {i for i in range(len(old)) if chance.random() < chance.choice([0, 0, 0.1])}
        new = [r for i, r in enumerate(old) if i not in gone]
        new = [row(chance) if chance.random() < 0.05 else r for r in new]
        new = new[chance.choice([0, 0, 0, 1]) :] + [row(chance) for _ in range(chance.randrange(4))]
        if chance.random() < 0.25:
            chance.shuffle(new)
        leaving.append((old, gone))
        coming.append((new, {0} if new and chance.random() < 0.2 else set()))
    chance.shuffle(coming)
    return leaving, [file for file in coming if file[0]]


def first_of_surplus(mine: list[File], other: list[File]) -> Counter[tuple[int, int]]:
    """File and position of the rows of one side that have no partner on the other."""
    refs = defaultdict(list)
    for number, (rows, gone) in enumerate(mine):
        for position, row in enumerate(rows):
            if position not in gone:
                refs[value(row)].append((number, position))
    partners = Counter(
        value(row) for rows, gone in other for i, row in enumerate(rows) if i not in gone
    )
    return Counter(ref for key, found in refs.items() for ref in found[: len(found) - partners[key]]
                   if len(found) > partners[key])  # fmt: skip


@settings(deadline=None, max_examples=examples(12))
@given(st.integers(0, 2**32), st.sampled_from([7, 65_536]))
def test_the_first_of_the_surplus_stay(seed: int, rows: int) -> None:
    sides = rewrites(Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        table = TableBuilder(Path(folder) / "t", SCHEMA)
        table.create()
        left, came = (
            [
                table.add(data, deletionVector=table.vector(gone, "i")) if gone else table.add(data)
                for data, gone in files
            ]
            for files in sides
        )
        table.commit(*left)
        table.commit(*map(table.remove, left), *came)
        found = batches(table, 2, source="derived", batch_rows_max=rows)
    for adds, change_type, files, others in (
        (left, "delete", sides[0], sides[1]), (came, "insert", sides[1], sides[0])
    ):  # fmt: skip
        number = {add["add"]["path"]: n for n, add in enumerate(adds)}
        refs = [
            (number[batch.file.path], position)
            for batch in found
            if batch.file and batch.file.change_type == change_type
            for position in batch.positions.to_pylist()
        ]
        assert Counter(refs) == first_of_surplus(files, others)
