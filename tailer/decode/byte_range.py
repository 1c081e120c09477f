"""A range of a data file, for one of several readers that have not seen its footer before."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailer.decode.vectors import RowSelection

from msgspec import Struct

#: The last part of a file is open-ended: its size in the log is not the sum of its row groups.
OPEN_END = 2**63

#: A file of one row group in this many exact parts is decoded at most two and a half times.
_EXACT_PARTS_MAX = 4


class ByteRange(Struct, frozen=True):
    """A half-open range of a file's bytes, which stands for the rows in it.

    These are the row groups whose middle lies in the range. An ``exact`` range also divides a row
    group, as if all rows had the same size: rows before it in the same group are decoded in vain,
    but most files have only one row group. Either way, adjacent ranges have each row exactly once.
    """

    first: int
    end: int
    exact: bool = False

    @property
    def is_last(self) -> bool:
        """Return whether it goes to the end of the file, whatever its size is."""
        return self.end == OPEN_END

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


def divide_size(size: int, size_max: int) -> list[ByteRange]:
    """Divide a file of ``size`` bytes into parts of at most about ``size_max`` bytes.

    Up to a few parts are exact, because the file may have a single row group. With many exact
    parts, that row group would be read too often.
    """
    count = math.ceil(size / size_max)
    edges = [size * i // count for i in range(count)] + [OPEN_END]
    exact = count <= _EXACT_PARTS_MAX
    return [ByteRange(first, end, exact=exact) for first, end in itertools.pairwise(edges)]
