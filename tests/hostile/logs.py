"""Logs that ask their reader for much memory or time, that name what is no table's file, or that
lie."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.actions import add_action, z85_encode
from tailer.testing.table import TableBuilder
from tests.hostile.attack import MIB, Attack, ids_table, raw_commit

GIB = 1024 * MIB
UUID = "00000000-0000-0000-0000-000000000000"
SNAPSHOT = {"from": "snapshot"}

Change = Callable[[TableBuilder], object]


def _table(change: Change) -> Callable[[Path], None]:
    """Return what makes a table of three rows and changes it."""

    def make(folder: Path) -> None:
        table = ids_table(folder)
        table.insert([{"id": i} for i in range(3)])
        change(table)

    return make


def _long_line(before: bytes, after: bytes = b'"}}\n') -> Change:
    """A commit of one line with a text of a GiB, in a file with a hole."""

    def change(table: TableBuilder) -> None:
        with table.commit_path(table.version + 1).open("wb") as file:
            file.write(before)
            file.seek(GIB, os.SEEK_CUR)
            file.write(after)

    return change


def _sparse(size: int) -> Change:
    def change(table: TableBuilder) -> None:
        path = table.commit_path(table.version + 1)
        path.touch()
        os.truncate(path, size)

    return change


def _columns(count: int) -> str:
    field = '{"name":"c%d","type":"long","nullable":true,"metadata":{}}'
    return '{"type":"struct","fields":[' + ",".join(field % i for i in range(count)) + "]}"


def _with_schema(text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        ids_table(folder, schemaString=text).commit(add_action("a.parquet", 100, 1, None))

    return make


def _deep_schema(depth: int) -> str:
    return (
        '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":'
        + '{"type":"array","containsNull":true,"elementType":' * depth + '"long"' + "}" * depth
        + "}]}"
    )  # fmt: skip


def _many_adds(table: TableBuilder) -> None:
    """A commit of a million files, which changes no data, before one that does."""
    before, after = json.dumps(add_action("part-@", 100, 1, None, dataChange=False)).split("%40")
    with table.commit_path(table.version + 1).open("w") as file:
        for first in range(0, 1_000_000, 10_000):
            numbers = range(first, first + 10_000)
            file.write("".join(f"{before}{i}{after}\n" for i in numbers))
    table.insert([{"id": 3}])


def _many_adds_twice(table: TableBuilder) -> None:
    """A commit that names the same file a million times, and at last another size."""
    line, last = (json.dumps(add_action("part-0", size, 1, None)) + "\n" for size in (100, 101))
    table.commit_path(table.version + 1).write_text(line * 999_999 + last)


def _checkpoint_rows(table: TableBuilder, adds: pa.Table) -> Path:
    """Write the checkpoint of the newest version with more adds, without the commits."""
    path = table.checkpoint()
    known = pq.read_table(path)
    kinds = known.schema.field("add").type
    count = adds.num_rows
    names = [f.name for f in kinds]
    arrays = [
        adds[name].combine_chunks().cast(kinds.field(name).type)
        if name in adds.column_names
        else pa.nulls(count, kinds.field(name).type)
        for name in names
    ]
    add = pa.StructArray.from_arrays(arrays, fields=list(kinds))
    columns = [
        add if field.name == "add" else pa.nulls(count, field.type) for field in known.schema
    ]
    more = pa.Table.from_arrays(columns, schema=known.schema)
    pq.write_table(pa.concat_tables([known, more]), path)
    (table.log / "_last_checkpoint").unlink()
    return path


def _many_listed(table: TableBuilder) -> None:
    """A checkpoint that lists a million files."""
    count = 1_000_000
    paths = pa.array([f"part-{i}.parquet" for i in range(count)])
    adds = pa.table(
        {
            "path": paths,
            "partitionValues": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
            "size": pa.repeat(pa.scalar(100), count),
            "modificationTime": pa.repeat(pa.scalar(0), count),
            "dataChange": pa.repeat(pa.scalar(value=False), count),
        }
    )
    _checkpoint_rows(table, adds)
    for version in range(table.version):
        table.commit_path(version).unlink()
    table.insert([{"id": 3}])


def _v2(table: TableBuilder, sidecars: list[dict[str, Any]]) -> None:
    """Replace the log by a v2 checkpoint with these sidecars."""
    version = table.version
    actions = [
        table.protocol(3, 7, readerFeatures=["v2Checkpoint"], writerFeatures=["v2Checkpoint"]),
        table.metadata(),
        {"checkpointMetadata": {"version": version}},
        *({"sidecar": one} for one in sidecars),
    ]
    table.put_log(f"{version:020d}.checkpoint.{UUID}.json", table.encode_lines(actions))
    for older in range(version):
        table.commit_path(older).unlink()
    table.insert([{"id": 3}])


def _missing_sidecars(table: TableBuilder) -> None:
    _v2(table, [{"path": f"{i}.parquet", "sizeInBytes": 1000, "modificationTime": 0}
                for i in range(100_000)])  # fmt: skip


def _one_sidecar_often(table: TableBuilder) -> None:
    """A checkpoint that names one sidecar 100,000 times."""
    path = table.checkpoint(hint=False)
    rows = pq.read_table(path)
    path.unlink()
    sidecar = table.log / "_sidecars" / "a.parquet"
    sidecar.parent.mkdir()
    pq.write_table(rows.filter(pa.compute.is_valid(rows["add"])).select(["add"]), sidecar)
    one = {"path": "a.parquet", "sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}
    _v2(table, [one] * 100_000)


def _hint(document: object) -> Change:
    def change(table: TableBuilder) -> None:
        table.checkpoint()
        table.insert([{"id": 3}])
        text = document if isinstance(document, str) else json.dumps(document)
        (table.log / "_last_checkpoint").write_text(text)

    return change


def _large_hint(table: TableBuilder) -> None:
    _hint("{}")(table)
    os.truncate(table.log / "_last_checkpoint", 5 * GIB)


def _fifo_as_hint(table: TableBuilder) -> None:
    table.insert([{"id": 3}])
    os.mkfifo(table.log / "_last_checkpoint")


def _large_checksum(table: TableBuilder) -> None:
    table.insert([{"id": 3}])
    os.truncate(table.checksum(), 5 * GIB)


def _many_parts(table: TableBuilder) -> None:
    """One part of a checkpoint of 2^31."""
    path = table.checkpoint()
    table.insert([{"id": 3}])
    part = f"{table.version - 1:020d}.checkpoint.0000000001.2147483647.parquet"
    path.rename(table.log / part)
    (table.log / "_last_checkpoint").write_text('{"version":1,"size":3,"parts":2147483647}')


def _vector(**fields: Any) -> Change:
    """A deletion vector of one row, described otherwise than it is."""

    def change(table: TableBuilder) -> None:
        table.commit(table.protocol(3, 7, readerFeatures=["deletionVectors"],
                                    writerFeatures=["deletionVectors"]))  # fmt: skip
        add = table.version_actions(1)[0]
        removed, added = table.delete_rows(add, [1])
        added["add"]["deletionVector"].update(fields)
        table.commit(removed, added)

    return change


def _containers(count: int) -> bytes:
    """A deletion vector that says that it has so many bitmaps."""
    return struct.pack("<iQ", 1681511377, count)


def _full_vector() -> bytes:
    """A deletion vector with runs of 2^32 rows in some bytes, many times over."""
    containers = 65536
    one = struct.pack("<I", 12347 | (containers - 1) << 16) + b"\xff" * (containers // 8)
    one += b"".join(struct.pack("<HH", i, 65535) for i in range(containers))
    offset = len(one) + 4 * containers
    one += b"".join(struct.pack("<I", offset + 6 * i) for i in range(containers))
    one += struct.pack("<HHH", 1, 0, 65535) * containers
    return struct.pack("<iQ", 1681511377, 1) + struct.pack("<I", 0) + one


def _inline(data: bytes, cardinality: int) -> Change:
    padded = data + b"\0" * (-len(data) % 4)
    return _vector(storageType="i", pathOrInlineDv=z85_encode(padded), sizeInBytes=len(data),
                   cardinality=cardinality, offset=None)  # fmt: skip


def _stats(stats: object) -> Change:
    """A rewrite, with change data derived, whose statistics lie."""

    def change(table: TableBuilder) -> None:
        text = stats if isinstance(stats, str) else json.dumps(stats)
        (old,) = table.version_actions(1)
        new = table.add([{"id": i} for i in (1, 2, 3)], stats=text)
        table.commit(table.remove(old), new)

    return change


def _path(path: str, **fields: Any) -> Change:
    def change(table: TableBuilder) -> None:
        add = add_action("x", 100, 1, None, **fields)
        add["add"]["path"] = path
        table.commit(add)

    return change


def _special(make: Callable[[Path], object], name: str = "x.parquet") -> Change:
    """Something that is no file in a data file's place."""

    def change(table: TableBuilder) -> None:
        make(table.folder / name)
        table.commit(add_action("x.parquet", 100, 1, None))

    return change


