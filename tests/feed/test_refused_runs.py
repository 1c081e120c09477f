"""A sink that takes runs and refuses one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import SinkRejected
from tailer.feed.run import run_feed
from tailer.sink import SinkTraits
from tailer.testing.table import TableBuilder
from tests.support.feeds import table_log
from tests.support.rig import SCHEMA, Rig

pytestmark = pytest.mark.anyio


async def test_versions_before_a_refused_one_are_delivered(tmp_path: Path) -> None:
    """A sink that takes runs gets versions one by one once it has refused a run."""
    rows: list[int] = []
    refused: list[list[int]] = []

    class Choosy:
        traits = SinkTraits(runs=True)

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
