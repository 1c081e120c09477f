"""One data file's changed rows: which, in whose schema, in what portions, and damaged files."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tailer.changes import ChangeFile
from tailer.decode.byte_range import ByteRange
from tailer.decode.file_opening import SMALL_BYTES, check_nested
from tailer.decode.output import build_output_schema
from tailer.decode.rows import (
    DecodedRows,
    DecodeOptions,
    Skip,
    decode_file,
)
from tailer.decode.vectors import ALL_ROWS, RowSelection
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog, CorruptRow, TableError
from tests.support import thrift
from tests.support.feeds import ID, refusal, state

WIDE = pa.schema([("id", pa.int64()), ("s", pa.string()), ("p", pa.int32())])
KINDS = pa.schema([*ID, ("_change_type", pa.string())])


def parquet(rows: Iterable[dict[str, Any]], schema: pa.Schema = ID, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, **options)
    return bytes(sink.getvalue())


def numbers(count: int, group: int = 1000) -> bytes:
    return parquet(({"id": i} for i in range(count)), row_group_size=group)


def order(of: TableState | None = None, **fields: Any) -> ChangeFile:
    defaults: dict[str, Any] = {
        "path": "a.parquet", "location": "a.parquet", "version": 5,
        "timestamp_ms": 1_700_000_000_123, "table_id": "t",
        "state": of or state(), "partition_values": {}, "change_type": "insert", "origin": "files",
    }  # fmt: skip
    return ChangeFile(**{**defaults, **fields})


def decoded(
    data: bytes,
    file: ChangeFile | None = None,
    selection: RowSelection = ALL_ROWS,
    skip: Skip | None = None,
    **options: Any,
) -> list[DecodedRows]:
    source = pa.BufferReader(data)
    found = decode_file(
        source, file or order(), selection, DecodeOptions(**options), skip or Skip()
    )
    batches = list(found)
    for rows in batches:
        rows.batch.validate(full=True)
        assert rows.batch.num_rows == len(rows.positions) > 0, "an empty batch says nothing"
    return batches


def values(batches: list[DecodedRows], column: str = "id") -> list[Any]:
    return [v for rows in batches for v in rows.batch.column(column).to_pylist()]


def positions(batches: list[DecodedRows]) -> list[int]:
    return [p for rows in batches for p in rows.positions.to_pylist()]


def only(*rows: int) -> RowSelection:
    return RowSelection.from_sets(BitMap64(rows), None)


def without(*rows: int) -> RowSelection:
    return RowSelection.from_sets(None, BitMap64(rows))


def test_every_row_has_the_three_metadata_columns_after_its_own() -> None:
    (rows,) = decoded(parquet([{"id": 1}]))
    assert rows.batch.schema == build_output_schema(state())
    assert rows.batch.to_pylist() == [
        {
            "id": 1,
            "_change_type": "insert",
            "_commit_version": 5,
            "_commit_timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
        }
    ]


def test_rows_of_the_selection_come_with_their_positions_in_the_file() -> None:
    found = decoded(numbers(50, 10), selection=only(3, 11, 12, 49))
    assert values(found) == positions(found) == [3, 11, 12, 49]
    left = decoded(numbers(50, 10), selection=without(*range(5, 45)))
    assert values(left) == positions(left) == [*range(5), *range(45, 50)]


def test_a_row_group_without_a_wanted_row_is_never_decoded() -> None:
    data = bytearray(numbers(30, 10))
    group = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(1).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = bytes(group.total_compressed_size)
    assert values(decoded(bytes(data), selection=only(2, 25))) == [2, 25]
    with pytest.raises(TableError):
        decoded(bytes(data), selection=only(2, 15))


@pytest.mark.parametrize("size", [1, 3, 10, 64, 1000])
def test_no_batch_is_larger_than_asked_for(size: int) -> None:
    found = decoded(numbers(100, 30), batch_rows_max=size)
    assert values(found) == list(range(100))
    assert max(rows.batch.num_rows for rows in found) <= size


def test_batches_are_bounded_by_bytes_too() -> None:
    rows = ({"s": random.Random(i).randbytes(500).hex()} for i in range(64))
    data = parquet(rows, pa.schema([("s", pa.string())]))
    found = decoded(data, order(state(pa.schema([("s", pa.string())]))), batch_bytes_max=4000)
    assert len(found) >= 8
    assert (
        len(decoded(data, order(state(pa.schema([("s", pa.string())]))), batch_bytes_max=1)) == 64
    )


@pytest.mark.parametrize("skip", [0, 1, 9, 10, 11, 29, 30, 31])
def test_what_was_delivered_before_is_passed_over(skip: int) -> None:
    counter = Skip(skip)
    found = decoded(numbers(40, 10), selection=without(0, 10, *range(32, 40)), skip=counter)
    kept = [i for i in range(32) if i not in (0, 10)]
    assert values(found) == positions(found) == kept[skip:]
    assert counter.remaining == max(0, skip - len(kept))


def test_a_vector_that_names_rows_beyond_the_file_is_refused() -> None:
    for selection in (only(9, 10), without(10)):
        with pytest.raises(CorruptLog, match="names row 10 of a file that has 10") as refused:
            decoded(numbers(10), selection=selection)
        assert "version 5, a.parquet" in str(refused.value)
    assert values(decoded(numbers(10), selection=only(9))) == [9]


def test_partition_values_come_from_the_log_and_win_over_the_file() -> None:
    file = order(state(WIDE, "p"), partition_values={"p": "7"})
    data = parquet([{"id": 1, "s": "x", "p": 3}, {"id": 2, "s": None, "p": None}], WIDE)
    found = decoded(data, file)
    assert values(found, "p") == [7, 7]
    assert [rows.batch.schema.names[:3] for rows in found] == [["id", "s", "p"]]


@pytest.mark.parametrize("given", [{}, {"P": "7"}, {"q": "7"}])
def test_a_partition_value_that_the_log_lacks_is_no_null_but_refused(given: dict[str, str]) -> None:
    file = order(state(WIDE, "p"), partition_values=given)
    message = refusal(lambda: decoded(numbers(2), file), CorruptLog)
    assert "version 5, a.parquet" in message
    assert "no partition value for the column 'p'" in message
    assert ("'P'" in message) == ("P" in given)
    found = decoded(numbers(2), file, columns=("id",))
    assert values(found) == [0, 1], "what is not asked for is not missed"
    known = order(state(WIDE, "p"), partition_values={"p": None})
    assert values(decoded(numbers(2), known), "p") == [None, None]


def test_early_writers_left_nulls_out_of_the_partition_values_of_cdc_files() -> None:
    columns = pa.schema([*KINDS, ("p", pa.int32())])
    data = parquet([{"id": 1, "_change_type": "insert"}], KINDS)
    partitioned = state(pa.schema([columns.field("id"), columns.field("p")]), "p")
    file = order(partitioned, change_type=None, origin="cdf")
    assert values(decoded(data, file), "p") == [None]
    cased = order(partitioned, change_type=None, origin="cdf", partition_values={"P": "7"})
    assert "'P'" in refusal(lambda: decoded(data, cased), CorruptLog)


def test_a_partition_timestamp_is_read_in_the_zone_that_is_set() -> None:
    schema = pa.schema([*ID, ("t", pa.timestamp("us", "UTC"))])
    file = order(state(schema, "t"), partition_values={"t": "2024-07-01 12:00:00"})
    for zone, hour in (("UTC", 12), ("Europe/Berlin", 10)):
        found = values(decoded(numbers(1), file, writer_timezone=zone), "t")
        assert found == [dt.datetime(2024, 7, 1, hour, tzinfo=dt.UTC)]


def test_a_bad_partition_value_names_version_and_file() -> None:
    file = order(state(WIDE, "p"), partition_values={"p": "seven"})
    message = refusal(lambda: decoded(numbers(1), file), CorruptLog)
    assert "version 5, a.parquet" in message


def test_columns_that_the_file_lacks_are_null() -> None:
    assert values(decoded(numbers(2), order(state(WIDE))), "s") == [None, None]


def test_only_the_columns_asked_for_come_and_in_that_order() -> None:
    data = parquet([{"id": 1, "s": "x", "p": 3}], WIDE)
    (rows,) = decoded(data, order(state(WIDE)), columns=("s", "id"))
    assert rows.batch.schema.names[:2] == ["s", "id"]
    assert rows.batch.schema == build_output_schema(state(WIDE), ("s", "id"))


@pytest.mark.parametrize("selection", [ALL_ROWS, without(0, 4), only(1, 2, 3)])
def test_rows_of_constants_alone_are_counted_too(selection: RowSelection) -> None:
    file = order(state(WIDE, "p"), partition_values={"p": "7"})
    found = decoded(numbers(5, 2), file, selection, columns=("p",), batch_rows_max=2)
    expected = positions(decoded(numbers(5, 2), order(), selection))
    assert positions(found) == expected
    assert values(found, "p") == [7] * len(expected)


def test_a_file_of_no_rows_has_no_changes() -> None:
    assert decoded(numbers(0)) == []


def test_names_that_differ_by_case_alone_meet() -> None:
    data = parquet([{"ID": 4}], pa.schema([("ID", pa.int64())]))
    assert values(decoded(data)) == [4]


def test_a_name_with_a_dot_is_one_column() -> None:
    schema = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    data = parquet([{"a.b": 1, "a": {"b": 2}}], schema)
    (rows,) = decoded(data, order(state(schema)))
    assert rows.batch.to_pylist()[0]["a.b"] == 1
    assert rows.batch.to_pylist()[0]["a"] == {"b": 2}


def test_rows_can_be_cast_to_another_versions_schema() -> None:
    file = order(state(pa.schema([("id", pa.int32())])))
    data = parquet([{"id": 1}], pa.schema([("id", pa.int32())]))
    (rows,) = decoded(data, file, target=state(WIDE))
    assert rows.batch.schema == build_output_schema(state(WIDE))
    assert rows.batch.column("id").to_pylist() == [1]


def test_old_int96_timestamps_are_read_in_full() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    moments = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC), None]
    modern = [dt.datetime(2024, 7, 1, 1, 2, 3, 456_789, tzinfo=dt.UTC), None]
    data = parquet(({"t": m} for m in modern), schema, use_deprecated_int96_timestamps=True)
    assert values(decoded(data, order(state(schema))), "t") == modern
    data = parquet(({"t": m} for m in moments), schema)
    assert values(decoded(data, order(state(schema))), "t") == moments


def cdc(*kinds: str | None, **fields: Any) -> tuple[bytes, ChangeFile]:
    data = parquet(({"id": i, "_change_type": k} for i, k in enumerate(kinds)), KINDS,
                   row_group_size=2)  # fmt: skip
    return data, order(change_type=None, origin="cdf", **fields)


IMAGES = ("update_preimage", "update_postimage", "delete", "insert", "insert")


def test_a_cdc_file_says_row_by_row_what_each_change_is() -> None:
    found = decoded(*cdc(*IMAGES))
    assert values(found, "_change_type") == list(IMAGES)
    assert found[0].batch.schema == build_output_schema(state()), (
        "its own kind column is not doubled"
    )


@pytest.mark.parametrize("skip", range(4))
def test_some_kinds_of_a_cdc_file_can_be_read_alone(skip: int) -> None:
    data, file = cdc(*IMAGES, kinds=("insert", "update_postimage"))
    found = decoded(data, file, skip=Skip(skip))
    assert values(found) == positions(found) == [1, 3, 4][skip:]


def test_the_images_of_early_writers_are_read_as_what_they_are() -> None:
    data, file = cdc("update_pre", "update_post", "insert", "update_pre", "update_postimage")
    expected = [IMAGES[0], IMAGES[1], "insert", IMAGES[0], IMAGES[1]]
    assert values(decoded(data, file), "_change_type") == expected
    some, file = cdc("update_pre", "update_post", kinds=("update_postimage",))
    assert values(decoded(some, file)) == [1]


@pytest.mark.parametrize("kind", ["upsert", "", None, "INSERT", "update"])
def test_an_unknown_kind_of_change_is_refused(kind: str | None) -> None:
    message = refusal(lambda: decoded(*cdc("insert", kind)), CorruptRow)
    assert repr(kind) in message
    assert "a.parquet" in message


def test_a_cdc_file_without_its_kind_column_is_refused() -> None:
    file = order(change_type=None, origin="cdf")
    assert "_change_type" in refusal(lambda: decoded(numbers(2), file), CorruptRow)


def test_a_column_of_another_type_is_refused_with_version_file_and_column() -> None:
    data = parquet([{"id": "x"}], pa.schema([("id", pa.string())]))
    message = refusal(lambda: decoded(data), CorruptRow)
    assert message.startswith("version 5, a.parquet: the column 'id' is string in the file")


@pytest.mark.parametrize("length", [0, 3, 4, 11, 12, 100, -1, -4, -8, -9])
def test_a_truncated_data_file_is_refused_with_version_and_file(length: int) -> None:
    data = numbers(1000, 100)
    message = refusal(lambda: decoded(data[:length]), CorruptLog)
    assert message.startswith("version 5, a.parquet: the data file can't be read (")


def test_what_follows_the_wanted_rows_in_a_row_group_is_never_decoded() -> None:
    ids = ({"id": i} for i in range(100_000))
    data = bytearray(parquet(ids, use_dictionary=False, data_page_size=4096))
    meta = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata
    end = meta.row_group(0).column(0).total_compressed_size
    data[end // 2 : end - 100] = bytes(end - 100 - end // 2)
    with pytest.raises(TableError):
        decoded(bytes(data))
    head = ByteRange(0, len(data) // 10, exact=True)
    source = pa.BufferReader(bytes(data))
    options = DecodeOptions(batch_rows_max=1000)
    found = decode_file(source, order(), ALL_ROWS, options, Skip(), head)
    assert values([*found]) == list(range(100_000 * head.end // len(data)))


def test_a_damaged_data_file_is_refused_or_read_and_never_crashes() -> None:
    source, refused = random.Random(5), 0
    schema = pa.schema([*ID, ("s", pa.string()), ("l", pa.list_(pa.int32()))])
    rows = [{"id": i, "s": f"text {i}", "l": [i, None]} for i in range(200)]
    whole = parquet(rows, schema, row_group_size=64, compression="zstd")
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(source.randint(1, 3)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        try:
            list(
                decode_file(
                    pa.BufferReader(bytes(data)), order(state(schema)), without(3), DecodeOptions(),
                    Skip(70),
                )
            )  # fmt: skip
        except TableError:
            refused += 1
    assert refused > 0


NULLS = pa.schema([
    ("id", pa.int64()), ("s", pa.null()), ("l", pa.list_(pa.null())), ("n", pa.struct([
        ("a", pa.null()), ("b", pa.int64())])), ("m", pa.map_(pa.string(), pa.null())),
    ("v", pa.struct([("gone", pa.null())])),
])  # fmt: skip
TYPED = pa.schema([
    ("id", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.timestamp("us", "UTC"))),
    ("n", pa.struct([("a", pa.decimal128(10, 2)), ("b", pa.int64())])),
    ("m", pa.map_(pa.string(), pa.binary())), ("v", pa.struct([])),
])  # fmt: skip


@pytest.mark.parametrize("selection", [ALL_ROWS, only(1, 2), without(1)])
def test_columns_of_the_null_type_are_read_from_a_file_too(selection: RowSelection) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "s": None, "l": [None, None], "n": {"a": None, "b": 2}, "m": [("k", None)],
         "v": {"gone": None}},
        {"id": 2, "s": None, "l": [], "n": None, "m": [], "v": None},
        {"id": 3, "s": None, "l": None, "n": {"a": None, "b": None}, "m": None, "v": {}},
    ]  # fmt: skip
    found = decoded(parquet(rows, NULLS), order(state(TYPED)), selection)
    expected = [dict(row, v=row["v"] and {}) for row in rows]
    expected[0]["v"] = expected[2]["v"] = {}
    kept = [expected[at] for at in positions(found)]
    got = [row for rows in found for row in rows.batch.select(TYPED.names).to_pylist()]
    assert got == kept


def test_a_list_of_two_levels_with_structs_of_one_field_is_read_from_a_file() -> None:
    in_file = pa.schema([("l", pa.list_(pa.field("x", pa.int32())))])
    table = pa.schema([("l", pa.list_(pa.struct([("x", pa.int32())])))])
    data = parquet(
        [{"l": [1, None]}, {"l": None}, {"l": []}], in_file, use_compliant_nested_type=False
    )
    found = values(decoded(data, order(state(table)), without(1)), "l")
    assert found == [[{"x": 1}, {"x": None}], []]


@pytest.mark.parametrize("time", [2**62, -(2**62)])
def test_a_time_that_does_not_fit_is_an_error_of_the_table(time: int) -> None:
    with pytest.raises(TableError):
        decoded(numbers(1), order(timestamp_ms=time))


VIEWS = pa.schema(
    [("id", pa.int64()), ("s", pa.string_view()), ("l", pa.list_view(pa.string_view()))]
)
LISTS = pa.schema([("id", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
VIEWS_IN_LISTS = pa.schema([*VIEWS.remove(2), ("l", pa.list_(pa.string_view()))])


def of_views(rows: list[dict[str, Any]]) -> bytes:
    try:
        return parquet(rows, VIEWS)
    except pa.ArrowNotImplementedError:  # older versions of pyarrow write no list_view
        return parquet(rows, VIEWS_IN_LISTS)


LONG = "a text that is too long to be kept within its view"


def test_rows_of_views_are_measured_too() -> None:
    """More rows than the sample has by which the size of batches is chosen."""
    rows = [{"id": i, "s": f"{i} {LONG}", "l": [str(i)] * 3} for i in range(600)]
    found = decoded(of_views(rows), order(state(LISTS)), batch_bytes_max=20_000)
    assert values(found, "s") == [row["s"] for row in rows]
    assert 3 <= len(found) < 12


@pytest.mark.parametrize("selection", [ALL_ROWS, only(1, 3), without(0, 2)])
def test_views_are_read_as_what_they_show(selection: RowSelection) -> None:
    rows = [{"id": i, "s": f"{i} {LONG}", "l": [str(i)] * i} for i in range(4)]
    found = decoded(of_views(rows), order(state(LISTS)), selection)
    assert values(found, "s") == [rows[i]["s"] for i in positions(found)]
    assert values(found, "l") == [rows[i]["l"] for i in positions(found)]
    assert positions(found)[-1] == 3


def test_views_of_a_large_file_are_read_without_the_writer_s_types() -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string_view())])
    rows = [{"id": i, "s": None if i % 7 == 0 else f"{i} {LONG}"} for i in range(20_000)]
    data = parquet(rows, schema, use_dictionary=False, compression="none")
    assert len(data) > SMALL_BYTES
    plain = pa.schema([("id", pa.int64()), ("s", pa.string())])
    found = decoded(data, order(state(plain)))
    assert values(found, "s") == [row["s"] for row in rows]


def test_change_types_in_views_are_read() -> None:
    schema = pa.schema([("id", pa.int64()), ("_change_type", pa.string_view())])
    rows = [{"id": i, "_change_type": kind} for i, kind in enumerate(["insert", "delete"])]
    found = decoded(parquet(rows, schema), order(change_type=None, kinds=("delete",)))
    assert values(found, "_change_type") == ["delete"]


@pytest.mark.parametrize("rows", [1000, 200_000])
def test_a_page_that_does_not_fit_its_checksum_is_refused_unless_told_not_to(rows: int) -> None:
    data = parquet(({"id": i} for i in range(rows)), write_page_checksum=True, compression="none",
                   use_dictionary=False)  # fmt: skip
    at = data.index((500).to_bytes(8, "little"))
    assert values(decoded(data)) == list(range(rows))
    damaged = data[:at] + b"\xf5" + data[at + 1 :]
    assert "CRC" in refusal(lambda: decoded(damaged), CorruptLog)
    assert values(decoded(damaged, page_checksums=False))[500] == 501


def test_a_file_with_two_columns_of_one_name_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), sink)
    assert "a.parquet" in refusal(lambda: decoded(bytes(sink.getvalue())), CorruptLog)


@pytest.mark.parametrize("claimed", [300, 1500, 2**40])
def test_a_row_group_that_lacks_rows_is_refused(claimed: int) -> None:
    """The footer says so many rows, and the pages have a thousand."""
    good = numbers(1000, 1000)
    size = int.from_bytes(good[-8:-4], "little")
    fields, _ = thrift.read_struct(good[-8 - size : -8], 0, 0)
    (group,) = thrift.value(fields, thrift.ROW_GROUPS)[1]
    for holder, number in ((fields, 3), (group, 3)):
        next(f for f in holder if f[0] == number)[2] = claimed << 1
    out = bytearray()
    thrift.write(out, thrift.STRUCT, fields)
    data = good[: -8 - size] + out + len(out).to_bytes(4, "little") + b"PAR1"
    try:
        found = values(decoded(data))
    except TableError as e:
        assert "a.parquet" in str(e)  # noqa: PT017  # either way is right
    else:
        assert found == list(range(claimed))


@pytest.mark.parametrize("nested", [False, True])
def test_a_map_of_other_numbers_of_keys_and_values_is_refused(*, nested: bool) -> None:
    """As damaged pages give one: pyarrow itself calls it valid."""
    kind = pa.map_(pa.string(), pa.int64())
    entries = pa.Array.from_buffers(
        kind.field(0).type, 2, [None], children=[pa.array(["a", "b"]), pa.array([1, 2, 3])]
    )
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    uneven = pa.Array.from_buffers(kind, 1, [None, offsets], children=[entries])
    uneven.validate(full=True)
    if nested:
        uneven = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([uneven], ["m"]))
    with pytest.raises(CorruptLog, match="a key without a value"):
        check_nested(pa.record_batch({"m": uneven}))
