"""The session's own access to storage, in every way to read: a real S3 server that takes one
account, which only Hadoop's configuration has. No plan and no checkpoint has a secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.config.feeds import load_config
from tailer.spark import changes, foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.mirror import mirror_into
from tailer.spark.pipeline.cluster import ClusterOptions, SparkCluster
from tailer.spark.pipeline.run import ClusterReaders
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.s3.fixture import ACCESS, REGION, SECRET, Bucket, S3Server
from tests.spark.test_clouds import ended
from tests.spark.test_frames import plan

pytestmark = pytest.mark.needs("s3")

SCHEMA = pa.schema([("id", pa.int64())])
BUCKET = "sessions"


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket with the table `orders`, and no account in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = s3_server.bucket(BUCKET)
    folder = found.folder / "orders"
    if not folder.exists():
        table = TableBuilder(folder, SCHEMA, cdf=True)
        table.create()
        table.insert([{"id": 1}, {"id": 2}])
    return found


@pytest.fixture
def session(spark: SparkSession, bucket: Bucket) -> SparkSession:
    """A session that has the server's account."""
    spark.dataSource.register(TailerSource)
    for name, value in hadoop(bucket).items():
        spark.conf.set(f"fs.s3a.{name}", value)
    return spark


def hadoop(bucket: Bucket) -> dict[str, str]:
    """What Hadoop's own client of S3 has to know."""
    return {
        "endpoint": bucket.url,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "access.key": ACCESS,
        "secret.key": SECRET,
    }


ADDRESS = f"s3a://{BUCKET}/orders"

FEEDS = f"""
[feeds.cloud]
table = "{ADDRESS}"
from = "earliest"
sink = {{ type = "jsonl", path = "cloud.jsonl" }}

[feeds.pattern]
table = "s3a://{BUCKET}/*/"
from = "earliest"
sink = {{ type = "jsonl", path = "{{table}}.jsonl" }}

[feeds.own]
table = "{ADDRESS}"
from = "earliest"
store = {{ region = "eu-central-1" }}
sink = {{ type = "jsonl", path = "own.jsonl" }}

[feeds.local]
table = "/data/orders"
from = "earliest"
sink = {{ type = "jsonl", path = "local.jsonl" }}
"""


def by_changes(spark: SparkSession, _: Path) -> DataFrame:
    frame: DataFrame = changes(spark, ADDRESS, startingVersion=0)
    return frame


def by_format(spark: SparkSession, _: Path) -> DataFrame:
    frame: DataFrame = spark.read.format("tailer").option("startingVersion", 0).load(ADDRESS)
    return frame


def by_sql(spark: SparkSession, _: Path) -> DataFrame:
    spark.sql(
        "CREATE TEMPORARY VIEW order_changes USING tailer "
        f"OPTIONS (table '{ADDRESS}', startingVersion '0')"
    )
    return spark.table("order_changes")


def by_stream(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.readStream.format("tailer").option("startingVersion", 0).load(ADDRESS)
    hold_no_secret(frame)
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    ended(writer.option("checkpointLocation", str(folder / "checkpoint")))
    return spark.read.parquet(str(folder / "out"))


def by_foreach_batch(spark: SparkSession, folder: Path) -> DataFrame:
    def write(frame: DataFrame, _: int) -> None:
        hold_no_secret(frame)
        frame.write.mode("append").parquet(str(folder / "out"))

    ended(foreach_batch(spark, ADDRESS, folder / "checkpoint", write, startingVersion=0))
    return spark.read.parquet(str(folder / "out"))


WAYS = [by_changes, by_format, by_sql, by_stream, by_foreach_batch]


def hold_no_secret(frame: DataFrame) -> None:
    assert SECRET not in frame._jdf.queryExecution().toString()


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_access_of_the_session(
    way: Callable[[SparkSession, Path], DataFrame], session: SparkSession, tmp_path: Path
) -> None:
    frame = way(session, tmp_path)
    hold_no_secret(frame)
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in kept)


def test_a_buckets_own_keys_precede_the_general_ones(session: SparkSession) -> None:
    for name, value in (("access.key", "another"), ("secret.key", "anothers-secret")):
        session.conf.set(f"fs.s3a.bucket.{BUCKET}.{name}", session.conf.get(f"fs.s3a.{name}") or "")
        session.conf.set(f"fs.s3a.{name}", value)
    assert by_changes(session, Path()).count() == 2
    assert by_format(session, Path()).count() == 2


def characters(session: SparkSession, name: str) -> Any:
    """A key of the session's, as Java wants a password."""
    text = session.conf.get(f"fs.s3a.{name}") or ""
    gateway: Any = session.sparkContext._gateway
    found = gateway.new_array(gateway.jvm.char, len(text))
    for at, one in enumerate(text):
        found[at] = one
    return found


