"""What the real programs say of what is wrong, to whoever runs them: a sentence, an exit status,
and the offset where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import RENAMED, history_table
from tests.kafka.sinks import fresh
from tests.kafka.topics import create_topic, events
from tests.support.programs import run_tailer, started
from tests.support.registry import Registry

pytestmark = pytest.mark.timeout(600)


def orders(folder: Path) -> TableBuilder:
    """Versions 1 to 3 insert a row each."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = TableBuilder(folder / "orders", schema, cdf=True)
    table.create()
    for number in (1, 2, 3):
        table.insert([{"id": number, "name": "x" * (6000 if number == 3 else 1)}])
    return table


def configured(folder: Path, bootstrap: str, topic: str, **options: Any) -> Path:
    """A configuration of one feed; a dict among the options is a table of its own."""
    settings = {"bootstrap_servers": bootstrap, "topic": topic, **options}
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    lines = ['[daemon]\nhttp = ""', "[feeds.orders]", 'table = "orders"', 'from = "earliest"']
    lines += ["[feeds.orders.sink]", 'type = "kafka"']
    lines += [f'progress_topic = "{topic}-progress"', f'transactional_id = "{topic}-writer"']
    lines += [f"{key} = {json.dumps(settings[key])}" for key in settings if key not in tables]
    for name, table in tables.items():
        lines += [f"[feeds.orders.sink.{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    path = folder / "tailer.toml"
    path.write_text("\n".join(lines))
    return path


def stopped(config: Path, said: str, version: int | None) -> None:
    """The daemon ends with status 1 and one sentence, and its offset is at ``version``."""
    done = run_tailer("run", config)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tailer: feed orders: ")
    assert said in last
    assert "Traceback" not in done.stderr
    saved = config.parent / "state" / "orders.offset.json"
    found = json.loads(saved.read_text())["offset"]["version"] if saved.exists() else None
    assert found == version


def checked(config: Path, said: str, status: int) -> None:
    """`tailer check` says so beforehand."""
    done = run_tailer("check", config)
    assert done.returncode == status
    assert said in done.stdout + done.stderr


def test_a_topic_that_is_missing(kafka: Broker, tmp_path: Path) -> None:
    orders(tmp_path)
    topic = fresh()
    create_topic(kafka.bootstrap, f"{topic}-progress", cleanup_policy="compact")
    config = configured(tmp_path, kafka.bootstrap, topic, create_topics=False)
    said = f"there is no topic {topic} at {kafka.bootstrap}, and create_topics is false; create it"
    checked(config, said, 1)
    stopped(config, said, None)


def test_a_row_that_is_too_large(kafka: Broker, tmp_path: Path) -> None:
    orders(tmp_path)
    topic = create_topic(kafka.bootstrap, fresh(), max_message_bytes="5000")
    config = configured(tmp_path, kafka.bootstrap, topic)
    stopped(config, f"an event of version 3 is too large for the topic {topic}: about 6", 3)
    assert [row["id"] for row in events(kafka.bootstrap, topic)] == [1, 2]


def test_a_key_column_that_does_not_exist(kafka: Broker, tmp_path: Path) -> None:
    orders(tmp_path)
    config = configured(tmp_path, kafka.bootstrap, fresh(), key=["nr"])
    checked(config, "feeds.orders.sink.key names 'nr', and the feed's columns are: id, name", 2)
    stopped(config, "version 1: the key column 'nr' does not exist in this version", 1)


def test_a_key_column_with_a_new_name(kafka: Broker, tmp_path: Path) -> None:
    history_table(tmp_path, duplicates=False)  # its version 3 renames the column
    topic = fresh()
    config = configured(tmp_path, kafka.bootstrap, topic, key=["id", "v"])
    checked(config, f"names 'v', and the feed's columns are: id, {RENAMED}, n", 2)
    stopped(config, "version 4: the key column 'v' does not exist in this version", 4)
    versions = {row["_commit_version"] for row in events(kafka.bootstrap, topic)}
    assert versions == {1, 2}, "what came before is there"


@pytest.mark.needs("registry")
def test_a_registry_that_refuses(kafka: Broker, registry: Registry, tmp_path: Path) -> None:
    orders(tmp_path)
    topic = fresh()
    own = {"url": registry.url, "auto_register": False}
    config = configured(tmp_path, kafka.bootstrap, topic, format="avro", registry=own)
    stopped(config, f"{topic}-value", 1)


def test_a_registry_that_is_away_is_waited_for(kafka: Broker, tmp_path: Path) -> None:
    orders(tmp_path)
    own = {"url": "http://127.0.0.1:9"}
    config = configured(tmp_path, kafka.bootstrap, fresh(), format="avro", registry=own)
    said = "feed orders tries again: the schema registry at http://127.0.0.1:9: nothing listens"
    with started("run", config) as program:
        program.wait_until(lambda: any(said in line for line in program.errors))
        assert program.stop() == 0
