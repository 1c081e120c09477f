"""Several requests at the same time: what is sent, in which order, and what counts as taken."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from sinks.messages.in_flight import send_requests
from sinks.messages.messages import Messages, RequestLimits
from tailer.changes import Offset
from tailer.errors import RowsRefused, SinkRejected, TransientError
from tailer.sink import make_sink
from tests.support.aws import AWS_SINKS, Aws
from tests.support.link import running_link
from tests.support.sinks import named, rows, write
from tests.support.webhook import Webhook, webhook

KEYS = st.one_of(st.none(), st.binary(max_size=2))


def make_messages(keys: list[bytes | None] | None, count: int) -> Messages:
    numbers = pa.array(range(count), pa.int64())
    ids = numbers.cast(pa.string())
    keyed = None if keys is None else pa.array(keys, pa.binary())
    return Messages(named(count=count), ids.cast(pa.binary()), ids, numbers, "t", keyed)


@given(
    keys=st.lists(KEYS, min_size=1, max_size=60),
    keyed=st.booleans(),
    in_flight=st.integers(1, 9),
    most=st.integers(1, 7),
    failing=st.sets(st.integers(0, 59), max_size=4),
    seed=st.randoms(use_true_random=False),
    one_key=st.booleans(),
)
@example(
    keys=[b"a", b"b", b"a", None, b"b", b"a"], keyed=True, in_flight=2, most=2, failing={5},
    seed=random.Random(1), one_key=True,
)  # fmt: skip
def test_every_schedule_keeps_the_order_of_each_key(
    keys: list[bytes | None], *, keyed: bool, in_flight: int, most: int, failing: set[int],
    seed: Any, one_key: bool,
) -> None:  # fmt: skip
    messages = make_messages(keys if keyed else None, len(keys))
    sent: list[int] = []
    taken: list[int] = []
    busy: Counter[object] = Counter()
    open_requests = most_open = 0

    async def send(request: Messages) -> None:
        nonlocal open_requests, most_open
        numbers = [int(text) for text in request.ids.to_pylist()]
        mine = {keys[number] if keyed else None for number in numbers}
        assert len(numbers) <= most
        assert len(mine) == 1 or not one_key
        assert not any(busy[key] for key in mine)
        busy.update(mine)
        open_requests += 1
        most_open = max(most_open, open_requests)
        for _ in range(seed.randrange(4)):
            await asyncio.sleep(0)
        open_requests -= 1
        busy.subtract(mine)
        for number in numbers:
            if number in failing:
                raise TransientError(str(number))
            sent.append(number)

    async def run() -> None:
        limits = RequestLimits(most, 10_000, one_key=one_key)
        await send_requests(messages, limits, in_flight, send, taken.append)

    failed = failing & set(range(len(keys)))
    if failed:
        with pytest.raises(TransientError):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert most_open <= in_flight
    by_key: dict[object, list[int]] = defaultdict(list)
    for number in sent:
        by_key[keys[number] if keyed else None].append(number)
    for numbers in by_key.values():
        assert numbers == sorted(set(numbers))
    # What counts as taken was sent; all was, where nothing failed.
    assert set(range(taken[-1])) <= set(sent)
    assert taken == ([len(keys)] if not failed else [taken[0]])


def test_no_request_is_sent_of_messages_of_which_one_is_too_large() -> None:
    async def send(request: Messages) -> None:
        raise AssertionError(request)

    async def run() -> None:
        messages = make_messages([b"a"] * 200, 200)
        await send_requests(messages, RequestLimits(10, 2), 4, send, lambda _: None)

    with pytest.raises(RowsRefused, match="the event 100 has 3 bytes, and at most 2"):
        asyncio.run(run())


class _Slow(Webhook):
    """A webhook that knows how many requests it has at the same time, and takes its time."""

    at_once = most_at_once = 0

    async def take(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01 * (len(self.taken) % 3))
        try:
            return await super().take(request)
        finally:
            self.at_once -= 1


@pytest.fixture
async def slow() -> AsyncIterator[_Slow]:
    async with webhook(hook=_Slow()) as running:
        assert isinstance(running, _Slow)
        yield running


def ids_of(hook: Webhook) -> list[int]:
    return [event.payload["id"] for event in hook.events()]


@pytest.mark.anyio
async def test_requests_overlap_and_a_key_s_events_do_not(slow: _Slow) -> None:
    changes = [(number % 40, f"{number:04}") for number in range(400)]
    options = {"url": slow.url, "request_events_max": 10, "key": ["id"]}
    await write(make_sink("http", options, Path()), rows(*changes))
    assert 1 < slow.most_at_once <= 8
    by_key: dict[int, list[str]] = defaultdict(list)
    for event in slow.events():
        by_key[event.payload["id"]].append(event.payload["name"])
    assert len(by_key) == 40
    assert all(names == sorted(names) and len(names) == 10 for names in by_key.values())


@pytest.mark.anyio
@pytest.mark.parametrize("more", [{}, {"key": ["id"], "in_flight": 1}])
async def test_events_without_a_key_follow_one_another(slow: _Slow, more: dict[str, Any]) -> None:
    options = {"url": slow.url, "request_events_max": 10, **more}
    await write(make_sink("http", options, Path()), named(count=200))
    assert slow.most_at_once == 1
    assert ids_of(slow) == list(range(200))


@pytest.mark.anyio
async def test_the_offset_moves_behind_what_was_taken_without_a_gap(slow: _Slow) -> None:
    """A refused event ends the others behind the requests that they are in; those before it are
    not sent again."""
    slow.refuses = "name 57"
    sink = make_sink(
        "http", {"url": slow.url, "request_events_max": 5, "key": ["id"], "in_flight": 4}, Path()
    )
    batch = named(count=100)
    await sink.open("orders")
    offsets: list[Offset] = []

    async def write_all() -> None:
        async for offset in sink.write_pieces(batch):
            offsets.append(offset)  # noqa: PERF401  # it ends with an error

    with pytest.raises(SinkRejected):
        await write_all()
    assert slow.at_once == 0
    taken = batch.rows_before(offsets[0]) if offsets else 0
    first = set(ids_of(slow))
    assert set(range(taken)) <= first
    assert 57 not in first
    slow.refuses, slow.taken = "\0", []
    await sink.write(batch)
    await sink.aclose()
    assert set(ids_of(slow)) == set(range(taken, 100))
    assert min(ids_of(slow)) == taken <= 57


@pytest.mark.anyio
@pytest.mark.parametrize("kind", AWS_SINKS)
async def test_every_service_gets_each_event_once(aws: Aws, kind: str) -> None:
    name = f"flight-{kind}"
    options = {**aws.options(kind, name), "key": ["id"], "in_flight": 6}
    await write(make_sink(kind, options, Path()), named(count=120))
    found = [event.payload["id"] for event in aws.events(kind, name)]
    assert sorted(found) == list(range(120))


@pytest.mark.anyio
async def test_lost_answers_lose_no_event(slow: _Slow) -> None:
    """Connections are cut under several requests: each event comes, a key's in their order where
    each is first seen."""
    changes = [(number % 20, f"{number:04}") for number in range(200)]
    port = int(slow.url.split(":")[2].split("/")[0])
    with running_link(port) as link:
        options = {
            "url": f"http://127.0.0.1:{link.port}/hook", "request_events_max": 5, "key": ["id"],
        }  # fmt: skip
        sink = make_sink("http", options, Path())
        await sink.open("orders")
        async with anyio.create_task_group() as group:

            async def disturb() -> None:
                for _ in range(3):
                    await anyio.sleep(0.05)
                    await anyio.to_thread.run_sync(link.disturb, "cut")
                    await anyio.to_thread.run_sync(link.heal)

            group.start_soon(disturb)
            for _ in range(20):
                try:
                    await sink.write(rows(*changes))
                    break
                except TransientError:
                    await anyio.sleep(0.05)
        await sink.aclose()
    seen: dict[int, list[str]] = defaultdict(list)
    for _, body in slow.taken:
        for event in json.loads(body):
            names = seen[event["data"]["id"]]
            if event["data"]["name"] not in names:
                names.append(event["data"]["name"])
    assert sum(map(len, seen.values())) == 200
    assert all(names == sorted(names) for names in seen.values())
