"""Where a row goes by what is in it: names, and the targets that take them."""

from __future__ import annotations

import datetime as dt
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import nats
import pika
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from sinks.shared.routes import Route, Targets
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, RowsRefused, TargetRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch, change_span
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh, opened
from tests.kafka.topics import admin, events
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.message_targets import nats_events, rabbitmq_events, redis_events
from tests.support.sinks import write
from tests.support.webhook import webhook

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("day", pa.date32())])
UNSAFE = re.compile(r"[^A-Za-z0-9-]+")
COUNTRIES = ["DE", "FR", None, "DE", "a b/ü", ""]


def rows(count: int = 6, *, version: int = 1) -> ChangeBatch:
    found = [
        {"id": i, "country": COUNTRIES[i % 6], "day": dt.date(2024, 1, 1 + i)} for i in range(count)
    ]
    return change_batch(SCHEMA, found, version=version, last=True)


def own(name: str) -> dict[str, str]:
    """The options of a sink with progress of its own."""
    return {"transactional_id": name, "progress_topic": f"{name}-progress"}


def route(template: str) -> Route:
    return Route(template, "topic", ("feed",), UNSAFE)


def test_a_name_has_the_values_of_its_row() -> None:
    names = route("{feed}.{country|none}.{day}").name_rows(rows(), {"feed": "o"}).to_pylist()
    assert names == [
        "o.DE.2024-01-01", "o.FR.2024-01-02", "o.none.2024-01-03", "o.DE.2024-01-04",
        "o.a_20b_2F_C3_BC.2024-01-05", "o.none.2024-01-06",
    ]  # fmt: skip
    assert route("x.{country}").name_rows(rows(3), {}).to_pylist() == ["x.DE", "x.FR", "x.null"]
    assert route("x.{country}").mask_columns("*") == "x.*"
    assert not route("{feed}").columns
    tagged = route("{{orders}}.{country}")
    assert tagged.name_rows(rows(1), {}).to_pylist() == ["{orders}.DE"]
    assert tagged.columns == ["country"]


def test_rows_of_a_target_keep_their_order_and_places() -> None:
    found = dict(route("{country}").split_rows(rows(12), {}))
    assert sorted(found) == ["DE", "FR", "a_20b_2F_C3_BC", "null"]
    assert found["DE"].rows["id"].to_pylist() == [0, 3, 6, 9]
    assert found["DE"].row_indices().to_pylist() == [0, 3, 6, 9]
    ids = rows(12).event_ids().to_pylist()
    for part in found.values():
        assert part.event_ids().to_pylist() == [ids[i] for i in part.rows["id"].to_pylist()]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_groups_are_what_filters_would_give(
    versions: list[list[int]], random: Any, names: int
) -> None:
    files = [[[{"id": i} for i in range(count)] for count in version] for version in versions]
    batch = change_span(SCHEMA, files)
    codes = pa.array([random.randrange(names) for _ in range(batch.num_rows)], pa.int32())
    codes = codes.dictionary_encode().indices  # numbers in the order of their first rows
    found = list(batch.groups(codes))
    filtered = [batch.kept(pc.equal(codes, code)) for code in range(len(found))]
    for one, other in zip(found, filtered, strict=True):
        assert one.rows == other.rows
        assert one.event_ids() == other.event_ids()
        assert one.row_indices() == other.row_indices()
        assert one.parts() == other.parts()
        assert (one.offset, one.next_offset, one.timestamp_ms) == (
            other.offset, other.next_offset, other.timestamp_ms,
        )  # fmt: skip
    assert sum(each.num_rows for each in found) == batch.num_rows


@given(st.lists(st.text() | st.none(), min_size=1, max_size=20))
def test_any_value_gives_a_name_that_can_be(values: list[str | None]) -> None:
    data = [{"id": i, "country": v, "day": None} for i, v in enumerate(values)]
    batch = change_batch(SCHEMA, data)
    names = route("t.{country}").name_rows(batch, {}).to_pylist()
    assert all(re.fullmatch(r"t\.[A-Za-z0-9_-]+", name) for name in names)


def test_a_column_that_is_not_there_or_is_no_name_is_refused() -> None:
    said = r"names the column 'countri', which the rows do not have \(did you mean 'country'\?\)"
    with pytest.raises(ConfigError, match=said):
        route("{countri}").check(SCHEMA)
    with pytest.raises(ConfigError, match="'l', which is a list"):
        route("{l}").check(pa.schema([("l", pa.list_(pa.int64()))]))


