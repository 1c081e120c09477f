"""A sink that can begins with the next batch while it writes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tailer.changes import ChangeBatch
from tailer.feed.run import run_feed
from tailer.sink import Sink
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio


class Preparing(Sink):
    """Writes a batch only when the next one has been begun."""

    def __init__(self, batches: int) -> None:
        self.begun: list[ChangeBatch] = []
        self.written = 0
        self._batches = batches
        self._more = anyio.Event()

    async def open(self, feed: str) -> None:
        assert feed == "orders"

    def prepare(self, batch: ChangeBatch) -> None:
        self.begun.append(batch)
        self._more.set()
        self._more = anyio.Event()

    async def write(self, batch: ChangeBatch) -> None:
        assert batch is self.begun[self.written]
        while len(self.begun) < min(self.written + 2, self._batches):
            await self._more.wait()
        self.written += 1

    async def aclose(self) -> None:
        pass


async def test_a_sink_begins_with_the_next_batch_while_it_writes_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.table.commit(rig.table.add([{"id": i} for i in range(5)]))
    rig.table.commit()
    rig.table.commit(rig.table.add([{"id": 5}]))
    sink = Preparing(batches=6)  # two of them empty
    feed = replace(rig.feed(), sink=sink)
    with anyio.fail_after(150):
        await run_feed(feed)
    assert sink.written == len(sink.begun) == 6
