"""Runs of several versions and files, where one of them is refused or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import FileGone, SinkRejected
from tailer.feed.options import FeedOptions
from tailer.feed.policy import LostFiles, Policies
from tailer.feed.progress import Observer
from tailer.feed.read import read_items
from tailer.feed.run import run_feed
from tailer.sink import Sink, SinkTraits
from tailer.testing.table import TableBuilder
from tests.support.feeds import table_log
from tests.support.rig import SCHEMA, Rig

pytestmark = pytest.mark.anyio


async def test_versions_before_a_refused_one_are_delivered(tmp_path: Path) -> None:
    """A sink that takes runs gets versions one by one once it has refused a run."""
    rows: list[int] = []
    refused: list[list[int]] = []

    class Choosy(Sink):
        traits = SinkTraits(spans=True)

        async def open(self, feed: str) -> Offset | None:  # noqa: ARG002
            return None

        async def write(self, batch: ChangeBatch) -> None:
            versions = batch.rows.column("_commit_version").to_pylist()
            if 3 in versions:
                refused.append(versions)
                raise SinkRejected("version 3 is not to its taste")
            rows.extend(versions)

        async def aclose(self) -> None:
            pass

    table = TableBuilder(tmp_path / "small", SCHEMA)
    table.create()
    for i in range(5):
        table.insert([{"id": i}])
    rig = Rig(tmp_path, table)
    feed = rig.feed(batch_rows_max=100)
    feed.sink, feed.log = Choosy(), table_log(table)  # the rig's store gives one commit at a time
    with pytest.raises(SinkRejected, match="version 3"):
        await run_feed(feed)
    assert (await rig.offset()).version == 3
    assert rows == [1, 2]
    assert refused[0] != refused[-1] == [3], "a run first, then one by one"


async def test_a_lost_file_within_a_snapshots_last_run_is_counted(tmp_path: Path) -> None:
    """Else a crash before the snapshot's end would have its last rows read again."""
    table = TableBuilder(tmp_path / "small", SCHEMA)
    table.create()
    table.commit(*(table.add([{"id": n}, {"id": -n}], path=f"{n}.parquet") for n in range(1, 5)))
    (table.folder / "2.parquet").unlink()
    options = FeedOptions(spans=True, policies=Policies(on_data_loss="skip"))
    start = Offset(1, snapshot=True, table_id=table.table_id)
    lost, gone = LostFiles(), FileGone("it is gone")  # found by an attempt before this one
    gone.file = "2.parquet"
    lost.record_loss(1, gone)
    found = read_items(table_log(table), start, 1, options, Observer(), lost=lost)
    items = [item async for item in found]
    batches = [item for item in items if isinstance(item, ChangeBatch)]
    assert [row["id"] for batch in batches for row in batch.rows.to_pylist()] == [
        1, -1, 3, -3, 4, -4,
    ]  # fmt: skip
    assert batches[-1].span, "the lost file lies within it"
    assert batches[-1].next_offset.index == 8
