"""The driver's side: from offsets to versions, files and orders. It reads the log, and no rows.

The exception is a version that is too large for one batch: then its files' changes are counted.

A batch goes from version to version until the budget is used up. Where it may begin and end depends
on what a version has:

| changes of a version | in ``Planned`` | a batch may begin or end |
| --- | --- | --- |
| none | no ``files`` | before or after it |
| the rows of files, also of a snapshot | ``files`` | also within it, between two files |
| what a comparison of files finds | ``rewrite``, a ``RewriteOrder`` | before or after it |

Spark calls twice for a batch: for its end (``advance``), and for its work (``plan_orders``). The
planner remembers the versions in between, so that the log is read once:

| state | ``advance`` | ``plan_orders`` |
| --- | --- | --- |
| idle | plan, then advanced; idle if the batch has no bound or very many versions | plan, idle |
| advanced | the same | with its two offsets: give its versions; otherwise plan; then idle |

The rules:

1. A batch begins at the very offset at which the one before it ended.
2. Two offsets give the same versions, files and changes on every call and in every process: after
   a restart, Spark repeats a batch by its offsets alone. An index counts changes, never files.
3. The first file is always taken, and a comparison whole, whatever the budget: a batch that takes
   nothing would be asked for again for ever.
4. A version that does not fit the query's schema ends the batch before it, and is refused only
   where a batch would begin with it.

For example, with ``maxFilesPerTrigger`` 2: version 4 has the files a, b and c with ten changes
each, version 5 has none, and version 6 rewrites three files::

    advance((4, 0))  -> (4, 20)   a and b
    advance((4, 20)) -> (6, 0)    c, and version 5, which costs nothing
    advance((6, 0))  -> (7, 0)    the three files of the comparison

What must never happen: a change is in two batches, or in none; a batch ends within a comparison,
whose changes have no place until it is done; a version is left out that the log still has.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from tailer.changes import Offset
from tailer.decode.naming import Removal
from tailer.delta.actions import AddCDCFile, AddFile, RemoveFile
from tailer.delta.add_fields import WITH_TIMES
from tailer.delta.commit import Commit
from tailer.errors import DataLoss, FileGone, SchemaChanged, TableError
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.same_table import check_offset
from tailer.log.table import TableLog
from tailer.plan.commit import plan_commit
from tailer.plan.live_files import LiveFiles
from tailer.plan.rules import choose_snapshot_order, plan_snapshot
from tailer.spark.options import QueryTarget, SourceOptions
from tailer.spark.orders import FAN_OUT, FileOrder, Order, fan_out, rewrite_order
from tailer.spark.source.counts import FooterCounts
from tailer.spark.source.planned_version import Planned
from tailer.spark.source.query_schema import QuerySchema

#: A batch of more versions than this, most of which have no files, is planned twice.
_KEPT_MAX = 10_000


@dataclass(slots=True)
class BatchBudget:
    """What a batch may still take; None: no limit. The first file is always taken."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    versions: int | None = None
    taken: bool = False

    @property
    def is_unlimited(self) -> bool:
        """Return whether nothing is bounded."""
        limits = (self.files, self.bytes, self.rows, self.versions)
        return all(limit is None for limit in limits)

    def admits(self, files: int, size: int) -> bool:
        """Return whether these files and bytes still fit."""
        return not self.taken or (
            (self.files is None or files <= self.files)
            and (self.bytes is None or size <= self.bytes)
        )

    def take(self, files: int, size: int) -> None:
        """Subtract these files and bytes."""
        self.taken = self.taken or files > 0
        self.files = None if self.files is None else max(0, self.files - files)
        self.bytes = None if self.bytes is None else max(0, self.bytes - size)

    def take_version(self) -> bool:
        """Subtract a version; return whether another one is admitted."""
        if self.versions is not None:
            self.versions -= 1
        return self.versions is None or self.versions > 0


class _Admitted(NamedTuple):
    """The offset up to which a version fits into a batch, and whether that is all of it."""

    end: Offset
    whole: bool


