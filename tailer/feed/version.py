"""One version's files as change batches: fetch, decode, and the offsets between them.

Decoding runs in worker threads, one step at a time, so that the event loop stays free.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio.to_thread
import pyarrow as pa

from tailer.changes import CHANGE_TYPE, ChangeBatch, ChangeFile, Offset, Rows
from tailer.decode.output import check_names, output_schema
from tailer.decode.row_cache import kept_rows
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.delta.commit import Commit
from tailer.delta.snapshot import Snapshot
from tailer.errors import FileGone, OffsetError, UnsupportedTable
from tailer.feed.counting import Place, logged_rows
from tailer.feed.fetch import FetchAhead
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.policy import LostFiles
from tailer.feed.progress import Observer
from tailer.feed.selection import Selector
from tailer.log.live import LiveFiles
from tailer.log.table import TableLog
from tailer.store import ChangeSourced

__all__ = ["Reading", "VersionReader", "in_thread", "whole_pairs"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """What all versions that one feed reads have in common.

    ``decode`` are the options' decode options, for the selected columns and with the observer
    notified of what is read. ``counted_by`` names the options that determine how changes are
    counted, ``former`` the same for offsets of older releases.
    """

    log: TableLog
    options: FeedOptions
    observer: Observer
    orders: Orders
    lost: LostFiles
    live: LiveFiles
    selector: Selector
    decode: DecodeOptions
    counted_by: str
    former: str

    @classmethod
    def of(
        cls,
        log: TableLog,
        options: FeedOptions,
        observer: Observer,
        orders: Orders | None = None,
        lost: LostFiles | None = None,
        live: LiveFiles | None = None,
    ) -> Reading:
        """Return how a table is read under the options of a feed."""
        if isinstance(log.store, ChangeSourced):
            log.store.serve(options.change_source)
        selector = Selector(options.selection, options.decode.writer_timezone)
        columns = options.selection.columns or options.decode.columns
        decode = replace(options.decode, columns=columns, on_read=observer.read_bytes)
        ways = options.counting_id(), options.counting_id(counting=1)
        known = orders or Orders(), lost or LostFiles(), live or LiveFiles()
        return cls(log, options, observer, *known, selector, decode, *ways)

    def is_former(self, first: Offset) -> bool:
        """Return whether the index was counted in the former way, or in an unknown way."""
        return first.index > 0 and first.counted_by != self.counted_by

    def place(self, first: Offset) -> Place:
        """Find where an offset's index lies among the files of its version."""
        return Place(self.log.store, first, former=self.is_former(first), lost=self.lost)

    async def settled(self, first: Offset, files: Iterable[ChangeFile]) -> int:
        """Return the index to start at, in the present way of counting."""
        place = self.place(first)
        async with (
            aclosing(in_thread(iter(files))) as planned,
            aclosing(place.onwards(planned)) as found,
        ):
            await anext(found, None)
        return place.index


