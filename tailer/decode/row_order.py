"""The order of the rows of one cdc file: what leaves before what comes.

Each writer has its own order for the rows of a cdc file. Spark keeps the two images of an update
side by side; others write all postimages and then all preimages. A feed promises a preimage before
its postimage, and no file names the key that they share. So a file whose order may break the
promise is read in two passes, first the rows that leave, then those that come, each in the file's
order. That is the same on every run, and positions do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from tailer.changes import CHANGE_TYPE, DecodedRows
from tailer.decode.constants import find_few_runs, list_texts
from tailer.delta.parquet_columns import ParquetColumns
from tailer.native.values import make_flags, make_integers

_ROWS_AT_ONCE = 65_536


def is_ordered(parquet: ParquetColumns) -> bool:
    """Return whether the rows of a cdc file can be given in the file's order: all rows that leave
    are before all that come; or there are postimages, and each directly follows a preimage.

    Only the change types are read. Statistics could save that, but they are hints, and pyarrow
    crashes when asked for those of a damaged file.
    """
    if parquet.num_rows < 2:
        return True
    seen = _Seen()
    groups = range(parquet.num_row_groups)
    for batch in parquet.read_batches(_ROWS_AT_ONCE, groups, [CHANGE_TYPE], threads=False):
        seen.add(_shorten_runs(batch.column(0)))
        if not (seen.leaving_first or seen.adjacent):
            return False
    return seen.leaving_first or (seen.adjacent and seen.updated)


def _shorten_runs(kinds: pa.DictionaryArray) -> pa.DictionaryArray:
    """Shorten each run of one change type to two rows, if there are few runs: more of them add no
    information."""
    runs = find_few_runs(kinds.indices)
    if runs is None or kinds.null_count:
        return kinds
    numbers = [number for number, length in runs for _ in range(min(2, length))]
    return pa.DictionaryArray.from_arrays(make_integers(numbers, pa.int32()), kinds.dictionary)


class _Seen(Struct):
    """What the rows so far allow. ``open``: the last one is a preimage."""

    leaving_first: bool = True
    adjacent: bool = True
    open: bool = False
    came: bool = False
    updated: bool = False

    def add(self, kinds: pa.DictionaryArray) -> None:
        """Add the change types of the next rows."""
        pre, post, deletes, inserts = (
            _find_rows_of_kind(kinds, prefix)
            for prefix in ("update_pre", "update_post", "delete", "insert")
        )
        leaves, comes = pc.or_(pre, deletes), pc.or_(post, inserts)
        first = 0 if self.came else pc.index(comes, make_flags([True])[0]).as_py()
        if first >= 0:
            self.leaving_first &= not leaves.slice(first).true_count
            self.came = True
        follows = pa.concat_arrays([make_flags([self.open]), pre.slice(0, len(pre) - 1)])
        self.adjacent &= not pc.and_not(post, follows).true_count
        self.open = pre[-1].as_py()
        self.updated |= bool(post.true_count)


def _find_rows_of_kind(kinds: pa.DictionaryArray, prefix: str) -> pa.BooleanArray:
    """Return which rows have a kind of change that begins so: early writers shortened some. The
    values of the dictionary are compared, not those of the rows."""
    words = list_texts(kinds)
    found = make_flags([word is not None and word.startswith(prefix) for word in words])
    return pc.coalesce(pc.take(found, kinds.indices), make_flags([False])[0])


def keep_pairs_whole(decoded: Iterable[DecodedRows]) -> Iterator[DecodedRows]:
    """Yield the rows of a cdc file, cut so that no batch ends between an update's two images: a
    preimage at a batch's end is moved to the next batch, if a postimage follows it there."""
    held: DecodedRows | None = None  # which ends with a preimage
    for rows in decoded:
        if not rows.batch.num_rows:
            continue
        if held is not None:
            if _find_kind(rows, 0) == "update_postimage":
                last = held.batch.num_rows - 1
                if last:
                    yield held.slice(0, last)
                rows = _join_rows(held.slice(last), rows)  # noqa: PLW2901
            else:
                yield held
            held = None
        if _find_kind(rows, -1) == "update_preimage":
            held = rows
        else:
            yield rows
    if held is not None:
        yield held


def _find_kind(rows: DecodedRows, number: int) -> str:
    return str(rows.batch.column(CHANGE_TYPE)[number].as_py())


def _join_rows(first: DecodedRows, second: DecodedRows) -> DecodedRows:
    ids = None
    if first.row_ids is not None and second.row_ids is not None:
        ids = pa.concat_arrays([first.row_ids, second.row_ids])
    return DecodedRows(
        pa.concat_batches([first.batch, second.batch]),
        pa.concat_arrays([first.positions, second.positions]),
        ids,
        first.utf8 and second.utf8,
    )
