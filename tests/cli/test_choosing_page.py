"""docs/choosing.md: its configuration and its commands, run as they stand."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.pages import blocks
from tests.support.programs import run_tailer

SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()), ("status", pa.string()), ("country", pa.string()),
        ("total", pa.float64()), ("price", pa.float64()), ("quantity", pa.int32()),
        ("customer", pa.struct([("email", pa.string())])), ("placed_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "order_id": number, "status": "paid", "country": "DE", "total": 10.0, "price": 2.5,
        "quantity": 4, "customer": {"email": f"{number}@x"},
        "placed_at": dt.datetime(2024, 2, 29, tzinfo=dt.UTC), **more,
    }  # fmt: skip


def test_the_page_on_choosing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    others: list[dict[str, Any]] = [
        {"status": "draft"},
        {"country": "IT"},
        {"country": "IT", "total": 2000.0},
    ]
    table.insert([row(1), *(row(n + 2, **more) for n, more in enumerate(others))])
    (block,) = blocks("docs/choosing.md", "toml")
    state = '[daemon]\nstate = "state"\nhttp = ""\n'
    Path("tailer.toml").write_text(f"{state}{block.text}")
    assert run_tailer("check", "tailer.toml").returncode == 0

    outputs = []
    (block,) = blocks("docs/choosing.md", "sh")
    for command in block.commands:
        done = run_tailer(*command)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    read, tail, snapshot, preview = outputs
    events = [json.loads(line) for line in read.splitlines()]
    assert [(e["order_id"], e["amount"]) for e in events] == [(1, 10.0), (2, 10.0)]
    (event,) = (json.loads(line) for line in tail.splitlines())
    assert event["order_id"] == 4
    assert "customer" not in event
    assert [json.loads(line)["order_id"] for line in snapshot.splitlines()] == [1, 2]
    assert preview.count('"email":') == 2
    assert '"month":"2024-02"' in preview
