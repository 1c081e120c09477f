"""What all versions that one feed reads have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct, structs

from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.decode.output import Shapes, check_names, output_schema
from tailer.decode.rows import DecodeOptions
from tailer.delta.snapshot import TableState
from tailer.errors import TableError, UnsupportedTable
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.policy import LostFiles
from tailer.feed.progress import Observer
from tailer.feed.rows.counting import IndexFinder
from tailer.feed.selection import Selector
from tailer.feed.texts import TextRule
from tailer.feed.where import PartitionColumns
from tailer.log.table import TableLog
from tailer.plan.live_files import LiveFiles
from tailer.store import BlockingFiles
from tailer.store.budget import Budget

#: What goes from the reader to the publisher.
FeedItem: TypeAlias = ChangeBatch | Notice

#: Takes an item from the reader, and returns when the next one may come.
Emit: TypeAlias = Callable[[FeedItem], Awaitable[None]]
EmitBatch: TypeAlias = Callable[[ChangeBatch], Awaitable[None]]


class ReadContext(Struct, frozen=True):
    """What all versions that one feed reads have in common.

    ``decode`` are the options' decode options, for the selected columns and with the observer
    notified of what is read. ``counted_by`` names the options that determine how changes are
    counted. ``shapes`` are what the files before were found to look like. ``blocking_files`` are
    the store's files, if a thread may read them without the event loop, and ``budget`` is what may
    be fetched ahead of time. ``part`` are the files of a version that are read, by their numbers
    among the selected ones. ``fits`` raises for a schema that a sink can't have.
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
    shapes: Shapes
    blocking_files: BlockingFiles | None
    budget: Budget | None
    part: slice
    fits: Callable[[pa.Schema], None] = lambda _: None

    @classmethod
    def of(
        cls,
        log: TableLog,
        options: FeedOptions,
        observer: Observer | None = None,
        orders: Orders | None = None,
        lost: LostFiles | None = None,
        live: LiveFiles | None = None,
        part: slice = slice(None),
        partitions: PartitionColumns | None = None,
    ) -> ReadContext:
        """Return how a table is read under the options of a feed."""
        log.store.serve(options.change_source)
        on_read = options.decode.on_read if observer is None else observer.read_bytes
        observer = observer or Observer()
        zone, keys = options.decode.writer_timezone, options.keys | set(options.key)
        texts = TextRule(options.policies.on_invalid_text, keys, observer)
        selector = Selector(options.selection, zone, partitions, texts)
        columns = options.selection.columns or options.decode.columns
        decode = structs.replace(options.decode, columns=columns, on_read=on_read)
        store = log.store
        return cls(
            log=log,
            options=options,
            observer=observer,
            orders=orders or Orders(),
            lost=lost or LostFiles(),
            live=live or LiveFiles(),
            selector=selector,
            decode=decode,
            counted_by=options.counting_id(),
            shapes=Shapes(decode),
            blocking_files=store.blocking_files(),
            budget=store.ahead(),
            part=part,
        )

    def chosen(self, files: Iterable[ChangeFile]) -> Iterator[ChangeFile]:
        """Yield a version's files that are read, in their order."""
        return islice(filter(self.selector.wants, files), self.part.start, self.part.stop)

    def check(self, state: TableState, version: int) -> None:
        """Raise :class:`TableError` for a state that can't be published as it is selected."""
        self.selector.partitions.learn(version, state)
        if self.selector.checked is state:
            return
        self.selector.check(state)
        try:
            check_names(self.decode.target or state, self.decode.columns)
        except UnsupportedTable as e:
            raise e.at(table=self.log.store.root, version=version) from None
        self.selector.checked = state

    async def learn(self) -> None:
        """Learn the table's newest state, if conditions on partitions are given.

        A version that can't be read yet stops the feed when it is reached, and not before.
        """
        partitions = self.selector.partitions
        wanted = self.selector.selection.where is not None or self.orders.resnapshots
        if wanted and not partitions.are_known:
            with suppress(TableError):
                newest = await self.log.snapshot()
                partitions.learn(newest.version, newest.state)

    def waits(self, state: TableState) -> None:
        """Check the state of a feed that has nothing to read yet, before its first row comes."""
        self.fits(self.no_rows(state).schema)

    def no_rows(self, state: TableState) -> pa.RecordBatch:
        """Return rows of a state as sinks get them, but none."""
        schema = output_schema(self.decode.target or state, self.decode.columns)
        return self.selector.rows(
            pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
        )

    def finder(self, first: Offset) -> IndexFinder:
        """Return what finds where an offset's index lies among the files of its version."""
        return IndexFinder(self.log.store, first, lost=self.lost)
