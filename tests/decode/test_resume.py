"""A row group is decoded from its first wanted row on."""

from __future__ import annotations

from typing import Any

import pytest

from tailer.decode.rows import _GAP_ROWS as GAP
from tailer.decode.rows import Skip
from tailer.decode.vectors import ALL_ROWS, RowSelection
from tailer.delta.parquet_columns import ParquetColumns
from tailer.native.parquet import native
from tests.decode.test_rows import decoded, numbers, only, positions, without


@pytest.mark.parametrize(
    ("selection", "skip", "first"),
    [(ALL_ROWS, 700, 700), (only(300, 650, 900), 0, 300), (only(300, 650, 900), 2, 900),
     (only(1300, 1900), 1, 900), (without(5), 700, 0)],
)  # fmt: skip
def test_what_precedes_the_wanted_rows_in_a_row_group_is_not_decoded(
    selection: RowSelection, skip: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    rows = ParquetColumns.read_rows

    def spied(self: ParquetColumns, *arguments: Any, **more: Any) -> Any:
        begun.append(more["first"])
        return rows(self, *arguments, **more)

    data = numbers(3000)
    wanted = positions(decoded(data, selection=selection))[skip:]
    monkeypatch.setattr(ParquetColumns, "read_rows", spied)
    assert positions(decoded(data, selection=selection, skip=Skip(skip))) == wanted
    assert begun[0] == first


@pytest.mark.parametrize(
    "selection",
    [only(7, 8, 20_000, 20_001, 39_999), only(*range(0, 40_000, 900)), only(39_999),
     without(*range(10, 30_000)), without(*range(0, 40_000, 3)), without(5)],
)  # fmt: skip
@pytest.mark.parametrize("rows_max", [700, 65_536])
def test_long_gaps_between_the_wanted_rows_are_not_decoded(
    selection: RowSelection, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    rows = ParquetColumns.read_rows

    def spied(self: ParquetColumns, *arguments: Any, **more: Any) -> Any:
        nonlocal count
        for batch in rows(self, *arguments, **more):
            count += batch.num_rows
            yield batch

    monkeypatch.setattr(ParquetColumns, "read_rows", spied)
    total = 40_000
    data = numbers(total, group=total)
    wanted = [i for i in range(total) if selection.count(i, i + 1)]
    for skip in {0, 1, len(wanted) // 2} & set(range(len(wanted))):
        count = 0
        rest = decoded(data, selection=selection, skip=Skip(skip), batch_rows_max=rows_max)
        assert positions(rest) == wanted[skip:]
        if native is not None:
            is_named = selection.only is not None
            begin = wanted[skip] if is_named else 0
            blocks = {(i - begin) // GAP for i in wanted[skip if is_named else 0 :]}
            assert count <= (GAP + rows_max % GAP) * len(blocks)
