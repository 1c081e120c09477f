"""The Pub/Sub sink beyond the public suite: order, keys, limits, accounts, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import grpc
import pyarrow as pa
import pytest

from sinks.pubsub.sink import name_keys
from tailer.changes import Offset
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.sink import Sink, make_sink, write_and_save
from tailer.testing.batches import change_batch
from tests.conformance.faults import POISON
from tests.support.components import free_port
from tests.support.pubsub import Pubsub, topic_path
from tests.support.sinks import NAMED, named, rows, write
from tests.support.source import ROOT

pytestmark = pytest.mark.anyio
Status: Any = grpc.StatusCode


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.pubsub.sink._PAUSE_MIN_S", 0.001)
    monkeypatch.setattr("sinks.pubsub.sink._PAUSE_MAX_S", 0.002)


def make(server: Pubsub, name: str, **more: Any) -> Sink:
    return make_sink("pubsub", {**server.options(name), **more}, Path())


def ids(server: Pubsub, name: str) -> list[int]:
    return [event.payload["id"] for event in server.events(name)]


def keys_of(server: Pubsub, name: str) -> dict[str, list[str]]:
    """The names of the rows, by ordering key."""
    found: dict[str, list[str]] = defaultdict(list)
    for message in server.messages(name):
        found[message.ordering_key].append(json.loads(message.data)["name"])
    return found


async def test_without_a_key_events_come_in_order_by_the_thousand(
    pubsub: Pubsub, name: str
) -> None:
    await write(make(pubsub, name), named(count=2500))
    assert ids(pubsub, name) == list(range(2500))
    assert {message.ordering_key for message in pubsub.messages(name)} == {""}


@pytest.mark.parametrize("in_flight", [1, 7])
async def test_each_row_has_its_ordering_key_and_its_order(
    pubsub: Pubsub, name: str, in_flight: int
) -> None:
    changes = [(number % 40, f"{number:04}") for number in range(400)]
    sink = make(pubsub, name, key=["id"], in_flight=in_flight)
    await write(sink, rows(*changes[:399]), rows(changes[399]))
    found = keys_of(pubsub, name)
    assert sorted(found) == sorted(f'{{"id":{number}}}' for number in range(40))
    assert all(names == sorted(names) and len(names) == 10 for names in found.values())


async def test_a_subscription_with_ordering_gives_a_row_s_events_in_order(
    pubsub: Pubsub, name: str
) -> None:
    sink = make(pubsub, name, key=["id"])
    subscription = pubsub.subscription(name)
    changes = [(number % 3, f"{number:02}") for number in range(30)]
    await write(sink, rows(*changes))
    seen: dict[str, list[str]] = defaultdict(list)
    while sum(map(len, seen.values())) < 30:
        for message in pubsub.pull(subscription):
            seen[message.ordering_key].append(json.loads(message.data)["name"])
            assert message.attributes["event_id"]
    assert [names == sorted(names) for names in seen.values()] == [True] * 3


async def test_rows_may_share_a_few_ordering_keys(pubsub: Pubsub, name: str) -> None:
    changes = [(number % 50, f"{number:04}") for number in range(500)]
    await write(make(pubsub, name, key=["id"], ordering_keys=4), rows(*changes))
    found = keys_of(pubsub, name)
    assert set(found) == {"0", "1", "2", "3"}
    assert sum(map(len, found.values())) == 500
    assert all(names == sorted(names) for names in found.values())


def test_an_ordering_key_is_a_text_of_at_most_1024_bytes() -> None:
    given = [b"a", b"x" * 1024, b"x" * 1025, b"y" * 1025, b"\xff", b"", None, b"a"]
    named_keys = name_keys(pa.array(given, pa.binary()), 0).to_pylist()
    assert named_keys[:2] == given[:2]
    assert named_keys[0] == named_keys[7]
    assert len({*named_keys[2:5]}) == 3
    for key in named_keys[2:]:
        assert 0 < len(key.decode()) <= 1024
    counted = name_keys(pa.array(given, pa.binary()), 5).to_pylist()
    assert {*counted} <= {b"0", b"1", b"2", b"3", b"4"}
    assert counted[0] == counted[7]


async def test_a_long_key_orders(pubsub: Pubsub, name: str) -> None:
    batch = rows((1, "k" * 2000), (2, "k" * 2000), (3, "other"))
    await write(make(pubsub, name, key=["name"]), batch)
    found = {each.ordering_key: len(each.data) for each in pubsub.messages(name)}
    assert len(found) == 2
    assert max(found.values()) > 2000
    assert all(len(key) <= 1024 for key in found)


async def test_a_message_that_is_too_large_is_named(pubsub: Pubsub, name: str) -> None:
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 10_000_000}], version=7, last=True)
    with pytest.raises(SinkRejected, match=r"version 7: the event .* can be sent"):
        await write(make(pubsub, name), batch)
    assert ids(pubsub, name) == []


async def test_the_largest_messages_are_taken(pubsub: Pubsub, name: str) -> None:
    text = "x" * 9_990_000
    await write(make(pubsub, name, key=["id"]), rows((1, text), (1, "small"), (2, text)))
    assert ids(pubsub, name) in ([1, 1, 2], [1, 2, 1], [2, 1, 1])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("code", "error"),
    [(Status.RESOURCE_EXHAUSTED, TransientError), (Status.INTERNAL, TransientError),
     (Status.PERMISSION_DENIED, TargetRefused), (Status.FAILED_PRECONDITION, TargetRefused),
     (Status.INVALID_ARGUMENT, SinkRejected)],
)  # fmt: skip
async def test_what_stays_refused_is_an_error(
    pubsub: Pubsub, name: str, code: Any, error: type[Exception]
) -> None:
    sink = make(pubsub, name)
    await sink.open("orders")
    with (
        pubsub.failing(name, code),
        pytest.raises(error, match=f"Pub/Sub topic {name}: {code.name}: not now") as raised,
    ):
        await sink.write(named())
    assert not isinstance(raised.value, RowsRefused)
    await sink.write(named())
    await sink.aclose()
    assert ids(pubsub, name) == [0, 1]


async def test_a_request_that_a_full_service_refuses_is_sent_again(
    pubsub: Pubsub, name: str
) -> None:
    sink = make(pubsub, name)
    await sink.open("orders")
    with pubsub.failing(name, Status.RESOURCE_EXHAUSTED):
        async with anyio.create_task_group() as group:
            group.start_soon(sink.write, named())
            await anyio.sleep(0.05)
            pubsub.set_faults({})
    await sink.aclose()
    assert ids(pubsub, name) == [0, 1]


@pytest.mark.usefixtures("quick")
async def test_an_answer_without_receipts_is_none(pubsub: Pubsub, name: str) -> None:
    sink = make(pubsub, name)
    await sink.open("orders")
    with pubsub.failing(name, None), pytest.raises(TransientError, match="does not say what"):
        await sink.write(named())
    await sink.aclose()


@pytest.fixture
def answers() -> Iterator[tuple[int, dict[str, bytes]]]:
    """A server of gRPC that answers each method by these bytes, and its port."""
    found: dict[str, bytes] = {}

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
        def service(self, details: Any) -> Any:
            name = details.method.rpartition("/")[2]
            return grpc.unary_unary_rpc_method_handler(lambda *_: found.get(name, b""))

    server = grpc.server(ThreadPoolExecutor(2), [Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port, found
    server.stop(0).wait()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("answer", [b"", b"\xff" * 20, b"\x0a\x01a" * 3], ids=str)
async def test_an_answer_that_is_none_is_no_receipt(
    answers: tuple[int, dict[str, bytes]], answer: bytes
) -> None:
    port, by_method = answers
    permission = b"pubsub.topics.publish"
    by_method["TestIamPermissions"] = b"\x0a" + bytes([len(permission)]) + permission
    by_method["Publish"] = answer
    options = {"topic": topic_path("a"), "endpoint_url": f"http://127.0.0.1:{port}"}
    sink = make_sink("pubsub", options, Path())
    await sink.open("orders")
    with pytest.raises(TransientError):
        await sink.write(named())
    await sink.aclose()


async def test_the_offset_moves_behind_what_was_taken_without_a_gap(
    pubsub: Pubsub, name: str
) -> None:
    """What a schema refuses ends the others behind the requests that are on their way."""
    reason = "INVALID_JSON_AVRO_MESSAGE"
    sink = make(pubsub, name, key=["id"], in_flight=4)
    batch, saved = named(count=60), list[Offset]()
    await sink.open("orders")

    async def save(offset: Offset) -> None:
        saved.append(offset)

    with (
        pubsub.failing(name, Status.INVALID_ARGUMENT, text='"name 37"', reason=reason),
        pytest.raises(RowsRefused, match=reason),
    ):
        await write_and_save(sink, batch, save)
    taken = batch.rows_before(saved[0])
    first = set(ids(pubsub, name))
    assert set(range(taken)) <= first
    assert 37 not in first
    await sink.write(batch)
    await sink.aclose()
    later = ids(pubsub, name)[len(first) :]
    assert set(later) == set(range(taken, 60))
    assert taken <= 37


async def test_a_topic_that_is_missing_or_forbidden_is_seen_at_the_start(
    pubsub: Pubsub, name: str
) -> None:
    options = {"topic": topic_path(name), "endpoint_url": pubsub.url}
    sink = make_sink("pubsub", options, Path())
    for begin in (sink.open, sink.look):
        with pytest.raises(TargetRefused, match=r"NOT_FOUND.*create the topic"):
            await begin("orders")
    pubsub.topic(name)
    with pubsub.failing(name, Status.PERMISSION_DENIED):
        for begin in (sink.open, sink.look):
            with pytest.raises(TargetRefused, match=r"may not publish; .*roles/pubsub\.publisher"):
                await begin("orders")
    assert await sink.look("orders") is None


@pytest.mark.parametrize("code", [Status.UNIMPLEMENTED, Status.INTERNAL])
async def test_an_emulator_need_not_know_permissions(pubsub: Pubsub, name: str, code: Any) -> None:
    sink = make(pubsub, name)
    with pubsub.failing(name, code, method="TestIamPermissions"):
        if code is Status.UNIMPLEMENTED:
            await write(sink, named())
        else:
            with pytest.raises(TransientError, match="INTERNAL"):
                await sink.look("orders")


async def test_a_topic_that_was_made_again_takes_what_comes(pubsub: Pubsub, name: str) -> None:
    """The service has no mark of its own for a topic, and keeps no offset."""
    sink = make(pubsub, name)
    await sink.open("orders")
    await sink.write(named())
    pubsub.delete_topic(name)
    with pytest.raises(TargetRefused, match="NOT_FOUND"):
        await sink.write(named(2, version=2))
    pubsub.topic(name)
    await sink.write(named(2, version=2))
    await sink.aclose()
    assert ids(pubsub, name) == [0, 1, 2, 3]


async def test_a_server_that_is_gone_comes_back() -> None:
    with Pubsub() as server:
        sink = make(server, "orders")
        await sink.open("orders")
        await sink.write(named())
        server.stop()
        with pytest.raises(TransientError, match=r"nothing listens there; .*'endpoint_url'"):
            await sink.write(named(2, version=2))
        server.start()
        await sink.aclose()
        await write(sink, named(2, version=2))
        assert ids(server, "orders") == [0, 1, 2, 3]


async def test_the_emulator_of_the_environment_is_the_server_unless_an_option_names_one(
    pubsub: Pubsub, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub.address)
    await write(make_sink("pubsub", {"topic": pubsub.topic(name)}, Path()), named())
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{free_port()}")
    options = {"topic": topic_path(name), "endpoint_url": pubsub.url}
    await write(make_sink("pubsub", options, Path()), named(2, version=2))
    assert ids(pubsub, name) == [0, 1, 2, 3]
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "http://localhost:8085")
    with pytest.raises(ConfigError, match="PUBSUB_EMULATOR_HOST is not host:port"):
        await make_sink("pubsub", {"topic": topic_path(name)}, Path()).open("orders")


@pytest.mark.parametrize("topic", ["orders", "projects/lake/topics/", "projects/a/topics/b c"])
def test_a_topic_has_its_project(topic: str) -> None:
    with pytest.raises(ConfigError, match="projects/PROJECT/topics/TOPIC"):
        make_sink("pubsub", {"topic": topic}, Path())


async def test_a_feed_s_name_may_be_the_topic(pubsub: Pubsub, name: str) -> None:
    pubsub.topic(name)
    options = {"topic": topic_path("{feed}"), "endpoint_url": pubsub.url}
    await write(make_sink("pubsub", options, Path()), named(), feed=name)
    assert ids(pubsub, name) == [0, 1]
    with pytest.raises(ConfigError, match="can't be a topic"):
        await make_sink("pubsub", options, Path()).open("two words")


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


@pytest.mark.usefixtures("no_account")
async def test_without_an_account_the_error_says_so(tmp_path: Path) -> None:
    options = {"topic": topic_path("orders"), "endpoint_url": "https://127.0.0.1:1"}
    with pytest.raises(ConfigError, match="default credentials were not found"):
        await make_sink("pubsub", options, tmp_path).open("orders")
    options["service_account_file"] = "account.json"
    with pytest.raises(ConfigError, match=r"account\.json is no file of a service account"):
        await make_sink("pubsub", options, tmp_path).open("orders")
    (tmp_path / "account.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"account\.json is no file of a service account"):
        await make_sink("pubsub", options, tmp_path).open("orders")


#: A program whose write is cancelled, and which ends at once.
_CANCELLED = """
import gc, sys, threading
from pathlib import Path
import anyio
from tailer.sink import make_sink
from tests.support.sinks import named
from tests.support.waiting import eventually

