"""Copies whose key is of any type: every row is found again by it, and read back as it is."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import RowsRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.column_targets import COLUMN_TARGETS, ColumnTarget, column_target
from tests.support.extent import examples, rest_slow
from tests.support.sinks import write

#: Texts without NUL, which PostgreSQL refuses, of a length that all keys have room for.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001
MONEY = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-10"))
KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "decimal": (pa.decimal128(38, 10), MONEY),
    "string": (pa.string(), TEXTS | st.sampled_from(["a", "A", "a ", "é", "e\u0301", "ß", "ss"])),
    "binary": (pa.binary(), st.binary(max_size=60) | st.sampled_from([b"", b"\0", b"\0\0", b" "])),
    "date": (pa.date32(), DAYS),
    "timestamp": (pa.timestamp("us", "UTC"), TIMES.map(lambda at: at.replace(tzinfo=dt.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), TIMES),
}
#: Those that servers compare in ways of their own; the others are slow.
ODD = [("string",), ("decimal",), ("timestamp",)]


@pytest.fixture(params=[name for name in COLUMN_TARGETS if name != "delta"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ColumnTarget:
    return column_target(request.param, tmp_path, request)


def read_back(sink: Sink, schema: pa.Schema) -> tuple[Any, list[dict[str, Any]]]:
    with sink.read_mirror("orders") as copy:
        rows = [row for batch in copy.rows(schema) for row in batch.to_pylist()]
        return copy, rows


def images(row: dict[str, Any], value: int) -> list[dict[str, Any]]:
    before = {**row, "_change_type": "update_preimage"}
    return [before, {**row, "v": value, "_change_type": "update_postimage"}]


@settings(max_examples=5)
@given(data=st.data())
@pytest.mark.parametrize(
    "kinds",
    [("string", "binary", "long"), *rest_slow([(kind,) for kind in KEYS], *ODD)],
    ids=" ".join,
)
def test_a_row_is_found_by_its_key(
    target: ColumnTarget, tmp_path: Path, kinds: tuple[str, ...], data: Any
) -> None:
    key = [f"k{place}" for place in range(len(kinds))]
    one = st.tuples(*(KEYS[kind][1] for kind in kinds))
    keys = data.draw(st.lists(one, min_size=1, max_size=6, unique=True))
    schema = pa.schema(
        [*((name, KEYS[k][0]) for name, k in zip(key, kinds, strict=True)), ("v", pa.int64())]
    )
    rows = [{**dict(zip(key, values, strict=True)), "v": 0} for values in keys]
    changed = [image for place, row in enumerate(rows, start=1) for image in images(row, place)]
    gone = [{**row, "v": 1, "_change_type": "delete"} for row in rows[:1]]
    options = {**target.options(target.new()), "key": key}
    sink = make_sink(options.pop("type"), options, tmp_path)
    versions = [
        change_batch(schema, found, version=version, last=True)
        for version, found in enumerate([rows, changed, gone], start=1)
    ]
    try:
        anyio.run(lambda: write(sink, *versions))
    except RowsRefused as refused:  # ClickHouse's times
        if "a time beyond the years 1900 to 2299" not in str(refused):
            raise
        return
    copy, found = read_back(sink, schema)
    expected = pa.RecordBatch.from_pylist(
        [{**row, "v": place} for place, row in enumerate(rows[1:], start=2)], schema=schema
    )
    held = [copy.as_held(name, expected[name]) for name in schema.names]
    same = pa.RecordBatch.from_arrays(held, names=schema.names).to_pylist()
    assert sorted(found, key=lambda row: row["v"]) == same


NESTED = pa.schema(
    {
        "id": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "struct": pa.struct(
            {"d": pa.float64(), "f": pa.float32(), "n": pa.decimal128(38, 10), "t": pa.string(),
             "b": pa.binary(), "at": pa.timestamp("us", "UTC"), "day": pa.date32()}
        ),
        "map": pa.map_(pa.string(), pa.float64()),
        "list": pa.list_(pa.struct({"x": pa.int64(), "X": pa.bool_()})),
    }
)  # fmt: skip
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
ENTRY = st.fixed_dictionaries({"x": st.none() | KEYS["long"][1], "X": st.none() | st.booleans()})
VALUES = st.fixed_dictionaries(
    {
        "float": st.none() | FLOATS,
        "double": st.none() | DOUBLES | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308]),
        "struct": st.none() | st.fixed_dictionaries(
            {"d": st.none() | DOUBLES | st.just(-0.0), "f": st.none() | FLOATS,
             "n": st.none() | MONEY, "t": st.none() | TEXTS, "b": st.none() | st.binary(),
             "at": st.none() | KEYS["timestamp"][1], "day": st.none() | DAYS}
        ),
        "map": st.none() | st.dictionaries(TEXTS, st.none() | DOUBLES).map(lambda m: [*m.items()]),
        "list": st.none() | st.lists(st.none() | ENTRY),
    }
)  # fmt: skip


@settings(max_examples=examples(10))
@given(values=st.lists(VALUES, min_size=1, max_size=4))
def test_any_values_are_read_back_as_they_are_compared(
    target: ColumnTarget, tmp_path: Path, values: list[dict[str, Any]]
) -> None:
    """What `tailer verify` compares is the same on both sides; -0.0 may have become 0.0."""
    schema = NESTED
    if target.options(0)["type"] == "duckdb":  # whose structs have no fields `x` and `X`
        schema = NESTED.remove(NESTED.get_field_index("list"))
    rows = [{"id": number, **value} for number, value in enumerate(values)]
    options = {**target.options(target.new()), "key": ["id"]}
    sink = make_sink(options.pop("type"), options, tmp_path)
    anyio.run(lambda: write(sink, change_batch(schema, rows, last=True)))
    copy, found = read_back(sink, schema)
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    held = [copy.as_held(name, batch[name]) for name in schema.names]
    same = pa.RecordBatch.from_arrays(held, names=schema.names).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == same
