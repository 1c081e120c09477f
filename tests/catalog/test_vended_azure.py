"""Tables on Azure that are read with the signatures that their catalog vends: used, renewed, ended,
too narrow, refused. Both servers vend them, and Azurite checks them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import TableError, TailerError, TargetRefused, TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.storage import open_store, open_target
from tailer.store import Store
from tailer.store.traffic import Traffic
from tests.catalog.lakes import SAS, Lake, azure_address
from tests.catalog.reading import ids, newest_version, read_table
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import sas_token
from tests.support.programs import run_tailer

pytestmark = [pytest.mark.anyio, pytest.mark.needs("azurite")]

QUICK = FeedOptions(follow=FollowOptions(poll_min_s=0.02, poll_max_s=0.1))


class Counted(Traffic):
    """What was refused, and what was sent again."""

    def __init__(self) -> None:
        self.failed = self.again = 0

    def request(self, operation: str, status: str, received: int) -> None:  # noqa: ARG002
        """Count a request that failed."""
        self.failed += status == "failed"

    def retry(self, operation: str) -> None:  # noqa: ARG002
        """Count it."""
        self.again += 1


def changed(**config: str | None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Have a credential of other values."""
    return lambda one: {**one, "config": config}


def with_signature(signature: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Have another signature in place of the catalog's, said to be good as long."""
    return changed(**{SAS: signature})


async def said_of(address: str, lake: Lake, kind: type[TailerError] = TableError) -> str:
    with pytest.raises(kind) as caught:
        await read_table(address, 1, 3, **lake.options)
    assert "sig=" not in str(caught.value)
    return str(caught.value)


async def follow_until(lake: Lake, table: ManagedTable, store: Store, *, vended: int) -> None:
    """Follow a table while versions come, until so many credentials were vended."""
    found: list[str] = []

    def write() -> None:
        table.commit()
        if table.latest > 1:
            table.publish()

    with anyio.fail_after(120):
        async with aclosing(read_changes(TableLog(store), Offset(1), None, QUICK)) as batches:
            while len(lake.front.vended) < vended:
                await anyio.to_thread.run_sync(write)
                found += (await anext(batches)).rows.column("v").to_pylist()
                await anyio.sleep(0.2)
    await store.aclose()
    assert found == [f"v{version}" for version in range(1, table.latest + 1)]


async def test_a_managed_table_is_tailed_with_what_its_catalog_vends(lake: Lake) -> None:
    table = lake.managed()
    for _ in range(4):
        table.commit()
    table.publish()
    table.publish(clean=True)
    table.stage(5, "never ratified")
    done = await anyio.to_thread.run_sync(
        lambda: run_tailer(
            "tail", table.address, "--from", "1", "--to", "4",
            "--store-option", f"endpoint_url={lake.container.url}",
        )
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["_commit_version"], row["v"]) for row in rows] == [
        (version, f"v{version}") for version in range(1, 5)
    ]
    assert len(lake.front.vended) == 1
    (signature,) = parse_qs(lake.front.vended[0]["config"][SAS])["sig"]
    assert signature not in done.stdout


async def test_an_external_table_is_the_same_by_its_name_and_by_its_path(
    lake: Lake, tmp_path: Path
) -> None:
    address = await lake.external(tmp_path / "external")
    by_path = await read_table(lake.container.address("external"), 1, 3, **lake.container.options)
    assert await read_table(address, 1, 3, **lake.options) == by_path
    assert ids(by_path) == [1, 2, 3]
    assert len(lake.front.vended) == 1


async def test_signatures_are_renewed_before_they_end(lake: Lake) -> None:
    table, counted = lake.managed(), Counted()

    def short(one: dict[str, Any]) -> dict[str, Any]:
        # No server vends one for less than an hour. Another minute is for a busy machine.
        end_ms = int((time.time() + 2) * 1000)
        signature = sas_token(timedelta(seconds=62))
        return {**one, "config": {SAS: signature}, "expiration-time-ms": end_ms}

    lake.front.change = short
    store = open_store(table.address, lake.options, counted)
    await follow_until(lake, table, store, vended=4)
    assert (counted.failed, counted.again) == (0, 0)


async def test_one_that_ends_before_it_says_so_is_replaced_midway(lake: Lake) -> None:
    table, counted = lake.managed(), Counted()

    def short(one: dict[str, Any]) -> dict[str, Any]:
        is_first = not lake.front.vended
        return with_signature(sas_token(timedelta(seconds=2)))(one) if is_first else one

    lake.front.change = short
    store = open_store(table.address, lake.options, counted)
    await follow_until(lake, table, store, vended=2)
    assert counted.again >= 1, "Azurite has refused the one that ended"


async def test_one_that_the_storage_never_takes_is_asked_for_twice(
    lake: Lake, tmp_path: Path
) -> None:
    address = await lake.external(tmp_path / "external")
    lake.front.change = with_signature(sas_token(timedelta(seconds=-5)))
    said = await said_of(address, lake)
    assert "access denied to head" in said  # an answer to HEAD has no reason
    assert "check the credentials, when they end" in said
    assert len(lake.front.vended) == 2


async def test_one_that_is_too_narrow_is_said(lake: Lake, tmp_path: Path) -> None:
    address = await lake.external(tmp_path / "external")
    lake.front.change = with_signature(sas_token(rights="l"))  # it lists, and reads nothing
    said = await said_of(address, lake)
    assert "access denied to head" in said
    assert "what they may do with the container" in said
    lake.front.change = lambda one: {**one, "prefix": f"{one['prefix']}-of-others"}
    assert "vends a credential for abfss://" in await said_of(address, lake)


async def test_nothing_is_written_with_one_that_is_for_reading(lake: Lake, tmp_path: Path) -> None:
    await read_table(await lake.external(tmp_path / "external"), 1, 1, **lake.options)
    signature = lake.front.vended[0]["config"][SAS]
    where = {**lake.options, "sas_token": signature}
    target = open_target(azure_address(lake.container, "changes"), tmp_path, where)
    with pytest.raises(TargetRefused, match=r"access denied to put .*AuthorizationPermission") as e:
        await target.create("changes", b"1")
    assert "sig=" not in str(e.value)
    await target.aclose()


async def test_one_for_another_cloud_is_said(lake: Lake, tmp_path: Path) -> None:
    address = await lake.external(tmp_path / "external")
    lake.front.change = changed(**{"s3.access-key-id": "AKIA1", "s3.secret-access-key": "x" * 20})
    said = await said_of(address, lake)
    assert "vends s3.access-key-id, s3.secret-access-key for it, and abfss://" in said
    assert "needs azure.sas-token" in said
    lake.front.change = changed()
    assert "vends nothing for it" in await said_of(address, lake)


async def test_a_catalog_that_vends_nothing_is_said(lake: Lake, tmp_path: Path) -> None:
    address = await lake.external(tmp_path / "external")
    lake.front.refusal = 403
    assert "grant the owner of the token USE CATALOG" in await said_of(address, lake)
    lake.front.refusal = 404
    said = await said_of(address, lake)
    assert "vends no credential for its files" in said
    assert "external location" in said
    lake.front.refusal = 503
    assert "answered 503" in await said_of(address, lake, TransientError)
    lake.front.refusal = 0
    assert await newest_version(address, **lake.options) == 3
