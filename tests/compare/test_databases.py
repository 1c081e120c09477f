"""The databases of the comparison are used again while somebody reads, and closed after that."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailer.compare.databases import keep_databases
from tailer.compare.engine import Engine
from tailer.decode.options import DiffOptions
from tests.support.waiting import eventually


def folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


@pytest.fixture
def options(tmp_path: Path) -> DiffOptions:
    return DiffOptions(spill_folder=str(tmp_path), threads=1)


def test_without_a_reader_nothing_is_kept(tmp_path: Path, options: DiffOptions) -> None:
    with Engine(options):
        assert len(folders(tmp_path)) == 1
    assert folders(tmp_path) == []


def test_a_reader_s_next_comparison_uses_the_same_and_finds_nothing_in_it(
    tmp_path: Path, options: DiffOptions
) -> None:
    with keep_databases():
        with Engine(options) as engine:
            engine.execute("CREATE TEMP TABLE unbalanced AS SELECT 1 AS n")
            used = folders(tmp_path)
        with keep_databases(), Engine(options) as engine:
            assert folders(tmp_path) == used
            assert engine.query_table("SELECT count(*) AS n FROM duckdb_tables()")[
                "n"
            ].to_pylist() == [0]
        assert folders(tmp_path) == used, "an outer reader is still there"
    assert folders(tmp_path) == []


def test_comparisons_at_one_time_have_each_its_own(tmp_path: Path, options: DiffOptions) -> None:
    with keep_databases():
        with ExitStack() as stack:
            for count in range(1, 5):
                stack.enter_context(Engine(options))
                assert len(folders(tmp_path)) == count
        assert len(folders(tmp_path)) == 2, "no more are kept, however many there were"
    assert folders(tmp_path) == []


def test_other_bounds_take_another_one(tmp_path: Path, options: DiffOptions) -> None:
    with keep_databases():
        with Engine(options):
            pass
        with Engine(DiffOptions(spill_folder=str(tmp_path), threads=2)) as engine:
            assert engine.query_table("SELECT current_setting('threads') AS n")[
                "n"
            ].to_pylist() == [2]
        assert len(folders(tmp_path)) == 2


def test_a_child_does_not_use_its_parent_s(options: DiffOptions) -> None:
    with keep_databases():
        with Engine(options):
            pass
        child = os.fork()
        if not child:  # no thread of the parent's database is here
            status = 1
            try:
                with Engine(options) as engine:
                    status = int(engine.query_table("SELECT 7 AS n")["n"].to_pylist() != [7])
            finally:
                os._exit(status)
        statuses: list[int] = []

        def has_ended() -> bool:
            number, status = os.waitpid(child, os.WNOHANG)
            statuses.append(status)
            return number == child

        eventually(has_ended)
        assert statuses[-1] == 0
        with Engine(options) as engine:
            assert engine.query_table("SELECT 7 AS n")["n"].to_pylist() == [7]


def test_one_whose_folder_was_removed_while_it_was_idle_is_not_used(
    tmp_path: Path, options: DiffOptions
) -> None:
    """As a cleaner of temporary folders does: what needs it would fail in each comparison."""
    with keep_databases():
        with Engine(options):
            used = folders(tmp_path)
        shutil.rmtree(tmp_path / used[0])
        with Engine(options):
            assert len(folders(tmp_path)) == 1
            assert folders(tmp_path) != used


def test_one_that_failed_is_not_used_again(tmp_path: Path, options: DiffOptions) -> None:
    with keep_databases():
        with pytest.raises(ValueError, match="any"), Engine(options):
            raise ValueError("any")
        assert folders(tmp_path) == []
