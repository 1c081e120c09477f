"""Tables with large versions, made by Spark only where it is said, and kept in the cache folder.

* feed: half inserts, half updates with change data files, one file a version;
* many: the same rows in one version, as one file and as many;
* versions: inserts in many small versions;
* checked: inserts and updates in ten versions, whole at each, for `verify`;
* thinned: a version that deletes each tenth row by deletion vectors;
* nested: inserts with a struct, a list, a map and a list of structs, written by Spark;
* rewritten: a version that rewrites all files to change each tenth row, without change data.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.testing.table import TableBuilder
from tests.benchmarks.tables import FeedFile, bench_folder

INSERTS, UPDATES = 6, 6
CDF = {"delta.enableChangeDataFeed": "true"}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("quantity", pa.int32()),
        ("score", pa.float64()),
        ("token", pa.string()),
        ("status", pa.string()),
        ("changed_at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(22, 2)),
    ]
)
NESTED = (
    "id BIGINT, place STRUCT<city: STRING, height: DOUBLE>, tags ARRAY<STRING>, "
    "counts MAP<STRING, INT>, steps ARRAY<STRUCT<kind: STRING, amount: INT>>"
)
#: From an id. Nothing is random: a table made again has the same rows.
NESTED_ROW = """
    id,
    named_struct('city', substr(md5(string(id)), 1, 12),
        'height', pmod(xxhash64(id), 1000000007) / 1000.0D) AS place,
    slice(array('new', 'paid', concat('t', id % 1000)), 1, int(id % 4)) AS tags,
    map_from_arrays(array('a', concat('k', id % 7)), array(int(id % 1000), int(id % 13))) AS counts,
    array(named_struct('kind', elt(1 + int(id % 3), 'in', 'out', 'back'), 'amount', int(hash(id))))
        AS steps
