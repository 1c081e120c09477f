"""A table, a feed from it to a JSON lines file, and faults in between: what feed tests share."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry

from tailer.changes import Offset
from tailer.daemon.metrics import MetricFamilies
from tailer.decode.rows import DecodeOptions
from tailer.errors import TailerError
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.orders import Orders
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.offsets.local import LocalOffsetStore
from tailer.sink import Sink, make_sink
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.support.faulty import FaultyOffsetStore, FaultySink, FaultyStore, Script

SCHEMA = pa.schema([("id", pa.int64())])
Start = Callable[[TableLog], Awaitable[Offset]]


def start_at(where: str) -> Start:
    async def start(log: TableLog) -> Offset:
        return await find_start_offset(log, where)

    return start


class Rig:
    """A table, a feed from it to a JSON lines file, and faults in between."""

    def __init__(self, folder: Path, table: TableBuilder | None = None) -> None:
        self.table = table or TableBuilder(folder / "orders", SCHEMA, cdf=True)
        if table is None:
            self.table.create()
        self.output = folder / "out.jsonl"
        self.offsets = LocalOffsetStore(folder / "state", "orders")
        self.registry = CollectorRegistry()
        self.progress = FeedProgress("orders", lambda: 0.0)
        MetricFamilies(self.registry).watch_feed(self.progress)
        self.on_retry: Callable[[TailerError], None] = lambda _: None
        self.orders = Orders()

    def feed(
        self,
        *,
        script: Script | None = None,
        start: str = "0",
        last: int | None = None,
        batch_rows_max: int = 2,
        park: Sink | None = None,
        sink: Sink | None = None,
        **options: Any,
    ) -> Feed:
        """``options`` are further fields of FeedOptions."""
        script = script or Script({})
        store = FaultyStore(LocalStore(str(self.table.folder)), script)
        sink = sink or make_sink("jsonl", {"path": str(self.output)}, Path())
        return Feed(
            name="orders",
            log=TableLog(store, torn_commit_max_s=0.1),
            sink=FaultySink(sink, script),
            offsets=FaultyOffsetStore(self.offsets, script),
            start=start_at(start),
            progress=self.progress,
            jitter=lambda: 0.0,
            options=FeedOptions(
                decode=DecodeOptions(batch_rows_max=batch_rows_max),
                retry=RetryOptions(pause_min_s=0.001, pause_max_s=0.001),
                **options,
            ),
            last=self.table.version if last is None else last,
            orders=self.orders,
            park=park,
            on_retry=self.on_retry,
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "_notice" not in line]

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "_notice" in line]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, {"feed": "orders", **labels}) or 0.0

    @property
    def ids(self) -> list[int]:
        return [event["id"] for event in self.events]

    async def offset(self) -> Offset:
        found = await self.offsets.load()
        assert found is not None
        return found
