"""Every sink beside the fastest public client that does the same inserts, and small versions.

    python -m tests.benchmarks.bench_sinks [--only duckdb] [--versions 10000] [--rounds 3] [--quick]

A feed writes a version of 1,000,000 rows, and as many rows in versions of 100, to each sink that is
installed and whose server the machine has. Copies are by the key `id`. A server's processor time
belongs to the program that it serves; each program has a server and a folder to itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.benchmarks.bars import BARS
from tests.benchmarks.feed_tables import many_files, small_versions
from tests.benchmarks.measure import Cost, measure, median_cost, python, tree_s
from tests.benchmarks.results import Results, options
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.clickhouse import ClickHouse
from tests.support.mysql import Mysql
from tests.support.opensearch import OpenSearch
from tests.support.postgres import Postgres
from tests.support.pubsub import Pubsub
from tests.support.servers import Server

CONTENDERS = "tests.benchmarks.sinks_contenders"
VERSIONS, VERSIONS_QUICK = 10_000, 5
ROWS_OF_A_VERSION = 100


class Receiver(Server):
    """Takes requests and drops them."""

    name = "receiver"

    def start(self) -> None:
        self.launch(sys.executable, "-m", CONTENDERS, "receive", str(self.port))


SERVERS: dict[str, tuple[type[Any], Callable[[Any], dict[str, Any]]]] = {
    "postgres": (Postgres, lambda server: {"dsn": server.dsn(), "key": ["id"]}),
    "mysql": (
        Mysql,
        lambda server: {
            "url": server.url(server.database()),
            "tls": False,
            "key": ["id"],
        },
    ),
    "rabbitmq": (RabbitMq, lambda server: {"url": server.url(), "queue_type": "classic"}),
    "redis": (Redis, lambda server: {"url": server.url()}),
    "nats": (Nats, lambda server: {"servers": [server.url()]}),
    "pubsub": (Pubsub, lambda server: server.options("orders")),
    "clickhouse": (
        ClickHouse,
        lambda server: {"url": server.url, "database": server.database(), "key": ["id"]},
    ),
    "search": (OpenSearch, lambda server: {"url": server.url, "index": "copy", "key": ["id"]}),
    "http": (Receiver, lambda server: {"url": f"http://127.0.0.1:{server.port}/"}),
}
#: The options of sinks that need no server. The bare scan has no event ids to write.
FILES: dict[str, dict[str, Any]] = {
    "files": {"path": "files"},
    "duckdb": {"path": "copy.duckdb", "key": ["id"]},
    "delta": {"path": "copy", "key": ["id"]},
    "sqlite": {"path": "copy.sqlite", "key": ["id"]},
    "jsonl": {"path": "events.jsonl"},
}


@contextmanager
def target(kind: str) -> Iterator[tuple[dict[str, Any], psutil.Process | None]]:
    """The options that lead to a new target, and its server."""
    if kind in FILES:
        yield FILES[kind], None
        return
    made, options_of = SERVERS[kind]
    with made() as server:
        yield options_of(server), psutil.Process(server.process.pid)


def served_s(server: psutil.Process | None) -> float:
    """The processor seconds of a server's processes, those that have ended included."""
    return tree_s(server, ended=True) if server else 0.0


def cost(how: str, kind: str, table: Path) -> Cost:
    """Run one program to its end."""
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as folder, target(kind) as found:
        wanted, server = found
        before = served_s(server)
        command = python(CONTENDERS, how, kind, table, folder, json.dumps(wanted))
        ours = measure(command)
        used = served_s(server) - before  # which was taken for another program's
        others = max(0.0, ours.others - used / ours.wall_s)
        return replace(ours, cpu_s=ours.cpu_s + used, others=others)


def bench(kind: str, large: Path, small: Path, rounds: int) -> dict[str, Cost]:
    """Run all three of a sink by turns, and return the median of each."""
    jobs = {"bare": ("bare", large), "large": ("sink", large), "small": ("sink", small)}
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (how, table) in jobs.items():
            costs[name].append(cost(how, kind, table))
    return {name: median_cost(runs) for name, runs in costs.items()}


def show(kind: str, found: dict[str, Cost], count: int) -> None:
    """Print events a second and processor seconds a million events."""
    for name, each in found.items():
        print(
            f"{kind:9} {name:6} {count / each.wall_s:10,.0f} events/s "
            f"{each.cpu_s * 1e6 / count:8.2f} s cpu a million, "
            f"{each.cpu_s / found['bare'].cpu_s:6.2f} of bare, {each.peak_mib:5.0f} MiB, "
            f"others {each.others:.1f} cores",
            flush=True,
        )


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--only", action="append", choices=[*FILES, *SERVERS])
    parser.add_argument("--versions", type=int, default=VERSIONS)
    asked = parser.parse_args()
    versions = VERSIONS_QUICK if asked.quick else asked.versions
    results = Results(quick=versions != VERSIONS)  # the bars are of that many
    count = versions * ROWS_OF_A_VERSION
    large, small = many_files(1, count), small_versions(versions, ROWS_OF_A_VERSION)
    for kind in asked.only or [*FILES, *SERVERS]:
        try:
            found = bench(kind, large, small, 1 if asked.quick else asked.rounds)
        except pytest.skip.Exception as e:
            print(f"{kind:9} not measured: {e}")
            continue
        show(kind, found, count)
        if f"sink-{kind}" in BARS:
            results.ratio(f"sink-{kind}", found["large"], found["bare"])
            results.ratio(f"sink-{kind}-small", found["small"], found["large"])
    results.end()


if __name__ == "__main__":
    main()
