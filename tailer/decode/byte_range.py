"""A range of a data file, for one of several readers that have not seen its footer before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailer.decode.vectors import RowSelection

__all__ = ["ByteRange"]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The half-open range of a file's bytes whose rows are meant.

    These are the row groups whose middle lies in it. An ``exact`` range also divides a row group,
    as if all rows were of one size: what lies before it in the same group is decoded in vain, but
    a file is mostly a single one. Ranges that meet at an edge have each row once either way.
    """

    first: int
    end: int
    exact: bool = False

    def holds(self, first: int, rows: int, total: int, size: int) -> bool:
        """Whether a row group of so many ``rows``, from ``first`` on, is of this range.

        ``total`` and ``size`` are the file's rows and bytes. It is told by the rows: what a
        damaged footer says of columns can end the whole process.
        """
        return self.exact or self.first <= size * (2 * first + rows) // (2 * total) < self.end

    def narrowed(self, selection: RowSelection, total: int, size: int) -> RowSelection:
        """The selected rows that are of this range."""
        if not self.exact:
            return selection
        low, high = (min(total, total * edge // max(1, size)) for edge in (self.first, self.end))
        return selection.within(low, high)
