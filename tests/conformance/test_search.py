"""The search sink against the public suites: a copy, and a log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import MirrorConformance, SinkConformance, TargetFaults
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import Event, MakeSink, ReadEvents
from tests.conformance.faults import asked
from tests.support.json_rows import typed_rows
from tests.support.search_engine import SearchEngine

pytestmark = pytest.mark.usefixtures("one_attempt")


@pytest.fixture
def name() -> str:
    """The name of a new index."""
    return f"t{uuid.uuid4().hex}"


def search_faults(server: SearchEngine, options: dict[str, Any]) -> TargetFaults:
    """Those of a search engine."""
    index = options["index"]

    def set_index(setting: str, value: str) -> None:
        status, answer = server.call("PUT", f"/{index}/_settings", {setting: value or None})
        assert status == 200, answer

    def blocked(setting: str) -> AbstractContextManager[None]:
        return asked(lambda value: set_index(setting, value), "true", "")

    @contextmanager
    def closed() -> Iterator[None]:
        server.call("POST", f"/{index}/_close")
        yield
        server.call("POST", f"/{index}/_open?wait_for_active_shards=1")

    def refused() -> str:
        return "x" * 96 * 1024**2  # what an engine takes in a request is 100 MiB

    return TargetFaults(
        hasty=lambda: made_sink("search", {**options, "timeout_s": 1}, Path()),
        still=server.still,
        forbidden=[
            lambda: blocked("index.blocks.write"),
            lambda: blocked("index.blocks.read_only_allow_delete"),  # as when a disk is full
            closed,
        ],
        refused=refused,
    )


class TestSearchMirror(MirrorConformance):
    @pytest.fixture
    def options(self, search_engine: SearchEngine, name: str) -> dict[str, Any]:
        return {"url": search_engine.url, "index": name, "key": ["id"]}

    @pytest.fixture
    def target_faults(self, search_engine: SearchEngine, options: dict[str, Any]) -> TargetFaults:
        return search_faults(search_engine, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("search", options, Path())

    @pytest.fixture
    def read_rows(self, search_engine: SearchEngine, name: str) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            return typed_rows(list(search_engine.documents(name).values()))

        return read

    @pytest.mark.parametrize(("rows", "said"), [([], "")])
    async def test_rows_that_the_key_does_not_identify_are_refused(
        self, rows: list[Any], said: str
    ) -> None:
        """Those of one batch alone: see tests/sinks/search. An engine is not asked what it
        has before it is written."""

    async def test_a_column_that_is_added_or_dropped_is_that_of_the_copy(  # type: ignore[override]
        self,
    ) -> None:
        """Documents keep what they were written with: see tests/sinks/search."""


class TestSearchLog(SinkConformance):
    @pytest.fixture
    def options(self, search_engine: SearchEngine, name: str) -> dict[str, Any]:
        return {"url": search_engine.url, "index": name, "mode": "log"}

    @pytest.fixture
    def target_faults(self, search_engine: SearchEngine, options: dict[str, Any]) -> TargetFaults:
        return search_faults(search_engine, options)

    @pytest.fixture
    def make_sink(self, options: dict[str, Any]) -> MakeSink:
        return lambda: made_sink("search", options, Path())

    @pytest.fixture
    def read_events(self, search_engine: SearchEngine, name: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            found = search_engine.documents(name).items()
            return [
                Event(event_id, row["_change_type"], row["_commit_version"], row)
                for event_id, row in sorted(found, key=lambda each: each[1]["_seq"])
            ]

        return read
