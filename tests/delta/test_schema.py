"""``schemaString``: every type of the protocol, names under column mapping, and bad schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tailer.delta.arrow_types import VARIANT, arrow_schema, arrow_type
from tailer.delta.schema import (
    ArrayType,
    MapType,
    PrimitiveType,
    StructType,
    is_variant,
    parse_schema,
)
from tailer.errors import CorruptLog, TableError, UnsupportedTable
from tests.support.feeds import refusal


def field(name: str, data_type: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def schema(*fields: dict[str, Any]) -> StructType:
    return parse_schema(json.dumps(struct(*fields)))


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("decimal( 5 , 0 )", pa.decimal128(5, 0)),
        ("decimal", pa.decimal128(10, 0)),
        ("varchar(20)", pa.string()),
        ("char(3)", pa.string()),
        ("variant", VARIANT),
    ],
)
def test_every_primitive_has_its_arrow_type(name: str, arrow: pa.DataType) -> None:
    assert arrow_schema(schema(field("c", name))) == pa.schema([("c", arrow)])


def test_nested_types_keep_their_shape() -> None:
    parsed = schema(
        field("a", {"type": "array", "elementType": "long", "containsNull": False}),
        field("m", {"type": "map", "keyType": "string", "valueType": struct(field("x", "date"))}),
    )
    assert [f.type for f in parsed] == [
        ArrayType(PrimitiveType("long"), contains_null=False),
        MapType(PrimitiveType("string"), schema(field("x", "date")), value_contains_null=True),
    ]
    assert arrow_type(parsed) == pa.struct(
        [
            pa.field("a", pa.list_(pa.field("element", pa.int64()))),
            pa.field("m", pa.map_(pa.string(), pa.struct([("x", pa.date32())]))),
        ]
    )


def test_a_type_that_a_program_has_defined_is_what_it_is_stored_as() -> None:
    point = {"type": "array", "elementType": "double", "containsNull": False}
    defined = {"type": "udt", "class": "Point", "pyClass": "p.Point", "sqlType": point}
    assert schema(field("c", defined)) == schema(field("c", point))


def test_void_columns_are_dropped_also_nested_ones() -> None:
    parsed = schema(
        field("a", "void"), field("b", "long"), field("s", struct(field("n", "null"))),
    )  # fmt: skip
    assert parsed.names == ["b", "s"]
    assert parsed.fields[1].type == StructType(())


def test_physical_name_and_id_come_from_the_fields_metadata() -> None:
    mapping = {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 4}
    mapped, plain = schema(field("a", "long", **mapping), field("b", "long"))
    assert (mapped.name, mapped.physical_name, mapped.field_id) == ("a", "col-1", 4)
    assert (plain.name, plain.physical_name, plain.field_id) == ("b", "b", None)


def test_a_variant_is_known_by_its_name_alone() -> None:
    parts = struct(field("value", "binary"), field("metadata", "binary"))
    variant, similar = schema(field("v", "variant"), field("s", parts))
    assert is_variant(variant.type)
    assert not is_variant(similar.type)


@pytest.mark.parametrize(
    "data_type", ["geometry", "interval day", "timestamp_ns", "", {"type": "union"}, {}]
)
def test_a_type_that_is_not_known_is_refused_by_name(data_type: Any) -> None:
    message = refusal(lambda: schema(field("c", data_type)), UnsupportedTable)
    wanted = data_type.get("type") if isinstance(data_type, dict) else data_type
    assert repr(wanted) in message


@pytest.mark.parametrize(
    "name", ["decimal(39,0)", "decimal(0,0)", "decimal(5,6)", "decimal(5,-1)", "decimal(9999,1)"]
)
def test_a_decimal_beyond_the_protocols_bounds_is_refused(name: str) -> None:
    with pytest.raises(CorruptLog, match="decimal"):
        arrow_schema(schema(field("c", name)))


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        '"long"',
        "null",
        "3",
        "[]",
        '{"type": "struct"}',
        '{"type": "struct", "fields": 5}',
        '{"type": "struct", "fields": {"a": 1}}',
        '{"type": "struct", "fields": ["a"]}',
        '{"type": "struct", "fields": [null]}',
        '{"type": "struct", "fields": [{"name": "a"}]}',
        '{"type": "struct", "fields": [{"type": "long"}]}',
        '{"type": "struct", "fields": [{"name": 5, "type": "long"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": 5}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "long", "metadata": 5}]}',
        '{"type": "struct", "fields": [{"name": "\\ud800", "type": "long"}]}',
        '{"type": "array"}',
        '{"type": "map", "keyType": "string"}',
        '{"type": ["struct"]}',
        "[" * 200_000,
        f'{{"type": "struct", "fields": [{{"name": "a", "type": "decimal({"9" * 9000},1)"}}]}}',
    ],
    ids=lambda document: document[:50],
)
def test_a_damaged_schema_is_refused_and_never_crashes(document: str) -> None:
    with pytest.raises(TableError):
        parse_schema(document)


def test_nesting_has_a_bound() -> None:
    deep: Any = "long"
    for _ in range(400):
        deep = {"type": "array", "elementType": deep}
    assert "nested deeper" in refusal(lambda: schema(field("c", deep)), CorruptLog)
