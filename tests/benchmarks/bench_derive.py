"""Deriving changes: a version that rewrites 3 million rows to change 300 thousand of them.

`python -m tests.benchmarks.bench_derive [--rounds N]` compares `tailer read` over that version, by
row ids and by cancel-out, with a bare pyarrow scan of the files that leave and come. The bounds:
3 times the scan's processor time by row ids, 4 times by cancel-out, both under 1 GiB. Rounds are
interleaved and medians quoted; the figure to trust is the ratio.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.ipc

from tests.benchmarks.measure import Cost, measure, median_cost
from tests.benchmarks.tables import ROW, SCHEMA, bench_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3_000_000
CHANGED = ROWS // 10
FILES = 4
VERSION = 2
BOUNDS = {"row_ids": 3.0, "cancel_out": 4.0}
PEAK_MIB_MAX = 1024.0
PROPERTIES = {
    "row_ids": "delta.enableRowTracking = true, delta.enableDeletionVectors = false",
    "cancel_out": "delta.enableDeletionVectors = false",
}

SCAN = """
import sys
import pyarrow.parquet as pq
for path in sys.argv[1:]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as parquet:
        for batch in parquet.iter_batches(batch_size=65536):
            pass
"""


def rewritten_table(origin: str) -> Path:
    """The table whose version 2 is the rewrite, made once by Spark and kept."""
    folder = bench_folder() / f"rewrite-{origin}"
    done = folder / "done"
    if not done.exists():
        from tests.support.components import start_spark

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spark = start_spark(bench_folder() / "spark")
        try:
            _make(spark, folder / "table", PROPERTIES[origin])
        finally:
            spark.stop()
        done.touch()
    return folder / "table"


def _make(spark: SparkSession, table: Path, properties: str) -> None:
    spark.conf.set("spark.sql.files.maxPartitionBytes", "256m")
    spark.conf.set("spark.sql.files.openCostInBytes", "256m")
    spark.sql(f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta TBLPROPERTIES ({properties})")
    spark.range(0, ROWS, 1, FILES).createOrReplaceTempView("ids")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT {ROW.format(salt=1)} FROM ids")
    spark.sql(f"UPDATE delta.`{table}` SET quantity = quantity + 1 WHERE id % 10 = 0")


def files_of(table: Path) -> list[str]:
    """The files that leave and come in the rewrite."""
    commit = table / "_delta_log" / f"{VERSION:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    paths = [a[kind]["path"] for a in actions for kind in ("add", "remove") if kind in a]
    return [str(table / unquote(path)) for path in paths]


def run(origin: str, rounds: int) -> bool:
    """Measure one way, print its figures, and say whether it keeps its bounds."""
    table = rewritten_table(origin)
    costs: dict[str, list[Cost]] = {"scan": [], "tailer": []}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "changes.arrow"
        read = ["-m", "tailer", "read", str(table), "--starting-version", str(VERSION)]
        read += ["--change-source", "derived", "--with-ids", "--output", str(output)]
        for _ in range(rounds):
            costs["scan"].append(measure([sys.executable, "-c", SCAN, *files_of(table)]))
            costs["tailer"].append(measure([sys.executable, *read]))
        with pyarrow.OSFile(str(output)) as file:
            rows = pyarrow.ipc.open_file(file).read_all()
    if rows.num_rows != 2 * CHANGED or set(rows["_origin"].to_pylist()) != {origin}:
        raise AssertionError(f"{origin}: {rows.num_rows} changes, not {2 * CHANGED}")
    scan, tailer = median_cost(costs["scan"]), median_cost(costs["tailer"])
    ratio = tailer.cpu_s / scan.cpu_s
    for name, cost in (("scan", scan), ("tailer", tailer)):
        print(
            f"{origin:<11} {name:<7} {cost.wall_s:6.2f} s wall {cost.cpu_s:6.2f} s CPU "
            f"{cost.peak_mib:6.0f} MiB"
        )
    print(
        f"{origin:<11} ratio   {tailer.wall_s / scan.wall_s:6.2f} wall {ratio:8.2f} CPU "
        f"(bound {BOUNDS[origin]})\n"
    )
    return ratio <= BOUNDS[origin] and tailer.peak_mib <= PEAK_MIB_MAX


def main() -> None:
    """Both ways; ends with 1 where a bound is broken."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    kept = [run(origin, rounds) for origin in BOUNDS]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
