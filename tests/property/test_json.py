"""Any rows as JSON lines are, line for line, what the same values are to Python's own encoder."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.json import json_lines, json_values
from tailer.delta.parsing import parse_line
from tailer.errors import TableError

pytestmark = pytest.mark.usefixtures("way")

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]

PRIMITIVES: list[Typed] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    (pa.decimal128(38, 30), st.decimals(-(10**7), 10**7, places=30)),
]
KEYS = [p for p in PRIMITIVES if not pa.types.is_floating(p[0])]
names = st.text(min_size=1, max_size=4)


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> Typed:
    """A data type, and values of it with nulls among them."""
    shape = draw(st.sampled_from(["plain", "plain", "list", "struct", "map"])) if depth else "plain"
    match shape:
        case "list":
            inner, values = draw(types(depth - 1))
            return pa.list_(inner), st.none() | st.lists(values, max_size=3)
        case "struct":
            fields = draw(st.dictionaries(names, types(depth - 1), min_size=1, max_size=3))
            struct = pa.struct([(n, t) for n, (t, _) in fields.items()])
            return struct, st.none() | st.fixed_dictionaries({n: v for n, (_, v) in fields.items()})
        case "map":
            key_type, keys = draw(st.sampled_from(KEYS))
            inner, values = draw(types(depth - 1))
            entries = st.dictionaries(keys, values, max_size=3).map(lambda d: list(d.items()))
            return pa.map_(key_type, inner), st.none() | entries
    data_type, plain = draw(st.sampled_from(PRIMITIVES))
    return data_type, st.none() | plain


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """An array of any type, and often only a slice of one."""
    data_type, values = draw(types())
    array = pa.array(draw(st.lists(values, max_size=6)), data_type)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


def plain(value: Any, data_type: pa.DataType) -> Any:
    """A value of ``to_pylist`` as what Python's ``json`` can write."""
    types_ = pa.types
    if value is None:
        return None
    if types_.is_list(data_type):
        return [plain(v, data_type.value_type) for v in value]
    if types_.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        return {f.name: plain(value[f.name], f.type) for f in fields}
    if types_.is_map(data_type):
        return {key(plain(k, data_type.key_type)): plain(v, data_type.item_type) for k, v in value}
    if types_.is_floating(data_type) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        zone = "Z" if value.tzinfo else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


def key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def same(found: Any, expected: Any, data_type: pa.DataType) -> bool:
    """Whether the JSON says this value; floats are compared in their own width."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if pa.types.is_map(data_type):
            kinds = dict.fromkeys(expected, data_type.item_type)
        else:
            fields = [data_type.field(i) for i in range(data_type.num_fields)]
            kinds = {f.name: f.type for f in fields}
        return list(found) == list(expected) and all(
            same(found[n], expected[n], kinds[n]) for n in expected
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(
            same(a, b, data_type.value_type) for a, b in zip(found, expected, strict=True)
        )
    if isinstance(expected, float) and isinstance(found, int | Decimal):
        width = pa.array([float(found)], pa.float64()).cast(data_type, safe=False)
        return bool(width[0].as_py() == expected)
    if isinstance(expected, Decimal):
        return bool(found == expected)
    return type(found) is type(expected) and bool(found == expected)


@given(arrays())
def test_any_array_is_what_python_makes_of_it(array: pa.Array) -> None:
    found = json_values(array)
    assert len(found) == len(array)
    for text, value in zip(found.to_pylist(), array.to_pylist(maps_as_pydicts=None), strict=True):
        document = json.loads(text, parse_float=Decimal)
        assert same(document, plain(value, array.type), array.type), (text, value)


@given(st.lists(names, min_size=1, max_size=4, unique=True), st.data())
def test_any_columns_are_lines_of_them(columns: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 4))
    typed = [data.draw(types(1)) for _ in columns]
    made = [pa.array(data.draw(st.lists(v, min_size=count, max_size=count)), t) for t, v in typed]
    text = bytes(json_lines(columns, made))
    lines = text.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == count, "a newline in a value never ends a line"
    for i, line in enumerate(lines):
        document = json.loads(line, parse_float=Decimal)
        assert list(document) == columns
        for name, column in zip(columns, made, strict=True):
            assert same(document[name], plain(column[i].as_py(), column.type), column.type)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
kinds = st.sampled_from(["add", "remove", "cdc", "metaData", "protocol", "txn", "domainMetadata",
                         "commitInfo", "sidecar", "checkpointMetadata", "other"])  # fmt: skip
fields = st.sampled_from(["path", "partitionValues", "size", "dataChange", "deletionVector",
                          "stats", "id", "schemaString", "format", "configuration", "version",
                          "minReaderVersion", "readerFeatures", "appId", "domain"])  # fmt: skip


@given(st.dictionaries(kinds, anything | st.dictionaries(fields, anything), max_size=2))
def test_any_json_is_an_action_or_none_or_an_error_of_the_table(document: Any) -> None:
    try:
        parse_line(json.dumps(document))
    except TableError:
        return


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_an_action_or_none_or_an_error_of_the_table(line: bytes) -> None:
    try:
        parse_line(line)
    except TableError:
        return
