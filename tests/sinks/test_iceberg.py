"""The Iceberg sink beyond the public suites: evolution, what others do to the table, and what it
refuses."""

from __future__ import annotations

import datetime as dt
import socket
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import from_thread
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    SinkRejected,
    TailerError,
    TargetRefused,
    TransientError,
)  # fmt: skip
from tailer.testing.batches import change_batch
from tests.property.test_json import types
from tests.sinks.test_duckdb import mapped
from tests.support.extent import examples
from tests.support.iceberg import Lake
from tests.support.sinks import rows, write

pytestmark = pytest.mark.anyio
KEY = ["id"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def held(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lake.rows(), key=str)


# Columns

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [1.5, float("inf")]),
    "double": (pa.float64(), [-0.0, 1e300]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-9999999999999999999999999999.0000000001")]),
    "boolean": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "\x00 ü", "a" * 300]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [dt.datetime(1582, 1, 1, tzinfo=dt.UTC)]),
    "ntz": (pa.timestamp("us"), [dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
    "struct": (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}]),
    "list": (pa.list_(pa.int16()), [[], [1, None]]),
    "structs": (pa.list_(pa.struct([("c", pa.int8())])), [[{"c": 3}, None], []]),
    "map": (pa.map_(pa.string(), pa.struct([("c", pa.int8())])), [[("k", {"c": 3})], []]),
}


async def test_values_of_every_type_are_kept(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    count = max(len(values) for _, values in TYPES.values()) + 1  # the last row is null
    found = [
        {"id": i, **{n: v[i] if i < len(v) else None for n, (_, v) in TYPES.items()}}
        for i in range(count)
    ]
    await write(lake.make_sink(key=KEY), change_batch(schema, found, last=True))
    assert sorted(lake.rows(), key=lambda row: row["id"]) == found
    gone = {**found[0], "_change_type": "delete"}  # files are written again with the others
    await write(lake.make_sink(key=KEY), change_batch(schema, [gone], version=2, last=True))
    assert sorted(lake.rows(), key=lambda row: row["id"]) == found[1:]
    with lake.make_sink(key=KEY).read_mirror("orders") as copy:
        back = pa.Table.from_batches(list(copy.rows(schema)))
    assert back.schema == schema
    assert sorted(back.to_pylist(), key=lambda row: row["id"]) == found[1:]


@settings(max_examples=examples(30))
@given(data=st.data())
def test_nested_values_are_kept_with_their_nulls(data: st.DataObject) -> None:
    """Also those of a slice, and of files that are written again."""
    data_type, values = data.draw(types())
    rows = data.draw(st.lists(values, min_size=2, max_size=5))
    schema = pa.schema([("id", pa.int64()), ("v", data_type)])
    batch = change_batch(schema, [{"id": i, "v": value} for i, value in enumerate(rows)], last=True)
    start = data.draw(st.integers(0, len(rows) - 2))
    held = [{"id": i, "v": v} for i, v in enumerate(batch.rows["v"].to_pylist())][start:]
    gone = change_batch(schema, [{**held[0], "_change_type": "delete"}], version=2, last=True)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        try:
            lake.make_sink(key=KEY).check_columns(schema)
        except TargetRefused:
            assume(False)
        anyio.run(write, lake.make_sink(key=KEY), batch.slice(start, len(rows)))
        assert str(lake.rows()) == str(held)  # with its NaNs
        anyio.run(write, lake.make_sink(key=KEY), gone)
        assert str(lake.rows()) == str(held[1:])


@pytest.mark.parametrize("kind", [name for name in TYPES if name not in
    ("float", "double", "struct", "list", "structs", "map")])  # fmt: skip
async def test_a_key_of_each_type(lake: Lake, kind: str) -> None:
    data_type, values = TYPES[kind]
    schema = pa.schema([("k", data_type), ("v", pa.int64())])
    found = [{"k": value, "v": i} for i, value in enumerate(values)]
    await write(lake.make_sink(key=["k"]), change_batch(schema, found, last=True))
    update = [
        {"k": values[0], "v": 0, "_change_type": "update_preimage"},
        {"k": values[0], "v": 9, "_change_type": "update_postimage"},
    ]
    await write(lake.make_sink(key=["k"]), change_batch(schema, update, version=2, last=True))
    assert sorted(row["v"] for row in lake.rows()) == [*range(1, len(values)), 9]
    absent = change_batch(schema, [{**found[0], "_change_type": "insert"}], version=3, last=True)
    with pytest.raises(SinkRejected, match="that the copy has already"):
        await write(lake.make_sink(key=["k"]), absent)


async def test_columns_are_renamed_swapped_dropped_and_widened(lake: Lake) -> None:
    """By their ids: no file is written again."""
    before = pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.string()),
                        ("old", pa.string()), ("n", pa.float32()),
                        ("s", pa.struct([("x", pa.int32())]))])  # fmt: skip
    after = pa.schema([("id", pa.int64()), ("b", pa.string()), ("a", pa.string()),
                       ("new", pa.string()), ("n", pa.float64()),
                       ("s", pa.struct([("x", pa.int64()), ("y.z", pa.string())]))])  # fmt: skip
    first = change_batch(
        before, [{"id": 1, "a": "of a", "b": "of b", "old": "x", "n": 1.5, "s": {"x": 1}}],
        last=True,
    )  # fmt: skip
    more = {"id": 2**40, "a": "A", "b": "B", "new": "y", "n": 1e300, "s": {"x": 2, "y.z": "q"}}
    then = change_batch(after, [more], version=2, last=True)
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(first)
    files = {task.file.file_path for task in lake.table().scan().plan_files()}
    await sink.write(mapped(then, a="b", b="a", new="c9"))
    await sink.aclose()
    assert files < {task.file.file_path for task in lake.table().scan().plan_files()}
    was = {"id": 1, "a": "of b", "b": "of a", "new": None, "n": 1.5, "s": {"x": 1, "y.z": None}}
    assert sorted(lake.rows(), key=lambda row: row["id"]) == [was, more]


