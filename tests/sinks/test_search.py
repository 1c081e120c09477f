"""The search sink beyond the public suites: ids, names, values, versions, and indices that change
under it."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sinks.formats.json import json_values
from sinks.search.sink import SearchSink
from sinks.shared.key_ids import find_ids, find_ids_of_texts
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch, change_span
from tests.support.opensearch import OpenSearch
from tests.support.sinks import NAMED, named, rows, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


@pytest.fixture
def index() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def options(opensearch: OpenSearch, index: str) -> dict[str, Any]:
    return {"url": opensearch.url, "index": index, "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("search", {**options, **more}, Path())


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
    opensearch: OpenSearch, options: dict[str, Any], values: pa.Array, ids: list[str]
) -> None:
    schema = pa.schema([("id", values.type), ("name", pa.string())])
    found = [{"id": value, "name": "a"} for value in values.to_pylist()]
    await write(new(options), change_batch(schema, found, last=True))
    assert list(opensearch.documents(options["index"])) == ids
    gone = [{**row, "_change_type": "delete"} for row in found]
    await write(new(options), change_batch(schema, gone, version=2, last=True))
    assert opensearch.documents(options["index"]) == {}


# Names and values


async def test_names_that_a_document_can_have_are_kept(
    opensearch: OpenSearch, options: dict[str, Any]
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
    assert opensearch.documents(options["index"]) == {"1": row}


@pytest.mark.parametrize("name", ["", " ", "a.b", ".a", "a.", "_id", "_source", "_version"])
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
    opensearch: OpenSearch, options: dict[str, Any]
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
    documents = opensearch.documents(options["index"])
    assert set(documents) == {"1", "2", "3", "4"}
    assert documents["1"]["number"] == "NaN"
    assert documents["3"]["map"] == {"a.b": "c", "": "d", " ": "e"}


async def test_what_is_asked_for_is_found(opensearch: OpenSearch, options: dict[str, Any]) -> None:
    schema = pa.schema(
        {"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(10, 2),
         "at": pa.timestamp("us", "UTC"), "of": pa.struct({"city": pa.string()}),
         "tags": pa.list_(pa.string())}
    )  # fmt: skip
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    row = {"id": 1, "name": "Green Tea", "price": Decimal("9.99"), "at": at,
           "of": {"city": "Bonn"}, "tags": ["a", "b"]}  # fmt: skip
    await write(new(options), change_batch(schema, [row, {"id": 2, "name": "Coffee"}], last=True))
    opensearch.call("POST", f"/{options['index']}/_refresh")
    for query in (
        {"match": {"name": "tea"}}, {"term": {"name.keyword": "Green Tea"}},
        {"range": {"price": {"gt": 9.5, "lt": 10}}}, {"range": {"at": {"gte": "2026-05-01"}}},
        {"term": {"of.city.keyword": "Bonn"}}, {"term": {"tags.keyword": "b"}},
    ):  # fmt: skip
        _, found = opensearch.call("POST", f"/{options['index']}/_search", {"query": query})
        assert [hit["_id"] for hit in found["hits"]["hits"]] == ["1"], query


# Versions


async def test_what_comes_late_changes_nothing(
    opensearch: OpenSearch, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still sends its request behind the back of its successor."""
    old, successor = new(options), new(options)
    assert isinstance(old, SearchSink)
    first = named(count=3)
    await write(old, first)
    await old.open("orders")

    async def pass_by() -> None:
        pass

    monkeypatch.setattr(old._document, "confirm", pass_by)  # it stood still behind it
    later = rows((0, "new"), kind="update_postimage", version=3)
    gone = rows((1, "name 1"), kind="delete", version=4)
    await write(successor, later, gone)
    late = change_span(
        NAMED,
        [[[
            {"id": 0, "name": "late", "_change_type": "update_postimage"},
            {"id": 1, "name": "late", "_change_type": "update_postimage"},
            {"id": 2, "name": "name 2", "_change_type": "delete"},
        ]]], version=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="another process writes the index"):
        await old.write(late)
    await old.aclose()
    documents = opensearch.documents(options["index"])
    assert documents["0"]["name"] == "new"
    assert "1" not in documents


