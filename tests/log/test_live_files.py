"""A snapshot's list of files where its checkpoint is damaged, incomplete or gone: another way to
the version tells, no file comes twice, and where no way is left the refusal names the file."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.add_fields import WITH_STATISTICS
from tailer.errors import CorruptLog, TransientError
from tailer.feed.snapshots import sort_files
from tailer.log.table import TableLog
from tailer.share_server.grants import TableConfig
from tailer.share_server.tables import SharedTable
from tailer.store.local import LocalStore
from tailer.testing.checkpoint_files import (
    CLASSIC_SCHEMA,
    FILES_SCHEMA,
    V2_SCHEMA,
    checksum_document,
    write_checkpoint,
)
from tailer.testing.table import Action, TableBuilder

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
V2 = "00000000000000000004.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"
CLASSIC = "00000000000000000004.checkpoint.parquet"
FILES = {f"f{i}.parquet" for i in range(1, 6)}


def added(name: str) -> Action:
    return {"add": {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 0,
                    "dataChange": True, "stats": '{"numRecords":1}'}}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Versions 1 to 5 add a file each; the checkpoints are of version 4."""
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    for name in sorted(FILES):
        table.commit(added(name))
    return table


def steering(table: TableBuilder) -> list[Action]:
    lines = table.commit_path(0).read_text().splitlines()
    actions: list[Action] = [json.loads(line) for line in lines]
    return [a for a in actions if "protocol" in a or "metaData" in a]


def listed(*numbers: int) -> list[Action]:
    return [added(f"f{i}.parquet") for i in numbers or (1, 2, 3, 4)]


def classic(table: TableBuilder, *parts: list[Action]) -> Path:
    """A classic checkpoint, a row group for each part."""
    return write_checkpoint(table.log / CLASSIC, [steering(table), *(parts or [listed()])])


def v2(table: TableBuilder, *sidecars: list[Action]) -> list[Path]:
    """A v2 checkpoint in Parquet; returns its sidecars."""
    folder = table.log / "_sidecars"
    folder.mkdir(exist_ok=True)
    paths = [
        write_checkpoint(folder / f"{i}.parquet", [files], FILES_SCHEMA)
        for i, files in enumerate(sidecars or (listed(1, 2), listed(3, 4)))
    ]
    top: list[Action] = [{"checkpointMetadata": {"version": 4}}, *steering(table)]
    for path in paths:
        size = path.stat().st_size
        top.append({"sidecar": {"path": path.name, "sizeInBytes": size, "modificationTime": 0}})
    write_checkpoint(table.log / V2, [top], V2_SCHEMA)
    return paths


def clean(table: TableBuilder) -> None:
    """Remove the commits that a checkpoint of version 4 stands for."""
    for version in range(5):
        table.commit_path(version).unlink()


def damage_add(path: Path, group: int = 0) -> None:
    """Make the paths of one row group unreadable."""
    metadata = pq.ParquetFile(path).metadata.row_group(group)
    columns = [metadata.column(i) for i in range(metadata.num_columns)]
    (chunk,) = [c for c in columns if c.path_in_schema == "add.path"]
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)


def checksum(table: TableBuilder, files: int, version: int = 4) -> None:
    protocol, metadata = steering(table)
    document = checksum_document(protocol, metadata, [1] * files)
    (table.log / f"{version:020d}.crc").write_text(json.dumps(document))


def log_of(table: TableBuilder) -> TableLog:
    return TableLog(LocalStore(str(table.folder)))


async def paths(log: TableLog) -> list[str]:
    return sorted([add.path async for add in log.live_files(await log.load_snapshot())])


async def refused(log: TableLog) -> str:
    snapshot = await log.load_snapshot()
    async with aclosing(log.live_files(snapshot)) as files:
        with pytest.raises(CorruptLog) as error:
            await anext(files)  # nothing is given of what can't be given whole
    return str(error.value)


def spoil(table: TableBuilder, how: str) -> str:
    """A checkpoint that is damaged in one way; the name of what is."""
    if how == "a page of adds":
        damage_add(classic(table, listed(1, 2), listed(3, 4)), group=2)
        return CLASSIC
    if how == "a damaged name of the column of adds":
        path = classic(table)
        adds = pq.read_table(path)
        named = ["adf" if name == "add" else name for name in adds.column_names]
        pq.write_table(adds.rename_columns(named), path)
        return CLASSIC
    if how == "half of the adds":
        classic(table, listed(1, 2))
        table.hint(4, 6, numOfAddFiles=4)
        return CLASSIC
    _, last = v2(table)
    if how == "a damaged sidecar":
        damage_add(last)
    elif how == "an empty sidecar":
        last.write_bytes(b"")
    elif how == "another sidecar":  # whole, with as many files, and of another checkpoint
        write_checkpoint(last, [listed(8, 9), listed()], FILES_SCHEMA)
    else:
        last.unlink()
    return f"_sidecars/{last.name}"


WAYS = [
    "a page of adds",
    "a damaged name of the column of adds",
    "half of the adds",
    "a damaged sidecar",
    "an empty sidecar",
    "another sidecar",
    "a missing sidecar",
]


@pytest.mark.parametrize("how", WAYS)
async def test_a_damaged_list_is_made_from_the_whole_log(table: TableBuilder, how: str) -> None:
    spoil(table, how)
    assert await paths(log_of(table)) == sorted(FILES)


