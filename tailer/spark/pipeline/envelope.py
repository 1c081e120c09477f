"""Change batches as rows of a frame, and back: how the pipeline feeds the daemon's sinks.

Each task reads its versions with the daemon's feed, and each batch is sent whole: its rows as
Arrow streams, and what belongs to them. So a sink sees on Spark exactly the batches and notices
that it would see from the daemon, with the same offsets, ids and bytes. An error of ours is a row
too: what was read before it comes first, and the feed gets the very error.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import Queue

import anyio
import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal
from msgspec import structs

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TailerError
from tailer.feed.options import FeedOptions
from tailer.feed.policy import LostFiles
from tailer.feed.read import send_items
from tailer.feed.read_context import FeedItem, ReadContext
from tailer.log.table import TableLog
from tailer.plan.live_files import LiveFiles
from tailer.shape.columns import TableColumns
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, VersionOrder
from tailer.spark.pipeline.parts import Begun, fit_items, move_item
from tailer.spark.table_store import store_portal

#: A batch without its rows, a notice or an error, pickled; and the rows with what goes with each.
SCHEMA = pa.schema([("head", pa.binary()), ("rows", pa.binary())])

_BESIDES = ("positions", "row_ids", "before", "indices", "partner")


def join_orders(share: Sequence[Order]) -> VersionOrder:
    """Join a share's versions, which are consecutive, into one order."""
    versions = [order for order in share if isinstance(order, VersionOrder)]
    ineffective = {
        version: keys for order in versions for version, keys in order.ineffective.items()
    }
    return replace(versions[0], last=versions[-1].last, ineffective=ineffective)


@dataclass(frozen=True)
class VersionReader:
    """Reads versions on an executor, with the options of a feed. ``source`` names the table;
    ``lost`` are the files that the feed knows to be lost, ``columns`` what it knows of the
    table's columns: executors must read the same files."""

    source: SourceOptions
    feed: FeedOptions
    lost: LostFiles
    columns: TableColumns | None = None

    def read_rows(self, order: VersionOrder) -> Iterator[pa.RecordBatch]:
        """Yield an order's batches and notices, each as a row of :data:`SCHEMA`."""
        if order.part is not None:
            yield _make_row(pickle.dumps(Begun(order.start.index)), b"")
        try:
            with store_portal(self.source) as (portal, store):
                log = TableLog(store)
                feed_items = self._read_items(portal, log, order)
                if order.part is not None:
                    feed_items = fit_items(feed_items, order.part)
                for item in feed_items:
                    yield _pack_item(item)
        except TailerError as e:
            yield _make_row(pickle.dumps(e), b"")

    def _read_items(
        self, portal: BlockingPortal, log: TableLog, order: VersionOrder
    ) -> Iterator[FeedItem]:
        """Yield some versions exactly as a daemon's feed reads them, reading one item ahead."""
        part = slice(None) if order.part is None else slice(order.part.first, order.part.end)
        ready: Queue[FeedItem | None] = Queue(maxsize=1)

        async def put(item: FeedItem) -> None:
            await anyio.to_thread.run_sync(ready.put, item, abandon_on_cancel=True)

        async def read() -> None:
            try:
                live = LiveFiles(order.ineffective)
                # The driver counts all rows before it shapes them, of all operations.
                selection = structs.replace(self.feed.selection, operations=None)
                context = ReadContext.from_options(
                    log,
                    structs.replace(self.feed, selection=selection),
                    live=live,
                    lost=self.lost,
                    part=part,
                    columns=self.columns,
                )
                context = structs.replace(context, delivers=False)
                await send_items(context, order.start, order.last, put)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(ready.put, None)

        context = portal.start_task_soon(read)
        while (item := ready.get()) is not None:
            yield item
        context.result()


def _pack_item(item: FeedItem) -> pa.RecordBatch:
    if isinstance(item, Notice):
        return _make_row(pickle.dumps(item), b"")
    # The file's row selection is already applied: it need not be sent.
    kept_rows = None if item.file is None or item.file.kept is None else ()
    file = item.file and structs.replace(item.file, rows=None, updated=None, kept=kept_rows)
    rows, positions = item.rows.slice(0, 0), item.positions.slice(0, 0)
    bare = structs.replace(item, rows=rows, positions=positions, file=file)
    bare = structs.replace(bare, row_ids=None, before=None, indices=None, partner=None)
    return _make_row(pickle.dumps(bare), _pack_rows(item))


def _make_row(head: bytes, rows: bytes | pa.Buffer) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_make_single_array(head), _make_single_array(rows)], schema=SCHEMA
    )


def _make_single_array(value: bytes | pa.Buffer) -> pa.BinaryArray:
    """Return an array of that one value, which is not copied."""
    data = pa.py_buffer(value)
    offsets = pa.array([0, data.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])


def _pack_rows(batch: ChangeBatch) -> pa.Buffer:
    """Pack the rows, and what belongs to each of them, into two Arrow streams."""
    arrays = {name: getattr(batch, name) for name in _BESIDES}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    besides = pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])
    sink = pa.BufferOutputStream()
    for part in (batch.rows, besides):
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
    return sink.getvalue()


def unpack_items(rows: Iterable[tuple[bytes, bytes]], at: Offset) -> Iterator[FeedItem]:
    """Yield the change batches and notices in a frame's rows, in their order, from an offset on.
    Raises an error that is among them."""
    shift = 0
    for head, packed in rows:
        # Our own executors made these rows, as they make all that Spark itself unpickles.
        first = pickle.loads(head)  # noqa: S301
        if isinstance(first, TailerError):
            raise first
        if isinstance(first, Begun):
            shift = at.index - first.index
            continue
        item = move_item(
            first if isinstance(first, Notice) else _unpack_batch(first, packed), shift
        )
        yield item
        at = item.next_offset


def _unpack_batch(bare: ChangeBatch, packed: bytes) -> ChangeBatch:
    source = pa.BufferReader(packed)
    # To its end, because the second stream begins there.
    (data,), (besides,) = ([*pa.ipc.open_stream(source)] for _ in range(2))
    more = dict(zip(besides.schema.names, besides.columns, strict=True))
    return structs.replace(bare, rows=data, **more)
