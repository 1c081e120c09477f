"""A program for any PySpark that the source is for, classic or by Spark Connect.

``other_program.py local|sc://SERVER STEPS`` does the steps, a JSON list, in one session, and prints
what came of them as a JSON list. ``{"options": {...}}`` is a batch: the number of rows, their ids
and the columns, or what was told. With ``to`` and ``checkpoint`` it is a stream into Parquet files,
with ``mirror`` one into a Delta table by MERGE: the number of batches. With ``each`` it is one of
`foreach_batch`, which only classic sessions let us do: the ids of each batch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailer.spark import foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

ATTEMPTS = 5


def session(kind: str) -> SparkSession:
    """A small session, or one of a server, which has its own settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    if kind.startswith("sc://"):
        builder = builder.remote(kind)
    else:
        builder = builder.master("local[2]")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(TailerSource)
    return spark


def batch(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """A batch: all rows by way of Arrow."""
    frame: DataFrame = spark.read.format("tailer").options(**step["options"]).load()
    frame.explain(extended=True)
    rows = frame.toArrow()
    ids = sorted(rows["id"].to_pylist()) if "id" in rows.schema.names else []
    return {"rows": rows.num_rows, "columns": frame.columns, "ids": ids}


def stream(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """A stream of all there is."""
    if "each" in step:
        found: list[list[int]] = []

        def keep(frame: DataFrame, _: int) -> None:
            found.append(sorted(row.id for row in frame.collect()))

        finish(foreach_batch(spark, step["each"], step["checkpoint"], keep, **step["options"]))
        return {"batches": found}
    frame = spark.readStream.format("tailer").options(**step["options"]).load()
    if "mirror" in step:
        writer = frame.writeStream.foreachBatch(mirror_into(step["mirror"], ["id"], "mirror"))
    else:
        writer = frame.writeStream.format("parquet").option("path", step["to"])
    query = finish(writer.option("checkpointLocation", step["checkpoint"]))
    return {"batches": len(query.recentProgress)}


def finish(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query to its end."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(400)
    error = query.exception()
    if error is not None:
        raise error
    return query


def done(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """What came of a step; a busy machine may not start a process in Spark's ten seconds."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return stream(spark, step) if "checkpoint" in step else batch(spark, step)
        except TailerSourceError as e:
            return {"told": str(e)}
        except PySparkException as e:
            if not left or "Python worker failed to connect back" not in str(e):
                return {"told": str(e)}
    raise AssertionError("there is at least one attempt")


if __name__ == "__main__":
    spark = session(sys.argv[1])
    found = [done(spark, step) for step in json.loads(sys.argv[2])]
    spark.stop()
    print("\n" + json.dumps(found))
