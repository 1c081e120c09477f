"""What `tailer share` costs to list a table of 100,000 files.

    python -m tests.benchmarks.bench_share [--rounds 3] [--quick]

prints the time to the first line (of the server's first answer, too), files per second, and how far
the server's memory grew beyond what it had after its start, by 1 and by 4 clients at once. Ends
with 1 where the first line took more than its bound, or memory grew with the number of files.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil

from tests.benchmarks import big_log
from tests.benchmarks.results import Results, options
from tests.share_server.serving import Served, served

FILES, FILES_QUICK = 100_000, 100
DAY = {
    "op": "equal",
    "children": [
        {"op": "column", "name": "day", "valueType": "string"},
        {"op": "literal", "value": "2026-01-02", "valueType": "string"},
    ],
}
FIRST_LINE_S_MAX = 0.1
GROWN_MIB_MAX = 150


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer: seconds to its first line and to its end, lines and bytes."""

    first_s: float
    whole_s: float
    lines: int
    size: int


def listing(server: Served, body: dict[str, object]) -> Listing:
    """Ask for the table's files, and take them as they come."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=300)
    headers = {"Authorization": f"Bearer {server.bearer}"}
    path = f"{urlsplit(server.url).path}/shares/s/schemas/x/tables/t/query"
    connection.connect()
    started = time.perf_counter()
    connection.request("POST", path, body=json.dumps(body), headers=headers)
    answer = connection.getresponse()
    size = len(answer.readline())
    first = time.perf_counter() - started
    lines = 1
    while line := answer.readline():
        lines, size = lines + 1, size + len(line)
    whole = time.perf_counter() - started
    connection.close()
    return Listing(first, whole, lines, size)


def main() -> None:
    """Measure, and end with 1 where a bound is not kept."""
    asked = options(__doc__, rounds=3).parse_args()
    results = Results(asked.quick)
    rounds = 1 if asked.quick else asked.rounds
    table = big_log.big_log("classic", FILES_QUICK if asked.quick else FILES)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), {"s.x.t": table}, dev=False) as server,
    ):
        process = psutil.Process(server.program.process.pid)
        cold = listing(server, {"limitHint": 1})  # the snapshot is in memory from here on
        before = process.memory_info().rss
        runs = [listing(server, {}) for _ in range(rounds)]
        alone = (process.memory_info().rss - before) / 2**20
        with ThreadPoolExecutor(4) as clients:
            together = list(clients.map(lambda _: listing(server, {}), range(4)))
        grown = (process.memory_info().rss - before) / 2**20
        narrow = listing(server, {"jsonPredicateHints": DAY})
    first_s = median(run.first_s for run in runs)
    one = runs[-1]
    print(
        f"{one.lines - 2:,} files, {one.size / 2**20:.0f} MiB: first line after "
        f"{first_s * 1000:.0f} ms, all after {median(r.whole_s for r in runs):.1f} s "
        f"({(one.lines - 2) / median(r.whole_s for r in runs):,.0f} files/s)"
    )
    print(f"first line of the server's first answer: after {cold.first_s * 1000:.0f} ms")
    print(f"4 clients at once: {max(r.whole_s for r in together):.1f} s")
    print(f"memory grew by {alone:.0f} MiB for 1 client, {grown:.0f} MiB for 4")
    print(f"one day of the table: {narrow.lines - 2:,} files in {narrow.whole_s:.1f} s")
    if first_s > FIRST_LINE_S_MAX:
        results.complain(f"the first line took {first_s * 1000:.0f} ms")
    if grown > GROWN_MIB_MAX:
        results.complain(f"memory grew by {grown:.0f} MiB")
    results.end()


if __name__ == "__main__":
    main()