async def test_a_type_that_would_change_values_is_refused(lake: Lake) -> None:
    await write(lake.make_sink(key=KEY), rows((1, "a")))
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    other = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    with pytest.raises(SinkRejected, match="'name' was of type string and is now of type int64"):
        await sink.write(change_batch(other, [{"id": 2, "name": 2}], version=2))
    before = lake.rows()
    await sink.aclose()
    sink = lake.make_sink(mode="log", table="lake.log")
    await sink.open("orders")
    dates, times = (pa.schema([("at", kind)]) for kind in (pa.date32(), pa.timestamp("us")))
    await sink.write(change_batch(dates, [{"at": dt.date(2020, 1, 1)}], last=True))
    with pytest.raises(TargetRefused, match="Iceberg can't widen the type of 'at' so"):
        await sink.write(
            change_batch(times, [{"at": dt.datetime.fromisoformat("2020-01-01")}], version=2)
        )
    await sink.aclose()
    assert lake.rows() == before == [{"id": 1, "name": "a"}]


NAMES = [
    "a.b",
    "a b",
    "1",
    "ü",
    '"',
    "`",
    "'",
    "%",
    "a/b",
    "_row_id",
    "_id",
    "SELECT",
    "\U0001f600",
    "\t",
]


async def test_columns_with_any_name(lake: Lake) -> None:
    schema = pa.schema([(name, pa.int64()) for name in NAMES])
    row = dict(zip(NAMES, range(len(NAMES)), strict=True))
    nested = pa.schema([*schema, ("a", pa.struct([("c", pa.int64())]))])
    first = change_batch(schema, [row], last=True)
    second = change_batch(nested, [{**row, "a b": 77, "a": {"c": 1}}], version=2, last=True)
    gone = change_batch(nested, [{**row, "_change_type": "delete"}], version=3, last=True)
    sink = lake.make_sink(key=["a b", "a.b"], own_prefix="__")
    await write(sink, first, second, gone)
    assert lake.rows() == [{**row, "a b": 77, "a": {"c": 1}}]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.b", "a"], "by its path with dots"),
        (["a b", "a_x20b"], "as files spell it"),
        (["s."], None),
        ([""], "without a name"),
        (["\0"], "character NUL"),
    ],
)
def test_columns_that_a_table_can_not_have(lake: Lake, names: list[str], said: str | None) -> None:
    schema = pa.schema([(n, pa.struct([("b", pa.list_(pa.int8()))])) for n in names])
    if said is None:
        lake.make_sink(key=KEY).check_columns(schema)
        return
    with pytest.raises(TargetRefused, match=f"{said}.*exclude it with the feed's option 'select'"):
        lake.make_sink(key=KEY).check_columns(schema)


