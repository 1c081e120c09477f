"""docs/history.md: its configuration, commands and queries, run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.pages import blocks

PAGE = "docs/history.md"
SCHEMA = pa.schema([("order_id", pa.int64()), ("status", pa.string()), ("note", pa.string())])
DAY_MS = 86_400_000


def make_orders(folder: Path) -> None:
    """Versions 1 to 3, a day each: an order is new, is paid, gets a note that nobody selects, and
    another one comes and goes."""
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create(timestamp_ms=0)
    files: list[dict[str, Any]] = []

    def commit(version: int, rows: list[dict[str, Any]], *changes: dict[str, Any]) -> None:
        nonlocal files
        had = [table.remove(file) for file in files]
        files = [table.add(rows)]
        table.commit(*had, *files, table.cdc(list(changes)), timestamp_ms=version * DAY_MS)

    def change(kind: str, order: int, status: str, note: str = "") -> dict[str, Any]:
        return {"order_id": order, "status": status, "note": note, "_change_type": kind}

    new, paid = ({"order_id": 1, "status": each, "note": ""} for each in ("new", "paid"))
    other = {"order_id": 2, "status": "new", "note": ""}
    commit(1, [new, other], change("insert", 1, "new"), change("insert", 2, "new"))
    images = (change("update_preimage", 1, "new"), change("update_postimage", 1, "paid"))
    commit(2, [paid], *images, change("delete", 2, "new"))
    noted = {**paid, "note": "n"}
    images = (change("update_preimage", 1, "paid"), change("update_postimage", 1, "paid", "n"))
    commit(3, [noted, other], *images, change("insert", 2, "new"))


def test_the_page_on_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_orders(tmp_path / "orders")
    (block,) = blocks(PAGE, "toml")
    text = block.text.replace('from = "snapshot"', 'from = "earliest"')
    Path("tailer.toml").write_text(f'[daemon]\nhttp = ""\n{text}')
    (block,) = blocks(PAGE, "sh")
    for command in block.commands:
        assert main(command) == 0, capsys.readouterr()
    assert capsys.readouterr().out.count("exact") == 5
    current, then, changes, first, durations, joined = (b.text for b in blocks(PAGE, "sql"))
    with duckdb.connect("lake.duckdb") as lake:
        lake.execute("SET TimeZone = 'UTC'")
        lake.execute(
            "CREATE TABLE payments AS SELECT 7 AS id, 1 AS order_id, "
            "TIMESTAMPTZ '1970-01-02 12:00:00+00' AS at"
        )

        def ask(query: str) -> list[tuple[Any, ...]]:
            return lake.execute(query).fetchall()

        assert ask(current) == [(1, "paid"), (2, "new")]
        assert ask(then) == [(1, "paid")]
        assert ask(changes) == [
            (1, "new", 1, 2), (1, "paid", 2, None), (2, "new", 1, 2), (2, "new", 3, None),
        ]  # fmt: skip
        assert [(key, at.day) for key, at in ask(first)] == [(1, 2), (2, 2)]
        assert [row for row in ask(durations) if row[:2] == (1, "new")] == [(1, "new", 86400.0)]
        assert ask(joined) == [(7, "new")]
