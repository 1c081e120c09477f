"""While a snapshot is read, its feed says how much of it is there, and how long the rest takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailer.changes import ChangeBatch
from tailer.daemon.progress_log import _format_lag
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.progress import FeedProgress
from tailer.feed.run import run_feed
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio


class Seen:
    """What the status says after each batch of a snapshot; a second passes between two."""

    def __init__(self, rig: Rig) -> None:
        self.now = 0.0
        self.found: list[dict[str, Any] | None] = []
        self.lines: list[str] = []
        self.shares: list[float] = []
        self.progress = rig.progress
        self.rig = rig
        rig.progress.clock = lambda: self.now
        rig.progress.on_rows = self.look

    def look(self, _: ChangeBatch) -> None:
        self.now += 1.0
        self.found.append(self.progress.describe_snapshot())
        self.lines.append(_format_lag([self.progress]))
        self.shares.append(self.rig.metric("tailer_snapshot_share"))


async def test_a_first_snapshot(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for first in range(0, 40, 4):
        rig.table.insert([{"id": first + n} for n in range(4)])
    seen = Seen(rig)
    await run_feed(rig.feed(start="snapshot"))
    found = [one for one in seen.found if one is not None]
    assert len(found) == len(seen.found)
    assert [one["rows"] for one in found] == list(range(2, 41, 2))
    assert all(one["files"] == 10 for one in found)
    read = [one["files_read"] for one in found]
    assert read == sorted(read)
    assert read[-1] == 10
    assert found[-1]["bytes_read"] == found[-1]["bytes"]
    assert (found[-1]["share"], found[-1]["seconds_left"]) == (1.0, 0.0)
    assert seen.shares == [one["share"] for one in found]
    assert "its snapshot is read to 100.0%, 0 s left" in seen.lines
    assert rig.progress.describe_snapshot() is None
    assert rig.registry.get_sample_value("tailer_snapshot_share", {"feed": "orders"}) is None


async def test_one_that_was_ordered(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for first in range(3):
        rig.table.insert([{"id": first}])
    rig.orders.resnapshots += [ResnapshotRequest(None), ResnapshotRequest(None)]
    seen = Seen(rig)
    await run_feed(rig.feed(start="latest"))
    found = [one for one in seen.found if one is not None]
    assert [(one["files"], one["rows"]) for one in found] == [(3, 1), (3, 2), (3, 3)] * 2
    assert found[0]["files_read"] < 3, "the next one is read ahead, and no other"
    assert rig.progress.describe_snapshot() is None


def test_the_pace_is_that_of_what_was_read_here() -> None:
    """Files that an earlier process has read are passed over at once."""
    now = 100.0
    progress = FeedProgress("orders", lambda: now)
    progress.begin_snapshot(4, 400)
    found = progress.describe_snapshot()
    assert found is not None
    assert (found["share"], found["seconds_left"]) == (0.0, None)
    for _ in range(2):
        progress.count_snapshot_file(100)
    (snapshot,) = progress.snapshots
    snapshot.count_rows(1, now)
    assert snapshot.estimate_seconds_left(now) is None
    progress.count_snapshot_file(100)
    now = 110.0
    assert snapshot.estimate_seconds_left(now) == 10.0
    progress.begin_snapshot(0, 0)
    assert progress.snapshots[1].find_share() == 1.0
