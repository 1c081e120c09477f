"""A read of versions that are there: the log is listed once, and its small files are read once."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.errors import TableError
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.json_files import CommitText
from tailer.log.listed import ListedLog, list_once
from tailer.log.questions import FileTag
from tailer.log.same_table import find_commit_tag
from tailer.log.table import TableLog
from tailer.storage import open_store
from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.front import Front, run_front
from tests.s3.objects import Objects
from tests.s3.tables import upload

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
VERSIONS = 4


def commit(version: int) -> str:
    return f"orders/_delta_log/{version:020d}.json"


async def written(folder: Path, bucket: Bucket, versions: int = VERSIONS) -> TableBuilder:
    """A table whose versions after the first have a row each, on the server."""
    made = TableBuilder(folder / "orders", SCHEMA)
    made.create()
    for i in range(versions):
        made.insert([{"id": i}])
    await upload(made.folder, bucket, "orders")
    return made


def asked(front: Front) -> Counter[tuple[str, str]]:
    """How often each file of the log was asked for, by the operation and its name's end."""
    return Counter((operation, path[-6:]) for operation, path in front.asked)


async def test_a_bounded_read_asks_once_for_the_listing_and_for_each_commit(
    bucket: Bucket, tmp_path: Path
) -> None:
    await written(tmp_path, bucket)
    with run_front(bucket) as front:
        store = open_store(front.bucket.address("orders"), front.bucket.options)
        async with aclosing(store):
            log = await list_once(TableLog(store))
            end = await log.load_snapshot()
            at = Offset(VERSIONS - 1, table_id=end.state.table_id)
            found = [
                c async for c in follow_commits(log, at, VERSIONS, FollowOptions(same_table=False))
            ]
            before = await log.load_snapshot(VERSIONS - 2)
            files = [add async for add in log.live_files(before)]
    assert [c.version for c in found] == [VERSIONS - 1, VERSIONS]
    assert len(files) == VERSIONS - 2
    counts = asked(front)
    assert front.requests["list"] == 1
    assert all(counts["get", f"{v}.json"] == 1 for v in range(VERSIONS + 1))
    # The one before the first that is read is still the same afterwards.
    assert counts["head", f"{VERSIONS - 2}.json"] == 1


async def test_what_a_read_begins_with_is_asked_for_before_its_decoder_is_there(
    bucket: Bucket, tmp_path: Path
) -> None:
    made = await written(tmp_path, bucket)
    made.checkpoint()
    made.insert([{"id": 10}])
    await upload(made.folder, bucket, "orders")
    with run_front(bucket) as front:
        store = open_store(front.bucket.address("orders"), front.bucket.options)
        async with aclosing(store):
            log = await list_once(TableLog(store))
            assert isinstance(log, ListedLog)
            await log.prefetch_start(made.version)
            asked_before = len(front.asked)
            at = Offset(made.version, table_id=made.table_id)
            (found,) = [c async for c in follow_commits(log, at, made.version)]
    assert found.version == made.version
    assert found.before is not None
    assert found.before.table_id == made.table_id
    assert front.asked[asked_before:] == []


async def test_a_commit_is_settled_only_beside_the_one_that_was_listed_before_it(
    bucket: Bucket, tmp_path: Path
) -> None:
    made = await written(tmp_path, bucket)
    async with aclosing(open_store(bucket.address("orders"), bucket.options)) as store:
        log = await list_once(TableLog(store))
        async with Objects(bucket) as objects:
            await objects.put(commit(1), made.commit_path(1).read_bytes() + b"\n")
        assert isinstance(log, ListedLog)
        await log.prefetch_start(2)
        assert await predecessor(log, 2) != FileTag(await find_commit_tag(log, 1))
        await log.prefetch_start(3)
        assert await predecessor(log, 3) == FileTag(await find_commit_tag(log, 2))
        # One that was not read in between is not known.
        assert await predecessor(log, 4) is None


async def predecessor(log: TableLog, version: int) -> FileTag | None:
    """The file before a commit, as far as it is known without a look-up of its own."""
    async with aclosing(log.open_reader()) as reader:
        text = await reader.read_commit(version, 0.0)
    assert isinstance(text, CommitText)
    return text.predecessor


async def test_a_table_that_was_replaced_after_the_listing_is_read_as_it_is_now(
    bucket: Bucket, tmp_path: Path
) -> None:
    await written(tmp_path / "old", bucket)
    async with aclosing(open_store(bucket.address("orders"), bucket.options)) as store:
        log = await list_once(TableLog(store))
        old = await log.load_snapshot(0)
        async with Objects(bucket) as objects:
            for key in await objects.keys("orders/"):
                await objects.delete(key)
        new = await written(tmp_path / "new", bucket)
        assert await find_commit_tag(log, 0) not in (None, await log.find_tag(commit(0)[-25:]))
        assert (await log.load_snapshot(1)).state.table_id != old.state.table_id
        found = [c async for c in follow_commits(log, Offset(2), new.version)]
    assert [c.after.table_id for c in found] == [found[0].after.table_id] * (VERSIONS - 1)
    assert found[0].after.table_id != old.state.table_id


async def test_what_was_cleaned_up_after_the_listing_is_listed_again(
    bucket: Bucket, tmp_path: Path
) -> None:
    made = await written(tmp_path, bucket)
    async with aclosing(open_store(bucket.address("orders"), bucket.options)) as store:
        log = await list_once(TableLog(store))
        made.checkpoint()
        await upload(made.folder, bucket, "orders")
        async with Objects(bucket) as objects:
            await objects.delete(commit(0))
        assert (await log.load_snapshot(VERSIONS)).version == VERSIONS
        with pytest.raises(TableError, match="commit 0 is missing"):
            await log.load_snapshot(VERSIONS - 1)
