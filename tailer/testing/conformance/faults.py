"""What every sink must make of the faults of its target: they cost no row, and every wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.sink import Sink
from tailer.testing.batches import change_batch

__all__ = ["FaultConformance", "TargetFaults"]

T = TypeVar("T")

_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
#: How long a call may take whose time-outs are a few seconds, on a busy machine.
_TRIES = 5
_CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class TargetFaults:
    """How the faults of a target are brought about, each None where the target can't have it.

    ``hasty`` makes a sink on the target whose time-outs are a second or two. ``still`` stops the
    server within the block, as SIGSTOP does: it takes connections and says nothing. ``cut`` cuts
    the connections that are there. ``forbidden`` are blocks in which the server lives and takes no
    writes: a right that is revoked, a server that is read-only. ``unknown`` is a block in which it
    fails each write with an error that nobody has heard of. ``refused`` returns a value of the text
    column ``name`` that the target refuses from then on, for example by a constraint; the table
    ``orders`` is there.
    """

    hasty: Callable[[], Sink] | None = None
    still: Callable[[], AbstractContextManager[None]] | None = None
    cut: Callable[[], None] | None = None
    forbidden: Sequence[Callable[[], AbstractContextManager[None]]] = ()
    unknown: Callable[[], AbstractContextManager[None]] | None = None
    refused: Callable[[], str | None] | None = None


def _make_batch(version: int, *names: str | None) -> ChangeBatch:
    rows = [{"id": version * 100 + i, "name": name} for i, name in enumerate(names)]
    return change_batch(_SCHEMA, rows, version=version, last=True)


async def _wait_for_end(call: Awaitable[Any]) -> Any:
    """Return what a call returns. One that does not end is left behind, not waited for."""
    task = asyncio.ensure_future(call)
    await asyncio.wait({task}, timeout=_CALL_S)
    assert task.done(), "the call does not come back"
    return task.result()


async def _begin_sink(sink: Sink) -> Sink:
    """Open a sink, and write a first version."""
    if await sink.open("orders") is None:
        await sink.write(_make_batch(1, "a", "b"))
    return sink


async def _retry_attempt(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what an attempt does at last, as a feed tries again: with short time-outs it may fail
    where the machine is busy, or the first answers after a stop are still late."""
    for tries_left in reversed(range(_TRIES)):
        try:
            return await attempt()
        except TransientError:
            if not tries_left:
                raise
    raise AssertionError


async def _continue_sink(sink: Sink, *batches: ChangeBatch) -> None:
    """Open a sink and write what its target does not have yet, as a feed does after an error."""
    await sink.aclose()
    found: Offset | None = await sink.open("orders")
    for batch in batches:
        if found is None or found.position < batch.next_offset.position:
            await sink.write(batch)
    await sink.aclose()


class FaultConformance:
    """A part of the suites of sinks. Subclasses of these provide the fixture ``target_faults``."""

    @pytest.fixture
    def target_faults(self) -> TargetFaults | None:
        """Return how the target's faults are brought about; ``TargetFaults()`` for one that has
        none, such as a local file."""
        return None

    async def test_the_faults_of_its_target_are_known(
        self, target_faults: TargetFaults | None
    ) -> None:
        assert target_faults is not None, "provide the fixture target_faults"

    async def test_what_nobody_knows_is_passing(self, make_sink: Callable[[], Sink]) -> None:
        sink = make_sink()
        assert sink.faults.verdict("nobody has heard of it") == "passing"
        assert sink.faults.verdict("") == "passing"

    async def test_an_unknown_error_is_tried_again(
        self, make_sink: Callable[[], Sink], target_faults: TargetFaults | None
    ) -> None:
        if target_faults is None or target_faults.unknown is None:
            return
        sink, second = await _begin_sink(make_sink()), _make_batch(2, "c", "d")
        with target_faults.unknown(), pytest.raises(TransientError):
            await _wait_for_end(sink.write(second))
        await _continue_sink(sink, second)

    async def test_a_target_that_takes_no_writes_refuses_no_row(
        self, make_sink: Callable[[], Sink], target_faults: TargetFaults | None
    ) -> None:
        """Such an error is of no row, however many the batch has."""
        sink, version = await _begin_sink(make_sink()), 2
        for forbidden in target_faults.forbidden if target_faults else ():
            for names in (("c",), ("d", "e")):
                batch = _make_batch(version, *names)
                with forbidden():
                    with pytest.raises((TransientError, TargetRefused, ConfigError)):
                        await _wait_for_end(sink.write(batch))
                    with pytest.raises((TransientError, TargetRefused, ConfigError)):
                        await _wait_for_end(_continue_sink(sink, batch))
                await _continue_sink(sink, batch)
                await sink.open("orders")
                version += 1
        await sink.aclose()

    async def test_a_row_that_the_target_refuses_is_told_from_others(
        self, make_sink: Callable[[], Sink], target_faults: TargetFaults | None
    ) -> None:
        if target_faults is None or target_faults.refused is None:
            return
        sink = await _begin_sink(make_sink())
        value = target_faults.refused()
        batch = _make_batch(2, "c", value, "d")
        with pytest.raises(SinkRejected) as refused:
            await sink.write(batch)
        assert not isinstance(refused.value, TargetRefused)
        await sink.write(batch.slice(0, 1))
        with pytest.raises(RowsRefused):
            await sink.write(batch.slice(1, 2))
        await sink.write(batch.slice(2, 3))
        await sink.aclose()

    async def test_a_connection_that_was_cut_at_rest_is_made_again(
        self, make_sink: Callable[[], Sink], target_faults: TargetFaults | None
    ) -> None:
        if target_faults is None or target_faults.cut is None:
            return
        sink, second = await _begin_sink(make_sink()), _make_batch(2, "c")
        target_faults.cut()
        try:
            await _wait_for_end(sink.write(second))
        except TransientError:
            await _continue_sink(sink, second)
        await sink.aclose()

    async def test_a_server_that_stands_still_is_waited_for_until_the_time_out(
        self, target_faults: TargetFaults | None
    ) -> None:
        """Also at the start, and when the sink is closed."""
        if target_faults is None or target_faults.still is None:
            return
        assert target_faults.hasty is not None, "the sink of the target has time-outs"
        hasty, second = target_faults.hasty, _make_batch(2, "c", "d")

        async def begun() -> Sink:
            sink = hasty()
            try:
                return await _begin_sink(sink)
            except TransientError:
                await sink.aclose()
                raise

        sink = await _retry_attempt(begun)
        with target_faults.still():
            with pytest.raises(TransientError):
                await _wait_for_end(sink.write(second))
            await _wait_for_end(sink.aclose())
            with pytest.raises(TransientError):
                await _wait_for_end(_continue_sink(sink, second))
            await _wait_for_end(sink.aclose())
        await _retry_attempt(lambda: _continue_sink(hasty(), second))
