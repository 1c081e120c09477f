"""Tables on Azure's and Google's storage as frames: executors get the same options."""

from __future__ import annotations

from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.clouds.servers import KEY, Container


@pytest.mark.parametrize("source", ["cdf", "derived"])
def test_a_frame_reads_a_table_where_it_lies(
    spark: SparkSession, container: Container, tmp_path: Path, source: str
) -> None:
    spark.dataSource.register(TailerSource)
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for number in range(3):
        table.insert([{"id": number}])
    anyio.run(container.upload, table.folder, "lake/orders")
    given = {f"store.{name}": str(value) for name, value in container.options.items()}
    options = {"startingVersion": "0", "changeSource": source, **given}
    address = container.address("lake/orders")
    frame = spark.read.format("tailer").options(**options).load(address)
    assert sorted(row.id for row in frame.collect()) == [0, 1, 2]
    plan = frame._jdf.queryExecution().toString()
    assert KEY not in plan
    stream = (
        spark.readStream.format("tailer")
        .options(**options)
        .load(address)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    stream.awaitTermination()
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [
        0,
        1,
        2,
    ]
