"""Changes count against the files of the version before: a log may refer to one logical file any
number of times, and only what is there can leave, only what is not there can come."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.changes import Offset
from tailer.delta.actions import AddFile
from tailer.delta.add_fields import FILES
from tailer.delta.snapshot import Snapshot
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.plan.live_database import DigestDatabase
from tailer.plan.live_files import LiveFiles
from tailer.plan.rules import ChangeSource
from tailer.spark.options import SourceOptions
from tailer.spark.orders import FileOrder, RewriteOrder
from tailer.spark.source.planning import StreamPlanner
from tailer.store.local import LocalStore
from tailer.testing.table import Action, TableBuilder
from tailer.verify.table import Verdict, verify_versions
from tests.support.feeds import ID, events, table_log

SOURCES: list[ChangeSource] = ["auto", "cdf", "derived"]
VECTORS = ["deletionVectors", "changeDataFeed"]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    made = TableBuilder(tmp_path / "t", ID, cdf=True)
    made.create(made.protocol(3, 7, readerFeatures=VECTORS[:1], writerFeatures=VECTORS))
    return made


def rows(*ids: int) -> list[dict[str, int]]:
    return [{"id": i} for i in ids]


def changes(table: TableBuilder, version: int, source: ChangeSource) -> list[tuple[str, int]]:
    found = events(table, version, version, source=source)
    return [(e["_change_type"], e["id"]) for e in found]


def verdict(table: TableBuilder, version: int, source: ChangeSource) -> Verdict:
    async def ask() -> Verdict:
        options = FeedOptions(change_source=source)
        found = verify_versions(table_log(table), version, version, options)
        async with aclosing(found):
            return await anext(found)

    return anyio.run(ask)


@pytest.mark.parametrize("source", SOURCES)
def test_a_remove_of_a_file_that_is_not_there_cancels_no_row_that_comes(
    table: TableBuilder, source: ChangeSource
) -> None:
    never = table.add(rows(1))
    version = table.commit(table.remove(never), table.add(rows(1)))
    assert changes(table, version, source) == [("insert", 1)]
    assert verdict(table, version, source).exact


@pytest.mark.parametrize("source", SOURCES)
def test_a_remove_that_comes_again_deletes_nothing(
    table: TableBuilder, source: ChangeSource
) -> None:
    first = table.add(rows(1, 2))
    table.commit(first)
    table.commit(table.remove(first))
    version = table.commit(table.remove(first))
    assert changes(table, version - 1, source) == [("delete", 1), ("delete", 2)]
    assert changes(table, version, source) == []
    assert verdict(table, version, source).exact


@pytest.mark.parametrize("source", SOURCES)
def test_an_add_of_a_file_that_is_there_inserts_nothing(
    table: TableBuilder, source: ChangeSource
) -> None:
    first, other = table.add(rows(1, 2)), table.add(rows(3))
    table.commit(first, other)
    version = table.commit(first, table.remove(other), table.add(rows(4)))
    assert changes(table, version, source) == [("delete", 3), ("insert", 4)]
    assert verdict(table, version, source).exact


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_that_comes_back_is_inserted_again(
    table: TableBuilder, source: ChangeSource
) -> None:
    first = table.add(rows(1))
    table.commit(first)
    table.commit(table.remove(first))
    version = table.commit(first)
    assert changes(table, version, source) == [("insert", 1)]
    assert verdict(table, version, source).exact


@pytest.mark.parametrize("source", SOURCES)
def test_a_bare_remove_of_a_file_with_a_vector_is_of_another_logical_file(
    table: TableBuilder, source: ChangeSource
) -> None:
    first = table.add(rows(1, 2, 3))
    table.commit({"add": {**first["add"], "deletionVector": table.vector([0])}})
    version = table.commit({"remove": {"path": first["add"]["path"], "dataChange": True}})
    assert changes(table, version, source) == [], "its key has no vector: no such file is there"
    assert verdict(table, version, source).exact


@pytest.mark.parametrize("source", SOURCES)
def test_a_vector_is_compared_with_the_one_that_is_there(
    table: TableBuilder, source: ChangeSource
) -> None:
    first = table.add(rows(1, 2, 3))
    table.commit(first)
    stale = {"remove": {**table.remove(first)["remove"], "deletionVector": table.vector([0, 1])}}
    after = {"add": {**first["add"], "deletionVector": table.vector([1])}}
    version = table.commit(table.remove(first))
    version = table.commit(stale, after)
    assert changes(table, version, source) == [("insert", 1), ("insert", 3)]
    assert verdict(table, version, source).exact


class Counted(TableLog):
    """A log that counts how often a whole snapshot's files are read."""

    read = 0

    def live_files(
        self, snapshot: Snapshot, fields: Sequence[str] = FILES
    ) -> AsyncGenerator[AddFile, None]:
        self.read += 1
        return super().live_files(snapshot, fields)


