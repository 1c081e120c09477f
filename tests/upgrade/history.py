"""A table that is the same wherever it is made, and feeds that stop in the middle of it.

    python -m tests.upgrade.history tests/upgrade/data/NAME

writes what the present release leaves behind: ``cut`` is a daemon's folder whose feeds have each
stopped in the middle, ``whole`` the same feeds' output and state at their end.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import anyio
import pyarrow as pa

from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble
from tailer.daemon.runner import Runner
from tailer.errors import SinkRejected
from tailer.feed.fanout import FanOut
from tailer.feed.run import Feed
from tailer.testing.faulty import FaultySink, Script
from tailer.testing.table import TableBuilder

__all__ = ["CUT_AFTER", "configured", "make_table", "run_feeds"]

_CONFIG = """
[daemon]
http = ""

[feeds.recorded]
table = "orders"
from = "earliest"
batch_rows_max = 2
on_schema_change = "fail"

[feeds.recorded.sink]
type = "jsonl"
path = "recorded.jsonl"
origin = true

[feeds.derived]
table = "orders"
from = "earliest"
change_source = "derived"
key = ["id"]
batch_rows_max = 2

[feeds.derived.sink]
type = "jsonl"
path = "derived.jsonl"
format = "debezium"

[feeds.whole]
table = "orders"
from = "snapshot"
batch_rows_max = 2

[feeds.whole.sink]
type = "jsonl"
path = "whole.jsonl"

[feeds.both]
table = "orders"
from = "earliest"
batch_rows_max = 2

[feeds.both.sinks.one]
type = "jsonl"
path = "one.jsonl"

[feeds.both.sinks.two]
type = "jsonl"
path = "two.jsonl"
"""

#: How many batches each feed writes before it stops; of the feed with two sinks, the second one.
CUT_AFTER = {"recorded": 8, "derived": 10, "whole": 3, "both": 4}
#: What the operator of a feed has ordered when it stops.
_ORDERS = {"recorded": {"accepted": [6], "skips": [5]}}


def make_table(folder: Path) -> TableBuilder:
    """Eight versions: cdc files, a rewrite without them, a new column."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    properties = {"delta.enableChangeDataFeed": "true"}
    table = TableBuilder(folder, schema, properties=properties, table_id="upgraded")

    def rows(*ids: int, name: str = "a") -> list[dict[str, object]]:
        return [{"id": i, "name": name} for i in ids]

    def commit(*actions: dict[str, object]) -> None:
        version = table.version + 1
        table.commit(*actions, version=version, timestamp_ms=1_700_000_000_000 + version * 1000)

    table.create(timestamp_ms=1_700_000_000_000)
    first, second = (table.add(rows(*ids), path=f"{ids[0]}.parquet")
                     for ids in (range(5), range(5, 10)))  # fmt: skip
    commit(first)
    commit(second)
    images = [{**row, "_change_type": f"update_{image}image"}
              for i in (1, 2, 3)
              for image, name in (("pre", "a"), ("post", "b"))
              for row in rows(i, name=name)]  # fmt: skip
    third = table.add(rows(0, 4) + rows(1, 2, 3, name="b"), path="third.parquet")
    cdc = table.cdc(images, path="_change_data/cdc.parquet")
    commit(table.remove(first), third, cdc)
    commit(
        table.remove(second),
        table.add(rows(5, 6) + rows(7, 8, 20, name="c"), path="fourth.parquet"),
    )
    commit(table.add(rows(30, 31), path="fifth.parquet"))
    table.schema = schema.append(pa.field("more", pa.int64()))
    commit(table.metadata(), table.add([{"id": 40, "name": "d", "more": 1}], path="sixth.parquet"))
    commit(table.add([{"id": 50, "name": "e", "more": None}], path="seventh.parquet"))
    return table


def configured(folder: Path) -> dict[str, Feed]:
    """The feeds of the configuration in a folder, each to end with the table's last version."""
    path = folder / "tailer.toml"
    path.write_text(_CONFIG)
    config = load_config(path)
    feeds = {name: assemble(config, feed) for name, feed in config.feeds.items()}
    for feed in feeds.values():
        feed.last = 7
    return feeds


async def run_feeds(feeds: dict[str, Feed]) -> dict[str, str | None]:
    """Run the feeds as the daemon does, until each has ended; what each failed with."""
    ended = {}
    for name, feed in feeds.items():
        runner = Runner(feed, [], paused=False, logger=logging.getLogger("upgrade"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run)
            while runner.status(0.0).state not in ("stopped", "failed", "paused"):  # noqa: ASYNC110  # a status has no event
                await anyio.sleep(0.001)
            await runner.end()
        ended[name] = runner.last_error
    return ended


async def _give_orders(feeds: dict[str, Feed]) -> None:
    for name, orders in _ORDERS.items():
        store = feeds[name].offsets
        await store.acquire()
        await store.save_orders(orders)
        await store.release()


def _write(folder: Path, *, whole: bool) -> None:
    feeds = configured(folder)
    for name, feed in feeds.items():
        if whole:
            continue
        stop = Script({"write": [None] * CUT_AFTER[name] + [SinkRejected("the end")]})
        if isinstance(feed.sink, FanOut):
            feed.sink.branches[1].sink = FaultySink(feed.sink.branches[1].sink, stop)
        else:
            feed.sink = FaultySink(feed.sink, stop)

    async def run() -> None:
        await _give_orders(feeds)
        print(await run_feeds(feeds))

    anyio.run(run)


def _main(target: Path) -> None:
    for case in ("cut", "whole"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make_table(folder / "orders")
            _write(folder, whole=case == "whole")
            for file in sorted([*folder.glob("*.jsonl"), *folder.glob("state/*.json")]):
                to = target / case / file.relative_to(folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(file.read_bytes())


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