@pytest.mark.parametrize("how", WAYS)
async def test_a_damaged_list_without_another_way_is_refused_by_name(
    table: TableBuilder, how: str
) -> None:
    name = spoil(table, how)
    clean(table)
    message = await refused(log_of(table))
    assert message.startswith(f"{table.folder}, version 4, {name}: "), message
    assert "no other" in message


async def test_a_part_without_a_column_of_adds_has_none(table: TableBuilder) -> None:
    names = [f"{4:020d}.checkpoint.{i:010d}.{2:010d}.parquet" for i in (1, 2)]
    plain = pa.schema([f for f in CLASSIC_SCHEMA if f.name != "add"])
    write_checkpoint(table.log / names[0], [steering(table)], plain)
    write_checkpoint(table.log / names[1], [listed(1, 2, 3, 4)])
    clean(table)
    assert await paths(log_of(table)) == sorted(FILES)


@pytest.mark.parametrize("how", ["a damaged sidecar", "a missing sidecar"])
async def test_another_checkpoint_of_the_version_will_do(table: TableBuilder, how: str) -> None:
    spoil(table, how)
    classic(table)
    clean(table)
    log = log_of(table)
    assert await paths(log) == sorted(FILES)
    files = await sort_files(log.live_files(await log.load_snapshot(), WITH_STATISTICS))
    assert [(add.path, add.num_records) for add in files] == [(f, 1) for f in sorted(FILES)]
    wanted = {("f3.parquet", ""), ("f5.parquet", "")}
    assert set(await log.find_files(5, wanted)) == wanted


async def test_a_part_of_several_that_is_damaged_is_passed_over(table: TableBuilder) -> None:
    names = [f"{4:020d}.checkpoint.{i:010d}.{2:010d}.parquet" for i in (1, 2)]
    write_checkpoint(table.log / names[0], [[*steering(table), *listed(1, 2)]])
    damage_add(write_checkpoint(table.log / names[1], [listed(3, 4)]))
    assert await paths(log_of(table)) == sorted(FILES)
    clean(table)
    assert names[1] in await refused(log_of(table))


async def test_a_checkpoint_that_is_cleaned_up_in_between_may_heal(table: TableBuilder) -> None:
    sidecars = v2(table)
    log = log_of(table)
    snapshot = await log.load_snapshot()
    clean(table)
    for path in (*sidecars, table.log / V2):
        path.unlink()
    with pytest.raises(TransientError, match=f"{V2}: listed and can't be read"):
        [add async for add in log.live_files(snapshot)]


async def test_a_new_checkpoint_stands_in_for_one_that_was_cleaned_up(table: TableBuilder) -> None:
    sidecars = v2(table)
    log = log_of(table)
    snapshot = await log.load_snapshot()
    classic(table)
    clean(table)
    for path in (*sidecars, table.log / V2):
        path.unlink()
    async with aclosing(log.live_files(snapshot)) as files:
        assert {add.path async for add in files} == FILES


@pytest.mark.parametrize("hint", ["crc", "_last_checkpoint"])
async def test_one_bad_hint_does_not_stop_a_table_that_the_log_or_another_proves(
    table: TableBuilder, hint: str
) -> None:
    classic(table)
    checksum(table, 9 if hint == "crc" else 4)
    table.hint(4, 6, numOfAddFiles=4 if hint == "crc" else 9)
    assert await paths(log_of(table)) == sorted(FILES)
    clean(table)
    assert await paths(log_of(table)) == sorted(FILES), "the other hint fits"


async def test_a_wrong_count_alone_is_ignored_where_the_log_is_whole(table: TableBuilder) -> None:
    classic(table)
    checksum(table, 9)
    assert await paths(log_of(table)) == sorted(FILES)
    clean(table)
    message = await refused(log_of(table))
    assert f"lists 4 files, and {4:020d}.crc says 9" in message
    assert f"remove {4:020d}.crc if it is whole" in message
    (table.log / f"{4:020d}.crc").unlink()
    assert await paths(log_of(table)) == sorted(FILES)


@pytest.mark.parametrize("text", ["", "{", '{"numFiles": 9}', "[9]"])
async def test_a_checksum_that_can_t_be_read_counts_nothing(table: TableBuilder, text: str) -> None:
    classic(table)
    (table.log / f"{4:020d}.crc").write_text(text)
    clean(table)
    assert await paths(log_of(table)) == sorted(FILES)


async def test_a_checksum_of_another_table_counts_nothing(table: TableBuilder) -> None:
    classic(table)
    checksum(table, 9)
    crc = table.log / f"{4:020d}.crc"
    document = json.loads(crc.read_text())
    document["metadata"]["id"] = "another"
    crc.write_text(json.dumps(document))
    clean(table)
    assert await paths(log_of(table)) == sorted(FILES)


@pytest.mark.parametrize("how", WAYS)
async def test_the_sharing_server_falls_back_too(table: TableBuilder, how: str) -> None:
    spoil(table, how)
    config = TableConfig(share="s", schema="x", name="t", location=str(table.folder))
    shared = SharedTable(config, LocalStore(str(table.folder)))
    snapshot = await shared.load_snapshot(5)
    found = [add async for batch in shared.list_live_files(snapshot) for add in batch]
    assert sorted(add["path"] for add in found) == sorted(FILES)
    assert all(add["stats"] == '{"numRecords":1}' for add in found)