async def main():
    sink = make_sink("pubsub", {"topic": sys.argv[1], "endpoint_url": sys.argv[2]}, Path())
    await sink.open("orders")
    print("open", flush=True)
    sys.stdin.readline()
    with anyio.move_on_after(0.2) as scope:
        await sink.write(named())
    assert scope.cancelled_caught
    await sink.aclose()

anyio.run(main)
def left():
    gc.collect()
    return {thread.name for thread in threading.enumerate()} - {"MainThread"}

eventually(lambda: not left(), 30, left)
print("alone")
"""


def test_a_write_that_is_cancelled_ends_and_leaves_no_thread(pubsub: Pubsub, name: str) -> None:
    """In a process of its own: gRPC's one queue would give what is late to the next event loop."""
    with subprocess.Popen(
        [
            sys.executable, "-W", "ignore::FutureWarning",  # of the end of a Python
            "-c", _CANCELLED, pubsub.topic(name), pubsub.url,
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        with pubsub.still():
            output, errors = program.communicate("\n")
    assert (output, errors) == ("alone\n", "")
    assert program.returncode == 0


def test_a_sink_works_in_one_event_loop_after_another(pubsub: Pubsub, name: str) -> None:
    options = pubsub.options(name)
    for number in range(3):
        sink = make_sink("pubsub", options, Path())
        asyncio.run(write(sink, named(2 * number, version=number + 1)))
    assert ids(pubsub, name) == list(range(6))


@pytest.mark.usefixtures("one_attempt")
async def test_a_row_that_a_schema_refuses_is_told_from_a_request_that_is_wrong(
    pubsub: Pubsub, name: str
) -> None:
    """By the reason that the service gives, for JSON, binary and Protocol Buffers alike."""
    sink = make(pubsub, name)
    await sink.open("orders")
    for reason in ("INVALID_JSON_AVRO_MESSAGE", "INVALID_BINARY_PROTO_MESSAGE"):
        wrong = {"text": POISON, "reason": reason}
        with pubsub.failing(name, Status.INVALID_ARGUMENT, **wrong):
            with pytest.raises(RowsRefused, match=reason):
                await sink.write(rows((1, POISON)))
            with suppress(TransientError):
                await sink.write(rows((2, "fine"), version=2))
    with (
        pubsub.failing(name, Status.INVALID_ARGUMENT, reason="INVALID_TOPIC"),
        pytest.raises(SinkRejected) as raised,
    ):
        await sink.write(rows((1, "a"), version=3))
    assert not isinstance(raised.value, RowsRefused)
    await sink.aclose()
