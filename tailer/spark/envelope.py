"""Change batches as rows of a frame, and back: how the pipeline feeds the daemon's own sinks.

The executors decode, and each batch travels whole: its rows and positions as an Arrow stream, and
what it belongs to. The driver puts offsets to them in the order of the changes. So a sink sees on
Spark exactly the batches that it would see from the daemon, with the same ids and bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from queue import Queue
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql.datasource import InputPartition

from tailer.changes import ChangeBatch, ChangeFile, Offset, Rows
from tailer.decode.rows import DecodeOptions, output_schema
from tailer.delta.snapshot import TableState
from tailer.feed import FeedOptions, read_changes
from tailer.log import DeltaLog
from tailer.spark.driver import TaskPartition
from tailer.spark.failing import one_sentence
from tailer.spark.limited import LimitedStreamReader
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, VersionOrder, pack
from tailer.spark.planning import Planned, Planner
from tailer.spark.source import TailerSource
from tailer.spark.tasks import decoded, store_portal
from tailer.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SCHEMA", "BatchPartition", "BatchSource", "BatchStreamReader", "change_batches"]

#: What rows belong to, pickled; and the rows with their positions, none where a version begins.
SCHEMA = pa.schema([("head", pa.binary()), ("rows", pa.binary())])


@dataclass(frozen=True, slots=True)
class _Version:
    """A version begins: its first offset, the one behind what of it is in the batch."""

    offset: Offset
    next_offset: Offset
    state: TableState
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The file that some rows are of."""

    file: ChangeFile


class BatchSource(TailerSource):
    """``format("tailer-batches")``: the pipeline's own, in each version's own schema."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tailer-batches"

    def _check(self, options: SourceOptions) -> None:
        """Whatever the pipeline asks for."""

    def schema(self) -> StructType:
        """Two binary columns, see :data:`SCHEMA`."""
        from pyspark.sql.types import BinaryType, StructType

        return StructType().add("head", BinaryType()).add("rows", BinaryType())

    @one_sentence
    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802
        """The stream of batches."""
        options, target = self._checked()
        return BatchStreamReader(options, target, schema, SCHEMA)


class BatchPartition(TaskPartition):
    """One task's work, with the versions that begin in it: before the order of that number."""

    def __init__(self, orders: Sequence[Order], begins: Sequence[tuple[int, _Version]]) -> None:
        super().__init__(orders)
        self.begins = list(begins)