class VersionReader:
    """Reads the rows of one version: a commit's changes, or a snapshot's rows."""

    def __init__(self, reading: Reading, version: Commit | Snapshot, timestamp_ms: int) -> None:
        self.reading = reading
        self.state = version.after if isinstance(version, Commit) else version.state
        self.timestamp_ms = timestamp_ms
        self.selector = reading.selector
        self.decode = reading.decode
        self.selector.check(self.state)
        self._check_names(version.version)

    def _check_names(self, version: int) -> None:
        try:
            check_names(self.decode.target or self.state, self.decode.columns)
        except UnsupportedTable as e:
            raise e.at(table=self.reading.log.store.root, version=version) from None

    async def batches(
        self, files: Iterable[ChangeFile], first: Offset
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the batches of the version's files; the last batch leads to the next version."""
        at: Offset | None = None
        held: ChangeBatch | None = None
        wanted = (file for file in files if self.selector.wants(file))
        fetching = FetchAhead(self.reading.log.store, self.decode.on_read)
        lost, place = self.reading.lost, self.reading.place(first)
        skip = place.skip

        def may_start(file: ChangeFile) -> bool:
            return not skip.remaining and file.kept is None and file not in lost

        async with (
            aclosing(in_thread(wanted)) as found,
            aclosing(place.onwards(found)) as following,
            aclosing(fetching),
            aclosing(fetching.in_order(following, may_start)) as planned,
        ):
            async for file in planned:
                at = at or replace(first, index=place.index)
                if file in lost:
                    at = replace(at, index=at.index + (logged_rows(file) or 0))
                    continue
                async with aclosing(self._file(file, skip, fetching)) as decoded:
                    async for rows in decoded:
                        if held is not None:
                            yield held
                        held = self._batch(file, rows, at)
                        at = held.next_offset
                self.reading.observer.fetched(file.size or 0)
        if skip.remaining:
            raise OffsetError(
                f"the offset names change {first.index} of a version that has "
                f"{first.index - skip.remaining}",
                version=first.version,
                hint="it was saved under another change source, or set wrongly; set it again",
            )
        held = held or self._empty(at or replace(first, index=place.index))
        yield replace(held, next_offset=held.offset.next_version(held.timestamp_ms))

    async def _file(
        self, file: ChangeFile, skip: Skip, fetching: FetchAhead
    ) -> AsyncGenerator[Rows, None]:
        if file.kept is not None:  # finding the changes has decoded them
            for rows in self._masked(kept_rows(file, skip)):
                yield rows
            return
        try:
            fetched = await fetching.take(file)
        except FileGone as e:
            e.rows = logged_rows(file)
            raise
        with fetched.source:
            decoded = decode_file(fetched.source, file, fetched.selection, self.decode, skip)
            if file.change_type is None and file.kinds is None:
                decoded = whole_pairs(decoded)
            async with aclosing(in_thread(self._masked(decoded))) as found:
                async for rows in found:
                    yield rows

    def _masked(self, decoded: Iterable[Rows]) -> Iterator[Rows]:
        for rows in decoded:
            yield replace(rows, batch=self.selector.rows(rows.batch))

    def _batch(self, file: ChangeFile | None, rows: Rows, at: Offset) -> ChangeBatch:
        counted_by = self.reading.counted_by
        following = replace(at, index=at.index + rows.batch.num_rows, counted_by=counted_by)
        state = self.selector.state(self.state if file is None else file.state)
        if file is not None:
            file = self.selector.file(file)
            if file.kept is not None:  # what is written need not be kept too
                file = replace(file, kept=())
        batch, positions = rows.batch, rows.positions
        stamp = self.timestamp_ms
        return ChangeBatch(
            batch, positions, state, file, stamp, at, following, rows.row_ids, counted_by=counted_by
        )

    def _empty(self, at: Offset) -> ChangeBatch:
        schema = output_schema(self.decode.target or self.state, self.decode.columns)
        rows = self.selector.rows(pa.RecordBatch.from_pylist([], schema=schema))
        return self._batch(None, Rows(rows, pa.array([], pa.int64())), at)


def whole_pairs(decoded: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the same rows, cut so that no batch ends between an update's two images of a cdc file:
    a preimage at a batch's end is moved to the next batch."""
    held: Rows | None = None
    for rows in decoded:
        if held is not None:
            rows = _joined(held, rows)  # noqa: PLW2901  # it begins with what was held back
            held = None
        count = rows.batch.num_rows
        if count and rows.batch.column(CHANGE_TYPE)[-1].as_py() == "update_preimage":
            held = rows.slice(count - 1)
            ids = None if rows.row_ids is None else rows.row_ids.slice(0, count - 1)
            before = (rows.batch.slice(0, count - 1), rows.positions.slice(0, count - 1), ids)
            rows = Rows(*before)  # noqa: PLW2901
        if rows.batch.num_rows:
            yield rows
    if held is not None:
        yield held


def _joined(first: Rows, second: Rows) -> Rows:
    ids = None
    if first.row_ids is not None and second.row_ids is not None:
        ids = pa.concat_arrays([first.row_ids, second.row_ids])
    return Rows(
        pa.concat_batches([first.batch, second.batch]),
        pa.concat_arrays([first.positions, second.positions]),
        ids,
    )


async def in_thread(iterator: Iterator[T]) -> AsyncGenerator[T, None]:
    """Iterate in worker threads, one step at a time."""
    try:
        while (item := await anyio.to_thread.run_sync(next, iterator, None)) is not None:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
