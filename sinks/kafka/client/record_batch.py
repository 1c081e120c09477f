"""Records as the bytes of Kafka's record batches (format 2), by columns.

Kafka's documentation, "Record Batch" and "Record": after the batch's header, which the client
library writes, each record is its length, attributes, timestamp delta, offset delta, key, value
and headers, with every number a zigzag varint. Here each of these parts is an array, and one pass
in C (:mod:`tailer.native.rowbytes`) puts the rows together: no Python object per record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailer.native import rowbytes
from tailer.native.rowbytes import OPTIONAL, SIZED, JoinedText, array_part, native_parts
from tailer.sink.encoder import Records

#: Bytes of a record batch before its records: its header.
BATCH_OVERHEAD = 61
#: The most bytes of a record that are neither key, value nor header: length, attributes, two
#: deltas, the lengths of key and value and the number of headers.
RECORD_OVERHEAD = 5 + 1 + 1 + 5 + 5 + 5 + 5
#: The most records in a batch, so that the table of offset deltas stays small.
RECORDS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Body:
    """The records of one batch as bytes, and what the batch's header says about them.

    ``buffer`` has room for that header in front: :data:`BATCH_OVERHEAD` bytes. ``timestamp_ms`` is
    the first record's, which those of the others are counted from, and ``timestamp_ms_max`` the
    latest.
    """

    buffer: bytearray
    num_records: int
    timestamp_ms: int
    timestamp_ms_max: int


def measure_records(records: Records) -> pa.Int64Array:
    """Return the most bytes (int64) that each record takes, uncompressed, alone in a batch."""
    fixed = RECORD_OVERHEAD + BATCH_OVERHEAD
    sizes = _measure_column(records.values)
    if records.keys is not None:
        sizes = pc.add(sizes, _measure_column(records.keys))
    for name, value in records.headers:
        fixed += len(name.encode()) + 10
        if isinstance(value, bytes):
            fixed += len(value)
        else:
            sizes = pc.add(sizes, _measure_column(value))
    return pc.add(sizes, pa.scalar(fixed, pa.int64()))


def _measure_column(column: pa.Array | JoinedText) -> pa.Int64Array:
    if isinstance(column, JoinedText):
        return column.sizes()
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def split_by_bytes(records: Records, bytes_max: int) -> Iterator[Records]:
    """Yield records, in order, as many at a time as a batch of at most ``bytes_max`` bytes has; a
    larger record is alone."""
    count, at = records.num_records, 0
    if not count:
        return
    ends = memoryview(pc.cumulative_sum(measure_records(records)).buffers()[1]).cast("q")
    while at < count:
        before = ends[at - 1] if at else 0
        end = max(bisect_right(ends, before + bytes_max, at, count), at + 1)
        yield records.slice(at, end - at)
        at = end


def build_record_batches(
    records: Records,
    bytes_max: int,
    places: pa.Int64Array | None = None,
    spare: Callable[[], bytearray | None] | None = None,
) -> Iterator[Body]:
    """Yield the records of one partition, in order, as the bodies of batches of at most
    ``bytes_max`` bytes each, uncompressed and with their headers; a larger record is alone in its
    batch.

    ``places`` (int64) selects the records, if not all. ``spare`` gives a buffer to use again, if
    there is one: new memory costs more than what is written into it. Only where ``_rowbytes.c`` is
    compiled.
    """
    parts, rows = _build_native_parts(records), records.num_records
    times = sent = records.timestamp_ms
    if not isinstance(times, int) and places is not None:
        sent = times.take(places)
    stamps, chosen = _view_numbers(times), _view_numbers(places)
    room, at = bytes_max - BATCH_OVERHEAD, 0
    for buffer, number in rowbytes.native.records(
        parts, rows, stamps, chosen, RECORDS_MAX, room, BATCH_OVERHEAD, spare
    ):
        first, latest = _first_and_latest(sent, at, number)
        yield Body(buffer, number, first, latest)
        at += number


def _view_numbers(array: pa.Int64Array | int | None) -> pa.Buffer | None:
    """Return an array's numbers as they lie in memory."""
    return array.buffers()[1].slice(array.offset * 8) if isinstance(array, pa.Array) else None


def _first_and_latest(times: pa.Int64Array | int, at: int, count: int) -> tuple[int, int]:
    if isinstance(times, int):
        return times, times
    return times[at].as_py(), pc.max(times.slice(at, count)).as_py()


def _build_native_parts(records: Records) -> list[object]:
    """Return the part of a record from its key on, in the form of ``_rowbytes.c``."""
    parts: list[object] = [
        encode_varint(-1) if records.keys is None else array_part(records.keys, SIZED),
        _build_native_part(records.values),
    ]
    always, optional = 0, False
    present, some = b"", list[object]()
    for name, value in records.headers:
        head = _prefix_size(name.encode())
        if isinstance(value, bytes):
            present += head + _prefix_size(value)
        elif isinstance(value, JoinedText) or not value.null_count:
            some += [head, _build_native_part(value)]
        else:
            some.append(array_part(value, OPTIONAL, head))
            optional = True
            continue
        always += 1
    return [*parts, always if optional else encode_varint(always), present, *some]


def _build_native_part(column: pa.Array | JoinedText) -> object:
    if isinstance(column, JoinedText):
        return native_parts(column.parts)
    return array_part(column, SIZED)


def _prefix_size(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


def encode_varint(number: int) -> bytes:
    """Encode a number as a zigzag varint."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(0x80 | left & 0x7F)
        left >>= 7
    out.append(left)
    return bytes(out)
