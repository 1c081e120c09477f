"""What the table writer writes is what it says: real Spark reads the same rows, ids and changes."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailer.changes import CHANGE_TYPES
from tests.property.operations import FEATURES, OPERATIONS, Setting, created, ensure, oldest
from tests.tables.model import Column, TableVersion, event_key, row_key
from tests.tables.writer import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# One keeps each feature; five have all operations. More of them is for `make torture`.
HISTORIES = max(len(FEATURES), int(os.environ.get("TAILER_TORTURE_ROUNDS", "0")) // 50)
STEPS = 6
ROW_OPERATIONS = (
    "append", "update", "merge", "append_and_compact", "delete", "optimise", "update", "restore",
    "delete_all", "append_and_renew", "merge", "overwrite",
)  # fmt: skip
Found = Counter[tuple[Any, ...]]


def played(folder: Path, number: int) -> TableWriter:
    """A history in which every feature is kept by some, and every operation is in some."""
    rng = random.Random(number)
    feature = FEATURES[number % len(FEATURES)]
    # The same shuffle for all, so that the pieces of it have all operations.
    names = sorted(OPERATIONS)
    random.Random(7).shuffle(names)
    turned = names[number * STEPS % len(names) :] + names
    chosen = {feature} - {"type_widening"} | set(rng.sample(["cdf", "row_tracking"], 1))
    writer = created(folder, Setting(frozenset(chosen), number))
    # What is cleaned away can't be compared, so that comes last.
    for name in sorted(turned[:STEPS], key="clean_log".__eq__):
        ensure(writer, feature, rng)
        OPERATIONS[name](writer, rng)
    return writer


def plain(value: Any, column: Column) -> Any:
    """A value of Spark's as pyarrow has it."""
    if value is None:
        return None
    if column.fields:
        return {f.name: plain(value[f.name], f) for f in column.fields}
    return list(value.items()) if pa.types.is_map(column.type) else value


def keys(rows: list[Row], columns: tuple[Column, ...], *more: str) -> Found:
    """The rows as :func:`event_key` has them, each with further columns' values."""
    found: Found = Counter()
    for row in rows:
        values = {c.name: plain(row[c.name], c) for c in columns}
        found[*(row[name] for name in more), event_key(values, columns)] += 1
    return found


def snapshot(frame: DataFrame, version: TableVersion) -> tuple[Found, Found]:
    """(what Spark has, what the table has) at a version, with row ids where there are some."""
    if version.on("delta.enableRowTracking"):
        ids = ("row_id", "row_commit_version")
        rows = frame.select("*", *(f"_metadata.{name}" for name in ids)).collect()
        expected = Counter(
            (row.row_id, row.commit_version, row_key(row.values, version.columns))
            for _, row in version.live()
        )
        return keys(rows, version.columns, *ids), expected
    return keys(frame.collect(), version.columns), Counter(
        {(key,): n for key, n in version.multiset().items()}
    )


def changes(version: TableVersion, before: TableVersion) -> Found:
    """A version's change data as the writer means it."""
    columns = version.columns
    if version.cdc is not None:
        return Counter((c.kind, row_key(c.values, columns)) for c in version.cdc)
    old, new = dict(before.live()), dict(version.live())
    sides = (("delete", old, new), ("insert", new, old))
    return Counter(
        (kind, row_key(row.values, columns))
        for kind, rows, others in sides
        for place, row in rows.items()
        if place not in others and place[0] not in version.still
    )


@pytest.mark.parametrize("number", range(HISTORIES))
def test_spark_reads_every_version_as_it_was_meant(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    writer = played(tmp_path, number)
    read = spark.read.format("delta")
    for version in range(oldest(writer), writer.present.version + 1):
        frame = read.option("versionAsOf", version).load(str(tmp_path))
        got, expected = snapshot(frame, writer.versions[version])
        assert got == expected, f"version {version}, {writer.versions[version].operation}"


@pytest.mark.parametrize(
    "features",
    [
        {"deletion_vectors"},
        {"row_tracking", "partitioned"},
        {"name_mapping", "partitioned"},
        {"id_mapping", "deletion_vectors", "row_tracking", "in_commit_timestamps"},
    ],
)
def test_spark_reads_every_change_as_it_was_meant(
    spark: SparkSession, tmp_path: Path, features: set[str]
) -> None:
    writer = created(tmp_path, Setting(frozenset({"cdf", *features}), 8 * len(features)))
    rng = random.Random(len(features))
    for name in ROW_OPERATIONS * 2:
        OPERATIONS[name](writer, rng)
    writer.checkpoint()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    columns = writer.present.columns
    found = keys(feed.load(str(tmp_path)).collect(), columns, "_commit_version", "_change_type")
    expected = Counter(
        {
            (version, *change): n
            for version in range(1, writer.present.version + 1)
            for change, n in changes(writer.versions[version], writer.versions[version - 1]).items()
        }
    )
    assert found == expected
    assert {kind for _, kind, _ in found} == set(CHANGE_TYPES)


def test_a_second_writer_is_rebased_and_spark_reads_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    tracked = {"delta.enableRowTracking": "true"}
    writer = TableWriter(tmp_path, pa.schema([("id", pa.int64())]), properties=tracked)
    other = writer.fork()
    writer.append([{"id": 1}, {"id": 2}])
    other.append([{"id": 3}])
    frame = spark.read.format("delta").load(str(tmp_path))
    got, expected = snapshot(frame, other.present)
    assert got == expected
    assert other.present.version == 2
