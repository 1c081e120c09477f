"""What every reader of a log promises, whatever its store is like; and one in memory, slow and
lossy, that a test has written by the contract alone."""

from __future__ import annotations

import io
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.delta.segment import format_commit_name
from tailer.log.cursor import FollowOptions
from tailer.log.follow import follow_backlog
from tailer.log.json_files import MEMORY_BYTES_MAX, CommitText
from tailer.log.questions import FileTag, NotThere, Torn
from tailer.log.readers import SMALL_BYTES_MAX, BulkReader, LogReader
from tailer.log.table import TableLog
from tailer.store import BlockingFiles, Found
from tailer.store.budget import Budget
from tailer.store.fetched_files import FetchedFiles, NotFetched
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.support.faulty import FaultyStore, Script

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])
BUDGET_BYTES = 4 * MEMORY_BYTES_MAX
QUICK = FollowOptions(poll_min_s=0.001, poll_max_s=0.002)


class MemoryReader(LogReader):
    """Commits in memory: each comes late, and one in three times it is said not to be there."""

    def __init__(self, seed: int) -> None:
        self.files: dict[str, Found] = {}
        self._random = random.Random(seed)
        self._ahead: set[int] = set()

    async def read_commit(self, version: int, asked_at: float) -> CommitText | NotThere | Torn:
        requested = version in self._ahead
        self._ahead.discard(version)
        for _ in range(self._random.randrange(5)):
            await anyio.lowlevel.checkpoint()
        found = self.files.get(f"_delta_log/{format_commit_name(version)}")
        if found is None or self._random.random() < 1 / 3:
            return NotThere(asked_at)
        data, status = found
        if not data.endswith(b"\n"):
            return Torn()
        before = self.files.get(f"_delta_log/{format_commit_name(version - 1)}")
        tag = None if before is None else before[1].tag
        return CommitText(partial(io.BytesIO, data), status, FileTag(tag) if requested else None)

    async def find_blocking_files(
        self, reads: Sequence[tuple[str, int]], after: str | None = None
    ) -> BlockingFiles | None:
        await anyio.lowlevel.checkpoint()
        if self._random.random() < 1 / 3:
            return None
        few = [name for name, _ in reads][: self._random.randrange(1, 20)]
        names = few if after is None else [*few, after]
        paths = [f"_delta_log/{name}" for name in names]
        return FetchedFiles("memory", {path: self.files.get(path) for path in paths})

    def request_ahead(self, version: int, last: int | None) -> None:
        if last is None or version <= last:
            self._ahead.add(version)

    async def aclose(self) -> None:
        self._ahead.clear()


