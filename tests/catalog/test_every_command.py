"""All that takes a table's address takes the name that a catalog has for it: Unity Catalog's, of
tables on Azure, and AWS Glue's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from tailer.deltalog import DeltaLog
from tests.catalog.conftest import running_lake
from tests.catalog.glue import Database
from tests.catalog.reading import ids
from tests.catalog.server import TOKEN
from tests.share_server.serving import served
from tests.sharing.shared import orders, read_shared
from tests.support.programs import run_tailer


@dataclass(frozen=True)
class NamedTable:
    """A table of four versions; ``account`` is what `tailer check` says of the way to it."""

    address: str
    account: str


@pytest.fixture(
    params=[*(pytest.param(k, marks=pytest.mark.needs("azurite")) for k in ("own", "real")), "glue"]
)
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NamedTable]:
    """A table by the name of each catalog."""
    if request.param == "glue":
        database: Database = request.getfixturevalue("database")
        orders(tmp_path / "orders", 4)
        address = database.table("orders", f"file://{tmp_path}/orders")
        yield NamedTable(address, rf"at {tmp_path}/orders, by AWS Glue")
        return
    with running_lake(request.param, request) as lake:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", lake.container.url)
        address = anyio.run(lake.external, tmp_path / "orders")
        catalog = f"the catalog main at {lake.front.url} as the owner of the token"
        yield NamedTable(address, rf"at abfss://.*, by {catalog}")


def run(*arguments: str | Path) -> str:
    done = run_tailer(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert TOKEN not in done.stdout
    assert "sig=" not in done.stdout
    return done.stdout


def test_every_command_takes_the_name(table: NamedTable, tmp_path: Path) -> None:
    assert len(run("history", table.address, "--json").splitlines()) == 4
    rows = tmp_path / "rows.jsonl"
    run("snapshot", table.address, "--to", "2", "--output", rows)
    assert sorted(json.loads(line)["id"] for line in rows.read_text().splitlines()) == [1, 2]
    run("read", table.address, "--from", "1", "--to", "3", "--output", rows)
    assert len(rows.read_text().splitlines()) == 3
    assert "3" in run("verify", table.address, "--from", "1", "--to", "3")
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.orders]\ntable = "{table.address}"\n'
        'from = "earliest"\n[feeds.orders.sink]\ntype = "jsonl"\npath = "rows"\n'
    )
    assert re.search(table.account, run("check", config))


def test_delta_log_takes_it(table: NamedTable) -> None:
    log = DeltaLog.for_table(table.address)
    try:
        assert log.update().version == 3
        assert [version for version, _ in log.get_changes(1)] == [1, 2, 3]
    finally:
        DeltaLog.invalidate_cache(table.address)


def test_it_is_shared(table: NamedTable, tmp_path: Path) -> None:
    shared = {"share.schema.table": table.address}
    with served(tmp_path, shared) as found:
        events = anyio.run(read_shared, found.profile, 1, 3)
    assert ids(events) == [1, 2, 3]
