"""Tables on a real HDFS, where no store of ours leads: every way to read gives the rows of the
session's own Delta, or of the same table here, and what goes wrong there is one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import IntegerType, StructType

from tailer.spark import changes, foreach_batch
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.frames.planned_files import PlannedFile, frame_of_pieces
from tailer.spark.frames.spark_reader import READ_OPTIONS
from tailer.spark.mirror import mirror_into
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.clouds.copies import Original, unpacked
from tests.spark.test_frames import plan
from tests.spark.test_pipeline import configured, lines, run_spark
from tests.support.components import free_port, java_major, require
from tests.support.hdfs import Hdfs
from tests.support.source import ROOT

GOLDEN = ROOT / "tests" / "golden" / "data"
#: Names of columns' partitions that a path has to encode, or that HDFS itself does not take.
ODD = ("a b", "x%y", "ü/é", "c:d", "plain")
FEED = "delta.enableChangeDataFeed = true"
VECTORS = "delta.enableDeletionVectors = true"
MAPPING = "delta.columnMapping.mode = 'name'"
FACTS = StructType().add("file", IntegerType())
OFTEN = "delta.checkpointInterval = 3"
#: Hadoop's own time-outs, for a test that waits for one.
IMPATIENT = {
    "ipc.client.rpc-timeout.ms": "2000",
    "ipc.client.ping": "false",
    "ipc.client.connect.timeout": "2000",
    "ipc.client.connect.max.retries.on.timeouts": "1",
}


@pytest.fixture(scope="module")
def hdfs() -> Iterator[Hdfs]:
    """One HDFS for the tests of this file; who stops it starts it again."""
    require("Java 17 or newer", java_major() >= 17)
    with Hdfs() as running:
        yield running


def sorted_rows(rows: Iterable[Row]) -> list[str]:
    return sorted(map(repr, rows))


def rows_of(frame: DataFrame) -> list[str]:
    """The rows of a table's changes, without their times: a copy's commits have others."""
    return sorted_rows(frame.drop("_commit_timestamp").collect())


def feed_of(spark: SparkSession, table: str) -> list[str]:
    """The changes by the session's own Delta."""
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    return rows_of(feed.option("startingVersion", 0).load(table))


def make_table(spark: SparkSession, table: str, *properties: str) -> None:
    """Inserts with odd partitions, an update, deletes and a whole partition that leaves."""
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, name STRING, p STRING) USING delta "
        f"PARTITIONED BY (p) TBLPROPERTIES ({', '.join(properties)})"
    )
    odd = ", ".join(f"'{one}'" for one in ODD)
    insert = f"INSERT INTO delta.`{table}` SELECT id, concat('n', id), explode(array({odd}))"
    spark.sql(f"{insert} FROM range(0, 20)")
    spark.sql(f"{insert} FROM range(20, 40)")
    spark.sql(f"UPDATE delta.`{table}` SET name = 'new' WHERE id = 7")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id % 10 = 3")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE p = 'a b'")


def insert(spark: SparkSession, table: str, first: int) -> None:
    """Five rows, in one file."""
    rows = f"SELECT /*+ COALESCE(1) */ id, 'more', 'p' FROM range({first}, {first + 5})"
    spark.sql(f"INSERT INTO delta.`{table}` {rows}")


