"""A large commit that nobody waits for any more is not parsed to its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tailer.delta import parsing
from tailer.log import json_files
from tailer.testing.table import TableBuilder
from tests.support.feeds import table_log
from tests.support.rig import SCHEMA
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio
LINES = 20_000


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    adds = [{"add": {"path": f"{i}.parquet", "size": 1, "dataChange": True}} for i in range(LINES)]
    file = tmp_path / "orders" / "_delta_log" / f"{1:020d}.json"
    file.write_text("".join(json.dumps(add) + "\n" for add in adds))
    return table


async def test_a_cancellation_ends_the_parsing_of_a_commit(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, parsed = Event(), 0
    parse = parsing.parse_entries

    def slow(lines: list[bytes]) -> Any:
        nonlocal parsed
        begun.set()
        time.sleep(0.01)
        parsed += len(lines)
        return parse(lines)

    monkeypatch.setattr("tailer.delta.commit.parse_entries", slow)
    monkeypatch.setattr(json_files, "MEMORY_BYTES_MAX", 4096)
    monkeypatch.setattr(json_files, "_LINES_AT_ONCE", 256)
    log = table_log(table)
    state = (await log.load_snapshot(0)).state
    parsed = 0
    begun.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.read_commit, 1, state, None)
        await anyio.to_thread.run_sync(begun.wait, PATIENCE_S)
        tasks.cancel_scope.cancel()
    assert begun.is_set()
    assert parsed < LINES / 2


async def test_a_shield_keeps_it_from_that(table: TableBuilder) -> None:
    """What an end must still do is done to its end."""
    log = table_log(table)
    state = (await log.load_snapshot(0)).state
    with anyio.CancelScope() as scope:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            assert (await log.read_commit(1, state, None)).header.adds == LINES
