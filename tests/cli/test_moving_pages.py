"""docs/replace.md and docs/use-cases.md: their configurations and commands, run as they stand."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.config.feeds import load_config
from tailer.daemon.assembly import make_feed_sink
from tailer.testing.table import TableBuilder
from tests.cli.test_checkpoint import checkpoint, place
from tests.support.pages import Block, blocks
from tests.support.programs import run_tailer, started, whole_lines
from tests.support.waiting import eventually

#: The columns of all the pages' tables.
SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()), ("item", pa.string()), ("country", pa.string()),
        ("customer_id", pa.int64()), ("score", pa.float64()), ("sku", pa.string()),
        ("price", pa.float64()), ("id", pa.int64()), ("title", pa.string()), ("body", pa.string()),
        ("published", pa.bool_()),
    ]
)  # fmt: skip
LAST = 50
USES = blocks("docs/use-cases.md", "toml")


def row(number: int) -> dict[str, Any]:
    return {"order_id": number, "item": "plums", "country": ("DE", "FR")[number % 2]}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableBuilder:
    """The pages' table, in the current folder: each version has added three files of a row."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    found.create()
    for version in range(1, LAST + 1):
        found.commit(*(found.add([row(3 * version + at)]) for at in range(3)))
    return found


def configured(block: Block, table: TableBuilder) -> Path:
    """A configuration of the page, of the test's table."""
    (feed,) = tomllib.loads(block.text)["feeds"].values()
    text = block.text.replace(feed["table"], str(table.folder))
    file = Path("tailer.toml")
    file.write_text(f'[daemon]\nhttp = ""\n{text}')
    return file


def ok(*words: str) -> str:
    done = run_tailer(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def here(block: Block, table: TableBuilder) -> list[list[str]]:
    """The commands of a block, where its table and its checkpoint are the test's."""
    text = block.text.replace("/data/orders", str(table.folder)).replace("/data/", "")
    return replace(block, text=text).commands


@pytest.mark.parametrize("block", USES, ids=lambda block: block.lines[0].strip("[]"))
def test_a_use_is_a_whole_configuration(block: Block, table: TableBuilder) -> None:
    config = load_config(configured(block, table))
    (feed,) = config.feeds.values()
    sink = make_feed_sink(config, feed)
    if feed.sink.type in ("duckdb", "files", "jsonl", "delta", "sqlite"):
        _, run, *_ = here(blocks("docs/use-cases.md", "sh")[0], table)
        ok(*run, "--once")
    match feed.sink.type:
        case "duckdb":
            with duckdb.connect("lake.duckdb", read_only=True) as copy:
                assert copy.sql("FROM orders").fetchall()[0][1] == "plums"
        case "files":
            rows = [row for file in Path("changes").rglob("*.parquet")
                    for row in pq.ParquetFile(file).read().to_pylist()]  # fmt: skip
            assert len(rows) == 3 * LAST
        case "jsonl":
            events = [json.loads(line) for line in whole_lines(Path("audit.jsonl"))]
            assert {event["item"] for event in events if "item" in event} == {"[redacted]"}
            assert all("_row_id" in event for event in events if "item" in event)
        case "sqlite":
            with closing(sqlite3.connect("history.sqlite")) as lite:
                current = "SELECT count(*) FROM orders WHERE _to_version IS NULL"
                assert lite.execute(current).fetchall() == [(3 * LAST,)]
        case "delta":
            copy = deltalake.DeltaTable("replica").to_pyarrow_table()
            assert set(copy["country"].to_pylist()) == {"DE"}
            ((verify,),) = [here(b, table) for b in blocks("docs/use-cases.md", "sh")[2:]]
            assert "rows in the mirror: exact" in ok(*verify)
        case other:
            assert other in ("postgres", "redis", "http", "kafka", "search")
            assert sink is not None


def test_the_nightly_job_reads_a_range(table: TableBuilder) -> None:
    nightly = next(block for block in USES if 'type = "files"' in block.text)
    configured(nightly, table)
    run, read = here(blocks("docs/use-cases.md", "sh")[1], table)
    ok(*run)
    ok(*read)
    assert set(pq.read_table("changes.parquet")["_commit_version"].to_pylist()) == {*range(10, 21)}


def test_a_feed_takes_over_and_gives_back_as_the_page_says(table: TableBuilder) -> None:
    stream, _ = blocks("docs/replace.md", "toml")
    take_over, back, *_ = blocks("docs/replace.md", "sh")
    config = configured(stream, table)
    checkpoint(Path("checkpoints/orders"), place(18, 1, reservoirId=table.table_id))
    imported, checked, run = here(take_over, table)
    assert "version 18, after the 2 files of it" in ok(*imported)
    ok(*checked)
    with started(*run) as daemon:
        eventually(lambda: len(sent()) == 1 + 3 * (LAST - 18), why=lambda: daemon)
        daemon.stop()
    once, show = here(back, table)
    ok(*once)
    shown = run_tailer(*show)
    assert json.loads(shown.stdout)["offset"]["version"] == LAST + 1
    assert sent()[0]["order_id"] == 3 * 18 + 2
    assert config.exists()


def sent() -> list[dict[str, Any]]:
    """The events of the page's feed."""
    file = Path("orders.jsonl")
    lines = whole_lines(file) if file.exists() else []
    return [event for event in map(json.loads, lines) if "order_id" in event]


def test_a_loop_is_replaced_from_its_version_on(table: TableBuilder) -> None:
    configured(blocks("docs/replace.md", "toml")[0], table)
    given, once = here(blocks("docs/replace.md", "sh")[2], table)
    ok(*given)
    ok(*once)
    assert {event["_commit_version"] for event in sent()} == {*range(42, LAST + 1)}


def test_a_copy_is_built_beside_the_old_target(table: TableBuilder) -> None:
    configured(blocks("docs/replace.md", "toml")[1], table)
    once, verify = here(blocks("docs/replace.md", "sh")[3], table)
    ok(*once)
    assert "rows in the mirror: exact" in ok(*verify)
