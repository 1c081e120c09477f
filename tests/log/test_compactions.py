"""A log compaction that is damaged: the commits that it covers are read in its place. If they are
gone, the error names the compaction."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.errors import CorruptLog, DataLoss, TailerError, TransientError
from tailer.log.table import TableLog
from tailer.store.local import LocalStore
from tailer.testing.table import Action, TableBuilder

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
NEWEST = 5

#: What is wrong with the compaction, as bytes in place of its last line.
DAMAGED_LINES = {
    "no JSON": b"{add\n",
    "cut short": b'{"add":{"path":"f3.par',
    "not UTF-8": b'{"add":{"path":"f\xff","size":1,"dataChange":true}}\n',
    "not an object": b'["add"]\n',
    "two actions": b'{"add":{"path":"f3","size":1,"dataChange":true},"cdc":{}}\n',
    "two adds": b'{"add":{"path":"f3","size":1,"dataChange":true},"add":{"path":"f4"}}\n',
    "an add without a path": b'{"add":{"size":1,"dataChange":true}}\n',
    "an add with a text as its size": b'{"add":{"path":"f3","size":"1","dataChange":true}}\n',
    "a remove without a path": b'{"remove":{"dataChange":true}}\n',
    "a txn without a version": b'{"txn":{"appId":"a"}}\n',
    "a metaData without an id": b'{"metaData":{"schemaString":"{}"}}\n',
}


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Versions 1 to 5 add a file each; a compaction has versions 1 to 3."""
    table = TableBuilder(tmp_path, SCHEMA)
    table.create()
    adds = [table.add([{"id": v}]) for v in range(1, NEWEST + 1)]
    for version, add in enumerate(adds, start=1):
        table.commit({"txn": {"appId": "app", "version": version}}, add)
    lines = [{"txn": {"appId": "app", "version": 3}}, *adds[:3]]
    compaction(table).write_bytes(b"".join(line(action) for action in lines))
    return table


def line(action: Action) -> bytes:
    return json.dumps(action).encode() + b"\n"


def compaction(table: TableBuilder, first: int = 1, last: int = 3) -> Path:
    return table.log / f"{first:020d}.{last:020d}.compacted.json"


def log_of(table: TableBuilder) -> TableLog:
    return TableLog(LocalStore(str(table.folder)), torn_commit_max_s=0.0)


async def state(table: TableBuilder, version: int = NEWEST) -> tuple[set[str], list[int]]:
    """The live files and the transactions' versions, each as a new reader finds them."""
    log = log_of(table)
    snapshot = await log.load_snapshot(version)
    files = {add.path async for add in log.live_files(snapshot)}
    return files, [txn.version for txn in snapshot.transactions.values()]


@pytest.mark.parametrize("last", DAMAGED_LINES.values(), ids=DAMAGED_LINES)
async def test_the_commits_stand_in_for_a_damaged_compaction(
    table: TableBuilder, last: bytes
) -> None:
    whole = [await state(table, version) for version in (3, NEWEST)]
    assert len(whole[1][0]) == NEWEST
    lines = compaction(table).read_bytes().splitlines(keepends=True)
    compaction(table).write_bytes(b"".join(lines[:-1]) + last)
    assert [await state(table, version) for version in (3, NEWEST)] == whole
    table.commit_path(2).unlink()
    with pytest.raises(CorruptLog) as caught:
        await state(table)
    assert compaction(table).name in str(caught.value)
    assert str(table.folder) in str(caught.value)


@pytest.mark.parametrize("rest", [b"", b"\x00" * 100], ids=["empty", "zeros"])
async def test_the_commits_stand_in_for_a_compaction_without_content(
    table: TableBuilder, rest: bytes
) -> None:
    whole = await state(table)
    compaction(table).write_bytes(rest)
    assert await state(table) == whole
    table.commit_path(2).unlink()
    with pytest.raises((CorruptLog, DataLoss)) as caught:
        await state(table)
    assert (compaction(table) if rest else table.commit_path(2)).name in str(caught.value)


async def test_the_commits_stand_in_for_a_compaction_that_is_listed_and_gone(
    table: TableBuilder,
) -> None:
    whole = await state(table)
    log = log_of(table)
    before = await log.load_snapshot()
    assert compaction(table).name in [file.name for file in before.segment.deltas]
    compaction(table).unlink()
    assert {add.path async for add in log.live_files(before)} == whole[0]
    for version in (1, 2, 3):
        table.commit_path(version).unlink()
    with pytest.raises(TransientError, match="listed and can't be read"):
        assert not [add async for add in log.live_files(before)]


async def test_only_the_damaged_one_of_two_compactions_is_replaced(table: TableBuilder) -> None:
    whole = await state(table)
    commits = [table.commit_path(version).read_bytes() for version in (4, 5)]
    compaction(table, 4, 5).write_bytes(b"".join(commits))
    table.commit_path(4).unlink()
    compaction(table).write_bytes(b"{add\n")
    assert await state(table) == whole


async def test_a_whole_compaction_stands_in_for_a_damaged_longer_one(table: TableBuilder) -> None:
    whole = await state(table)
    compaction(table, 0, 4).write_bytes(b"{add\n")
    table.commit_path(2).unlink()
    assert await state(table) == whole


async def test_a_damaged_compaction_after_a_checkpoint_leaves_the_checkpoint_in_use(
    table: TableBuilder,
) -> None:
    whole = await state(table)
    table.checkpoint(1)
    table.commit_path(0).unlink()
    compaction(table).rename(compaction(table, 2, 3))
    compaction(table, 2, 3).write_bytes(b"{add\n")
    log = log_of(table)
    segment = (await log.load_snapshot()).segment
    assert segment.checkpoint is not None
    assert [file.version for file in segment.deltas] == [2, 3, 4, 5]
    assert await state(table) == whole


def test_verify_and_snapshot_read_past_a_damaged_compaction(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    compaction(table).write_bytes(compaction(table).read_bytes()[:-20])
    assert main(["verify", str(table.folder)]) == 0
    assert capsys.readouterr().out.endswith(": exact\n")
    assert main(["snapshot", str(table.folder)]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == NEWEST
    table.commit_path(2).unlink()
    assert main(["snapshot", str(table.folder)]) == 1
    assert compaction(table).name in capsys.readouterr().err
    with pytest.raises(TailerError):
        main(["--debug", "snapshot", str(table.folder)])
