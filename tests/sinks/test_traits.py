"""What a sink asks of its feed."""

from __future__ import annotations

from typing import Any

import pytest

from sinks.jsonl import JsonlSink
from tailer.feed.options import FeedOptions
from tailer.sink import OwnNames, Sink, SinkTraits
from tests.support.faulty import FaultySink, Script


class Plain(Sink):
    """A sink that asks nothing."""

    async def open(self, feed: str) -> None: ...

    async def write(self, batch: object) -> None: ...

    async def aclose(self) -> None: ...


def test_a_sink_without_traits_asks_nothing() -> None:
    assert Plain().traits == SinkTraits()
    assert FeedOptions().for_sink(Plain()) == FeedOptions()


def test_an_unknown_trait_is_an_error_that_names_it() -> None:
    misspelt: dict[str, Any] = {"pared": True}
    with pytest.raises(TypeError, match="pared"):
        SinkTraits(**misspelt)


def test_a_double_has_the_traits_of_its_sink() -> None:
    sink = JsonlSink(None, row_ids=True)
    assert (
        FaultySink(sink, Script({})).traits
        == sink.traits
        == SinkTraits(row_ids=True, spans=True, own=OwnNames(("_event_id", "_row_id", "_notice")))
    )
    assert FeedOptions().for_sink(FaultySink(sink, Script({}))).decode.row_ids
