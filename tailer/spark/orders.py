"""The picklable work of a task: which files, which parts of them, and how much goes into one task.

A :class:`FileOrder` is one data file, or the row groups within a range of its bytes; a
:class:`RewriteOrder` is a share of a version whose changes have to be derived, which the task does
with the daemon's own engine, spilling to the executor's disk.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tailer.changes import ChangeFile, Offset
from tailer.decode.plan import Rewrite, row_ids_hold
from tailer.delta.commit import Commit, CommitHeader

__all__ = [
    "FileOrder",
    "Order",
    "RewriteOrder",
    "VersionOrder",
    "fan_out",
    "pack",
    "rewrite_order",
]

#: What opening a file costs, in bytes that could have been read meanwhile: Spark's own figure.
OPEN_COST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileOrder:
    """One file's changed rows, less the first ``skip``, and no more than ``take`` (None: all).

    ``part`` narrows it down to the row groups whose middle lies in that half-open range of bytes.
    """

    file: ChangeFile
    skip: int = 0
    take: int | None = None
    part: tuple[int, int] | None = None

    @property
    def cost(self) -> int:
        """About how many bytes are read."""
        if self.part is not None:
            return self.part[1] - self.part[0]
        return self.file.size or OPEN_COST_BYTES


@dataclass(frozen=True, slots=True)
class RewriteOrder:
    """A version's rewrite, or an independent share of it; the task finds what really changed.

    ``commit`` has no lines: only what tells the version's two states and its commit info.
    """

    commit: Commit
    rewrite: Rewrite
    skip: int = 0
    take: int | None = None

    @property
    def files(self) -> int:
        """How many files are read."""
        return len(self.rewrite.leaving) + len(self.rewrite.coming)

    @property
    def cost(self) -> int:
        """About how many bytes are read."""
        files = (*self.rewrite.leaving, *self.rewrite.coming)
        return sum(file.size or OPEN_COST_BYTES for file in files)


@dataclass(frozen=True, slots=True)
class VersionOrder:
    """Whole versions, from ``start`` on up to version ``last``, for the pipeline's sinks.

    The task reads them as the daemon does. ``cost`` is about how many bytes that takes, in
    ``files`` files.
    """

    start: Offset
    last: int
    cost: int
    files: int
    skip: int = 0
    take: int | None = None


Order = FileOrder | RewriteOrder | VersionOrder


def _no_lines() -> Iterable[bytes]:
    return ()


def rewrite_order(commit: Commit, rewrite: Rewrite) -> RewriteOrder:
    """The order for a whole rewrite, with the commit cut down to what a task needs of it."""
    header = CommitHeader(commit_info=commit.header.commit_info)
    return RewriteOrder(replace(commit, header=header, lines=_no_lines), rewrite)


def fan_out(order: RewriteOrder, shares: int, key: tuple[str, ...]) -> list[RewriteOrder]:
    """The rewrite in at most so many independent shares, by partition values.

    Rows of different partitions are never equal, so nothing cancels out between them. Where row
    ids or a key may pair rows across partitions, or the partitioning changes, it stays whole. Which
    file goes where depends on its partition alone: a replay shares out the same way.
    """
    before, after = order.commit.before, order.commit.after
    partitioned = before is not None and (
        before.metadata.partition_columns == after.metadata.partition_columns
        and before.partition_fields() == after.partition_fields()
        and bool(after.partition_fields())
    )
    if not partitioned or key or shares < 2 or row_ids_hold(order.commit, order.rewrite):
        return [order]
    groups: dict[int, Rewrite] = {}
    for side in ("leaving", "coming"):
        for file in getattr(order.rewrite, side):
            values = repr(sorted(file.partition_values.items()))
            digest = blake2b(values.encode(), digest_size=8).digest()
            group = int.from_bytes(digest) % shares
            getattr(groups.setdefault(group, Rewrite([], [])), side).append(file)
    return [replace(order, rewrite=groups[group]) for group in sorted(groups)]


def _parts(orders: Iterable[Order], size_max: int) -> Iterator[Order]:
    """The orders, files beyond that size in ranges of bytes."""
    for order in orders:
        size = order.file.size if isinstance(order, FileOrder) else None
        whole = not isinstance(order, FileOrder) or order.skip or order.take is not None
        if whole or size is None or size <= size_max:
            yield order
            continue
        count = math.ceil(size / size_max)
        # The last part is open-ended: the log's size of a file is not what its row groups sum to.
        edges = [size * i // count for i in range(count)] + [2**63]
        for first, end in itertools.pairwise(edges):
            yield replace(order, part=(first, end))  # type: ignore[arg-type]  # a FileOrder


def pack(
    orders: Sequence[Order], bytes_max: int, shares_min: int, *, ordered: bool
) -> list[list[Order]]:
    """The orders in shares of about equal size, one for each task; none is empty.

    ``ordered`` keeps the shares in the order of the changes, one after the other.
    """
    total = sum(order.cost + OPEN_COST_BYTES for order in orders)
    count = max(shares_min, math.ceil(total / bytes_max))
    target = max(OPEN_COST_BYTES, math.ceil(total / count))
    parts = list(_parts(orders, target if not ordered else 2**63 - 1))
    if ordered:
        return _in_a_row(parts, target)
    shares: list[list[Order]] = [[] for _ in range(min(count, len(parts)))]
    # The largest first, each to the share that has least: within a third of the best there is.
    heap = [(0, number) for number in range(len(shares))]
    for order in sorted(parts, key=lambda part: -_cost(part)):
        load, number = heapq.heappop(heap)
        shares[number].append(order)
        heapq.heappush(heap, (load + _cost(order), number))
    return [share for share in shares if share]


def _cost(order: Order) -> int:
    if isinstance(order, FileOrder) and order.part is not None and order.part[1] == 2**63:
        return (order.file.size or 0) - order.part[0] + OPEN_COST_BYTES
    return order.cost + OPEN_COST_BYTES


def _in_a_row(orders: Sequence[Order], target: int) -> list[list[Order]]:
    shares: list[list[Order]] = []
    load = target
    for order in orders:
        if load + _cost(order) / 2 > target:
            shares.append([])
            load = 0
        shares[-1].append(order)
        load += _cost(order)
    return shares
