"""A copy in Redis beyond the public suite: its keys, other programs, and columns that change."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.crc import key_slot

from tailer.errors import (
    ConfigError,
    RowsRefused,
    SinkRejected,
    TargetRefused,
    TransientError,
)
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.brokers import Redis
from tests.support.sinks import NAMED, named, rows, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex}:"


@pytest.fixture
def options(redis_server: Redis, prefix: str) -> dict[str, Any]:
    return {"url": redis_server.url(), "mode": "mirror", "prefix": prefix, "key": ["id"]}


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with closing(redis.Redis.from_url(redis_server.url(), decode_responses=True)) as found:
        yield found


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("redis", {**options, **more}, Path())


def found(client: Any, prefix: str) -> dict[str, Any]:
    names = client.keys(f"{prefix}*")
    return {name.removeprefix(prefix): json.loads(client.get(name)) for name in names}


async def test_a_row_is_found_by_its_key(client: Any, prefix: str, options: dict[str, Any]) -> None:
    schema = pa.schema({"country": pa.string(), "id": pa.int64(), "tags": pa.list_(pa.string())})
    row = {"country": "DE", "id": 5, "tags": ["a", None]}
    await write(new(options, key=["country", "id"]), change_batch(schema, [row], last=True))
    assert json.loads(client.get(f'{prefix}["DE",5]')) == row


async def test_what_others_have_under_the_prefix_is_left_alone(
    client: Any, prefix: str, options: dict[str, Any]
) -> None:
    client.set(f"{prefix}about", "not JSON")
    client.set(f"{prefix}eu:1", '{"id":1,"name":"of another feed"}')
    client.set(f"{prefix}9", b'{"id":9,"name":"\xff"}')
    client.set(f"{prefix}bytes", b'{"id":"\xff","name":""}')
    client.rpush(f"{prefix}list", "x")
    await write(new(options), named())
    with new(options).read_mirror("orders") as copy:
        assert sum(batch.num_rows for batch in copy.rows(NAMED)) == 2
    await new(options).set_offset("orders", None)
    left = {f"{prefix}{name}" for name in ("9", "about", "bytes", "eu:1", "list")}
    assert set(client.keys(f"{prefix}*")) == left
    assert await new(options).look("orders") is None


@pytest.mark.parametrize("odd", ["a*b:", "a?b:", "a[bc]:", "a\\b:", "größe 数:", ""])
async def test_every_prefix_is_taken_as_it_is(
    client: Any, prefix: str, options: dict[str, Any], odd: str
) -> None:
    given = {**options, "prefix": f"{prefix}{odd}"}
    await write(new(given), named())
    client.set(f"{prefix}axb:0", '{"id":0,"name":"other"}')
    with new(given).read_mirror("orders") as copy:
        assert sum(batch.num_rows for batch in copy.rows(NAMED)) == 2
    await new(given).set_offset("orders", None)
    assert client.keys(f"{prefix}*") == [f"{prefix}axb:0"]


async def test_a_copy_begins_empty(client: Any, prefix: str, options: dict[str, Any]) -> None:
    client.set(f"{prefix}1", '{"id":1}')
    for _ in range(2):
        with pytest.raises(TargetRefused, match="has rows already, and a copy begins empty"):
            await new(options).open("orders")
    client.delete(f"{prefix}1")
    await write(new(options), named())


async def test_a_key_that_was_evicted_is_not_passed_by(
    client: Any, prefix: str, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    client.delete(f"{prefix}1")
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"1' leaves, and is not there: .*verify --repair"):
        await sink.write(rows((1, "name 1"), kind="delete", version=2))
    await sink.aclose()


async def test_large_rows_are_read_back(options: dict[str, Any]) -> None:
    """More of them than an answer has."""
    changes = [(number, "x" * 10_000) for number in range(3000)] + [(9999, "y" * 11 * 1024**2)]
    await write(new(options), rows(*changes))
    with new(options).read_mirror("orders") as copy:
        assert sum(batch.num_rows for batch in copy.rows(NAMED)) == 3001
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(RowsRefused, match="at most 12582912 can be sent"):
        await sink.write(rows((5555, "y" * 13 * 1024**2), version=2))
    await sink.aclose()
    await new(options).set_offset("orders", None)


@pytest.mark.parametrize("tagged", [True, False])
async def test_all_keys_are_in_one_slot_of_a_cluster(
    client: Any, prefix: str, options: dict[str, Any], *, tagged: bool
) -> None:
    given = f"{{{prefix}}}:" if tagged else prefix
    await write(new({**options, "prefix": given}), named(count=1))
    names = [name for name in client.keys("*") if prefix in name]
    assert len(names) == 2
    slots = {key_slot(name.encode()) for name in names}
    assert len(slots) == (1 if tagged else 2)


async def test_what_is_no_string_is_left_alone(
    client: Any, prefix: str, options: dict[str, Any]
) -> None:
    client.rpush(f"{prefix}7", "x")
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(TargetRefused, match="7' is no string, so another program's"):
        await sink.write(named(7))
    await sink.aclose()
    assert client.lrange(f"{prefix}7", 0, -1) == ["x"]


async def test_an_interrupted_beginning_and_an_interrupted_reset_are_seen(
    client: Any, prefix: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.set(f"{prefix}77", '{"id":77,"name":"stale"}')

    async def end(*_: Any) -> Any:
        raise TransientError("cut")

    sink = new(options)
    monkeypatch.setattr(sink, "_group_names", end)
    with pytest.raises(TransientError, match="cut"):
        await sink.open("orders")
    with pytest.raises(TargetRefused, match="has rows already"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    await write(new(options), named())
    sink = new(options)
    monkeypatch.setattr(sink, "_group_names", end)
    with pytest.raises(TransientError, match="cut"):
        await sink.set_offset("orders", None)
    with pytest.raises(TargetRefused, match="has rows already"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    assert found(client, prefix) == {}


async def test_a_process_that_stood_still_during_a_reset_writes_nothing(
    client: Any, prefix: str, options: dict[str, Any]
) -> None:
    """Also where the new copy is as far as the old one was."""
    old, again = new(options), new(options)
    await old.open("orders")
    await old.write(named())
    await new(options).set_offset("orders", None)
    assert found(client, prefix) == {}
    assert await again.open("orders") is None
    assert again.lacks_beginning
    await again.write(named())
    with pytest.raises(ConfigError, match="another process writes the copy"):
        await old.write(named(2, version=2))
    await old.aclose()
    await again.aclose()
    assert set(found(client, prefix)) == {"0", "1"}
    await new(options).set_offset("orders", None)
    await write(new(options), named(), feed="customers")