class RemoteStore(LocalStore):
    """A folder that wants to be asked as a server does."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self._budget = Budget(BUDGET_BYTES)

    def ahead(self) -> Budget:
        return self._budget

    def blocking_files(self) -> None:  # type: ignore[override]  # it is asked as a server is
        return None


@dataclass
class Rig:
    table: TableBuilder
    log: TableLog
    reader: LogReader
    budget: Budget

    async def commit(self, *, torn: bool = False) -> None:
        version = self.table.version + 1
        self.table.insert([{"id": version}])
        if torn:
            path = self.table.commit_path(version)
            path.write_bytes(path.read_bytes()[:30])
        await self.remember()

    async def remember(self) -> None:
        if isinstance(self.reader, MemoryReader):
            store = self.log.store
            async for status in store.list("_delta_log"):
                path = f"_delta_log/{status.name}"
                self.reader.files[path] = await store.read(path)

    async def ask(self, version: int) -> CommitText | NotThere | Torn:
        """Ask for a commit that is there, until it comes."""
        for _ in range(50):
            answer = await self.reader.read_commit(version, anyio.current_time())
            if not isinstance(answer, NotThere):
                break
        return answer


@pytest.fixture(params=["local", "one by one", "bulk", "ahead", "memory"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    folder = str(table.folder)
    store: LocalStore | FaultyStore = LocalStore(folder)
    if request.param == "one by one":
        store = FaultyStore(LocalStore(folder), Script({}))
    elif request.param in ("bulk", "ahead"):
        store = RemoteStore(folder)
    log = TableLog(store)
    budget, reader = store.ahead() or Budget(0), log.open_reader()
    if request.param == "bulk":
        reader = BulkReader(log._json, budget)
    elif request.param == "memory":
        reader = MemoryReader(seed=1)
    rig = Rig(table, log, reader, budget)
    for _ in range(3):
        await rig.commit()
    yield rig
    await reader.aclose()
    assert budget.taken == 0


async def test_a_commit_is_read_as_it_is(rig: Rig) -> None:
    text = await rig.ask(2)
    assert isinstance(text, CommitText)
    assert b"".join(text.lines()) == rig.table.commit_path(2).read_bytes()
    assert b"".join(text.lines()) != b"", "they can be read again"
    assert text.status == await rig.log.store.stat(f"_delta_log/{format_commit_name(2)}")
    assert text.predecessor in (None, FileTag(await rig.log.find_tag(format_commit_name(1))))


async def test_a_commit_that_does_not_exist_is_an_answer_until_it_comes(rig: Rig) -> None:
    for asked_at in (1.0, 2.0):
        assert await rig.reader.read_commit(4, asked_at) in (
            NotThere(asked_at), NotThere(asked_at, idle=True)
        )  # fmt: skip
    await rig.commit()
    assert isinstance(await rig.ask(4), CommitText)


async def test_a_half_written_commit_is_said_to_be_torn(rig: Rig) -> None:
    await rig.commit(torn=True)
    assert await rig.ask(4) == Torn()
    path = rig.table.commit_path(4)
    path.write_bytes(rig.table.commit_path(3).read_bytes())
    await rig.remember()
    assert isinstance(await rig.ask(4), CommitText)


async def test_many_files_are_there_for_a_worker_thread(rig: Rig) -> None:
    names = [format_commit_name(version) for version in (2, 3, 9)]
    reads = [(name, SMALL_BYTES_MAX) for name in names]
    answers = [
        await rig.reader.find_blocking_files(reads, format_commit_name(1)) for _ in range(10)
    ]
    for files in [files for files in answers if files is not None]:
        for name in names[:2]:
            try:
                data, status = files.read_here(f"_delta_log/{name}")
            except NotFetched:  # it is read by itself
                continue
            assert (data, status) == await rig.log.store.read(f"_delta_log/{name}")
        with pytest.raises((FileNotFoundError, NotFetched)):
            files.read_here(f"_delta_log/{names[2]}")
        assert files.stat_here(f"_delta_log/{format_commit_name(1)}").tag == await rig.log.find_tag(
            format_commit_name(1)
        )


async def test_what_is_requested_ahead_is_the_same(rig: Rig) -> None:
    """Its predecessor may be known already, and it is what it was after the commit was read."""
    rig.reader.request_ahead(1, 3)
    for version in (1, 2, 3):
        await anyio.sleep(0.01)
        text = await rig.ask(version)
        assert isinstance(text, CommitText)
        assert b"".join(text.lines()) == rig.table.commit_path(version).read_bytes()
        before = FileTag(await rig.log.find_tag(format_commit_name(version - 1)))
        assert text.predecessor in (None, before)


async def test_an_answer_says_when_it_was_asked_for(rig: Rig) -> None:
    rig.reader.request_ahead(4, None)
    now = anyio.current_time()
    answer = await rig.reader.read_commit(4, now + 60.0)
    assert isinstance(answer, NotThere)
    assert answer.asked_at in (pytest.approx(now, abs=30.0), now + 60.0)


async def test_a_commit_that_is_not_there_takes_nothing_of_the_budget(rig: Rig) -> None:
    rig.reader.request_ahead(4, None)
    await anyio.wait_all_tasks_blocked()
    assert rig.budget.taken == 0, "before anybody asks for it"


async def test_a_request_whose_taker_is_cancelled_takes_nothing_either(rig: Rig) -> None:
    rig.reader.request_ahead(1, None)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await rig.reader.read_commit(1, 0.0)
    await rig.reader.aclose()
    assert rig.budget.taken == 0


async def test_a_local_folder_at_rest_is_not_searched_again(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    os.utime(table.folder / "_delta_log", (1e9, 1e9))
    reader = TableLog(LocalStore(str(table.folder))).open_reader()
    assert await reader.read_commit(1, 1.0) == NotThere(1.0)
    assert await reader.read_commit(1, 2.0) == NotThere(2.0, idle=True)
    table.insert([{"id": 1}])
    assert isinstance(await reader.read_commit(1, 3.0), CommitText)


async def test_requests_that_nobody_takes_are_dropped(rig: Rig) -> None:
    rig.reader.request_ahead(1, None)
    await anyio.lowlevel.checkpoint()
    await rig.reader.aclose()
    assert rig.budget.taken == 0
    assert isinstance(await rig.ask(1), CommitText)


async def test_nothing_is_requested_beyond_the_end_or_the_budget(rig: Rig) -> None:
    rig.reader.request_ahead(4, 3)
    assert rig.budget.taken == 0
    assert rig.budget.try_take(rig.budget.bytes_max)
    rig.reader.request_ahead(1, None)
    assert rig.budget.taken == rig.budget.bytes_max
    rig.budget.give_back(rig.budget.bytes_max)
    assert isinstance(await rig.ask(1), CommitText)


async def test_a_log_is_followed_through_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it loses, and however late it comes: each commit once, in order."""
    monkeypatch.setattr(rig.log, "open_reader", lambda: rig.reader)
    for _ in range(30):
        await rig.commit()
    seen: list[int] = []
    with anyio.fail_after(120):
        async with aclosing(follow_backlog(rig.log, Offset(1), 45, QUICK)) as backlog:
            async for commits in backlog:
                seen += [commit.version for commit in commits]
                if rig.table.version < 45 and seen[-1] >= rig.table.version - 1:
                    await rig.commit()
    assert seen == list(range(1, 46))
