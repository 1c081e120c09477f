"""What the daemon costs and how quick it is on S3, against a real server.

    python -m tests.benchmarks.bench_s3 [--feeds 500] [--seconds 300] [--quick]

* many feeds in one process, at rest: processor time as a share of a core, and resident memory;
* one commit a second spread over them: from a commit's PUT to its event in the output, median and
  99th percentile, against the longest pause between two polls;
* a backlog of small commits on a server that answers after 30 ms: with what is fetched ahead, and
  without.

Ends with 1 where one of them is beyond its bound.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import anyio
import psutil
import pyarrow as pa

from tailer.changes import Offset
from tailer.storage import open_store
from tailer.store import Store
from tailer.testing.table import TableBuilder
from tests.benchmarks.bench_daemon import daemon
from tests.benchmarks.results import Results, options
from tests.s3.fixture import ACCOUNT, Bucket, S3Server, run_server
from tests.s3.front import run_front
from tests.s3.tables import deliver

CPU_SHARE_MAX = 0.05
MIB_MAX = 400.0
POLL_MAX_S = 5.0
P99_OVER_POLL_S = 0.2
AHEAD_RATIO_MIN = 2.0

SETTLE_S, WATCH_S = 20.0, 60.0
BACKLOG_VERSIONS, DELAY_S = 100, 0.03
SCHEMA = pa.schema([("id", pa.int64())])


class Tables:
    """Small tables in a bucket, written as the server's own files: it is not what is measured."""

    def __init__(self, server: S3Server, bucket: Bucket, count: int) -> None:
        self.folder = server.folder / bucket.name
        with ThreadPoolExecutor(4) as pool:
            self.tables = list(pool.map(self._table, range(count)))

    def _table(self, number: int) -> TableBuilder:
        table = TableBuilder(self.folder / f"t{number}", SCHEMA)
        table.create()
        table.insert([{"id": 0}])
        return table


def configure(folder: Path, bucket: Bucket, count: int) -> Path:
    """A configuration that follows all of them; the state is local, as for one daemon."""
    store = "".join(f"{key} = {json.dumps(value)}\n" for key, value in bucket.options.items())
    feeds = (
        f'[feeds.t{i}]\ntable = "{bucket.address(f"t{i}")}"\nfrom = "earliest"\n'
        f"poll_max_s = {POLL_MAX_S}\n"
        f'[feeds.t{i}.sink]\ntype = "jsonl"\npath = "out/t{i}.jsonl"\n'
        for i in range(count)
    )
    (folder / "out").mkdir()
    path = folder / "tailer.toml"
    path.write_text(f'[daemon]\nhttp = ""\n[store.s3]\n{store}' + "".join(feeds))
    return path


class Output(threading.Thread):
    """Notes when each output file grew last; one look over all of them takes milliseconds."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(daemon=True)
        self.grown = [0.0] * len(files)
        self._files = files
        self._watched: set[int] = set()
        self.ending = threading.Event()

    def watch(self, number: int) -> None:
        """Look at this one until it grows."""
        self.grown[number] = 0.0
        self._watched.add(number)

    def run(self) -> None:
        sizes: dict[int, int] = {}
        while not self.ending.wait(0.002):
            for number in list(self._watched):
                size = os.stat(self._files[number]).st_size  # noqa: PTH116 - it is much quicker
                if size > sizes.setdefault(number, size):
                    self.grown[number] = time.perf_counter()
                    self._watched.discard(number)
                    del sizes[number]


def settled(child: subprocess.Popen[bytes], files: list[Path], settle_s: float) -> None:
    """Wait until every table is delivered and every feed polls at its longest pause."""
    while not all(file.exists() and file.stat().st_size for file in files):
        if child.poll() is not None:
            sys.exit(f"the daemon ended with {child.returncode}")
        time.sleep(0.2)
    time.sleep(settle_s)


def cost(process: psutil.Process) -> float:
    """The processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def many(
    folder: Path, server: S3Server, count: int, seconds: float, rest: tuple[float, float]
) -> bool:
    """Many feeds, at rest and with one commit a second; returns whether they are in bounds.

    ``rest``: seconds to settle and to watch.
    """
    settle_s, watch_s = rest
    bucket = server.bucket("many")
    tables = Tables(server, bucket, count).tables
    child = daemon(configure(folder, bucket, count))
    files = [folder / "out" / f"t{i}.jsonl" for i in range(count)]
    try:
        settled(child, files, settle_s)
        process = psutil.Process(child.pid)
        before = cost(process)
        time.sleep(watch_s)
        idle = (cost(process) - before) / watch_s
        mib = process.memory_info().rss / 2**20
        print(f"{count} feeds on S3 at rest: {idle:.1%} of a core, {mib:.0f} MiB")
        before, started = cost(process), time.perf_counter()
        found = sorted(latencies(tables, files, seconds))
        busy = (cost(process) - before) / (time.perf_counter() - started)
        mib = max(mib, process.memory_info().rss / 2**20)
    finally:
        child.terminate()
        child.wait()
    p50, p99 = median(found), quantiles(found, n=100)[-1]
    print(
        f"one commit a second, {len(found)} commits: commit to event p50 {p50:.2f} s, "
        f"p99 {p99:.2f} s, longest {', '.join(f'{s:.2f}' for s in found[-4:])} s; "
        f"{busy:.1%} of a core, {mib:.0f} MiB"
    )
    return idle <= CPU_SHARE_MAX and mib <= MIB_MAX and p99 <= POLL_MAX_S + P99_OVER_POLL_S


