"""Commands on tables and state on S3, going well and going wrong: none leaves anything open.

What is left behind shows in Python's development mode, and fails the test
(``tests/support/programs.py``).
"""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.tables import upload
from tests.support.programs import run_tailer, started

SINK = 'type = "jsonl"\npath = "{name}.jsonl"\n'


@dataclass
class Setting:
    """A configuration of feeds on S3, its state there too."""

    folder: Path
    bucket: Bucket
    daemon: str = 'http = ""\n'
    state: str = "state"

    @property
    def config(self) -> Path:
        return self.folder / "tailer.toml"

    def write(self, sink: str = SINK, **tables: str) -> Path:
        """The configuration with a feed for each table, by name."""
        options = self.bucket.options
        head = f'[daemon]\nstate = "{self.bucket.address(self.state)}"\n{self.daemon}[store.s3]\n'
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        feeds = "".join(
            f'[feeds.{name}]\ntable = "{table}"\nfrom = "earliest"\n'
            f"[feeds.{name}.sink]\n{sink.replace('{name}', name)}"
            for name, table in tables.items()
        )
        self.config.write_text(head + lines + feeds)
        return self.config


@pytest.fixture
def setting(bucket: Bucket, tmp_path: Path) -> Setting:
    table = TableBuilder(tmp_path / "source", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    anyio.run(upload, table.folder, bucket, "orders")
    found = Setting(tmp_path, bucket)
    found.write(orders=bucket.address("orders"))
    return found


def test_offsets_and_checks_close_what_they_open(setting: Setting) -> None:
    done = run_tailer("check", setting.config)
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders: ok, " in done.stdout
    for action, *more in (["set", "--from", "1"], ["show"], ["reset"]):
        done = run_tailer("offsets", action, setting.config, "orders", *more)
        assert done.returncode == 0, done.stderr
    done = run_tailer("offsets", "set", setting.config, "orders", "--from", "77")
    assert done.returncode == 1
    assert "the start is version 77, and the newest is 1" in done.stderr
    done = run_tailer("offsets", "show", setting.config, "nobody")
    assert (done.returncode, "has no feed 'nobody'" in done.stderr) == (2, True)


def test_a_check_that_fails_closes_what_it_opened(setting: Setting) -> None:
    place = setting.bucket.address
    setting.write(orders=place("orders"), gone=place("nothing"), away="s3://no-such-bucket-here/t")
    done = run_tailer("check", setting.config)
    assert done.returncode == 1
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert found["orders"].startswith("ok, ")
    assert "no Delta table" in found["gone"] or "no table" in found["gone"], found["gone"]
    assert "no-such-bucket-here" in found["away"]
    setting.write('type = "jsonl"\npath = "/proc/none/x"\n', orders=place("orders"))
    done = run_tailer("check", setting.config)
    assert done.returncode == 1
    assert "/proc/none" in done.stdout


@pytest.mark.parametrize("case", ["port", "pattern", "state", "sink", "table"])
def test_a_daemon_that_cannot_start_closes_what_it_opened(setting: Setting, case: str) -> None:
    table, sink, sentence = setting.bucket.address("orders"), SINK, ""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        match case:
            case "port":
                setting.daemon = f'http = "127.0.0.1:{taken.getsockname()[1]}"\n'
                sentence = "can't be served"
            case "pattern":
                table, sentence = "hdfs://lake/*/", "no store for 'hdfs://lake/*/'"
                sink = SINK.replace("{name}", "{table}")
            case "state":
                setting.bucket = Bucket("no-such-bucket-here", setting.bucket.url)
                sentence = "no-such-bucket-here"
            case "sink":
                sink, sentence = 'type = "jsonl"\npath = "/proc/none/x"\n', "/proc/none"
            case "table":
                table, sentence = setting.bucket.address("nothing"), "nothing"
        setting.write(sink, orders=table)
        done = run_tailer("run", setting.config)
    assert done.returncode == (2 if case == "pattern" else 1), done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_stopped_closes_what_it_opened(setting: Setting, number: int) -> None:
    setting.write(one=setting.bucket.address("orders"), two=setting.bucket.address("orders"))
    with started("run", setting.config) as program:
        program.wait_until(lambda: sum(" following " in e for e in program.errors) == 2)
        assert program.stop(signal.Signals(number)) == 0
