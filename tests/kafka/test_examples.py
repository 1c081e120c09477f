"""The examples of docs/consumers.md, each run as a user would."""

from __future__ import annotations

import datetime as dt
import json
import os
import runpy
import sqlite3
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import deliver, history_table, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.kafka.topics import create_topic
from tests.support.source import ROOT
from tests.support.topic_records import read_topic

EXAMPLES = ROOT / "docs" / "examples"


def run(name: str, *arguments: str, status: int = 0, **environment: str) -> list[str]:
    """The lines that an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, **environment},
    )
    assert done.returncode == status, done.stderr[-4000:]
    return done.stdout.splitlines()


def delivered(kafka: Broker, folder: Path, kind: str) -> tuple[TableBuilder, str]:
    table, topic = history_table(folder, duplicates=False), fresh()
    create_topic(kafka.bootstrap, topic, 2)
    sink = made(kafka.bootstrap, topic, format=kind, key=["id"], tombstones=True)
    anyio.run(deliver, table, sink)
    return table, topic


def test_kafka_python_prints_every_change(kafka: Broker, tmp_path: Path) -> None:
    _, topic = delivered(kafka, tmp_path, "rows")
    lines = run("consume_kafka_python.py", kafka.bootstrap, topic, "--once")
    assert len(lines) == 13
    assert "2 update_postimage {'id': 1, 'v': 'b', 'n': None}" in lines
    assert "2 delete {'id': 4, 'v': 'a', 'n': None}" in lines
    assert "1 insert {'id': 3, 'v': 'a', 'n': Decimal('1.500')}" in lines


def test_the_snippet_shows_the_events_when_it_is_pasted(kafka: Broker, tmp_path: Path) -> None:
    _, topic = delivered(kafka, tmp_path, "rows")
    text = (ROOT / "docs" / "kafka.md").read_text()
    snippet = text.partition("```python\n")[2].partition("```")[0]
    program = snippet.replace("127.0.0.1:9092", kafka.bootstrap).replace("lake.orders", topic)
    file = tmp_path / "snippet.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    there = list(read_topic(kafka.bootstrap, topic))
    assert len(there) > 13, "all changes, and a tombstone"
    assert len(done.stdout.splitlines()) == len(there), done.stdout


def test_confluent_prints_what_became_of_each_row(kafka: Broker, tmp_path: Path) -> None:
    _, topic = delivered(kafka, tmp_path, "debezium")
    group = fresh("group")
    lines = run("consume_confluent.py", kafka.bootstrap, topic, group, "--once")
    assert sorted(line.split()[1] for line in lines) == sorted("ccccuddcucc")
    updated = "2 u {'id': 1, 'v': 'a', 'n': None} {'id': 1, 'v': 'b', 'n': None}"
    assert updated in lines
    assert run("consume_confluent.py", kafka.bootstrap, topic, group, "--once") == []


def test_sqlite_has_the_table_also_after_a_restart(kafka: Broker, tmp_path: Path) -> None:
    table, topic = delivered(kafka, tmp_path, "debezium")
    path = str(tmp_path / "copy.db")
    for _ in range(2):
        run("upsert_sqlite.py", kafka.bootstrap, topic, path, "--once")
        with sqlite3.connect(path) as database:
            rows = [json.loads(row) for (row,) in database.execute("SELECT row FROM copy")]
        database.close()
        # A consumer that keeps what it was given has old names for rows that nobody touched since.
        values = [(row["id"], row.get("value", row.get("v"))) for row in rows]
        assert sorted(values) == sorted((row["id"], row["value"]) for row in snapshot_rows(table))


def test_a_topic_is_proved_and_a_repeated_event_is_found(kafka: Broker, tmp_path: Path) -> None:
    fields = [("id", pa.int64()), ("n", pa.decimal128(20, 3)), ("t", pa.timestamp("us", "UTC"))]
    table = TableBuilder(tmp_path / "orders", pa.schema(fields), cdf=True)
    table.create()
    row = {"id": 2**60, "n": Decimal("1.500"), "t": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    added = table.add([row, row, {"id": 2, "n": None, "t": None}])
    table.commit(added)
    table.commit(*table.delete_rows(added, [2]))
    topic = create_topic(kafka.bootstrap, fresh(), 2)
    anyio.run(deliver, table, made(kafka.bootstrap, topic))
    arguments = ("verify_topic.py", str(table.folder), kafka.bootstrap, topic)
    assert run(*arguments) == ["version 2: exact"]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, next(m.value for m in read_topic(kafka.bootstrap, topic)))
    producer.flush(20)
    *wrong, verdict = run(*arguments, status=1)
    assert verdict == "version 2: not exact"
    assert [line.split()[0] for line in wrong] == ["+1"]


@pytest.mark.slow  # of Spark and Kafka at once
def test_spark_reads_the_rows_with_from_json(
    kafka: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    _, topic = delivered(kafka, tmp_path, "rows")
    example = runpy.run_path(str(EXAMPLES / "spark_from_json.py"))
    records = [(m.key, m.value) for m in read_topic(kafka.bootstrap, topic)]
    frame = spark.createDataFrame(records, "key BINARY, value BINARY")
    found = example["changes"](frame, "id BIGINT, v STRING, n DECIMAL(20,3)").collect()
    assert len(found) == 13
    kinds = {(row.id, row.v, row.n, row._change_type, row._commit_version) for row in found}
    assert (3, "a", Decimal("1.500"), "insert", 1) in kinds
    assert all(row._commit_timestamp is not None for row in found)