def latencies(tables: list[TableBuilder], files: list[Path], seconds: float) -> Iterator[float]:
    """Commit to one table each second; how long each took to its event, in seconds."""
    output = Output(files)
    output.start()
    order = random.sample(range(len(tables)), min(len(tables), int(seconds)))
    committed: dict[int, float] = {}
    next_at = time.perf_counter()
    for number in order:
        add = tables[number].add([{"id": 1}])
        output.watch(number)
        next_at += 1.0
        time.sleep(max(0.01, next_at - time.perf_counter()))
        committed[number] = time.perf_counter()
        tables[number].commit(add)
    deadline = time.perf_counter() + 60
    while not all(output.grown[n] for n in committed) and time.perf_counter() < deadline:
        time.sleep(0.1)
    output.ending.set()
    output.join()
    if not all(output.grown[n] for n in committed):
        sys.exit("a commit was not delivered within a minute")
    for number, at in committed.items():
        yield output.grown[number] - at


def backlog(server: S3Server, versions: int) -> bool:
    """Small commits from a server that takes its time; returns whether looking ahead pays."""
    bucket = server.bucket("backlog")
    table = TableBuilder(server.folder / bucket.name / "orders", SCHEMA)
    table.create()
    for i in range(versions):
        table.insert([{"id": i}])
    found = []
    with run_front(bucket) as front:
        front.delay_s = DELAY_S
        for ahead in (0, 2**28):
            options: dict[str, Any] = {**front.bucket.options, "memory_bytes_max": ahead}
            store = open_store(bucket.address("orders"), options)
            front.requests.clear()
            found.append((anyio.run(read, store, table.version), front.requests.total()))
    (without, asked), (with_it, asked_ahead) = found
    each = versions / 1000
    print(
        f"a backlog of {versions} commits, {DELAY_S * 1000:.0f} ms an answer: "
        f"{without / each:.0f} ms a commit, {with_it / each:.0f} ms with what is fetched ahead "
        f"({without / with_it:.1f}x; {asked} and {asked_ahead} requests)"
    )
    return without / with_it >= AHEAD_RATIO_MIN


async def read(store: Store, last: int) -> float:
    """Deliver a table to nowhere; returns the seconds it took."""
    async with aclosing(store):
        started = time.perf_counter()
        await deliver(store, Offset(0), last)
        return time.perf_counter() - started


def main() -> None:
    """Run all."""
    parser = options(__doc__)
    parser.add_argument("--feeds", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    results = Results(asked.quick)
    feeds, seconds, rest, versions = (
        asked.feeds,
        asked.seconds,
        (SETTLE_S, WATCH_S),
        BACKLOG_VERSIONS,
    )
    if asked.quick:
        feeds, seconds, rest, versions = 2, 2.0, (0.0, 1.0), 5
    os.environ.update(ACCOUNT)
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with run_server(folder / "server") as server:
            if not backlog(server, versions):
                results.complain("a backlog is not read faster with what is fetched ahead")
            if not many(folder, server, feeds, seconds, rest):
                results.complain("many feeds")
    results.end()


if __name__ == "__main__":
    main()
