"""What an engine refuses for its own sake, and what for a row's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.errors import RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.feed.parking import Parked, Parking
from tailer.feed.progress import FeedProgress
from tailer.sink import make_sink
from tailer.testing.batches import change_batch
from tests.sinks.search.conftest import new
from tests.support.search_engine import SearchEngine
from tests.support.sinks import NAMED, named, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


async def no_save(_: Offset) -> None:
    """What keeps no offset."""


def put(search_engine: SearchEngine, path: str, body: Any) -> None:
    status, answer = search_engine.call("PUT", path, body)
    assert status == 200, answer


@contextmanager
def read_only(search_engine: SearchEngine) -> Iterator[None]:
    """No index can be made or written."""
    setting = "cluster.blocks.read_only"
    put(search_engine, "/_cluster/settings", {"persistent": {setting: True}})
    try:
        yield
    finally:
        put(search_engine, "/_cluster/settings", {"persistent": {setting: None}})


async def test_a_name_that_a_template_has_for_data_streams_refuses_the_feed_and_no_row(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    """As Elasticsearch's own templates have `logs-*-*`."""
    index = options["index"]
    template = {"index_patterns": [index], "priority": 999, "data_stream": {}}
    put(search_engine, f"/_index_template/{index}", template)
    with pytest.raises(TargetRefused, match=f"the index '{index}': .*creates data streams only"):
        await write(new(options), named())


async def test_an_index_with_room_for_no_field_refuses_the_feed_and_no_row(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    limit = {"index.mapping.total_fields.limit": 3}
    put(search_engine, f"/{options['index']}/_settings", limit)
    wide = pa.schema({"id": pa.int64(), "name": pa.string(), "more": pa.string()})
    with pytest.raises(TargetRefused, match="Limit of total fields"):
        await sink.write(change_batch(wide, [{"id": 9, "more": "a"}], version=2, last=True))
    await sink.aclose()


async def test_a_cluster_that_is_read_only_is_waited_for(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    """Also before there is any index: it answers 403, as it does to whom it does not know."""
    with (
        read_only(search_engine),
        pytest.raises(TransientError, match="cluster_block_exception"),
    ):
        await new(options).open("orders")
    await write(new(options), named())
    assert set(search_engine.documents(options["index"])) == {"0", "1"}


async def test_a_pipeline_that_is_missing_parks_no_row(
    search_engine: SearchEngine, options: dict[str, Any], tmp_path: Path
) -> None:
    """A delete passes by it, and proves nothing of the documents."""
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    settings = f"/{options['index']}/_settings"
    put(search_engine, settings, {"index.default_pipeline": "missing"})
    kinds = [(0, "delete"), (10, "insert"), (1, "delete"), (11, "insert")]
    found = [{"id": key, "name": f"name {key}", "_change_type": kind} for key, kind in kinds]
    batch = change_batch(NAMED, found, version=2, last=True)
    said: list[Parked] = []
    park = make_sink("jsonl", {"path": "parked.jsonl"}, tmp_path)
    parking = Parking(sink, park, FeedProgress("orders", time.time), said.append)
    with pytest.raises(SinkRejected, match=r"pipeline with id .missing. does not exist"):
        await parking.write(batch, no_save)
    assert not said
    put(search_engine, settings, {"index.default_pipeline": None})
    await parking.write(batch, no_save)
    await sink.aclose()
    assert set(search_engine.documents(options["index"])) == {"10", "11"}


@pytest.mark.parametrize(
    "mappings",
    [
        {"properties": {"name": {"type": "date"}}},
        {"dynamic": "strict", "properties": {"id": {"type": "long"}}},
    ],
    ids=["a field of another type", "no field"],
)
async def test_a_row_that_an_index_of_its_user_refuses_is_named(
    search_engine: SearchEngine, options: dict[str, Any], mappings: dict[str, Any]
) -> None:
    put(search_engine, f"/{options['index']}", {"mappings": mappings})
    sink = new(options)
    await sink.open("orders")
    with pytest.raises(RowsRefused, match=r"version 1: the document '0': \w+_exception"):
        await sink.write(named())
    await sink.aclose()
