"""Shared tables followed as they grow: by a feed, by `tail`, and by a daemon that is killed."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink
from tailer.store.local import LocalStore
from tests.sharing.reference_server import ReferenceServer, serving
from tests.sharing.shared import NAME, insert, orders, read_store, shared_store
from tests.support.programs import Program, started, whole_lines


class Gathering(Sink):
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002 - any feed
        return None

    async def write(self, batch: ChangeBatch) -> None:
        self.rows += batch.rows.to_pylist()

    async def announce(self, notice: object) -> None:
        pass

    async def aclose(self) -> None:
        pass


@pytest.mark.anyio
async def test_a_feed_follows_live_commits_through_faults(tmp_path: Path) -> None:
    """Every tenth request or so is refused or cut short; nothing is lost, nothing comes twice."""
    table = orders(tmp_path / "orders", versions=2)
    generator = random.Random(7)
    with serving({NAME: table.folder}) as server:
        store = shared_store(server.profile(tmp_path), poll_interval_s=0.02)
        sink = Gathering()

        async def start(_: TableLog) -> Offset:
            return Offset(0)

        feed = Feed(
            name="orders",
            log=TableLog(store),
            sink=sink,
            offsets=MemoryOffsetStore(),
            start=start,
            progress=FeedProgress("orders", lambda: 0.0),
            jitter=lambda: 0.0,
            options=FeedOptions(
                follow=FollowOptions(poll_min_s=0.01, poll_max_s=0.02),
                retry=RetryOptions(pause_min_s=0.01, pause_max_s=0.02),
            ),
            last=30,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_feed, feed)
            for number in range(2, 31):
                trouble = generator.choice(["429", "503", "cut", "none"])
                if trouble in ("429", "503"):
                    server.faults.refuse.append(("changes|version", int(trouble), {}))
                server.faults.cut_after_lines = 2 if trouble == "cut" else None
                insert(table, number)
                await anyio.sleep(0.03)
            server.faults.cut_after_lines = None
        await store.aclose()
    assert [row["id"] for row in sink.rows] == list(range(1, 31))
    assert feed.progress.versions_delivered == 31


@pytest.mark.slow
def test_tail_follows_live_commits_at_the_protocols_pace(tmp_path: Path) -> None:
    """The version is asked for every 30 seconds, so that is how long a commit may take."""
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}) as server:
        address = f"{server.profile(tmp_path)}#share.schema.table"
        with started("tail", address, "--from", "1") as program:
            assert [e["id"] for e in program.wait_for_events(3)] == [1, 2, 3]
            insert(table, 4)
            assert [e["id"] for e in program.wait_for_events(4)] == [1, 2, 3, 4]
            assert program.stop(signal.SIGINT) == 0
            # Under -X dev asyncio tells of slow steps, of which importing is one.
            assert [e for e in program.errors if not e.startswith("Executing ")] == []
        assert len([r for r in server.seen("version$") if not r.query]) == 2


CONFIG = """
[daemon]
http = ""
[feeds.orders]
table = "test.share#share.schema.table"
from = "earliest"
batch_rows_max = 5
[feeds.orders.sink]
type = "jsonl"
path = "orders.jsonl"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReferenceServer]:
    table = orders(tmp_path / "orders", versions=1)
    for version in range(1, 21):
        rows = [{"id": version * 100 + n, "v": "x"} for n in range(20)]
        add = table.add(rows)
        table.commit(add, timestamp_ms=1_767_225_600_000 + version * 60_000)
    with serving({NAME: table.folder}) as running:
        running.profile(tmp_path)
        yield running


def written(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(file)]


@pytest.mark.timeout(600)  # it is started four times
def test_a_daemon_that_is_killed_goes_on_where_it_was(
    server: ReferenceServer, tmp_path: Path
) -> None:
    """URLs expire all the while; the output is the table's own changes, some of them twice."""
    server.faults.requests_per_url = 3
    (tmp_path / "config.toml").write_text(CONFIG)
    output = tmp_path / "orders.jsonl"
    generator, kills = random.Random(3), 0
    while len({e["_event_id"] for e in written(output)}) < 400:
        before = len(written(output))
        with started("run", tmp_path / "config.toml") as program:
            target = before + generator.randrange(30, 120)
            if kills < 3:
                _until(program, lambda: len(written(output)) >= target)  # noqa: B023
                program.stop(signal.SIGKILL)
                kills += 1
            else:
                _until(program, lambda: len({e["_event_id"] for e in written(output)}) == 400)
                assert program.stop() == 0
    assert kills >= 2
    events = written(output)
    expected = anyio.run(read_store, LocalStore(str(tmp_path / "orders")), 0, 20)
    distinct = {e["_event_id"]: e["id"] for e in events}
    assert sorted(distinct.values()) == sorted(row["id"] for row in expected)
    for event_id, count in Counter(e["_event_id"] for e in events).items():
        if count > 1:
            same = {json.dumps(e, sort_keys=True) for e in events if e["_event_id"] == event_id}
            assert len(same) == 1, "what came twice is the same to the byte"


def _until(program: Program, what: Any) -> None:
    """Wait for something to be seen on the disk, and fail if the program ends before."""
    pause = threading.Event()
    for _ in range(3000):
        if what():
            return
        assert program.process.poll() is None, str(program)
        pause.wait(0.01)
    raise AssertionError(f"not seen\n{program}")
