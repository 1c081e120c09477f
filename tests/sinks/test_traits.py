"""What a sink asks of its feed."""

from __future__ import annotations

from typing import Any

import pytest

from sinks.jsonl import JsonlSink
from tailer.errors import ConfigError
from tailer.feed.options import FeedOptions
from tailer.sink import OwnNames, SinkTraits, sink_traits
from tests.support.faulty import FaultySink, Script


class Plain:
    """A sink that asks nothing."""

    async def open(self, feed: str) -> None: ...

    async def write(self, batch: object) -> None: ...

    async def aclose(self) -> None: ...


class Mapped(Plain):
    traits = {"paired": True}  # noqa: RUF012  # as somebody may write it


def test_a_sink_without_traits_asks_nothing() -> None:
    assert sink_traits(Plain()) == SinkTraits()
    assert FeedOptions().for_sink(Plain()) == FeedOptions()


def test_an_unknown_trait_is_an_error_that_names_it() -> None:
    misspelt: dict[str, Any] = {"pared": True}
    with pytest.raises(TypeError, match="pared"):
        SinkTraits(**misspelt)


def test_traits_of_another_class_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Mapped has traits of the class dict; make them a"):
        sink_traits(Mapped())


def test_a_double_has_the_traits_of_its_sink() -> None:
    sink = JsonlSink(None, row_ids=True)
    assert (
        sink_traits(FaultySink(sink, Script({})))
        == sink.traits
        == SinkTraits(row_ids=True, spans=True, own=OwnNames(("_event_id", "_row_id", "_notice")))
    )
    assert FeedOptions().for_sink(FaultySink(sink, Script({}))).decode.row_ids
