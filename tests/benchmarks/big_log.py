"""Tables with a million live files, as far as their logs go, kept in the benchmarks' cache folder.

`classic` has one checkpoint file, `v2` a JSON manifest with sidecars; both are what a partitioned
table with statistics looks like. Two commits follow the checkpoint: one adds a file that exists, so
that there is something to read, the other only touches a transaction identifier.

`python -m tests.benchmarks.big_log` makes them beforehand.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tailer.testing.checkpoint_files import write_checkpoint
from tailer.testing.table import TableBuilder
from tests.benchmarks.tables import bench_folder

# Raised whenever the recipe changes: a cached table of another number is made anew.
RECIPE = 2

FILES = 1_000_000
TOMBSTONES = 50_000
ROWS_PER_GROUP = 131_072
SIDECARS = 4
CHECKPOINT_VERSION = 9
LAST_VERSION = 11

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())])


def big_log(kind: str, files: int = FILES) -> Path:
    """The table `classic` or `v2`; made now where the cache does not hold it."""
    folder = bench_folder() / (f"log-{kind}" if files == FILES else f"log-{kind}-{files}")
    recipe = folder / "recipe.json"
    if not recipe.exists() or json.loads(recipe.read_text()) != [RECIPE, files]:
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder / "table", kind, files)
        # Written last: without it the folder was left half made, and is made again.
        recipe.write_text(json.dumps([RECIPE, files]))
    return folder / "table"


def long_history(commits: int = 50, adds: int = 2000) -> Path:
    """A table of 100,000 adds in 50 commits; made now where the cache does not hold it."""
    folder = bench_folder() / f"history-{commits}-{adds}"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        table = TableBuilder(folder / "table", SCHEMA, partition_by=["day"])
        table.create()
        for version in range(1, commits + 1):
            objects = _adds(range((version - 1) * adds, version * adds)).to_pylist()
            table.commit({"commitInfo": {"operation": "WRITE"}}, *map(_logged, objects))
        (folder / "whole").touch()
    return folder / "table"


def _logged(add: dict[str, object]) -> dict[str, object]:
    values = add["partitionValues"]
    assert isinstance(values, list)
    return {"add": {**add, "partitionValues": dict(values), "dataChange": True}}


def _make(folder: Path, kind: str, files: int) -> None:
    table = TableBuilder(folder, SCHEMA, partition_by=["day"])
    features = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}
    protocol = table.protocol(3, 7, **features) if kind == "v2" else table.protocol()
    steering = [protocol, table.metadata(), {"txn": {"appId": "app", "version": 7}}]
    prefix = f"{CHECKPOINT_VERSION:020d}.checkpoint"
    if kind == "v2":
        sidecars = _write_sidecars(table.log / "_sidecars", files)
        manifest = [*steering, {"checkpointMetadata": {"version": CHECKPOINT_VERSION}}, *sidecars]
        lines = "".join(json.dumps(action) + "\n" for action in manifest)
        (table.log / f"{prefix}.{uuid.uuid4()}.json").write_text(lines)
    else:
        _write_files(table.log / f"{prefix}.parquet", range(files), steering)
    table.hint(CHECKPOINT_VERSION, files + TOMBSTONES + len(steering))
    new = table.add([{"id": 1, "name": "a"}], partition={"day": "2026-01-01"})
    table.commit(new, version=CHECKPOINT_VERSION + 1)
    table.commit({"txn": {"appId": "app", "version": 8}}, version=LAST_VERSION)


def _write_sidecars(folder: Path, files: int) -> Iterator[dict[str, object]]:
    folder.mkdir()
    share = files // SIDECARS
    for number in range(SIDECARS):
        path = folder / f"{uuid.uuid4()}.parquet"
        _write_files(path, range(number * share, (number + 1) * share), [])
        size = path.stat().st_size
        yield {"sidecar": {"path": path.name, "sizeInBytes": size, "modificationTime": 0}}


def _write_files(path: Path, numbers: range, steering: list[dict[str, object]]) -> None:
    """Adds of files by their numbers, tombstones behind them, and the other actions at the end."""

    def parts() -> Iterator[dict[str, pa.Array] | list[dict[str, object]]]:
        for start in range(numbers.start, numbers.stop, ROWS_PER_GROUP):
            yield {"add": _adds(range(start, min(start + ROWS_PER_GROUP, numbers.stop)))}
        yield {"remove": _removes(range(FILES, FILES + TOMBSTONES))}
        if steering:
            yield steering

    write_checkpoint(path, parts())


def _paths(numbers: range) -> tuple[pa.Array, pa.Array]:
    """Paths that do not compress to nothing, and days."""
    uuids = [str(uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))
             for number in numbers]  # fmt: skip
    days = pa.array([f"2026-{1 + n // 9000 % 12:02d}-{1 + n // 300 % 28:02d}" for n in numbers])
    names = pa.array([f"part-{n % 200:05d}-{u}.c000.snappy.parquet" for n, u in
                      zip(numbers, uuids, strict=True)])  # fmt: skip
    return pc.binary_join_element_wise("day=", days, "/", names, ""), days


def _partition_values(days: pa.Array) -> pa.Array:
    offsets = pa.arange(0, len(days) + 1).cast(pa.int32())
    keys = pa.repeat("day", len(days))
    return pa.MapArray.from_arrays(offsets, keys, days)


def _adds(numbers: range) -> pa.Array:
    paths, days = _paths(numbers)
    count = len(numbers)
    ids = pa.array(numbers, pa.int64())
    records = pc.add(pc.bit_wise_and(ids, 1023), 1)
    text = records.cast(pa.string())
    low, high = ids.cast(pa.string()), pc.add(ids, 1000).cast(pa.string())
    stats = pc.binary_join_element_wise(
        '{"numRecords":', text, ',"minValues":{"id":', low, ',"name":"a', low,
        '"},"maxValues":{"id":', high, ',"name":"z', high, '"},"nullCount":{"id":0,"name":0}}', "",
    )  # fmt: skip
    columns = {
        "path": paths,
        "partitionValues": _partition_values(days),
        "size": pc.multiply(records, 100),
        "modificationTime": pc.add(ids, 1_700_000_000_000),
        "dataChange": pa.repeat(False, count),
        "stats": stats,
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _removes(numbers: range) -> pa.Array:
    paths, days = _paths(numbers)
    times = pc.add(pa.array(numbers, pa.int64()), 1_700_000_000_000)
    columns = [paths, _partition_values(days), times, pa.repeat(False, len(numbers))]
    names = ["path", "partitionValues", "deletionTimestamp", "dataChange"]
    return pa.StructArray.from_arrays(columns, names=names)


def main() -> None:
    """Make both tables, and say how large their logs are."""
    for kind in ("classic", "v2"):
        path = big_log(kind)
        size = sum(f.stat().st_size for f in (path / "_delta_log").rglob("*.parquet")) / 2**20
        print(f"{kind}: {path}, {FILES:,} files, {size:.0f} MiB of checkpoint")


if __name__ == "__main__":
    main()
