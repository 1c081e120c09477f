"""Brokers that are away, or go away: they are waited for."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from kafka.net.compat import KafkaNetClient

from sinks.kafka.sink import KafkaSink
from tailer.changes import ChangeBatch
from tailer.errors import TargetRefused, TransientError
from tests.kafka.broker import Broker
from tests.kafka.sinks import batch, fresh, made, opened, refused
from tests.kafka.topics import events
from tests.support.components import free_port

pytestmark = pytest.mark.anyio
#: What a server meets whose client has left.
GONE = (anyio.EndOfStream, anyio.BrokenResourceError)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


async def test_a_broker_that_is_away_is_waited_for(nobody: str) -> None:
    sink = made(nobody, fresh(), delivery_timeout_ms=500)
    sentence = await refused(sink, TransientError)
    assert f"no Kafka broker at {nobody} has answered for 0.5 s" in sentence
    assert "nothing listens there" in sentence


async def test_a_server_that_speaks_http_is_named_whether_it_answers_kafka_s_bytes_or_not(
    nobody: str,
) -> None:
    async def refuse_all(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            with suppress(*GONE):
                await stream.receive()
                await stream.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    async def wait_for_a_line(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            with suppress(*GONE):
                while b"\r\n" not in await stream.receive():
                    pass
                await stream.send(b"HTTP/1.0 200 OK\r\n\r\n")

    for answer in (refuse_all, wait_for_a_line):
        port = free_port()
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        server = f"127.0.0.1:{port}"
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, answer)
            sink = made(server, fresh(), delivery_timeout_ms=1_000)
            sentence = await refused(sink, TargetRefused)
            assert f"{server} speaks HTTP and is no Kafka broker" in sentence
            assert "check the option 'bootstrap_servers'" in sentence
            sink = made(f"{server},{nobody}", fresh(), delivery_timeout_ms=500)
            assert f"{server} speaks HTTP" in await refused(sink, TransientError)
            # One that is being accepted would be left to the garbage collector.
            await anyio.sleep(0.1)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()


async def test_the_cause_is_not_lost_in_a_later_time_out() -> None:
    """The last try may have had a few milliseconds: its time-out says nothing of the broker."""
    came = 0

    async def close_then_hang(stream: anyio.abc.ByteStream) -> None:
        nonlocal came
        came += 1
        async with stream:
            with suppress(*GONE):
                await stream.receive()
                if came > 1:
                    await anyio.sleep_forever()

    port = free_port()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, close_then_hang)
        sink = made(f"127.0.0.1:{port}", fresh(), delivery_timeout_ms=3_000)
        sentence = await refused(sink, TransientError)
        assert came > 1
        assert "timed out" not in sentence
        group.cancel_scope.cancel()


async def test_brokers_that_are_away_leave_no_sockets(nobody: str) -> None:
    def sockets() -> int:
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the folder's own
                found += str(descriptor.readlink()).startswith("socket:")
        return found

    attempts = 5
    sink = made(nobody, fresh(), delivery_timeout_ms=200)
    gc.collect()
    before = sockets()
    gc.disable()  # which would close them some time
    try:
        for _ in range(attempts):
            await refused(sink, TransientError)
        # Threads of other tests (Spark's, say) may have opened one or two in the meantime.
        assert sockets() < before + attempts
    finally:
        gc.enable()


def test_a_client_closed_while_it_connects_leaves_no_socket() -> None:
    """Left to the garbage collector, it fails the test that this runs in."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = KafkaNetClient(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}")
        client._manager.bootstrap_async(1000)
        client.poll(timeout_ms=0)
        client.close()
    gc.collect()


async def delivered(sink: KafkaSink, wanted: ChangeBatch) -> None:
    """Write a batch as a feed does: anew, from what Kafka says, as long as that may help."""
    while True:
        try:
            offset = await sink.open("orders")
            assert offset is not None
            if offset.position < wanted.next_offset.position:
                assert offset.position == wanted.offset.position
                await sink.write(wanted)
        except TransientError:
            await anyio.sleep(0.2)
        else:
            return


@pytest.mark.timeout(600)
@pytest.mark.needs("kafka")
async def test_a_broker_that_goes_away_is_waited_for() -> None:
    topic = fresh()
    options: dict[str, Any] = {
        "delivery_timeout_ms": 2_000,
        # What a killed broker leaves open is ended after so long at the latest.
        "transaction_timeout_ms": 5_000,
    }
    with Broker() as broker:
        async with opened(broker.bootstrap, topic) as (patient, _):
            await patient.write(batch(1, [1]))
        async with aclosing(made(broker.bootstrap, topic, **options)) as sink:
            await delivered(sink, batch(1, [1]))  # it is there
            broker.kill()
            with pytest.raises(TransientError):
                await sink.write(batch(2, [2]))
            with pytest.raises(TransientError, match="no Kafka broker"):
                await sink.open("orders")
            broker.start()
            await delivered(sink, batch(2, [2]))
        assert [row["id"] for row in events(broker.bootstrap, topic)] == [1, 2]
