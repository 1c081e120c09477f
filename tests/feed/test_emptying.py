"""A commit that changes columns and only takes rows away: the batches lead to the new columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tests.support.feeds import table_log
from tests.tables.writer import TableWriter

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("spans", [True, False])
async def test_what_comes_last_has_the_columns_of_the_table(*, spans: bool, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    writer = TableWriter(tmp_path, schema, seed=1, mapping="name", cdf=False)
    writer.rename_column("n", "s")
    writer.append([{"id": 1, "n": "a"}])
    writer.restore(0)
    batches = read_changes(table_log(tmp_path), Offset(1), 3, FeedOptions(spans=spans))
    found = [(b.num_rows, b.state.schema.names, b.next_offset) async for b in batches]
    assert sum(rows for rows, _, _ in found) == 2
    _, names, following = found[-1]
    assert (names, following.position) == (["id", "s"], (4, 0))
