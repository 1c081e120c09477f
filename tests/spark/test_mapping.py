"""Column mapping that goes while a stream runs: the query's schema is older than what it reads.

No Spark is started here; the table is one that Spark wrote. In `mapping_back` mapping is removed at
version 9 and on again at 16; the schema that users see is the same from 6 to 16.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailer.changes import Offset
from tailer.delta.segment import format_commit_name
from tailer.plan.mapping_removals import find_mapping_removals
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tests.golden.compare import difference
from tests.golden.test_golden import GoldenCase, Reader, hold
from tests.support.feeds import table_log

REMOVED, AGAIN, RENAMED = 9, 16, 17


class Growing:
    """A copy of the table that ends at a version, and a stream's reader that was made then."""

    def __init__(self, table: Path, folder: Path, last: int, **options: Any) -> None:
        self.whole, self.folder = table, folder
        shutil.copytree(table, folder, ignore=lambda at, names: self._later(at, names, last))
        source = TailerSource({"path": str(folder), "startingVersion": "0", **options})
        self.reader = source.streamReader(source.schema())
        assert isinstance(self.reader, LimitedStreamReader)

    @staticmethod
    def _later(folder: str, names: list[str], last: int) -> list[str]:
        if not folder.endswith("_delta_log"):
            return []
        return [n for n in names if not n[:20].isdigit() or int(n[:20]) > last]

    def grow(self, last: int) -> None:
        """Commit the versions up to ``last``, as they were."""
        for version in range(last + 1):
            name = f"_delta_log/{format_commit_name(version)}"
            if not (self.folder / name).exists():
                shutil.copy2(self.whole / name, self.folder / name)

    def batch(self, first: int) -> pa.Table:
        """All changes from a version on."""
        start = Offset(first).to_json()
        end = self.reader.latestOffset(start, ReadAllAvailable())
        assert Offset.from_json(end).version > first
        found = [b for p in self.reader.partitions(start, end) for b in self.reader.read(p)]
        return pa.Table.from_batches(found)


def test_columns_are_found_where_their_mapping_was_removed_behind_the_querys_back(
    golden: GoldenCase, reader: Reader, tmp_path: Path
) -> None:
    case = golden("mapping_back")
    growing = Growing(case.table, tmp_path / "t", REMOVED - 1)
    for first, last in ((0, REMOVED - 1), (REMOVED, REMOVED + 5), (REMOVED + 6, AGAIN)):
        growing.grow(last)
        wanted = reader.changes(case.table, first, last, "auto")
        assert wanted.num_rows
        hold(difference(wanted, growing.batch(first)))
    # A query that begins again further back has to find them on both sides of its schema.
    hold(difference(reader.changes(case.table, 0, AGAIN, "auto"), growing.batch(0)))
    growing.grow(RENAMED)
    with pytest.raises(TailerSourceError, match="changes the table's schema"):
        growing.batch(RENAMED)


@pytest.mark.parametrize("began", [0, REMOVED - 1, REMOVED + 4, AGAIN])
def test_a_query_that_keeps_its_schema_has_the_values_of_renamed_columns(
    began: int, golden: GoldenCase, reader: Reader, tmp_path: Path
) -> None:
    """Whichever period its schema is of: unmapped, mapped, unmapped or mapped again."""
    case = golden("mapping_back")
    growing = Growing(case.table, tmp_path / "t", began, onSchemaChange="cast")
    growing.grow(21)
    wanted, found = reader.changes(case.table, 0, 21, "auto"), growing.batch(0)
    named = {"id": "id", "name": "label", "title": "label", "part": "half", "half": "half"}
    kept = [name for name in found.column_names if name in named]
    if began:  # "name" is the column that was added as that, "title" its later name
        named["name"] = "title"
    meta = ["_change_type", "_commit_version", "_commit_timestamp"]
    renamed = wanted.select([*(named[name] for name in kept), *meta]).rename_columns([*kept, *meta])
    hold(difference(renamed, found.select([*kept, *meta])))
    inner = "a" if not began else "c"
    assert all(row[inner] is not None for row in found.column("st").to_pylist())


@pytest.mark.anyio
async def test_one_mapping_that_reaches_through_is_known_without_its_commits(
    golden: GoldenCase, tmp_path: Path
) -> None:
    shutil.copytree(golden("mapping_name").table, tmp_path / "t")
    log = table_log(tmp_path / "t")
    last = await log.latest_version()
    before, end = (await log.load_snapshot(3)).state, (await log.load_snapshot(last)).state
    shutil.rmtree(tmp_path / "t")
    assert await find_mapping_removals(log, 4, last, end, before) == ()


@pytest.mark.anyio
async def test_removals_are_found_in_any_range(golden: GoldenCase) -> None:
    log = table_log(golden("mapping_back").table)

    async def found(first: int, last: int) -> list[int]:
        end = (await log.load_snapshot(last)).state
        return [removal.version for removal in await find_mapping_removals(log, first, last, end)]

    assert await found(0, 21) == [REMOVED]
    assert await found(REMOVED, REMOVED) == [REMOVED]
    assert await found(0, 15) == [REMOVED]
    for first, last in ((0, REMOVED - 1), (REMOVED + 1, 21), (RENAMED, 21), (22, 21)):
        assert await found(first, last) == []
