"""A run of files and versions is encoded to the bytes that its files give one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sinks.formats.load import load_encoder
from sinks.jsonl import format_batch
from sinks.shared.encode_ahead import slice_batch
from tailer.changes import CHANGE_TYPES, ChangeBatch, Origin, concat_batches
from tailer.delta.arrow_types import VARIANT
from tailer.errors import CorruptRow
from tailer.sink.encoder import Records
from tailer.testing.batches import change_batch, change_span
from tests.sinks.formats import FORMATS, ROWS, SCHEMA, MemoryRegistry
from tests.support.extent import examples

#: Columns of each kind of encoder; the variant has no fast one.
NARROW = pa.schema([SCHEMA.field(name) for name in ("id", "string", "timestamp", "map", "variant")])


@st.composite
def files(draw: st.DrawFn, kinds: tuple[str, ...], *, row_ids: bool) -> list[ChangeBatch]:
    """The batches of several files, in one version or more."""
    found: list[ChangeBatch] = []
    version, index, stamp = draw(st.integers(0, 9)), 0, 1_767_225_600_000
    for number in range(draw(st.integers(1, 5))):
        starts_version = draw(st.booleans())
        if found and starts_version:
            found[-1] = ended(found[-1])
            version, index = version + draw(st.integers(1, 99)), 0
            stamp += draw(st.sampled_from([0, 1, 86_400_000]))
        rows = [
            {**draw(st.sampled_from(ROWS)), "_change_type": draw(st.sampled_from(kinds))}
            for _ in range(draw(st.integers(1, 3)))
        ]
        place: dict[str, Any] = {"version": version, "index": index, "timestamp_ms": stamp}
        found.append(from_file(rows, f"part-{number}.parquet", draw, row_ids=row_ids, **place))
        index += len(rows)
    found[-1] = ended(found[-1])
    return found


def from_file(
    rows: list[dict[str, Any]], path: str, draw: st.DrawFn, *, row_ids: bool, **place: Any
) -> ChangeBatch:
    batch = change_batch(NARROW, rows, path=path, **place)
    assert batch.file is not None
    origins: list[Origin] = ["files", "row_ids"]
    origin = draw(st.sampled_from(origins))
    ids = pa.array(range(7, 7 + len(rows)), pa.int64()) if row_ids else None
    return structs.replace(batch, file=structs.replace(batch.file, origin=origin), row_ids=ids)


def ended(batch: ChangeBatch) -> ChangeBatch:
    return structs.replace(batch, next_offset=batch.offset.next_version(batch.timestamp_ms))


def as_paired(batch: ChangeBatch) -> ChangeBatch:
    """The batch as a feed that pairs updates gives it, if it has none."""
    nothing = pa.nulls(batch.num_rows, pa.struct(list(NARROW)))
    return structs.replace(batch, before=nothing, indices=batch.row_indices())


def record_list(records: Records) -> list[tuple[Any, ...]]:
    """Each record with its key, value, headers and time."""
    count = records.num_records
    keys = [None] * count if records.keys is None else records.keys.to_pylist()
    times = records.timestamp_ms
    stamps = [times] * count if isinstance(times, int) else times.to_pylist()
    columns = [
        (name, [value] * count if isinstance(value, bytes) else value.cast("binary").to_pylist())
        for name, value in records.whole_headers()
    ]
    headers = [
        tuple((name, values[i]) for name, values in columns if values[i] is not None)
        for i in range(count)
    ]
    return list(zip(keys, records.whole_values().to_pylist(), headers, stamps, strict=True))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_the_records_of_a_run_are_those_of_its_files(name: str, data: st.DataObject) -> None:
    kind, options = FORMATS[name]
    options = {**options, "key": ["id", "string"], "tombstones": True}
    common = {"name": "feed", "topic": "orders", "table": "orders"}
    encoder = load_encoder(kind, {**common, **options}, MemoryRegistry())
    batches = data.draw(files(("insert", "delete"), row_ids=data.draw(st.booleans())))
    alone = [as_paired(batch) if encoder.paired else batch for batch in batches]
    expected = [each for batch in alone for each in record_list(encoder.encode(batch))]
    assert record_list(encoder.encode(concat_batches(batches))) == expected


@settings(max_examples=examples(20))
@given(files(CHANGE_TYPES, row_ids=True))
def test_the_lines_of_a_run_are_those_of_its_files(batches: list[ChangeBatch]) -> None:
    every: Any = {"ids": True, "origin": True, "row_ids": True}
    expected = b"".join(bytes(format_batch(batch, **every)) for batch in batches)
    assert bytes(format_batch(concat_batches(batches), **every)) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_an_invalid_variant_names_its_file(name: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", VARIANT)])
    broken = {"value": b"\xff", "metadata": b"\x01\x00\x00"}
    batches = [
        change_batch(schema, [{"id": 1, "v": v}], version=i, path=f"{i}.parquet", last=True)
        for i, v in enumerate([None, None, broken, None])
    ]
    kind, options = FORMATS[name]
    common = {"name": "feed", "topic": "orders", "table": "orders"}
    encoder = load_encoder(kind, {**common, **options}, MemoryRegistry())
    with pytest.raises(CorruptRow) as caught:
        encoder.encode(concat_batches(batches))
    assert (caught.value.version, caught.value.path) == (2, "2.parquet")


def cut(run: ChangeBatch, rows_max: int, bytes_max: int) -> list[list[tuple[int, int]]]:
    """The slices of a run: each part's version and number of rows."""
    return [
        [(each.version, each.num_rows) for each in piece.by_file()]
        for piece in slice_batch(run, rows_max, bytes_max)
    ]


def test_a_run_is_cut_between_versions_then_between_files_and_within_a_file_last() -> None:
    one = {"id": 1, "v": "x" * 100}
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    run = change_span(schema, [[[one] * 2], [[one], [one] * 2], [[one]], [[one], [one] * 7]])
    assert cut(run, 14, 1 << 20) == [[(1, 2), (2, 1), (2, 2), (3, 1), (4, 1), (4, 7)]]
    assert cut(run, 6, 1 << 20) == [
        [(1, 2), (2, 1), (2, 2), (3, 1)], [(4, 1)], [(4, 6)], [(4, 1)]
    ]  # fmt: skip
    assert cut(run, 4, 1 << 20)[:2] == [[(1, 2)], [(2, 1), (2, 2), (3, 1)]]
    bytes_max = run.rows.nbytes // 2
    for piece in slice_batch(run, 100, bytes_max):
        assert piece.rows.nbytes <= bytes_max
    for piece in slice_batch(run, 3, 1 << 20):
        assert piece.num_rows <= 3


def test_a_file_of_many_bytes_among_small_ones_is_cut_as_if_it_were_alone() -> None:
    schema = pa.schema([("v", pa.string())])
    small, large = [{"v": "x"}] * 3, [{"v": "y" * 1000}] * 3
    run = change_span(schema, [[small], [small, large, small], [small]])
    pieces = cut(run, 100, 1500)
    assert pieces.count([(2, 1)]) == 3
    assert [rows for piece in pieces for _, rows in piece] == [3, 3, 1, 1, 1, 3, 3]
