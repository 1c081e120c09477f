"""The rules of the protocol in tests/README.md: each has its tests, and these are the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.delta.statistics import find_bounds, parse_statistics
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.plan.rules import ChangeSource
from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import batches, events, table_log
from tests.support.source import ROOT

_ROW = re.compile(r"\| (\d+) \| .* \| (.*) \|")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_every_rule_of_the_list_has_tests_that_are_there() -> None:
    lines = (ROOT / "tests" / "README.md").read_text().splitlines()
    rows = [match for line in lines if (match := _ROW.fullmatch(line))]
    assert [int(row[1]) for row in rows] == [3, 5, 9, 13, 14, 16, 17, 18, 19, 20, 21, 26]
    for row in rows:
        named = _TEST.findall(row[2])
        assert named, f"rule {row[1]} has no test"
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file} has no {test}"


@pytest.mark.parametrize("source", ["auto", "derived"])
def test_rule_3_an_overwrite_changes_columns_types_and_partitioning_at_once(
    tmp_path: Path, source: ChangeSource
) -> None:
    table = TableBuilder(
        tmp_path / "t",
        pa.schema([("id", pa.int64()), ("p", pa.string())]),
        partition_by=["p"],
        cdf=source == "auto",
    )
    table.create()
    old = table.add([{"id": 1}], partition={"p": "x"})
    table.commit(old)
    table.schema = pa.schema([("p", pa.int32()), ("id", pa.string()), ("more", pa.bool_())])
    table.partition_by = ("more",)
    new = table.add([{"p": 7, "id": "one"}], partition={"more": "true"})
    # The new metadata stands behind the files, as a commit has no order.
    table.commit(new, table.remove(old), table.metadata())
    rows = [
        {k: v for k, v in e.items() if k not in ("_event_id", "_commit_timestamp")}
        for e in events(table, 2, source=source)
    ]
    assert rows == [
        {"id": 1, "p": "x", "_change_type": "delete", "_commit_version": 2},
        {"p": 7, "id": "one", "more": True, "_change_type": "insert", "_commit_version": 2},
    ]


def test_rule_5_cdc_actions_count_where_no_file_changes_data(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    first = table.add([{"id": 1}])
    table.commit(first)
    second = table.add([{"id": 2}], dataChange=False)
    images = [
        {"id": 1, "_change_type": "update_preimage"},
        {"id": 2, "_change_type": "update_postimage"},
    ]
    table.commit(table.remove(first, dataChange=False), second, table.cdc(images))
    assert [e["id"] for e in events(table, 2)] == [1, 2]
    assert events(table, 2, source="derived") == []


def test_rule_9_null_counts_have_two_spellings() -> None:
    for name in ("nullCount", "nullCounts"):
        stats = {"numRecords": 3, "minValues": {"a": 1}, "maxValues": {"a": 2}, name: {"a": 0}}
        (found,) = find_bounds(parse_statistics(None, stats))
        assert (found.low, found.high, found.no_nulls) == (1, 2, True)


_TRACKED = {
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
_PRESERVED: Action = {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}


@pytest.mark.parametrize("enabled", [(True, True), (False, True), (True, False), (False, False)])
def test_rule_16_ids_count_where_tracking_is_enabled_before_and_after(
    tmp_path: Path, enabled: tuple[bool, bool]
) -> None:
    """It is supported all the time, and every file has its base; the values are swapped by id."""
    schema = pa.schema([("v", pa.int64())])
    names = [{**_TRACKED, "delta.enableRowTracking": str(on).lower()} for on in enabled]
    table = TableBuilder(tmp_path / "t", schema, properties=names[0])
    features = ["rowTracking", "domainMetadata"]
    table.commit(table.protocol(1, 7, writerFeatures=features), table.metadata())
    old = table.add([{"v": 1}, {"v": 2}], baseRowId=0, defaultRowCommitVersion=1)
    table.commit(old)
    table.properties = names[1]
    table.schema = pa.schema([*schema, ("_row_id", pa.int64()), ("_row_version", pa.int64())])
    swapped: list[dict[str, Any]] = [
        {"v": 2, "_row_id": 0, "_row_version": None},
        {"v": 1, "_row_id": 1, "_row_version": None},
    ]
    new = table.add(swapped, baseRowId=10, defaultRowCommitVersion=2)
    table.schema = schema
    table.commit(_PRESERVED, table.metadata(), table.remove(old), new)
    origins = {b.file.origin for b in batches(table, 2) if b.file}
    assert origins == ({"row_ids"} if all(enabled) else set())
    assert len(events(table, 2)) == (4 if all(enabled) else 0)


def test_rule_20_an_update_of_the_key_is_a_delete_and_an_insert(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    table.create()
    old = table.add([{"k": 1, "v": 0}, {"k": 2, "v": 0}])
    table.commit(old)
    table.commit(table.remove(old), table.add([{"k": 9, "v": 0}, {"k": 2, "v": 5}]))

    async def read() -> list[tuple[str, int]]:
        changes = read_changes(table_log(table), Offset(2), 2, FeedOptions(key=("k",)))
        return [
            (row["_change_type"], row["k"]) async for b in changes for row in b.rows.to_pylist()
        ]

    assert anyio.run(read) == [
        ("delete", 1),
        ("update_preimage", 2),
        ("insert", 9),
        ("update_postimage", 2),
    ]
