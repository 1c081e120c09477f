"""The feeds to Kafka that pages show: each reaches the broker by `tailer check`, and that of
docs/kafka.md delivers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.errors import ConfigError
from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.support.pages import blocks
from tests.support.programs import run_tailer, started
from tests.support.topic_records import read_topic
from tests.support.waiting import eventually

PAGES = {
    "docs/connect.md": "orders",
    "docs/consumers.md": "orders",
    "docs/flink.md": "orders",
    "docs/getting-started.md": "lake.{feed}",
    "docs/kafka.md": "lake.{feed}",
}

FEED = '[feeds.orders]\ntable = "orders"\nfrom = "earliest"\n'


def count(kafka: Broker, topic: str) -> int:
    """The records of a topic; none before the sink has made it."""
    with suppress(ConfigError):
        return len([*read_topic(kafka.bootstrap, topic)])
    return 0


@pytest.mark.parametrize("page", PAGES)
def test_a_page_s_feed_reaches_the_broker(page: str, kafka: Broker, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    if page == "docs/getting-started.md":
        table.schema = pa.schema([("order_id", pa.int64())])
    table.create()
    table.insert([{table.schema.names[0]: number} for number in range(3)])
    (block,) = (each for each in blocks(page, "toml") if '"kafka"' in each.text)
    text = block.text if "[feeds.orders]" in block.text else f"{FEED}{block.text}"
    topic = fresh()
    config = tmp_path / "tailer.toml"
    for shown, here in {
        '"/lake/orders"': '"orders"',
        '"lake/orders"': '"orders"',
        "[feeds.orders": f"[feeds.{topic}",  # the sink's progress is kept by the feed's name
        "127.0.0.1:9092": kafka.bootstrap,
        "localhost:9092": kafka.bootstrap,
        f'topic = "{PAGES[page]}': f'topic = "{topic}',
    }.items():
        text = text.replace(shown, here)
    assert topic in text
    config.write_text(f'[daemon]\nhttp = ""\n{text}')
    done = run_tailer("check", config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{topic}: ok" in done.stdout
    if page == "docs/kafka.md":
        check, run = next(iter(blocks(page, ""))).commands
        assert (check, run) == (["check", "tailer.toml"], ["run", "tailer.toml"])
        with started("run", config) as program:
            eventually(lambda: count(kafka, topic) == 3, why=lambda: program)
            assert program.stop() == 0