def _in_log(make: Callable[[Path], object]) -> Change:
    """Something that is no file in a commit's place."""
    return lambda table: make(table.commit_path(table.version + 1))


def _huge_versions(table: TableBuilder) -> None:
    for name in ("9" * 20 + ".json", "09223372036854775808.json", "5.json", "0" * 19 + "2.JSON",
                 "0" * 19 + "2.json.tmp", "0" * 19 + "x.json", "９" * 20 + ".json"):  # noqa: RUF001  # fmt: skip
        (table.log / name).write_text("{}")
    table.commit(table.add([{"id": 3}]), version=2)


def _far_version(table: TableBuilder) -> None:
    (table.log / "09223372036854775807.json").write_text('{"commitInfo":{}}\n')


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


ELSEWHERE = ["outside", "different store", "climbs out"]

#: Each takes some processor time itself, or a good deal of memory: they are tried alone.
HEAVY_LOGS: dict[str, Attack] = {
    "a partition value of a GiB": Attack(
        _table(_long_line(b'{"add":{"path":"x","partitionValues":{"p":"')), ["longer than"]
    ),
    "a commitInfo of a GiB": Attack(_table(_long_line(b'{"commitInfo":{"a":"')), ["longer than"]),
    "statistics of a GiB": Attack(
        _table(_long_line(b'{"add":{"path":"x","partitionValues":{},"size":1,'
                          b'"modificationTime":0,"dataChange":true,"stats":"')), ["longer than"]
    ),
    "a commit of 5 GiB with a hole": Attack(_table(_sparse(5 * GIB)), ["longer than"]),
    "a schema of 600000 columns": Attack(
        _with_schema(_columns(600_000)), ["the schemaString has"]
    ),
    "a schema of a million levels": Attack(_with_schema(_deep_schema(1_000_000)), ["characters"]),
    "unknown JSON of a million levels": Attack(
        _table(lambda t: raw_commit(t, [b'{"later":' + b"[" * 1_000_000 + b"]" * 1_000_000
                                        + b"}"])), ["nested too deep"]
    ),
    "a million files in a commit": Attack(_table(_many_adds), rows=4),
    "a million times the same file": Attack(_table(_many_adds_twice), ["added twice"]),
    "a million files in a checkpoint": Attack(
        _table(_many_listed), ["the data file is gone"], options=SNAPSHOT
    ),
    "100000 sidecars that are missing": Attack(
        _table(_missing_sidecars), ["missing"], options=SNAPSHOT
    ),
    "100000 times the same sidecar": Attack(
        _table(_one_sidecar_often), ["100000 times"], options=SNAPSHOT
    ),
}  # fmt: skip

