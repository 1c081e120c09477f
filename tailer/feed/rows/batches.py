"""From decoded rows to change batches: which offset each batch begins at and leads to.

Nothing here reads or waits: the rows are there, and offsets are counted. The rules:

- The index of an offset counts every change of its version, in the order in which they are read,
  with those of files that are not read, which are counted as if they were delivered.
- A version's last batch leads to the next version. So a crash after it does not repeat the version.
- Without ``spans``, a version without changes gives one empty batch, which only moves the offset;
  so does one after whose last rows the table has other columns.

A worked example: version 7 has 3 rows in file a and 2 in file b, version 8 has none. From (7, 0) on
a sink that takes one file at a time gets a: (7, 0) -> (7, 3), b: (7, 3) -> (8, 0), and an empty
batch (8, 0) -> (9, 0). One that takes spans gets one batch with two parts, (7, 0) -> (9, 0).

What must never happen: a batch that leads to the next version before its last row was in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from msgspec import structs

from tailer.changes import ChangeBatch, DecodedRows, Offset, Part, concat_batches
from tailer.errors import OffsetError
from tailer.feed.read_context import ReadContext
from tailer.feed.rows.counting import IndexFinder
from tailer.feed.rows.span import DecodedEntries, Version


class _End(NamedTuple):
    """The end of a version: the offsets behind its last change, and of the next version."""

    version: Version
    at: Offset
    following: Offset


class _Placed(NamedTuple):
    """Entries with their offsets: the files that have rows, the ends of the versions behind the
    last rows, and the offset behind all."""

    parts: list[Part]
    ends: list[_End]
    at: Offset


class BatchAssembler:
    """Makes the batches of a span that is read from the offset ``first`` on.

    ``finder`` knows the index that its first change really has, once a file was found.
    """

    def __init__(
        self, context: ReadContext, finder: IndexFinder, first: Offset, *, spans: bool
    ) -> None:
        self._context = context
        self._finder = finder
        self._first = first
        self._spans = spans
        self._at: Offset | None = None
        self._made: list[ChangeBatch] = []

    def add_step(self, decoded: Iterable[DecodedEntries]) -> list[ChangeBatch]:
        """Return the batches of what was decoded in one step, in order."""
        self._made = []
        for each in decoded:
            self._add_decoded(each)
        return self._join_batches() if self._spans else self._made

    def _add_decoded(self, decoded: DecodedEntries) -> None:
        if self._at is None:
            self._at = structs.replace(self._first, index=self._finder.index)
        placed = self._place_entries(decoded, self._at)
        ends = placed.ends
        if decoded.rows is not None:
            # The batch leads past the ends whose columns are its own. From the first one with
            # other columns on, each end is reached by an empty batch.
            schema = placed.parts[-1].file.state.schema
            while ends and ends[0].version.state.schema == schema:
                ends.pop(0)
            following = ends[0].at if ends else placed.at
            self._made.append(self._build_batch(decoded.rows, placed.parts, following))
        for end in ends:
            self._end_version(end)
        self._at = placed.at

    def _place_entries(self, decoded: DecodedEntries, at: Offset) -> _Placed:
        """Count the entries' changes from the offset ``at`` on."""
        counted_by = self._context.counted_by
        parts: list[Part] = []
        ends: list[_End] = []
        row = 0
        for entry, count in decoded.counts:
            if entry.file is None:
                following = at.next_version(entry.version.timestamp_ms, entry.version.commit_id)
                table_id = entry.version.state.table_id
                if following.table_id != table_id:  # a bounded read continues after a replacement
                    following = structs.replace(following, table_id=table_id)
                ends.append(_End(entry.version, at, following))
                at = following
                continue
            if entry.is_unread:
                at = structs.replace(at, index=at.index + count)
            elif decoded.rows is None:
                at = at.advanced_by(count, counted_by)
            elif count:
                parts.append(Part(row, entry.file, at))
                ends = []
                at = at.advanced_by(count, counted_by)
                row += count
        return _Placed(parts, ends, at)

    def _build_batch(self, rows: DecodedRows, parts: list[Part], following: Offset) -> ChangeBatch:
        file = parts[-1].file
        if file.kept is not None:  # what is written need not be kept too
            file = structs.replace(file, kept=())
        return ChangeBatch(
            rows.batch,
            rows.positions,
            file.state,
            file if len(parts) == 1 else None,
            file.timestamp_ms,
            parts[0].offset,
            following,
            rows.row_ids,
            counted_by=self._context.counted_by,
            span=tuple(parts) if len(parts) > 1 else (),
        )

    def _end_version(self, end: _End) -> None:
        """Let the last batch lead to the next version; without one, add an empty one that does."""
        version, at, following = end
        skip, first = self._finder.skip, self._first
        if skip.remaining:
            raise OffsetError(
                f"the offset names change {first.index} of a version that has "
                f"{first.index - skip.remaining}",
                version=first.version,
                hint="it was saved under another change source, or set wrongly; set it again",
            )
        last = self._made[-1] if self._made else None
        # A commit that changes columns may only take rows away, and those have the columns before.
        if last is None or not (
            (self._spans or last.version == version.number)
            and last.state.schema == version.state.schema
        ):
            self._made.append(self._build_empty_batch(version, at, following))
        else:
            self._made[-1] = structs.replace(last, next_offset=following)

    def _build_empty_batch(self, version: Version, at: Offset, following: Offset) -> ChangeBatch:
        context = self._context
        return ChangeBatch(
            context.build_empty_rows(version.state),
            pa.nulls(0, pa.int64()),
            version.state,
            None,
            version.timestamp_ms,
            at,
            following,
            counted_by=context.counted_by,
        )

    def _join_batches(self) -> list[ChangeBatch]:
        """Return the batches as few: one for each state of the table, with or without row ids."""
        groups: list[list[ChangeBatch]] = []
        for batch in self._made:
            if groups and not groups[-1][-1].num_rows:  # what comes leads further
                groups[-1] = [batch]
            elif groups and _can_join(groups[-1][-1], batch):
                groups[-1].append(batch)
            else:
                groups.append([batch])
        return [concat_batches(group) for group in groups]


def _can_join(one: ChangeBatch, other: ChangeBatch) -> bool:
    """Return whether the rows of two batches may be in one."""
    return one.state is other.state and (one.row_ids is None) == (other.row_ids is None)