def read(
    log: TableLog, first: int, last: int, source: ChangeSource = "cdf"
) -> list[tuple[Any, ...]]:
    async def ask() -> list[tuple[Any, ...]]:
        options = FeedOptions(change_source=source)
        found = []
        async with aclosing(read_changes(log, Offset(first), last, options)) as batches:
            async for batch in batches:
                kinds = batch.rows.column("_change_type").to_pylist()
                ids = batch.rows.column("id").to_pylist()
                found += [(batch.version, *row) for row in zip(kinds, ids, strict=True)]
        return found

    return anyio.run(ask)


def random_history(table: TableBuilder, versions: int) -> list[set[tuple[Any, ...]]]:
    """Commits whose actions refer to few files again and again; the changes of each version."""
    rng = random.Random(7)
    files = [table.add(rows(10 * n, 10 * n + 1), path=f"f {n}%.parquet") for n in range(6)]
    live: set[int] = set()
    expected: list[set[tuple[Any, ...]]] = [set()]
    for version in range(1, versions + 1):
        touched = rng.sample(range(len(files)), rng.randint(0, 4))
        removed = {n for n in touched if rng.random() < 0.5}
        actions: list[Action] = [
            table.remove(files[n]) if n in removed else files[n] for n in touched
        ]
        table.commit(*actions)
        gone, come = live & removed, (set(touched) - removed) - live
        live = (live - gone) | come
        expected.append({
            (version, kind, 10 * n + i)
            for kind, numbers in (("delete", gone), ("insert", come))
            for n in numbers
            for i in (0, 1)
        })  # fmt: skip
    return expected


def test_from_any_version_on_the_files_are_known(table: TableBuilder) -> None:
    expected = random_history(table, 24)
    table.checkpoint(12)
    for first in (1, 7, 13, 20):
        log = Counted(LocalStore(str(table.folder)))
        found = read(log, first, 24)
        assert len(found) == len(set(found))
        assert set(found) == set().union(*expected[first:])
        assert log.read == 1, "and they are read once, not for each version"


def test_versions_with_change_data_need_no_files(table: TableBuilder) -> None:
    table.commit(table.add(rows(1)))
    for n in range(5):
        table.commit(table.add(rows(n)), table.cdc([{"id": n, "_change_type": "insert"}]))
    log = Counted(LocalStore(str(table.folder)))
    assert len(read(log, 2, 6)) == 5
    assert log.read == 0


def test_where_the_version_before_is_cleaned_up_the_commit_is_believed(
    table: TableBuilder,
) -> None:
    for n in range(3):
        table.insert(rows(n))
    table.checkpoint(2)
    for version in range(2):
        table.commit_path(version).unlink()
    log = Counted(LocalStore(str(table.folder)))
    assert read(log, 2, 3) == [(2, "insert", 1), (3, "insert", 2)]


def test_a_commit_that_is_read_again_gives_the_same(table: TableBuilder) -> None:
    first = table.add(rows(1))
    table.commit(first)
    table.commit(first)
    table.insert(rows(2))

    async def ask() -> list[int]:
        log, live = Counted(LocalStore(str(table.folder))), LiveFiles()
        state = await log.state_before(1)
        found = []
        for version in (2, 2, 3, 3, 2, 1):
            commit = await log.read_commit(version, state, None)
            found.append(len(await live.apply_commit(log, commit, "derived")))
        return [*found, log.read]

    found = [1, 1, 0, 0, 1, 0]
    assert anyio.run(ask) == [*found, 2], "only going back to the unknown takes another look"


