"""Tokens that end while a table is followed, before a server that knows when they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import ConfigError
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog
from tailer.storage import open_store
from tests.catalog.server import CLIENT, TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.support.token_front import TokenFront
from tests.support.web_front import running_front

pytestmark = pytest.mark.anyio

QUICK = FollowOptions(poll_min_s=0.01, poll_max_s=0.02)


@pytest.fixture(params=["own", "real"])
def front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenFront]:
    """A front of either server; nobody has a token of it in the environment."""
    if request.param == "own":
        server: CatalogServer = request.getfixturevalue("server")
        upstream = server.endpoint
    else:
        upstream = request.getfixturevalue("real_front").upstream
    with running_front(TokenFront(upstream, TOKEN, CLIENT)) as front:
        monkeypatch.setenv("DATABRICKS_HOST", front.url)
        monkeypatch.delenv("DATABRICKS_TOKEN", raising=False)
        yield front


@pytest.fixture
def table(front: TokenFront, request: pytest.FixtureRequest) -> ManagedTable:
    """A new table, whose writer passes by the front."""
    name = f"t{abs(hash(request.node.name))}"
    return ManagedTable(front.upstream, TOKEN, name).create()


async def versions(table: ManagedTable, front: TokenFront, *, ends: bool, **options: str) -> None:
    """Follow a table for six versions; ``ends`` has all tokens end before each."""
    store = open_store(table.address, options)
    async with aclosing(follow_commits(TableLog(store), Offset(0), None, QUICK)) as commits:
        assert (await anext(commits)).version == 0
        for version in range(1, 7):
            if ends:
                front.end_tokens()
            else:
                await anyio.sleep(0.1)  # more than a token lives
            await anyio.to_thread.run_sync(table.commit)
            assert (await anext(commits)).version == version
    await store.aclose()


async def test_a_token_that_is_taken_back_is_bought_anew(
    table: ManagedTable, front: TokenFront
) -> None:
    await versions(table, front, ends=True, client_id=CLIENT[0], client_secret=CLIENT[1])
    assert front.sold >= 7
    assert front.refused >= 6


async def test_tokens_are_bought_anew_as_they_end(table: ManagedTable, front: TokenFront) -> None:
    front.life_s = front.said_s = 0.1
    await versions(table, front, ends=False, client_id=CLIENT[0], client_secret=CLIENT[1])
    assert front.sold >= 7


async def test_a_fixed_token_that_ends_is_one_sentence(
    table: ManagedTable, front: TokenFront
) -> None:
    store = open_store(table.address, {"token": TOKEN})
    log = TableLog(store)
    assert await log.latest_version() == 0
    front.end_tokens()
    with pytest.raises(ConfigError, match="it has expired or is not valid: get another") as ended:
        await log.latest_version()
    assert TOKEN not in str(ended.value)
    await store.aclose()


async def test_a_client_that_is_not_known_buys_nothing(
    table: ManagedTable, front: TokenFront
) -> None:
    store = open_store(table.address, {"client_id": CLIENT[0], "client_secret": "no-secret-1"})
    with pytest.raises(ConfigError, match="refused the client 'feed-client'"):
        await TableLog(store).latest_version()
    assert front.sold == 0
    await store.aclose()