"""
VECTORS, DV = "delta.enableDeletionVectors", "deletionVectors"
#: Of a file's ids, which grow: the first is the least.
_BOUNDS = {"minValues": 0, "maxValues": -1}
#: The first row that :func:`thinned_table` deletes of each file.
DELETED = 3
ROW_IDS, ROW_VERSIONS = "_row-id-col", "_row-commit-version-col"
TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": ROW_IDS,
    "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSIONS,
}


def rows(first: int, count: int) -> pa.Table:
    """Rows that compress as real ones do; the tokens are random."""
    ids = pa.array(range(first, first + count), pa.int64())
    ends = pa.array(range(0, 20 * count + 1, 20), pa.int32())
    tokens = [None, ends.buffers()[1], pa.py_buffer(os.urandom(10 * count).hex().encode())]
    random = [pc.random(count, initializer=first + seed) for seed in range(4)]
    whole = [pc.cast(pc.multiply(r, 1e5), pa.int64(), safe=False) for r in random]
    columns = {
        "id": ids,
        "quantity": whole[0].cast(pa.int32()),
        "score": random[1],
        "token": pa.Array.from_buffers(pa.string(), count, tokens),
        "status": pc.bit_wise_and(whole[2], 15).cast(pa.string()),
        "changed_at": pc.multiply(whole[2], 1_000_003).cast(pa.timestamp("us", "UTC")),
        "amount": pc.multiply(whole[3], 977).cast(pa.decimal128(22, 2)),
    }
    return pa.table(columns, schema=SCHEMA)


def kept_table(name: str, make: Callable[[Path], None]) -> Path:
    """A table of the cache folder; made now where it is not there as a whole."""
    folder = bench_folder() / name
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder / "table")
        (folder / "whole").touch()
    return folder / "table"


def feed_table(rows_of_a_file: int, copies: int = 1) -> Path:
    """Versions 1 to 12 times ``copies`` with one file each, of as many changes.

    The files of further copies are other names of the first one's.
    """

    def make(table: Path) -> None:
        _write(table, rows_of_a_file, INSERTS)
        _update(table, INSERTS * 2, UPDATES)
        _drop_unread(table)

    def link(table: Path) -> None:
        first = feed_table(rows_of_a_file)
        shutil.copytree(first, table, copy_function=os.link)
        for copy in range(1, copies):
            for version in range(1, INSERTS + UPDATES + 1):
                actions = _actions(first, version)
                links = [
                    _linked(table, action, copy) for action in actions if "remove" not in action
                ]
                number = copy * (INSERTS + UPDATES) + version
                _commit_path(table, number).write_text("".join(json.dumps(a) + "\n" for a in links))

    name = f"feed-{rows_of_a_file}-{copies}"
    return kept_table(name, make if copies == 1 else link)


def checked_table(rows_of_a_version: int) -> Path:
    """Eight versions that insert and two that update, each with about as many events."""

    def make(table: Path) -> None:
        _write(table, rows_of_a_version, 8)
        _update(table, 16, 2)

    return kept_table(f"checked-{rows_of_a_version}", make)


def _write(table: Path, count: int, versions: int) -> None:
    from deltalake import DeltaTable, write_deltalake

    DeltaTable.create(str(table), rows(0, 0).schema, configuration=CDF)
    for version in range(versions):
        write_deltalake(str(table), rows(version * count, count), mode="append")


def _update(table: Path, parts: int, versions: int) -> None:
    from deltalake import DeltaTable

    for part in range(versions):
        change = {"score": "score + 1.0"}
        DeltaTable(str(table)).update(predicate=f"id % {parts} = {part}", updates=change)


def _commit_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def _actions(table: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _commit_path(table, version).read_text().splitlines()]


def _drop_unread(table: Path) -> None:
    """Remove the data files that no reader of the feed opens: the updates rewrote all."""
    read = {file.path for file in feed_files(table)}
    for file in table.rglob("*.parquet"):
        if file not in read:
            file.unlink()


def _linked(table: Path, action: dict[str, Any], copy: int) -> dict[str, Any]:
    """The action with another name of its file, which is made here where there is a file."""
    ((kind, values),) = action.items()
    if kind not in ("add", "cdc"):
        return action
    old = table / values["path"]
    new = old.with_name(f"{copy}-{old.name}")
    if old.exists():
        os.link(old, new)
    return {kind: {**values, "path": str(new.relative_to(table))}}


def feed_files(table: Path) -> Iterator[FeedFile]:
    """The files of a table's feed in commit order, read off the log with no help from tailer."""
    for commit in sorted((table / "_delta_log").glob("*.json"))[1:]:
        timestamp_ms = commit.stat().st_mtime_ns // 1_000_000
        actions = _actions(table, int(commit.stem))
        cdc = [action["cdc"]["path"] for action in actions if "cdc" in action]
        added = [action["add"]["path"] for action in actions if "add" in action]
        for path in cdc or added:
            file = table / unquote(path)
            yield FeedFile(file, int(commit.stem), timestamp_ms, None if cdc else "insert")


def many_files(files: int, rows_of_a_file: int) -> Path:
    """A table with a version of many files."""

    def make(folder: Path) -> None:
        table = TableBuilder(folder, SCHEMA, properties=CDF)
        table.create()
        all_rows = rows(0, files * rows_of_a_file)
        table.commit(
            *(
                _add(table, all_rows.slice(i * rows_of_a_file, rows_of_a_file), f"{i:05d}.parquet")
                for i in range(files)
            )
        )

    return kept_table(f"many-{files}-{rows_of_a_file}", make)


def small_versions(versions: int, rows_of_a_version: int) -> Path:
    """A table with many versions that insert."""

    def make(folder: Path) -> None:
        table = TableBuilder(folder, SCHEMA, properties=CDF)
        table.create()
        all_rows = rows(0, versions * rows_of_a_version)
        for i in range(versions):
            part = all_rows.slice(i * rows_of_a_version, rows_of_a_version)
            table.commit(_add(table, part, f"{i:05d}.parquet"))

    return kept_table(f"versions-{versions}-{rows_of_a_version}", make)


