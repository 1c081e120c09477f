"""A file's columns as a Delta schema's: found by name or id, widened, and refused by name."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailer.decode.naming import translate_schema
from tailer.decode.project import FileFields, find_field, make_converter
from tailer.delta.arrow_types import VARIANT, arrow_type
from tailer.delta.schema import DataType, StructField, StructType, parse_schema
from tailer.errors import CorruptLog, CorruptRow
from tests.support.feeds import refusal


def delta(data_type: Any, **metadata: Any) -> StructField:
    field = {"name": "c", "type": data_type, "metadata": metadata}
    return parse_schema(json.dumps({"type": "struct", "fields": [field]})).fields[0]


def mapped(name: str, data_type: Any, number: int) -> dict[str, Any]:
    names = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{name}"}
    return {"name": name, "type": data_type, "metadata": names}


def converted(array: pa.Array, target: Any, mapping: str = "none") -> pa.Array:
    data_type: DataType = delta(target).type
    found = make_converter(array.type, data_type, mapping, "c")(array)
    found.validate(full=True)
    assert found.type == arrow_type(data_type)
    return found


def with_id(name: str, number: int, data_type: pa.DataType | None = None) -> pa.Field:
    metadata = {"PARQUET:field_id": str(number)}
    return pa.field(name, data_type or pa.int64(), metadata=metadata)


FILE_FIELDS = FileFields([with_id("a", 1), with_id("col-b", 2), with_id("C", 3)])


@pytest.mark.parametrize(
    ("name", "metadata", "mapping", "index"),
    [
        ("a", {}, "none", 0),
        ("c", {}, "none", 2),
        ("b", {}, "none", None),
        ("b", {"delta.columnMapping.physicalName": "col-b"}, "none", None),
        ("b", {"delta.columnMapping.physicalName": "col-b"}, "name", 1),
        ("x", {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "a"}, "id", 1),
        ("a", {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "a"}, "id", None),
    ],
)
def test_a_column_is_found_by_name_physical_name_or_id(
    name: str, metadata: dict[str, Any], mapping: str, index: int | None
) -> None:
    wanted = StructField(name, delta("long").type, metadata=metadata)
    found = find_field(FILE_FIELDS, wanted, mapping)
    assert (found and found[0]) == index


def test_the_exact_name_wins_over_one_in_another_case() -> None:
    fields = [pa.field("ID", pa.int64()), pa.field("id", pa.int64()), pa.field("Id", pa.int64())]
    wanted = StructField("id", delta("long").type)
    found = find_field(FileFields(fields), wanted, "none")
    assert found is not None
    assert found[0] == 1


def test_a_column_that_two_of_the_file_may_be_is_refused() -> None:
    """It would be null in every row, or one of them by chance."""
    long, other = pa.field("ID", pa.int64()), pa.field("Id", pa.int64())
    for mapping in ("none", "name"):
        with pytest.raises(CorruptLog, match="has the columns 'ID' and 'Id', and which"):
            find_field(FileFields([long, other]), StructField("id", delta("long").type), mapping)
    number = {b"PARQUET:field_id": b"7"}
    same = FileFields([long.with_metadata(number), other.with_metadata(number)])
    wanted = StructField("id", delta("long").type, metadata={"delta.columnMapping.id": 7})
    with pytest.raises(CorruptLog, match="has the columns 'ID' and 'Id', and which"):
        find_field(same, wanted, "id")
    with pytest.raises(CorruptLog, match="has the columns 'ID' and 'ID', and which"):
        find_field(FileFields([long, long]), wanted, "none")


@pytest.mark.parametrize("nested", [False, True])
def test_ids_that_a_file_lacks_are_not_nulls(*, nested: bool) -> None:
    column = {"delta.columnMapping.id": 7, "delta.columnMapping.physicalName": "x"}
    wanted = StructField("x", delta("long").type, metadata=column)
    bare = pa.field("x", pa.int64())

    def look() -> None:
        if nested:
            make_converter(pa.struct([bare]), StructType((wanted,)), "id", "s")
        else:
            find_field(FileFields([bare]), wanted, "id")

    with pytest.raises(CorruptLog, match="no field ids, and the column 'x' is found by its id"):
        look()
    assert find_field(FileFields([]), wanted, "id") is None
    gone = StructField("x", wanted.type, metadata={**column, "delta.columnMapping.id": None})
    assert find_field(FileFields([bare]), gone, "id") is None, "a column that no file can have"


@pytest.mark.parametrize(
    ("values", "source", "target", "expected"),
    [
        ([-128, None], pa.int8(), "short", [-128, None]),
        ([-128, None], pa.int8(), "integer", [-128, None]),
        ([127], pa.int16(), "integer", [127]),
        ([1, None], pa.int32(), "long", [1, None]),
        ([1], pa.int8(), "double", [1.0]),
        ([2**31 - 1], pa.int32(), "double", [2147483647.0]),
        ([0.5, None], pa.float32(), "double", [0.5, None]),
        ([7], pa.int32(), "decimal(12,2)", [Decimal("7.00")]),
        ([7], pa.int8(), "decimal(10,0)", [Decimal(7)]),
        ([2**62], pa.int64(), "decimal(20,0)", [Decimal(2**62)]),
        ([Decimal("1.50")], pa.decimal128(5, 2), "decimal(10,4)", [Decimal("1.5000")]),
        ([dt.date(2024, 1, 2)], pa.date32(), "timestamp_ntz",
         [dt.datetime(2024, 1, 2)]),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_every_widening_of_the_protocol_is_read(
    values: list[Any], source: pa.DataType, target: str, expected: list[Any]
) -> None:
    assert converted(pa.array(values, source), target).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([5], pa.int32(), "byte"),
        ([5], pa.int32(), "short"),
        (["x"], pa.large_string(), "string"),
        ([b"x"], pa.binary(), "string"),
        ([b"x"], pa.large_binary(), "binary"),
        (["x"], pa.string(), "binary"),
        ([None], pa.null(), "long"),
        ([b"1234", None], pa.binary(4), "binary"),
        ([255, None], pa.uint8(), "short"),
        ([65_535], pa.uint16(), "integer"),
        ([2**32 - 1], pa.uint32(), "long"),
        ([127, None], pa.uint8(), "byte"),
        ([32_767], pa.uint16(), "short"),
        ([2**31 - 1], pa.uint32(), "integer"),
        ([2**63 - 1], pa.uint64(), "long"),
        ([[2**31 - 1, None]], pa.list_(pa.uint32()), {"type": "array", "elementType": "integer"}),
        ([2**64 - 1], pa.uint64(), "decimal(20,0)"),
        ([[1, None], None], pa.list_(pa.uint8(), 2), {"type": "array", "elementType": "short"}),
    ],
)
def test_every_older_physical_form_is_read(
    values: list[Any], source: pa.DataType, target: Any
) -> None:
    found = converted(pa.array(values, source), target).to_pylist()
    assert [v.encode() if isinstance(v, str) else v for v in found] == [
        v.encode() if isinstance(v, str) else v for v in values
    ]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_of_any_unit_are_microseconds(unit: str, zone: str | None) -> None:
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC if zone else None)
    array = pa.array([moment, None], pa.timestamp(unit, zone))
    assert converted(array, "timestamp" if zone else "timestamp_ntz").to_pylist() == [moment, None]


def test_a_timestamp_that_lost_its_utc_flag_is_in_utc() -> None:
    array = pa.array([0], pa.timestamp("us"))
    assert converted(array, "timestamp").to_pylist() == [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array(['{"a": 1}', None], pa.json_(pa.string())), "string"),
        (pa.array([b"0123456789abcdef", None], pa.uuid()), "binary"),
    ],
)
def test_what_arrow_knows_as_a_type_of_its_own_is_what_it_is_stored_as(
    array: pa.Array, target: str
) -> None:
    assert converted(array, target).to_pylist() == array.storage.to_pylist()


def test_dictionaries_are_decoded() -> None:
    array = pa.array(["x", "y", None, "x"]).dictionary_encode()
    assert converted(array, "string").to_pylist() == ["x", "y", None, "x"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), "long"),
        (pa.int64(), "integer"),
        (pa.int64(), "double"),
        (pa.float64(), "float"),
        (pa.int32(), "string"),
        (pa.int64(), "timestamp"),
        (pa.bool_(), "integer"),
        (pa.list_(pa.int64()), "long"),
        (pa.int64(), {"type": "array", "elementType": "long"}),
        (pa.int64(), {"type": "map", "keyType": "string", "valueType": "long"}),
        (pa.int64(), {"type": "struct", "fields": []}),
        (pa.int64(), "variant"),
        (pa.list_(pa.string()), {"type": "array", "elementType": "long"}),
    ],
    ids=str,
)
def test_a_type_that_no_widening_explains_is_refused_by_column(
    source: pa.DataType, target: Any
) -> None:
    message = refusal(lambda: make_converter(source, delta(target).type, "none", "c"), CorruptRow)
    assert "'c" in message
    assert "overwrite" in message


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([300], pa.int32(), "byte"),
        ([128], pa.uint8(), "byte"),
        ([2**15], pa.uint16(), "short"),
        ([2**31], pa.uint32(), "integer"),
        ([2**63], pa.uint64(), "long"),
        ([Decimal("123.45")], pa.decimal128(5, 2), "decimal(4,2)"),
        ([Decimal("1.23")], pa.decimal128(5, 2), "decimal(5,1)"),
        ([1_000_000_001], pa.timestamp("ns", "UTC"), "timestamp"),
        ([2**62], pa.timestamp("s", "UTC"), "timestamp"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_never_changed(
    values: list[Any], source: pa.DataType, target: str
) -> None:
    message = refusal(lambda: converted(pa.array(values, source), target), CorruptRow)
    assert "'c'" in message
    assert target in message


STRUCT = {"type": "struct", "fields": [
    {"name": "x", "type": "long"}, {"name": "new", "type": "string"},
    {"name": "y", "type": "double"},
]}  # fmt: skip
OLD = pa.struct([("y", pa.float32()), ("x", pa.int32()), ("gone", pa.string())])
OLD_ROWS = [{"y": 0.5, "x": 1, "gone": "z"}, None, {"y": None, "x": 2, "gone": None}]
NEW_ROWS = [{"x": 1, "new": None, "y": 0.5}, None, {"x": 2, "new": None, "y": None}]


def nested(rows: Sequence[Any], shape: str) -> list[Any]:
    match shape:
        case "array":
            return [list(rows), None, [], list(rows[1:])]
        case "map":
            return [[(str(i), row) for i, row in enumerate(rows)], None, []]
    return [{"s": rows[0]}, None, {"s": rows[1]}, {"s": rows[2]}]


def arrow_of(inner: pa.DataType, shape: str) -> pa.DataType:
    match shape:
        case "array":
            return pa.list_(inner)
        case "map":
            return pa.map_(pa.string(), inner)
    return pa.struct([("s", inner)])


def delta_of(inner: Any, shape: str) -> Any:
    match shape:
        case "array":
            return {"type": "array", "elementType": inner}
        case "map":
            return {"type": "map", "keyType": "string", "valueType": inner}
    return {"type": "struct", "fields": [{"name": "s", "type": inner}]}


def test_a_structs_fields_are_reordered_widened_dropped_and_filled_in() -> None:
    assert converted(pa.array(OLD_ROWS, OLD), STRUCT).to_pylist() == NEW_ROWS


@pytest.mark.parametrize("shape", ["array", "map", "struct"])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_nested_structs_are_converted_in_slices_too(shape: str, start: int) -> None:
    array = pa.array(nested(OLD_ROWS, shape), arrow_of(OLD, shape)).slice(start)
    expected = nested(NEW_ROWS, shape)[start:]
    assert converted(array, delta_of(STRUCT, shape)).to_pylist() == expected


@pytest.mark.parametrize("mapping", ["name", "id"])
def test_nested_fields_are_found_by_their_own_physical_name_or_id(mapping: str) -> None:
    target = {"type": "struct", "fields": [mapped("x", "long", 5), mapped("y", "string", 6)]}
    source = pa.struct([with_id("col-y", 6, pa.string()), with_id("col-x", 5, pa.int32())])
    rows = [{"col-y": "a", "col-x": 1}, None]
    for shape in ("array", "struct"):
        wrapped = delta_of(target, shape)
        if shape == "struct":
            wrapped["fields"] = [mapped("s", target, 4)]
            kind = pa.struct([with_id("col-s", 4, source)])
            array = pa.array([{"col-s": row} for row in rows], kind)
            expected: list[Any] = [{"s": {"x": 1, "y": "a"}}, {"s": None}]
        else:
            array = pa.array([rows], pa.list_(source))
            expected = [[{"x": 1, "y": "a"}, None]]
        assert converted(array, wrapped, mapping).to_pylist() == expected


@pytest.mark.parametrize("mapping", ["name", "id"])
def test_a_schema_without_mapping_finds_its_columns_as_they_were_mapped(mapping: str) -> None:
    inner = {"type": "struct", "fields": [mapped("x", "long", 5), mapped("old", "string", 6)]}
    wrapped = {"type": "struct", "fields": [mapped("m", delta_of(inner, "map"), 3)]}
    lists = {"type": "struct", "fields": [mapped("l", delta_of(inner, "array"), 4)]}
    written = StructType((*delta(wrapped).type, *delta(lists).type))  # type: ignore[misc]  # structs
    plain = {
        "type": "struct",
        "fields": [{"name": "new", "type": "long"}, {"name": "X", "type": "long"}],
    }
    fields = [
        {"name": "m", "type": delta_of(plain, "map")},
        {"name": "l", "type": delta_of(plain, "array")},
        {"name": "col-m", "type": "long"},
    ]
    target = parse_schema(json.dumps({"type": "struct", "fields": fields}))
    found = translate_schema(target, written, "none", back=True)
    assert found == target, "the names that users see are the new schema's"
    file = pa.struct([with_id("col-x", 5), with_id("new", 9)])
    in_file = [
        with_id("col-l", 4, pa.list_(file)), with_id("col-m", 3, pa.map_(pa.string(), file))
    ]  # fmt: skip
    places = [find_field(FileFields(in_file), f, mapping) for f in found]
    assert [place and place[0] for place in places] == [1, 0, None]
    array = pa.array([[{"col-x": 1, "new": 2}]], in_file[0].type)
    rows = make_converter(array.type, found.fields[1].type, mapping, "l")(array)
    assert rows.to_pylist() == [[{"new": None, "X": 1}]]


def test_a_nested_mismatch_is_named_by_its_path() -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long"}]}
    source = pa.list_(pa.struct([("x", pa.string())]))
    target: Any = delta(delta_of(inner, "array")).type
    assert "'c.element.x'" in refusal(
        lambda: make_converter(source, target, "none", "c"), CorruptRow
    )


@pytest.mark.parametrize("gone", [pa.int64(), pa.null()])
@pytest.mark.parametrize(
    "rows", [[{"gone": None}, None], [{"gone": None}] * 3, [None] * 11, [None, {"gone": None}] * 5]
)
def test_a_struct_of_nothing_but_dropped_columns_keeps_its_rows_and_nulls(
    rows: list[Any], gone: pa.DataType
) -> None:
    expected: list[Any] = [None if row is None else {} for row in rows]
    void = {"type": "struct", "fields": [{"name": "gone", "type": "void"}]}
    for start in (0, 1):
        array = pa.array(rows, pa.struct([("gone", gone)])).slice(start)
        assert converted(array, void).to_pylist() == expected[start:]
    lists = converted(pa.array([rows], pa.list_(array.type)), delta_of(void, "array"))
    assert lists.to_pylist() == [expected]


ANY_TYPE = [
    "string", "binary", "timestamp", "timestamp_ntz", "date", "decimal(10,2)", "long", "boolean",
    "variant", {"type": "array", "elementType": "string", "containsNull": True},
    {"type": "map", "keyType": "string", "valueType": "decimal(38,0)"},
    {"type": "struct", "fields": [{"name": "x", "type": "variant"}]},
]  # fmt: skip


@pytest.mark.parametrize("target", ANY_TYPE, ids=str)
@pytest.mark.parametrize("shape", ["", "array", "map", "struct"])
def test_a_column_of_the_null_type_is_null_in_any_type_and_at_any_depth(
    target: Any, shape: str
) -> None:
    if not shape:
        assert converted(pa.nulls(3), target).to_pylist() == [None] * 3
        return
    rows = nested([None, None, None], shape)
    array = pa.array(rows, arrow_of(pa.null(), shape))
    assert converted(array, delta_of(target, shape)).to_pylist() == rows


def test_a_char_column_of_the_null_type_is_null() -> None:
    field = delta("string", __CHAR_VARCHAR_TYPE_STRING="char(3)")
    assert make_converter(pa.null(), field.type, "none", "c")(pa.nulls(2)).to_pylist() == [
        None,
        None,
    ]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_are_not_rounded_and_the_remedy_is_named(zone: str | None) -> None:
    array = pa.array([1_000_000_001], pa.timestamp("ns", zone))
    target = "timestamp" if zone else "timestamp_ntz"
    message = refusal(lambda: converted(array, target), CorruptRow)
    assert "'c'" in message
    assert "rewrite the file with timestamps of microseconds" in message


def one_field(name: str, data_type: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": data_type}]}


@pytest.mark.parametrize(
    ("source", "element", "rows", "expected"),
    [
        # The repeated group is the element itself, and pyarrow takes it for the list's own.
        (pa.field("x", pa.int32()), one_field("x", "long"),
         [[1, None], None, []], [[{"x": 1}, {"x": None}], None, []]),
        (pa.field("x", pa.struct([("y", pa.int64())])), one_field("x", one_field("y", "long")),
         [[{"y": 1}, None]], [[{"x": {"y": 1}}, {"x": None}]]),
        # A list of three levels whose struct has a field that is named as its element.
        (pa.field("element", pa.struct([("element", pa.int64())])), one_field("element", "long"),
         [[{"element": 1}, None]], [[{"element": 1}, None]]),
    ],
)  # fmt: skip
def test_a_list_of_two_levels_is_told_from_one_of_three_by_the_schema(
    source: pa.Field, element: Any, rows: list[Any], expected: list[Any]
) -> None:
    array = pa.array(rows, pa.list_(source))
    assert converted(array, delta_of(element, "array")).to_pylist() == expected


def test_a_variants_parts_come_in_one_order() -> None:
    parts = pa.struct([("metadata", pa.binary()), ("value", pa.large_binary())])
    array = pa.array([{"metadata": b"m", "value": b"v"}, None], parts)
    found = converted(array, "variant")
    assert found.type == VARIANT
    assert found.to_pylist() == [{"value": b"v", "metadata": b"m"}, None]


def test_a_struct_of_the_right_type_is_handed_on_as_it_is() -> None:
    array = pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))
    target = StructType((StructField("x", delta("long").type),))
    assert make_converter(array.type, target, "none", "c")(array) is array
