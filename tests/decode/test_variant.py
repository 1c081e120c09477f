"""Variant columns: shredded files read as what they stand for, wherever the variant is nested."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.json import json_values
from sinks.jsonl import format_batch
from tailer.decode.project import make_converter
from tailer.decode.variant import canonicalize_variants, reassemble_variants
from tailer.delta.arrow_types import VARIANT, arrow_type, is_arrow_variant
from tailer.delta.schema import parse_schema
from tailer.delta.variant import variant_json
from tailer.errors import CorruptRow
from tailer.testing.table import TableBuilder
from tests.support.feeds import batches, refusal
from tests.support.variants import Style, as_json, encoded, node, parsed

EMPTY = b"\x01\x00\x00"
NULL = b"\x00"
UTC = dt.UTC


def shredded_type(typed: pa.DataType | None) -> pa.DataType:
    fields = [("value", pa.binary())]
    return pa.struct([*fields, *([("typed_value", typed)] if typed is not None else [])])


def column_type(typed: pa.DataType) -> pa.DataType:
    return pa.struct([("metadata", pa.binary()), *shredded_type(typed)])


def shredded(rows: Sequence[dict[str, Any] | None], typed: pa.DataType) -> pa.StructArray:
    filled = [None if row is None else {"metadata": EMPTY, **row} for row in rows]
    return pa.array(filled, column_type(typed))


def json_of(array: pa.StructArray) -> list[Any]:
    found = reassemble_variants(array, "c")
    found.validate(full=True)
    assert is_arrow_variant(found.type)
    return [
        row and parsed(variant_json(row["value"], row["metadata"])) for row in found.to_pylist()
    ]


def test_a_row_is_in_the_one_column_or_the_other() -> None:
    rows: list[dict[str, Any] | None] = [
        {"typed_value": 34}, {"value": NULL}, {"value": b"\x0dn/a"}, {"typed_value": 100}, None, {}
    ]  # fmt: skip
    array = shredded(rows, pa.int64())
    assert json_of(array) == [34, None, "n/a", 100, None, None]
    found = reassemble_variants(array, "c")
    assert found.is_valid().to_pylist() == [True, True, True, True, False, True]
    assert found[0].as_py() == {"value": b"\x0c\x22", "metadata": EMPTY}
    assert found[5].as_py() == {"value": NULL, "metadata": EMPTY}


EVENT = pa.struct(
    {
        "event_type": shredded_type(pa.string()),
        "event_ts": shredded_type(pa.timestamp("us", "UTC")),
        "tags": shredded_type(pa.list_(shredded_type(pa.string()))),
    }
)
TIME = dt.datetime(2024, 10, 24, 1, 2, 3, 4, UTC)
NO_FIELD = {"value": None, "typed_value": None}


def event(rest: tuple[bytes, bytes] | None = None, **fields: dict[str, Any]) -> dict[str, Any]:
    typed = {name: {**NO_FIELD, **fields.get(name, {})} for name in EVENT.names}
    value, metadata = rest or (None, EMPTY)
    return {"metadata": metadata, "value": value, "typed_value": typed}


def test_an_objects_fields_are_shredded_left_over_null_or_missing() -> None:
    rest = encoded({"email": "x", "a": {"b": 1}})
    rows = [
        event(event_type={"typed_value": "noop"}, event_ts={"typed_value": TIME}),
        event(rest, event_type={"typed_value": "login"}),
        event(event_type={"value": NULL}, event_ts={"value": b"\x0dn/a"}),
        event(),
        {"value": b"\x0dn/a"},
        event(tags={"typed_value": [{"typed_value": "x"}, {"value": NULL}, {}]}),
    ]
    assert json_of(shredded(rows, EVENT)) == [
        {"event_type": "noop", "event_ts": "2024-10-24T01:02:03.000004Z"},
        {"event_type": "login", "email": "x", "a": {"b": 1}},
        {"event_type": None, "event_ts": "n/a"},
        {},
        "n/a",
        {"tags": ["x", None, None]},
    ]


def test_keys_are_numbered_as_they_come_and_listed_in_order() -> None:
    rest = encoded({"a": {"z": 1, "a": 2}})
    array = shredded([event(rest, event_type={"typed_value": "x"})], EVENT)
    (row,) = reassemble_variants(array, "c").to_pylist()
    assert row["metadata"] == b"\x01\x03\x00\x0a\x0b\x0cevent_typeaz"
    # The shredded field's data come first, whatever the order of the keys.
    inner = b"\x02\x02\x01\x02\x00\x02\x04\x0c\x02\x0c\x01"
    assert row["value"] == b"\x02\x02\x01\x00\x02\x00\x0d\x05x" + inner


TYPED: list[tuple[pa.DataType, Any, str]] = [
    (pa.bool_(), False, "false"),
    (pa.int8(), -1, "-1"),
    (pa.int16(), 300, "300"),
    (pa.int32(), 70000, "70000"),
    (pa.int64(), -(2**63), "-9223372036854775808"),
    (pa.float32(), 0.1, "0.1"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), float("inf"), '"Infinity"'),
    (pa.decimal128(9, 2), Decimal("1.20"), "1.20"),
    (pa.decimal128(18, 0), Decimal(-(10**17)), "-" + "1" + "0" * 17),
    (pa.decimal128(38, 37), Decimal("-0." + "1" * 37), "-0." + "1" * 37),
    (pa.date32(), dt.date(1, 1, 1), '"0001-01-01"'),
    (pa.time64("us"), dt.time(1, 2, 3, 4), '"01:02:03.000004"'),
    (pa.timestamp("us", "UTC"), TIME, '"2024-10-24T01:02:03.000004Z"'),
    (pa.timestamp("us"), TIME.replace(tzinfo=None), '"2024-10-24T01:02:03.000004"'),
    (pa.timestamp("ns", "UTC"), 1, '"1970-01-01T00:00:00.000000001Z"'),
    (pa.timestamp("ns"), -1, '"1969-12-31T23:59:59.999999999"'),
    (pa.timestamp("us", "UTC"), 2**63 - 1, '"294247-01-10T04:00:54.775807Z"'),
    (pa.string(), "größe", '"größe"'),
    (pa.large_string(), "x" * 100, '"' + "x" * 100 + '"'),
    (pa.binary(), b"\x00\xff", '"AP8="'),
    (pa.large_binary(), b"", '""'),
    (pa.binary(16), uuid.UUID(int=1).bytes, '"00000000-0000-0000-0000-000000000001"'),
    (pa.list_(shredded_type(None)), [{"value": b"\x0c\x01"}], "[1]"),
    (pa.large_list(shredded_type(pa.int8())), [{"typed_value": 1}], "[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "value", "text"), TYPED, ids=[str(t[0])[:30] for t in TYPED])
def test_each_type_can_be_shredded(typed: pa.DataType, value: Any, text: str) -> None:
    array = shredded([None, {"typed_value": value}, {"value": NULL}], typed).slice(1)
    found = reassemble_variants(array, "c").to_pylist()
    texts = [variant_json(row["value"], row["metadata"]) for row in found]
    assert texts == [text, "null"]


def test_a_column_without_value_or_of_an_extension_type_is_read_too() -> None:
    typed = pa.struct([("metadata", pa.binary()), ("typed_value", pa.int8())])
    assert json_of(pa.array([{"metadata": EMPTY, "typed_value": 1}], typed)) == [1]
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(int=1).bytes], pa.binary(16))
    )
    parts = [pa.array([EMPTY]), pa.array([None], pa.binary()), ids]
    array = pa.StructArray.from_arrays(parts, ["metadata", "value", "typed_value"])
    assert json_of(array) == ["00000000-0000-0000-0000-000000000001"]


@pytest.mark.parametrize(
    ("rows", "typed", "words"),
    [
        ([{"metadata": None, "typed_value": 1}], pa.int8(), "no metadata"),
        ([{"metadata": b"\x02\x00\x00", "value": NULL}], pa.int8(), "version is 2"),
        ([event((b"\x0c\x01", EMPTY))], EVENT, "not an object"),
        ([event((b"\x03\x00\x00", EMPTY))], EVENT, "not an object"),
        ([event(encoded({"event_type": 1}), event_type={"value": NULL})], EVENT, "key twice"),
        ([event((b"\x02\x09\x00", EMPTY))], EVENT, "too early"),
        ([{}], pa.uint8(), "uint8"),
        ([{}], pa.date64(), "date64"),
        ([{}], pa.list_(pa.int8()), "list<"),
        ([{}], pa.struct([("a", pa.int8())]), "int8"),
    ],
)
def test_what_no_shredding_gives_is_refused(
    rows: list[dict[str, Any]], typed: pa.DataType, words: str
) -> None:
    assert words in refusal(lambda: reassemble_variants(shredded(rows, typed), "c"), CorruptRow)


# A shredder, for values that the tests make up.

Schema = dict[str, Any] | list[Any] | str
SCALARS = {"long": (int, pa.int64()), "string": (str, pa.string()), "double": (float, pa.float64())}


def typed_type(schema: Schema) -> pa.DataType:
    if isinstance(schema, dict):
        return pa.struct([(k, shredded_type(typed_type(s))) for k, s in schema.items()])
    if isinstance(schema, list):
        return pa.list_(shredded_type(typed_type(schema[0])))
    return SCALARS[schema][1]


def shred(value: Any, schema: Schema, style: Style) -> dict[str, Any]:
    """The row of a value; missing fields are ``...``."""
    if value is ...:
        return NO_FIELD
    match schema:
        case dict() if isinstance(value, dict):
            typed = {k: shred(value.get(k, ...), s, style) for k, s in schema.items()}
            rest = {k: v for k, v in value.items() if k not in schema}
            return {"value": node(rest, style) if rest else None, "typed_value": typed}
        case list() if isinstance(value, list):
            return {"value": None, "typed_value": [shred(v, schema[0], style) for v in value]}
        case str() if type(value) is SCALARS[schema][0]:
            return {"value": None, "typed_value": value}
    return {"value": node(value, style), "typed_value": None}


KEYS = st.sampled_from(["a", "b", "c", "ä", ""])
SCHEMAS = st.recursive(
    st.sampled_from(sorted(SCALARS)),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=1)
        | st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@given(SCHEMAS, st.lists(st.just(...) | VALUES, max_size=5), st.randoms(use_true_random=False))
def test_any_value_shredded_by_any_schema_is_itself_again(
    schema: Schema, values: list[Any], random: Random
) -> None:
    rows: list[Any] = []
    for value in values:
        style = Style(random)
        row = shred(value, schema, style)
        rows.append({**row, "metadata": style.metadata()})
    array = pa.array(rows, column_type(typed_type(schema)))
    assert json_of(array) == [None if value is ... else as_json(value) for value in values]


# Nested columns, and the whole way from a file to a line.


def nested_type(shape: str) -> tuple[Any, pa.DataType]:
    """The Delta type and the file's type of a shredded variant within another type."""
    variant = column_type(pa.int64())
    if shape == "list":
        delta: Any = {"type": "array", "elementType": "variant", "containsNull": True}
        return delta, pa.list_(variant)
    if shape == "map":
        delta = {"type": "map", "keyType": "string", "valueType": "variant"}
        return {**delta, "valueContainsNull": True}, pa.map_(pa.string(), variant)
    field = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}
    return {"type": "struct", "fields": [field]}, pa.struct([("v", variant)])