def test_a_feed_makes_so_many_targets_and_no_more() -> None:
    targets = Targets(2)
    for name in ("a", "b", "a"):
        targets.add(name, "the topic")
    with pytest.raises(TargetRefused, match="the topic 'c' would be one more than 2"):
        targets.add("c", "the topic")


@pytest.mark.anyio
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_kafka_has_a_topic_for_each_value(kafka: Broker, delivery: str) -> None:
    name = fresh()
    options: dict[str, Any] = {"delivery": delivery, **own(name)}
    async with opened(kafka.bootstrap, name + ".{country}", **options) as (sink, _):
        sink.check_columns(SCHEMA)
        await sink.write(rows())
        await sink.write(rows(version=2))
        kept = sink.check_record_form("orders", None, None)
    made = {t for t in admin(kafka.bootstrap).list_topics(timeout=100).topics if name in t}
    assert {f"{name}.{c}" for c in ("DE", "FR", "null", "a_20b_2F_C3_BC")} <= made
    assert [e["id"] for e in events(kafka.bootstrap, f"{name}.DE")] == [0, 3, 0, 3]
    assert [e["id"] for e in events(kafka.bootstrap, f"{name}.null")] == [2, 5, 2, 5]
    if delivery == "exactly-once":
        async with opened(kafka.bootstrap, name + ".{country}", **options) as (sink, offset):
            assert offset == rows(version=2).next_offset
            await sink.write(rows(2, version=3))
        assert [e["id"] for e in events(kafka.bootstrap, f"{name}.DE")] == [0, 3, 0, 3, 0]
    else:
        assert len(kept["topics"]) == 4


@pytest.mark.anyio
async def test_nats_has_a_subject_for_each_value(nats_server: Nats) -> None:
    options = {"servers": [nats_server.url()], "stream": "routed", "subject": "routed.{country}"}
    await write(make_sink("nats", options, Path()), rows())
    assert [e.payload["id"] for e in nats_events(nats_server, "routed")] == [0, 1, 2, 3, 4, 5]
    client = await nats.connect(nats_server.url())
    try:
        info = await client.jetstream().stream_info("routed", subjects_filter=">")
    finally:
        await client.close()
    assert info.config.subjects == ["routed.*"]
    assert info.state.subjects == {
        "routed.DE": 2, "routed.FR": 1, "routed.null": 2, "routed.a_20b/ü": 1
    }  # fmt: skip


