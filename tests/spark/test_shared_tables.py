"""A shared table as the data source's table: no Delta jar, no credentials but the profile's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailer.spark.source import TailerSource
from tests.sharing.reference_server import serving
from tests.sharing.shared import NAME, golden_table

COLUMNS = ("id", "_change_type", "_commit_version")


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_shared_table_gives_what_the_table_itself_gives(
    spark: SparkSession,
    tmp_path: Path,
    streaming: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    spark.dataSource.register(TailerSource)
    folder = golden_table("cdf_dv", tmp_path)
    direct = spark.read.format("tailer").option("startingVersion", 1).load(str(folder))
    wanted = sorted(map(str, direct.select(*COLUMNS).collect()))
    with serving({NAME: folder}) as server:
        address = f"{server.profile(tmp_path)}#share.schema.table"
        options = {"startingVersion": "1"}
        if not streaming:
            shared = spark.read.format("tailer").options(**options).load(address)
        else:
            query = (
                spark.readStream.format("tailer")
                .options(**options)
                .load(address)
                .writeStream.format("memory")
                .queryName("shared_changes")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            shared = spark.table("shared_changes")
        found = sorted(map(str, shared.select(*COLUMNS).collect()))
    assert len(found) > 100
    assert found == wanted
