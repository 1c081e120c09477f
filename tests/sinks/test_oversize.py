"""Values that are larger than `value_bytes_max`: refused, cut, or written elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sinks.formats.load import load_encoder
from sinks.formats.registry import Registry
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, RowsRefused, UnsupportedTable
from tailer.sink import make_sink
from tailer.sink.encoder import Encoder, Records
from tailer.testing.batches import change_batch
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh, opened
from tests.s3.fixture import S3Server
from tests.sinks.formats import MemoryRegistry
from tests.support.brokers import Redis
from tests.support.message_targets import redis_messages
from tests.support.protobuf import read_message
from tests.support.source import ROOT
from tests.support.topic_records import read_topic

LIMIT = 1024
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("data", pa.binary()),
                    ("tags", pa.list_(pa.string()))])  # fmt: skip
FORMATS = ("rows", "debezium", "cloudevents")


def encoder(format: str = "rows", what: str = "truncate", **more: Any) -> Encoder:  # noqa: A002
    options = {"value_bytes_max": LIMIT, "on_oversize": what, "name": "orders", **more}
    return load_encoder(format, options)


def batch_of(*rows: dict[str, Any]) -> ChangeBatch:
    empty = {"note": None, "data": None, "tags": None}
    return change_batch(SCHEMA, [{**empty, **row} for row in rows], last=True)


def values(records: Records) -> list[Any]:
    return [None if value is None else json.loads(value) for value in
            records.whole_values().to_pylist()]  # fmt: skip


def row_of(value: dict[str, Any]) -> dict[str, Any]:
    """The row of an event, in any of the formats."""
    found: dict[str, Any] = value["data"] if "specversion" in value else value
    row: dict[str, Any] = found.get("after", found)
    return row


TEXTS = st.text(max_size=40).flatmap(lambda text: st.integers(0, 120).map(lambda n: text * n))
ROWS = st.lists(st.fixed_dictionaries({"note": TEXTS, "data": TEXTS.map(str.encode)}), max_size=6)


@pytest.mark.parametrize("format", FORMATS)
@given(rows=ROWS)
def test_what_is_too_large_is_cut_and_named_and_nothing_else_is(
    format: str,  # noqa: A002
    rows: list[dict[str, Any]],
) -> None:
    batch = batch_of(*({"id": i, **row} for i, row in enumerate(rows)))
    plain = load_encoder(format, {"name": "orders"}).encode(batch).whole()
    cut = encoder(format).encode(batch).whole()
    assert (cut.num_records, cut.keys) == (plain.num_records, plain.keys)
    own = dict(cut.headers)
    assert {name for name, _ in plain.headers} == set(own)
    for number, (before, after) in enumerate(zip(values(plain), values(cut), strict=True)):
        size = len(plain.whole_values()[number].as_py())
        was, found = row_of(before), row_of(after)
        mark = found.pop("_truncated")
        assert len(cut.whole_values()[number].as_py()) <= LIMIT
        if mark is None:
            assert found == was
            assert size + len(',"_truncated":null') <= LIMIT or mark is None
            continue
        assert size > LIMIT - 100, "it was cut for nothing"
        assert {name for name in was if found[name] != was[name]} <= set(mark) <= {"note", "data"}
        assert was["note"].startswith(found["note"])


def test_both_images_of_an_update_are_cut() -> None:
    old, new = {"id": 1, "note": "a" * 900}, {"id": 1, "note": "b" * 700, "data": b"c" * 1500}
    batch = batch_of({**new, "_change_type": "update_postimage"})
    image = pa.array([{**old, "data": None, "tags": None}], pa.struct(list(SCHEMA)))
    made = encoder("debezium", key=["id"]).encode(structs.replace(batch, before=image))
    (value,) = values(made)
    before, after = value["before"], value["after"]
    assert set(before["note"]) == {"a"}
    assert set(after["note"]) | {"b"} == {"b"}
    assert after["_truncated"] == ["data", "note"]
    assert before["_truncated"] is None


def test_what_can_not_be_cut_is_refused() -> None:
    with pytest.raises(RowsRefused, match=r"version 1: .* has \d+ bytes, and at most 1024 are sent,"
                       r" and its texts and bytes are not enough to cut"):  # fmt: skip
        encoder().encode(batch_of({"id": 1, "tags": ["x" * 2000]}))
    with pytest.raises(RowsRefused, match=r"at most 1024 are sent; exclude columns with `select`"):
        encoder(what="fail").encode(batch_of({"id": 1}, {"id": 2, "note": "x" * 2000}))
    schema = pa.schema([("k", pa.string())])
    key = change_batch(schema, [{"k": "x" * 2000}], last=True)
    with pytest.raises(RowsRefused, match="not enough to cut"):
        encoder("upsert", key=["k"]).encode(key)


def test_a_row_is_cut_by_itself_alone() -> None:
    """Whatever stands beside it, and as far as it takes."""
    rows: list[dict[str, Any]] = [
        {"id": 1, "note": "x" * 860}, {"id": 2, "_change_type": "delete"},
        {"id": 3, "note": "\x01" * 300}, {"id": 4, "note": "ü" * 2000},
    ]  # fmt: skip
    made = encoder(key=["id"], tombstones=True)
    whole = made.encode(batch_of(*rows)).whole()
    alone = [made.encode(batch_of(*rows).slice(i, i + 1)).whole_values() for i in range(4)]
    assert whole.whole_values().to_pylist() == [v for one in alone for v in one.to_pylist()]
    for place in (3, 4):
        assert LIMIT - 8 < len(whole.whole_values()[place].as_py()) <= LIMIT
    ids: Any = dict(whole.headers)["_event_id"]
    assert pa.types.is_string(ids.type)


def test_the_records_of_a_version_keep_their_order() -> None:
    """A key that one row leaves and another takes ends with the row."""
    rows: list[dict[str, Any]] = [
        {"id": 1, "note": "new"}, {"id": 2, "note": "x" * 3000}, {"id": 3},
        {"id": 1, "note": "old", "_change_type": "delete"},
    ]  # fmt: skip
    made = encoder("upsert", key=["id"]).encode(batch_of(*rows)).whole()
    plain = load_encoder("upsert", {"key": ["id"]}).encode(batch_of(*rows)).whole()
    assert made.keys == plain.keys
    empty = [value is None for value in plain.whole_values().to_pylist()]
    assert [value is None for value in made.whole_values().to_pylist()] == empty


def test_what_is_in_no_record_is_not_cut() -> None:
    """As the old row of an upsert."""
    image = pa.array([{"id": 1, "note": "o" * 20_000, "data": None, "tags": None}],
                     pa.struct(list(SCHEMA)))  # fmt: skip
    new = {"id": 1, "note": "n" * 100, "data": b"d" * 900, "_change_type": "update_postimage"}
    batch = structs.replace(batch_of(new), before=image)
    (row,) = values(encoder("upsert", key=["id"]).encode(batch))
    assert row["_truncated"] == ["data"] or row["note"] != "n" * 100


def test_a_tombstone_stays_one() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "note": "x" * 3000, "_change_type": "delete"}, {"id": 2},
    ]  # fmt: skip
    records = encoder(key=["id"], tombstones=True).encode(batch_of(*rows))
    assert [v is None for v in records.whole_values().to_pylist()] == [False, True, False]
    ids: Any = dict(records.whole_headers())["_event_id"]
    assert ids[1].as_py() == (
        ids[0].as_py() + (b"-t" if isinstance(ids[0].as_py(), bytes) else "-t")
    )


def test_the_mark_is_a_column_of_ours() -> None:
    with pytest.raises(UnsupportedTable, match="a column '_truncated' of its own"):
        encoder().own.check(["id", "_truncated"])
    other = encoder(own_prefix="x_")
    other.own.check(["id", "_truncated"])
    (value,) = values(other.encode(batch_of({"id": 1})))
    assert value["x_truncated"] is None


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_too_large_is_elsewhere(tmp_path: Path, format: str) -> None:  # noqa: A002
    rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "note": "x" * 5000}, {"id": 3}]
    plain = load_encoder(format, {"name": "orders"}).encode(batch_of(*rows))
    made = encoder(format, "offload", offload_to=str(tmp_path / "large"))
    for _ in range(2):  # it may be sent again
        first, at, last = values(made.encode(batch_of(*rows)))
    assert [first, last] == [values(plain)[0], values(plain)[2]]
    where = Path(at["_offloaded"]["url"])
    body = plain.whole_values()[1].as_py()
    assert where.read_bytes() == body
    assert at["_offloaded"]["bytes"] == len(body)
    assert at["_offloaded"]["sha256"] == hashlib.sha256(body).hexdigest()
    assert at["_event_id"] == str(dict(plain.whole_headers())["_event_id"][1])
    assert [p.name for p in (tmp_path / "large" / "orders").iterdir()] == [where.name]


def test_a_preview_writes_nothing(tmp_path: Path) -> None:
    options = {
        "value_bytes_max": LIMIT,
        "on_oversize": "offload",
        "offload_to": str(tmp_path / "x"),
    }
    batch = batch_of({"id": 1, "note": "x" * 5000})
    seen = load_encoder("rows", options, dry=True).encode(batch)
    assert not (tmp_path / "x").exists()
    assert values(seen) == values(load_encoder("rows", options).encode(batch))


def test_a_store_keeps_them(s3_server: S3Server) -> None:
    place = s3_server.container()
    to = {"offload_to": place.address("large"), "offload_options": place.options}
    (at,) = values(encoder("rows", "offload", **to).encode(batch_of({"id": 1, "note": "x" * 5000})))
    assert at["_offloaded"]["url"].startswith(place.address("large") + "/orders/")


@pytest.mark.parametrize(
    ("format", "options", "said"),
    [
        ("rows", {"on_oversize": "truncate"}, "need a limit: set value_bytes_max"),
        ("rows", {"offload_to": "/x"}, "need a limit: set value_bytes_max"),
        ("rows", {"value_bytes_max": 2000, "on_oversize": "offload"}, "need one another"),
        ("rows", {"value_bytes_max": 2000, "offload_to": "/x"}, "need one another"),
        ("rows", {"value_bytes_max": 10}, "1024"),
        ("rows", {"value_bytes_max": 2000, "on_oversize": "offload", "offload_to": "x"},
         "a whole path, or an address"),
        ("upsert", {"key": ["id"], "value_bytes_max": 2000, "on_oversize": "offload",
                    "offload_to": "/x"}, "the format 'upsert' can't say where a value is"),
        ("protobuf", {"value_bytes_max": 2000, "on_oversize": "offload", "offload_to": "/x",
                      "registry": {"url": "http://x"}},
         "the format 'protobuf' can't say where a value is"),
    ],
)  # fmt: skip
def test_options_belong_together(format: str, options: dict[str, Any], said: str) -> None:  # noqa: A002
    with pytest.raises(ConfigError, match=said):
        load_encoder(format, options)


@pytest.mark.parametrize("format", ["avro", "json_schema", "protobuf"])
def test_formats_of_a_registry_are_cut_too(format: str) -> None:  # noqa: A002
    registry = MemoryRegistry()
    options = {"value_bytes_max": LIMIT, "on_oversize": "truncate", "topic": "t"}
    made = load_encoder(format, options, registry=cast("Registry", registry))
    rows: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "note": "x" * 5000}]
    found = made.encode(batch_of(*rows)).whole_values().to_pylist()
    assert all(len(value) <= LIMIT for value in found)
    _, schema = registry.schemas[-1]
    cut: Any
    if format == "json_schema":
        cut = json.loads(found[1][5:])
    elif format == "protobuf":
        cut = read_message(schema, found[1][6:])
    else:
        cut = fastavro.schemaless_reader(io.BytesIO(found[1][5:]), json.loads(schema))
    assert cut["_truncated"] == ["note"]
    assert set(cut["note"]) == {"x"}


@pytest.mark.anyio
@pytest.mark.parametrize("more", [{}, {"delivery": "at-least-once"}])
async def test_kafka_gets_what_fits(kafka: Broker, tmp_path: Path, more: dict[str, Any]) -> None:
    topic, large = fresh(), tmp_path / "large"
    rows: list[dict[str, Any]] = [{"id": i, "note": "x" * (5000 * (i % 2))} for i in range(6)]
    options = {"value_bytes_max": LIMIT, "on_oversize": "offload", "offload_to": str(large), **more}
    async with opened(kafka.bootstrap, topic, **options) as (sink, _):
        await sink.write(batch_of(*rows))
    found = [json.loads(m.value or b"") for m in read_topic(kafka.bootstrap, topic)]
    body = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(program, scope)  # noqa: S102  # the page's
    read = [scope["read_event"](json.dumps(v), lambda at: Path(at).read_bytes()) for v in found]
    assert sorted((row["id"], row["note"]) for row in read) == [(r["id"], r["note"]) for r in rows]
    assert len(list((large / "orders").iterdir())) == 3


@pytest.mark.anyio
async def test_messages_get_what_fits_and_the_rest_is_refused(redis_server: Redis) -> None:
    stream = fresh()
    options = {"url": redis_server.url(), "stream": stream, "value_bytes_max": LIMIT}
    sink = make_sink("redis", options, Path())
    await sink.open("orders")
    rows = [{"id": 1, "note": "a"}, {"id": 2, "note": "x" * 5000}, {"id": 3, "note": "b"}]
    batch = batch_of(*rows)
    with pytest.raises(RowsRefused, match="and at most 1024 are sent"):
        await sink.write(batch)
    for first in (0, 2):  # as a feed does that parks the row between them
        await sink.write(batch.slice(first, first + 1))
    await sink.aclose()
    sent = [json.loads(body) for _, body in redis_messages(redis_server, stream)]
    assert [row["id"] for row in sent] == [1, 3]
    with pytest.raises(ConfigError, match="a copy has whole rows"):
        make_sink("redis", {**options, "mode": "mirror", "key": ["id"]}, Path())
