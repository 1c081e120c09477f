"""Readers of a catalog-managed table while a writer does all that writers do; see histories.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalog.histories import kill_rounds, run_history
from tests.catalog.owners import owner_rounds
from tests.catalog.server import TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.s3.fixture import Bucket


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(5))
async def test_no_version_is_missed_doubled_or_early(server: CatalogServer, seed: int) -> None:
    await run_history(ManagedTable(server.endpoint, TOKEN), seed)


@pytest.mark.anyio
async def test_nor_is_one_of_a_server_of_other_authors(real_server: str) -> None:
    await run_history(ManagedTable(real_server, TOKEN, "history"), 7)


def test_a_daemon_that_is_killed_misses_nothing(server: CatalogServer, tmp_path: Path) -> None:
    assert kill_rounds(ManagedTable(server.endpoint, TOKEN), tmp_path, kills=3, seed=1) > 3


@pytest.mark.needs("s3")
def test_two_daemons_of_one_feed_miss_and_double_nothing(
    server: CatalogServer, bucket: Bucket, tmp_path: Path
) -> None:
    table = ManagedTable(server.endpoint, TOKEN)
    figures = owner_rounds(table, tmp_path, bucket, rounds=2, seed=1)
    assert (figures.kills, figures.stops) == (1, 1)
    assert figures.epochs >= 3, "each time another owner"
