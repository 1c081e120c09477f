"""`tailer read` of tables on S3 whose every answer is 20 ms late, beside deltalake's load_cdf.

    python -m tests.benchmarks.bench_remote [--tables large small] [--rounds 5] [--quick]

* `large`: one version with one file of 210 MB; one GET of the same bytes stands beside it;
* `small`: 300 versions with one file of 100 rows each.

All are whole processes, by turns, through a relay that counts the requests. A first round is not
counted; in it, both readers must give the same rows. Ends with 1 where tailer is beyond a bound.
`--quick` reads tiny tables once, and has no bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.late import Late, run_late
from tests.benchmarks.measure import Cost, measure, median_cost
from tests.s3.fixture import ACCOUNT, Bucket, run_server
from tests.s3.objects import Objects

T = TypeVar("T")

TABLES = ("large", "small")
DELAY_S = 0.02
LARGE_ROWS, LARGE_ROWS_QUICK = 4_070_000, 50_000
VERSIONS, VERSIONS_QUICK = 300, 10
ROWS_OF_A_VERSION = 100

#: Time against load_cdf, and requests: a MiB for each at least, and what opens the table.
LARGE_RATIO_MAX, LARGE_REQUESTS_PER_MIB_MAX, LARGE_REQUESTS_MORE = 1.0, 1.0, 20
SMALL_RATIO_MAX, SMALL_REQUESTS_MAX = 0.7, 2.2
CDF = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Work:
    """A table, its last version, and the key of its one file if that is worth a GET by itself."""

    name: str
    last: int
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What one contender's runs cost, with the median of their requests."""

    contender: str
    cost: Cost
    requests: float


def rows(first: int, count: int) -> pa.Table:
    """Rows that compress as real ones do; the tokens are random."""
    ids = pa.array(range(first, first + count), pa.int64())
    ends = pa.array(range(0, 20 * count + 1, 20), pa.int32())
    tokens = [None, ends.buffers()[1], pa.py_buffer(os.urandom(10 * count).hex().encode())]
    random = [pc.random(count, initializer=seed) for seed in range(4)]
    whole = [pc.cast(pc.multiply(r, 1e5), pa.int64(), safe=False) for r in random]
    columns = {
        "id": ids,
        "quantity": whole[0].cast(pa.int32()),
        "score": random[1],
        "token": pa.Array.from_buffers(pa.string(), count, tokens),
        "status": pc.bit_wise_and(whole[2], 15).cast(pa.string()),
        "changed_at": pc.multiply(whole[2], 1_000_003).cast(pa.timestamp("us", "UTC")),
        "amount": pc.multiply(whole[3], 977).cast(pa.decimal128(22, 2)),
    }
    return pa.table(columns)


def write_tables(bucket: Bucket, *, quick: bool) -> list[Work]:
    """Write both tables as deltalake does."""
    from deltalake import DeltaTable, write_deltalake

    def append(name: str, data: pa.Table) -> None:
        write_deltalake(
            bucket.address(name), data, storage_options=bucket.deltalake, mode="append",
            configuration=CDF, target_file_size=1 << 32,
        )  # fmt: skip

    append("large", rows(0, 0))
    append("large", rows(0, LARGE_ROWS_QUICK if quick else LARGE_ROWS))
    table = DeltaTable(bucket.address("large"), storage_options=bucket.deltalake)
    (file,) = pa.table(table.get_add_actions()).column("path").to_pylist()
    append("small", rows(0, 0))
    versions = VERSIONS_QUICK if quick else VERSIONS
    for version in range(versions):
        append("small", rows(version * ROWS_OF_A_VERSION, ROWS_OF_A_VERSION))
    return [Work("large", 1, f"large/{file}"), Work("small", versions)]


async def url_of(bucket: Bucket, key: str) -> str:
    """A URL at which an object can be got without credentials."""
    async with Objects(bucket) as objects:
        what = {"Bucket": bucket.name, "Key": key}
        url: str = await objects._client.generate_presigned_url("get_object", what, 7200)
    return url