@pytest.mark.parametrize(
    ("shape", "rows", "texts"),
    [
        ("list", [[1, None], None, [], [2]], ["[1,null]", "null", "[]", "[2]"]),
        ("map", [[("k", 1), ("l", None)], None, []], ['{"k":1,"l":null}', "null", "{}"]),
        ("struct", [{"v": 1}, {"v": None}, None], ['{"v":1}', '{"v":null}', "null"]),
    ],
)
def test_shredded_variants_are_read_within_other_types(
    shape: str, rows: list[Any], texts: list[str]
) -> None:
    def variant(value: int | None) -> dict[str, Any] | None:
        return None if value is None else {"metadata": EMPTY, "typed_value": value}

    def filled(row: Any) -> Any:
        match row:
            case dict():
                return {"v": variant(row["v"])}
            case [(_, _), *_]:
                return [(key, variant(value)) for key, value in row]
            case list():
                return [variant(value) for value in row]
        return row

    delta, file_type = nested_type(shape)
    schema = {"type": "struct", "fields": [{"name": "c", "type": delta, "metadata": {}}]}
    target = parse_schema(json.dumps(schema)).fields[0].type
    array = pa.array([None, *map(filled, rows)], file_type).slice(1)
    found = make_converter(file_type, target, "none", "c")(array)
    found.validate(full=True)
    assert found.type == arrow_type(target)
    assert json_values(found).to_pylist() == texts
    same = canonicalize_variants(found.slice(1))
    same.validate(full=True)
    assert json_values(same).to_pylist() == texts[1:]


