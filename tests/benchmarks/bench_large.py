"""A snapshot of very many rows, killed three times, then proved, damaged and repaired.

    python -m tests.benchmarks.bench_large [--rows 100000000] [--only duckdb] [--kills 3]

Shows rows a second over all runs, what the kills cost included, and the daemon's highest resident
memory. PostgreSQL, MySQL and DuckDB have a copy by the key `id`, which `verify` compares with the
table; then each hundredth row is changed and each hundredth removed, and `verify --repair` sets it
right. The seconds of each are shown, with its highest resident memory.
Files and Kafka have a log, of which rows and the sums of their columns are counted. Not a part of
`make bench`: it takes an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer

from tailer.testing.table import TableBuilder
from tests.benchmarks.feed_tables import CDF, kept_table
from tests.benchmarks.measure import Peak, environment, python
from tests.kafka.broker import Broker
from tests.support.components import free_port
from tests.support.mysql import Mysql
from tests.support.postgres import Postgres

FILE_ROWS = 1_000_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("quantity", pa.int32()), ("price", pa.float64()), ("status", pa.string())]
)
QUANTITIES = 100_003
TOPIC = "large"
_QUIET_S = 30.0


def make_rows(first: int, count: int) -> pa.Table:
    """Rows that follow from their ids."""
    ids = pa.array(range(first, first + count), pa.int64())
    scaled = pc.multiply(ids, 7919)
    quantity = pc.subtract(scaled, pc.multiply(pc.divide(scaled, QUANTITIES), QUANTITIES))
    status = pc.binary_join_element_wise("s", pc.bit_wise_and(ids, 15).cast(pa.string()), "")
    price = pc.multiply(ids.cast(pa.float64()), 0.25)
    return pa.table([ids, quantity.cast(pa.int32()), price, status], schema=SCHEMA)


def large_table(rows: int) -> Path:
    """One version of files of a million rows."""

    def make(folder: Path) -> None:
        table = TableBuilder(folder, SCHEMA, properties=CDF)
        table.create()
        adds = []
        for first in range(0, rows, FILE_ROWS):
            part, path = make_rows(first, min(FILE_ROWS, rows - first)), f"{first:012d}.parquet"
            pq.write_table(part, table.folder / path)
            size = (table.folder / path).stat().st_size
            stats = json.dumps({"numRecords": part.num_rows})
            add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0}
            adds.append({"add": {**add, "dataChange": True, "stats": stats}})
        table.commit(*adds)

    return kept_table(f"large-{rows}", make)


@dataclass(frozen=True)
class Target:
    """Where the rows go. ``count`` gives the rows there, and the sum of their ids and quantities;
    ``change`` damages a copy by statements."""

    options: Mapping[str, Any]
    count: Callable[[], tuple[int, int, int]]
    change: Callable[[str], object] | None = None


TOTALS = "SELECT count(*), coalesce(sum(id), 0), coalesce(sum(quantity), 0) FROM {}"
DAMAGE = (
    "UPDATE {} SET quantity = -1 WHERE id % 100 = 7",
    "DELETE FROM {} WHERE id % 100 = 8",
)


def find_totals(answer: list[tuple[Any, ...]]) -> tuple[int, int, int]:
    """Return what :data:`TOTALS` gives."""
    rows, ids, quantities = answer[0]
    return int(rows), int(ids), int(quantities)


def sum_files(files: str) -> tuple[int, int, int]:
    """Return the totals of Parquet files."""
    with duckdb.connect() as connection:
        return find_totals(connection.execute(TOTALS.format(f"read_parquet('{files}')")).fetchall())


@contextmanager
def postgres(_: Path) -> Iterator[Target]:
    with Postgres() as server:
        options = {"dsn": server.dsn(), "key": ["id"], "mode": "mirror", "table": "copy"}

        def ask(text: str) -> list[tuple[Any, ...]]:
            return server.query(text.format("copy"))

        yield Target(options, lambda: find_totals(ask(TOTALS)), ask)


@contextmanager
def mysql(_: Path) -> Iterator[Target]:
    with Mysql() as server:
        database = server.database()
        url = server.url(database)
        options = {"url": url, "tls": False, "key": ["id"], "mode": "mirror", "table": "copy"}

        def ask(text: str) -> list[tuple[Any, ...]]:
            return server.query(text.format(f"{database}.copy"))

        yield Target(options, lambda: find_totals(ask(TOTALS)), ask)


@contextmanager
def duckdb_file(folder: Path) -> Iterator[Target]:
    path = folder / "copy.duckdb"

    def ask(text: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(path)) as connection:
            return connection.execute(text.format("copy")).fetchall()

    options = {"path": str(path), "key": ["id"], "mode": "mirror", "table": "copy"}
    yield Target(options, lambda: find_totals(ask(TOTALS)), ask)


@contextmanager
def files(folder: Path) -> Iterator[Target]:
    found = f"{folder}/files/**/*.parquet"
    options = {"path": str(folder / "files")}
    yield Target(options, lambda: sum_files(found))


@contextmanager
def kafka(_: Path) -> Iterator[Target]:
    with Broker() as broker:
        options = {"bootstrap_servers": broker.bootstrap, "topic": TOPIC, "compression": "lz4"}
        yield Target(options, lambda: count_records(broker.bootstrap))


def count_records(bootstrap: str) -> tuple[int, int, int]:
    """Read a topic of committed records to its end."""
    own = {"bootstrap.servers": bootstrap, "group.id": "count", "enable.auto.commit": False}
    more = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({**own, **more, "enable.partition.eof": True})
    consumer.subscribe([TOPIC])
    total = ids = quantities = 0
    ended = set[int]()
    while not ended or len(ended) < len(consumer.assignment()):
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                ended.add(message.partition() or 0)
                continue
            row = json.loads(message.value() or b"")
            total, ids, quantities = total + 1, ids + row["id"], quantities + row["quantity"]
    consumer.close()
    return total, ids, quantities


TARGETS = {
    "postgres": postgres,
    "mysql": mysql,
    "duckdb": duckdb_file,
    "files": files,
    "kafka": kafka,
}


class Runs:
    """The runs of a daemon, until one of them has delivered all."""

    def __init__(self, config: Path, address: str) -> None:
        self._config = config
        self._address = address
        self.wall_s, self.peak_mib = 0.0, 0.0

    def run_until(self, events: int) -> None:
        """Kill a daemon when it has delivered so many events, or no more for a while: all."""
        with self._started(python("tailer", "run", self._config)) as process:
            found, since = 0.0, time.monotonic()
            while process.poll() is None and found < events:
                self._note_memory(process.pid)
                time.sleep(0.2)
                if (now := self._count_events()) != found:
                    found, since = now, time.monotonic()
                elif time.monotonic() - since > _QUIET_S:
                    break
            process.kill()

    def run_once(self) -> None:
        """Run to the end."""
        command = python("tailer", "run", "--once", self._config)
        with self._started(command) as process:
            while process.poll() is None:
                self._note_memory(process.pid)
                time.sleep(0.2)
        if process.returncode:
            sys.exit(f"the last run ended with {process.returncode}")

    @contextmanager
    def _started(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        started = time.perf_counter()
        with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
            yield process
        self.wall_s += time.perf_counter() - started

    def _note_memory(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):
            self.peak_mib = max(self.peak_mib, psutil.Process(pid).memory_info().rss / 2**20)

    def _count_events(self) -> float:
        try:
            with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0
        return sum(float(line.split()[-1]) for line in lines if line.startswith("tailer_events_t"))


def write_config(folder: Path, table: Path, kind: str, options: Mapping[str, Any]) -> Runs:
    """Write the configuration of a feed."""
    address = f"127.0.0.1:{free_port()}"
    given = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = "{address}"\n[feeds.large]\ntable = "{table}"\nfrom = "snapshot"\n'
        f'[feeds.large.sink]\ntype = "{kind}"\n{given}\n'
    )
    return Runs(config, address)


def prove(config: Path, wanted: int, *more: str) -> tuple[float, float]:
    """Run `verify`, which must end with a status; return its seconds, and its peak in MiB."""
    started = time.perf_counter()
    command = python("tailer", "verify", config, "large", *more)
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, env=environment(), stdout=said, stderr=said) as process,
    ):
        peak = Peak(process.pid)
        peak.start()
        process.wait()
        seconds = time.perf_counter() - started
        peak.stop()
        if process.returncode != wanted:
            said.seek(0)
            text = said.read().decode(errors="replace")[-2000:]
            sys.exit(f"verify {' '.join(more)} ended with {process.returncode}: {text}")
    return seconds, peak.bytes / 2**20


def measure_target(kind: str, table: Path, rows: int, kills: int) -> None:
    """Deliver, count, and prove a copy."""
    with tempfile.TemporaryDirectory(prefix="tailer-large-") as name:
        folder = Path(name)
        with TARGETS[kind](folder) as target:
            runs = write_config(folder, table, kind, target.options)
            for _ in range(kills):
                runs.run_until(rows // (kills + 1))
            runs.run_once()
            rate = rows / runs.wall_s
            print(
                f"{kind:9} {rate:10,.0f} rows/s, {runs.wall_s:.0f} s, {runs.peak_mib:.0f} MiB, "
                f"{kills} kills",
                flush=True,
            )
            there = target.count()
            if there != (expected := sum_files(f"{table}/*.parquet")):
                sys.exit(f"{kind}: {there} instead of {expected}")
            if target.change is None:
                return
            for statement in DAMAGE:
                target.change(statement)
            steps = (("differs", (), 1), ("repair", ("--repair",), 0), ("verify", (), 0))
            for step, more, wanted in steps:
                seconds, mib = prove(folder / "tailer.toml", wanted, *more)
                print(f"{kind:9} {step}: {seconds:.0f} s, {mib:.0f} MiB", flush=True)


def main() -> None:
    """Measure all targets, or some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--kills", type=int, default=3)
    asked = parser.parse_args()
    table = large_table(asked.rows)
    for kind in asked.only or TARGETS:
        measure_target(kind, table, asked.rows, asked.kills)


if __name__ == "__main__":
    main()
