"""`changes`, `foreach_batch` and the data source against Spark's own readChangeFeed, all to noop.

    python -m tests.benchmarks.bench_spark [--rounds 5] [--quick] [--compiled] [--python SCRIPT]

All run by turns in one warm session, planning included. The tables are one of large versions, one
of thousands of small versions, one of many partitions, and one with a thousand deletion vectors.
Workers of Python end between two looks at the processor time, so all is compared by wall time.
`--compiled` runs a Spark whose archive of Python modules is compiled, as docs/spark-details.md
says; `--python` is its script for PYSPARK_PYTHON, and JAVA_TOOL_OPTIONS can have its options for
Java.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Cost, environment, print_costs, python, runs_by_turns
from tests.benchmarks.results import Results, options
from tests.benchmarks.spark_contenders import (
    FRAMES,
    PEER,
    SOURCE,
    STREAMS,
    Run,
    Streams,
    Work,
    batch_runs,
    registered,
)
from tests.benchmarks.spark_home import compiled_spark_home
from tests.benchmarks.tables import BenchTable, bench_folder, bench_table, vectors_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSIONS, VERSIONS_QUICK = 2000, 20
VECTORS, VECTORS_QUICK = (3_000_000, 1000), (2000, 4)
PARTS, PARTS_QUICK = (3_000_000, 30), (300, 10)
BACKLOG, BACKLOG_QUICK = 1000, 10


def whole(frame: DataFrame) -> DataFrame:
    """All columns and rows."""
    return frame


def few(frame: DataFrame) -> DataFrame:
    """Two of the eight columns, and a condition that a third of the rows fulfil."""
    return frame.where("amount > 666666").select("id", "amount")


def counted(frame: DataFrame) -> DataFrame:
    """The number of rows."""
    return frame.groupBy().count()


def where(condition: str) -> Work:
    """All columns, and a condition that Delta does without reading the rows."""
    return lambda frame: frame.where(condition)


def partitioned(spark: SparkSession, folder: Path, rows: int, parts: int) -> Path:
    """A table of as many rows in as many partitions, one version."""
    table = folder / "partitioned"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id LONG, name STRING, part INT) USING delta PARTITIONED BY "
        "(part) TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    made = f"SELECT id, concat('row ', id), CAST(id % {parts} AS INT) FROM range({rows})"
    spark.sql(f"INSERT INTO delta.`{table}` {made}")
    return table


def backlog(folder: Path, versions: int) -> Path:
    """A table of so many versions of one file each."""
    import pyarrow as pa

    from tailer.testing.table import TableBuilder

    table = TableBuilder(folder / "backlog", pa.schema([("id", pa.int64())]))
    table.create()
    first = table.add([{"id": 0}])
    for version in range(1, versions):
        action = json.loads(json.dumps(first))
        action["add"]["path"] = f"part-{version}.parquet"
        table.commit(action, version=version)
    return table.folder


def planning_s(table: Path) -> float:
    """The driver's work on a backlog: where the batch ends, and its partitions."""
    from pyspark.sql.streaming.datasource import ReadMaxFiles

    from tailer.spark.source import TailerSource

    source = TailerSource({"path": str(table), "startingVersion": "0"})
    reader = source.streamReader(source.schema())
    start, began = reader.initialOffset(), time.perf_counter()
    end = reader.latestOffset(start, ReadMaxFiles(10_000))
    reader.partitions(start, end)
    took = time.perf_counter() - began
    reader.stop()
    return took


class Contest:
    """Runs contenders by turns in a session, and notes their bars."""

    def __init__(self, spark: SparkSession, results: Results, rounds: int, folder: Path) -> None:
        self.spark = spark
        self.results = results
        self.rounds = rounds
        self.folder = folder

    def by_turns(self, name: str, runs: dict[str, Run]) -> dict[str, Cost]:
        """Print and return all contenders' medians."""
        costs = runs_by_turns(runs, self.rounds)
        print_costs(costs, name)
        return costs

    def batch(self, name: str, table: Path, work: Work, **bars: str) -> None:
        """Compare batches; ``bars`` are noted of :data:`FRAMES` and of the data source."""
        costs = self.by_turns(name, batch_runs(self.spark, name, table, work))
        self._note(costs, frames=FRAMES, **bars)

    def stream(self, name: str, table: Path, own: BenchTable | None = None, **bars: str) -> None:
        """Compare streams, beside Spark's own share for one of the tables."""
        streams = Streams(self.spark, table, self.folder)
        if own is not None:
            streams.with_own_share(own)
        costs = self.by_turns(name, streams.runs())
        streams.print_phases(self.rounds)
        self._note(costs, frames=STREAMS, **bars)

    def _note(
        self, costs: dict[str, Cost], *, frames: str, bar: str = "", source_bar: str = ""
    ) -> None:
        for contender, name in ((frames, bar), (SOURCE, source_bar)):
            if name:
                self.results.ratio(name, costs[contender], costs[PEER], by_wall=True)


def main() -> None:
    """Measure, show, and end with 1 where a bound is not kept."""
    parser = options(__doc__)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    asked = parser.parse_args()
    results, rounds, quick = Results(asked.quick), 0 if asked.quick else asked.rounds, asked.quick
    if asked.compiled:
        os.environ["SPARK_HOME"] = str(compiled_spark_home(bench_folder()))
    # Spark's Python processes begin as an installed program's would: with modules compiled once.
    os.environ.update(environment())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    feed = bench_table("tiny" if quick else "small")
    with tempfile.TemporaryDirectory(prefix="tailer-bench-") as name:
        folder = Path(name)
        pending = backlog(folder, BACKLOG_QUICK if quick else BACKLOG)
        results.value("spark-planning", planning_s(pending))
        spark = registered(asked.python)
        small, last = folder / "small", VERSIONS_QUICK if quick else VERSIONS
        write = python("tests.benchmarks.runs_contenders", "write", small, last)
        subprocess.run(write, check=True)
        vectors = vectors_table(spark, folder, *(VECTORS_QUICK if quick else VECTORS))
        parts = partitioned(spark, folder, *(PARTS_QUICK if quick else PARTS))
        contest = Contest(spark, results, rounds, folder)
        contest.batch("count", feed.path, counted)
        contest.batch("version", small, where(f"_commit_version = {last // 2}"))
        contest.batch("partition", parts, where("part = 7"))
        contest.batch("batch", feed.path, whole, bar="spark-batch", source_bar="spark-source")
        contest.batch("columns", feed.path, few, bar="spark-columns")
        contest.batch("backlog", small, whole, bar="spark-backlog")
        contest.batch("vectors", vectors, whole, bar="spark-vectors")
        contest.stream(
            "stream", feed.path, feed, bar="spark-stream", source_bar="spark-source-stream"
        )
        contest.stream("backlog", small, bar="spark-backlog-stream")
        spark.stop()
    results.end()


if __name__ == "__main__":
    main()
