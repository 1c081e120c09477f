"""`tailer spark`: the feeds of a configuration on a cluster, against the daemon itself."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from pyspark.sql import SparkSession

from tailer.changes import Offset
from tailer.offsets.local import LocalOffsetStore
from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.golden.test_golden import GoldenCase
from tests.spark.cluster import JAVA_OPTIONS
from tests.spark.test_stream import SCHEMA, rows
from tests.support.components import SMALL_TABLES, free_port, java_major, require
from tests.support.feeds import position_of
from tests.support.programs import run_tailer, started, whole_lines
from tests.support.waiting import eventually

SPARK_S = 500.0
#: With it no Spark starts.
NO_SPARK = ("--conf", "spark.driver.memory=much")
# As short-lived as all processes of tests: no time for collectors and compilers.
CONFS = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.memory=1g",
    f"spark.driver.extraJavaOptions={JAVA_OPTIONS}",
    *(f"{name}={value}" for name, value in SMALL_TABLES.items()),
)

FEED = """
[feeds.{name}]
table = "{table}"
from = "{start}"
batch_rows_max = {rows}
{more}
[feeds.{name}.sink]
type = "jsonl"
path = "{name}.jsonl"
"""


def configured(folder: Path, *feeds: dict[str, Any]) -> Path:
    """A configuration in a folder of its own."""
    folder.mkdir(exist_ok=True)
    file = folder / "tailer.toml"
    text = "".join(
        FEED.format(**{"start": "earliest", "rows": 1000, "more": "", **feed}) for feed in feeds
    )
    file.write_text(f'[daemon]\nhttp = ""\n{text}')
    return file


def one_feed(folder: Path) -> Path:
    """A small table, and the configuration of the feed of it."""
    table = TableBuilder(folder / "orders", SCHEMA)
    table.create()
    table.insert(rows(1, 2))
    return configured(folder / "here", {"name": "o", "table": table.folder})


def run_spark(config: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`tailer spark` until all is read, by jobs alone."""
    confs = [part for conf in CONFS for part in ("--conf", conf)]
    command = [sys.executable, "-m", "tailer", "spark", str(config), "--available-now"]
    return subprocess.run(
        [*command, "--driver-bytes-max", "0", "--master", "local[2]", *confs, *more],
        capture_output=True, text=True, check=False, timeout=SPARK_S,
    )  # fmt: skip


def saved(config: Path, feed: str) -> Offset | None:
    """The feed's saved offset."""
    return anyio.run(LocalOffsetStore(config.parent / "state", feed).load)


def lines(config: Path, feed: str) -> list[bytes]:
    """The feed's output."""
    return whole_lines(config.parent / f"{feed}.jsonl")


def run_daemon(config: Path, feed: str, end: Offset) -> None:
    """The daemon, until its offset has come to that one."""
    with started("run", config) as daemon:
        eventually(
            lambda: (saved(config, feed) or Offset(0)).position >= end.position, why=lambda: daemon
        )
        daemon.stop()


