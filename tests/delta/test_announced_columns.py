"""What a decoder lets a remote file know of its reads: just these columns of just these rows."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tailer.changes import ChangeFile
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.decode.vectors import RowSelection
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tests.decode.test_rows import KINDS, WIDE, only, order, parquet, values, without
from tests.support.components import require_crate
from tests.support.damaged_footers import I64, footer_of, in_metadata, with_footer, zigzag
from tests.support.feeds import state


class Bytes(io.BytesIO):
    """A file's bytes, with the ranges that are read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        data = super().read(size)
        self.reads.append((at, at + len(data)))
        return data


class Remote(pa.PythonFile):  # type: ignore[misc]  # it has no types
    """A file that is told what will be read."""

    def __init__(self, handle: Bytes, mode: str) -> None:  # noqa: ARG002 - pyarrow takes it
        self.handle = handle
        self.told: list[Sequence[Sequence[tuple[int, int]]]] = []

    def will_read(self, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.told.append(groups)


def read(
    data: bytes, file: ChangeFile, selection: RowSelection, options: DecodeOptions, skip: int = 0
) -> tuple[Remote, list[int]]:
    source = Remote(Bytes(data), mode="r")
    return source, values([*decode_file(source, file, selection, options, Skip(skip))])


def places(data: bytes, columns: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Where these columns are, by row group."""
    source = pa.BufferReader(data)
    parquet = ParquetColumns(source)
    row_groups = RowGroups(parquet, source)
    return [row_groups.find_ranges(group, columns) for group in range(parquet.num_row_groups)]


def within(source: Remote, data: bytes) -> bool:
    """Whether what was read of the columns is what was told."""
    told = [extent for groups in source.told for group in groups for extent in group]
    of_columns = [r for r in source.handle.reads if r[1] <= len(data) - 8 - len(footer_of(data))]
    return bool(of_columns) and all(
        any(start <= read[0] and read[1] <= end for start, end in told) for read in of_columns
    )


def test_the_columns_of_the_row_groups_that_are_read_are_told() -> None:
    require_crate()
    rows = [{"id": i, "s": "x" * 9, "p": i} for i in range(40)]
    data = parquet(rows, WIDE, row_group_size=10)
    ranges = places(data, ["id", "p"])
    options = DecodeOptions(columns=("p", "id"))
    file = order(state(WIDE))
    source, found = read(data, file, without(*range(20, 30)), options, skip=15)
    assert found == [*range(15, 20), *range(30, 40)]
    assert source.told == [[ranges[1], ranges[3]]]
    assert within(source, data)
    source, found = read(data, file, only(5), options)
    assert (found, source.told) == ([5], [ranges[:1]])


def test_of_a_cdc_file_the_kinds_are_told_first() -> None:
    require_crate()
    rows = [{"id": i, "_change_type": "insert"} for i in range(20)]
    data = parquet(rows, KINDS, row_group_size=10)
    source, found = read(data, order(change_type=None), without(), DecodeOptions())
    assert found == [*range(20)]
    kinds, both = (places(data, names) for names in (["_change_type"], KINDS.names))
    assert source.told == [kinds, both]
    assert within(source, data)


@pytest.mark.parametrize("start", [-5, 20])
def test_columns_that_overlap_or_lie_nowhere_are_not_told(start: int) -> None:
    data = parquet([{"id": 1, "s": "x", "p": 2}], WIDE)
    for number in (9, 11):  # of the data pages, of the dictionary
        data = with_footer(data, in_metadata(number, I64, zigzag(start)))
    source = Remote(Bytes(data), mode="r")
    row_groups = RowGroups(ParquetColumns(source), source)
    row_groups.announce(["id", "s", "p"], [0])
    assert not any(extents for groups in source.told for extents in groups)
