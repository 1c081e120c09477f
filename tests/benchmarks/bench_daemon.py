"""What the daemon costs and how quick it is, on local tables.

    python -m tests.benchmarks.bench_daemon [--feeds 500] [--commits 400] [--giant-gib 10]
        [--only latency] [--quick]

* many feeds at rest in one process: processor time as a share of a core, and resident memory;
* one feed: from a commit's appearance to its event in the output, median and 99th percentile,
  of the time or of the daemon's processor time;
* one giant version with a slow sink: the peak of the resident memory.

Ends with 1 where one of them is beyond its bound.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import quantiles

import anyio
import psutil
import pyarrow as pa

from tailer.changes import ChangeBatch, Offset
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.benchmarks.measure import ROOT, busy_s, environment, measure
from tests.benchmarks.results import Results, options

IDLE_CPU_SHARE_MAX = 0.05
IDLE_MIB_MAX = 400.0
GIANT_MIB_MAX = 600.0

SETTLE_S, WATCH_S = 10.0, 30.0
PARTS = ("idle", "latency", "giant")
SCHEMA = pa.schema([("id", pa.int64())])
WIDE = pa.schema([("id", pa.int64()), ("text", pa.string())])
TEXT = "x" * 1000
FILE_ROWS = 100_000  # of about 1 KB each


def daemon(config: Path) -> subprocess.Popen[bytes]:
    """A running daemon; its own log goes nowhere."""
    command = [sys.executable, "-m", "tailer", "run", str(config)]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=null, stderr=null, cwd=ROOT, env=environment())


def configure(folder: Path, names: list[str]) -> Path:
    """A configuration that follows these tables of the folder, each to a file beside it."""
    feeds = (
        f'[feeds.{name}]\ntable = "{name}"\nfrom = "earliest"\n'
        f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "{name}.jsonl"\n'
        for name in names
    )
    path = folder / "tailer.toml"
    path.write_text('[daemon]\nhttp = ""\n' + "".join(feeds))
    return path


def table(folder: Path) -> TableBuilder:
    """A small table with one row."""
    made = TableBuilder(folder, SCHEMA)
    made.create()
    made.insert([{"id": 0}])
    return made


def delivered(file: Path) -> int:
    """How many whole lines a file has."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def idle(folder: Path, count: int, settle_s: float, watch_s: float) -> bool:
    """Many feeds at rest; returns whether they are within the bounds."""
    names = [f"t{i}" for i in range(count)]
    for name in names:
        table(folder / name)
    child = daemon(configure(folder, names))
    try:
        while any(not delivered(folder / f"{name}.jsonl") for name in names):
            if child.poll() is not None:
                sys.exit(f"the daemon ended with {child.returncode}")
            time.sleep(0.2)
        time.sleep(settle_s)
        process = psutil.Process(child.pid)
        before = process.cpu_times()
        time.sleep(watch_s)
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / watch_s
        mib = process.memory_info().rss / 2**20
        threads = process.num_threads()
    finally:
        child.terminate()
        child.wait()
    print(f"{count} feeds at rest: {share:.1%} of a core, {mib:.0f} MiB, {threads} threads")
    return bool(share <= IDLE_CPU_SHARE_MAX and mib <= IDLE_MIB_MAX)


def processor_ms(pid: int) -> float:
    """The processor time of a process's threads so far."""
    used = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            used += int(file.read_text().split()[0])
    return used / 1e6