def test_keys_may_be_in_a_store_of_hadoops(session: SparkSession, tmp_path: Path) -> None:
    path = f"localjceks://file{tmp_path}/keys.jceks"
    java = session.sparkContext._jvm.org.apache.hadoop  # type: ignore[union-attr]
    conf = java.conf.Configuration()
    conf.set("hadoop.security.credential.provider.path", path)
    (provider,) = java.security.alias.CredentialProviderFactory.getProviders(conf)
    for name in ("access.key", "secret.key"):
        provider.createCredentialEntry(f"fs.s3a.{name}", characters(session, name))
        session.conf.unset(f"fs.s3a.{name}")
    provider.flush()
    with pytest.raises(TailerSourceError, match="no credentials"):
        by_changes(session, Path())
    session.conf.set("fs.s3a.security.credential.provider.path", path)
    assert by_changes(session, Path()).count() == 2
    assert by_format(session, Path()).count() == 2


def test_options_of_the_query_are_all_that_it_has(session: SparkSession) -> None:
    with pytest.raises(TailerSourceError, match="no credentials"):
        changes(session, ADDRESS, startingVersion=0, **{"store.region": REGION})


def test_a_provider_that_is_not_known_is_named(session: SparkSession) -> None:
    session.conf.set("fs.s3a.aws.credentials.provider", "com.example.Vault")
    expected = r"fs\.s3a\.aws\.credentials\.provider is 'com\.example\.Vault'"
    with pytest.raises(TailerSourceError, match=expected):
        by_changes(session, Path())
    with pytest.raises(PySparkException, match=expected):
        by_format(session, Path())


def test_a_mirror_is_looked_for_with_the_same_access(session: SparkSession) -> None:
    mirror = f"s3a://{BUCKET}/orders"  # a table that another application has made
    with pytest.raises(TailerSourceError, match="knows nothing of 'app'"):
        mirror_into(mirror, "id", "app")(by_changes(session, Path()), 1)


@pytest.mark.usefixtures("session")
def test_feeds_on_a_cluster_have_it_too(tmp_path: Path) -> None:
    (tmp_path / "tailer.toml").write_text(FEEDS)
    config = load_config(tmp_path / "tailer.toml")
    readers = ClusterReaders(SparkCluster(ClusterOptions()))
    feeds, found = config.feeds, anyio.run(readers.complete_config, config).feeds
    having = {name for name, feed in found.items() if "access_key_id" in feed.store}
    assert having == {"cloud", "pattern"}
    assert found["own"] == feeds["own"]


def test_a_table_may_be_named_as_in_the_catalog(spark: SparkSession) -> None:
    spark.dataSource.register(TailerSource)
    spark.sql("CREATE TABLE named_orders (id BIGINT) USING delta")
    try:
        spark.sql("INSERT INTO named_orders VALUES (7)")
        name = "spark_catalog.default.named_orders"
        options: dict[str, Any] = {"startingVersion": 0}
        assert [row.id for row in changes(spark, name, **options).collect()] == [7]
        frame = spark.read.format("tailer").options(**options).load("default.named_orders")
        assert [row.id for row in frame.collect()] == [7]
        with pytest.raises(TailerSourceError, match="no_such_orders"):
            changes(spark, "no_such_orders", **options)
        spark.sql("CREATE TABLE named_mirror (id BIGINT) USING delta")
        mirror_into("default.named_mirror", "id", "app")(changes(spark, name, **options), 0)
        assert [row.id for row in spark.table("named_mirror").collect()] == [7]
    finally:
        spark.sql("DROP TABLE named_orders")
        spark.sql("DROP TABLE IF EXISTS named_mirror")


def test_spark_reads_the_files_where_hadoop_reaches_them(
    session: SparkSession, bucket: Bucket
) -> None:
    assert "FileScan parquet" not in plan(
        by_changes(session, Path())
    )  # Hadoop's client is not here
    # A file system of Hadoop's for the same addresses, which leads to the server's folder.
    view = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    session.conf.set("fs.s3a.impl", view)
    session.conf.set("fs.viewfs.overload.scheme.target.file.impl", LOCAL)
    session.conf.set(f"fs.viewfs.mounttable.{BUCKET}.linkFallback", f"file://{bucket.folder}")
    for address in (ADDRESS, ADDRESS.replace("s3a:", "s3:")):
        frame = changes(session, address, startingVersion=0)
        planned = plan(frame.where("id > 1"))
        assert "MapInArrow" not in planned
        assert "GreaterThan(id,1)" in planned
        assert sorted(row.id for row in frame.collect()) == [1, 2]


LOCAL = "org.apache.hadoop.fs.LocalFileSystem"
