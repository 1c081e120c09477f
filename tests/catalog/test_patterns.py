"""Patterns of a catalog's tables, on both servers: tables come and go; what is missing is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tailer.daemon.discovery import discover_tables
from tailer.errors import TableError
from tests.catalog.server import CLIENT, TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.support.programs import running_daemon, whole_lines
from tests.support.token_front import TokenFront
from tests.support.waiting import eventually
from tests.support.web_front import running_front


@dataclass(frozen=True)
class Schema:
    """A schema of a catalog's tables behind a front."""

    front: TokenFront
    name: str
    own: CatalogServer | None

    def table(self, name: str) -> ManagedTable:
        """A new table with one row."""
        table = ManagedTable(self.front.upstream, TOKEN, name, self.name).create()
        table.commit()
        return table

    def drop(self, table: ManagedTable) -> None:
        """Remove a table from the catalog."""
        if self.own is not None:
            with self.own.lock:
                del self.own.schemas[self.name][table.name]
        else:
            status, said = table.call("DELETE", f"/tables/main.{self.name}.{table.name}")
            assert status == 200, said


@pytest.fixture(params=["own", "real"])
def schema(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Schema]:
    """A schema of either server."""
    own: CatalogServer | None = None
    if request.param == "own":
        own = request.getfixturevalue("server")
    upstream = own.endpoint if own else request.getfixturevalue("real_front").upstream
    with running_front(TokenFront(upstream, TOKEN, CLIENT)) as front:
        monkeypatch.setenv("DATABRICKS_HOST", front.url)
        monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
        yield Schema(front, "sales" if own else f"s{uuid4().hex}", own)


def test_tables_are_followed_as_they_come_and_go(schema: Schema, tmp_path: Path) -> None:
    first, secret = schema.table("first"), schema.table("secret")
    schema.front.forbidden.add("secret")
    config, errors = tmp_path / "tailer.toml", tmp_path / "errors"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.sales]\ntable = "uc://main.{schema.name}.*"\n'
        'from = "earliest"\ndiscover_s = 0.1\nretry_max_s = 0.2\n'
        '[feeds.sales.sink]\ntype = "jsonl"\npath = "{table}.jsonl"\n'
    )

    def has(table: ManagedTable, rows: int) -> Callable[[], bool]:
        path = tmp_path / f"{table.name}.jsonl"
        return lambda: path.exists() and len(whole_lines(path)) == rows

    with running_daemon(config, errors) as daemon:
        eventually(has(first, 1), why=errors.read_text)
        late = schema.table("late")
        eventually(has(late, 1), why=errors.read_text)
        refused = f"USE CATALOG, USE SCHEMA and SELECT on main.{schema.name}.secret"
        eventually(lambda: refused in errors.read_text())
        assert not has(secret, 1)()
        schema.drop(late)
        eventually(lambda: "sales/late" in errors.read_text())
        first.commit()
        eventually(has(first, 2), why=errors.read_text)
        daemon.terminate()
        assert daemon.wait() == 1, "one of its feeds has failed"
    schema.front.forbidden.clear()
    with running_daemon(config, errors) as daemon:
        eventually(has(secret, 1), why=errors.read_text)
        daemon.terminate()
        assert daemon.wait() == 0


@pytest.mark.anyio
async def test_what_is_not_there_is_named(schema: Schema) -> None:
    schema.table("first")
    found = await discover_tables(f"uc://main.{schema.name}.f*", {})
    assert found.tables == {"irst": f"uc://main.{schema.name}.first"}
    assert (await discover_tables(f"uc://main.{schema.name}.x*", {})).tables == {}
    for pattern, missing in (
        ("uc://nope.*.*", "no catalog nope"),
        ("uc://nope.sales.*", "no catalog nope"),
        ("uc://main.nope.*", "no schema main.nope"),
    ):
        with pytest.raises(TableError, match=missing):
            await discover_tables(pattern, {})
