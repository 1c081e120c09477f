"""Record batches by columns are the bytes that kafka-python itself would write."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from sinks.formats.json import json_objects_joined
from sinks.kafka.client.record_batch import (
    BATCH_OVERHEAD,
    Body,
    build_record_batches,
    measure_records,
    split_by_bytes,
)
from tailer.native.rowbytes import JoinedText, whole_numbers
from tailer.sink.encoder import Header, Records

pytestmark = pytest.mark.usefixtures("compiled")

SOME_BYTES = st.binary(max_size=300)
RECORD = st.tuples(
    st.none() | SOME_BYTES,  # key
    st.none() | SOME_BYTES,  # value
    st.none() | SOME_BYTES,  # a header that some records lack
    SOME_BYTES,  # and one that all have
)
TIMES = st.integers(-(2**40), 2**42)


def by_columns(rows: list[tuple[bytes | None, bytes | None, bytes | None, bytes]]) -> Records:
    columns = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
    headers: tuple[Header, ...] = (
        ("some", columns[2]),
        ("größe", columns[3]),
        ("constant", b"all of them"),
    )
    return Records(columns[0], columns[1], headers, 1_767_225_600_000)


def by_kafka_python(records: Records) -> bytes:
    """The same records, one after the other, by the client's own builder."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    columns = [
        (n, v if isinstance(v, bytes) else v.cast(pa.binary()).to_pylist())
        for n, v in records.whole_headers()
    ]
    # Headers that all records have stand first where they are constant: the order of the wire.
    columns.sort(key=lambda header: not isinstance(header[1], bytes))
    times, values = records.timestamp_ms, records.whole_values()
    for i in range(records.num_records):
        headers = [(n, v if isinstance(v, bytes) else v[i]) for n, v in columns]
        key = None if records.keys is None else records.keys[i].as_py()
        value = values[i].as_py()
        present = [(n, v) for n, v in headers if v is not None]
        time_ms = times if isinstance(times, int) else times[i].as_py()
        builder.append(i, time_ms, key, value, present)
    return bytes(builder._buffer[BATCH_OVERHEAD:])