# What others do


async def test_a_table_of_its_user_keeps_its_partitions(lake: Lake) -> None:
    catalog = lake.open()
    catalog.create_namespace("lake")
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    by = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    catalog.create_table("lake.orders", schema, partition_spec=by)
    assert await lake.make_sink(key=KEY).look("orders") is None
    await write(lake.make_sink(key=KEY), rows(*((i, f"name {i}") for i in range(50))))
    await write(lake.make_sink(key=KEY), rows((7, "name 7"), kind="delete", version=2))
    assert len(lake.table().spec().fields) == 1
    assert {row["id"] for row in lake.rows()} == set(range(50)) - {7}
    other = Schema(NestedField(1, "id", StringType(), required=False))
    catalog.create_table("lake.other", other)
    with pytest.raises(TargetRefused, match="has the column 'id' of type string, and the feed has"):
        await write(lake.make_sink(key=KEY, table="lake.other"), rows((1, "a")))


async def test_what_somebody_else_did_is_refused(lake: Lake) -> None:
    await write(lake.make_sink(key=KEY), rows((1, "a"), (2, "b")))
    with pytest.raises(SinkRejected, match="is a mirror and not a log; name another"):
        await lake.make_sink(mode="log").open("orders")
    with pytest.raises(SinkRejected, match="is a table that the feed 'others' has not made"):
        await lake.make_sink(key=KEY).open("others")
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"with a key that the copy lacks; .*: {'id': 3}; remo"):
        await sink.write(rows((3, "c"), kind="delete", version=2))
    lake.table().append(pa.table({"id": [9], "name": ["x"]}))
    said = r"version \d+ of the copy changed its rows and was written by somebody"
    with pytest.raises(SinkRejected, match=said):
        await sink.write(rows((3, "c"), version=2))
    with pytest.raises(SinkRejected, match=said):
        await lake.make_sink(key=KEY).open("orders")


