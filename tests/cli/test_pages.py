"""Pages whose commands a user runs one after the other: run as they stand, in an empty folder."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.pages import Block, blocks
from tests.support.programs import run_tailer, started, whole_lines
from tests.support.waiting import eventually

SCHEMA = pa.schema([("order_id", pa.int64()), ("item", pa.string()), ("country", pa.string())])
LAST = 20


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableBuilder:
    """The pages' table, with twenty versions of a row each. The current folder is the test's."""
    monkeypatch.chdir(tmp_path)
    found = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    found.create()
    for number in range(1, LAST + 1):
        found.insert([{"order_id": number, "item": "plums", "country": "DE"}])
    return found


def commands(block: Block, table: TableBuilder) -> list[list[str]]:
    """The commands of `tailer` in a block, where its table is the test's."""
    return replace(block, text=block.text.replace("/data/orders", str(table.folder))).commands


def ok(*arguments: str) -> str:
    done = run_tailer(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), arguments
    return done.stdout


def config(text: str, table: TableBuilder) -> None:
    """The configuration of a page as `tailer.toml`, with the test's table and a free port."""
    text = text.replace("/data/orders", str(table.folder)).replace(
        "/lake/orders", str(table.folder)
    )
    Path("tailer.toml").write_text(text.replace("9464", str(free_port())))


def test_getting_started_on_a_table_of_your_own(table: TableBuilder) -> None:
    shown = commands(blocks("docs/getting-started.md", "sh")[0], table)
    history, follow, copy, read, snapshot, verify = shown
    assert len(ok(*history).splitlines()) > LAST
    assert len(ok(*copy, "--to", str(LAST)).splitlines()) == LAST
    ok(*read)
    assert pq.read_table("changes.parquet")["order_id"].to_pylist() == [*range(10, 21)]
    ok(*snapshot)
    with pa.ipc.open_file("rows.arrow") as file:
        assert file.read_all().num_rows == LAST
    assert "exact" in ok(*verify)
    with started(*follow) as program:

        def followed() -> bool:
            table.insert([{"order_id": 815, "item": "figs", "country": "FR"}])
            return bool(program.lines)

        eventually(followed, why=lambda: program)
        assert {event["order_id"] for event in program.events} == {815}
        program.stop(signal.SIGINT)  # Ctrl-C


def test_getting_started_with_the_daemon(table: TableBuilder) -> None:
    daemon, mirror, _ = blocks("docs/getting-started.md", "toml")
    shown = commands(blocks("docs/getting-started.md", "sh")[1], table)
    check, run, show, to_twelve, reset, sinks, spark = shown
    assert spark == ["spark", "tailer.toml"]  # a test of Spark's runs it
    config(daemon.text, table)
    assert ok(*check).startswith("orders: ok")
    with started(*run) as program:
        eventually(lambda: len(whole_lines(Path("orders.jsonl"))) == LAST, why=lambda: program)
        assert program.stop() == 0
    assert json.loads(ok(*show))["version"] == LAST + 1
    assert run_tailer(*to_twelve).stderr == "the offset of orders is set\n"
    assert json.loads(ok(*show))["version"] == 12
    assert run_tailer(*reset).returncode == 0
    assert ok(*show) == "none\n"
    assert "duckdb" in run_tailer(*sinks).stdout
    # The page's second sink in the place of its first.
    config(daemon.text.partition("[feeds.orders.sink]")[0] + mirror.text, table)
    with started(*run) as program:
        eventually(partial(_rows, "lake.duckdb"), why=lambda: program)
        assert program.stop() == 0
    assert "exact" in ok("verify", "tailer.toml", "orders")


def _rows(path: str) -> bool:
    try:
        with duckdb.connect(path, read_only=True) as database:
            return database.sql("FROM orders").fetchall() == [
                (number, "plums", "DE") for number in range(1, LAST + 1)
            ]
    except duckdb.Error:  # the daemon holds it, or has not made it
        return False


def test_getting_started_from_python(table: TableBuilder) -> None:
    (block,) = blocks("docs/getting-started.md", "python")
    names: dict[str, object] = {}
    exec(block.text.replace("/data/orders", str(table.folder)), names)  # noqa: S102  # our own page
    assert names["version"] == LAST


def test_the_sinks_are_listed() -> None:
    whole, one, as_json = blocks("docs/sinks/README.md", "sh")[0].commands
    listed = [json.loads(line) for line in run_tailer(*as_json).stdout.splitlines()]
    assert {"jsonl", "kafka", "duckdb"} <= {each["type"] for each in listed}
    assert all(each["type"] in run_tailer(*whole).stdout for each in listed[:3])
    assert "path" in run_tailer(*one).stdout


def test_the_configuration_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = pa.schema(
        [(name, pa.string()) for name in ("id", "email", "phone", "note", "country")]
    )
    table = TableBuilder(tmp_path / "orders", schema, cdf=True, partition_by=["country"])
    table.create()
    row = {"email": "a@b", "phone": "+49", "note": "secret"}
    table.commit(
        *(table.add([{"id": land} | row], partition={"country": land}) for land in ("DE", "IT"))
    )
    (block,) = blocks("docs/configuration.md", "toml")
    monkeypatch.setenv("TAILER_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("MASK_KEY", "a key of more than sixteen bytes")
    config(block.text, table)
    with started("run", "tailer.toml") as program:
        eventually(lambda: len(whole_lines(Path("orders.jsonl"))) == 3, why=lambda: program)
        assert program.stop() == 0, str(program)
    begin, event, end = map(json.loads, whole_lines(Path("orders.jsonl")))
    assert (begin["_notice"], end["_notice"]) == ("snapshot_begin", "snapshot_end")
    assert (event["id"], event["country"], "phone" in event) == ("DE", "DE", False)
    assert event["email"] not in ("a@b", event["note"])
    assert event["note"] != "secret"
