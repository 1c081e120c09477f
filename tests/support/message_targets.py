"""What lies in the targets of the sinks that send messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import nats
import nats.js.errors
import pika
import pika.exceptions
import pytest
import redis

from tailer.changes import Offset
from tailer.testing.conformance.sink import Event
from tests.support.aws import AWS_SINKS, Aws
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.components import free_port
from tests.support.pubsub import Pubsub
from tests.support.source import ROOT
from tests.support.webhook import cloud_event

T = TypeVar("T")

#: Those whose sinks are killed with a live writer.
MESSAGE_SINKS = ("http", "nats", "pubsub", "rabbitmq", "redis", *AWS_SINKS)
#: moto's server would be busy with nothing else than to say what has changed.
_AWS_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class MessageTarget:
    """A sink's options in a configuration, the events in its target, what each write changes, and
    the offset, if the target keeps it. ``by_key``: only the events of a row are in order."""

    toml: str
    events: Callable[[], Sequence[Event]]
    changed: Callable[[], object]
    offset: Callable[[], Offset | None] | None = None
    by_key: bool = False


def message_target(kind: str, folder: Path, request: pytest.FixtureRequest) -> MessageTarget:
    """An empty target."""
    name = f"t{uuid.uuid4().hex}"
    if kind == "http":
        return _webhook(folder, request)
    if kind == "nats":
        return _nats(request.getfixturevalue("nats_server"), name)
    if kind in AWS_SINKS:
        return _aws(request.getfixturevalue("aws"), kind, name)
    if kind == "pubsub":
        return _pubsub(request.getfixturevalue("pubsub"), name)
    if kind == "rabbitmq":
        return _rabbitmq(request.getfixturevalue("rabbitmq_server"), name)
    return _redis(request.getfixturevalue("redis_server"), name)


def _toml(kind: str, **options: object) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"type": kind, **options}.items()]
    return "\n".join(lines)


def _webhook(folder: Path, request: pytest.FixtureRequest) -> MessageTarget:
    """The receiver of docs/examples, which keeps each event once."""
    port, file = free_port(), folder / "received.jsonl"
    secret = f"whsec_{b64encode(bytes(32)).decode()}"
    receiver = subprocess.Popen(
        [sys.executable, ROOT / "docs/examples/webhook.py", str(port)],
        cwd=folder, env=os.environ | {"SECRETS": secret},
    )  # fmt: skip

    def end() -> None:
        receiver.kill()
        receiver.wait()

    request.addfinalizer(end)

    def events() -> Sequence[Event]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [cloud_event(json.loads(line)) for line in lines]

    toml = _toml("http", url=f"http://127.0.0.1:{port}/", secrets=[secret])
    return MessageTarget(toml, events, lambda: file.stat().st_size if file.exists() else 0)


def _redis(server: Redis, name: str) -> MessageTarget:
    def offset() -> Offset | None:
        with closing(redis.Redis.from_url(server.url())) as client:
            found: Any = client.hget(f"delta-tailer:{{{name}}}:{name}", "offset")
        return None if found is None else Offset.from_json(json.loads(found))

    def changed() -> int:
        with closing(redis.Redis.from_url(server.url())) as client:
            found: Any = client.xlen(name)
        return int(found)

    return MessageTarget(
        _toml("redis", url=server.url(), stream=name),
        lambda: redis_events(server, name), changed, offset,
    )  # fmt: skip


def row_event(event_id: str, text: bytes) -> Event:
    """An event in the format `rows`."""
    row: dict[str, Any] = json.loads(text)
    return Event(event_id, row["_change_type"], row["_commit_version"], row)


def redis_messages(server: Redis, stream: str) -> list[tuple[str, bytes]]:
    """The entries of a stream: each with its event id."""
    with closing(redis.Redis.from_url(server.url())) as client:
        found: Any = client.xrange(stream)
        return [(entry[b"id"].decode(), entry[b"event"]) for _, entry in found]


def redis_events(server: Redis, stream: str) -> Sequence[Event]:
    """The entries of a stream, in the format `rows`."""
    return [row_event(*message) for message in redis_messages(server, stream)]


def rabbitmq_events(server: RabbitMq, queue: str) -> Sequence[Event]:
    """The messages of a queue, in the format `rows`."""
    return [row_event(*message) for message in rabbitmq_messages(server, queue)]


def rabbitmq_messages(server: RabbitMq, queue: str) -> list[tuple[str, bytes]]:
    """The messages of a queue, which stay there: those that nobody acknowledges go back."""
    found = []
    with (
        closing(pika.BlockingConnection(pika.URLParameters(server.url()))) as connection,
        suppress(pika.exceptions.ChannelClosedByBroker),  # there is no such queue
    ):
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None:
                break
            assert properties.message_id is not None
            found.append((properties.message_id, body))
    return found


def with_queue(server: RabbitMq, work: Callable[[Any], object]) -> None:
    """Do something with a channel of the broker."""
    with closing(pika.BlockingConnection(pika.URLParameters(server.url()))) as connection:
        work(connection.channel())


def _rabbitmq(server: RabbitMq, name: str) -> MessageTarget:
    def changed() -> int:
        with closing(pika.BlockingConnection(pika.URLParameters(server.url()))) as connection:
            with suppress(pika.exceptions.ChannelClosedByBroker):
                answer = connection.channel().queue_declare(name, passive=True)
                return int(answer.method.message_count)
            return 0

    return MessageTarget(
        _toml("rabbitmq", url=server.url(), queue=name, queue_type="classic"),
        lambda: rabbitmq_events(server, name), changed,
    )  # fmt: skip


def _aws(server: Aws, kind: str, name: str) -> MessageTarget:
    options = server.options(kind, name)

    def changed() -> int:
        time.sleep(_AWS_PAUSE_S)
        return server.count(kind, name)

    return MessageTarget(_toml(kind, **options), lambda: server.events(kind, name), changed)


def _pubsub(server: Pubsub, name: str) -> MessageTarget:
    toml = _toml("pubsub", **server.options(name), key=["id"])
    return MessageTarget(toml, lambda: server.events(name), server.size, by_key=True)


def with_nats(server: Nats, ask: Callable[[Any], Awaitable[T]]) -> T:
    """What a server answers, outside of an event loop or in one."""

    async def asked() -> T:
        client = await nats.connect(server.url())
        try:
            return await ask(client.jetstream())
        finally:
            await client.close()

    with ThreadPoolExecutor(1) as threads:  # its loop is not the test's
        return threads.submit(anyio.run, asked).result()


def nats_events(server: Nats, stream: str) -> Sequence[Event]:
    """The messages of a stream, in the format `rows`."""
    return [row_event(*message) for message in nats_messages(server, stream)]


def nats_messages(server: Nats, stream: str) -> list[tuple[str, bytes]]:
    """The messages of a stream: each with its event id."""

    async def read(jetstream: Any) -> list[tuple[str, bytes]]:
        with suppress(nats.js.errors.NotFoundError):
            state = (await jetstream.stream_info(stream)).state
            found = []
            for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
                with suppress(nats.js.errors.NotFoundError):  # it was removed
                    message = await jetstream.get_msg(stream, sequence)
                    found.append((message.headers["Nats-Msg-Id"], message.data))
            return found
        return []

    return with_nats(server, read)


def nats_entries(server: Nats, bucket: str) -> dict[str, bytes]:
    """The entries of a key-value bucket by key, as nats-py reads them."""

    async def read(jetstream: Any) -> dict[str, bytes]:
        found = {}
        with suppress(nats.js.errors.NotFoundError):
            watcher = await (await jetstream.key_value(bucket)).watchall(ignore_deletes=True)
            async for entry in watcher:
                if entry is None:  # all that there is
                    break
                found[entry.key] = entry.value
            await watcher.stop()
        return found

    return with_nats(server, read)


def _nats(server: Nats, name: str) -> MessageTarget:
    return MessageTarget(
        _toml("nats", servers=[server.url()], stream=name, subject=name),
        lambda: nats_events(server, name), lambda: nats_last(server, name),
        lambda: nats_offset(server, name),
    )  # fmt: skip


def nats_offset(server: Nats, stream: str) -> Offset | None:
    """The offset of a stream."""

    async def state(jetstream: Any) -> dict[str, Any]:
        with suppress(nats.js.errors.NotFoundError):
            entry = await (await jetstream.key_value("delta-tailer")).get(stream)
            found: dict[str, Any] = json.loads(entry.value)
            return found
        return {"offset": None}

    found = with_nats(server, state)["offset"]
    return Offset.from_json(found) if found else None


def nats_last(server: Nats, stream: str) -> int:
    """The sequence number of the last message of a stream."""

    async def last(jetstream: Any) -> int:
        with suppress(nats.js.errors.NotFoundError):
            return int((await jetstream.stream_info(stream)).state.last_seq)
        return 0

    return with_nats(server, last)
