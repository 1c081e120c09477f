"""Rows that the sink refuses for what is in them go to another sink, and the feed continues.

A fault of the server must never look like a refusal of rows. So a row is parked in two cases:

* The sink says that it is this row (:class:`RowsRefused`, or a value that can't be read).
* The sink does not say which (any other :class:`SinkRejected`), and it takes other rows of the same
  batch since it has refused the whole. All rows of a batch, or the only one, are not parked. Of a
  copy, a row that leaves proves nothing of those that come: an engine may take all deletes, and no
  document because of its own settings.

A :class:`TargetRefused` is of no row, and is raised at once.

The rows are found by halving the batch, in order: a row is written or parked before the next one
is tried. Only for a sink that keeps no progress are rows held back until a later one is taken, as
what was not parked yet when the process dies is then read again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import CHANGE_TYPE, COMING_KINDS, COMMIT_VERSION, ChangeBatch, Offset
from tailer.errors import CorruptRow, RowsRefused, SinkRejected, TableError, TargetRefused
from tailer.feed.parked_file import ParkedFile
from tailer.feed.progress import FeedProgress
from tailer.process.threads import run_blocking
from tailer.sink import Sink, write_and_save

#: If this many rows in a row are refused, the fault is the sink's, not the rows'.
PARKED_IN_A_ROW_MAX = 1000
_NAMED_MAX = 10
_COMING = pa.array(COMING_KINDS)

Refusal = SinkRejected | TableError


@dataclass(slots=True)
class Parked:
    """The rows of one batch that were parked: how many of how many, their versions, the ids of the
    first events, and why the first one was refused."""

    of: int
    rows: int = 0
    versions: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    reason: str = ""

    def count_row(self, row: ChangeBatch, refused: Refusal) -> None:
        """Count a row that is parked."""
        self.rows += row.num_rows
        version = row.rows.column(COMMIT_VERSION)[0].as_py()
        if version not in self.versions:
            self.versions.append(version)
        if len(self.ids) < _NAMED_MAX:
            self.ids += row.event_ids().to_pylist()
        self.reason = self.reason or str(refused)

    def __str__(self) -> str:
        first, last = self.versions[0], self.versions[-1]
        versions = f"version {first}" if first == last else f"versions {first} to {last}"
        more = ", ..." if self.rows > len(self.ids) else ""
        return (
            f"parked {self.rows} of {self.of} rows, of {versions} (event ids: "
            f"{', '.join(self.ids)}{more}): {self.reason}"
        )


class Parking:
    """Writes batches to a sink, and the rows that it refuses to ``park``.

    ``report`` is called with what was parked, once a batch. ``file`` is that of
    ``park``, if it has a limit.
    """

    def __init__(
        self,
        sink: Sink,
        park: Sink,
        progress: FeedProgress,
        report: Callable[[Parked], None],
        file: ParkedFile | None = None,
    ) -> None:
        self._sink = sink
        self._park = park
        self._progress = progress
        self._report = report
        self._file = file
        self._park_open = False
        self._in_a_row = 0
        # Of one batch:
        self._parked = Parked(0)
        self._taken: set[bool] = set()
        self._held: list[tuple[ChangeBatch, Refusal]] = []

    @property
    def all_parked(self) -> bool:
        """Return whether the sink has taken no row of the last batch."""
        return 0 < self._parked.of == self._parked.rows

    async def write(self, batch: ChangeBatch, save: Callable[[Offset], Awaitable[None]]) -> None:
        """Write a batch, without the rows that are parked. Raises the sink's errors.

        ``save`` gets offsets within it as long as no row was refused: see
        :func:`tailer.sink.write_pieces`.
        """
        self._parked, self._taken, self._held = Parked(batch.num_rows), set(), []
        left = batch

        async def save_piece(offset: Offset) -> None:
            nonlocal left
            await save(offset)
            left = batch.slice(batch.rows_before(offset), batch.num_rows)

        try:
            refused = await self._try_write(write_and_save(self._sink, batch, save_piece), batch)
            if refused is not None:
                # Not of what is saved: that it is taken again would prove nothing.
                await self._write_halves(left, refused)
            if self._held:
                raise self._held[0][1]
            await self._pass_parked(batch)
        finally:
            if self._parked.rows:
                self._report(self._parked)

    async def park_row(self, row: ChangeBatch, refused: Refusal) -> None:
        """Park a row that was refused before it came to the sink."""
        self._parked = Parked(row.num_rows)
        await self._judge_row(row, refused)
        await self._pass_parked(row)
        self._report(self._parked)

    async def _pass_parked(self, batch: ChangeBatch) -> None:
        """Have a sink that keeps the offset move it behind parked rows that end a version: nothing
        may follow them, and they would come again."""
        ends = not batch.next_offset.index
        if ends and self._parked.rows and self._sink.traits.keeps_offset:
            await self._sink.write(batch.slice(batch.num_rows, batch.num_rows))

    async def _try_write(self, write: Awaitable[None], batch: ChangeBatch) -> Refusal | None:
        """Write a batch; return why it was refused, if it may be for a row."""
        try:
            await write
        except TargetRefused:
            raise
        except (SinkRejected, TableError) as e:
            return e
        self._in_a_row = 0
        self._taken |= self._find_sides(batch)
        await self._park_held_rows()
        return None

    def _find_sides(self, rows: ChangeBatch) -> set[bool]:
        """Return whether rows come to a copy, leave it, or both; all events are of one side."""
        if not rows.num_rows or not self._sink.traits.copies:
            return {True} if rows.num_rows else set()
        comes = pc.is_in(rows.rows.column(CHANGE_TYPE), value_set=_COMING)
        return set(comes.unique().to_pylist())

    async def _write_halves(self, batch: ChangeBatch, refused: Refusal) -> None:
        """Write a batch that was refused in halves, or judge its only row."""
        if batch.num_rows <= 1:
            await self._judge_row(batch, refused)
            return
        middle = batch.num_rows // 2
        for half in (batch.slice(0, middle), batch.slice(middle, batch.num_rows)):
            of_half = await self._try_write(self._sink.write(half), half)
            if of_half is not None:
                await self._write_halves(half, of_half)

    async def _judge_row(self, row: ChangeBatch, refused: Refusal) -> None:
        """Park a row that was refused alone, hold it back, or raise why it was refused."""
        self._in_a_row += 1
        if not row.num_rows or self._in_a_row > PARKED_IN_A_ROW_MAX:
            raise refused
        if self._find_sides(row) <= self._taken or isinstance(refused, RowsRefused | CorruptRow):
            await self._write_to_park(row, refused)
        elif self._sink.traits.keeps_offset:
            raise refused
        else:
            self._held.append((row, refused))

    async def _park_held_rows(self) -> None:
        """Park the rows that were held back, after one that was taken."""
        held, self._held = self._held, []
        for row, refused in held:
            if self._find_sides(row) <= self._taken:
                await self._write_to_park(row, refused)
            else:
                self._held.append((row, refused))

    async def _write_to_park(self, row: ChangeBatch, refused: Refusal) -> None:
        if self._file is not None:
            await run_blocking(self._file.check_room)
        if not self._park_open:
            await self._park.open("parked")
            self._park_open = True
        await self._park.write_refused(row, _describe_refusal(row, refused))
        self._progress.count_parked_rows(row.num_rows)
        self._parked.count_row(row, refused)


def _describe_refusal(row: ChangeBatch, refused: Refusal) -> dict[str, Any]:
    """Return what is written beside a row: see :meth:`tailer.sink.Sink.write_refused`."""
    return {
        "reason": str(refused),
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "file": None if row.file is None else row.file.path,
        "position": row.positions[0].as_py(),
        "offset": row.offset.to_json(),
        "id": row.event_ids()[0].as_py(),
    }
