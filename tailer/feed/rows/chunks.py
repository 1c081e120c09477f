"""From files to chunks of decoded rows: what one step in a worker thread does.

A chunk has the rows of one large batch, or of many small files and versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tailer.changes import CHANGE_TYPE, ChangeFile, Rows
from tailer.delta.snapshot import TableState
from tailer.feed.rows.fetch import Fetched

__all__ = ["Chunk", "Entry", "Item", "Lost", "Read", "Together", "Version", "chunks", "whole_pairs"]


@dataclass(frozen=True, slots=True)
class Version:
    """A version to read: the selected files whose rows are its changes, in order, and its state.

    Among the entries of a run it marks the version's end.
    """

    number: int
    timestamp_ms: int
    state: TableState
    files: Iterable[ChangeFile]


@dataclass(frozen=True, slots=True)
class Lost:
    """A file that is recorded as lost; its rows are counted as if they were delivered."""

    file: ChangeFile


@dataclass(frozen=True, slots=True)
class Together:
    """The rows of several files, decoded in one step. ``entries`` are the files with their numbers
    of rows, and the ends of versions between them."""

    entries: list[tuple[ChangeFile, int] | Version]
    rows: Rows


#: What a run is read from: files, fetched or not, the ends of versions, and the error that
#: comes in place of the rest.
Entry: TypeAlias = ChangeFile | Fetched | Lost | Version | Exception


@dataclass(frozen=True, slots=True)
class Read:
    """So many files were read to their ends, of this size in bytes."""

    files: int
    size: int


#: What a run is made of, when it is decoded.
Item: TypeAlias = tuple[ChangeFile, Rows] | Together | Lost | Version


@dataclass(slots=True)
class Chunk:
    """Rows of consecutive files, with the ends of versions between them.

    ``size`` are the bytes of all rows. ``files`` and ``read_bytes`` are the number and the size of
    the files that were read to their ends; ``error`` comes after all that. No chunk follows the
    ``last`` one.
    """

    items: list[Item] = field(default_factory=list)
    size: int = 0
    files: int = 0
    read_bytes: int = 0
    error: Exception | None = None
    last: bool = False


def chunks(items: Iterable[Item | Read], rows_max: int, bytes_max: int) -> Iterator[Chunk]:
    """Yield items in chunks; a chunk with more than one item's rows is within the bounds.

    The end of a version is in the chunk with its last rows. Never raises: an error is the last
    chunk's.
    """
    chunk, rows = Chunk(), 0
    try:
        for item in items:
            if isinstance(item, Read):
                chunk.files += item.files
                chunk.read_bytes += item.size
                continue
            if isinstance(item, tuple | Together):
                found = item.rows if isinstance(item, Together) else item[1]
                count, added = found.batch.num_rows, int(found.batch.nbytes)
                if rows and (rows + count > rows_max or chunk.size + added > bytes_max):
                    yield chunk
                    chunk, rows = Chunk(), 0
                rows += count
                chunk.size += added
            chunk.items.append(item)
    except Exception as e:  # noqa: BLE001 - raised where all before it is on its way
        chunk.error = e
    if chunk.items or chunk.error:
        chunk.last = True
        yield chunk


def whole_pairs(decoded: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the same rows, cut so that no batch ends between an update's two images of a cdc file:
    a preimage at a batch's end is moved to the next batch, if a postimage follows it there."""
    held: Rows | None = None  # which ends with a preimage
    for rows in decoded:
        if not rows.batch.num_rows:
            continue
        if held is not None:
            if _kind(rows, 0) == "update_postimage":
                before, last = _without_last(held), held.slice(held.batch.num_rows - 1)
                if before.batch.num_rows:
                    yield before
                rows = _joined(last, rows)  # noqa: PLW2901
            else:
                yield held
            held = None
        if _kind(rows, -1) == "update_preimage":
            held = rows
        else:
            yield rows
    if held is not None:
        yield held


def _kind(rows: Rows, number: int) -> str:
    return str(rows.batch.column(CHANGE_TYPE)[number].as_py())


def _without_last(rows: Rows) -> Rows:
    count = rows.batch.num_rows - 1
    ids = None if rows.row_ids is None else rows.row_ids.slice(0, count)
    return Rows(rows.batch.slice(0, count), rows.positions.slice(0, count), ids)


def _joined(first: Rows, second: Rows) -> Rows:
    ids = None
    if first.row_ids is not None and second.row_ids is not None:
        ids = pa.concat_arrays([first.row_ids, second.row_ids])
    return Rows(
        pa.concat_batches([first.batch, second.batch]),
        pa.concat_arrays([first.positions, second.positions]),
        ids,
    )
