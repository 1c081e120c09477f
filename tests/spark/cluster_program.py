"""What the cluster's test runs as a driver: three queries over one table, until all is read.

    python -m tests.spark.cluster_program SETTINGS.json FOLDER

``mirror`` derives the changes and merges them into a Delta table; ``files`` takes them from the
change data feed and writes Parquet by Spark's own sink. ``frames`` merges too, from
:func:`tailer.spark.foreach_batch`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tailer.spark import foreach_batch
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource

QUERIES = ("mirror", "files", "frames")


def changes(spark: SparkSession, **options: Any) -> DataStreamReader:
    """The source, from the table's first version on."""
    reader = spark.readStream.format("tailer").option("startingVersion", 0)
    return reader.option("minPartitions", 2).options(**options)


def start(spark: SparkSession, folder: str) -> list[StreamingQuery]:
    """All queries, from their checkpoints."""
    table = f"{folder}/orders"
    derived = changes(spark, changeSource="derived", key="id", maxFilesPerTrigger=4).load(table)
    given = changes(spark, changeSource="cdf", maxFilesPerTrigger=1).load(table)
    checkpoints = {name: f"{folder}/checkpoints/{name}" for name in QUERIES}
    merges = {
        name: mirror_into(f"{folder}/{name}-mirror", key=["id"], app=name) for name in QUERIES
    }
    planned: dict[str, Any] = {"startingVersion": 0, "maxFilesPerTrigger": 2, "minPartitions": 2}
    writers = (
        derived.writeStream.foreachBatch(merges["mirror"]),
        given.writeStream.format("parquet").option("path", f"{folder}/files"),
        foreach_batch(spark, table, checkpoints["frames"], merges["frames"], **planned),
    )
    return [
        writer.option("checkpointLocation", checkpoints[name])
        .queryName(name)
        .trigger(availableNow=True)
        .start()
        for name, writer in zip(QUERIES, writers, strict=True)
    ]


def finished(spark: SparkSession, folder: str) -> bool:
    """Run the queries to their ends; False where they have to be started again."""
    try:
        for query in start(spark, folder):
            query.awaitTermination()
    except PySparkException as e:
        # Spark waits ten seconds for a Python process, no more; a busy machine may need them. That
        # may also be the process that looks for the table's schema, before any query runs.
        if "connect back" not in str(e):
            raise
        return False
    return True


def main(settings: str, folder: str) -> None:
    """Start the queries and wait for their ends."""
    builder = SparkSession.builder.appName("tailer on a cluster")
    for name, value in json.loads(Path(settings).read_text()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TailerSource)
    while not finished(spark, folder):
        for query in spark.streams.active:
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
