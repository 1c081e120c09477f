"""What all versions that one feed reads have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa
from msgspec import Struct, structs

from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.decode.output import FileLayouts, build_output_schema, check_names
from tailer.decode.rows import DecodeOptions
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.snapshot import TableState
from tailer.errors import SchemaChanged, TableError, UnsupportedTable
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders
from tailer.feed.policy import LostFiles
from tailer.feed.progress import Observer
from tailer.feed.rows.counting import IndexFinder
from tailer.feed.texts import TextRule
from tailer.log.table import TableLog
from tailer.plan.live_files import LiveFiles
from tailer.shape.columns import NeededColumns, TableColumns
from tailer.shape.pruning import Pruning
from tailer.shape.shaper import Shaper
from tailer.store import BlockingFiles
from tailer.store.budget import Budget

if TYPE_CHECKING:
    from tailer.delta.commit import Commit
    from tailer.feed.rows.span import DecodedStep, SpanEntry
    from tailer.plan.rules import Rewrite


class RemoteDecoder(Protocol):
    """Decodes files elsewhere, such as on a cluster. ``group_bytes`` are the encoded bytes that are
    decoded in one go, by ``lanes_max`` at most at the same time. What has no more than
    ``here_bytes_max`` is decoded in this process."""

    group_bytes: int
    here_bytes_max: int
    lanes_max: int

    async def start(self) -> int:
        """Get ready, however long it takes; return how many groups may be decoded at the same
        time."""

    async def decode_group(
        self,
        context: ReadContext,
        group: list[SpanEntry],
        use: Callable[[DecodedStep], Awaitable[None]],
    ) -> None:
        """Decode a group, and give the steps of :class:`tailer.feed.rows.decoding.SpanDecoder`."""

    async def derive_changes(
        self, context: ReadContext, commit: Commit, rewrite: Rewrite
    ) -> list[ChangeFile]:
        """Return what :func:`tailer.feed.derive.derive_changes` does, without kept rows."""


#: What goes from the reader to the publisher.
FeedItem: TypeAlias = ChangeBatch | Notice

#: Takes an item from the reader, and returns when the next one may come.
Emit: TypeAlias = Callable[[FeedItem], Awaitable[None]]
EmitBatch: TypeAlias = Callable[[ChangeBatch], Awaitable[None]]


class Unread:
    """The files of which no row is delivered, though they count: those that are recorded as lost,
    and those of which statistics prove that no row is selected."""

    def __init__(self, lost: LostFiles, pruning: Pruning | None) -> None:
        self._lost = lost
        self._pruning = pruning

    def __contains__(self, file: object) -> bool:
        return file in self._lost or (isinstance(file, ChangeFile) and self._is_pruned(file))

    def find_row_groups(self, file: ChangeFile, parquet: ParquetColumns) -> frozenset[int]:
        """Return the row groups of a file of which no row is delivered."""
        if self._pruning is None or file.rows is not None or parquet.num_row_groups < 2:
            return frozenset()
        return self._pruning.find_unwanted_groups(file, parquet)

    def _is_pruned(self, file: ChangeFile) -> bool:
        return (
            self._pruning is not None
            and file.stats is not None
            and file.rows is None
            and file.logged_rows() is not None
            and not self._pruning.find_results(file, statistics=True).true
        )


class ReadContext(Struct, frozen=True):
    """What all versions that one feed reads have in common.

    ``decode`` are the options' decode options, for the columns that are needed and with the
    observer notified of what is read; ``remote`` decodes what is large, if it is not this process.
    ``counted_by`` names the options that determine how changes are counted. ``columns`` finds the
    table's columns by their names; ``pruning`` leaves out files, and ``unread`` are those whose
    rows only count. ``layouts`` are what the files before were found to look like.
    ``blocking_files`` are the store's files, if a thread may read them without the event loop, and
    ``budget`` is what may be fetched ahead of time. ``check_for_sinks`` raises for a schema that a
    sink can't have.
    """

    log: TableLog
    options: FeedOptions
    observer: Observer
    orders: Orders
    lost: LostFiles
    live: LiveFiles
    columns: TableColumns
    pruning: Pruning | None
    unread: Unread
    texts: TextRule
    shaper: Shaper
    decode: DecodeOptions
    counted_by: str
    layouts: FileLayouts
    blocking_files: BlockingFiles | None
    budget: Budget | None
    check_for_sinks: Callable[[pa.Schema], None] = lambda _: None
    remote: RemoteDecoder | None = None

    @classmethod
    def from_options(
        cls,
        log: TableLog,
        options: FeedOptions,
        observer: Observer | None = None,
        orders: Orders | None = None,
        lost: LostFiles | None = None,
        live: LiveFiles | None = None,
        columns: TableColumns | None = None,
        check_for_sinks: Callable[[pa.Schema], None] = lambda _: None,
    ) -> ReadContext:
        """Return how a table is read under the options of a feed."""
        log.store.serve(options.change_source)
        on_read = options.decode.on_read if observer is None else observer.count_read_bytes
        observer = observer or Observer()
        orders, lost, selection = orders or Orders(), lost or LostFiles(), options.selection
        columns = columns or TableColumns(options.decode.writer_timezone)
        needed = selection.find_needed(*(request.where for request in orders.resnapshots))
        decode = structs.replace(options.decode, on_read=on_read)
        if needed is not None:
            decode = structs.replace(decode, columns=NeededColumns(needed, columns))
        pruning = None if selection.where is None else Pruning(selection.where, columns)
        shaper = Shaper(selection, columns, decode.target, pruning)
        if shaper.is_needed:  # what is computed is in memory beside what was read
            decode = decode.halve_batches()
        compared = () if selection.where is None else selection.where.columns
        unseen = {n.lower() for n in selection.masks} - {n.lower() for n in compared}
        keys = options.keys | set(options.key)
        store = log.store
        return cls(
            log=log,
            options=options,
            observer=observer,
            orders=orders,
            lost=lost,
            live=live or LiveFiles(),
            columns=columns,
            pruning=pruning,
            unread=Unread(lost, pruning),
            texts=TextRule(options.policies.on_invalid_text, keys, observer, unseen),
            shaper=shaper,
            decode=decode,
            counted_by=options.counting_id(),
            layouts=FileLayouts(decode),
            blocking_files=store.blocking_files(),
            budget=store.ahead(),
            check_for_sinks=check_for_sinks,
        )

    def is_selected(self, file: ChangeFile) -> bool:
        """Return whether a file's partition is selected."""
        return self.pruning is None or self.pruning.find_results(file, statistics=False).true

    def select_files(self, files: Iterable[ChangeFile]) -> Iterator[ChangeFile]:
        """Yield a version's files that are read, in their order."""
        return filter(self.is_selected, files)

    def check_selection(self, state: TableState, version: int) -> None:
        """Raise :class:`TableError` for a state that can't be published as it is selected."""
        self.columns.learn_state(version, state)
        if self.shaper.checked is state:
            return
        try:
            self.shaper.check_state(state)
            check_names(self.decode.target or state, self.decode.columns)
        except (SchemaChanged, UnsupportedTable) as e:
            raise e.at(table=self.log.store.root, version=version) from None
        self.shaper.checked = state

    async def learn_columns(self) -> None:
        """Learn the table's newest state, if the configuration names columns.

        A version that can't be read yet stops the feed when it is reached, and not before.
        """
        selection = self.options.selection
        wanted = selection.where or selection.select or self.orders.resnapshots
        if wanted and not self.columns.are_known:
            with suppress(TableError):
                newest = await self.log.load_snapshot()
                self.columns.learn_state(newest.version, newest.state)

    def check_idle_state(self, state: TableState) -> None:
        """Check the state of a feed that has nothing to read yet, before its first row comes."""
        self.check_for_sinks(self.shaper.shape_schema(state))

    def build_empty_rows(self, state: TableState) -> pa.RecordBatch:
        """Return rows of a state before they are shaped, but none."""
        schema = build_output_schema(self.decode.target or state, self.decode.columns)
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)

    def make_finder(self, first: Offset) -> IndexFinder:
        """Return what finds where an offset's index lies among the files of its version."""
        return IndexFinder(self.log.store, first, unread=self.unread)
