"""Rows of a topic as a DataFrame: format `rows`, read with Spark's Kafka source and from_json.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
        spark_from_json.py BOOTSTRAP_SERVERS TOPIC 'id BIGINT, v STRING, n DECIMAL(20,3)'

The last argument is the table's schema in Spark's DDL.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

METADATA = "_change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"


def changes(records: DataFrame, schema: str) -> DataFrame:
    """Return the change rows of a topic's records; of these the column `value` is used."""
    value = from_json(col("value").cast("string"), f"{schema}, {METADATA}")
    return records.where("value IS NOT NULL").select(value.alias("row")).select("row.*")


def main() -> None:
    bootstrap, topic, schema = sys.argv[1:4]
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .load()
    )
    changes(records, schema).orderBy("_commit_version").show(100, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
