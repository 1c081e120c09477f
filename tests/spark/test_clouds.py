"""Tables on S3, Azure's and Google's storage as frames: every way to read one gives the rows of the
local table, and no plan has the account's key."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tailer.spark import changes, foreach_batch
from tailer.spark.source import TailerSource
from tests.clouds.copies import copied, unpacked
from tests.clouds.servers import KEY, S3_SECRET, Container
from tests.support.source import ROOT

SECRETS = KEY, S3_SECRET
ARCHIVE = ROOT / "tests" / "golden" / "data" / "cdf_dv.tar.gz"


def sorted_rows(rows: Iterable[Row]) -> list[str]:
    return sorted(map(repr, rows))


def check_plan(frame: DataFrame) -> None:
    plan = frame._jdf.queryExecution().toString()
    assert not any(secret in plan for secret in SECRETS)


@pytest.mark.slow
def test_a_frame_has_the_local_tables_rows(
    spark: SparkSession, container: Container, tmp_path: Path
) -> None:
    spark.dataSource.register(TailerSource)
    original = unpacked(ARCHIVE, tmp_path)
    anyio.run(copied, [original], container)
    # Each cloud is read in one way, to save time.
    source = {"azure": "cdf", "gcs": "derived", "s3": "cdf"}[container.cloud]
    options = {"startingVersion": str(original.first), "changeSource": source}
    account = container.spark
    address = container.address(original.name)
    local = spark.read.format("tailer").options(**options).load(str(original.table))
    wanted = sorted_rows(local.collect())
    assert wanted

    frame = spark.read.format("tailer").options(**options, **account).load(address)
    check_plan(frame)
    assert sorted_rows(frame.collect()) == wanted
    planned = changes(spark, address, **options, **account)
    check_plan(planned)
    assert sorted_rows(planned.collect()) == wanted

    stream = spark.readStream.format("tailer").options(**options, **account).load(address)
    check_plan(stream)
    written = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    ended(written.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert sorted_rows(spark.read.parquet(str(tmp_path / "out")).collect()) == wanted
    rows: list[Row] = []

    def keep(batch: DataFrame, _: int) -> None:
        check_plan(batch)
        rows.extend(batch.collect())

    ended(foreach_batch(spark, address, tmp_path / "planned", keep, **options, **account))
    assert sorted_rows(rows) == wanted
    kept = [path.read_bytes() for path in tmp_path.glob("**/offsets/*")]
    assert kept
    assert not any(secret.encode() in text for text in kept for secret in SECRETS)


def ended(writer: Any) -> None:
    assert writer.trigger(availableNow=True).start().awaitTermination(200)