class StreamPlanner:
    """Plans the changes of one table for one query."""

    def __init__(self, log: TableLog, options: SourceOptions) -> None:
        self.log = log
        self.options = options
        self._live = LiveFiles()
        self._counts = FooterCounts(log.store)
        self._counted_by = options.counting_id()
        self._schema: QuerySchema | None = None
        self._left_out: set[int] = set()
        #: In the state ``advanced``: the batch's two offsets and its versions.
        self._advanced: tuple[Offset, Offset, list[Planned]] | None = None

    def query_schema(self, target: QueryTarget, *, stream: bool) -> QuerySchema:
        """Return what compares versions with the query's schema, a state with its version."""
        if self._schema is None:
            cast, columns = self.options.on_schema_change == "cast", self.options.columns
            self._schema = QuerySchema(self.log, target, stream=stream, cast=cast, columns=columns)
        return self._schema

    async def plan_versions(
        self, start: Offset, last: int, *, files: bool = True, same_table: bool = True
    ) -> AsyncGenerator[Planned, None]:
        """Yield the versions from an offset on, up to ``last``, contiguous and of one table.

        The first one's offset is ``start`` itself. With ``files=False``, they have no files. If
        the query accepts loss, versions that the log has no more are left out.
        """
        start = start.resumable_with(self._counted_by)
        if start.snapshot:
            planned = await self._plan_snapshot(start, files=files)
            yield planned
            start = planned.next_offset
        options = FollowOptions(same_table=same_table)
        while start.version <= last:
            try:
                async with aclosing(follow_commits(self.log, start, last, options)) as commits:
                    async for commit in commits:
                        at = structs.replace(start, table_id=commit.after.table_id)
                        planned = await self._plan_commit(commit, at, files=files)
                        yield planned
                        start = planned.next_offset
            except DataLoss as e:
                if self.options.fail_on_data_loss or isinstance(e, FileGone):
                    raise
                start = await self._skip_lost_versions(start)

    async def _skip_lost_versions(self, start: Offset) -> Offset:
        """Return the first offset after versions that the log no longer has, and warn once."""
        first = await self.log.readable_after(start.version)
        if first not in self._left_out:
            self._left_out.add(first)
            logging.getLogger("tailer.spark").warning(
                "%s: versions %d to %d can't be read any more and are left out, because "
                "failOnDataLoss is false; the next one is version %d",
                self.log.store.root, start.version, first - 1, first,
            )  # fmt: skip
        return Offset(first, table_id=start.table_id)

    async def _plan_snapshot(self, start: Offset, *, files: bool) -> Planned:
        snapshot = await self.log.load_snapshot(start.version)
        timestamp = await self.log.find_timestamp(start.version, snapshot, start.timestamp_floor_ms)
        check_offset(self.log, start, snapshot.state)
        first = structs.replace(start, table_id=snapshot.state.table_id)
        planned = Planned(snapshot.state, first, first.next_version(timestamp))
        if files:
            adds = [add async for add in self.log.live_files(snapshot, WITH_TIMES)]
            adds.sort(key=choose_snapshot_order(start))  # the order of the daemon's snapshot
            planned.files.extend(
                plan_snapshot(add, start.version, timestamp, snapshot.state)
                for add in adds[start.delivered_files :]
            )
        return planned

    async def _plan_commit(self, commit: Commit, at: Offset, *, files: bool) -> Planned:
        try:
            return await self._plan_version(commit, at, files=files)
        except TableError as e:
            raise e.at(table=self.log.store.root, version=commit.version) from None

    async def _plan_version(self, commit: Commit, at: Offset, *, files: bool) -> Planned:
        planned = Planned(commit.after, at, at.next_version(commit.timestamp_ms, commit.read_id()))
        if not files:
            return planned
        source = self.options.change_source
        ineffective = await self._live.apply_commit(self.log, commit, source)
        if self._is_passed_over(commit):
            return planned
        plan = await plan_commit(self.log, commit, source, ineffective)
        if not plan.compares:
            planned.files.extend(plan.plan_files(at.delivered_files))
            return planned
        rewrite = plan.plan_rewrite()
        if rewrite.needs_diff:
            return replace(planned, rewrite=rewrite_order(commit, rewrite))
        planned.files.extend((*rewrite.leaving, *rewrite.coming))
        return planned

    async def find_newest(self) -> int:
        """Return the table's newest version."""
        return await self.log.latest_version()

    async def advance(
        self, start: Offset, last: int, budget: BatchBudget, schema: QuerySchema | None
    ) -> Offset:
        """Return how far a batch from ``start`` goes: to ``last``, or as far as the budget allows.

        A version that does not fit the query's ``schema`` ends the batch before it, or is refused
        if it would come first. The plan of a bounded batch is kept for :meth:`plan_orders`,
        which is called next for it.
        """
        at, bounded, first = start, not budget.is_unlimited, None
        versions_kept: list[Planned] = []
        self._advanced = None
        planned_versions = self.plan_versions(start, last, files=bounded)
        async with aclosing(planned_versions) as versions:
            async for planned in versions:
                first = planned.version if first is None else first
                try:
                    if schema is not None:
                        await schema.check(first, planned)
                except SchemaChanged:
                    if (at.position, at.snapshot) == (start.position, start.snapshot):
                        raise
                    break
                at, whole = await self._admit_version(planned, budget)
                if len(versions_kept) <= _KEPT_MAX:
                    versions_kept.append(planned)
                if not whole or not budget.take_version():
                    break
        if bounded and len(versions_kept) <= _KEPT_MAX:
            self._advanced = start, at, versions_kept
        return at

    async def _replay_versions(
        self, start: Offset, end: Offset, last: int, *, same_table: bool
    ) -> AsyncGenerator[Planned, None]:
        """Yield the versions of a batch up to ``last``: as :meth:`advance` has just planned them,
        so that the log is read once, or planned again."""
        advanced, self._advanced = self._advanced, None
        if advanced is not None and advanced[:2] == (start, end):
            for planned in advanced[2]:
                if planned.version <= last:
                    yield planned
            return
        if same_table and start.table_id is None:  # a replay finds no other table than it had
            start = structs.replace(start, table_id=end.table_id)
        async with aclosing(self.plan_versions(start, last, same_table=same_table)) as versions:
            async for planned in versions:
                yield planned

    async def _admit_version(self, planned: Planned, budget: BatchBudget) -> _Admitted:
        """Take what fits of a version into the batch."""
        if planned.rewrite is not None:
            count, size = planned.rewrite.files, planned.rewrite.cost
            if not budget.admits(count, size):
                return _Admitted(planned.offset, whole=False)
            budget.take(count, size)
            return _Admitted(planned.next_offset, whole=True)
        total = sum(file.size or 0 for file in planned.files)
        if planned.offset.index == 0 and budget.rows is None:
            files = len(planned.files)
            fits = (budget.files is None or files <= budget.files) and (
                budget.bytes is None or total <= budget.bytes
            )
            if fits or (files <= 1 and budget.admits(files, total)):
                budget.take(files, total)
                return _Admitted(planned.next_offset, whole=True)
        return await self._admit_files(planned, budget)

    def _is_passed_over(self, commit: Commit) -> bool:
        """Return whether the options skip a version, as they do in Delta's source."""
        options = self.options
        if not (options.ignore_deletes or options.skip_change_commits) or not commit.header.removes:
            return False
        kinds = {
            type(action)
            for action in commit.file_actions()
            if not isinstance(action, AddCDCFile) and action.data_change
        }
        return RemoveFile in kinds and (options.skip_change_commits or AddFile not in kinds)

    async def _admit_files(self, planned: Planned, budget: BatchBudget) -> _Admitted:
        """Take the files of a version that fit into the batch: it may end between two of them."""
        passed = 0
        first = index = planned.offset.index
        async with aclosing(self._counts.count_changes(planned.offset, planned.files)) as counted:
            async for file, changes in counted:
                passed += changes
                if passed <= first:
                    continue  # read before
                left = budget.rows
                over = left is not None and budget.taken and passed - index > left
                if over or not budget.admits(1, file.size or 0):
                    end = structs.replace(planned.offset, index=index, counted_by=self._counted_by)
                    return _Admitted(end, whole=False)
                budget.take(1, file.size or 0)
                budget.rows = None if left is None else max(0, left - (passed - index))
                index = passed
        return _Admitted(planned.next_offset, whole=True)

    async def plan_orders(
        self, start: Offset, end: Offset, *, same_table: bool = True
    ) -> AsyncGenerator[tuple[Planned, list[Order]], None]:
        """Yield the orders of the changes from ``start`` up to ``end`` (exclusive), by version."""
        last = end.version if end.index or end.snapshot else end.version - 1
        planned_versions = self._replay_versions(start, end, last, same_table=same_table)
        async with aclosing(planned_versions) as versions:
            async for planned in versions:
                until = end.index if _is_within(planned, end) else None
                if until == 0:
                    return
                yield planned, [o async for o in self._make_orders(planned, until)]
                if until is not None:
                    return

    async def gather_work(
        self, start: Offset, end: Offset, schema: QuerySchema, *, same_table: bool = True
    ) -> tuple[list[Order], tuple[Removal, ...]]:
        """Return all orders from ``start`` up to ``end`` (exclusive), for a query with this schema;
        and the column mapping removals in between.

        Raises :class:`SchemaChanged` for a version that does not fit it.
        """
        orders: list[Order] = []
        first, latest = start.version, None
        async with aclosing(self.plan_orders(start, end, same_table=same_table)) as planned_orders:
            async for planned, more in planned_orders:
                first = planned.version if latest is None else first
                await schema.check(first, planned)
                orders += more
                latest = planned
        if latest is None or not orders:
            return [], ()
        return orders, await schema.find_removals(first, latest)

    async def _make_orders(
        self, planned: Planned, until: int | None
    ) -> AsyncGenerator[Order, None]:
        """Yield a version's orders for its changes from its offset's index up to ``until``."""
        skip = planned.offset.index
        if planned.rewrite is not None:
            take = None if until is None else until - skip
            order = replace(planned.rewrite, skip=skip, take=take)
            whole = skip or take is not None
            shares = 1 if whole else FAN_OUT
            size = self.options.partition_bytes_max
            for share in fan_out(order, shares, size, self.options.key):
                yield share
            return
        if not skip and until is None:
            for file in planned.files:
                yield FileOrder.from_file(file)
            return
        passed = 0
        async with aclosing(self._counts.count_changes(planned.offset, planned.files)) as counted:
            async for file, changes in counted:
                first, end = max(skip - passed, 0), changes
                if until is not None:
                    end = min(changes, until - passed)
                if first < end:
                    yield FileOrder.from_file(file, first, end - first)
                passed += changes


def _is_within(planned: Planned, end: Offset) -> bool:
    return end.version == planned.version and end.snapshot == planned.offset.snapshot