def by_kafka_pythons_reader(body: Body) -> list[int]:
    """The times of the records, as the client's own parser reads them."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    builder._buffer, builder._num_records = body.buffer, body.num_records
    builder._first_timestamp, builder._max_timestamp = body.timestamp_ms, body.timestamp_ms_max
    batch = DefaultRecordBatch(bytes(builder.build()))
    assert batch.validate_crc()
    found = [record.timestamp for record in batch]
    assert batch.max_timestamp == max(found)
    return found


@given(st.lists(RECORD, min_size=1, max_size=30))
def test_a_batch_is_what_kafka_python_writes(
    rows: list[tuple[bytes | None, bytes | None, bytes | None, bytes]],
) -> None:
    records = by_columns(rows)
    (body,) = build_record_batches(records, 1 << 30)
    assert body.buffer[BATCH_OVERHEAD:] == by_kafka_python(records)
    assert (body.num_records, body.timestamp_ms) == (len(rows), records.timestamp_ms)


@given(st.lists(st.tuples(RECORD, TIMES), min_size=1, max_size=60), st.integers(400, 9_000))
def test_each_record_has_its_time(
    given: list[tuple[tuple[bytes | None, bytes | None, bytes | None, bytes], int]], bytes_max: int
) -> None:
    times = [time for _, time in given]
    records = replace(
        by_columns([row for row, _ in given]),
        timestamp_ms=pa.array([0, *times], pa.int64()).slice(1),
    )
    (whole,) = build_record_batches(records, 1 << 30)
    assert whole.buffer[BATCH_OVERHEAD:] == by_kafka_python(records)
    bodies = list(build_record_batches(records, bytes_max))
    assert all(len(body.buffer) <= bytes_max or body.num_records == 1 for body in bodies)
    assert [time for body in bodies for time in by_kafka_pythons_reader(body)] == times
    places = pa.array(range(0, len(times), 2), pa.int64())
    some = build_record_batches(records, bytes_max, places)
    assert [time for body in some for time in by_kafka_pythons_reader(body)] == times[::2]


@given(st.lists(RECORD, min_size=1, max_size=40), st.data())
def test_chosen_records_are_those_taken(
    rows: list[tuple[bytes | None, bytes | None, bytes | None, bytes]], data: st.DataObject
) -> None:
    records = by_columns(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=60))
    places = pa.array([0, *chosen], pa.int64()).slice(1)
    (body,) = build_record_batches(records, 1 << 30, places)
    assert body.num_records == len(chosen)
    assert body.buffer[BATCH_OVERHEAD:] == by_kafka_python(records.take(places))


@given(st.lists(RECORD, min_size=3, max_size=40))
def test_records_from_the_middle_of_arrays(
    rows: list[tuple[bytes | None, bytes | None, bytes | None, bytes]],
) -> None:
    whole = by_columns(rows)
    assert whole.keys is not None
    records = whole.slice(1, len(rows) - 2)
    assert records.num_records == len(rows) - 2
    (body,) = build_record_batches(records, 1 << 30)
    assert body.buffer[BATCH_OVERHEAD:] == by_kafka_python(records)


JOINED_ROW = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.decimals(-(10**30), 10**30, places=2),
    st.none() | st.dates(),
    st.text(max_size=100),
)


def joined(rows: list[tuple[int, Decimal | None, dt.date | None, str]]) -> Records:
    """Records whose values, and one of whose headers, are not put together yet."""
    numbers, amounts, days, texts = (list(column) for column in zip(*rows, strict=True))
    members = [
        pa.array(numbers, pa.int64()),
        pa.array(amounts, pa.decimal128(38, 2)),
        pa.array(days, pa.date32()),
        pa.array(texts, pa.string()),
    ]
    values = json_objects_joined(["a", "größe", "c", "d"], members)
    ids = JoinedText(["id-", whole_numbers(members[0])], len(rows))
    return Records(None, values, (("id", ids), ("constant", b"all")), 7)


@given(st.lists(JOINED_ROW, min_size=3, max_size=60), st.integers(400, 3_000), st.data())
def test_values_that_are_not_put_together_give_the_same_batches(
    rows: list[tuple[int, Decimal | None, dt.date | None, str]],
    bytes_max: int,
    data: st.DataObject,
) -> None:
    records = joined(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=60))
    for places in (None, pa.array(chosen, pa.int64())):
        bodies = list(build_record_batches(records, bytes_max, places))
        assert bodies == list(build_record_batches(records.whole(), bytes_max, places))
    part = records.slice(1, len(rows) - 2)
    (body,) = build_record_batches(part, 1 << 30)
    assert body.buffer[BATCH_OVERHEAD:] == by_kafka_python(part)
    bounds, sizes = measure_records(records), measure_records(records.whole())
    assert pc.all(pc.greater_equal(bounds, sizes)).as_py()


@given(st.lists(st.lists(RECORD, min_size=1, max_size=30), min_size=2, max_size=6))
def test_a_buffer_that_is_used_again_has_no_old_bytes(
    batches: list[list[tuple[bytes | None, bytes | None, bytes | None, bytes]]],
) -> None:
    spares: list[bytearray] = []

    def spare() -> bytearray | None:
        return spares.pop() if spares else None

    for rows in batches:
        (fresh,) = build_record_batches(by_columns(rows), 1 << 30)
        (body,) = build_record_batches(by_columns(rows), 1 << 30, None, spare)
        assert body == fresh
        body.buffer[:] = b"\xff" * len(body.buffer)
        spares.append(body.buffer)


@pytest.mark.parametrize("bytes_max", [1, 500, 10_000])
def test_records_are_cut_as_batches_hold_them(bytes_max: int) -> None:
    values = pa.array([b"x" * (i * 7919 % 900) for i in range(200)], pa.binary())
    records = Records(None, values, (), 5)
    found = list(split_by_bytes(records, bytes_max))
    assert [v for part in found for v in part.whole_values().to_pylist()] == values.to_pylist()
    for part in found:
        assert pc.sum(measure_records(part)).as_py() <= bytes_max or part.num_records == 1
    assert not list(split_by_bytes(records.slice(0, 0), bytes_max))


def test_many_records_without_keys_or_headers() -> None:
    values = pa.array([b"x" * (i % 200) for i in range(70_000)], pa.binary())
    records = Records(None, values, (), 5)
    first, second = build_record_batches(records, 1 << 30)
    assert (first.num_records, second.num_records) == (65_536, 4_464)
    head = Records(None, values.slice(0, 65_536), (), 5)
    assert first.buffer[BATCH_OVERHEAD:] == by_kafka_python(head)


@given(st.lists(RECORD, min_size=1, max_size=60), st.integers(400, 3_000))
def test_batches_are_in_order_and_within_the_bound(
    rows: list[tuple[bytes | None, bytes | None, bytes | None, bytes]], bytes_max: int
) -> None:
    records = by_columns(rows)
    bodies: list[Body] = list(build_record_batches(records, bytes_max))
    assert sum(body.num_records for body in bodies) == len(rows)
    sizes, at = measure_records(records).to_pylist(), 0
    for body in bodies:
        size = len(body.buffer)
        assert size <= bytes_max or body.num_records == 1
        assert size <= sum(sizes[at : at + body.num_records])
        at += body.num_records
