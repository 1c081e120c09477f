"""Copies that lack rows: one that was parked, for itself, and all of them, for nobody."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused, TargetRefused, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.sql_targets import SqlTarget, sql_target

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(params=["mysql", "postgres", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTarget:
    return sql_target(request.param, tmp_path, request)


def batch(version: int, kind: str, *ids: int) -> ChangeBatch:
    rows = [{"id": one, "name": "x", "_change_type": kind} for one in ids]
    return change_batch(SCHEMA, rows, version=version, last=True)


async def begun(target: SqlTarget, folder: Path) -> Sink:
    """A sink that has written four rows."""
    sink = make_sink(target.kind, {**target.options, "key": ["id"]}, folder)
    await sink.open("orders")
    await sink.write(batch(1, "insert", 1, 2, 3, 4))
    return sink


async def test_a_row_that_is_lacking_is_refused_for_itself(
    target: SqlTarget, tmp_path: Path
) -> None:
    sink = await begun(target, tmp_path)
    target.query(f"DELETE FROM {target.prefix}orders WHERE id = 2")
    with pytest.raises(RowsRefused, match="that the copy lacks"):
        await sink.write(batch(2, "delete", 2))
    await sink.write(batch(2, "delete", 3))
    await sink.aclose()


async def test_an_emptied_copy_is_no_row_s_fault(target: SqlTarget, tmp_path: Path) -> None:
    sink = await begun(target, tmp_path)
    target.query(f"DELETE FROM {target.prefix}orders")
    with pytest.raises(TransientError, match="emptied"):
        await sink.write(batch(2, "delete", 2))
    await sink.aclose()
    with pytest.raises(TargetRefused, match="was emptied, and a copy has all rows"):
        await sink.open("orders")
    await sink.aclose()