@pytest.mark.timeout(600)
def test_a_run_that_is_done_waits_for_no_start_of_spark(tmp_path: Path) -> None:
    """The driver decodes what there is. Java ends when nobody waits for it any more."""
    require("Java 17 or newer", java_major() >= 17)
    config, name = one_feed(tmp_path), f"spark.app.name={tmp_path}"
    confs = [part for conf in (*CONFS, name) for part in ("--conf", conf)]
    command = ("spark", str(config), "--available-now", "--driver-bytes-max", "1", *confs)

    def is_java_gone() -> bool:
        found = psutil.process_iter(["pid", "cmdline"])
        return all(
            name not in (each.info["cmdline"] or ()) or each.pid == running.process.pid
            for each in found
        )

    with started(*command, "--master", "spark://127.0.0.1:1") as running:
        assert running.process.wait(SPARK_S) == 0
        eventually(is_java_gone)
    assert len(lines(config, "o")) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_lines_are_the_daemons_and_in_its_order(golden: GoldenCase, tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    names = ("cdf_dv", "rowtracking")
    feeds = [{"name": name, "table": golden(name).table} for name in names]
    feeds.append({"name": "rest", "table": golden("plain_dv").table, "start": "snapshot"})
    only = {"name": "only", "table": golden("cdf_dv").table, "more": 'operations = ["delete"]'}
    feeds.append(only)
    later = {"name": "later", "table": golden("cdf_dv").table, "start": "latest"}
    on_spark = configured(tmp_path / "spark", *feeds, later)
    ended = run_spark(on_spark)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for feed in feeds:
        name = str(feed["name"])
        alone = configured(tmp_path / f"daemon-{name}", feed)
        end = saved(on_spark, name)
        assert end is not None
        run_daemon(alone, name, end)
        assert lines(on_spark, name) == lines(alone, name), name
        assert str(saved(alone, name)) == str(end), name
    # Where nothing has come yet, the next start is this one's.
    assert position_of(saved(on_spark, "later")) == position_of(saved(on_spark, "cdf_dv"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_feed_moves_from_daemon_to_cluster_and_back(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert(rows(1, 2))
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder, "rows": 1})
    run_daemon(config, "orders", next_offset(table))
    table.insert(rows(3, 4, 5))
    ended = run_spark(config)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert position_of(saved(config, "orders")) == next_offset(table).position
    table.insert(rows(6))
    run_daemon(config, "orders", next_offset(table))
    assert [json.loads(line)["id"] for line in lines(config, "orders")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("news", "most"), [(0, "0"), (2, "1000000")], ids=["nothing", "little"])
def test_no_spark_is_started_without_need(news: int, most: str, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert(rows(1, 2))
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder})
    run_daemon(config, "orders", next_offset(table))
    for number in range(news):
        table.insert(rows(3 + number))
    done = run_tailer("spark", config, "--available-now", "--driver-bytes-max", most, *NO_SPARK)
    assert done.returncode == 0
    told = [line.split(" ", 2)[2] for line in done.stderr.splitlines()]
    assert told[0] == f"INFO feed orders following {table.folder}"
    assert f"1 feeds delivered {news} events" in told[1] or not news
    assert len(told) == 2
    assert done.stdout.startswith("orders: ")
    assert position_of(saved(config, "orders")) == next_offset(table).position
    found = [json.loads(line)["id"] for line in lines(config, "orders")]
    assert found == [1, 2, *range(3, 3 + news)]


def test_what_happens_is_logged_in_the_daemons_lines(tmp_path: Path) -> None:
    """With a sink that refuses each write, until they are asked to end."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert(rows(1, 2))
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder})
    text = config.read_text().replace('"orders.jsonl"', '"/dev/full"')
    config.write_text(text.replace("[daemon]", '[daemon]\nlog_format = "json"\nprogress_s = 1.0'))

    def logged(*command: str | Path) -> list[dict[str, Any]]:
        with started(*command) as running:

            def lines() -> list[dict[str, Any]]:
                found = [json.loads(line) for line in running.errors if line.startswith("{")]
                return [{**line, "time": ""} for line in found]

            eventually(lambda: any(line.get("event") == "trouble" for line in lines()), why=lines)
            assert running.stop() == 0
            return lines()

    daemon, spark = logged("run", config), logged("spark", config)
    for kind in ("following", "retrying", "trouble", "ended"):
        (wanted, *_), (found, *_) = (
            [line for line in some if line.get("event") == kind] for some in (daemon, spark)
        )
        assert set(found) == set(wanted)
        assert found["level"] == wanted["level"]
        if kind != "ended":
            assert found == wanted
    config.write_text(config.read_text().replace("[daemon]", '[daemon]\nlog_level = "warning"'))
    levels = {line["level"] for line in logged("spark", config)}
    assert levels == {"warning"}


@pytest.mark.timeout(600)
def test_what_is_much_needs_a_session(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder})
    table.insert(rows(1))
    failed = run_tailer("spark", config, "--available-now", "--driver-bytes-max", "0", *NO_SPARK)
    assert failed.returncode == 2
    told = failed.stdout.splitlines()[-1]
    assert told.startswith("orders: failed (")
    assert "Spark does not start (" in told
    assert "check --master and --conf" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_losses_patterns_and_failures_are_as_in_the_daemon(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    orders = with_a_lost_file(tmp_path / "orders")
    for name in ("a", "b", "c"):
        table = TableBuilder(tmp_path / "lake" / name, SCHEMA, cdf=True)
        table.create()
        table.insert(rows(1))
        table.insert(rows(2))
    (table.folder / table.actions()[-1]["add"]["path"]).unlink()
    feeds = [{"name": policy, "table": orders.folder} for policy in ("skip", "snapshot")]
    of_all = {"name": "all", "table": tmp_path / "lake" / "*"}
    on_spark = configured(tmp_path / "spark", *feeds, of_all)
    in_daemon = configured(tmp_path / "daemon", *feeds)
    for config in (on_spark, in_daemon):
        text = config.read_text().replace("all.jsonl", "{table}.jsonl")
        for policy in ("skip", "snapshot"):
            named = f"[feeds.{policy}]"
            text = text.replace(f"{named}\n", f'{named}\non_data_loss = "{policy}"\n')
        config.write_text(text)
    ended = run_spark(on_spark)
    assert ended.returncode == 3
    (failed,) = (line for line in ended.stdout.splitlines() if ": failed (" in line)
    assert failed.startswith("all/c: ")
    assert "the data file is gone" in failed
    assert {name: len(lines(on_spark, name)) for name in "abc"} == {"a": 2, "b": 2, "c": 1}
    run_daemon(in_daemon, "skip", next_offset(orders))
    run_daemon(in_daemon, "snapshot", next_offset(orders))
    for policy in ("skip", "snapshot"):
        # A daemon that is asked to end within a snapshot writes its notice again.
        assert lines(on_spark, policy) == [*dict.fromkeys(lines(in_daemon, policy))]
        assert str(saved(on_spark, policy)) == str(saved(in_daemon, policy))
        kept = {json.loads(line).get("id") for line in lines(on_spark, policy)}
        assert kept == {1, 2, 4, 5, None}  # a notice has none


def with_a_lost_file(folder: Path) -> TableBuilder:
    """A table whose version 2 has added a file that is no more."""
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    table.insert(rows(1, 2))
    table.insert(rows(3))
    lost = table.actions()[-1]
    table.insert(rows(4))
    table.commit(table.remove(lost))
    table.insert(rows(5))
    (table.folder / lost["add"]["path"]).unlink()
    return table


@pytest.mark.timeout(600)
def test_a_feed_that_has_failed_is_named_also_when_others_are_asked_to_end(
    tmp_path: Path,
) -> None:
    lost = with_a_lost_file(tmp_path / "lost")
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    feeds = [{"name": "lost", "table": lost.folder}, {"name": "orders", "table": table.folder}]
    config, port = configured(tmp_path / "here", *feeds), free_port()
    config.write_text(config.read_text().replace('http = ""', f'http = "127.0.0.1:{port}"'))

    def told() -> str:
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port)) as client:
            client.request("GET", "/readyz")
            return client.getresponse().read().decode()
        return ""

    with started("spark", config, *NO_SPARK) as running:
        eventually(lambda: "the data file is gone" in told(), why=told)
        assert running.stop() == 1
    assert any(line.startswith("tailer: feed lost: ") for line in running.errors)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_follows_until_it_is_asked_to_end(tmp_path: Path) -> None:
    require("Java 17 or newer", java_major() >= 17)
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder})
    confs = [part for conf in CONFS for part in ("--conf", conf)]
    jobs = ("--driver-bytes-max", "0", "--master", "local[2]", *confs)
    with started("spark", config, *jobs) as running:
        for number in range(3):
            table.insert(rows(number))
            eventually(
                lambda: (
                    (saved(config, "orders") or Offset(0)).position >= next_offset(table).position
                ),
                SPARK_S,
                lambda: running,
            )
        assert running.stop() == 0
    assert [json.loads(line)["id"] for line in lines(config, "orders")] == [0, 1, 2]


def next_offset(table: TableBuilder) -> Offset:
    """The offset behind the newest version."""
    return Offset(table.version + 1)


def test_an_offset_is_exported_to_a_query_and_imported_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert(rows(1, 2))
    config = configured(tmp_path / "here", {"name": "orders", "table": table.folder})
    run_daemon(config, "orders", next_offset(table))
    table.insert(rows(3))
    exported = run_tailer("offsets", "export", config, "orders").stdout.strip()
    spark.dataSource.register(TailerSource)
    frame = spark.readStream.format("tailer").option("startingOffset", exported)
    query = (
        frame.load(str(table.folder))
        .writeStream.format("memory")
        .queryName("moved")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert [row.id for row in spark.table("moved").collect()] == [3]
    moved = run_tailer(
        "offsets", "import", config, "orders", "--checkpoint", tmp_path / "checkpoint"
    )
    assert moved.returncode == 0, moved.stderr
    assert position_of(saved(config, "orders")) == next_offset(table).position
    refused = run_tailer("offsets", "import", config, "orders", "--checkpoint", tmp_path)
    assert refused.returncode == 1
    assert "the checkpoint has no committed batch" in refused.stderr
