"""Reading a table's changes as a stream: offsets, admission, partitions.

Spark compares offsets as text, so they are made in one place and in one order of keys, and an
offset that does not move is returned unchanged. A query that starts at a place which only the table
can resolve (latest, a time, a snapshot) first runs an empty batch that pins the place in its
checkpoint: ``initialOffset`` is called repeatedly, and after a crash it must not change its
meaning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, cast

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tailer.changes import Offset
from tailer.decode.naming import Removal
from tailer.errors import DataLoss, FileGone, OffsetError, TableError, TableReplaced
from tailer.log.same_table import find_commit_tag
from tailer.log.starts import find_start_offset, find_start_to_keep
from tailer.spark.error_sentence import one_sentence
from tailer.spark.orders import Order
from tailer.spark.source.driver import Driver, StreamQuery, TaskPartition, tasks_of
from tailer.spark.source.planning import BatchBudget, StreamPlanner
from tailer.spark.source.query_schema import QuerySchema

T = TypeVar("T")


#: What Spark calls a stream reader for; a reader of an older Spark lacks some of them.
_CALLS = (
    "getDefaultReadLimit",
    "initialOffset",
    "latestOffset",
    "partitions",
    "prepareForTriggerAvailableNow",
    "reportLatestOffset",
)


def make_refusing_reader(kind: type[ChangeStreamReader], error: Exception) -> ChangeStreamReader:
    """Return a reader whose first call raises the error.

    If there is no reader, Spark stops it all the same, and reports an ``UnboundLocalError``.
    """

    def refuse(*_: object) -> NoReturn:
        raise error

    calls = {name: refuse for name in _CALLS if hasattr(kind, name)}
    refused = type("RefusingStreamReader", (kind,), {**calls, "stop": lambda _: None})
    return cast("ChangeStreamReader", object.__new__(refused))


class ChangeStreamReader(DataSourceStreamReader):
    """What all Spark versions share. The only state that matters is in the offsets."""

    def __init__(self, query: StreamQuery) -> None:
        self.query = query
        self.options = query.options
        self._driver: Driver | None = None
        self._until: int | None = None
        self._newest: int | None = None
        self.is_new = True
        #: The last version whose commit is known to be of the query's table, and that file's tag.
        self._known: tuple[int, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def driver(self) -> Driver:
        """Return the table as this process sees it."""
        if self._driver is None:
            self._driver = Driver(self.options)
        return self._driver

    def run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run ``work(planner, *arguments)``; its errors say what can be done with a query."""
        try:
            return self.driver.run(work, *arguments)
        except TableError as e:
            if e.hint is not None and not isinstance(e, FileGone):
                kinds = (hint for kind, hint in _HINTS.items() if isinstance(e, kind))
                e.hint = next(kinds, e.hint)
            raise

    @one_sentence
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query starts: the same answer on every call."""
        if self.options.start_offset is not None:
            return self.options.start_offset.to_json()
        start = self.options.start or "snapshot"
        if start.isdigit():
            return Offset(int(start)).to_json()
        return {"format": Offset.FORMAT, "start": start}  # it has not found its place yet

    @one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one batch."""
        if start == end:
            return []
        orders, removals = self.run(self.plan_work, start, end)
        return tasks_of(self.options, orders, removals)

    async def plan_work(
        self, planner: StreamPlanner, start: dict[str, Any], end: dict[str, Any]
    ) -> tuple[list[Order], tuple[Removal, ...]]:
        """Return the orders of one batch, and the column mapping removals up to the query's
        schema."""
        last = Offset.from_json(end)
        first = await self._resolve_start(planner, start, last)
        if first is None:
            return [], ()
        if None not in (first.table_id, last.table_id) and first.table_id != last.table_id:
            raise _make_replaced_error(planner, first, str(last.table_id))
        return await planner.gather_work(first, last, self.query_schema(planner))

    async def _resolve_start(
        self, planner: StreamPlanner, start: dict[str, Any], end: Offset
    ) -> Offset | None:
        """Return a batch's first offset; None if the batch only pins the place."""
        if "start" not in start:
            return Offset.from_json(start)
        if start["start"] == "latest" or (end.snapshot and not end.index):
            return None
        if start["start"] == "snapshot":
            # Only the readers before 4.2 begin like this: all rows of the version before the
            # batch's end.
            return Offset(end.version - 1, snapshot=True, table_id=end.table_id)
        first = await find_start_offset(planner.log, start["start"])
        return first if first.position < end.position else None

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows."""
        assert isinstance(partition, TaskPartition)
        return self.query.decode_task(partition)

    def stop(self) -> None:
        """Release the table."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # Steps of a stream whose batches have a beginning and a limit

    async def end_of_batch(
        self, planner: StreamPlanner, start: dict[str, Any], budget: BatchBudget
    ) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``: the start itself if nothing is
        new."""
        if "start" in start:
            return (await self.pin_place(planner, start["start"])).to_json()
        at = Offset.from_json(start)
        if self.is_new:
            await self.check_table(planner, at)
        last = await self.end_of_log(planner, at)
        if last < at.version:
            await self.check_table(planner, at)
            return start
        found = await planner.advance(at, last, budget, self.query_schema(planner))
        return _no_lower(start, found, at)

    def end_at_newest(self) -> None:
        """Leave commits from now on to another run."""
        self._until = self.run(StreamPlanner.find_newest)

    def newest_offset(self) -> dict[str, Any]:
        """Return the end of the log, for the query's progress: as :meth:`end_of_batch` has just
        found it, because Spark asks for it after each call, or by looking now."""
        newest, self._newest = self._newest, None
        if newest is None:
            newest = self.run(StreamPlanner.find_newest)
        return Offset(newest + 1).to_json()

    # Steps of both kinds of readers

    async def end_of_log(self, planner: StreamPlanner, at: Offset) -> int:
        """Return the newest version to read to. Errors as of :func:`_check_end`."""
        self._newest = newest = await planner.find_newest()
        if newest + 1 < at.version:
            await self.check_table(planner, at)
        _check_end(planner, at, newest)
        ends = [newest, self._until, self._find_ending(planner)]
        return min(end for end in ends if end is not None)

    def _find_ending(self, planner: StreamPlanner) -> int | None:
        """Return the last version of a stream that has an end."""
        ending = planner.options.ending
        if ending is None:
            return None
        return int(ending) if ending.isdigit() else self.query.target.version

    async def check_table(self, planner: StreamPlanner, at: Offset) -> None:
        """Check that the table is the one of a query that has read up to an offset: as it begins,
        and where nothing is new. Otherwise its new commits are checked as they are read.

        The table is read only if its last commit is another file than the last time. Raises
        :class:`TableReplaced`.
        """
        self.is_new = False
        log, version = planner.log, at.version - (not (at.index or at.snapshot))
        if at.table_id is None or version < 0 or log.store.server_log:
            return
        tag = await find_commit_tag(log, version)
        if tag is not None and (version, tag) == self._known:
            return
        try:  # a later version may replace the table by another: that is not said here
            now = (
                await log.load_snapshot(min(version, await planner.find_newest()))
            ).state.table_id
        except DataLoss:
            now = (await log.load_snapshot()).state.table_id
        if now != at.table_id:
            raise _make_replaced_error(planner, at, now)
        self._known = None if tag is None else (version, tag)

    async def pin_place(self, planner: StreamPlanner, start: str) -> Offset:
        """Return the place of a query that starts at latest, a time or a snapshot."""
        offset = await find_start_to_keep(planner.log, start)
        ending = self._find_ending(planner)
        if offset.snapshot and ending is not None and ending < offset.version:
            return structs.replace(offset, version=ending)
        return offset

    def query_schema(self, planner: StreamPlanner) -> QuerySchema:
        """Return what compares versions with the query's schema."""
        return planner.query_schema(self.query.target, stream=True)