class BatchStreamReader(LimitedStreamReader):
    """Plans in the order of the changes: tasks one after the other give the whole batch."""

    async def _partitions(
        self, planner: Planner, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        last = Offset.from_json(end)
        first = await self._resolved(planner, start, last)
        orders: list[Order] = []
        begins: list[tuple[int, _Version]] = []
        if first is not None:
            async with aclosing(planner.orders(first, last, ordered=True)) as found:
                async for planned, more in found:
                    begins.append((len(orders), _begun(planned, last)))
                    orders += more
        options = self.options
        shares = pack(orders, options.partition_bytes_max, options.partitions_min, ordered=True)
        return list(_with_begins(shares or [[]], begins)) if begins else []

    def checked_target(self) -> None:
        """Any schema is welcome: every batch carries its own."""

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's batches, each as a row."""
        assert isinstance(partition, BatchPartition)
        return _rows(partition, self.options, self.options.decoding(None))


def _begun(planned: Planned, last: Offset) -> _Version:
    within = last.version == planned.version and last.snapshot == planned.offset.snapshot
    behind = last if within else planned.next_offset
    timestamp = planned.next_offset.timestamp_floor_ms or 0
    return _Version(planned.offset, behind, planned.state, timestamp)


def _with_begins(
    shares: Sequence[Sequence[Order]], begins: Sequence[tuple[int, _Version]]
) -> Iterator[BatchPartition]:
    """The shares as partitions; what begins behind the last order goes into the last one."""
    first = 0
    for number, share in enumerate(shares):
        end = first + len(share)
        is_last = number == len(shares) - 1
        here = [(at - first, v) for at, v in begins if first <= at < end or (is_last and at >= end)]
        yield BatchPartition(share, here)
        first = end


def _rows(
    partition: BatchPartition, options: SourceOptions, decode: DecodeOptions
) -> Iterator[pa.RecordBatch]:
    with store_portal(options) as (portal, store):
        for number, order in enumerate([*partition.orders, None]):
            for at, version in partition.begins:
                if at == number:
                    yield _row(version, b"")
            if isinstance(order, VersionOrder):
                for batch in _read_version(portal, store, order, options, decode):
                    yield _row(_emptied(batch), _packed(batch))
            elif order is not None:
                for file, rows in decoded(portal, store, order, options, decode):
                    yield _row(_Piece(_bare(file)), _packed(rows))


def _read_version(
    portal: BlockingPortal,
    store: Store,
    order: VersionOrder,
    options: SourceOptions,
    decode: DecodeOptions,
) -> Iterator[ChangeBatch]:
    """A version's batches exactly as a daemon's feed reads them, its updates paired."""
    log = DeltaLog(store, torn_commit_max_s=options.torn_commit_max_s)
    feed = FeedOptions(options.change_source, options.key, options.diff, decode, paired=True)
    batches: Queue[ChangeBatch | None] = Queue(maxsize=1)

    async def read() -> None:
        try:
            found = read_changes(log, order.start, order.start.version, feed)
            async with aclosing(found):
                async for batch in found:
                    await anyio.to_thread.run_sync(batches.put, batch, abandon_on_cancel=True)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(batches.put, None)

    reading = portal.start_task_soon(read)
    while (batch := batches.get()) is not None:
        yield batch
    reading.result()


def _bare(file: ChangeFile) -> ChangeFile:
    """A file without which of its rows are meant: that has been decided, and need not travel."""
    kept = None if file.kept is None else ()
    return replace(file, rows=None, updated=None, kept=kept)


def _emptied(batch: ChangeBatch) -> ChangeBatch:
    """A batch without its rows, which travel as Arrow."""
    file = None if batch.file is None else _bare(batch.file)
    none = pa.array([], pa.int64())
    return replace(
        batch, rows=batch.rows.slice(0, 0), positions=none, file=file,
        row_ids=None, before=None, indices=None,
    )  # fmt: skip


def _row(head: _Version | _Piece | ChangeBatch, rows: bytes | pa.Buffer) -> pa.RecordBatch:
    columns = [_single(pickle.dumps(head)), _single(rows)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _single(value: bytes | pa.Buffer) -> pa.BinaryArray:
    """An array of that one value, which is not copied."""
    data = pa.py_buffer(value)
    offsets = pa.array([0, data.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])


def _packed(rows: Rows | ChangeBatch) -> pa.Buffer:
    """Rows as a batch of structs: the rows themselves and what goes with each of them."""
    batch = rows.batch if isinstance(rows, Rows) else rows.rows
    besides = {"positions": rows.positions, "row_ids": rows.row_ids}
    if isinstance(rows, ChangeBatch):
        besides |= {"before": rows.before, "indices": rows.indices}
    given = {name: array for name, array in besides.items() if array is not None}
    more = pa.RecordBatch.from_arrays([*given.values()], names=[*given])
    sink = pa.BufferOutputStream()
    for part in (batch, more):
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
    return sink.getvalue()


def _unpacked(packed: bytes) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    source = pa.BufferReader(packed)
    # To its end, for the second stream begins there.
    (batch,), (more,) = ([*pa.ipc.open_stream(source)] for _ in range(2))
    return batch, dict(zip(more.schema.names, more.columns, strict=True))


def change_batches(
    rows: Iterable[tuple[bytes, bytes]], columns: tuple[str, ...] | None = None
) -> Iterator[ChangeBatch]:
    """The change batches in a frame's rows, in order, with the offsets that the daemon gives them.

    A version's last batch leads to the next version; a version without changes is an empty batch.
    """
    version: _Version | None = None
    held: ChangeBatch | None = None
    for head, packed in rows:
        # Our own executors made these rows, as they make all that Spark itself unpickles.
        found = pickle.loads(head)  # noqa: S301
        if isinstance(found, _Version):
            if version is not None:
                yield _ended(version, held, columns)
            version, held = found, None
            continue
        assert version is not None, "rows come after the beginning of their version"
        if held is not None:
            yield held
        data, besides = _unpacked(packed)
        if isinstance(found, ChangeBatch):
            held = replace(found, rows=data, **besides)
            continue
        at = version.offset if held is None else held.next_offset
        behind = replace(at, index=at.index + data.num_rows)
        held = ChangeBatch(
            data, besides["positions"], found.file.state, found.file, version.timestamp_ms, at,
            behind, besides.get("row_ids"),
        )  # fmt: skip
    if version is not None:
        yield _ended(version, held, columns)


def _ended(
    version: _Version, held: ChangeBatch | None, columns: tuple[str, ...] | None
) -> ChangeBatch:
    if held is not None:
        return replace(held, next_offset=version.next_offset)
    rows = pa.RecordBatch.from_pylist([], schema=output_schema(version.state, columns))
    positions = pa.array([], pa.int64())
    return ChangeBatch(
        rows, positions, version.state, None, version.timestamp_ms, version.offset,
        version.next_offset,
    )  # fmt: skip
