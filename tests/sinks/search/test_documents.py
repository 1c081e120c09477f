"""The search sink beyond the public suites: ids, names, values, versions and columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.json import json_values
from sinks.search.sink import SearchSink
from sinks.shared.key_ids import find_ids, find_ids_of_texts
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, RowsRefused, TargetRefused
from tailer.testing.batches import change_batch
from tests.sinks.search.conftest import new
from tests.support.search_engine import SearchEngine
from tests.support.sinks import named, rows, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


# Ids

TEXTS = st.text(max_size=8) | st.sampled_from(
    ["", "[1]", '["a"]', "~", "~ab", '"', '"a"', " ", "a" * 512, "a" * 513, "ü" * 257, "\x00"]
)


@given(st.lists(TEXTS, unique=True, max_size=20))
def test_every_text_has_an_id_of_its_own(texts: list[str]) -> None:
    keys = pa.table({"id": pa.array(texts, pa.string())})
    ids = find_ids(keys).to_pylist()
    assert len(set(ids)) == len(texts)
    assert all(0 < len(name.encode()) <= 512 for name in ids)
    as_json = pa.table({"id": json_values(pa.array(texts, pa.string()))})
    assert find_ids_of_texts(as_json).to_pylist() == ids


@given(st.lists(st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1)), unique=True, max_size=20))
def test_every_key_of_several_columns_has_an_id_of_its_own(values: list[tuple[str, int]]) -> None:
    texts, numbers = [list(each) for each in zip(*values, strict=True)] if values else [[], []]
    keys = pa.table({"a": pa.array(texts, pa.string()), "b": pa.array(numbers, pa.int64())})
    ids = find_ids(keys).to_pylist()
    assert len(set(ids)) == len(values)
    as_json = pa.table(
        [json_values(keys[name].combine_chunks()) for name in "ab"], names=["a", "b"]
    )
    assert find_ids_of_texts(as_json).to_pylist() == ids


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pa.array([1, -5], pa.int8()), ["1", "-5"]),
        (pa.array([2**63 - 1], pa.int64()), [str(2**63 - 1)]),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), ["1.50"]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([dt.date(2024, 2, 29)]), ["2024-02-29"]),
        (pa.array([0], pa.timestamp("us", "UTC")), ["1970-01-01T00:00:00.000000Z"]),
        (pa.array([0], pa.timestamp("us")), ["1970-01-01T00:00:00.000000"]),
        (pa.array([b"\x00\xff"]), ["AP8="]),
        (pa.array(["", "a/b?c#d e", "größe 数"]), ['[""]', "a/b?c#d e", "größe 数"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
async def test_a_key_of_each_type(
    search_engine: SearchEngine, options: dict[str, Any], values: pa.Array, ids: list[str]
) -> None:
    schema = pa.schema([("id", values.type), ("name", pa.string())])
    found = [{"id": value, "name": "a"} for value in values.to_pylist()]
    await write(new(options), change_batch(schema, found, last=True))
    assert list(search_engine.documents(options["index"])) == ids
    gone = [{**row, "_change_type": "delete"} for row in found]
    await write(new(options), change_batch(schema, gone, version=2, last=True))
    assert search_engine.documents(options["index"]) == {}


# Names and values


async def test_names_that_a_document_can_have_are_kept(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    names = [
        "a b",
        "größe",
        'q"uote',
        "back\\slash",
        "select",
        "*",
        "%",
        "NAME",
        "name",
        "_a",
        "$x",
    ]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    row: dict[str, Any] = {"id": 1, **{name: name for name in names}}
    await write(new(options), change_batch(schema, [row], last=True))
    assert search_engine.documents(options["index"]) == {"1": row}


@pytest.mark.parametrize(
    "name", ["", " ", "a.b", ".a", "a.", "_id", "_source", "_version", "_index_mode"]
)
async def test_names_that_no_document_can_have_are_refused(
    options: dict[str, Any], name: str
) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.string())])
    with pytest.raises(TargetRefused, match="with the feed's option 'select'"):
        new(options).check_columns(schema)
    nested = pa.schema([("id", pa.int64()), ("s", pa.struct([(name or " ", pa.string())]))])
    if not name.startswith("_"):
        with pytest.raises(TargetRefused, match="with the feed's option 'select'"):
            new(options).check_columns(nested)


async def test_values_that_no_field_can_have_cost_no_row(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    """They are in the document, and a search does not find them."""
    schema = pa.schema(
        {"id": pa.int64(), "number": pa.float64(), "date": pa.date32(), "at": pa.timestamp("us"),
         "large": pa.decimal128(38, 0), "text": pa.string(),
         "map": pa.map_(pa.string(), pa.string()), "list": pa.list_(pa.list_(pa.int64())),
         "none": pa.struct([])}
    )  # fmt: skip
    found = [
        {"id": 1, "number": float("nan"), "date": dt.date(1, 1, 1), "large": Decimal(10) ** 37},
        {"id": 2, "number": float("inf"), "at": dt.datetime(9999, 12, 31), "text": "x" * 100_000},  # noqa: DTZ001
        {"id": 3, "number": 1e308, "map": {"a.b": "c", "": "d", " ": "e"}, "list": [[1], [], None]},
        {"id": 4, "none": {}, "date": -(10**6)},
    ]
    await write(new(options), change_batch(schema, found, last=True))
    documents = search_engine.documents(options["index"])
    assert set(documents) == {"1", "2", "3", "4"}
    assert documents["1"]["number"] == "NaN"
    assert documents["3"]["map"] == {"a.b": "c", "": "d", " ": "e"}


async def test_what_is_asked_for_is_found(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    schema = pa.schema(
        {"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(10, 2),
         "at": pa.timestamp("us", "UTC"), "of": pa.struct({"city": pa.string()}),
         "tags": pa.list_(pa.string())}
    )  # fmt: skip
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    row = {"id": 1, "name": "Green Tea", "price": Decimal("9.99"), "at": at,
           "of": {"city": "Bonn"}, "tags": ["a", "b"]}  # fmt: skip
    await write(new(options), change_batch(schema, [row, {"id": 2, "name": "Coffee"}], last=True))
    search_engine.call("POST", f"/{options['index']}/_refresh")
    for query in (
        {"match": {"name": "tea"}}, {"term": {"name.keyword": "Green Tea"}},
        {"range": {"price": {"gt": 9.5, "lt": 10}}}, {"range": {"at": {"gte": "2026-05-01"}}},
        {"term": {"of.city.keyword": "Bonn"}}, {"term": {"tags.keyword": "b"}},
    ):  # fmt: skip
        _, found = search_engine.call("POST", f"/{options['index']}/_search", {"query": query})
        assert [hit["_id"] for hit in found["hits"]["hits"]] == ["1"], query


# Versions


async def test_a_process_that_stood_still_asks_before_it_writes(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    old = new(options)
    assert isinstance(old, SearchSink)
    await write(old, named())
    await old.open("orders")
    old._confirmed_at -= 60
    await write(new(options), rows((0, "b"), kind="delete", version=2))
    with pytest.raises(ConfigError, match="another process writes the index"):
        await old.write(rows((9, "late"), version=2))
    await old.aclose()
    assert set(search_engine.documents(options["index"])) == {"1"}


async def test_what_another_program_has_written_is_written_over_behind_a_set_back(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    first, second = rows((1, "a")), rows((1, "b"), kind="update_postimage", version=2)
    await write(new(options), first, second)
    search_engine.call(
        "PUT", f"/{options['index']}/_doc/1", {"id": 1, "name": "of another program"}
    )
    await new(options).set_offset("orders", first.offset)
    assert await new(options).look("orders") == first.offset
    await write(new(options), first, second)
    assert search_engine.documents(options["index"])["1"]["name"] == "b"


async def test_what_another_program_writes_does_not_hide_the_next_version(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    await write(new(options), rows((1, "a")))
    for _ in range(9):
        search_engine.call("PUT", f"/{options['index']}/_doc/1", {"id": 1, "name": "x"})
    await write(new(options), rows((1, "a"), kind="delete", version=2))
    assert search_engine.documents(options["index"]) == {}


async def test_a_document_that_is_too_large_is_named(options: dict[str, Any]) -> None:
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(RowsRefused, match=r"version 1: the event 7 has \d+ bytes"):
        await sink.write(rows((7, "x" * 100 * 1024**2)))
    await sink.aclose()


# Columns


def with_columns(version: int, found: list[dict[str, Any]], **columns: Any) -> ChangeBatch:
    schema = pa.schema({"id": pa.int64(), **columns})
    return change_batch(schema, found, version=version, last=True)


async def test_columns_that_come_and_go(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    wide = pa.struct({"a": pa.int64(), "b": pa.string()})
    await write(
        new(options),
        with_columns(1, [{"id": 1, "s": {"a": 1}}], s=pa.struct({"a": pa.int32()})),
        with_columns(2, [{"id": 2, "s": {"a": 2, "b": "x"}, "n": "new"}], s=wide, n=pa.string()),
        with_columns(3, [{"id": 3, "n": "only"}], n=pa.string()),
    )
    search_engine.call("POST", f"/{options['index']}/_refresh")
    for query in ({"term": {"s.b.keyword": "x"}}, {"term": {"n.keyword": "new"}}):
        _, found = search_engine.call("POST", f"/{options['index']}/_search", {"query": query})
        assert [hit["_id"] for hit in found["hits"]["hits"]] == ["2"], query


async def test_a_column_of_another_type_is_refused(options: dict[str, Any]) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(with_columns(1, [{"id": 1, "c": "a"}], c=pa.string()))
    changed = with_columns(2, [{"id": 1, "c": 5}], c=pa.int64())
    with pytest.raises(TargetRefused, match=r"version 2 has renamed, replaced or changed .*'c'"):
        await sink.write(changed)
    await sink.aclose()