#: What can be done about errors for which a feed of the daemon has commands.
_HINTS: dict[type[TableError], str] = {
    TableReplaced: "start a new query with a new checkpoint to read the present table",
    OffsetError: "start a new query with a new checkpoint to read the present table",
    DataLoss: "set failOnDataLoss to false to continue at the first version that exists, or "
    "start a new query with a new checkpoint",
}


def _make_replaced_error(planner: StreamPlanner, at: Offset, now: str) -> TableReplaced:
    return TableReplaced(
        f"the query has read table {at.table_id}, and the table there now is {now}: it was deleted "
        "and made again, or the checkpoint is that of another query",
        table=planner.log.store.root,
        hint=_HINTS[TableReplaced],
    )


class ClassicStreamReader(ChangeStreamReader):
    """For Spark 4.0 and 4.1, which pass neither start nor limit: one batch reads everything."""

    _last: Offset | None = None

    @one_sentence
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # as in 4.0
        """Return the end of the log; never below this reader's earlier answers."""
        return self.run(self._find_latest).to_json()

    async def _find_latest(self, planner: StreamPlanner) -> Offset:
        start = self.options.start or ""
        given = self.options.start_offset or Offset(int(start) if start.isdigit() else 0)
        newest = await self.end_of_log(planner, self._last or given)
        if self._last is None or newest + 1 > self._last.version:
            snapshot = await planner.log.load_snapshot(newest)
            timestamp = await planner.log.find_timestamp(newest, snapshot, None)
            version, table_id = newest + 1, snapshot.state.table_id
            self._last = Offset(version, table_id=table_id, timestamp_floor_ms=timestamp)
        else:
            await self.check_table(planner, self._last)
        return self._last


def _check_end(planner: StreamPlanner, at: Offset, newest: int) -> None:
    """Raise :class:`TableReplaced` if the table went back, and :class:`TableError` if a query would
    begin after its end."""
    at_least = at.version
    if newest + 1 < at_least and at.table_id is None:
        raise TableError(
            f"the starting version is {at_least}, and the newest is {newest}",
            table=planner.log.store.root,
            hint=f"start at a version that exists, at {newest + 1} for what comes next, or at "
            "latest",
        )
    if newest + 1 < at_least:
        raise TableReplaced(
            f"the query has read up to version {at_least - 1}, and the newest is {newest}",
            table=planner.log.store.root,
            hint="an older copy was restored, or the table was created again; start a new "
            "query with a new checkpoint",
        )


def _no_lower(start: dict[str, Any], found: Offset, at: Offset) -> dict[str, Any]:
    """Return the end of a batch: its unchanged start if nothing is new, and never below it.

    Spark would run a batch that ends before its start backwards.
    """
    if (found.position, found.snapshot) == (at.position, at.snapshot):
        return start
    if found.position < at.position:
        raise OffsetError(f"a batch would end at {found}, before its start at {at}")
    return found.to_json()
