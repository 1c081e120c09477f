"""Tables of a catalog as the source's and the pipeline's: of one that it manages, the newest
commits are the catalog's alone; of one on Azure, the credentials are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailer.spark import changes
from tailer.spark.source import TailerSource
from tests.catalog.glue import Database
from tests.catalog.lakes import keep_on_azure
from tests.catalog.server import TOKEN, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import CloudServer
from tests.sharing.shared import orders
from tests.spark.test_pipeline import configured, lines, run_spark
from tests.support.aws import ACCOUNT, Aws


@pytest.fixture
def aws_account(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account of Glue, in the environment of what is started."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", aws.url)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)


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
                source = spark.readStream.format("tailer").option("startingVersion", 1)
                frame = source.options(**options).load(table.address)
                assert TOKEN not in str(frame._jdf.queryExecution())
                query = (
                    frame.writeStream.format("memory")
                    .queryName("catalog_changes")
                    .option("checkpointLocation", str(tmp_path / "checkpoint"))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                assert TOKEN not in query._jsq.explainInternal(True)
                rows = spark.table("catalog_changes")
        found = sorted((row["_commit_version"], row["v"]) for row in rows.collect())
        assert TOKEN not in rows._jdf.queryExecution().toString()
    assert found == [(version, f"v{version}") for version in range(1, 5)]


@pytest.mark.slow
@pytest.mark.needs("azurite")
@pytest.mark.usefixtures("aws_account")
def test_a_pipeline_reads_tables_of_both_catalogs(
    azurite: CloudServer, aws: Aws, tmp_path: Path
) -> None:
    database = Database(aws.client("glue"))
    orders(tmp_path / "orders", 4)
    glue = database.table("orders", f"file://{tmp_path}/orders")
    with serving_catalog(tmp_path) as server:
        place = keep_on_azure(azurite.container(), server.endpoint, server)
        table = place.table().create()
        for _ in range(3):
            table.commit()
        table.publish()
        table.stage(4, "never ratified")
        feeds = ({"name": "unity", "table": table.address}, {"name": "glue", "table": glue})
        config = configured(tmp_path / "pipeline", *feeds)
        (config.parent / "token").write_text(TOKEN)
        config.write_text(
            f'[catalogs.main]\nendpoint = "{server.endpoint}"\ntoken = "${{file:token}}"\n'
            f'[store.az]\nendpoint_url = "{place.container.url}"\n{config.read_text()}'
        )
        done = run_spark(config, "--conf", "spark.log.level=INFO")
        vended = server.seen("/credentials")
    assert done.returncode == 0, done.stderr
    for name in ("unity", "glue"):
        assert [json.loads(line)["v"] for line in lines(config, name)] == ["v1", "v2", "v3"]
    assert vended >= 1
    assert TOKEN not in done.stdout + done.stderr
    assert "sig=" not in done.stdout + done.stderr
