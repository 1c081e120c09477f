"""Records as the bytes of Kafka's record batches (format 2), by columns.

Kafka's documentation, "Record Batch" and "Record": after the batch's header, which the client
library writes, each record is its length, attributes, timestamp delta, offset delta, key, value
and headers, with every number a zigzag varint. Here each of these parts is an array, and one pass
puts the rows together, in C where that is compiled (:mod:`tailer.native.rowbytes`), else by Arrow's
join: no Python object per record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

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

#: A part of every record: the same bytes in all, or an array without nulls.
_Part: TypeAlias = "bytes | pa.BinaryArray"

_EMPTY = pa.scalar(b"")
_NO_ATTRIBUTES = pa.scalar(b"\0")


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
    there is one: new memory costs more than what is written into it.
    """
    if rowbytes.native is None:
        yield from _build_by_arrow(
            records.whole() if places is None else records.take(places), bytes_max
        )
        return
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


def _build_by_arrow(records: Records, bytes_max: int) -> Iterator[Body]:
    parts, times = _build_parts(records), records.timestamp_ms
    lengths = _sum_sizes(parts, records.num_records)
    sizes = pc.add(lengths, pa.scalar(5 + 1 + _find_timestamp_room(times) + 5, pa.int64()))
    ends = memoryview(pc.cumulative_sum(sizes).buffers()[1]).cast("q")
    room, count, at = bytes_max - BATCH_OVERHEAD, records.num_records, 0
    while at < count:
        before = ends[at - 1] if at else 0
        end = bisect_right(ends, before + room, at, min(count, at + RECORDS_MAX))
        number = max(end, at + 1) - at
        buffer = bytearray(BATCH_OVERHEAD)
        first, latest = _first_and_latest(times, at, number)
        deltas = b"\0"
        if not isinstance(times, int):
            deltas = _encode_varints(pc.subtract(times.slice(at, number), first))
        buffer += memoryview(_join_body(parts, lengths, deltas, at, number))
        yield Body(buffer, number, first, latest)
        at += number


def _join_body(
    parts: list[_Part], lengths: pa.Int64Array, times: _Part, at: int, count: int
) -> pa.Buffer:
    """Return records ``at`` to ``at + count``, each after its length: all parts in one copy."""
    places = _list_small_varints().slice(0, count)
    widths = _sum_sizes([b"\0", times, places], count)
    whole = pc.add(lengths.slice(at, count), widths)
    own = [pa.scalar(p) if isinstance(p, bytes) else p.slice(at, count) for p in parts]
    stamps = pa.scalar(times) if isinstance(times, bytes) else times
    joined = pc.binary_join_element_wise(
        _encode_varints(whole), _NO_ATTRIBUTES, stamps, places, *own, _EMPTY
    )
    return joined.buffers()[2]


def _find_timestamp_room(times: pa.Int64Array | int) -> int:
    """Return the most bytes of a record's timestamp delta."""
    if isinstance(times, int):
        return 1
    ends = pc.min_max(times)
    return len(encode_varint(ends["max"].as_py() - ends["min"].as_py()))


def _sum_sizes(parts: list[_Part], count: int) -> pa.Int64Array:
    """Return how many bytes (int64) the parts have together, for each of ``count`` records."""
    total: pa.Array | pa.Scalar = pa.scalar(sum(len(p) for p in parts if isinstance(p, bytes)))
    for part in parts:
        if not isinstance(part, bytes):
            total = pc.add(total, pc.binary_length(part).cast(pa.int64()))
    return total if isinstance(total, pa.Array) else pa.repeat(total, count)


def _build_parts(records: Records) -> list[_Part]:
    """Return each record from its key on, in parts that do not depend on its place in a batch."""
    parts: list[_Part] = (
        [encode_varint(-1)] if records.keys is None else _build_sized_parts(records.keys)
    )
    parts += _build_sized_parts(records.whole_values())
    # Headers that all records have include their number at the front; a header that a record
    # lacks is left out there, and not counted.
    present, count = b"", None
    optional: list[_Part] = []
    always = sum(isinstance(value, bytes) for _, value in records.headers)
    for name, value in records.whole_headers():
        head = _prefix_size(name.encode())
        if isinstance(value, bytes):
            present += head + _prefix_size(value)
        elif not value.null_count:
            always += 1
            optional += [head, *_build_sized_parts(_cast_to_binary(value))]
        else:
            there = value.is_valid()
            sized = (
                pa.scalar(p) if isinstance(p, bytes) else p
                for p in _build_sized_parts(_cast_to_binary(value))
            )
            text = pc.binary_join_element_wise(pa.scalar(head), *sized, _EMPTY)
            optional.append(pc.if_else(there, text, _EMPTY))
            one = there.cast(pa.int32())
            count = one if count is None else pc.add(count, one)
    if count is None:
        parts.append(encode_varint(always))
    else:
        parts.append(_encode_varints(pc.add(count, pa.scalar(always, pa.int32()))))
    return _merge_constants([*parts, present, *optional])


def _merge_constants(parts: list[_Part]) -> list[_Part]:
    """Return the same parts, with adjacent constants merged."""
    merged: list[_Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _cast_to_binary(array: pa.Array) -> pa.BinaryArray:
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _build_sized_parts(array: pa.BinaryArray) -> list[_Part]:
    """Return the lengths and the bytes of an array; a null has the length -1 and no bytes."""
    lengths = pc.binary_length(array)
    if array.null_count:
        return [_encode_varints(pc.fill_null(lengths, -1)), pc.fill_null(array, b"")]
    ends = pc.min_max(lengths)
    if len(array) and ends["min"] == ends["max"]:
        return [encode_varint(ends["min"].as_py()), array]
    return [_encode_varints(lengths), array]


def _encode_varints(numbers: pa.Array) -> pa.BinaryArray:
    """Encode each number as a zigzag varint. Few numbers differ: each is encoded once."""
    encoded = numbers.dictionary_encode()
    texts = [encode_varint(number) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.binary()).take(encoded.indices)


@cache
def _list_small_varints() -> pa.BinaryArray:
    """Return the varints of 0 to RECORDS_MAX - 1, the offset deltas of a batch."""
    return pa.array([encode_varint(number) for number in range(RECORDS_MAX)], pa.binary())


def encode_varint(number: int) -> bytes:
    """Encode a number as a zigzag varint."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(0x80 | left & 0x7F)
        left >>= 7
    out.append(left)
    return bytes(out)
