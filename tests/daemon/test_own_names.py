"""A table whose columns have the names that outputs give to columns of their own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.cli.main import main
from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble_feed
from tailer.errors import UnsupportedTable
from tailer.feed.run import run_feed
from tailer.testing.table import TableBuilder

pytestmark = pytest.mark.anyio
Capture = pytest.CaptureFixture[str]

MINE = "the table's own"
LOG, BY_ROW_ID = {"mode": "log"}, {"mode": "mirror"}
#: The sinks of files, and the names of columns of their own.
SINKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "jsonl": ({"ids": "all"}, ("_event_id", "_origin", "_row_id", "_notice")),
    "files": ({}, ("_event_id",)),
    "sqlite": (LOG, ("_event_id", "_EVENT_ID", "_seq")),
    "duckdb": (LOG, ("_event_id", "_Event_Id")),
    "delta": (LOG, ("_event_id", "_EVENT_id")),
    "sqlite by row id": (BY_ROW_ID, ("_row_id", "_ROW_ID")),
    "duckdb by row id": (BY_ROW_ID, ("_row_id",)),
    "delta by row id": (BY_ROW_ID, ("_row_id",)),
}
CASES = [(sink, name) for sink, (_, names) in SINKS.items() for name in names]
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_r",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_c",
}


def table_with(folder: Path, *columns: str) -> TableBuilder:
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in columns)])
    table = TableBuilder(folder / "orders", schema, properties=TRACKED)
    features = ["rowTracking", "domainMetadata"]
    table.commit(table.protocol(1, 7, writerFeatures=features), table.metadata())
    rows = [{"id": 1, **dict.fromkeys(columns, MINE)}]
    table.commit(table.add(rows, baseRowId=0, defaultRowCommitVersion=1))
    return table


def configured(folder: Path, sink: str, more: str = "", **options: Any) -> Path:
    kind = sink.partition(" ")[0]
    given = {"type": kind, "path": "out", **SINKS[sink][0], **options}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    config = folder / "tailer.toml"
    config.write_text(
        '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "snapshot"\n'
        f'change_source = "derived"\n{more}[feeds.orders.sink]\n' + "\n".join(lines)
    )
    return config


async def run(config: Path, last: int = 1) -> None:
    loaded = load_config(config)
    await run_feed(replace(assemble_feed(loaded, loaded.feeds["orders"]), last=last))


def rows_in(target: Path, sink: str) -> list[dict[str, Any]]:
    kind = sink.partition(" ")[0]
    if kind == "jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        return [line for line in lines if "tailer_notice" not in line]
    if kind == "files":
        return [row for f in target.glob("*.parquet") for row in pq.read_table(f).to_pylist()]
    if kind == "delta":
        return deltalake.DeltaTable(str(target)).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]
    opened: Any = sqlite3.connect(target) if kind == "sqlite" else duckdb.connect(target)
    with closing(opened) as database:
        found = database.execute("SELECT * FROM orders")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.mark.parametrize(("sink", "name"), CASES)
async def test_it_is_refused_by_name_before_anything_is_made(
    tmp_path: Path, sink: str, name: str
) -> None:
    table_with(tmp_path, name)
    config = configured(tmp_path, sink)
    with pytest.raises(UnsupportedTable, match=f"orders, version 1: .* a column '{name}'"):
        await run(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("sink", "name"), CASES)
async def test_ours_may_have_other_names(tmp_path: Path, sink: str, name: str) -> None:
    table_with(tmp_path, name)
    await run(configured(tmp_path, sink, own_prefix="tailer_"))
    (row,) = rows_in(tmp_path / "out", sink)
    assert row[name] == MINE
    if name.lower() not in ("_seq", "_notice"):
        assert row[f"tailer{name.lower()}"] not in (None, MINE)


async def test_the_column_may_be_left_out(tmp_path: Path) -> None:
    table_with(tmp_path, "_event_id")
    await run(configured(tmp_path, "sqlite", 'select = ["id"]\n'))
    (row,) = rows_in(tmp_path / "out", "sqlite")
    assert row["id"] == 1
    assert row["_event_id"] != MINE


@pytest.mark.parametrize("sink", ["sqlite by row id", "duckdb by row id", "delta by row id"])
async def test_a_key_may_have_the_name_of_ours(tmp_path: Path, sink: str) -> None:
    table_with(tmp_path, "_row_id")
    await run(configured(tmp_path, sink, key=["_row_id"]))
    assert rows_in(tmp_path / "out", sink) == [{"id": 1, "_row_id": MINE}]


def test_check_says_so(tmp_path: Path, capsys: Capture) -> None:
    table_with(tmp_path, "_seq")
    assert main(["check", str(configured(tmp_path, "sqlite"))]) == 1
    assert "a column '_seq'" in (found := capsys.readouterr().out)
    assert "own_prefix" in found
    assert main(["check", str(configured(tmp_path, "sqlite", own_prefix="tailer_"))]) == 0


def test_a_prefix_that_is_no_name_is_refused(tmp_path: Path, capsys: Capture) -> None:
    table_with(tmp_path)
    assert main(["check", str(configured(tmp_path, "sqlite", own_prefix="a b"))]) == 2
    assert "own_prefix" in capsys.readouterr().err


async def test_a_column_that_comes_later_stops_the_feed_before_it_and_parks_no_row(
    tmp_path: Path,
) -> None:
    table = table_with(tmp_path)
    config = configured(tmp_path, "sqlite", 'on_reject = "park"\n')
    await run(config)
    table.schema = pa.schema([*table.schema, ("_event_id", pa.string())])
    more = [{"id": 2, "_event_id": MINE}]
    table.commit(table.metadata(), table.add(more, baseRowId=1, defaultRowCommitVersion=2))
    with pytest.raises(UnsupportedTable, match=r"orders, version 2: .* a column '_event_id'"):
        await run(config, last=2)
    assert [row["id"] for row in rows_in(tmp_path / "out", "sqlite")] == [1]
    assert not (tmp_path / "state" / "orders.parked.jsonl").exists()


@pytest.mark.parametrize("output", ["-", "out.jsonl", "out.parquet", "out.arrow"])
@pytest.mark.parametrize("name", ["_event_id", "_origin", "_row_id"])
def test_a_bounded_read_refuses_it_too(
    tmp_path: Path, capsys: Capture, output: str, name: str
) -> None:
    table_with(tmp_path, name)
    file = output if output == "-" else str(tmp_path / output)
    read = ["read", str(tmp_path / "orders"), "--from", "1", "--output", file]
    assert main([*read, "--with-ids"]) == 1
    assert f"a column '{name}'" in capsys.readouterr().err
    assert not (tmp_path / output).exists()
    assert main([*read, "--with-ids", "--select", "id"]) == 0
    assert main([*read, "--with-ids", "--own-prefix", "tailer_"]) == 0
    assert main(read) == 0


def test_tail_refuses_it_too(tmp_path: Path, capsys: Capture) -> None:
    table_with(tmp_path, "_origin")
    tail = ["tail", str(tmp_path / "orders"), "--from", "earliest", "--to", "1"]
    assert main([*tail, "--with-ids"]) == 1
    assert "a column '_origin'" in capsys.readouterr().err
    assert main([*tail, "--with-ids", "--own-prefix", "tailer_"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["_origin"], row["tailer_origin"]) == (MINE, "files")


@pytest.mark.parametrize(("sink", "name"), [("sqlite", "a\0b"), ("duckdb", "a\0b")])
def test_check_names_a_table_that_the_database_does_not_take(
    tmp_path: Path, capsys: Capture, sink: str, name: str
) -> None:
    table_with(tmp_path)
    assert main(["check", str(configured(tmp_path, sink, table=name))]) == 1
    assert r"the name 'a\x00b' has the character NUL" in capsys.readouterr().out