@pytest.mark.anyio
async def test_rabbitmq_has_a_routing_key_for_each_value(rabbitmq_server: RabbitMq) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        channel = client.channel()
        for queue, key in (("germany", "by.DE"), ("others", "by.#")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", key)
    options = {
        "url": rabbitmq_server.url(), "queue": "unused", "exchange": "amq.topic",
        "routing_key": "by.{country}",
    }  # fmt: skip
    await write(make_sink("rabbitmq", options, Path()), rows())
    found = [e.payload["id"] for e in rabbitmq_events(rabbitmq_server, "germany")]
    assert found == [0, 3]
    assert len(rabbitmq_events(rabbitmq_server, "others")) == 6


@pytest.mark.anyio
async def test_rabbitmq_has_an_exchange_for_each_value(rabbitmq_server: RabbitMq) -> None:
    url = rabbitmq_server.url()
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as client:
        channel = client.channel()
        for exchange in ("of-DE", "of-FR"):
            channel.exchange_declare(exchange, "direct", durable=True)
            channel.queue_declare(exchange, durable=True)
            channel.queue_bind(exchange, exchange, "orders")
    options = {
        "url": url, "exchange": "of-{country}", "routing_key": "{feed}", "queue": "unused",
    }  # fmt: skip
    sink = make_sink("rabbitmq", options, Path())
    assert {name for name, _ in sink.preview("orders", rows(2))} == {"of-DE/orders", "of-FR/orders"}
    await write(sink, rows(2))
    for exchange, ids in (("of-DE", [0]), ("of-FR", [1])):
        found = rabbitmq_events(rabbitmq_server, exchange)
        assert [e.payload["id"] for e in found] == ids
    with pytest.raises(ConfigError, match="no exchange 'of-null'"):
        await write(sink, rows(3, version=2))
    with pytest.raises(ConfigError, match="option 'exchange' names the column 'land'"):
        make_sink("rabbitmq", {**options, "exchange": "{land}"}, Path()).check_columns(SCHEMA)


def stream_ids(server: Redis, stream: str) -> list[int]:
    return [event.payload["id"] for event in redis_events(server, stream)]


@pytest.mark.anyio
async def test_redis_has_a_stream_for_each_value(redis_server: Redis) -> None:
    options = {"url": redis_server.url(), "stream": "{{routed}}:{country}"}
    sink = make_sink("redis", options, Path())
    await write(sink, rows())
    await write(sink, rows(2, version=2))
    found = {c: stream_ids(redis_server, f"{{routed}}:{c}") for c in ("DE", "FR", "null", "a b/ü")}
    assert found == {"DE": [0, 3, 0], "FR": [1, 1], "null": [2, 5], "a b/ü": [4]}
    with closing(redis.Redis.from_url(redis_server.url())) as client:
        progress = "delta-tailer:{routed}:{routed}:*"
        assert client.exists(progress)
        client.delete("{routed}:FR")
        with pytest.raises(TargetRefused, match=r"the stream \{routed\}:\* is missing"):
            await sink.open("orders")
        await sink.set_offset("orders", rows(2, version=2).next_offset)
        client.set("{routed}:null", "of somebody else")
        with pytest.raises(TargetRefused, match=r"the key '\{routed\}:null' is no stream"):
            await write(sink, rows(version=3))
        assert stream_ids(redis_server, "{routed}:DE") == [0, 3, 0]
        client.delete("{routed}:null")
    await write(sink, rows(version=3))
    assert stream_ids(redis_server, "{routed}:DE") == [0, 3, 0, 0, 3]
    assert sink.targets == 4
    assert await sink.open("orders") == rows(version=3).next_offset
    await sink.aclose()
    with pytest.raises(ConfigError, match="names the column 'tag'"):
        make_sink("redis", {**options, "stream": "{tag}:x"}, Path()).check_columns(SCHEMA)


@pytest.mark.anyio
@pytest.mark.parametrize("in_flight", [1, 4])
async def test_a_webhook_has_a_url_for_each_value(in_flight: int) -> None:
    async with webhook() as hook:
        url = f"{hook.url}/{{feed}}/{{country|none}}?on={{day}}"
        options = {"url": url, "key": ["id"], "in_flight": in_flight, "request_events_max": 1}
        sink = make_sink("http", options, Path())
        sink.check_columns(SCHEMA)
        await write(sink, rows())
        came: dict[str, list[int]] = {}
        for asked, body in zip(hook.targets, hook.taken, strict=True):
            came.setdefault(asked, []).extend(e["data"]["id"] for e in json.loads(body[1]))
        if in_flight == 1:
            assert [json.loads(body)[0]["data"]["id"] for _, body in hook.taken] == list(range(6))
    assert came == {
        "/hook/orders/DE?on=2024-01-01": [0], "/hook/orders/FR?on=2024-01-02": [1],
        "/hook/orders/none?on=2024-01-03": [2], "/hook/orders/DE?on=2024-01-04": [3],
        "/hook/orders/a%20b%2F%C3%BC?on=2024-01-05": [4], "/hook/orders/none?on=2024-01-06": [5],
    }  # fmt: skip


@pytest.mark.anyio
async def test_requests_of_a_url_follow_one_another_and_lead_nowhere_else() -> None:
    values = ["a", "..", "b", "a", ".", "b", "a"]
    data = [{"id": i, "country": v, "day": None} for i, v in enumerate(values)]
    async with webhook() as hook:
        options = {"url": f"{hook.url}/{{country}}", "key": ["id"], "request_events_max": 2}
        await write(make_sink("http", options, Path()), change_batch(SCHEMA, data, last=True))
        came = [
            (asked, [e["data"]["id"] for e in json.loads(body)])
            for asked, (_, body) in zip(hook.targets, hook.taken, strict=True)
        ]
    assert [ids for asked, ids in came if asked == "/hook/a"] == [[0, 3], [6]]
    assert sorted(came)[:2] == [("/hook/_2E", [4]), ("/hook/_2E_2E", [1])]


@pytest.mark.anyio
async def test_redis_adds_all_entries_of_a_piece_or_none(redis_server: Redis) -> None:
    options = {"url": redis_server.url(), "stream": "whole:{country}"}
    last = f"{2**64 - 1}-{2**64 - 1}"
    with closing(redis.Redis.from_url(redis_server.url())) as client:
        client.xadd("whole:FR", {"id": "x"}, id=last)
        for _ in range(2):
            with pytest.raises(TargetRefused, match="exhausted the last possible ID"):
                await write(make_sink("redis", options, Path()), rows(2))
        assert client.xlen("whole:DE") == 0
        assert client.xlen("whole:FR") == 1
    one = make_sink("redis", {**options, "stream": "whole:{{DE}}"}, Path())
    named = one.check_record_form(
        "orders", {"type": "redis", "format": "rows", "stream": "whole:{DE}"}, None
    )
    assert named["stream"] == "whole:{DE}", "as before braces had a meaning"


@pytest.mark.anyio
async def test_the_targets_of_earlier_processes_count(redis_server: Redis) -> None:
    options = {"url": redis_server.url(), "stream": "counted:{id}"}

    def numbered(first: int, version: int) -> ChangeBatch:
        schema = pa.schema([("id", pa.int64())])
        found = [{"id": i} for i in range(first, first + 600)]
        return change_batch(schema, found, version=version, last=True)

    await write(make_sink("redis", options, Path()), numbered(0, 1))
    with pytest.raises(TargetRefused, match="one more than 1000 targets"):
        await write(make_sink("redis", options, Path()), numbered(600, 2))


def long_names(kind: str, server: Any) -> Sink:
    """A sink whose places have a column's value."""
    where: dict[str, dict[str, Any]] = {
        "redis": {"stream": "long:{country}"},
        "rabbitmq": {"exchange": "amq.topic", "routing_key": "long.{country}"},
        "http": {"url": "http://127.0.0.1:1/{country}"},
    }
    address = {} if server is None else {"url": server.url()}
    return make_sink(kind, {**address, **where[kind]}, Path())


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["redis", "rabbitmq", "http"])
async def test_a_row_whose_name_is_too_long_is_refused_before_any_is_sent(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = None if kind == "http" else request.getfixturevalue(f"{kind}_server")
    data = [{"id": i, "country": c, "day": None} for i, c in enumerate(["a", "b" * 9000])]
    with pytest.raises(
        RowsRefused, match=r"version 1: for the event \w+-1-i, .* 90\d\d bytes"
    ) as e:
        await write(long_names(kind, server), change_batch(SCHEMA, data, last=True))
    assert len(str(e.value)) < 400
    if kind == "redis":
        assert server is not None
        with closing(redis.Redis.from_url(server.url())) as client:
            assert not client.exists("long:a")


@pytest.mark.parametrize("name", ["queue", "exchange", "routing_key"])
def test_a_name_with_a_line_break_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' of sink 'rabbitmq' has a line break"):
        make_sink("rabbitmq", {"url": "amqp://a", name: "a\nb"}, Path())


@pytest.mark.parametrize(
    "url", ["https://{c}.example/x", "https://example/x#{c}", "https://example/{c", "https://e/?}"]
)
def test_a_url_has_columns_in_its_path_and_its_query_alone(url: str) -> None:
    with pytest.raises(ConfigError, match="columns stand in braces, in its path or its query"):
        make_sink("http", {"url": url}, Path())


@pytest.mark.anyio
async def test_two_pairs_of_braces_are_one_that_is_meant_so() -> None:
    async with webhook() as hook:
        for url in ("/{{x}}", "/{{x}}/{country}"):
            await write(make_sink("http", {"url": hook.url + url}, Path()), rows(1))
    assert hook.targets == ["/hook/{x}", "/hook/{x}/DE"]
    options = {"url": "amqp://a", "exchange": "e"}
    for key, name in (("{{x}}", "e/{x}"), ("{{x}}.{country}", "e/{x}.DE")):
        sink = make_sink("rabbitmq", {**options, "routing_key": key}, Path())
        assert [place for place, _ in sink.preview("orders", rows(1))] == [name]


def test_what_may_be_a_secret_beside_a_column_is_hidden() -> None:
    url = "https://example/hook/s3cr3tT0KEN2{country}/by?key=s3cr3tK3Y{country}"
    ((place, _),) = make_sink("http", {"url": url}, Path()).preview("orders", rows(1))
    assert "s3cr3t" not in place
    assert "KEN2" not in place
