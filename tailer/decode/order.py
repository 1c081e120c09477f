"""The order of the rows of one cdc file: what leaves before what comes.

Writers put the rows of a cdc file in an order of their own. Spark keeps the two images of an update
side by side; others write all postimages and then all preimages. A feed promises a preimage before
its postimage, and no file says what the key is that they share. So a file whose order may break the
promise is read in two passes, first the rows that leave, then those that come, each in the file's
order. That is the same on every run, and positions stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.changes import CHANGE_TYPE

__all__ = ["is_ordered"]

_ROWS_AT_ONCE = 65_536


def is_ordered(parquet: pq.ParquetFile) -> bool:
    """Whether the rows of a cdc file can be given as they lie in it: all that leave lie before all
    that come; or there are postimages, and each lies right behind a preimage.

    Only the change types are read, and not even those where the footer tells that all are one.
    """
    if parquet.metadata.num_rows < 2 or _is_of_one_kind(parquet.metadata):
        return True
    seen = _Seen()
    for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[CHANGE_TYPE]):
        seen.add(batch.column(0).cast(pa.string()))
        if not (seen.leaving_first or seen.adjacent):
            return False
    return seen.leaving_first or (seen.adjacent and seen.updated)


def _is_of_one_kind(footer: pq.FileMetaData) -> bool:
    """Whether the footer proves that all rows are of one change type."""
    kinds = set()
    for group in range(footer.num_row_groups):
        columns = footer.row_group(group)
        found = None
        for number in range(columns.num_columns):
            if columns.column(number).path_in_schema == CHANGE_TYPE:
                found = columns.column(number).statistics
        if found is None or not found.has_min_max or found.min != found.max:
            return False
        kinds.add(found.min)
    return len(kinds) == 1


@dataclass(slots=True)
class _Seen:
    """What the rows so far allow. ``open``: the last one is a preimage."""

    leaving_first: bool = True
    adjacent: bool = True
    open: bool = False
    came: bool = False
    updated: bool = False

    def add(self, kinds: pa.StringArray) -> None:
        """Take in the change types of the rows that follow."""
        pre, post = (
            pc.fill_null(pc.starts_with(kinds, f"update_{side}"), fill_value=False)
            for side in ("pre", "post")
        )
        deletes, inserts = (
            pc.fill_null(pc.equal(kinds, kind), fill_value=False) for kind in ("delete", "insert")
        )
        leaves, comes = pc.or_(pre, deletes), pc.or_(post, inserts)
        first = 0 if self.came else pc.index(comes, value=True).as_py()
        if first >= 0:
            self.leaving_first &= not pc.any(leaves.slice(first)).as_py()
            self.came = True
        follows = pa.concat_arrays([pa.array([self.open]), pre.slice(0, len(pre) - 1)])
        self.adjacent &= not pc.any(pc.and_not(post, follows)).as_py()
        self.open = pre[-1].as_py()
        self.updated |= bool(pc.any(post).as_py())
