from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tailer.decode.project import make_converter
from tailer.delta.arrow_types import arrow_type
from tailer.delta.char import apply_declared_type, char_length
from tailer.delta.partitions import parse_partition_value
from tailer.delta.schema import parse_schema
from tailer.delta.types import ArrayType, MapType, PrimitiveType, StructField, StructType

STRING = PrimitiveType("string")
NESTED = StructType(
    (
        StructField("a,b", STRING),
        StructField("l", ArrayType(MapType(STRING, STRING, True), True)),
        StructField("n", PrimitiveType("long")),
    )
)


def char(length: int) -> PrimitiveType:
    return PrimitiveType(f"char({length})")


def test_only_char_has_a_length() -> None:
    assert char_length(char(5)) == 5
    assert char_length(STRING) is None
    assert char_length(ArrayType(char(5), True)) is None


def test_the_declared_type_reaches_nested_strings() -> None:
    typed = apply_declared_type(
        NESTED, "struct<`a,b`:char(2),l:array<map<char(3),varchar(4)>>,n:bigint>"
    )
    assert isinstance(typed, StructType)
    # A comma within a name can't be told from one between names: the type is left as it is.
    assert typed == NESTED
    plain = StructType((StructField("a", STRING), *NESTED.fields[1:]))
    typed = apply_declared_type(
        plain, "struct<a:char(2),l:array<map<char(3),varchar(4)>>,n:bigint>"
    )
    assert isinstance(typed, StructType)
    assert [f.type for f in typed] == [
        char(2), ArrayType(MapType(char(3), STRING, True), True), PrimitiveType("long"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "char(x)", "struct<a:char(2)>", "array<char(2)", "int"])
def test_a_text_that_does_not_fit_changes_nothing(text: str) -> None:
    assert apply_declared_type(NESTED, text) == NESTED
    assert apply_declared_type(ArrayType(NESTED, True), text) == ArrayType(NESTED, True)


def test_a_schemas_char_columns_are_padded_when_they_are_read() -> None:
    field = {
        "name": "c",
        "type": {"type": "array", "elementType": "string", "containsNull": True},
        "nullable": True,
        "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "array<char(3)>"},
    }
    [parsed] = parse_schema(json.dumps({"type": "struct", "fields": [field]}))
    assert parsed.type == ArrayType(char(3), True)
    source = arrow_type(parsed.type)
    convert = make_converter(source, parsed.type, "none", "c")
    values = pa.array([["a", "é ", "toolong", None, ""], None], source)
    assert convert(values).to_pylist() == [["a  ", "é  ", "toolong", None, "   "], None]


def test_a_char_partition_value_is_padded() -> None:
    assert parse_partition_value("ab", char(4)).as_py() == "ab  "
    assert parse_partition_value("", char(4)).as_py() is None
