"""`tailer read` of tables on S3 whose every answer is 20 ms late, beside deltalake's load_cdf.

    python -m tests.benchmarks.bench_remote [--store s3|azure|gcs] [--tables large small]
        [--rounds 5] [--quick]

* `large`: one version with one file of 210 MB; one GET of the same bytes stands beside it;
* `small`: 300 versions with one file of 100 rows each.

On Azure's and Google's storage the same bars are held, and nothing is noted.

All are whole processes, by turns, through a relay that counts the requests. A first round is not
counted; in it, both readers must give the same rows.
"""

from __future__ import annotations

import asyncio
import json
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
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from yarl import URL

from tests.benchmarks.feed_tables import rows
from tests.benchmarks.late import Late, run_late
from tests.benchmarks.measure import by_turns, print_costs, python
from tests.benchmarks.results import Results, options
from tests.clouds.servers import CLOUDS, Container, run_cloud
from tests.s3.fixture import ACCOUNT, Bucket, run_server
from tests.s3.objects import Objects

T = TypeVar("T")
Place: TypeAlias = Bucket | Container

TABLES = ("large", "small")
DELAY_S = 0.02
LARGE_ROWS, LARGE_ROWS_QUICK = 4_070_000, 50_000
VERSIONS, VERSIONS_QUICK = 300, 10
ROWS_OF_A_VERSION = 100

#: Most of deltalake's time, on storage other than S3.
BARS = {"large": 1.0, "small": 0.7}
#: Beyond one for each MiB: what opens the table.
LARGE_REQUESTS_MORE = 20
CDF = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Work:
    """A table, its last version, and the key of its one file if that is worth a GET by itself."""

    name: str
    last: int
    file: str | None = None


def write_tables(bucket: Place, folder: Path, *, quick: bool) -> list[Work]:
    """Write both tables as deltalake does; those of clouds are copied from a folder, for their
    servers lack what it does with large files."""
    from deltalake import DeltaTable, write_deltalake

    on_s3 = isinstance(bucket, Bucket)
    storage = bucket.deltalake if on_s3 else None

    def place(name: str) -> str:
        return bucket.address(name) if on_s3 else str(folder / name)

    def append(name: str, data: pa.Table) -> None:
        write_deltalake(
            place(name), data, storage_options=storage, mode="append",
            configuration=CDF, target_file_size=1 << 32,
        )  # fmt: skip

    append("large", rows(0, 0))
    append("large", rows(0, LARGE_ROWS_QUICK if quick else LARGE_ROWS))
    table = DeltaTable(place("large"), storage_options=storage)
    (file,) = pa.table(table.get_add_actions()).column("path").to_pylist()
    append("small", rows(0, 0))
    versions = VERSIONS_QUICK if quick else VERSIONS
    for version in range(versions):
        append("small", rows(version * ROWS_OF_A_VERSION, ROWS_OF_A_VERSION))
    if isinstance(bucket, Container):
        for name in TABLES:
            asyncio.run(bucket.upload(folder / name, name))
    return [Work("large", 1, f"large/{file}" if on_s3 else None), Work("small", versions)]


async def url_of(bucket: Bucket, key: str) -> str:
    """A URL at which an object can be got without credentials."""
    async with Objects(bucket) as objects:
        what = {"Bucket": bucket.name, "Key": key}
        url: str = await objects._client.generate_presigned_url("get_object", what, 7200)
    return url


def commands(work: Work, bucket: Place, output: Path) -> dict[str, list[str]]:
    """The command lines of the contenders."""
    address, last = bucket.address(work.name), str(work.last)
    settings = [f"--store-option={key}={value}" for key, value in bucket.options.items()]
    versions = ["--from", "1", "--to", last]
    contenders = python("tests.benchmarks.remote_contenders")
    found = {
        "tailer": [
            *python("tailer", "read", address), *versions, *settings, "--output", str(output),
        ],
        "deltalake": [
            *contenders, "deltalake", address, json.dumps(bucket.deltalake), last, str(output),
        ],
    }  # fmt: skip
    if work.file is not None and isinstance(bucket, Bucket):
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


def bench(
    work: Work, bucket: Place, late: Late, output: Path, results: Results, rounds: int
) -> float:
    """Run every contender, by turns; note our time, and return the median of our requests."""
    requests: dict[str, list[int]] = {}
    summaries = set()

    def before(_: str) -> None:
        output.unlink(missing_ok=True)
        late.requests.clear()

    def after(contender: str) -> None:
        if contender not in requests and contender != "one GET":
            summaries.add(aside(summary, output))
        requests.setdefault(contender, []).append(late.requests.total())

    costs = by_turns(
        commands(work, bucket, output),
        0 if results.quick else rounds,
        before=before,
        after=after,
    )
    if len(summaries) != 1:
        sys.exit(f"{work.name}: not the same rows: {summaries}")
    print_costs(costs, work.name)
    print({contender: median(found) for contender, found in requests.items()}, "requests")
    if isinstance(bucket, Bucket):
        results.ratio(f"remote-{work.name}", costs["tailer"], costs["deltalake"])
    elif not results.quick:
        ratio = costs["tailer"].wall_s / costs["deltalake"].wall_s
        print(f"{work.name}: {ratio:.2f} of deltalake's time")
        if ratio > BARS[work.name]:
            results.complain(f"{work.name} takes {ratio:.2f} of deltalake's time")
    return median(requests["tailer"])


@contextmanager
def _server(store: str, folder: Path) -> Iterator[Place]:
    """A bucket or container of a new server."""
    if store == "s3":
        folder.mkdir()
        with run_server(folder) as server:
            yield server.bucket("lake")
    else:
        with run_cloud("azure" if store == "azure" else "gcs") as cloud:
            yield cloud.container("lake")


@contextmanager
def tables(store: str, *, quick: bool) -> Iterator[tuple[list[Work], Place, Late, Path]]:
    """Both tables on a server that answers late, and a folder for what is read."""
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        with _server(store, folder / "server") as place:
            url = URL(place.url)
            works = aside(write_tables, place, folder, quick=quick)
            with run_late(str(url.origin()), DELAY_S) as late:
                yield works, replace(place, url=late.url + url.path.rstrip("/")), late, folder


def main() -> None:
    """Run all."""
    parser = options(__doc__)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--store", choices=("s3", *CLOUDS), default="s3")
    asked = parser.parse_args()
    os.environ.update(ACCOUNT)
    results = Results(asked.quick)
    with tables(asked.store, quick=asked.quick) as (works, bucket, late, folder):
        for work in (work for work in works if work.name in asked.tables):
            requests = bench(work, bucket, late, folder / "output.arrow", results, asked.rounds)
            if asked.store != "s3":
                print(f"{work.name}: {requests / work.last:.2f} requests a version")
                continue
            if work.file is None:
                results.value("remote-requests", requests / work.last)
                continue
            mib = (folder / "server" / "lake" / work.file).stat().st_size / 2**20
            if requests > mib + LARGE_REQUESTS_MORE:
                results.complain(f"{requests:.0f} requests for {mib:.0f} MiB")
    results.end()


if __name__ == "__main__":
    main()
