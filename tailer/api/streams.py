"""What the functions of the package return: a table's changes or rows, bounded or without end."""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
from msgspec import Struct

from tailer.api.background import Background
from tailer.api.batches import Batch, Ids, polars_frame
from tailer.api.cursor import Cursor, parse_after
from tailer.api.follow import make_feed
from tailer.api.options import ReadOptions
from tailer.api.ranges import Range, check_range, find_range, prefetch_range
from tailer.api.rows import Pass, prepare_changes, prepare_snapshot
from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import (
    DataLoss,
    FileGone,
    OffsetError,
    TableError,
    TableReplaced,
    printable,
)
from tailer.feed.pipe import read_ahead
from tailer.feed.progress import FeedProgress
from tailer.feed.run import run_feed
from tailer.log.history import HistoryEntry
from tailer.log.history import read_history as commits
from tailer.log.listed import list_once
from tailer.log.same_table import check_place
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.log.times import last_version
from tailer.sink import Sink, SinkTraits
from tailer.storage import open_store, storage_of

if TYPE_CHECKING:
    import polars as pl


class Source(Struct, frozen=True):
    """A table's address with the options of its store, and how it is read."""

    table: str
    storage_options: Mapping[str, Any]
    options: ReadOptions = ReadOptions()

    @asynccontextmanager
    async def open_log(self, *, resumes: bool = False) -> AsyncIterator[TableLog]:
        """Open the table's log. Errors of the block name the table, and what a program can do that
        ``resumes`` where another read ended. Raises :class:`ConfigError`."""
        storage = storage_of(self.table)
        store = open_store(self.table, storage.rename_options(self.storage_options))
        try:
            yield TableLog(store)
        except TableError as e:
            if isinstance(e, OffsetError | TableReplaced):
                e.hint = "if it was replaced on purpose, begin again with an empty cursor"
            elif resumes and isinstance(e, DataLoss) and not isinstance(e, FileGone):
                e.hint = "begin again with an empty cursor, by start='snapshot'"
            raise e.at(table=store.root) from None
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    async def history(self) -> list[HistoryEntry]:
        """Return the commits, newest first."""
        async with self.open_log() as log:
            return [entry async for entry in commits(log)][::-1]


class Stream(ABC):
    """Batches by iteration, with ``for`` or ``async for``. Each iteration is a pass of its own, by
    a thread of its own, which ends with it."""

    def __init__(self, source: Source, after: Cursor | Offset | str | None = None) -> None:
        self._source = source
        self._after = after
        self._ids = Ids(source.options.with_ids, source.options.own_prefix)
        self._resumes = parse_after(after) is not None  # what is wrong with it is said now

    def __repr__(self) -> str:
        table = re.sub(r"//[^/@]*@", "//", printable(self._source.table))
        return f"{type(self).__name__}({table!r})"

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._iterate_once():
            self._move_cursor(batch)
            if len(batch):
                yield batch

    async def __aiter__(self) -> AsyncIterator[Batch]:
        batches = self._read_batches()
        background = Background(batches.aclose)
        try:
            while (batch := await background.run_from_loop(_read_next(batches))) is not None:
                self._move_cursor(batch)
                if len(batch):
                    yield batch
        finally:
            await background.close_from_loop()

    def _iterate_once(self) -> Generator[Batch]:
        """Yield the batches of one pass, also those without rows, which only move the offset."""
        batches = self._read_batches()
        background = Background(batches.aclose)
        try:
            while (batch := background.run(_read_next(batches))) is not None:
                yield batch
        finally:
            background.close()

    def _move_cursor(self, batch: Batch) -> None:
        if isinstance(self._after, Cursor):
            self._after.move(batch.offset)

    def _make_batch(self, batch: ChangeBatch) -> Batch:
        rows = self._ids.build_rows(batch) if batch.num_rows else batch.rows
        return Batch(rows, batch.next_offset)

    @abstractmethod
    def _read_batches(self) -> AsyncGenerator[Batch, None]:
        """Read the table once."""