def test_commits_that_change_all_that_they_say_cost_no_memory_each(tmp_path: Path) -> None:
    from tailer.plan.live_files import _Keys

    keys = _Keys(str(tmp_path))
    empty = {id(keys.apply_commit(n.to_bytes(16, "big"), b"")) for n in range(10)}
    assert len(empty) == 1


def test_a_set_that_outgrows_its_memory_is_as_exact(tmp_path: Path) -> None:
    from tailer.plan.live_files import _Keys

    keys = _Keys(str(tmp_path))
    names = [n.to_bytes(16, "big") for n in range(100_000)]
    keys.insert_keys(names)
    assert list(tmp_path.iterdir()) == [], "nobody has to sweep it up"
    assert keys.apply_commit(b"".join(names[:3]), b"".join(names[3:6])) == set(names[:3])
    later = (200_000).to_bytes(16, "big")
    assert keys.apply_commit(names[3] + later, names[4] + names[7]) == {names[4]}
    assert keys.apply_commit(b"", later + names[7] + names[99_999]) == {names[7]}
    keys.close()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("others", [0, 100])
def test_what_a_commit_repeats_comes_once(
    table: TableBuilder, source: ChangeSource, others: int
) -> None:
    more = [table.add(rows(100 + i), dataChange=False) for i in range(others)]
    first, last = table.add(rows(1, 2)), table.add(rows(3))
    table.commit(table.metadata(), *more, first, first, table.metadata())
    gone = table.remove(first)
    table.commit(gone, last, gone, last)
    arranged = [("insert", 100 + i) for i in range(others)] if source == "derived" else []
    assert sorted(changes(table, 1, source)) == [("insert", 1), ("insert", 2), *arranged]
    assert changes(table, 2, source) == [("delete", 1), ("delete", 2), ("insert", 3)]
    snapshot = events(table, Offset(2, snapshot=True), 2)
    assert sorted(e["id"] for e in snapshot if "id" in e) == [3, *range(100, 100 + others)]
    found = verdict(table, 2, source)
    assert (found.missing, found.surplus) == (0, 0)


#: A commit that names one file twice has it once here.
_NAMES = st.integers(0, 9).map(lambda n: n.to_bytes(16, "big"))
_KEYS = st.lists(_NAMES, max_size=5, unique=True).map(b"".join)


@given(st.lists(st.tuples(_KEYS, _KEYS), max_size=12), st.integers(0, 5))
def test_a_set_in_memory_is_as_exact_as_a_database(
    commits: list[tuple[bytes, bytes]], few: int
) -> None:
    from tailer.plan import live_files

    database = DigestDatabase(None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_files, "_FEW", few)
        keys = live_files._Keys(None)
        for added, removed in commits:
            assert keys.apply_commit(added, removed) == database.apply_commit(added, removed)
    keys.close()
    database.close()


@pytest.mark.parametrize("source", ["cdf", "derived"])
def test_spark_plans_by_the_same_files(table: TableBuilder, source: ChangeSource) -> None:
    first, other = table.add(rows(1, 2)), table.add(rows(3))
    table.commit(first, other)
    table.commit(first, table.remove(other), table.remove(table.add(rows(9))))

    async def orders() -> list[Any]:
        options = SourceOptions(str(table.folder), change_source=source)
        planner = StreamPlanner(table_log(table), options)
        found = planner.plan_orders(Offset(2), Offset(3))
        async with aclosing(found):
            return [order async for _, several in found for order in several]

    (order,) = anyio.run(orders)
    if isinstance(order, FileOrder):
        assert order.file.path == other["add"]["path"]
    else:
        assert isinstance(order, RewriteOrder)
        assert not order.rewrite.coming
