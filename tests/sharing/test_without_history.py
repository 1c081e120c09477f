"""Tables whose history is not shared: what can be read of them all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.changes import Offset
from tailer.errors import DataLoss
from tailer.store.local import LocalStore
from tests.sharing.reference_server import serving
from tests.sharing.shared import NAME, golden_table, orders, read_shared, read_store
from tests.sharing.test_shared_tables import direct, newest, plain, untimed

pytestmark = pytest.mark.anyio


async def test_without_history_the_feed_and_the_current_snapshot_can_be_read(
    tmp_path: Path,
) -> None:
    table = golden_table("cdf_dv", tmp_path)
    last = await newest(table)
    with serving({NAME: table}) as server:
        server.faults.history = server.faults.streaming = False
        profile = server.profile(tmp_path)
        for first in (0, 2, last):
            assert plain(await read_shared(profile, first, last)) == await direct(table, first)
        rows = await read_shared(profile, Offset(last, snapshot=True), last)
        own = await read_store(LocalStore(str(table)), Offset(last, snapshot=True), last)
        assert sorted(untimed(rows)) == sorted(untimed(own))
        with pytest.raises(DataLoss, match="history sharing is not enabled"):
            await read_shared(profile, Offset(last - 1, snapshot=True), last)


async def test_null_partition_values_that_a_writer_left_out_need_no_history(
    tmp_path: Path,
) -> None:
    """Spark's removes do not name them. The version before can't be asked for the file."""
    table = golden_table("cdf_replaced", tmp_path)
    with serving({NAME: table}) as server:
        server.faults.history = False
        found = await read_shared(server.profile(tmp_path), 0, await newest(table))
        assert plain(found) == await direct(table, 0)
        assert server.seen("query$") == []


async def test_a_table_whose_changes_are_not_shared_is_refused_in_the_servers_words(
    tmp_path: Path,
) -> None:
    table = orders(tmp_path / "orders", cdf=False)
    with serving({NAME: table.folder}) as server:
        profile = server.profile(tmp_path)
        with pytest.raises(DataLoss, match=r"version 2: .*no change data at 2"):
            await read_shared(profile, 2, 3, change_source="cdf")
        assert [e["id"] for e in await read_shared(profile, 2, 3)] == [2, 3]
        server.faults.streaming = False
        with pytest.raises(DataLoss, match="start at a newer version, or with a snapshot"):
            await read_shared(profile, 2, 3)