class BoundedStream(Stream):
    """A bounded read. It begins when it is used first, can be used again, and then gives the same
    rows: its range is found once.

    Arrow's C stream interface (``__arrow_c_stream__``) gives it to every library that has that:
    ``polars.DataFrame(changes)``, ``pyarrow.table(changes)``, ``duckdb.sql("from changes")``.
    They take the rows batch by batch.
    """

    _schema: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        if self._schema is None:
            with closing(self._iterate_once()) as batches:
                next(batches)
        return self._schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of one pass over the rows. A cursor moves when the reader is at its end:
        who takes only some of the rows has not seen them all."""
        batches = self._iterate_once()
        first = next(batches)  # now the schema is known

        def rows() -> Iterator[pa.RecordBatch]:
            last = first
            for last in batches:
                if len(last):
                    yield last.rows
            self._move_cursor(last)

        return pa.RecordBatchReader.from_batches(self._schema, rows())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def read_all(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return self.to_reader().read_all()

    def to_pandas(self, **options: Any) -> Any:
        """Return all rows as a ``pandas.DataFrame``; ``options`` are those of
        :meth:`pyarrow.Table.to_pandas`. Raises ImportError without pandas."""
        return self.read_all().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars frame. Raises ImportError without polars."""
        return polars_frame(self.read_all())

    async def _read_batches(self) -> AsyncGenerator[Batch, None]:
        async with self._source.open_log(resumes=self._resumes) as log:
            found = await self._prepare_pass(log)
            self._schema = self._output_schema(found)
            yield Batch(pa.RecordBatch.from_pylist([], self._schema), found.start)
            async with aclosing(read_ahead(found.send)) as batches:
                async for batch in batches:
                    yield self._make_batch(batch)

    def _output_schema(self, found: Pass) -> pa.Schema:
        return found.schema

    @abstractmethod
    async def _prepare_pass(self, log: TableLog) -> Pass:
        """Return one pass."""


class Changes(BoundedStream):
    """The changes of a range of versions: see :func:`tailer.api.functions.read`."""

    def __init__(
        self,
        source: Source,
        after: Cursor | Offset | str | None,
        start: str | None,
        end: str | None,
    ) -> None:
        super().__init__(source, after)
        self._start = start
        self._end = end
        self._range: Range | None = None

    async def _prepare_pass(self, log: TableLog) -> Pass:
        log = await list_once(log)
        if self._range is None:
            start = parse_after(self._after) or self._start or "earliest"
            self._range = await find_range(log, start, self._end)
        await prefetch_range(log, self._range)
        return await prepare_changes(log, self._range, self._source.options)


class Rows(BoundedStream):
    """The rows of one version: see :func:`tailer.api.functions.snapshot`."""

    def __init__(self, source: Source, version: str | None) -> None:
        super().__init__(source)
        self._version = version

    async def _prepare_pass(self, log: TableLog) -> Pass:
        log = await list_once(log)
        last = None if self._version is None else await last_version(log, self._version)
        snapshot = await log.load_snapshot(last)
        self._version = str(snapshot.version)
        return await prepare_snapshot(log, snapshot, self._source.options)

    def _output_schema(self, found: Pass) -> pa.Schema:
        return pa.schema(list(found.schema)[: -len(METADATA_FIELDS)])

    def _make_batch(self, batch: ChangeBatch) -> Batch:
        columns = batch.rows.columns[: -len(METADATA_FIELDS)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return Batch(rows, batch.next_offset)


class Tail(Stream):
    """The changes of a table as they are committed: see :func:`tailer.api.functions.tail`."""

    def __init__(
        self,
        source: Source,
        after: Cursor | Offset | str | None,
        start: str | None,
        end: int | None,
    ) -> None:
        super().__init__(source, after)
        self._start = start or ("latest" if after is None else "earliest")
        self._end = end

    async def _read_batches(self) -> AsyncGenerator[Batch, None]:
        async with self._source.open_log(resumes=self._resumes) as log:
            options = self._source.options
            first = parse_after(self._after) or await find_start_offset(log, self._start)
            if self._end is not None and self._end < first.version:
                if self._after is None:
                    check_range(first.version, self._end)
                await check_place(log, first)
                return
            if options.names_columns():
                options.check((await log.load_snapshot()).state, log.store.root)
            async with aclosing(read_ahead(partial(self._follow_table, log, first))) as batches:
                async for batch in batches:
                    yield batch

    async def _follow_table(
        self, log: TableLog, first: Offset, emit: Callable[[Batch], Awaitable[None]]
    ) -> None:
        async def write(batch: ChangeBatch) -> None:
            await emit(self._make_batch(batch))

        sink, progress = _Caller(write, self._ids), FeedProgress("tail", time.time)
        say = logging.getLogger("tailer").warning
        feed = make_feed(log, first, self._end, self._source.options, sink, progress, say)
        # Whoever has gone takes no batch.
        with suppress(anyio.BrokenResourceError):
            await run_feed(feed)


class _Caller(Sink):
    """Gives each batch to the caller."""

    def __init__(self, write: Callable[[ChangeBatch], Awaitable[None]], ids: Ids) -> None:
        self.traits = SinkTraits(spans=True, own=ids.own)
        self._write = write

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002
        return None

    async def write(self, batch: ChangeBatch) -> None:
        await self._write(batch)

    async def aclose(self) -> None:
        return


async def _read_next(batches: AsyncGenerator[Batch, None]) -> Batch | None:
    return await anext(batches, None)