class Kept:
    """A function for `foreach_batch` that keeps all rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, frame: DataFrame, _: int) -> None:
        self.rows += frame.drop("_commit_timestamp").collect()


def run_stream(spark: SparkSession, table: str, checkpoint: str | Path, into: Any) -> None:
    """All that there is, in a few batches."""
    options: dict[str, Any] = {"startingVersion": 0, "maxVersionsPerTrigger": 2}
    writer = foreach_batch(spark, table, checkpoint, into, **options)
    assert writer.trigger(availableNow=True).start().awaitTermination(300)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param((FEED,), id="copy on write", marks=pytest.mark.slow),
        pytest.param((FEED, VECTORS, MAPPING, OFTEN), id="vectors, mapping and checkpoints"),
    ],
)
def test_a_table_with_a_feed_has_deltas_own_rows(
    spark: SparkSession, hdfs: Hdfs, properties: tuple[str, ...]
) -> None:
    table = f"{hdfs.url}/feed {len(properties)}"
    make_table(spark, table, *properties)
    wanted = feed_of(spark, table)
    frame = changes(spark, table, startingVersion=0)
    planned = plan(frame)
    assert "FileScan parquet" in planned
    assert "MapInArrow" in planned  # the odd partitions
    assert rows_of(frame) == wanted
    decoded = changes(spark, table, startingVersion=0, spark_reader="never")
    assert "FileScan parquet" not in plan(decoded)
    assert rows_of(decoded) == wanted
    checkpoint, kept = f"{hdfs.url}/checkpoint {len(properties)}", Kept()
    run_stream(spark, table, checkpoint, kept)
    insert(spark, table, 100)
    run_stream(spark, table, checkpoint, kept)
    assert sorted_rows(kept.rows) == feed_of(spark, table)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "cdf_partition_strings",
        "multi_part_checkpoint",
        "random_prefixes",
        "plain_dv",
        "rowtracking_dv",
        "type_widening",
        "variant",
    ],
)
def test_what_must_be_decoded_or_compared_is_carried_to_the_tasks(
    spark: SparkSession, hdfs: Hdfs, tmp_path: Path, name: str
) -> None:
    """Derived changes, row ids, vectors, types that only the decoder knows: the rows of the copy
    here."""
    original: Original = unpacked(GOLDEN / f"{name}.tar.gz", tmp_path)
    table = hdfs.upload(spark, original.table, name)
    options: dict[str, Any] = {"startingVersion": original.first}
    for source in ("auto", "derived"):
        here = changes(spark, original.table, changeSource=source, **options)
        there = changes(spark, table, changeSource=source, **options)
        assert there.schema == here.schema
        assert rows_of(there) == rows_of(here)


def test_a_mirror_and_a_table_of_the_catalog_may_be_there(
    spark: SparkSession, hdfs: Hdfs, tmp_path: Path
) -> None:
    table, mirror = f"{hdfs.url}/named", f"{hdfs.url}/mirror"
    spark.sql(f"CREATE TABLE hdfs_orders (id BIGINT, p STRING) USING delta LOCATION '{table}'")
    spark.sql(f"CREATE TABLE hdfs_mirror (id BIGINT, p STRING) USING delta LOCATION '{mirror} 2'")
    try:
        spark.sql("INSERT INTO hdfs_orders SELECT id, 'p' FROM range(9)")
        spark.sql("DELETE FROM hdfs_orders WHERE id = 4")
        frame = changes(spark, "default.hdfs_orders", startingVersion=0)
        assert frame.count() == 10
        run_stream(spark, "hdfs_orders", tmp_path / "one", mirror_into(mirror, "id", "app"))
        run_stream(spark, table, tmp_path / "two", mirror_into("hdfs_mirror", "id", "app"))
        wanted = sorted_rows(spark.table("hdfs_orders").collect())
        assert sorted_rows(spark.read.format("delta").load(mirror).collect()) == wanted
        assert sorted_rows(spark.table("hdfs_mirror").collect()) == wanted
        spark.dataSource.register(TailerSource)
        for name in ("hdfs_orders", table):
            with pytest.raises(PySparkException, match=r"use changes or foreach_batch"):
                spark.read.format("tailer").option("startingVersion", 0).load(name)
    finally:
        spark.sql("DROP TABLE hdfs_orders")
        spark.sql("DROP TABLE hdfs_mirror")


@pytest.fixture
def orders(spark: SparkSession, hdfs: Hdfs) -> str:
    """A small table, new for each test."""
    table = f"{hdfs.url}/orders-{free_port()}"
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, name STRING, p STRING) USING delta")
    insert(spark, table, 0)
    return table


def test_what_is_not_a_table_is_said(spark: SparkSession, hdfs: Hdfs, orders: str) -> None:
    for address, said in (
        (f"{hdfs.url}/nothing", "there is no nothing in hdfs://"),
        (f"{orders}/_delta_log", "it is the log of the table"),
        ("oss://bucket/orders", "no store for 'oss://bucket/orders'"),
        ("hdfs://no-such-host.invalid/orders", "UnknownHostException"),
    ):
        with pytest.raises(TailerSourceError, match=said):
            changes(spark, address, startingVersion=0)
    with pytest.raises(TailerSourceError, match="takes no option 'region'"):
        changes(spark, orders, startingVersion=0, **{"store.region": "a"})
    short = orders.replace(hdfs.url, "hdfs:")
    spark.conf.set("fs.defaultFS", hdfs.url)
    spark.conf.set("fs.hdfs.impl.disable.cache", "true")  # those clients know no default
    assert changes(spark, short, startingVersion=0).count() == 5


def test_other_file_systems_of_hadoops_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    """Bytes come to the tasks as they are, also where a file ends as a line does."""
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64()), ("b", pa.binary())]))
    table.create()
    table.insert([{"id": n, "b": bytes(range(n, 256)) + b"\r\n\n\0"} for n in range(200)])
    spark.conf.set("fs.viewfs.mounttable.lake.link./orders", (tmp_path / "orders").as_uri())
    spark.conf.set("fs.viewfs.impl.disable.cache", "true")
    options: dict[str, Any] = {"startingVersion": 0, "withIds": True}
    here = changes(spark, tmp_path / "orders", **options)
    there = changes(spark, "viewfs://lake/orders", **options)
    assert sorted_rows(there.collect()) == sorted_rows(here.collect())
    lines = tmp_path / "orders" / "lines"
    for content in (b"", b"a\n\n", b"\n", b"\r\xff\n\0", os.urandom(100_000)):
        lines.write_bytes(content)
        file = PlannedFile(lines.as_uri(), len(content), 0, ("1",))
        frame = frame_of_pieces(spark, FACTS, READ_OPTIONS, [[file]])
        found = b"".join(bytes(row.piece) for row in frame.collect())
        assert found[: len(content)] == content
        assert len(found) <= len(content) + 1


def test_a_lost_file_and_a_lacking_right_are_one_sentence(
    spark: SparkSession, hdfs: Hdfs, orders: str, tmp_path: Path
) -> None:
    files, java = hdfs.files(spark), spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    log = java.Path(f"{orders}/_delta_log")
    right, kept = java.permission.FsPermission, Kept()
    (data,) = [one.getPath() for one in files.listStatus(java.Path(orders)) if one.isFile()]

    def refused(said: str, path: Path, **options: Any) -> None:
        options = {"startingVersion": 0, **options}
        writer = foreach_batch(spark, orders, path, kept, **options)
        with pytest.raises(PySparkException, match=said) as caught:
            writer.trigger(availableNow=True).start().awaitTermination(300)
        assert "FAILED_READ_FILE" not in str(caught.value).splitlines()[0]

    for path in (log, data):
        files.setOwner(path, "hdfs", "hdfs")
    files.setPermission(data, right("600"))
    refused(r"\[table\] .*: permission denied", tmp_path / "one")
    refused(r"\[table\] .*: permission denied", tmp_path / "one", spark_reader="never")
    files.setPermission(data, right("644"))
    files.setPermission(log, right("700"))
    with pytest.raises(TailerSourceError, match=r"_delta_log.*: permission denied"):
        changes(spark, orders, startingVersion=0)
    files.setPermission(log, right("777"))
    files.rename(data, java.Path(f"{orders}/away"))
    refused(r"\[data_loss\] .*: the .*file is gone", tmp_path / "one")
    refused(r"\[data_loss\] .*: the data file is gone", tmp_path / "one", spark_reader="never")
    files.rename(java.Path(f"{orders}/away"), data)
    run_stream(spark, orders, tmp_path / "one", kept)
    assert sorted(row.id for row in kept.rows) == [0, 1, 2, 3, 4]


def test_a_namenode_that_is_gone_still_or_in_safe_mode_is_waited_for(
    spark: SparkSession, hdfs: Hdfs, orders: str, tmp_path: Path
) -> None:
    kept = Kept()

    def fails(table: str, said: str) -> None:
        with pytest.raises((PySparkException, TailerSourceError), match=said):
            run_stream(spark, table, tmp_path / "stream", kept)

    run_stream(spark, orders, tmp_path / "stream", kept)
    insert(spark, orders, 10)
    safe = spark.sparkContext._jvm.org.apache.hadoop.fs.SafeModeAction  # type: ignore[union-attr]
    files = hdfs.files(spark)
    files.setSafeMode(safe.ENTER)
    merge = mirror_into(f"{hdfs.url}/safe", "id", "app")
    with pytest.raises(TailerSourceError, match=r"\[transient\] .*safe mode"):
        merge(changes(spark, orders, startingVersion=0), 0)
    files.setSafeMode(safe.LEAVE)
    merge(changes(spark, orders, startingVersion=0), 0)
    # By another name, for Hadoop keeps its clients, each with the time-outs that it began with.
    for name, value in IMPATIENT.items():
        spark.conf.set(name, value)
    elsewhere = orders.replace("127.0.0.1", "localhost")
    with hdfs.still():
        fails(elsewhere, r"\[transient\] .*SocketTimeoutException")
    hdfs.stop()
    fails(orders, r"\[transient\] .*(Connection refused|EOFException)")
    hdfs.start()
    run_stream(spark, orders, tmp_path / "stream", kept)
    assert sorted(row.id for row in kept.rows) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.slow
def test_a_feed_on_a_cluster_is_read_by_the_driver(orders: str, tmp_path: Path) -> None:
    config = configured(tmp_path / "feeds", {"name": "orders", "table": orders})
    done = run_spark(config)
    assert done.returncode == 0, done.stderr
    assert len(lines(config, "orders")) == 5
