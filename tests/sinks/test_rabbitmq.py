"""The RabbitMQ sink beyond the public suite: its broker, its accounts, and what it refuses."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pika
import psutil
import pytest

from sinks.messages.messages import RequestLimits
from tailer.changes import Offset
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.brokers import PASSWORD, RabbitMq
from tests.support.components import free_port
from tests.support.message_targets import rabbitmq_events
from tests.support.sinks import NAMED, named, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def options(rabbitmq_server: RabbitMq, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "url": rabbitmq_server.url(), "queue": request.node.name, "queue_type": "classic",
    }  # fmt: skip


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("rabbitmq", {**options, **more}, Path())


def ids(server: RabbitMq, queue: str) -> list[int]:
    return [event.payload["id"] for event in rabbitmq_events(server, queue)]


async def test_a_large_batch_is_confirmed_in_order(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    await write(new(options), named(count=12_000))
    assert ids(rabbitmq_server, options["queue"]) == list(range(12_000))


async def test_what_was_not_confirmed_comes_again(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        full = {"x-max-length": 3, "x-overflow": "reject-publish"}
        channel = client.channel()
        channel.queue_declare(options["queue"], durable=True, arguments=full)
        sink = new(options, timeout_s=4)
        await sink.open("orders")
        for _ in range(2):
            with pytest.raises(TransientError, match="the queue is full, or has no leader"):
                await sink.write(named(count=5))
        assert ids(rabbitmq_server, options["queue"]) == [0, 1, 2]
        channel.queue_purge(options["queue"])
        await sink.write(named(count=5))
        await sink.aclose()
    assert ids(rabbitmq_server, options["queue"]) == [3, 4]


class Reader(threading.Thread):
    """Takes the messages of a queue at its own pace until there are ``count`` different ones."""

    def __init__(self, server: RabbitMq, queue: str, count: int, pause_s: float) -> None:
        super().__init__()
        self.url, self.queue, self.count, self.pause_s = server.url(), queue, count, pause_s
        self.ids: list[int] = []

    def run(self) -> None:
        with closing(pika.BlockingConnection(pika.URLParameters(self.url))) as client:
            channel = client.channel()
            while len(set(self.ids)) < self.count:
                method, _, body = channel.basic_get(self.queue, auto_ack=True)
                if method:
                    self.ids.append(json.loads(body)["id"])
                time.sleep(self.pause_s)  # it is slow


async def delivered(sink: Sink, reader: Reader) -> None:
    try:
        await write(sink, named(count=reader.count))
    except BaseException:
        reader.count = 0
        raise
    finally:
        await anyio.to_thread.run_sync(reader.join)


BOUNDS = {
    "classic": {"x-queue-type": "classic", "x-max-length": 300},
    "quorum": {"x-queue-type": "quorum", "x-max-length": 300},
    "few": {"x-queue-type": "classic", "x-max-length": 1},
    "bytes": {"x-queue-type": "classic", "x-max-length-bytes": 9000},
    "lazy": {"x-queue-type": "classic", "x-max-length": 300, "x-queue-mode": "lazy"},
}


@pytest.mark.parametrize("kind", BOUNDS)
async def test_a_queue_that_rejects_gets_each_message_once_and_in_order(
    rabbitmq_server: RabbitMq, options: dict[str, Any], kind: str
) -> None:
    """While somebody reads it more slowly than the feed writes."""
    count, queue = 30 if kind == "few" else 800, options["queue"]
    arguments = {**BOUNDS[kind], "x-overflow": "reject-publish"}
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        client.channel().queue_declare(queue, durable=True, arguments=arguments)
    reader = Reader(rabbitmq_server, queue, count, pause_s=0.0005)
    reader.start()
    await delivered(new(options), reader)
    assert reader.ids == list(range(count))


async def test_a_bound_that_no_argument_says_is_learned(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    """As a policy has it, or behind an exchange: nothing is lost, and all of it arrives."""
    queue, count = options["queue"], 600
    arguments = {"x-max-length": 300, "x-overflow": "reject-publish"}
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        channel = client.channel()
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, "amq.topic", queue)
    for more in ({"create": False}, {"exchange": "amq.topic", "routing_key": queue}):
        reader = Reader(rabbitmq_server, queue, count, pause_s=0.0005)
        reader.start()
        await delivered(new({**options, **more}), reader)
        assert sorted(set(reader.ids)) == list(range(count))
        assert len(reader.ids) < 2 * count


async def test_a_broker_that_does_not_answer_a_goodbye_keeps_no_socket_open(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(named(count=3))
    with rabbitmq_server.still():
        await sink.aclose()
    open_to = [found.raddr.port for found in psutil.Process().net_connections() if found.raddr]
    assert rabbitmq_server.port not in open_to


async def test_an_exchange_routes_to_queues(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    routed = {"exchange": "amq.topic", "routing_key": "lake.{feed}"}
    with pytest.raises(ConfigError, match=r"no queue is bound to .* 'lake.orders'; bind one"):
        await write(new(options, **routed), named())
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        channel = client.channel()
        channel.queue_declare("bound", durable=True)
        channel.queue_bind("bound", "amq.topic", "lake.*")
    await write(new(options, **routed), named())
    assert ids(rabbitmq_server, "bound") == [0, 1]
    with pytest.raises(ConfigError, match="no exchange 'nothing'"):
        await new(options, exchange="nothing").open("orders")


async def test_a_queue_is_declared_only_if_it_may_be(options: dict[str, Any]) -> None:
    sink = new(options, create=False)
    with pytest.raises(ConfigError, match=r"there is no queue .*, and create is false; declare it"):
        await sink.open("orders")
    look = new(options)
    assert await look.look("orders") is None
    with pytest.raises(ConfigError, match="there is no queue"):
        await sink.look("orders")
    await write(new(options, queue_type="quorum"), named())
    await write(sink, named())


async def test_a_message_that_is_too_large_is_refused(
    rabbitmq_server: RabbitMq, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 1_500_000}], version=7, last=True)
    with pytest.raises(SinkRejected, match=r"message size .* is larger than configured max size"):
        await write(new(options), batch)
    monkeypatch.setattr(
        "sinks.rabbitmq.sink._LIMITS", RequestLimits(500, 1 << 22, message_bytes=1000)
    )
    with pytest.raises(SinkRejected, match=r"version 7: the event .* at most 1000 can be sent"):
        await write(new(options), batch)
    assert ids(rabbitmq_server, options["queue"]) == []


async def test_an_account_or_a_broker_that_is_not_there(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"ACCESS_REFUSED.*check the user") as e:
        await new(options, url=rabbitmq_server.url(password="not it")).open("orders")
    assert "not it" not in str(e.value)
    with pytest.raises(ConfigError, match="vhost nowhere not found"):
        await new(options, url=f"{rabbitmq_server.url()}nowhere").open("orders")
    away = f"amqp://tailer:{PASSWORD}@127.0.0.1:{free_port()}/"
    with pytest.raises(
        TransientError, match=r"RabbitMQ at 127.0.0.1:.* nothing listens"
    ) as refused:
        await new(options, url=away).open("orders")
    assert PASSWORD not in str(refused.value)


@pytest.mark.slow  # it starts three times, and each takes seconds of a processor
async def test_a_broker_that_ends_is_waited_for() -> None:
    with RabbitMq() as server:
        # A broker that is killed may lose a queue that it has just declared, with its messages; of
        # a young quorum queue it may find no leader. So it is an old queue.
        sink = new({"url": server.url(), "queue_type": "classic"})
        await sink.open("orders")
        await sink.aclose()
        await anyio.to_thread.run_sync(server.end)
        await anyio.to_thread.run_sync(server.start)
        await sink.open("orders")
        await sink.write(named())
        await anyio.to_thread.run_sync(server.stop)
        with pytest.raises(TransientError):
            await sink.write(named(2, version=2))
        await anyio.to_thread.run_sync(server.start)
        assert await sink.open("orders") is None
        await sink.write(named(2, version=2))
        await sink.aclose()
        assert ids(server, "orders") == [0, 1, 2, 3]


def test_options_are_checked(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'queues' of sink 'rabbitmq' is not known"):
        new(options, queues=1)
    with pytest.raises(ConfigError, match=r"'url' .* must be an amqp:// or amqps:// URL") as e:
        new(options, url="http://secret@example.org")
    assert "secret" not in str(e.value)
    monkeypatch.setitem(sys.modules, "pika", None)
    with pytest.raises(ConfigError, match=r"pip install 'delta-tailer\[rabbitmq\]'"):
        new(options)


async def test_a_queue_that_is_gone_is_not_declared_again(
    rabbitmq_server: RabbitMq, options: dict[str, Any]
) -> None:
    sink = new(options)
    form = sink.check_record_form("orders", None, None)
    await write(sink, named())
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url()))) as client:
        await sink.open("orders")
        client.channel().queue_delete(options["queue"])
        with pytest.raises(ConfigError, match=r"the queue .* is gone"):
            await sink.write(named(2, version=2))
        assert sink.check_record_form("orders", form, Offset(2)) == form
        for _ in range(2):
            with pytest.raises(SinkRejected, match="is missing, with its unread"):
                await sink.open("orders")
    with pytest.raises(
        ConfigError, match=r"options change queue from .* `tailer offsets set --from"
    ):
        new(options, queue="other").check_record_form("orders", form, Offset(2))
