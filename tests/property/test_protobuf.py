"""Any values in Protobuf, as Google's own library reads them by the schema that protoc compiled."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sinks.formats.avro_schema import make_avro_name
from sinks.formats.binary_parts import join_parts
from sinks.formats.protobuf_schema import build_fields, find_clash, has_fields
from sinks.formats.protobuf_text import ProtobufSchema, extend_schema, make_schema
from sinks.formats.protobuf_values import message_parts
from tailer.errors import TargetRefused
from tests.property.test_avro import same
from tests.property.test_json import arrays, names, types
from tests.support.protobuf import read_message

pytestmark = pytest.mark.usefixtures("way")
CONTEXT = Context(prec=38)
_EPOCH, _MICROSECOND = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)  # noqa: DTZ001


def as_read(value: Any, data_type: pa.DataType) -> Any:
    """A value of ``to_pylist`` as :func:`read_message` gives it."""
    kinds = pa.types
    if value is None:
        return None
    if kinds.is_list(data_type):
        return [as_read(item, data_type.value_type) for item in value]
    if kinds.is_struct(data_type):
        return {
            make_avro_name(field.name): as_read(value[field.name], field.type)
            for field in data_type
            if not kinds.is_null(field.type)
        }
    if kinds.is_map(data_type):
        return [(as_read(k, data_type.key_type), as_read(v, data_type.item_type)) for k, v in value]
    if kinds.is_decimal(data_type):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    return value


def encoded(array: pa.Array, schema: ProtobufSchema) -> list[bytes]:
    parts = message_parts(schema.fields, [("x", array)])
    found: list[bytes] = join_parts(parts, len(array)).to_pylist()
    assert all(isinstance(value, bytes) for value in found)
    return found


def schema_of(*fields: pa.Field, package: str = "a.b") -> ProtobufSchema:
    """The schema of columns; nothing is tried of names that Protobuf can't tell apart."""
    try:
        name = f"{package}.Value"
        return extend_schema(make_schema(name), name, build_fields(fields))
    except TargetRefused:
        assume(False)
        raise


@given(arrays())
def test_any_value_is_read_back_by_another_library(array: pa.Array) -> None:
    schema = schema_of(pa.field("x", array.type))
    text = schema.text
    for data, value in zip(encoded(array, schema), array.to_pylist(), strict=True):
        assert same(read_message(text, data)["x"], as_read(value, array.type))


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.int64(), [0, 1, -1, 127, 128, 2**14 - 1, 2**14, 2**28, 2**63 - 1, -(2**63), None]),
        (pa.int8(), [0, -128, 127]),
        (pa.float64(), [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]),
        (pa.float32(), [3.4028234663852886e38, 1e-45, -0.0]),
        (pa.string(), ["", "\x00", "ü😀", "x" * 127, "x" * 128, "x" * 20_000]),
        (pa.binary(), [b"", b"\x00", b"\xff" * 200, None]),
        (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
                                     dt.datetime(1, 1, 1, tzinfo=dt.UTC),
                                     dt.datetime(9999, 12, 31, 23, 59, 59, 1, dt.UTC)]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
        (pa.list_(pa.int64()), [[], [None], [0, None], None, list(range(300))]),
        *(
            (pa.decimal128(38, scale), [Decimal(sign + digits).scaleb(-scale, CONTEXT)
                                        for digits in ("0", "1", "12", "9" * 38, "1" + "0" * 37)
                                        for sign in ("", "-")] + [None])
            for scale in (0, 1, 6, 7, 18, 37, 38)
        ),
    ],
)  # fmt: skip
def test_the_ends_of_each_type(data_type: pa.DataType, values: list[Any]) -> None:
    schema = schema_of(pa.field("x", data_type))
    text = schema.text
    array = pa.array(values, data_type)
    for data, value in zip(encoded(array, schema), array.to_pylist(), strict=True):
        found = read_message(text, data)["x"]
        assert same(found, as_read(value, data_type))
        if isinstance(value, float):
            assert math.copysign(1, found) == math.copysign(1, value)


def test_times_far_from_now_are_whole() -> None:
    for data_type in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        micros = pa.array([-(2**63), 2**63 - 1, -1, 0], pa.int64())
        array = micros.cast(pa.timestamp("us")).view(data_type)
        schema = schema_of(pa.field("x", data_type))
        found = [read_message(schema.text, data)["x"] for data in encoded(array, schema)]
        assert found == micros.to_pylist()


def test_nan_stays_nan() -> None:
    schema = schema_of(pa.field("x", pa.float32()))
    (data,) = encoded(pa.array([math.nan], pa.float32()), schema)
    assert math.isnan(read_message(schema.text, data)["x"])


@given(st.dictionaries(st.text(min_size=1, max_size=6), types(1), min_size=1, max_size=5))
def test_columns_may_have_any_names(columns: dict[str, tuple[pa.DataType, Any]]) -> None:
    fields = [pa.field(name, data_type) for name, (data_type, _) in columns.items()]
    schema = schema_of(*fields, package="google.protobuf")
    assert read_message(schema.text, b"") == dict.fromkeys(schema.fields)


def test_names_that_protoc_makes_itself_are_no_columns() -> None:
    """Each optional field has a `oneof`, whose name is made of the field's."""
    nested = pa.list_(pa.int8())
    for names_ in (("_", "X"), ("a_", "_a"), ("_a_", "X_a"), ("Value_2_x", "x"), ("google", "x")):
        first, second = names_
        schema = schema_of(pa.field(first, pa.timestamp("us", "UTC")), pa.field(second, nested))
        assert read_message(schema.text, b"").keys() == set(names_)
        schema = schema_of(pa.field(first, pa.int64()), pa.field(second, nested))
        assert read_message(schema.text, b"").keys() == set(names_)


@given(st.lists(st.lists(st.tuples(names, types(2)), min_size=1, max_size=4), min_size=2))
def test_numbers_never_change_their_meaning(
    tables: list[list[tuple[str, tuple[pa.DataType, Any]]]],
) -> None:
    """Whatever columns come, go and move: a name keeps its number, and what has been is kept."""
    schema = make_schema("Value")
    earlier: list[ProtobufSchema] = []
    for columns in tables:
        try:
            wanted = build_fields(pa.field(n, kind) for n, (kind, _) in columns)
            found = extend_schema(schema, "Value", wanted, [old.fields for old in earlier])
        except TargetRefused:
            continue
        assert has_fields(found.fields, wanted)
        assert found.fields.keys() == schema.fields.keys() | wanted.keys()
        for old in (schema, *earlier):
            assert not find_clash(old.fields, found.fields)
            assert all(found.fields[name].number == old.fields[name].number for name in old.fields)
        assert len({field.number for field in found.fields.values()}) == len(found.fields)
        assert extend_schema(found, "Value", wanted).text == found.text
        earlier, schema = [schema, *earlier], found
    read_message(schema.text, b"")
