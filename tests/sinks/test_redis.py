"""The Redis sink beyond the public suite: its server, its accounts, and what it refuses."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tailer.changes import Offset
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.brokers import PASSWORD, Redis
from tests.support.components import free_port
from tests.support.message_targets import redis_events
from tests.support.sinks import NAMED, named, write
from tests.support.source import ROOT

pytestmark = pytest.mark.anyio


@pytest.fixture
def options(redis_server: Redis, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"url": redis_server.url(), "stream": request.node.name}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("redis", {**options, **more}, Path())


def ids(server: Redis, options: dict[str, Any]) -> list[int]:
    return [event.payload["id"] for event in redis_events(server, options["stream"])]


async def test_a_newer_process_fences_the_older_one(
    redis_server: Redis, options: dict[str, Any]
) -> None:
    older, newer = new(options), new(options)
    await older.open("orders")
    await older.write(named())
    assert await newer.open("orders") == named().next_offset
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.write(named(2, version=2))
    await newer.write(named(2, version=2))
    for sink in (older, newer):
        await sink.aclose()
    assert ids(redis_server, options) == [0, 1, 2, 3]


async def test_a_large_batch_is_written_in_pieces(
    redis_server: Redis, options: dict[str, Any]
) -> None:
    await write(new(options), named(count=12_000))
    assert ids(redis_server, options) == list(range(12_000))


@pytest.mark.parametrize("mode", ["log", "mirror"])
async def test_an_event_that_is_too_large_is_named(
    redis_server: Redis, options: dict[str, Any], mode: str
) -> None:
    """The server would end the connection, most often before its answer is read."""
    if mode == "mirror":
        options = {"url": options["url"], "mode": "mirror", "prefix": f"{mode}:", "key": ["id"]}
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 8 * 1024**2}], version=7, last=True)
    with closing(redis.Redis.from_url(redis_server.url())) as client:
        client.config_set("proto-max-bulk-len", 2 * 1024**2)
        try:
            with pytest.raises(RowsRefused) as refused:
                await write(new(options), batch)
            client.config_set("proto-max-bulk-len", 16 * 1024**2)
            await write(new(options), batch)
        finally:
            client.config_set("proto-max-bulk-len", 512 * 1024**2)
    said = "at most 2097152 can be sent; increase proto-max-bulk-len of the server, exclude columns"
    assert "version 7: the event" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize("format_", ["debezium", "cloudevents"])
async def test_formats(redis_server: Redis, options: dict[str, Any], format_: str) -> None:
    more = {"key": ["id"]} if format_ == "debezium" else {}
    await write(new(options, format=format_, table="lake", **more), named())
    with redis.Redis.from_url(redis_server.url()) as client:
        entries: Any = client.xrange(options["stream"])
    assert b'"lake"' in entries[0][1][b"event"]


async def test_progress_can_be_set(redis_server: Redis, options: dict[str, Any]) -> None:
    sink = new(options)
    assert await sink.look("orders") is None
    await write(sink, named())
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    await sink.set_offset("orders", None)
    assert await sink.look("orders") is None
    await write(sink, named())
    assert ids(redis_server, options) == [0, 1, 0, 1]


async def test_what_others_have_is_refused(redis_server: Redis, options: dict[str, Any]) -> None:
    await write(new(options), named())
    with pytest.raises(ConfigError, match=r"is written by the feed 'orders'; name another"):
        await new(options).open("customers")
    with redis.Redis.from_url(redis_server.url()) as client:
        client.set("text", "x")
        client.hset(f"delta-tailer:{{{options['stream']}}}:{options['stream']}", "offset", "{")
    with pytest.raises(SinkRejected, match="WRONGTYPE"):
        await write(new(options, stream="text"), named())
    with pytest.raises(ConfigError, match=r"is damaged .*set it by `tailer offsets set`"):
        await new(options).open("orders")


async def test_an_account_or_a_server_that_is_not_there(
    redis_server: Redis, options: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigError, match=r"WRONGPASS|invalid username-password.*option 'url'"
    ) as e:
        await new(options, url=redis_server.url(password="not it")).open("orders")
    assert "not it" not in str(e.value)
    away = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"
    with pytest.raises(TransientError, match=r"Redis at 127.0.0.1:.* nothing listens") as refused:
        await new(options, url=away).open("orders")
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("without", ["", "+xinfo|stream", "+config|get"])
async def test_an_account_has_the_rights_that_the_page_says(
    redis_server: Redis, options: dict[str, Any], without: str
) -> None:
    page = (ROOT / "docs" / "sinks" / "redis.md").read_text()
    rights = sorted({*re.findall(r"\+[a-z]+(?:\|[a-z]+)?", page)} - {without})
    keys = ("~test_*", "~delta-tailer:*")
    with closing(redis.Redis.from_url(redis_server.url())) as client:
        acl: Any = client.execute_command
        acl("ACL", "SETUSER", "limited", "reset", "on", ">pw", *keys, *rights)
    limited = {**options, "url": redis_server.url("limited", "pw")}
    large = change_batch(NAMED, [{"id": 2, "name": "x" * 2 * 1024**2}], version=2, last=True)
    await write(new(limited), named(), large)
    assert await new(limited).look("orders") == large.next_offset
    assert ids(redis_server, options) == [0, 1, 2]


async def test_memory_that_is_full_is_waited_for() -> None:
    with Redis() as server:
        sink = new({"url": server.url()})
        await sink.open("orders")
        with redis.Redis.from_url(server.url()) as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(TransientError, match="maxmemory"):
                await sink.write(named())
            client.config_set("maxmemory", 0)
        assert redis_events(server, "orders") == []
        await sink.write(named())
        server.stop()
        with pytest.raises(TransientError):
            await sink.write(named(2, version=2))
        server.start()
        assert await sink.open("orders") == named().next_offset
        await sink.write(named(2, version=2))
        await sink.aclose()
        assert len(redis_events(server, "orders")) == 4


def test_options_are_checked(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'url' of sink 'redis' must be a redis://") as e:
        new(options, url="http://secret@example.org")
    assert "secret" not in str(e.value)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'delta-tailer\[redis\]'"):
        new(options)


@pytest.mark.parametrize(
    "what", ["all", "stream", "made by a reader", "made by a writer", "progress", "earlier"]
)
async def test_what_was_written_last_must_be_there(
    redis_server: Redis, options: dict[str, Any], what: str
) -> None:
    """Nothing is added to a stream that was emptied, or that is in an earlier state."""
    sink, stream, other = new(options), options["stream"], new(options)
    progress = f"delta-tailer:{{{stream}}}:{stream}"
    await sink.open("orders")
    await sink.write(named())
    with closing(redis.Redis.from_url(redis_server.url())) as client:
        before: Any = client.dump(stream), client.dump(progress)
        await sink.write(named(2, version=2))
        gone = {"all": (stream, progress), "earlier": (stream, progress), "progress": (progress,)}
        client.delete(*gone.get(what, (stream,)))
        if what == "made by a reader":
            client.xgroup_create(stream, "readers", mkstream=True)
        elif what == "made by a writer":
            event = b'{"_change_type":"insert","_commit_version":0,"id":9}'
            client.xadd(stream, {"id": "9", "event": event})
        if what == "earlier":
            for name, dumped in zip((stream, progress), before, strict=True):
                client.restore(name, 0, dumped)
    there = ids(redis_server, options)
    said = "is not the one that was written last" if what == "earlier" else "is gone"
    with pytest.raises(TransientError, match=said):
        await sink.write(named(4, version=3))
    assert ids(redis_server, options) == there
    if what not in gone:
        for again in (sink.open("orders"), other.look("orders")):
            with pytest.raises(SinkRejected, match="is missing or was made again, without"):
                await again
        await other.set_offset("orders", Offset(7))
        assert await sink.open("orders") == Offset(7)
    else:
        kept = named().next_offset if what == "earlier" else None
        assert await sink.open("orders") == kept
    await sink.write(named(2, version=2))
    assert ids(redis_server, options)[-2:] == [2, 3]
    await sink.aclose()