def thinned_table(rows_of_a_file: int, files: int) -> Path:
    """A table whose version 2 deletes each tenth row, by a deletion vector for each file."""

    def make(folder: Path) -> None:
        table = TableBuilder(folder, SCHEMA, properties={**CDF, VECTORS: "true"})
        table.create(
            table.protocol(3, 7, readerFeatures=[DV], writerFeatures=[DV, "changeDataFeed"])
        )
        before = [
            _add(table, rows(i * rows_of_a_file, rows_of_a_file), f"{i:05d}.parquet")
            for i in range(files)
        ]
        table.commit(*before)
        vectors = table.vectors([range(DELETED, rows_of_a_file, 10)] * files)
        after = [
            {"add": {**add["add"], "deletionVector": vector}}
            for add, vector in zip(before, vectors, strict=True)
        ]
        table.commit(*map(table.remove, before), *after)

    return kept_table(f"thinned-{rows_of_a_file}-{files}", make)


def nested_table(rows_of_a_file: int, files: int) -> Path:
    """A table that Spark has filled in one version."""

    def make(table: Path) -> None:
        from tests.support.components import start_spark

        spark = start_spark(bench_folder() / "spark", small=False)
        try:
            spark.sql(
                f"CREATE TABLE delta.`{table}` ({NESTED}) USING delta "
                "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
            )
            ids = spark.range(0, rows_of_a_file * files, 1, files)
            ids.createOrReplaceTempView("ids")
            spark.sql(f"INSERT INTO delta.`{table}` SELECT {NESTED_ROW} FROM ids")
        finally:
            spark.stop()

    return kept_table(f"nested-{rows_of_a_file}-{files}", make)


def rewritten_table(origin: str, count: int, files: int) -> Path:
    """A table whose version 2 rewrites all files, with row tracking for the origin `row_ids`."""
    tracked = origin == "row_ids"

    def make(folder: Path) -> None:
        table = TableBuilder(folder, SCHEMA, properties=TRACKING if tracked else {})
        features = ["rowTracking", "domainMetadata"] if tracked else []
        table.create(table.protocol(1, 7, writerFeatures=features))
        each = count // files
        parts = [rows(i * each, each) for i in range(files)]
        before = [
            _add(table, part, f"before-{i}.parquet", **_tracking(i * each, 1, tracked=tracked))
            for i, part in enumerate(parts)
        ]
        table.commit(_info("WRITE"), *before)
        after = [
            _add(table, _changed(part, tracked=tracked), f"after-{i}.parquet",
                 **_tracking(count + i * each, 2, tracked=tracked))
            for i, part in enumerate(parts)
        ]  # fmt: skip
        table.commit(_info("UPDATE"), *map(table.remove, before), *after)

    return kept_table(f"rewritten-{origin}-{count}", make)


def updated_table(versions: int) -> Path:
    """A table of 1,000 rows without a change data feed, of which each version changes 20."""

    def make(folder: Path) -> None:
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(folder, pa.table({"id": range(1000), "n": [0] * 1000}))
        table = DeltaTable(folder)
        for version in range(1, versions + 1):
            table.update({"n": str(version)}, predicate=f"id % 50 = {version % 50}")

    return kept_table(f"updated-{versions}", make)


def _info(operation: str) -> dict[str, Any]:
    return {"commitInfo": {"operation": operation, "tags": {"delta.rowTracking.preserved": "true"}}}


def _tracking(first: int, version: int, *, tracked: bool) -> dict[str, int]:
    return {"baseRowId": first, "defaultRowCommitVersion": version} if tracked else {}


def _changed(part: pa.Table, *, tracked: bool) -> pa.Table:
    """The rows with each tenth quantity changed, and where they are tracked, their ids."""
    tenth = pc.equal(pc.subtract(part["id"], pc.multiply(pc.divide(part["id"], 10), 10)), 0)
    quantity = pc.add(part["quantity"], tenth.cast(pa.int32()))
    after = part.set_column(1, SCHEMA.field("quantity"), quantity)
    if not tracked:
        return after
    versions = pc.add(tenth.cast(pa.int64()), 1)
    return after.append_column(ROW_IDS, part["id"]).append_column(ROW_VERSIONS, versions)


def _add(table: TableBuilder, part: pa.Table, path: str, **more: int) -> dict[str, Any]:
    pq.write_table(part, table.folder / path)
    bounds = {name: {"id": part["id"][at].as_py()} for name, at in _BOUNDS.items()}
    add = {
        "path": path,
        "partitionValues": {},
        "size": (table.folder / path).stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": part.num_rows, **bounds, "nullCount": {"id": 0}}),
    }
    return {"add": {**add, **more}}
