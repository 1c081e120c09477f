"""One feed's life in the daemon, where the real parts can't be made to fail so."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import anyio
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.daemon.runner import Event, Runner
from tailer.errors import RowsRefused, SinkRejected, TransientError
from tailer.feed.progress import FeedProgress
from tailer.sink import make_sink
from tests.support.faulty import FaultySink, Script
from tests.support.rig import Rig
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.table.insert([{"id": 1}, {"id": 2}, {"id": 3}])
    return rig


def runner_of(rig: Rig, script: Script) -> Runner:
    feed = rig.feed(script=script)
    return Runner(feed, "jsonl", logger=logging.getLogger("tailer.test"))


async def states(runner: Runner, last: str) -> None:
    """Run it until it is in that state, then end it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await eventually_async(lambda: runner.build_status(0.0).state == last, why=f"it is {last}")
        await runner.end()


async def test_a_bug_stops_its_feed_and_is_logged_with_its_traceback(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(rig, Script({"write": [None, ZeroDivisionError("of nothing")]}))
    with caplog.at_level(logging.ERROR):
        await states(runner, "failed")
    assert "a bug" in (runner.last_error or "")
    assert "ZeroDivisionError: of nothing" in (runner.last_error or "")
    assert "Traceback" in caplog.text
    assert rig.metric("tailer_errors_total", family="internal") == 1
    assert rig.ids == [], "the offset is not moved"


async def test_an_offset_that_can_t_be_taken_now_is_taken_later(rig: Rig) -> None:
    full = TransientError("no room")
    await states(runner_of(rig, Script({"acquire": [full, full]})), "stopped")
    assert rig.ids == [1, 2, 3]
    assert rig.metric("tailer_retries_total") == 2


async def test_a_feed_is_retrying_until_it_has_delivered(rig: Rig) -> None:
    """Each try opens the sink and reads: it must not seem well until the write."""
    away = TransientError("no broker")
    seen: list[tuple[str, bool]] = []

    class Watched(Script):
        def __call__(self, method: str, argument: object = "") -> None:
            seen.append((runner.build_status(0.0).state, runner.ready))
            super().__call__(method, argument)

    runner = runner_of(rig, Watched({"write": [away] * 5}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        # Its last version ends it, maybe before anybody has seen it follow.
        await eventually_async(
            lambda: runner.build_status(0.0).state in ("following", "stopped") and rig.ids,
            why="it goes on",
        )
        await runner.end()
    first = next(i for i, (state, _) in enumerate(seen) if state == "retrying")
    tried = seen[first : first + 8]
    assert set(tried) == {("retrying", False)}


def test_a_feed_without_unread_changes_is_well_again() -> None:
    """After the log was away: nothing is delivered that would show it."""
    progress = FeedProgress("orders", lambda: 0.0)
    progress.note_start(Offset(3))
    progress.note_retry(TransientError("no log"))
    progress.note_start(Offset(3))
    assert (progress.state, progress.ready) == ("retrying", False)
    progress.note_newest(3)
    assert progress.state == "retrying", "version 3 is not delivered"
    progress.note_start(Offset(4))
    progress.note_newest(3)
    assert (progress.state, progress.ready) == ("following", True)


@pytest.mark.parametrize("order", ["stop", "end"])
async def test_an_order_that_comes_while_the_feed_fails_is_carried_out(
    rig: Rig, order: Event
) -> None:
    class Full(Script):
        def __call__(self, method: str, argument: object = "") -> None:
            super().__call__(method, argument)
            if method == "write":
                runner.transition(order)
                raise SinkRejected("full")

    runner = runner_of(rig, Full({}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        while runner.state == "running":  # noqa: ASYNC110  # a state has no event
            await anyio.sleep(0.001)
        assert runner.state == {"stop": "stopped", "end": "ended"}[order]
        await runner.end()
    assert rig.ids == []


def test_nothing_leads_out_of_the_end(rig: Rig) -> None:
    runner = runner_of(rig, Script({}))
    events: list[Event] = [
        "failed", "pause", "change", "resume", "finished", "end", "resume", "skip",
    ]  # fmt: skip
    seen = []
    for event in events:
        runner.transition(event)
        seen.append(runner.state)
    assert seen == [
        "failed", "paused", "paused", "running", "stopped", "ended", "ended", "ended",
    ]  # fmt: skip


async def test_parked_rows_are_logged_once_a_batch(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parked = tmp_path / "parked.jsonl"
    refused = RowsRefused("too long")
    park = make_sink("jsonl", {"path": str(parked)}, Path())
    # Version 0 has no rows; the three of version 1 are refused together, and the first two alone.
    script = Script({"write": [None, refused, refused, refused, refused, None]})
    feed = rig.feed(script=script, park=park, batch_rows_max=3)
    runner = Runner(feed, "jsonl", logger=logging.getLogger("tailer.test"))
    with caplog.at_level(logging.WARNING):
        await states(runner, "stopped")
    lines = [line for line in caplog.messages if "parked" in line]
    assert len(lines) == 1
    assert lines[0].startswith("feed orders parked 2 of 3 rows, of version 1 (event ids: ")
    assert all(json.loads(row)["_event_id"] in lines[0]
               for row in parked.read_text().splitlines())  # fmt: skip


async def test_a_call_that_does_not_come_back_is_named_until_it_does(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailer.feed.sink_calls.SLOW_S", 0.01)
    goes_on = anyio.Event()
    real = FaultySink.write

    async def write(self: FaultySink, batch: ChangeBatch) -> None:
        await goes_on.wait()
        await real(self, batch)

    monkeypatch.setattr(FaultySink, "write", write)
    runner = runner_of(rig, Script({}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        # Before that, its start may take as long on a busy machine.
        named = "has not returned from a write for 0.01 s"
        await eventually_async(lambda: named in (runner.last_error or ""), why="it is named")
        assert runner.build_status(0.0).state == "retrying"
        assert not runner.ready
        assert any("waits: the sink has not returned" in line for line in caplog.messages)
        goes_on.set()
        await eventually_async(
            lambda: runner.build_status(0.0).state == "stopped", why="it is done"
        )
        await runner.end()
    assert rig.ids == [1, 2, 3]
    assert rig.metric("tailer_retries_total") == 0


async def test_a_sink_is_not_looked_at_while_its_feed_has_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look connects and disconnects: the feed would write to a connection that is closed."""
    goes_on, opened = anyio.Event(), anyio.Event()
    real = FaultySink.open
    looks: list[bool] = []

    async def look(_: FaultySink, feed: str) -> Offset | None:  # noqa: ARG001
        looks.append(opened.is_set())
        return None

    async def slow_open(self: FaultySink, feed: str) -> Offset | None:
        opened.set()
        await goes_on.wait()
        return await real(self, feed)

    monkeypatch.setattr(FaultySink, "look", look, raising=False)
    monkeypatch.setattr(FaultySink, "open", slow_open)
    runner = runner_of(rig, Script({}))
    await runner.measure_unread()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run)
        await opened.wait()
        await runner.measure_unread()
        goes_on.set()
        await eventually_async(
            lambda: runner.build_status(0.0).state == "stopped", why="it is read"
        )
        await runner.end()
    assert looks == [False], "before it begins, it may be"
    assert rig.ids == [1, 2, 3]
