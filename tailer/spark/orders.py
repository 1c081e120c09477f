"""The picklable work of a task: which files, which parts of them, and how much goes into one task.

A :class:`FileOrder` is one data file, or the row groups within a range of its bytes; a
:class:`RewriteOrder` is a version whose changes must be derived, or a bucket of it. The task
derives them with the daemon's engine, spilling to the executor's disk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from tailer.changes import ChangeFile
from tailer.compare.proofs import Numbers, group_independent_files
from tailer.decode.byte_range import OPEN_END, ByteRange, divide_size
from tailer.decode.options import SMALL_FILE_BYTES_MAX, Bucket
from tailer.delta.commit import Commit, CommitHeader
from tailer.plan.rules import Rewrite, row_ids_hold

#: The cost of opening a file, in bytes that could have been read meanwhile: Spark's own figure.
OPEN_COST_BYTES = 4 * 1024 * 1024

#: The same for small files, many of which are decoded in one step.
SMALL_OPEN_COST_BYTES = 256 * 1024

#: Tasks among which the comparison of one rewrite is divided.
FAN_OUT = 8

#: How far above its share the fullest task may be before a file is divided for it.
_UNEVEN = 1.1


@dataclass(frozen=True, slots=True)
class FileOrder:
    """One file's changed rows, without the first ``skip``, and at most ``take`` (None: all).

    ``part`` restricts it to a part of the file.
    """

    file: ChangeFile
    skip: int = 0
    take: int | None = None
    part: ByteRange | None = None

    @classmethod
    def from_file(cls, file: ChangeFile, skip: int = 0, take: int | None = None) -> FileOrder:
        """Return the order of a file, which is sent to a task without its statistics."""
        return cls(structs.replace(file, stats=None), skip, take)

    @property
    def cost(self) -> int:
        """Return about how many bytes are read."""
        size = self.file.size or OPEN_COST_BYTES
        return size if self.part is None else min(size, self.part.end) - self.part.first

    def split_at(self, size: int) -> tuple[FileOrder, FileOrder]:
        """Divide it into the rows within its first ``size`` bytes, and the rest."""
        whole = self.part or ByteRange(0, OPEN_END, exact=True)
        edge = whole.first + size
        return replace(self, part=structs.replace(whole, end=edge)), replace(
            self, part=structs.replace(whole, first=edge)
        )


@dataclass(frozen=True, slots=True)
class RewriteOrder:
    """A version's rewrite, or an independent part of it; the task finds what really changed.

    ``commit`` has no lines: only the version's two states and its commit info. With a ``bucket``,
    only the changed rows in it are wanted.
    """

    commit: Commit
    rewrite: Rewrite
    skip: int = 0
    take: int | None = None
    bucket: Bucket | None = None

    @property
    def files(self) -> int:
        """Return how many files are read."""
        return len(self.rewrite.leaving) + len(self.rewrite.coming)

    @property
    def cost(self) -> int:
        """Return about how many bytes are read."""
        files = (*self.rewrite.leaving, *self.rewrite.coming)
        return sum(file.size or OPEN_COST_BYTES for file in files)


Order = FileOrder | RewriteOrder


def _no_lines() -> Iterable[bytes]:
    return ()


def rewrite_order(commit: Commit, rewrite: Rewrite) -> RewriteOrder:
    """Return the order for a whole rewrite, with the commit reduced to what a task needs of it."""
    header = CommitHeader(commit_info=commit.header.commit_info)
    commit = structs.replace(commit, header=header, lines=_no_lines)
    return RewriteOrder(commit, rewrite)


def fan_out(order: RewriteOrder, tasks: int, bytes_max: int, key: tuple[str, ...]) -> list[Order]:
    """Divide the rewrite into parts whose separate results together give the whole result.

    It is divided into groups of files that can't have a row (a key) in common, by partitions and by
    the bounds of integers: no file is read twice for that, and there are more than ``tasks`` groups
    if ``bytes_max`` requires it. If rows are compared by row ids, there are no groups, and each of
    up to ``tasks`` tasks takes one bucket of the changed rows. All of this depends only on the log:
    a replay divides it the same way.
    """
    if tasks < 2:
        return [order]
    commit, rewrite = order.commit, order.rewrite
    if row_ids_hold(commit, rewrite):
        return [*_divide_into_buckets(order, tasks, bytes_max)]
    if commit.before != commit.after:  # all rows together decide whether rows can be compared
        return [order]
    groups = group_independent_files(rewrite, commit.after, key)
    alone = _select_groups(order, [group for group in groups if not all(group)]).rewrite
    files = (*alone.leaving, *alone.coming)
    found: list[Order] = [FileOrder(structs.replace(file, origin="cancel_out")) for file in files]
    return [
        *found,
        *_join_small_groups(order, [group for group in groups if all(group)], tasks, bytes_max),
    ]


def _divide_into_buckets(order: RewriteOrder, tasks: int, bytes_max: int) -> Iterator[RewriteOrder]:
    """Yield one order for each bucket of the rows, if the files are too many for one task."""
    count = min(tasks, max(1, math.ceil(order.cost / bytes_max)))
    if count < 2:
        yield order
        return
    for number in range(count):
        yield replace(order, bucket=Bucket(number, count))


def _join_small_groups(
    order: RewriteOrder, groups: Sequence[Numbers], tasks: int, bytes_max: int
) -> Iterator[RewriteOrder]:
    """Yield the groups of files, small groups joined, so that each is worth a task."""
    costs = [_select_groups(order, [group]).cost for group in groups]
    total = sum(costs)
    worth = min(tasks, math.ceil(total / OPEN_COST_BYTES))
    for numbers in _balance_costs(costs, max(worth, math.ceil(total / bytes_max))):
        yield _select_groups(order, [groups[number] for number in numbers])


def _select_groups(order: RewriteOrder, groups: Iterable[Numbers]) -> RewriteOrder:
    """Return the order for these files alone, in the order of the whole."""
    left: set[int] = set()
    came: set[int] = set()
    for leaving, coming in groups:
        left |= leaving
        came |= coming
    whole = order.rewrite
    leaving_files = [whole.leaving[number] for number in sorted(left)]
    return replace(
        order, rewrite=Rewrite(leaving_files, [whole.coming[number] for number in sorted(came)])
    )


def _balance_costs(costs: Sequence[int], count: int) -> list[list[int]]:
    """Divide the numbers of the costs into at most ``count`` parts of similar cost; none is empty.

    The largest come first, each into the smallest part: within a third of the optimum.
    """
    parts: list[list[int]] = [[] for _ in range(min(count, len(costs)))]
    heap = [(0, part) for part in range(len(parts))]
    for number in sorted(range(len(costs)), key=lambda n: -costs[n]):
        load, part = heapq.heappop(heap)
        parts[part].append(number)
        heapq.heappush(heap, (load + costs[number], part))
    return parts


def _divide_large_files(orders: Iterable[Order], size_max: int) -> Iterator[Order]:
    """Yield the orders, with files beyond that size in parts."""
    for order in orders:
        size = order.file.size if isinstance(order, FileOrder) else None
        whole = not isinstance(order, FileOrder) or order.skip or order.take is not None
        if whole or size is None or size <= size_max:
            yield order
            continue
        for part in divide_size(size, size_max):
            yield replace(order, part=part)  # type: ignore[arg-type]  # a FileOrder


def pack_orders(
    orders: Sequence[Order], bytes_max: int, shares_min: int, *, divides: bool = True
) -> list[list[Order]]:
    """Pack the orders into shares of similar size, one for each task; none is empty. Unless it
    ``divides``, each file is in one share."""
    total = sum(map(_estimate_cost, orders))
    count = max(shares_min, math.ceil(total / bytes_max))
    target = max(OPEN_COST_BYTES, math.ceil(total / count))
    parts = list(_divide_large_files(orders, target)) if divides else list(orders)
    shares = [
        [parts[n] for n in numbers]
        for numbers in _balance_costs([_estimate_cost(p) for p in parts], count)
    ]
    return _even_out_shares(shares) if divides and len(shares) == count else shares


def _estimate_cost(order: Order) -> int:
    return order.cost + (SMALL_OPEN_COST_BYTES if is_small(order) else OPEN_COST_BYTES)


def is_small(order: Order) -> bool:
    """Return whether an order is a small file that is decoded together with others."""
    if not isinstance(order, FileOrder) or order.file.change_type is None:
        return False
    return order.file.size is not None and order.file.size <= SMALL_FILE_BYTES_MAX


def _even_out_shares(shares: list[list[Order]]) -> list[list[Order]]:
    """Even out the shares by dividing files of the fullest ones: their first rows go to the
    emptiest.

    A query waits for its fullest task, and a MERGE writes few files. A file is divided only if more
    is moved than opening it again costs.
    """
    loads = [sum(map(_estimate_cost, share)) for share in shares]
    even = math.ceil(sum(loads) / len(loads))
    while max(loads) > even * _UNEVEN:
        full, empty = loads.index(max(loads)), loads.index(min(loads))
        over = min(loads[full] - even, even - loads[empty])
        at = _find_divisible_file(shares[full], over)
        if at is None or over <= OPEN_COST_BYTES:
            break
        head, rest = at.split_at(over)
        shares[full][shares[full].index(at)] = rest
        shares[empty].append(head)
        loads[full] -= over
        loads[empty] += over
    return shares


def _find_divisible_file(share: Sequence[Order], size: int) -> FileOrder | None:
    """Return the largest file, or exact part of one, from which ``size`` bytes can be taken."""
    files = [
        order
        for order in share
        if isinstance(order, FileOrder)
        and (order.part is None or order.part.exact)
        and not (order.skip or order.take is not None or order.file.size is None)
        and order.cost > size
    ]
    return max(files, key=lambda order: order.cost, default=None)
