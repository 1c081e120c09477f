"""Spark's own answers about one table: its change feed, its rows at every version, its history."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.golden.compare import read_folder, replay, replayable

ERROR_CHARACTERS_MAX = 100

# An error of Delta's own comes as the one or the other.
REFUSED = (PySparkException, Py4JError)

# Microseconds reach every year that Spark has; its default, INT96, does not in all readers.
ANSWER_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.compression.codec": "uncompressed",
    "spark.sql.variant.writeShredding.enabled": "false",
}


def commit_files(table: Path) -> dict[int, Path]:
    """The table's commit files by version."""
    names = (path for path in (table / "_delta_log").glob("*.json"))
    return {int(path.stem): path for path in sorted(names) if path.stem.isdigit()}


def _operation(commit: Path) -> str:
    actions = map(json.loads, commit.read_text(encoding="utf-8").splitlines())
    return next(str(a["commitInfo"]["operation"]) for a in actions if "commitInfo" in a)


# Spark refuses a batch of changes over a renamed, dropped, widened or replaced column. Asked to
# do it all the same, it gives every row in the latest schema: by physical names, cast upwards.
ACROSS_SCHEMAS = {
    "spark.databricks.delta.changeDataFeed."
    "unsafeBatchReadOnIncompatibleSchemaChanges.enabled": "true"
}


def answer(
    spark: SparkSession, table: Path, expected: Path, *, across_schemas: bool, changes_from: int
) -> dict[str, Any]:
    """Write changes, snapshots and summary.json into `expected`; the summary is returned.

    `across_schemas` asks for the changes of all versions in the latest schema, `changes_from` for
    none before that version.

    Keys: `versions` first and last; `ops` by version; `timestamps` in ms by version as in Spark's
    history; `cdf_errors` by starting version; `changes` from the first starting version that
    Spark accepts; `snapshots` row counts by version, or `ERR` and Spark's words;
    `writer_inconsistent` the versions whose change rows do not fit Spark's own snapshots.
    """
    settings = ANSWER_SETTINGS | (ACROSS_SCHEMAS if across_schemas else {})
    for key, value in settings.items():
        spark.conf.set(key, value)
    files = commit_files(table)
    versions = sorted(files)
    summary: dict[str, Any] = {"versions": [versions[0], versions[-1]]}
    try:
        described = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").orderBy("version")
        times = described.selectExpr("version", "operation", "unix_millis(timestamp) ms").collect()
        history = [(row.version, row.operation, row.ms) for row in times]
    except REFUSED:  # by metrics of older deltalakes, which are no texts
        history = [(v, _operation(f), f.stat().st_mtime_ns // 10**6) for v, f in files.items()]
    summary["ops"] = {str(version): operation for version, operation, _ in history}
    summary["timestamps"] = {str(version): ms for version, _, ms in history}
    errors: dict[str, str] = {}
    for start in (version for version in versions if version >= changes_from):
        try:
            summary["changes"] = _changes(spark, table, start, expected / "changes")
            break
        except REFUSED as error:
            errors[str(start)] = _words(error, table)
    if errors:
        summary["cdf_errors"] = errors
    summary["snapshots"] = {
        str(v): _snapshot(spark, table, v, expected / "snapshots" / str(v)) for v in versions
    }
    if wrong := inconsistent(summary, expected):
        summary["writer_inconsistent"] = sorted(wrong)
        for version, lines in wrong.items():
            print(f"  Spark's changes of version {version} do not fit its snapshots:", *lines[:4])
    for key in settings:
        spark.conf.unset(key)
    write_summary(summary, expected)
    return summary


def write_summary(summary: dict[str, Any], expected: Path) -> None:
    """Write summary.json."""
    (expected / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


def _words(error: Exception, table: Path) -> str:
    """The beginning of Spark's words, the real cause where Py4J wraps it, without our path."""
    text = str(error)
    cause = text.find("\n: ")
    text = text[cause + 3 :] if cause >= 0 else text
    return text.replace(str(table), "TABLE")[:ERROR_CHARACTERS_MAX]


def _changes(spark: SparkSession, table: Path, start: int, folder: Path) -> dict[str, Any]:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    frame = reader.option("startingVersion", start).load(str(table))
    _save(frame.coalesce(1).sortWithinPartitions("_commit_version", "_change_type"), folder)
    rows = read_folder(folder)
    versions, kinds = rows.column("_commit_version"), rows.column("_change_type")
    pairs = zip(versions.to_pylist(), kinds.to_pylist(), strict=True)
    by = Counter(f"{version}:{kind}" for version, kind in pairs)
    return {"startingVersion": start, "rows": rows.num_rows, "by": dict(by)}


def _snapshot(spark: SparkSession, table: Path, version: int, folder: Path) -> int | str:
    try:
        frame = spark.read.format("delta").option("versionAsOf", version).load(str(table))
        _save(frame.coalesce(1), folder)
    except REFUSED as error:
        return f"ERR {_words(error, table)}"
    return int(read_folder(folder).num_rows)


def _save(frame: DataFrame, folder: Path) -> None:
    # Parquet has no void; a reader drops such columns too. Delta coding keeps long answers small.
    kept = [f.name for f in frame.schema.fields if f.dataType.typeName() != "void"]
    shown = frame.select(*(f"`{name.replace('`', '``')}`" for name in kept))
    shown.write.option("parquet.writer.version", "v2").mode("overwrite").parquet(str(folder))
    for path in [*folder.glob(".*"), folder / "_SUCCESS"]:
        path.unlink()


def inconsistent(summary: dict[str, Any], expected: Path) -> dict[int, list[str]]:
    """The versions whose change rows, replayed over Spark's snapshots, miss the next snapshot."""
    if "changes" not in summary:
        return {}
    changes = read_folder(expected / "changes")
    snapshots = {
        int(version): read_folder(expected / "snapshots" / version)
        for version, rows in summary["snapshots"].items()
        if not str(rows).startswith("ERR")
    }
    wrong = {}
    for version in sorted(snapshots):
        before, after = snapshots.get(version - 1), snapshots[version]
        if version < summary["changes"]["startingVersion"] or before is None:
            continue
        if replayable(before, after):
            own = changes.filter(pc.equal(changes.column("_commit_version"), pa.scalar(version)))
            # Spark's feed has the latest schema: of older versions only like columns compare.
            names = [f.name for f in after.schema if _field(own.schema, f.name) == f.type]
            if lines := replay(before.select(names), own, after.select(names)):
                wrong[version] = lines
    return wrong


def _field(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None
