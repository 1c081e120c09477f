"""A range of a data file, for one of several readers that have not seen its footer before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailer.decode.vectors import RowSelection

from msgspec import Struct


class ByteRange(Struct, frozen=True):
    """A half-open range of a file's bytes, which stands for the rows in it.

    These are the row groups whose middle lies in the range. An ``exact`` range also divides a row
    group, as if all rows had the same size: rows before it in the same group are decoded in vain,
    but most files have only one row group. Either way, adjacent ranges have each row exactly once.
    """

    first: int
    end: int
    exact: bool = False

    def has_row_group(self, first: int, rows: int, total: int, size: int) -> bool:
        """Return whether a row group with ``rows`` rows, from row ``first`` on, is in this range.

        ``total`` and ``size`` are the file's rows and bytes. Rows are used because reading a
        damaged footer's column data can crash the whole process.
        """
        return self.exact or self.first <= size * (2 * first + rows) // (2 * total) < self.end

    def narrow_selection(self, selection: RowSelection, total: int, size: int) -> RowSelection:
        """Return the selected rows that are in this range."""
        if not self.exact:
            return selection
        low, high = (min(total, total * edge // max(1, size)) for edge in (self.first, self.end))
        return selection.within(low, high)
