"""Copies whose rows are JSON under a text of their key: Redis and buckets of NATS."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.errors import ConfigError, TargetRefused, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.sinks import NAMED, named, write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["redis", "nats"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    kind, name = request.param, f"t{uuid.uuid4().hex}"
    server = request.getfixturevalue(f"{kind}_server")
    places = {
        "redis": {"url": server.url(), "prefix": f"{name}:"},
        "nats": {"servers": [server.url()], "bucket": name},
    }
    return {"type": kind, "mode": "mirror", "key": ["id"], **places[kind]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    given = {**options, **more}
    return make_sink(given.pop("type"), given, Path())


def read_rows(options: dict[str, Any]) -> dict[str, str]:
    """Return the names by their ids, as JSON."""
    with new(options).read_mirror("orders") as copy:
        pages = [batch.to_pydict() for batch in copy.rows(NAMED)]
    pairs = (zip(page["id"], page["name"], strict=True) for page in pages)
    return {key: name for page in pairs for key, name in page}


async def test_rows_that_are_read_again_replace_those_that_are_there(
    options: dict[str, Any],
) -> None:
    """A snapshot that is taken while the stream continues."""
    first = named()
    sink = new(options)
    await sink.open("orders")
    await sink.write(first)
    at = structs.replace(first.offset, snapshot=True)
    again = change_batch(
        NAMED, [{"id": 0, "name": "other"}, {"id": 1, "name": "name 1"}], last=True
    )
    await sink.write(structs.replace(again, offset=at))
    await sink.aclose()
    assert read_rows(options) == {"0": '"other"', "1": '"name 1"'}


async def test_keys_that_move_are_checked_in_whole_batches(options: dict[str, Any]) -> None:
    """As Spark writes `id = id + 1`: a key comes long before it leaves."""
    count = 6000
    await write(new(options), named(count=count))
    images = []
    for number in range(count):
        images.append({"id": number, "name": f"{number}", "_change_type": "update_preimage"})
        images.append({"id": number + 1, "name": "moved", "_change_type": "update_postimage"})
    await write(new(options), change_batch(NAMED, images, version=2, last=True))
    assert set(read_rows(options)) == {str(number + 1) for number in range(count)}


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({"name": pa.string(), "more": pa.int64()}, True),
        ({}, True),
        ({"name": pa.int64()}, False),
    ],
    ids=["added", "dropped", "another type"],
)
async def test_columns_that_change(
    options: dict[str, Any], change: dict[str, pa.DataType], *, follows: bool
) -> None:
    await write(new(options), named(count=1))
    schema = pa.schema({"id": pa.int64(), **change})
    batch = change_batch(schema, [{"id": 9}], version=2, last=True)
    if follows:
        await write(new(options), batch)
        assert sorted(read_rows(options)) == ["0", "9"]
    else:
        with pytest.raises(TargetRefused, match="changed the column 'name', which rows"):
            await write(new(options), batch)


async def test_a_copy_is_not_compared_while_it_is_written(options: dict[str, Any]) -> None:
    await write(new(options), named(count=200))
    with new(options).read_mirror("orders") as copy:
        held = copy.rows(NAMED)
        next(held)
        await write(new(options), named(700, version=2))
        with pytest.raises(TransientError, match="verify it again"):
            list(held)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"key": []}, "name the columns that identify a row of the copy"),
        ({"format": "debezium", "key": ["id"]}, "a copy's rows are JSON objects"),
        ({"value_bytes_max": 5000}, "a copy has whole rows"),
    ],
)
def test_options_are_checked(options: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        new(options, **more)
