"""Change batches as rows of a frame, and back: how the pipeline feeds the daemon's sinks.

Each task reads its versions with the daemon's feed, and each batch is sent whole: its rows as
Arrow streams, and what belongs to them. So a sink sees on Spark exactly the batches and notices
that it would see from the daemon, with the same offsets, ids and bytes.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from queue import Queue
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql.datasource import InputPartition

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.feed.options import FeedOptions
from tailer.feed.read import send_items
from tailer.feed.reading import Item, Reading
from tailer.log.live import LiveFiles
from tailer.log.table import TableLog
from tailer.spark.driver import TaskPartition
from tailer.spark.failing import one_sentence
from tailer.spark.limited import LimitedStreamReader
from tailer.spark.opening import store_portal
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, VersionOrder, pack
from tailer.spark.planning import Planner
from tailer.spark.source import TailerSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SCHEMA", "BatchSource", "BatchStreamReader", "feed_option", "items"]

#: A batch without its rows or a notice, pickled; and the rows with what goes with each of them.
SCHEMA = pa.schema([("head", pa.binary()), ("rows", pa.binary())])

_BESIDES = ("positions", "row_ids", "before", "indices", "partner")


def feed_option(options: FeedOptions) -> str:
    """Return a feed's options in the form of the source's option ``feed``."""
    return base64.b64encode(pickle.dumps(options)).decode()


class BatchSource(TailerSource):
    """``format("tailer-batches")``: the pipeline's format, in each version's own schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tailer-batches"

    def _check(self, options: SourceOptions) -> None:
        """Accept all options of the pipeline."""

    def schema(self) -> StructType:
        """Return two binary columns, see :data:`SCHEMA`."""
        from pyspark.sql.types import BinaryType, StructType

        return StructType().add("head", BinaryType()).add("rows", BinaryType())

    @one_sentence
    def streamReader(self, schema: StructType) -> BatchStreamReader:  # noqa: N802
        """Return the stream of batches."""
        options, target = self._checked()
        return BatchStreamReader(options, target, schema, SCHEMA)


class BatchStreamReader(LimitedStreamReader):
    """Plans whole versions in their order: consecutive tasks give the whole batch."""

    async def _partitions(
        self, planner: Planner, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        orders: list[Order] = []
        async with aclosing(planner.orders(*map(Offset.from_json, (start, end)))) as found:
            async for _, more in found:
                orders += more
        options = self.options
        shares = pack(orders, options.partition_bytes_max, options.partitions_min, ordered=True)
        return [TaskPartition([_joined(share)]) for share in shares]

    def checked_target(self) -> None:
        """Accept any schema: every batch carries its own."""

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's batches and notices, each as a row."""
        assert isinstance(partition, TaskPartition)
        return _rows(partition, self.options)


def _joined(share: Sequence[Order]) -> VersionOrder:
    """Join a share's versions, which are consecutive, into one order."""
    versions = [order for order in share if isinstance(order, VersionOrder)]
    moot = {version: keys for order in versions for version, keys in order.moot.items()}
    return replace(versions[0], last=versions[-1].last, moot=moot)


def _rows(partition: TaskPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    # Our own driver made it, as it makes all that Spark itself unpickles.
    feed = pickle.loads(base64.b64decode(options.feed or ""))  # noqa: S301
    with store_portal(options) as (portal, store):
        log = TableLog(store, torn_commit_max_s=options.torn_commit_max_s)
        for order in partition.orders:
            assert isinstance(order, VersionOrder), "whole versions are planned"
            for item in _read_order(portal, log, order, feed):
                yield _row(item)


def _read_order(
    portal: BlockingPortal, log: TableLog, order: VersionOrder, feed: FeedOptions
) -> Iterator[Item]:
    """Yield some versions exactly as a daemon's feed reads them, reading one item ahead."""
    ready: Queue[Item | None] = Queue(maxsize=1)

    async def put(item: Item) -> None:
        await anyio.to_thread.run_sync(ready.put, item, abandon_on_cancel=True)

    async def read() -> None:
        try:
            live = LiveFiles(order.moot)
            reading = Reading.of(log, feed, live=live)
            await send_items(reading, order.start, order.last, put)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(ready.put, None)

    reading = portal.start_task_soon(read)
    while (item := ready.get()) is not None:
        yield item
    reading.result()


def _row(item: Item) -> pa.RecordBatch:
    if isinstance(item, Notice):
        columns = [_single(pickle.dumps(item)), _single(b"")]
    else:
        # The file's row selection is already applied: it need not be sent.
        kept = None if item.file is None or item.file.kept is None else ()
        file = item.file and replace(item.file, rows=None, updated=None, kept=kept)
        rows, positions = item.rows.slice(0, 0), item.positions.slice(0, 0)
        bare = replace(item, rows=rows, positions=positions, file=file)
        bare = replace(bare, row_ids=None, before=None, indices=None, partner=None)
        columns = [_single(pickle.dumps(bare)), _single(_packed(item))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _single(value: bytes | pa.Buffer) -> pa.BinaryArray:
    """Return an array of that one value, which is not copied."""
    data = pa.py_buffer(value)
    offsets = pa.array([0, data.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])


def _packed(batch: ChangeBatch) -> pa.Buffer:
    """Pack the rows, and what belongs to each of them, into two Arrow streams."""
    given = {name: getattr(batch, name) for name in _BESIDES}
    given = {name: array for name, array in given.items() if array is not None}
    besides = pa.RecordBatch.from_arrays([*given.values()], names=[*given])
    sink = pa.BufferOutputStream()
    for part in (batch.rows, besides):
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
    return sink.getvalue()


def items(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Item]:
    """Yield the change batches and notices in a frame's rows, in their order."""
    for head, packed in rows:
        # Our own executors made these rows, as they make all that Spark itself unpickles.
        found = pickle.loads(head)  # noqa: S301
        if isinstance(found, Notice):
            yield found
            continue
        source = pa.BufferReader(packed)
        # To its end, because the second stream begins there.
        (data,), (besides,) = ([*pa.ipc.open_stream(source)] for _ in range(2))
        more = dict(zip(besides.schema.names, besides.columns, strict=True))
        yield replace(found, rows=data, **more)
