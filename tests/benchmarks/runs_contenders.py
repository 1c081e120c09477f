"""The programs of :mod:`tests.benchmarks.bench_runs`, each run by itself in a fresh process.

    python -m tests.benchmarks.runs_contenders write TABLE VERSIONS
    python -m tests.benchmarks.runs_contenders deltalake TABLE LAST OUTPUT
    python -m tests.benchmarks.runs_contenders feed TABLE LAST OUTPUT

The first makes the table, the second writes load_cdf of the versions 1 to LAST as an Arrow IPC
file, the third is a feed to a file of JSON lines, its offsets saved beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

ROWS_OF_A_VERSION = 100
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("city", pa.string()),
        ("seen_at", pa.timestamp("us", "UTC")),
    ]
)


def write(path: Path, versions: int) -> None:
    """Write a table of many small versions, with its change data feed on."""
    from tailer.testing.table import TableBuilder

    table = TableBuilder(path, SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    table.create()
    for version in range(versions):
        first = version * ROWS_OF_A_VERSION
        table.insert(
            [
                {
                    "id": i,
                    "name": f"customer {i * 7919 % 100_003}",
                    "amount": i * 0.37,
                    "city": ("Berlin", "Paris", "Rome")[i % 3],
                    "seen_at": 1_700_000_000_000_000 + i * 1_000_003,
                }
                for i in range(first, first + ROWS_OF_A_VERSION)
            ]
        )


def deltalake(path: str, last: int, output: Path) -> None:
    """Stream load_cdf into the file."""
    from deltalake import DeltaTable

    feed = DeltaTable(path).load_cdf(starting_version=1, ending_version=last)
    reader = pa.RecordBatchReader.from_stream(feed)
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


async def feed(path: str, last: int, output: Path) -> None:
    """Run a feed to its last version, as the daemon does."""
    import random
    import time

    from sinks.jsonl import JsonlSink
    from tailer.changes import Offset
    from tailer.feed import Feed, FeedOptions, run_feed
    from tailer.feed.progress import FeedProgress
    from tailer.log.table import TableLog
    from tailer.offsets.local import LocalOffsetStore
    from tailer.storage import open_store

    async def start(_: TableLog) -> Offset:
        return Offset(1)

    await run_feed(
        Feed(
            name="small",
            log=TableLog(open_store(path)),
            sink=JsonlSink(output),
            offsets=LocalOffsetStore(output.parent / "state", "small"),
            start=start,
            progress=FeedProgress("small", time.time),
            jitter=random.random,
            options=FeedOptions(),
            last=last,
        )
    )


def main() -> None:
    """Run what the first argument names."""
    match sys.argv[1:]:
        case ["write", path, versions]:
            write(Path(path), int(versions))
        case ["deltalake", path, last, output]:
            deltalake(path, int(last), Path(output))
        case ["feed", path, last, output]:
            import anyio

            anyio.run(feed, path, int(last), Path(output))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
