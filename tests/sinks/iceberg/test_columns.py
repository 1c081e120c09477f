"""The Iceberg sink beyond the public suites: types, names, and columns that change."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailer.errors import (
    SinkRejected,
    TargetRefused,
)  # fmt: skip
from tailer.testing.batches import change_batch
from tests.property.test_json import types
from tests.sinks.iceberg.conftest import KEY
from tests.sinks.test_duckdb import mapped
from tests.support.extent import examples
from tests.support.iceberg import Lake
from tests.support.sinks import rows, write

pytestmark = pytest.mark.anyio


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [1.5, float("inf")]),
    "double": (pa.float64(), [-0.0, 1e300]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-9999999999999999999999999999.0000000001")]),
    "boolean": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "\x00 ü", "a" * 300]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [dt.datetime(1582, 1, 1, tzinfo=dt.UTC)]),
    "ntz": (pa.timestamp("us"), [dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
    "struct": (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}]),
    "list": (pa.list_(pa.int16()), [[], [1, None]]),
    "structs": (pa.list_(pa.struct([("c", pa.int8())])), [[{"c": 3}, None], []]),
    "map": (pa.map_(pa.string(), pa.struct([("c", pa.int8())])), [[("k", {"c": 3})], []]),
}


async def test_values_of_every_type_are_kept(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    count = max(len(values) for _, values in TYPES.values()) + 1  # the last row is null
    found = [
        {"id": i, **{n: v[i] if i < len(v) else None for n, (_, v) in TYPES.items()}}
        for i in range(count)
    ]
    await write(lake.make_sink(key=KEY), change_batch(schema, found, last=True))
    assert sorted(lake.rows(), key=lambda row: row["id"]) == found
    gone = {**found[0], "_change_type": "delete"}  # files are written again with the others
    await write(lake.make_sink(key=KEY), change_batch(schema, [gone], version=2, last=True))
    assert sorted(lake.rows(), key=lambda row: row["id"]) == found[1:]
    with lake.make_sink(key=KEY).read_mirror("orders") as copy:
        back = pa.Table.from_batches(list(copy.rows(schema)))
    assert back.schema == schema
    assert sorted(back.to_pylist(), key=lambda row: row["id"]) == found[1:]


@settings(max_examples=examples(30))
@given(data=st.data())
def test_nested_values_are_kept_with_their_nulls(data: st.DataObject) -> None:
    """Also those of a slice, and of files that are written again."""
    data_type, values = data.draw(types())
    rows = data.draw(st.lists(values, min_size=2, max_size=5))
    schema = pa.schema([("id", pa.int64()), ("v", data_type)])
    batch = change_batch(schema, [{"id": i, "v": value} for i, value in enumerate(rows)], last=True)
    start = data.draw(st.integers(0, len(rows) - 2))
    held = [{"id": i, "v": v} for i, v in enumerate(batch.rows["v"].to_pylist())][start:]
    gone = change_batch(schema, [{**held[0], "_change_type": "delete"}], version=2, last=True)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        try:
            lake.make_sink(key=KEY).check_columns(schema)
        except TargetRefused:
            assume(False)
        anyio.run(write, lake.make_sink(key=KEY), batch.slice(start, len(rows)))
        assert str(lake.rows()) == str(held)  # with its NaNs
        anyio.run(write, lake.make_sink(key=KEY), gone)
        assert str(lake.rows()) == str(held[1:])


@pytest.mark.parametrize("kind", [name for name in TYPES if name not in
    ("float", "double", "struct", "list", "structs", "map")])  # fmt: skip
async def test_a_key_of_each_type(lake: Lake, kind: str) -> None:
    data_type, values = TYPES[kind]
    schema = pa.schema([("k", data_type), ("v", pa.int64())])
    found = [{"k": value, "v": i} for i, value in enumerate(values)]
    await write(lake.make_sink(key=["k"]), change_batch(schema, found, last=True))
    update = [
        {"k": values[0], "v": 0, "_change_type": "update_preimage"},
        {"k": values[0], "v": 9, "_change_type": "update_postimage"},
    ]
    await write(lake.make_sink(key=["k"]), change_batch(schema, update, version=2, last=True))
    assert sorted(row["v"] for row in lake.rows()) == [*range(1, len(values)), 9]
    absent = change_batch(schema, [{**found[0], "_change_type": "insert"}], version=3, last=True)
    with pytest.raises(SinkRejected, match="that the copy has already"):
        await write(lake.make_sink(key=["k"]), absent)


async def test_columns_are_renamed_swapped_dropped_and_widened(lake: Lake) -> None:
    """By their ids: no file is written again."""
    before = pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.string()),
                        ("old", pa.string()), ("n", pa.float32()),
                        ("s", pa.struct([("x", pa.int32())]))])  # fmt: skip
    after = pa.schema([("id", pa.int64()), ("b", pa.string()), ("a", pa.string()),
                       ("new", pa.string()), ("n", pa.float64()),
                       ("s", pa.struct([("x", pa.int64()), ("y.z", pa.string())]))])  # fmt: skip
    first = change_batch(
        before, [{"id": 1, "a": "of a", "b": "of b", "old": "x", "n": 1.5, "s": {"x": 1}}],
        last=True,
    )  # fmt: skip
    more = {"id": 2**40, "a": "A", "b": "B", "new": "y", "n": 1e300, "s": {"x": 2, "y.z": "q"}}
    then = change_batch(after, [more], version=2, last=True)
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(first)
    files = {task.file.file_path for task in lake.table().scan().plan_files()}
    await sink.write(mapped(then, a="b", b="a", new="c9"))
    await sink.aclose()
    assert files < {task.file.file_path for task in lake.table().scan().plan_files()}
    was = {"id": 1, "a": "of b", "b": "of a", "new": None, "n": 1.5, "s": {"x": 1, "y.z": None}}
    assert sorted(lake.rows(), key=lambda row: row["id"]) == [was, more]


async def test_a_type_that_would_change_values_is_refused(lake: Lake) -> None:
    await write(lake.make_sink(key=KEY), rows((1, "a")))
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    other = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    with pytest.raises(SinkRejected, match="'name' was of type string and is now of type int64"):
        await sink.write(change_batch(other, [{"id": 2, "name": 2}], version=2))
    before = lake.rows()
    await sink.aclose()
    sink = lake.make_sink(mode="log", table=f"{lake.namespace}.log")
    await sink.open("orders")
    dates, times = (pa.schema([("at", kind)]) for kind in (pa.date32(), pa.timestamp("us")))
    await sink.write(change_batch(dates, [{"at": dt.date(2020, 1, 1)}], last=True))
    with pytest.raises(TargetRefused, match="Iceberg can't change the columns 'at' so"):
        await sink.write(
            change_batch(times, [{"at": dt.datetime.fromisoformat("2020-01-01")}], version=2)
        )
    await sink.aclose()
    assert lake.rows() == before == [{"id": 1, "name": "a"}]


NAMES = [
    "a.b",
    "a b",
    "1",
    "ü",
    '"',
    "`",
    "'",
    "%",
    "a/b",
    "_row_id",
    "_id",
    "SELECT",
    "\U0001f600",
    "\t",
]


async def test_columns_with_any_name(lake: Lake) -> None:
    schema = pa.schema([(name, pa.int64()) for name in NAMES])
    row = dict(zip(NAMES, range(len(NAMES)), strict=True))
    nested = pa.schema([*schema, ("a", pa.struct([("c", pa.int64())]))])
    first = change_batch(schema, [row], last=True)
    second = change_batch(nested, [{**row, "a b": 77, "a": {"c": 1}}], version=2, last=True)
    gone = change_batch(nested, [{**row, "_change_type": "delete"}], version=3, last=True)
    sink = lake.make_sink(key=["a b", "a.b"], own_prefix="__")
    await write(sink, first, second, gone)
    assert lake.rows() == [{**row, "a b": 77, "a": {"c": 1}}]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.b", "a"], "by its path with dots"),
        (["a b", "a_x20b"], "as files spell it"),
        (["s."], None),
        ([""], "without a name"),
        (["\0"], "character NUL"),
    ],
)
def test_columns_that_a_table_can_not_have(lake: Lake, names: list[str], said: str | None) -> None:
    schema = pa.schema([(n, pa.struct([("b", pa.list_(pa.int8()))])) for n in names])
    if said is None:
        lake.make_sink(key=KEY).check_columns(schema)
        return
    with pytest.raises(TargetRefused, match=f"{said}.*exclude it with the feed's option 'select'"):
        lake.make_sink(key=KEY).check_columns(schema)
