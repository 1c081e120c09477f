"""A catalog-managed table as the source's table: its newest commits are the catalog's alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailer.spark import changes
from tailer.spark.source import TailerSource
from tests.catalog.server import TOKEN, serving_catalog
from tests.catalog.writer import ManagedTable


@pytest.mark.parametrize("kind", ["batch", "stream", "frames"])
def test_what_is_ratified_is_read_published_or_not(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    spark.dataSource.register(TailerSource)
    with serving_catalog(tmp_path) as server:
        table = ManagedTable(server.endpoint, TOKEN).create()
        for _ in range(4):
            table.commit()
        table.publish()
        table.stage(5, "never ratified")
        options = {"store.endpoint": server.endpoint, "store.token": TOKEN}
        match kind:
            case "batch":
                reader = spark.read.format("tailer").option("startingVersion", 1)
                rows = reader.options(**options).load(table.address)
            case "frames":
                rows = changes(spark, table.address, startingVersion=1, **options)
            case _:
                stream = spark.readStream.format("tailer").option("startingVersion", 1)
                query = (
                    stream.options(**options)
                    .load(table.address)
                    .writeStream.format("memory")
                    .queryName("catalog_changes")
                    .option("checkpointLocation", str(tmp_path / "checkpoint"))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                rows = spark.table("catalog_changes")
        found = sorted((row["_commit_version"], row["v"]) for row in rows.collect())
    assert found == [(version, f"v{version}") for version in range(1, 5)]