def commands(work: Work, bucket: Bucket, output: Path) -> dict[str, list[str]]:
    """The command lines of the contenders."""
    address, last = bucket.address(work.name), str(work.last)
    options = [f"--store-option={key}={value}" for key, value in bucket.options.items()]
    versions = ["--starting-version", "1", "--ending-version", last]
    contenders = [sys.executable, "-m", "tests.benchmarks.remote_contenders"]
    found = {
        "tailer": [
            sys.executable, "-m", "tailer", "read", address, *versions, *options,
            "--output", str(output),
        ],
        "deltalake": [*contenders, "deltalake", address, bucket.url, last, str(output)],
    }  # fmt: skip
    if work.file is not None:
        url = asyncio.run(url_of(bucket, work.file))
        found["one GET"] = [*contenders, "get", url, str(output)]
    return found


def aside(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Do it in another process, so that this one stays small: a child's peak begins with ours."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments, **named).result()


def summary(output: Path) -> tuple[int, int]:
    """The number of rows in a file, and the sum of their ids."""
    with pa.memory_map(str(output)) as file:
        table = pa.ipc.open_file(file).read_all()
        return table.num_rows, int(pc.sum(table["id"]).as_py())


def bench(work: Work, bucket: Bucket, late: Late, output: Path, rounds: int) -> list[Result]:
    """Run every contender, by turns."""
    costs: dict[str, list[Cost]] = {}
    requests: dict[str, list[int]] = {}
    summaries = set()
    for number in range(rounds + 1):
        for contender, command in commands(work, bucket, output).items():
            output.unlink(missing_ok=True)
            late.requests.clear()
            cost = measure(command)
            if number == 0 and contender != "one GET":
                summaries.add(aside(summary, output))
            if number > 0 or rounds == 0:
                costs.setdefault(contender, []).append(cost)
                requests.setdefault(contender, []).append(late.requests.total())
    if len(summaries) != 1:
        sys.exit(f"{work.name}: not the same rows: {summaries}")
    return [Result(name, median_cost(runs), median(requests[name])) for name, runs in costs.items()]


def show(work: Work, results: list[Result]) -> None:
    """Print one line for each contender."""
    for result in results:
        cost = result.cost
        print(
            f"{work.name:6} {result.contender:10} {cost.wall_s:7.2f} s wall, "
            f"{cost.cpu_s:6.2f} s cpu, {cost.peak_mib:5.0f} MiB, {result.requests:6.0f} requests "
            f"({result.requests / work.last:.2f} a version)",
            flush=True,
        )


def within(work: Work, results: list[Result], mib: float) -> bool:
    """Whether tailer is in its bounds."""
    ours, theirs = (next(r for r in results if r.contender == n) for n in ("tailer", "deltalake"))
    ratio = ours.cost.wall_s / theirs.cost.wall_s
    if work.file is not None:
        ratio_max = LARGE_RATIO_MAX
        requests_max = LARGE_REQUESTS_PER_MIB_MAX * mib + LARGE_REQUESTS_MORE
    else:
        ratio_max, requests_max = SMALL_RATIO_MAX, SMALL_REQUESTS_MAX * work.last
    print(
        f"{work.name:6} {ratio:.2f} of load_cdf's time (bound {ratio_max}), "
        f"{ours.requests:.0f} requests (bound {requests_max:.0f})"
    )
    return ratio <= ratio_max and ours.requests <= requests_max


@contextmanager
def tables(*, quick: bool) -> Iterator[tuple[list[Work], Bucket, Late, Path]]:
    """Both tables on a server that answers late, and a folder for what is read."""
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with run_server(folder / "server") as server, run_late(server.url, DELAY_S) as late:
            bucket = server.bucket("lake")
            works = aside(write_tables, bucket, quick=quick)
            yield works, replace(bucket, url=late.url), late, folder


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(ACCOUNT)
    met = []
    with tables(quick=arguments.quick) as (works, bucket, late, folder):
        for work in (work for work in works if work.name in arguments.tables):
            rounds = 0 if arguments.quick else arguments.rounds
            results = bench(work, bucket, late, folder / "output.arrow", rounds)
            show(work, results)
            size = (folder / "server" / "lake" / work.file).stat().st_size if work.file else 0
            met.append(within(work, results, size / 2**20))
    sys.exit(0 if arguments.quick or all(met) else 1)


if __name__ == "__main__":
    main()
