"""Documents that an engine does not show, and answers that are not an engine's."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from sinks.search.copy import list_hits
from sinks.search.sink import SearchSink
from tailer.errors import TargetRefused, TransientError
from tests.sinks.search.conftest import new
from tests.support.components import free_port
from tests.support.search_engine import SearchEngine
from tests.support.sinks import named, write
from tests.support.web_front import WebFront, running_front

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


async def test_a_shard_that_is_nowhere_has_not_said_that_it_is_empty(
    search_engine: SearchEngine, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine answers 200 with what the other shards have, none of which failed."""
    index = options["index"]
    settings = {"number_of_shards": 2, "routing.allocation.total_shards_per_node": 1}
    path = f"/{index}?wait_for_active_shards=0"
    assert search_engine.call("PUT", path, {"settings": settings})[0] == 200
    search_engine.call("GET", f"/_cluster/health/{index}?wait_for_active_shards=1&timeout=60s")
    sink = new(options)
    assert isinstance(sink, SearchSink)
    await sink.client.connect(1)
    call = sink.client.call

    async def call_quickly(method: str, path: str, *more: Any, **query: Any) -> Any:
        """The engine waits for the shard for a minute, and then refreshes the others."""
        return None if path.endswith("_refresh") else await call(method, path, *more, **query)

    monkeypatch.setattr(sink.client, "call", call_quickly)
    try:
        with pytest.raises(TransientError, match="some shards do not answer"):
            [hits async for hits in list_hits(sink.client, index)]
    finally:
        await sink.aclose()
    with pytest.raises(TransientError, match="some shards do not answer"):
        await sink.open("orders")


async def test_what_an_alias_hides_is_there(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    index, made = options["index"], f"{options['index']}-2026"
    alias = {"filter": {"term": {"id": 1}}}
    search_engine.call("PUT", f"/{made}", {"aliases": {index: alias}})
    await write(new(options), named(count=3))
    await new(options).set_offset("orders", None)
    assert search_engine.documents(made) == {}
    search_engine.call("PUT", f"/{made}/_doc/2", {"id": 2})
    with pytest.raises(TargetRefused, match="has documents already"):
        await new(options).open("orders")


async def test_an_index_that_keeps_no_source_is_emptied(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    index = options["index"]
    search_engine.call("PUT", f"/{index}", {"mappings": {"_source": {"enabled": False}}})
    await write(new(options), named())
    await new(options).set_offset("orders", None)
    search_engine.call("POST", f"/{index}/_refresh")
    assert search_engine.call("GET", f"/{index}/_count")[1]["count"] == 0


class _Gateway(WebFront):
    """A gateway that has no route to the engine just now."""

    def __init__(self) -> None:
        self.port = free_port()

    async def answer(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        return web.json_response({"message": "no Route matched"}, status=404)


async def test_a_gateway_does_not_say_that_an_index_is_missing() -> None:
    with running_front(_Gateway()) as front:
        sink = new({"url": front.url, "key": ["id"]})
        for use in (sink.open("orders"), sink.set_offset("orders", None)):
            with pytest.raises(TargetRefused, match=r'answered 404 .*"no Route matched"'):
                await use