async def test_a_process_that_stood_still_asks_before_it_writes(
    opensearch: OpenSearch, options: dict[str, Any]
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
    assert set(opensearch.documents(options["index"])) == {"1"}


async def test_a_version_that_moves_a_key_to_another_row(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    """Whichever of the two comes first, also in pieces."""
    moved = [
        {"id": 1, "name": "of 2", "_change_type": "insert"},
        {"id": 1, "name": "of 1", "_change_type": "delete"},
    ]
    await write(new(options), rows((1, "of 1")))
    batch = change_batch(NAMED, moved, version=2, last=True)
    await write(new(options), batch.slice(0, 1), batch.slice(1, 2))
    assert opensearch.documents(options["index"])["1"]["name"] == "of 2"


async def test_an_offset_that_is_set_back_is_written_again(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    first, second = rows((1, "a")), rows((1, "b"), kind="update_postimage", version=2)
    await write(new(options), first, second)
    opensearch.call("PUT", f"/{options['index']}/_doc/1", {"id": 1, "name": "of another program"})
    await new(options).set_offset("orders", first.offset)
    assert await new(options).look("orders") == first.offset
    await write(new(options), first, second)
    assert opensearch.documents(options["index"])["1"]["name"] == "b"


async def test_what_another_program_writes_does_not_hide_the_next_version(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    await write(new(options), rows((1, "a")))
    for _ in range(9):
        opensearch.call("PUT", f"/{options['index']}/_doc/1", {"id": 1, "name": "x"})
    await write(new(options), rows((1, "a"), kind="delete", version=2))
    assert opensearch.documents(options["index"]) == {}


@pytest.mark.parametrize(
    "found",
    [
        [(8, "a"), (8, "b")],
        [(None, "a")],
    ],
    ids=["twice in a version", "null"],
)
async def test_rows_that_the_key_does_not_identify_are_refused(
    options: dict[str, Any], found: list[tuple[Any, str]]
) -> None:
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"8|null"):
        await sink.write(rows(*found))
    await sink.aclose()


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


async def test_columns_that_come_and_go(opensearch: OpenSearch, options: dict[str, Any]) -> None:
    wide = pa.struct({"a": pa.int64(), "b": pa.string()})
    await write(
        new(options),
        with_columns(1, [{"id": 1, "s": {"a": 1}}], s=pa.struct({"a": pa.int32()})),
        with_columns(2, [{"id": 2, "s": {"a": 2, "b": "x"}, "n": "new"}], s=wide, n=pa.string()),
        with_columns(3, [{"id": 3, "n": "only"}], n=pa.string()),
    )
    opensearch.call("POST", f"/{options['index']}/_refresh")
    for query in ({"term": {"s.b.keyword": "x"}}, {"term": {"n.keyword": "new"}}):
        _, found = opensearch.call("POST", f"/{options['index']}/_search", {"query": query})
        assert [hit["_id"] for hit in found["hits"]["hits"]] == ["2"], query


async def test_a_column_of_another_type_is_refused(options: dict[str, Any]) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(with_columns(1, [{"id": 1, "c": "a"}], c=pa.string()))
    changed = with_columns(2, [{"id": 1, "c": 5}], c=pa.int64())
    with pytest.raises(TargetRefused, match=r"version 2 has renamed, replaced or changed .*'c'"):
        await sink.write(changed)
    await sink.aclose()


# Indices


async def test_an_index_with_documents_is_no_place_for_a_copy(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    opensearch.call("PUT", f"/{options['index']}/_doc/1?refresh=true", {"id": 1})
    with pytest.raises(TargetRefused, match="it has documents already, and a copy begins empty"):
        await new(options).open("orders")


async def test_an_index_of_its_user_keeps_its_mappings(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    """Under an alias, also behind a reset, which empties it."""
    made = f"{options['index']}-2026"
    mappings = {"properties": {"name": {"type": "keyword"}}}
    opensearch.call("PUT", f"/{made}", {"mappings": mappings, "aliases": {options["index"]: {}}})
    await write(new(options), named())
    await new(options).set_offset("orders", None)
    assert opensearch.documents(made) == {}
    assert await new(options).look("orders") is None
    await write(new(options), named())
    _, found = opensearch.call("GET", f"/{made}/_mapping")
    assert found[made]["mappings"]["properties"]["name"] == {"type": "keyword"}
    assert set(opensearch.documents(made)) == {"0", "1"}


async def test_an_index_of_its_user_is_emptied_as_often_as_it_is_asked_for(
    opensearch: OpenSearch, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted just now has versions, which new documents must win over."""
    index = options["index"]
    opensearch.call("PUT", f"/{index}", {})
    await write(new(options), named(count=5))
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def end(*_: Any) -> bool:
        raise TransientError("killed")

    monkeypatch.setattr(sink, "_write_repair", end)
    with pytest.raises(TransientError, match="killed"):
        await sink.set_offset("orders", None)
    with pytest.raises(TargetRefused, match="has documents already"):
        await new(options).open("orders")
    for _ in range(2):
        await new(options).set_offset("orders", None)
    assert opensearch.documents(index) == {}
    await write(new(options), named(count=5))
    assert len(opensearch.documents(index)) == 5


async def test_documents_that_no_search_finds_yet_are_there(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    index = options["index"]
    opensearch.call("PUT", f"/{index}", {"settings": {"index.refresh_interval": "-1"}})
    opensearch.call("PUT", f"/{index}/_doc/1", {"id": 1})
    with pytest.raises(TargetRefused, match="has documents already"):
        await new(options).open("orders")


async def test_a_snapshot_is_not_written_over_a_copy(options: dict[str, Any]) -> None:
    """Rows that were deleted meanwhile would stay."""
    first = named(count=3)
    await write(new(options), first)
    at = structs.replace(first.next_offset, snapshot=True)
    with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
        await new(options).set_offset("orders", at)
    sink = new(options)
    await sink.open("orders")
    again = named(count=2, version=5)
    begins = structs.replace(again.offset, snapshot=True)
    ends = structs.replace(again.next_offset, snapshot=True)
    with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
        await sink.write(structs.replace(again, offset=begins, next_offset=ends))
    await sink.aclose()


async def test_a_request_that_comes_twice_is_no_other_process(
    options: dict[str, Any], opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and proxies send a PUT again whose connection was cut."""
    sink = new(options)
    assert isinstance(sink, SearchSink)
    send = sink.client.send

    async def send_twice(method: str, *more: Any, **query: Any) -> tuple[int, bytes]:
        if method == "PUT":
            await send(method, *more, **query)
        return await send(method, *more, **query)

    monkeypatch.setattr(sink.client, "send", send_twice)
    await sink.open("orders")
    await sink.write(named())
    await sink.write(named(5, version=2))
    await sink.aclose()
    assert len(opensearch.documents(options["index"])) == 4


async def test_each_attempt_asks_whether_it_is_late(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.messages.retry.ATTEMPTS", 3)
    old = new(options)
    assert isinstance(old, SearchSink)
    await write(old, named())
    await old.open("orders")
    call, bulks = old.client.call, 0

    async def fail_late(method: str, path: str, *more: Any, **query: Any) -> Any:
        nonlocal bulks
        if path.endswith("_bulk"):
            bulks += 1
            await write(new(options), rows((0, "name 0"), kind="delete", version=2))
            old._confirmed_at -= 60
            raise TransientError("no answer")
        return await call(method, path, *more, **query)

    monkeypatch.setattr(old.client, "call", fail_late)
    with pytest.raises(ConfigError, match="another process writes the index"):
        await old.write(rows((0, "late"), kind="update_postimage", version=2))
    assert bulks == 1
    await old.aclose()


async def test_an_index_that_is_removed_under_a_feed(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    """An engine makes it again for the next request: what is lost is not passed by."""
    sink, first = new(options), named()
    await sink.open("orders")
    await sink.write(first)
    opensearch.call("DELETE", f"/{options['index']}")
    with pytest.raises(TargetRefused, match=r"is missing|was deleted and made again"):
        await sink.write(named(5, version=2))
    await sink.aclose()
    with pytest.raises(TargetRefused, match="start over with `tailer offsets reset`"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    assert await new(options).look("orders") is None


async def test_indices_have_one_feed(options: dict[str, Any]) -> None:
    await write(new(options), named())
    with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
        await new(options).open("others")
    log = {name: value for name, value in options.items() if name != "key"}
    with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
        await new(log, mode="log").open("orders")


@pytest.mark.parametrize("name", ["Orders", "a b", "-a", "a/b", "a,b", "a*", ".a", ""])
async def test_names_that_no_index_can_have(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match="option 'index' of sink 'search'"):
        await new(options, index=name).open("orders")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"key": []}, "name the columns that identify a row"),
        ({"mode": "log"}, "a log has none"),
        ({"url": "ftp://a"}, "http:// or https:// URL"),
    ],
)
def test_options_are_checked(options: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        new(options, **more)


async def test_a_rehearsal_leaves_nothing(opensearch: OpenSearch, options: dict[str, Any]) -> None:
    await new(options).rehearse("orders", NAMED)
    _, indices = opensearch.call("GET", "/_cat/indices?format=json")
    assert not any(row["index"].startswith(options["index"]) for row in indices)
    assert await new(options).look("orders") is None


# Copies that are read back


@pytest.mark.parametrize("kind", ["insert", "delete"])
async def test_a_copy_is_not_compared_while_it_is_written(
    options: dict[str, Any], kind: str
) -> None:
    await write(new(options), named())
    with new(options).read_mirror("orders") as copy:
        await write(new(options), rows((1 if kind == "delete" else 7, "a"), kind=kind, version=2))
        with pytest.raises(TransientError, match="verify it again"):
            list(copy.rows(NAMED))


async def test_a_version_that_is_half_written_is_repaired_and_written_again(
    options: dict[str, Any], opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed has stopped between its documents and their offset."""
    monkeypatch.setattr("sinks.search.copy._SETTLE_S", 0.1)
    first = named()
    await write(new(options), first)
    second = rows((0, "new"), kind="update_postimage", version=2)
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def end(_: Any) -> None:
        raise TransientError("killed")

    await sink.open("orders")
    monkeypatch.setattr(sink, "_save_offset", end)
    with pytest.raises(TransientError, match="killed"):
        await sink.write(second)
    await sink.aclose()
    with new(options).read_mirror("orders") as copy:
        assert copy.offset == first.next_offset
        held = pa.Table.from_batches(list(copy.rows(NAMED)))
    assert sorted(held["name"].to_pylist()) == ['"name 1"', '"new"']
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((0, "name 0")))
    assert opensearch.documents(options["index"])["0"]["name"] == "name 0"
    await write(new(options), second)
    assert opensearch.documents(options["index"])["0"]["name"] == "new"


async def test_documents_of_others_are_removed_by_a_repair(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    opensearch.call("PUT", f"/{options['index']}/_doc/stray?refresh=true", {"id": 1, "name": "x"})
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((1, "name 1")))
    assert opensearch.documents(options["index"]) == {
        "0": {"id": 0, "name": "name 0"}, "1": {"id": 1, "name": "name 1"},
    }  # fmt: skip


async def test_a_document_with_a_version_of_somebody_else_is_named(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    path = f"/{options['index']}/_doc/1?version={2**62}&version_type=external"
    opensearch.call("PUT", path, {"id": 1, "name": "x"})
    with (
        new(options).repair_mirror("orders") as mirror,
        pytest.raises(TargetRefused, match="have a later version than the feed's"),
    ):
        mirror.replace(rows((1, "name 1")))


async def test_a_log_has_the_order_of_the_events(
    opensearch: OpenSearch, options: dict[str, Any]
) -> None:
    log = {name: value for name, value in options.items() if name != "key"}
    batch = change_span(
        NAMED, [[[{"id": i, "name": "a"} for i in range(3)]], [[{"id": 9, "name": "b"}]]]
    )
    await write(new(log, mode="log"), batch)
    await new(log, mode="log").set_offset("orders", batch.offset)
    await write(new(log, mode="log"), batch)
    found = sorted(opensearch.documents(options["index"]).values(), key=lambda row: row["_seq"])
    assert [row["id"] for row in found] == [0, 1, 2, 9]
    assert found[0]["_event_id"] == batch.event_ids()[0].as_py()


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b"<html>", b"{}", b'{"items":[]}', b'{"items":[{"index":{}}]}', b"\xff", b"{"],
)
async def test_what_an_answer_lacks_is_a_passing_fault(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Of somebody between the engine and us."""
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def lie(*_: Any, **__: Any) -> tuple[int, bytes]:
        return 200, said

    await sink.open("orders")
    await sink.write(named(count=1))
    monkeypatch.setattr(sink.client, "send", lie)
    with pytest.raises(TransientError):
        await sink.write(named(5, version=2))
    await sink.aclose()
    with pytest.raises(TransientError):
        await sink.open("orders")
    await sink.aclose()
