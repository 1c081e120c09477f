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
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tailer.changes import ChangeBatch, ChangeFile, Offset
from tailer.decode.rows import DecodeOptions, Rows, output_schema
from tailer.delta.snapshot import TableState
from tailer.spark.driver import TaskPartition
from tailer.spark.failing import one_sentence
from tailer.spark.limited import LimitedStreamReader
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, pack
from tailer.spark.planning import Planned, Planner
from tailer.spark.source import TailerSource
from tailer.spark.tasks import decoded, store_portal

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SCHEMA", "BatchSource", "change_batches"]

#: What rows belong to, pickled; and the rows with their positions, none where a version begins.
SCHEMA = pa.schema([("head", pa.binary()), ("rows", pa.binary())])

_POSITION = "_position"


@dataclass(frozen=True, slots=True)
class _Version:
    """A version begins: its first offset, the one behind what of it is in the batch."""

    offset: Offset
    next_offset: Offset
    state: TableState
    timestamp_ms: int


class BatchSource(TailerSource):
    """``format("tailer-batches")``: the pipeline's own, in each version's own schema."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tailer-batches"

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
            if order is not None:
                for file, rows in decoded(portal, store, order, options, decode):
                    # Which rows of the file are meant has been decided: it need not travel.
                    yield _row(replace(file, rows=None, updated=None), _packed(rows))


def _row(head: _Version | ChangeFile, rows: bytes | pa.Buffer) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([pickle.dumps(head)], pa.binary()), pa.array([rows], pa.binary())], schema=SCHEMA
    )


def _packed(rows: Rows) -> pa.Buffer:
    batch = rows.batch.append_column(_POSITION, rows.positions)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


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
        at = version.offset if held is None else held.next_offset
        batch = pa.ipc.open_stream(packed).read_next_batch()
        positions = batch.column(_POSITION)
        data = batch.drop_columns([_POSITION])
        behind = replace(at, index=at.index + data.num_rows)
        held = ChangeBatch(data, positions, found.state, found, version.timestamp_ms, at, behind)
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