class Compaction(_OverwriteFiles):
    """The package makes none."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:  # noqa: ARG002
        return Summary(Operation.REPLACE)


def compact_rows(lake: Lake) -> None:
    """Replace the files by one with the same rows, as engines do that keep a table in order."""
    table = lake.table()
    everything = table.scan().to_arrow()
    files = [task.file for task in table.scan().plan_files()]
    transaction = table.transaction()
    with Compaction(Operation.REPLACE, transaction, table.io) as snapshot:
        for file in files:
            snapshot.delete_data_file(file)
        for file in _dataframe_to_data_files(table.metadata, everything, table.io):
            snapshot.append_data_file(file)
    transaction.commit_transaction()


async def test_others_may_compact_and_expire(lake: Lake) -> None:
    first = rows((1, "a"), (2, "b"))
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(first)
    table = lake.table()
    compact_rows(lake)
    ours = [snapshot.snapshot_id for snapshot in table.snapshots()]
    lake.table().maintenance.expire_snapshots().by_ids(ours).commit()
    assert len(lake.table().snapshots()) == 1
    await sink.write(rows((2, "b"), kind="delete", version=2))
    await sink.aclose()
    assert lake.rows() == [{"id": 1, "name": "a"}]


async def test_a_table_that_is_set_back_goes_on_from_there(lake: Lake) -> None:
    first, second = rows((1, "a")), rows((2, "b"), version=2)
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(first)
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    await sink.write(second)
    lake.table().manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    with pytest.raises(TransientError, match="was removed, or replaced by another table"):
        await sink.write(rows((3, "c"), version=3))
    await sink.aclose()
    assert await sink.open("orders") == first.next_offset
    await sink.write(second)
    await sink.aclose()
    assert [row["id"] for row in held(lake)] == [1, 2]


async def test_a_table_in_its_place_is_opened_again(lake: Lake) -> None:
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(rows((1, "a")))
    lake.open().drop_table("lake.orders")
    with pytest.raises(TransientError, match="was removed, or replaced by another table"):
        await sink.write(rows((3, "c"), version=3))
    await write(lake.make_sink(key=KEY), rows((1, "a")))
    with pytest.raises(TransientError, match="was removed, or replaced by another table"):
        await sink.write(rows((3, "c"), version=3))
    await sink.aclose()


async def test_a_commit_between_ours_is_looked_at(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit is tried again on top of another's."""
    old, commit = lake.make_sink(key=KEY), SqlCatalog.commit_table
    await old.open("orders")
    await old.write(rows((1, "a")))

    def late(self: SqlCatalog, *args: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        if taken:
            from_thread.run(lake.make_sink(key=KEY).open, "orders")
        else:
            compact_rows(lake)
        return commit(self, *args)

    for taken, said in (  # noqa: B007
        (False, "another writer's commit conflicts"),
        (True, "another process"),
    ):
        monkeypatch.setattr(SqlCatalog, "commit_table", late)
        with pytest.raises((ConfigError, TransientError), match=said):
            await old.write(rows((2, "b"), version=2))
        await old.aclose()
        assert held(lake) == [{"id": 1, "name": "a"}]
        await old.open("orders")
    await old.aclose()


# What it says


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ForbiddenError("no"), TargetRefused),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), TargetRefused),
        (OSError("cut"), TransientError),
        (ValueError("an answer that is none"), TransientError),
        (CommitFailedException("branch main has changed"), TransientError),
    ],
)
async def test_what_a_catalog_says(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[TailerError]
) -> None:
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(rows((1, "a")))

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", fail)
        with pytest.raises(kind):
            await sink.write(rows((2, "b"), version=2))
    await sink.aclose()
    assert held(lake) == [{"id": 1, "name": "a"}]


async def test_a_catalog_that_stands_still_or_is_gone_may_heal(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.iceberg.patches.READ_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as still:
        uri = f"http://127.0.0.1:{still.getsockname()[1]}"
        sink = lake.make_sink(key=KEY, catalog={"type": "rest", "uri": uri, "token": "secret"})
        with pytest.raises(TransientError, match=r"\(ReadTimeout: ") as said:
            await sink.open("orders")
        assert "secret" not in str(said.value)
    with pytest.raises(TransientError, match=r"\(ConnectionError: "):
        await sink.open("orders")


async def test_an_offset_is_set_and_looked_at(lake: Lake) -> None:
    sink = lake.make_sink(key=KEY)
    await sink.set_offset("orders", None)
    assert await sink.look("orders") is None
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    with pytest.raises(SinkRejected, match="its rows belong to its offset; remove the table"):
        await sink.set_offset("orders", None)


async def test_a_catalog_has_a_name(lake: Lake) -> None:
    """It is part of where a table is, in a catalog in SQL."""
    catalog = {**lake.properties, "name": "prod"}
    await write(lake.make_sink(key=KEY, catalog=catalog), rows((1, "a")))
    assert lake.rows() == []
    at = load_catalog("prod", **lake.properties)
    assert at.load_table("lake.orders").scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("name", ["orders", "", ".orders", "a.", "a..b", "a.\0"])
def test_a_table_is_in_a_namespace(lake: Lake, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be namespace\.name"):
        lake.make_sink(table=name)


async def test_a_rehearsal_leaves_nothing(lake: Lake) -> None:
    await lake.make_sink(key=KEY).rehearse("orders", pa.schema([("id", pa.int64())]))
    assert lake.open().list_namespaces() == []
    with pytest.raises(TailerError, match="can't be written"):
        await lake.make_sink(key=KEY, catalog={"type": "nothing"}).rehearse("o", pa.schema([]))