def test_what_is_no_variant_stands_for_itself_where_values_are_compared() -> None:
    rows = [{"value": b"\x54", "metadata": b""}, {"value": None, "metadata": EMPTY}, None]
    assert canonicalize_variants(pa.array(rows, VARIANT)).to_pylist() == rows
    plain = pa.array([{"value": b"\x14\x01\x00\x00\x00", "metadata": EMPTY}],
                     pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))  # fmt: skip
    assert canonicalize_variants(plain) is plain


def variant_table(folder: Path) -> TableBuilder:
    table = TableBuilder(folder, pa.schema([("id", pa.int64()), ("v", VARIANT)]))
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    table.create(table.protocol(3, 7, **features))
    return table


def row_of(number: int, value: Any, random: Random | None = None) -> dict[str, Any]:
    data, metadata = encoded(value, random)
    return {"id": number, "v": {"value": data, "metadata": metadata}}


def test_a_rewritten_file_with_other_encodings_of_its_values_is_no_change(tmp_path: Path) -> None:
    values = [{"a": [1, Decimal("2.50")], "b": "x"}, {"k": {"z": 1.5, "y": None}}, "text"]
    table = variant_table(tmp_path)
    first = table.add([row_of(i, value) for i, value in enumerate(values)])
    table.commit(first)
    anew = [row_of(i, value, Random(i)) for i, value in enumerate(values)]
    assert anew != [row_of(i, value) for i, value in enumerate(values)]
    anew[2] = row_of(2, "other text")
    # The new file is shredded, too: what was one column may come back as three.
    table.schema = pa.schema([("id", pa.int64()), ("v", column_type(pa.string()))])
    table.commit(table.remove(first), table.add(anew))
    found = [row for batch in batches(table, 2) for row in batch.rows.to_pylist()]
    assert [(row["id"], row["_change_type"]) for row in found] == [(2, "delete"), (2, "insert")]


def test_a_line_has_a_variant_as_json_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    table = variant_table(tmp_path)
    table.insert([row_of(1, {"b": [True, None], "a": Decimal("1.50")}), {"id": 2, "v": None}])
    (batch,) = batches(table, 1)
    lines = bytes(format_batch(batch, ids=False)).decode().splitlines()
    assert lines[0].startswith('{"id":1,"v":{"a":1.50,"b":[true,null]},"_change_type":"insert"')
    assert lines[1].startswith('{"id":2,"v":null,')
    table.insert([{"id": 3, "v": {"value": b"\x54", "metadata": EMPTY}}], path="bad.parquet")
    (batch,) = batches(table, 2)
    message = refusal(lambda: format_batch(batch, ids=False), CorruptRow)
    assert "version 2, bad.parquet: a variant is damaged" in message
