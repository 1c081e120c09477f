"""`tailer offsets` where the sink, and not the daemon's state, says where a feed goes on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.sinks import fresh
from tests.kafka.topics import events
from tests.support.programs import run_tailer, started


def test_an_offset_that_is_set_is_the_one_that_the_feed_goes_by(
    kafka: Broker, tmp_path: Path
) -> None:
    topic = fresh()
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for number in (1, 2, 3):
        table.insert([{"id": number}])
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.{topic}]\ntable = "orders"\nfrom = "earliest"\n'
        f'[feeds.{topic}.sink]\ntype = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\n'
        f'topic = "{topic}"\n'
    )

    def run_until(count: int) -> list[int]:
        with started("run", config) as program:
            program.wait_for(lambda: len(events(kafka.bootstrap, topic)) >= count)
            assert program.stop() == 0
        return [row["id"] for row in events(kafka.bootstrap, topic)]

    assert run_until(3) == [1, 2, 3]
    answer = run_tailer("offsets", "set", config, topic, "--from", "3")
    assert answer.returncode == 0, answer.stderr
    assert run_until(4) == [1, 2, 3, 3]
