"""The tables that the benchmarks read, made by real Spark and Delta and kept in a cache folder.

Three sizes of one recipe, with eight columns and five versions that make the change feed:

    version 1  INSERT   add files, no cdc: the rows come out as `insert`
    version 2  UPDATE   half of the rows: pairs of pre and post image
    version 3  MERGE    updates, deletes and inserts in one commit
    version 4  UPDATE   the other half
    version 5  UPDATE   the first half again

`small` has 3 million changes and one file of about 600 thousand rows in each version; `large` has
12 million and four such files in each version; `tiny` has 3 thousand, to time what is not rows.
`python -m tests.benchmarks.tables` makes them beforehand.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Raised whenever the recipe changes: a cached table of another number is made anew.
RECIPE = 2

# Rows of one data file, and files of one version.
SIZES = {"tiny": (600, 1), "small": (600_000, 1), "large": (600_000, 4)}
STARTING_VERSION = 1
ENDING_VERSION = 5

SCHEMA = (
    "id BIGINT, quantity INT, score DOUBLE, token STRING, status STRING, "
    "changed_at TIMESTAMP, due DATE, amount DECIMAL(18, 2)"
)

# One row, from its id and a number that differs at each version. Nothing is random: Delta refuses
# an UPDATE that is, and a table made again has the same rows.
ROW = """
    id,
    cast(hash(id, {salt}) % 100000 as int) AS quantity,
    pmod(xxhash64(id, {salt}), 1000000007) / 1000.0D AS score,
    substr(md5(concat(id, '-{salt}')), 1, 20) AS token,
    elt(1 + cast(pmod(hash(id, {salt} + 1), 12) as int), 'new', 'paid', 'packed', 'shipped',
        'delivered', 'returned', 'refunded', 'cancelled', 'on hold', 'lost', 'found',
        'archived') AS status,
    timestamp_micros(1700000000000000 + pmod(xxhash64(id, {salt}), 31536000000000)) AS changed_at,
    date_add(date'2020-01-01', cast(pmod(hash(id, {salt} + 2), 2000) as int)) AS due,
    cast(pmod(xxhash64(id, {salt} + 3), 100000000) / 100.0 as decimal(18, 2)) AS amount
"""


@dataclass(frozen=True, slots=True)
class FeedFile:
    """One file of the feed, and what its commit says of all of its rows.

    `timestamp_ms` is the commit file's modification time, as Delta takes it. `change_type` is None
    for a cdc file, which has it as a column.
    """

    path: Path
    version: int
    timestamp_ms: int
    change_type: str | None


@dataclass(frozen=True, slots=True)
class BenchTable:
    """A table in the cache and the number of rows of its change feed, as Spark counts them."""

    path: Path
    rows: int

    def feed_files(self) -> Iterator[FeedFile]:
        """The files of the feed in commit order, read off the log with no help from tailer."""
        for version in range(STARTING_VERSION, ENDING_VERSION + 1):
            commit = self.path / "_delta_log" / f"{version:020d}.json"
            timestamp_ms = commit.stat().st_mtime_ns // 1_000_000
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            cdc = [action["cdc"]["path"] for action in actions if "cdc" in action]
            added = [action["add"]["path"] for action in actions if "add" in action]
            for path in cdc or added:
                file = self.path / unquote(path)
                yield FeedFile(file, version, timestamp_ms, None if cdc else "insert")


def bench_folder() -> Path:
    """The cache: TAILER_BENCH_DIR, or `.cache/bench` in the project's folder."""
    named = os.environ.get("TAILER_BENCH_DIR")
    return Path(named).resolve() if named else Path(__file__).resolve().parents[2] / ".cache/bench"


def bench_table(name: str) -> BenchTable:
    """The table `tiny`, `small` or `large`; made now where the cache does not hold it."""
    folder = bench_folder() / name
    recipe = folder / "recipe.json"
    if not _is_current(recipe):
        from tests.support.components import start_spark

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spark = start_spark(bench_folder() / "spark", small=False)
        try:
            rows = _make(spark, folder / "table", *SIZES[name])
        finally:
            spark.stop()
        # Written last: without it the folder was left half made, and is made again.
        recipe.write_text(json.dumps({"recipe": RECIPE, "rows": rows}))
    return BenchTable(folder / "table", json.loads(recipe.read_text())["rows"])


def _is_current(recipe: Path) -> bool:
    return recipe.exists() and json.loads(recipe.read_text())["recipe"] == RECIPE


def _make(spark: SparkSession, table: Path, rows_per_file: int, files: int) -> int:
    for key, value in {
        "spark.sql.shuffle.partitions": str(files),
        # One task for each file, so that each data file gives one cdc file.
        "spark.sql.files.maxPartitionBytes": "256m",
        "spark.sql.files.openCostInBytes": "256m",
        # A MERGE must have as many tasks, whatever the size of its source.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }.items():
        spark.conf.set(key, value)
    rows = rows_per_file * files
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.range(0, rows, 1, files).createOrReplaceTempView("ids")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT {ROW.format(salt=1)} FROM ids")
    _update(spark, table, salt=2, parity=0)
    _merge(spark, table, rows)
    _update(spark, table, salt=4, parity=1)
    _update(spark, table, salt=5, parity=0)
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    return feed.option("startingVersion", STARTING_VERSION).load(str(table)).count()


def vectors_table(spark: SparkSession, folder: Path, rows: int, files: int) -> Path:
    """A table of many files, and a version that deletes a tenth of each one's rows by a deletion
    vector; its change data feed has no files."""
    table = folder / "vectors"
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({SCHEMA}) USING delta TBLPROPERTIES "
        "(delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)"
    )
    spark.range(0, rows, 1, files).createOrReplaceTempView("ids")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT {ROW.format(salt=1)} FROM ids")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id % 10 = 3")
    return table


def _update(spark: SparkSession, table: Path, *, salt: int, parity: int) -> None:
    spark.sql(
        f"UPDATE delta.`{table}` SET quantity = quantity + {salt}, score = score / {salt}, "
        f"token = substr(md5(concat(id, '-{salt}')), 1, 20), status = 'version {salt}', "
        f"changed_at = timestamp_micros(1800000000000000 + id * {salt}), amount = amount + 0.01BD "
        f"WHERE id % 2 = {parity}"
    )


def _merge(spark: SparkSession, table: Path, rows: int) -> None:
    """Of each 12 rows update 5 and delete 1, and insert 1: as many changes as there are rows."""
    spark.range(0, rows + rows // 12, 1, 2).createOrReplaceTempView("ids")
    spark.sql(
        f"MERGE INTO delta.`{table}` AS t USING "
        f"(SELECT {ROW.format(salt=3)} FROM ids WHERE id >= {rows} OR id % 12 < 6) AS s "
        "ON t.id = s.id "
        "WHEN MATCHED AND s.id % 12 = 5 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def main() -> None:
    """Make the tables that are named, or all, and say what they hold."""
    for name in sys.argv[1:] or SIZES:
        table = bench_table(name)
        print(f"{name}: {table.path}, {table.rows:,} changes")
        for file in table.feed_files():
            size = file.path.stat().st_size / 2**20
            print(f"  version {file.version}  {size:7.1f} MiB  {file.path.name}")


if __name__ == "__main__":
    main()
