"""A row group is decoded from its first wanted row on."""

from __future__ import annotations

from typing import Any

import pytest

from tailer.decode.rows import Skip
from tailer.decode.vectors import ALL_ROWS, RowSelection
from tailer.delta.parquet_columns import ParquetColumns
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
    rows = ParquetColumns.rows

    def spied(self: ParquetColumns, *arguments: Any, **more: Any) -> Any:
        begun.append(more["first"])
        return rows(self, *arguments, **more)

    data = numbers(3000)
    wanted = positions(decoded(data, selection=selection))[skip:]
    monkeypatch.setattr(ParquetColumns, "rows", spied)
    assert positions(decoded(data, selection=selection, skip=Skip(skip))) == wanted
    assert begun[0] == first
