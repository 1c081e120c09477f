"""A daemon that a newer one has replaced stops: it parks no rows, for the newer one writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError
from tailer.feed.run import run_feed
from tailer.sink import Sink, make_sink
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio

TARGETS: dict[str, dict[str, Any]] = {
    "delta": {"path": "copy", "mode": "log"},
    "duckdb": {"path": "copy.duckdb", "mode": "log"},
    "files": {"path": "copy"},
    "sqlite": {"path": "copy.sqlite", "mode": "log"},
}


class Overtaken(Sink):
    """A sink whose target a newer process takes before the first write."""

    def __init__(self, inner: Sink, newer: Sink) -> None:
        self.inner, self.newer = inner, newer
        self.traits = inner.traits

    async def open(self, feed: str) -> Offset | None:
        return await self.inner.open(feed)

    async def write(self, batch: ChangeBatch) -> None:
        await self.newer.open("orders")
        await self.inner.write(batch)

    async def aclose(self) -> None:
        await self.inner.aclose()
        await self.newer.aclose()


@pytest.mark.parametrize("kind", TARGETS)
async def test_rows_of_a_fenced_daemon_are_not_parked(kind: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.table.insert([{"id": 1}])
    older, newer = (make_sink(kind, TARGETS[kind], tmp_path) for _ in range(2))
    parked = tmp_path / "parked.jsonl"
    park = make_sink("jsonl", {"path": str(parked)}, Path())
    with pytest.raises(ConfigError, match=r"another process writes .* now; stop one of them"):
        await run_feed(rig.feed(sink=Overtaken(older, newer), park=park))
    assert not parked.exists()
    assert rig.metric("tailer_parked_events_total") == 0
