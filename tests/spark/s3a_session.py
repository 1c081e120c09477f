"""A session as a cluster has it, whose Hadoop alone knows S3 and its account.

    python -m tests.spark.s3a_session URL BUCKET FOLDER

It writes tables with Delta, reads them in every way, and prints as JSON what did not give Delta's
own rows. A session takes its class path when it starts, so this is a program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tailer.spark import changes
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource
from tests.s3.fixture import ACCESS, REGION, SECRET
from tests.spark.test_frames import plan
from tests.spark.test_hdfs import (
    FEED,
    MAPPING,
    OFTEN,
    VECTORS,
    Kept,
    feed_of,
    insert,
    make_table,
    rows_of,
    run_stream,
    sorted_rows,
)
from tests.support.components import start_spark
from tests.support.s3a import s3a_settings


def check_table(spark: SparkSession, bucket: str, *properties: str) -> dict[str, bool]:
    """What is right of a table with these properties."""
    table = f"s3a://{bucket}/orders {len(properties)}"
    make_table(spark, table, *properties)
    wanted = feed_of(spark, table)
    frame = changes(spark, table, startingVersion=0)
    found = {"frame": rows_of(frame) == wanted, "Spark's reader": "FileScan" in plan(frame)}
    decoded = changes(spark, table, startingVersion=0, spark_reader="never")
    found["decoder"] = rows_of(decoded) == wanted
    source = spark.read.format("tailer").option("startingVersion", 0).load(table)
    found["source"] = rows_of(source.select(frame.columns)) == wanted
    checkpoint, kept = f"s3a://{bucket}/checkpoint {len(properties)}", Kept()
    run_stream(spark, table, checkpoint, kept)
    insert(spark, table, 100)
    run_stream(spark, table, checkpoint, kept)
    found["stream"] = sorted_rows(kept.rows) == feed_of(spark, table)
    return found


def check_mirror(spark: SparkSession, bucket: str) -> dict[str, bool]:
    """Whether a mirror there, of a table there, is the table."""
    table, mirror = f"s3a://{bucket}/keyed", f"s3a://{bucket}/mirror"
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, p STRING) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id, 'p' FROM range(9)")
    spark.sql(f"UPDATE delta.`{table}` SET p = 'q' WHERE id = 5")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 4")
    run_stream(spark, table, f"s3a://{bucket}/place", mirror_into(mirror, "id", "app"))
    read = spark.read.format("delta").load
    return {"mirror": rows_of(read(mirror).select("id", "p")) == rows_of(read(table))}


def main() -> None:
    """Check all, and print it."""
    url, bucket, folder = sys.argv[1:]
    settings = s3a_settings(bucket, url, REGION, (ACCESS, SECRET))
    spark = start_spark(Path(folder), settings=settings)
    spark.dataSource.register(TailerSource)
    found = {
        "copy on write": check_table(spark, bucket, FEED),
        "vectors": check_table(spark, bucket, FEED, VECTORS, MAPPING, OFTEN),
        "mirror": check_mirror(spark, bucket),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
