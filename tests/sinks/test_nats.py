"""The NATS sink beyond the public suite: its fences, what a crash leaves, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from tailer.changes import Offset
from tailer.errors import ConfigError, SinkRejected, TailerError, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.brokers import PASSWORD, Nats
from tests.support.components import free_port
from tests.support.message_targets import nats_events
from tests.support.sinks import NAMED, named, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def options(nats_server: Nats, request: pytest.FixtureRequest) -> dict[str, Any]:
    name = request.node.name
    return {"servers": [nats_server.url()], "stream": name, "subject": name}


@pytest.fixture
async def client(nats_server: Nats) -> AsyncIterator[Any]:
    connection = await nats.connect(nats_server.url())
    yield connection.jetstream()
    await connection.close()


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("nats", {**options, **more}, Path())


def ids(server: Nats, options: dict[str, Any]) -> list[int]:
    return [event.payload["id"] for event in nats_events(server, options["stream"])]


async def test_a_newer_process_fences_the_older_one(
    nats_server: Nats, options: dict[str, Any]
) -> None:
    older, newer = new(options), new(options)
    await older.open("orders")
    await older.write(named())
    assert await newer.open("orders") == named().next_offset
    await newer.write(named(2, version=2))
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.write(named(2, version=2))
    for sink in (older, newer):
        await sink.aclose()
    assert ids(nats_server, options) == [0, 1, 2, 3]


async def test_a_process_that_was_paused_in_its_claim_stores_nothing(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    """A newer one has claimed the stream and written it meanwhile; readers have removed that."""
    await write(new(options), named())
    older, newer = new(options), new(options)
    save = older._save_progress  # type: ignore[attr-defined]

    async def save_and_pause(progress: Any) -> None:
        await save(progress)
        await newer.open("orders")
        await newer.write(named(2, version=2))
        await client.purge_stream(options["stream"])

    older._save_progress = save_and_pause  # type: ignore[attr-defined]
    await older.open("orders")
    older._save_progress = save  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.write(named(4, version=3))
    assert ids(nats_server, options) == []
    await newer.write(named(4, version=3))
    for sink in (older, newer):
        await sink.aclose()
    assert ids(nats_server, options) == [4, 5]


async def test_what_an_older_process_sent_last_is_not_sent_again(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    """It stored messages, and could not store the offset behind them."""
    older, newer = new(options), new(options)
    await older.open("orders")
    await older.write(named())
    assert await newer.open("orders") == named().next_offset
    with pytest.raises(ConfigError, match="another process writes the stream"):
        await older.write(named(2, 3, version=2))
    await newer.write(named(2, 4, version=2))  # which has the same ones first
    await client.publish(options["stream"], b"{}", headers={"Nats-Msg-Id": "of others"})
    following = named(6, 4, version=3)
    with pytest.raises(TransientError, match="somebody else publishes to the stream"):
        await newer.write(following)
    assert await newer.open("orders") == named(2, 4, version=2).next_offset
    await client.delete_msg(options["stream"], 7)
    await newer.write(following)
    for sink in (older, newer):
        await sink.aclose()
    assert ids(nats_server, options) == list(range(10))


async def test_what_a_reader_has_removed_is_not_missed(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    await client.purge_stream(options["stream"])
    await write(new(options), named(2, version=2))
    assert ids(nats_server, options) == [2, 3]
    await client.delete_stream(options["stream"])
    with pytest.raises(ConfigError, match="is missing, and the feed has written to it; restore it"):
        await new(options).open("orders")


async def test_a_large_batch_is_written_in_pieces(
    nats_server: Nats, options: dict[str, Any]
) -> None:
    await write(new(options), named(count=1300))
    assert ids(nats_server, options) == list(range(1300))


async def test_an_event_that_is_too_large_is_named(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 1_100_000}], version=7, last=True)
    with pytest.raises(SinkRejected, match=r"version 7: the event .*; increase max_payload of the"):
        await write(new(options), batch)
    assert ids(nats_server, options) == []
    config = (await client.stream_info(options["stream"])).config
    config.max_msg_size = 500
    await client.update_stream(config)
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 1000}], last=True)
    with pytest.raises(SinkRejected, match="message size exceeds maximum allowed"):
        await write(new(options), batch)


async def test_a_stream_that_is_full_is_said_to_be_full(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    """Only the last message of a request has an answer: that those before it are missing."""
    config = StreamConfig(name=options["stream"], subjects=[options["subject"]], max_msgs=20,
                          discard=DiscardPolicy.NEW)  # fmt: skip
    await client.add_stream(config)
    sink = new(options)
    for room in (20, 30):
        config.max_msgs = room
        await client.update_stream(config)
        for _ in range(2):  # each attempt begins behind what the stream has
            await sink.open("orders")
            with pytest.raises(TransientError, match="maximum messages exceeded"):
                await sink.write(named(count=50))
            assert ids(nats_server, options) == [*range(room)]
    config.max_msgs = 1000
    await client.update_stream(config)
    await sink.open("orders")
    await sink.write(named(count=50))
    await sink.aclose()
    assert ids(nats_server, options) == [*range(50)]


@pytest.mark.parametrize("mode", ["log", "mirror"])
async def test_a_stream_that_acknowledges_nothing_is_refused(
    client: Any, options: dict[str, Any], mode: str
) -> None:
    name = f"acknowledges-nothing-{mode}"
    if mode == "mirror":
        options = {"servers": options["servers"], "mode": mode, "bucket": name, "key": ["id"]}
        config = StreamConfig(
            f"KV_{name}", subjects=[f"$KV.{name}.>"], allow_direct=True, no_ack=True
        )
    else:
        options = {"servers": options["servers"], "stream": name, "subject": name}
        config = StreamConfig(name, subjects=[name], no_ack=True)
    await client.add_stream(config)
    with pytest.raises(ConfigError, match=r"acknowledges no message, .*; set no_ack to false"):
        await write(new(options, timeout_s=2), named())


async def test_an_event_that_is_refused_in_the_middle_is_named(
    client: Any, nats_server: Nats, options: dict[str, Any]
) -> None:
    """By its own answer, and those before it are not sent again with the others."""
    config = StreamConfig(name=options["stream"], subjects=[options["subject"]], max_msg_size=500)
    await client.add_stream(config)
    rows = [{"id": i, "name": "x" * (1000 if i == 3 else 1)} for i in range(6)]
    batch = change_batch(NAMED, rows, last=True)
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="message size exceeds maximum allowed"):
        await sink.write(batch)
    assert ids(nats_server, options) == [0, 1, 2]
    for first, end in ((0, 3), (4, 6)):  # as a feed that parks the one between
        await sink.write(batch.slice(first, end))
    await sink.aclose()
    assert ids(nats_server, options) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("option", ["stream", "subject"])
async def test_a_name_that_can_t_be_is_the_configuration_s(
    options: dict[str, Any], option: str
) -> None:
    """As a feed of a pattern has one, or one with a dot."""
    given = {**options, "stream": "fine", "subject": "fine", option: "{feed} a"}
    for feed in ("lake/orders", "lake.orders"):
        sink = new(given)
        for work in (sink.look(feed), sink.open(feed)):
            with pytest.raises(ConfigError, match=f"option '{option}' of sink 'nats': '{feed} a'"):
                await work
    if option == "stream":
        with pytest.raises(ConfigError, match=r"'lake/orders' can't be a stream.* with {table}"):
            await new({**options, "stream": "{feed}"}).open("lake/orders")


async def test_progress_can_be_set(client: Any, nats_server: Nats, options: dict[str, Any]) -> None:
    sink = new(options)
    assert await sink.look("orders") is None
    await write(sink, named())
    assert await sink.look("orders") == named().next_offset
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    await sink.set_offset("orders", None)
    assert await sink.look("orders") is None
    await write(sink, named())
    assert ids(nats_server, options) == [0, 1]  # they are there
    await sink.set_offset("orders", None)
    await client.purge_stream(options["stream"])
    with pytest.raises(TransientError, match="takes them again when its duplicate window is over"):
        await write(sink, named())


async def test_what_others_have_is_refused(client: Any, options: dict[str, Any]) -> None:
    await write(new(options), named())
    with pytest.raises(ConfigError, match="is written by the feed 'orders'; name another"):
        await new(options).open("customers")
    with pytest.raises(ConfigError, match="no stream takes the subject nobody; add it"):
        await write(new(options, subject="nobody"), named())
    with pytest.raises(ConfigError, match=r"there is no stream none .*create is false; make them"):
        await new(options, stream="none", create=False).open("orders")
    await (await client.key_value("delta-tailer")).put(options["stream"], b"{}")
    with pytest.raises(ConfigError, match=r"is damaged .*; delete it, and set the offset with"):
        await new(options).open("orders")


async def test_an_account_or_a_server_that_is_not_there(
    nats_server: Nats, options: dict[str, Any]
) -> None:
    wrong = [nats_server.url(password="not it")]
    with pytest.raises(ConfigError, match=r"Authorization Violation.*; check the account") as e:
        await new(options, servers=wrong).open("orders")
    assert "not it" not in str(e.value)
    with pytest.raises(ConfigError, match=r"[Pp]ermissions [Vv]iolation.*; check the account"):
        await new(options, servers=[nats_server.url("reader")], timeout_s=5).open("orders")
    away = [f"nats://me:{PASSWORD}@127.0.0.1:{free_port()}"]
    with pytest.raises(TransientError, match=r"NATS at 127.0.0.1:\d+: ") as refused:
        await new(options, servers=away).open("orders")
    assert PASSWORD not in str(refused.value)


async def test_a_server_that_ends_is_waited_for() -> None:
    with Nats() as server:
        sink = new({"servers": [server.url()], "timeout_s": 30})
        await sink.open("orders")
        await sink.write(named())
        server.stop()
        with pytest.raises(TransientError):
            await sink.write(named(2, version=2))
        server.start()
        assert await sink.open("orders") == named().next_offset
        await sink.write(named(2, version=2))
        await sink.aclose()
        assert len(nats_events(server, "orders")) == 4


def test_options_are_checked(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'server' of sink 'nats' is not known .did you mean"):
        new(options, server="x")
    with pytest.raises(ConfigError, match="'servers' of sink 'nats' must be a list of nats://"):
        new(options, servers="nats://me:secret@example.org")
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigError, match=r"pip install 'delta-tailer\[nats\]'"):
        new(options)


@pytest.mark.parametrize("what", ["stream", "stream again", "offset", "bucket", "both", "purged"])
async def test_what_was_written_last_must_be_there(
    nats_server: Nats,
    options: dict[str, Any],
    client: Any,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sinks.nats.stream._BUCKET", "of-its-own")
    stream = f"target-{what.replace(' ', '-')}"
    options = {**options, "stream": stream, "subject": stream}
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    if what in ("stream", "stream again", "both"):
        await client.delete_stream(stream)
    if what in ("stream again", "both"):
        await client.add_stream(name=stream, subjects=[stream])
        for _ in range(2):
            await client.publish(stream, b"{}")
    if what == "offset":
        await (await client.key_value("of-its-own")).delete(stream)
    if what in ("bucket", "both"):
        await client.delete_key_value("of-its-own")
    if what == "purged":  # readers may do that
        await client.purge_stream(stream)
        await sink.write(named(2, version=2))
        await sink.aclose()
        assert ids(nats_server, options) == [2, 3]
        return
    with pytest.raises(TailerError):
        await sink.write(named(2, version=2))
    again = new(options)
    if what in ("stream", "stream again"):
        with pytest.raises(
            ConfigError, match=f"the stream .* {'was made again' if ' ' in what else 'is missing'}"
        ):
            await again.open("orders")
    else:
        assert await again.open("orders") is None
    for each in (sink, again):
        await each.aclose()