def latency(folder: Path, commits: int, results: Results) -> None:
    """One feed, one commit after the other, 20 a second at most.

    Where other programs have the machine meanwhile, the time from a commit to its event is mostly
    theirs, and the daemon's processor time in between counts instead.
    """
    folder.mkdir()
    made = table(folder / "t")
    output = folder / "t.jsonl"
    child = daemon(configure(folder, ["t"]))
    wall, processor = [], []
    try:
        while delivered(output) < 1:
            time.sleep(0.01)
        began, busy, own = time.perf_counter(), busy_s(), time.process_time()
        first = processor_ms(child.pid)
        for i in range(commits):
            add = made.add([{"id": i}])
            time.sleep(0.04 + random.random() / 50)
            size, used = output.stat().st_size, processor_ms(child.pid)
            started = time.perf_counter()
            made.commit(add, version=2 + i)
            while output.stat().st_size == size:
                time.sleep(0.0005)
            wall.append((time.perf_counter() - started) * 1000)
            processor.append(processor_ms(child.pid) - used)
        whole_ms = processor_ms(child.pid) - first
        others = busy_s() - busy - (time.process_time() - own) - whole_ms / 1000
        others /= time.perf_counter() - began
    finally:
        child.terminate()
        child.wait()
    print(f"{commits} commits: {whole_ms / commits:.1f} ms of the daemon's processor time each")
    for bar, percent in (("latency-p50", 50), ("latency-p99", 99)):
        figure = dict.fromkeys(("wall", "processor"), 0.0)
        for name, times in (("wall", wall), ("processor", processor)):
            figure[name] = quantiles(times, n=100)[percent - 1]
        print(f"commit to event, p{percent}: {figure['wall']:.1f} ms, {others:.1f} cores of others")
        results.quiet(bar, **figure, others=others)


def giant(folder: Path, gib: float, file_rows: int) -> bool:
    """One version of so many GiB of rows and a sink that takes its time; returns whether the
    memory stays within its bound."""
    made = TableBuilder(folder / "giant", WIDE)
    made.create()
    first = made.add([{"id": i, "text": TEXT} for i in range(file_rows)], path="0.parquet")
    files = max(1, round(gib * 2**30 / (file_rows * (len(TEXT) + 8))))
    adds = [first]
    for i in range(1, files):  # many names for one file: its bytes are of no interest
        os.link(folder / "giant" / "0.parquet", folder / "giant" / f"{i}.parquet")
        adds.append({"add": {**first["add"], "path": f"{i}.parquet"}})
    made.commit(*adds)
    module = [sys.executable, "-m", "tests.benchmarks.bench_daemon"]
    cost = measure([*module, "--read-giant", folder / "giant"])
    rows = files * file_rows
    print(
        f"a version of {files} files, {rows:,} rows, slow sink: {cost.peak_mib:.0f} MiB at most, "
        f"{cost.cpu_s:.0f} s of processor time, {cost.wall_s:.0f} s"
    )
    return cost.peak_mib <= GIANT_MIB_MAX


class _SlowSink(Sink):
    """Takes its time for each batch."""

    async def open(self, feed: str) -> Offset | None:
        """It remembers nothing."""

    async def write(self, batch: ChangeBatch) -> None:
        """Wait as a busy target would."""
        await anyio.sleep(0.03 if batch.num_rows else 0)

    async def aclose(self) -> None:
        """It holds nothing."""


async def read_giant(folder: str) -> None:
    """Deliver the giant version; this is the process that is measured."""

    async def start(_: TableLog) -> Offset:
        return Offset(1)

    progress = FeedProgress("giant", time.time)
    log = TableLog(LocalStore(folder))
    offsets = MemoryOffsetStore()
    await run_feed(Feed("giant", log, _SlowSink(), offsets, start, progress, random.random, last=1))
    print(json.dumps({"events": progress.events_delivered}))


def main() -> None:
    """Run all three, or the measured part of the last."""
    parser = options(__doc__)
    parser.add_argument("--feeds", type=int, default=500)
    parser.add_argument("--commits", type=int, default=400)
    parser.add_argument("--giant-gib", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--read-giant", metavar="FOLDER")
    asked = parser.parse_args()
    if asked.read_giant:
        anyio.run(read_giant, asked.read_giant)
        return
    results = Results(asked.quick)
    feeds, settle_s, watch_s = asked.feeds, SETTLE_S, WATCH_S
    commits, gib = asked.commits, asked.giant_gib
    if asked.quick:
        feeds, settle_s, watch_s, commits, gib = 2, 0.0, 0.5, 3, 0.0
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        (folder / "idle").mkdir()
        if "idle" in asked.only and not idle(folder / "idle", feeds, settle_s, watch_s):
            results.complain("many feeds at rest")
        if "latency" in asked.only:
            latency(folder / "one", commits, results)
        if "giant" in asked.only and not giant(folder, gib, 100 if asked.quick else FILE_ROWS):
            results.complain("the memory for one giant version")
    results.end()


if __name__ == "__main__":
    main()
