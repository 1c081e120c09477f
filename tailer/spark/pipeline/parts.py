"""A large version in parts, each of some files, which several tasks read.

Which files a part has is decided by their sizes. How many changes they have is not known before
they are read, so a task counts from its own first file, and the driver adds what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from msgspec import structs

from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.feed.commit import commit_plan
from tailer.feed.read_context import FeedItem, ReadContext
from tailer.feed.snapshots import plan_snapshot_files
from tailer.plan.live_files import LiveFiles
from tailer.process.threads import step_in_threads
from tailer.spark.orders import OPEN_COST_BYTES, VersionOrder, VersionPart


@dataclass(frozen=True, slots=True)
class Begun:
    """A part begins: the offsets of what follows count from its first file, from ``index`` on."""

    index: int


async def divide_version(
    context: ReadContext, order: VersionOrder, size: int
) -> list[VersionOrder]:
    """Divide a version into parts of about ``size`` bytes, between its files.

    It stays whole if it is small, if its changes must be compared or paired, or if an offset in it
    counts files in another way than reading them does. The cost of a snapshot is known after this.
    """
    first = order.start.resumable_with(context.counted_by)
    if not first.snapshot and (order.cost <= size or order.files < 2):
        return [order]
    # What the planner knows of the files before is not read again.
    context = structs.replace(context, live=LiveFiles(order.ineffective))
    files = await _select_files(context, first)
    if files is None:
        return [order]
    whole = context.lost.has_version(first.version)
    cut = await _cut_files(
        context, structs.replace(first, index=0) if whole else first, files, size
    )
    if whole or len(cut.costs) < 2:
        return [replace(order, cost=sum(cut.costs), files=cut.edges[-1] - cut.edges[0])]
    start = structs.replace(first, index=0, counted_by=context.counted_by)
    last = len(cut.costs) - 1
    return [
        replace(
            order,
            start=start if number else structs.replace(first, index=cut.skip),
            cost=cut.costs[number],
            files=end - begin,
            part=VersionPart(
                begin, None if number == last else end, leading=not (number or first.index)
            ),
        )
        for number, (begin, end) in enumerate(pairwise(cut.edges))
    ]


async def _select_files(context: ReadContext, first: Offset) -> Iterator[ChangeFile] | None:
    """Return the selected files of a version; None if it must be read as a whole."""
    log, floor_ms = context.log, first.timestamp_floor_ms
    if first.snapshot:
        snapshot = await log.load_snapshot(first.version)
        context.columns.learn_state(first.version, snapshot.state)
        timestamp_ms = await log.find_timestamp(first.version, snapshot, floor_ms)
        return await plan_snapshot_files(context, snapshot, timestamp_ms, first)
    try:
        before = await log.state_before(first.version)
        commit = await log.read_commit(first.version, before, floor_ms)
    except FileNotFoundError:  # it was there when it was planned: the task finds out why
        return None
    context.columns.learn_state(commit.version, commit.after)
    if context.options.paired and commit.header.cdcs:
        return None
    plan = await commit_plan(context, commit)
    return None if plan.compares else context.select_files(plan.plan_files(first.delivered_files))


class _Cut(NamedTuple):
    """Where parts begin and end, by numbers of files; the bytes of each; and how many changes of
    the first file come before the first part's."""

    edges: list[int]
    costs: list[int]
    skip: int


async def _cut_files(
    context: ReadContext, first: Offset, files: Iterator[ChangeFile], size: int
) -> _Cut:
    """Cut a version's files from an offset on into parts of about ``size`` bytes."""
    total = 0

    def count_files() -> Iterator[ChangeFile]:
        nonlocal total
        for file in files:
            total += 1
            yield file

    finder = context.make_finder(first)
    starts: list[int] = []
    costs: list[int] = []
    count = 0
    async with (
        aclosing(step_in_threads(count_files())) as all_files,
        aclosing(finder.skip_to_index(all_files)) as following,
    ):
        async for file in following:
            cost = file.size or OPEN_COST_BYTES
            if not costs or costs[-1] + cost / 2 > size:
                starts.append(count)
                costs.append(0)
            costs[-1] += cost
            count += 1
    passed = total - count
    return _Cut([passed + at for at in (*starts, count)], costs, finder.skip.remaining)


def group_jobs(orders: Sequence[VersionOrder], size: int) -> Iterator[list[VersionOrder]]:
    """Yield the orders of each job: whole versions, or parts of at most about ``size`` bytes."""
    for in_parts, together in groupby(orders, lambda order: order.part is not None):
        if not in_parts:
            yield list(together)
            continue
        job: list[VersionOrder] = []
        for order in together:
            if job and sum(of.cost for of in job) + order.cost > size:
                yield job
                job = []
            job.append(order)
        yield job


def fit_items(items: Iterable[FeedItem], part: VersionPart) -> Iterator[FeedItem]:
    """Yield what a part contributes to its version, of the items that a reading of its files alone
    gives."""
    for item in items:
        if isinstance(item, Notice):
            if part.end is None if item.kind == "snapshot_end" else part.leading:
                yield item
        elif part.end is None or _is_within(item):
            yield item
        elif item.num_rows:
            index = item.offset.index + item.num_rows
            after = structs.replace(item.offset, index=index, counted_by=item.counted_by)
            yield structs.replace(item, next_offset=after)


def _is_within(batch: ChangeBatch) -> bool:
    """Return whether a batch leads to its own version."""
    return _same_version(batch.offset, batch.next_offset)


def _same_version(one: Offset, other: Offset) -> bool:
    return (one.version, one.snapshot) == (other.version, other.snapshot)


def move_item(item: FeedItem, by: int) -> FeedItem:
    """Return an item of a part as one of the whole version, ``by`` changes further on."""
    if not by:
        return item
    at, after = item.offset, item.next_offset
    if _same_version(at, after):
        after = structs.replace(after, index=after.index + by)
    return structs.replace(item, offset=structs.replace(at, index=at.index + by), next_offset=after)