LOGS: dict[str, Attack] = {
    "a checksum file of 5 GiB": Attack(
        _table(_large_checksum), rows=4
    ),
    "a schema of 10000 levels": Attack(_with_schema(_deep_schema(10_000)), ["nested"]),
    "JSON of 100000 levels": Attack(
        _table(lambda t: raw_commit(t, [b'{"commitInfo":{"a":' + b"[" * 100_000 + b"]" * 100_000
                                        + b"}}"])), ["nested too deep"]
    ),
    "a hint of 2^31 parts": Attack(_table(_hint({"version": 1, "size": 3, "parts": 2**31 - 1})),
                                   rows=4),
    "a hint of version 2^63": Attack(_table(_hint({"version": 2**63 - 1, "size": 3})), rows=4),
    "a hint of nested JSON": Attack(_table(_hint("[" * 1_000_000)), rows=4),
    "a hint of 5 GiB": Attack(
        _table(_large_hint), rows=4
    ),
    "one part of 2^31": Attack(_table(_many_parts), rows=4),
    "a vector of 2^62 rows": Attack(_table(_vector(cardinality=2**62)), ["cardinality", "rows"]),
    "a vector of 2 GiB": Attack(_table(_vector(sizeInBytes=2**31 - 1)), ["vector"]),
    "a vector beyond its file": Attack(_table(_vector(offset=2**31 - 1)), ["vector"]),
    "a vector of 2^32 bitmaps": Attack(_table(_inline(_containers(2**32), 1)), ["vector"]),
    "a vector of 2^32 rows": Attack(_table(_inline(_full_vector(), 2**32)), ["vector"]),
    **{
        f"statistics with {name}": Attack(_table(_stats(stats)), rows=5)
        for name, stats in {
            "minimum above maximum": {"minValues": {"id": 9}, "maxValues": {"id": 1}},
            "a text as number": {"minValues": {"id": "x"}, "maxValues": {"id": []}},
            "2^70 nulls": {"numRecords": 3, "nullCount": {"id": 2**70}},
            "a million levels": '{"minValues":' + "[" * 1_000_000,
            "no JSON": "{",
        }.items()
    },
    "statistics with a wrong count": Attack(
        _table(_stats({"numRecords": 2**62})), ["numRecords"]
    ),
    **{
        f"the path {path}": Attack(_table(_path(path)), ELSEWHERE)
        for path in ("../../../../etc/passwd", "/etc/passwd", "file:///etc/passwd",
                     "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "s3://bucket/x", "http://127.0.0.1/x",
                     "a/../../x", "file://host/etc/passwd")
    },
    "a FIFO as data file": Attack(_table(_special(os.mkfifo)), ["data file is gone"]),
    "a link to a device as data file": Attack(
        _table(_special(lambda path: path.symlink_to("/dev/zero"))), ["outside"]
    ),
    "a link that loops as data file": Attack(_table(_special(_loop)), ["data file is gone"]),
    "a folder as data file": Attack(_table(_special(Path.mkdir)), ["data file is gone"]),
    "names of no versions": Attack(_table(_huge_versions), rows=4),
    "a version far ahead": Attack(_table(_far_version), ["missing"]),
    "a FIFO as commit": Attack(_table(_in_log(os.mkfifo)), rows=3),
    "a link that loops as commit": Attack(_table(_in_log(_loop)), rows=3),
    "a FIFO as hint": Attack(
        _table(_fifo_as_hint), rows=4
    ),
}  # fmt: skip
