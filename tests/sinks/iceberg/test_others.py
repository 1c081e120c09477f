"""The Iceberg sink beyond the public suites: what others do to its table, and what it says."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import from_thread
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest.response import TokenResponse
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from sinks.iceberg.table import _say_error
from tailer.changes import Offset
from tailer.errors import (
    ConfigError,
    SinkRejected,
    TailerError,
    TargetRefused,
    TransientError,
)  # fmt: skip
from tailer.secrets import keep_secrets
from tailer.testing.batches import change_batch
from tests.sinks.iceberg.conftest import KEY, held
from tests.support.iceberg import Lake
from tests.support.sinks import NAMED, rows, write

pytestmark = pytest.mark.anyio


# What others do


async def test_a_table_of_its_user_keeps_its_partitions(lake: Lake) -> None:
    catalog = lake.open()
    catalog.create_namespace(lake.namespace)
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    by = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    catalog.create_table(lake.name, schema, partition_spec=by)
    assert await lake.make_sink(key=KEY).look("orders") is None
    await write(lake.make_sink(key=KEY), rows(*((i, f"name {i}") for i in range(50))))
    await write(lake.make_sink(key=KEY), rows((7, "name 7"), kind="delete", version=2))
    assert len(lake.table().spec().fields) == 1
    assert {row["id"] for row in lake.rows()} == set(range(50)) - {7}
    other = Schema(NestedField(1, "id", StringType(), required=False))
    catalog.create_table(f"{lake.namespace}.other", other)
    with pytest.raises(TargetRefused, match="has the column 'id' of type string, and the feed has"):
        await write(lake.make_sink(key=KEY, table=f"{lake.namespace}.other"), rows((1, "a")))


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
        before = self._transaction.table_metadata.current_snapshot()
        assert before is not None and before.summary is not None  # noqa: PT018
        return Summary(Operation.REPLACE, **{
            name: value for name, value in before.summary.additional_properties.items()
            if name.startswith("total-")
        })  # fmt: skip


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
    lake.open().drop_table(lake.name)
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
    old, commit = lake.make_sink(key=KEY), lake.kind.commit_table
    await old.open("orders")
    await old.write(rows((1, "a")))

    def late(self: Catalog, *args: Any) -> Any:
        monkeypatch.setattr(lake.kind, "commit_table", commit)
        if taken:
            from_thread.run(lake.make_sink(key=KEY).open, "orders")
        else:
            compact_rows(lake)
        return commit(self, *args)

    for taken, said in (  # noqa: B007
        (False, "another writer's commit conflicts"),
        (True, "another process"),
    ):
        monkeypatch.setattr(lake.kind, "commit_table", late)
        with pytest.raises((ConfigError, TransientError), match=said):
            await old.write(rows((2, "b"), version=2))
        await old.aclose()
        assert held(lake) == [{"id": 1, "name": "a"}]
        await old.open("orders")
    await old.aclose()


async def test_what_others_do_to_columns_is_noticed(lake: Lake) -> None:
    """No snapshot shows it."""
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    first = change_batch(schema, [{"id": 1, "a": "A", "b": "B"}], last=True)
    then = change_batch(schema, [{"id": 2, "a": "A", "b": "B"}], version=2, last=True)

    def drop(update: UpdateSchema) -> None:
        update.delete_column("b")

    def rename(update: UpdateSchema) -> None:
        update.rename_column("a", "x")

    def swap(update: UpdateSchema) -> None:
        update.rename_column("a", "b")
        update.rename_column("b", "a")

    for change in (drop, rename, swap):
        sink = lake.make_sink(key=KEY)
        await sink.open("orders")
        await sink.write(first)
        with lake.table().update_schema() as update:
            change(update)
        said = "is not the one that the feed has made"
        with pytest.raises(TargetRefused, match=said):
            await sink.write(then)
        await sink.aclose()
        with pytest.raises(TargetRefused, match=said):
            await lake.make_sink(key=KEY).open("orders")
        lake.open().drop_table(lake.name)
    await write(lake.make_sink(key=KEY), first)
    with lake.table().update_schema() as update:
        update.add_column("more", StringType())  # which is theirs
    await write(lake.make_sink(key=KEY), then)
    assert len(lake.rows()) == 2


async def test_a_process_that_was_replaced_behind_a_set_back_writes_nothing(lake: Lake) -> None:
    """Its number comes again."""
    batches = [rows((n, "a"), version=n) for n in (1, 2, 3, 4)]
    old = lake.make_sink(mode="log")
    await old.open("orders")
    await old.write(batches[0])
    at = lake.table().current_snapshot()
    assert at is not None
    await old.write(batches[1])
    await old.write(batches[2])
    lake.table().manage_snapshots().rollback_to_snapshot(at.snapshot_id).commit()
    await write(lake.make_sink(mode="log"), batches[1])
    with pytest.raises(ConfigError, match="another process writes this table now"):
        await old.write(batches[3])
    await old.aclose()
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]


async def test_a_commit_that_is_answered_with_a_conflict_is_a_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a client sends it again after a lost answer."""
    sink, commit = lake.make_sink(key=KEY), lake.kind.commit_table
    await sink.open("orders")
    await sink.write(rows((1, "a")))

    def lose(self: Catalog, *args: Any) -> Any:
        commit(self, *args)
        raise CommitFailedException("branch main has changed")

    with monkeypatch.context() as patched:
        patched.setattr(lake.kind, "commit_table", lose)
        await sink.write(rows((2, "b"), version=2))
    await sink.write(rows((1, "a"), kind="delete", version=3))
    await sink.aclose()
    assert lake.rows() == [{"id": 2, "name": "b"}]


async def test_rows_of_others_do_not_pass_behind_an_expiry(lake: Lake) -> None:
    await write(lake.make_sink(key=KEY), rows((1, "a"), (2, "b")))
    table = lake.table()
    table.append(pa.table({"id": [9], "name": ["x"]}))
    before = [snapshot.snapshot_id for snapshot in lake.table().snapshots()]
    compact_rows(lake)
    lake.table().maintenance.expire_snapshots().by_ids(before).commit()
    with pytest.raises(TargetRefused, match="others have changed its rows, or set it back"):
        await lake.make_sink(key=KEY).open("orders")


async def test_a_repair_that_ends_halfway_settles_nothing(lake: Lake) -> None:
    await write(lake.make_sink(key=KEY), rows((1, "a"), (2, "b")))
    lake.update("name", "'other'", "id > 0")
    with ExitStack() as stack:  # which is never closed, as by a kill
        copy = stack.enter_context(lake.make_sink(key=KEY).repair_mirror("orders"))
        copy.replace(rows((1, "a")))
        stack.pop_all()
    with pytest.raises(TargetRefused, match="changed its rows and was written by somebody else"):
        await lake.make_sink(key=KEY).open("orders")
    with lake.make_sink(key=KEY).repair_mirror("orders") as copy:
        copy.replace(rows((2, "b")))
    await lake.make_sink(key=KEY).open("orders")
    assert held(lake) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


async def test_small_updates_do_not_get_slower(lake: Lake) -> None:
    """The package keeps the list of each snapshot that has ever removed a file."""
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")
    await sink.write(rows((1, "1")))
    for number in range(2, 12):
        images = [
            {"id": 1, "name": str(number - 1), "_change_type": "update_preimage"},
            {"id": 1, "name": str(number), "_change_type": "update_postimage"},
        ]
        await sink.write(change_batch(NAMED, images, version=number, last=True))
    await sink.aclose()
    newest = lake.table().current_snapshot()
    assert newest is not None
    assert len(newest.manifests(lake.table().io)) <= 3
    assert lake.rows() == [{"id": 1, "name": "11"}]


TABLES: dict[str, tuple[Schema, dict[str, Any], str]] = {
    "identifier": (
        Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1]), {},
        "the column 'id' is required",
    ),
    "version 1": (
        Schema(NestedField(1, "id", LongType(), required=False)),
        {"properties": {"format-version": "1"}}, "is of format version 1; make it with version 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
async def test_tables_that_no_feed_can_write_are_refused(lake: Lake, kind: str) -> None:
    schema, more, said = TABLES[kind]
    lake.open().create_namespace(lake.namespace)
    lake.open().create_table(lake.name, schema, **deepcopy(more))  # it takes things out
    with pytest.raises(TargetRefused, match=said):
        await write(lake.make_sink(key=KEY), rows((1, "a")))


@pytest.mark.parametrize("mode", ["mirror", "log"])
async def test_a_column_that_partitions_are_made_of_is_dropped(lake: Lake, mode: str) -> None:
    schema = Schema(*(NestedField(i, name, LongType(), required=False)
                      for i, name in enumerate(("id", "p"), start=1)))  # fmt: skip
    lake.open().create_namespace(lake.namespace)
    by = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    lake.open().create_table(lake.name, schema, partition_spec=by)
    more = {"key": KEY} if mode == "mirror" else {"mode": "log"}
    both = pa.schema([("id", pa.int64()), ("p", pa.int64())])
    await write(lake.make_sink(**more), change_batch(both, [{"id": 1, "p": 1}], last=True))
    less = change_batch(pa.schema([("id", pa.int64())]), [{"id": 2}], version=2, last=True)
    if mode == "mirror":
        with pytest.raises(TargetRefused, match="drops the column 'p', which the copy's partition"):
            await write(lake.make_sink(**more), less)
    else:
        await write(lake.make_sink(**more), less)
        assert [(row["id"], row["p"]) for row in lake.rows()] == [(1, 1), (2, None)]


@pytest.mark.parametrize(
    ("values", "data_type", "transform"),
    [
        ([-(2**63), 2**63 - 1, 5], pa.int64(), TruncateTransform(10)),
        ([-(2**31), 2**31 - 1, 5], pa.int32(), TruncateTransform(10)),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2020, 1, 1)], pa.date32(),
         MonthTransform()),
    ],
)  # fmt: skip
async def test_keys_at_the_ends_of_their_type_are_found_in_partitions(
    lake: Lake, values: list[Any], data_type: pa.DataType, transform: Any
) -> None:
    iceberg = {pa.int64(): LongType(), pa.int32(): IntegerType(), pa.date32(): DateType()}
    lake.open().create_namespace(lake.namespace)
    column = NestedField(1, "k", iceberg[data_type], required=False)
    by = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    lake.open().create_table(lake.name, Schema(column), partition_spec=by)
    schema = pa.schema([("k", data_type), ("v", pa.int64())])
    found = [{"k": value, "v": 1} for value in values]
    await write(lake.make_sink(key=["k"]), change_batch(schema, found, last=True))
    for number, value in enumerate(values, start=2):
        gone = {"k": value, "v": 1, "_change_type": "delete"}
        batch = change_batch(schema, [gone], version=number, last=True)
        await write(lake.make_sink(key=["k"]), batch)
    assert lake.rows() == []


async def test_a_text_whose_bound_no_file_can_have(lake: Lake) -> None:
    names = ["a" * 15 + "\ud7ff" + "zz", "\U0010ffff" * 20, "a" * 15 + "\U0010ffff" * 9]
    await write(lake.make_sink(key=["name"]), rows(*enumerate(names)))
    for number, name in enumerate(names):
        gone = rows((number, name), kind="delete", version=number + 2)
        await write(lake.make_sink(key=["name"]), gone)
    assert lake.rows() == []


async def test_a_process_that_ended_behind_the_creation(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(lake.kind, "commit_table", fail)
        with pytest.raises(TransientError, match="killed"):
            await write(lake.make_sink(key=KEY), rows((1, "a")))
    other = pa.schema([("id", pa.int64()), ("title", pa.string())])
    await write(lake.make_sink(key=KEY), change_batch(other, [{"id": 1, "title": "a"}], last=True))
    assert lake.rows() == [{"id": 1, "title": "a"}]


# What it says


async def test_what_is_said_has_no_secrets(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "eyJ" + "x" * 900  # longer than what is said
    keep_secrets([token])
    sink = lake.make_sink(key=KEY)
    await sink.open("orders")

    def fail(*_: Any) -> None:
        raise ForbiddenError(f"the token {token} has ended")

    with monkeypatch.context() as patched:
        patched.setattr(lake.kind, "commit_table", fail)
        with pytest.raises(TargetRefused) as said:
            await sink.write(rows((1, "a")))
    assert "xxx" not in str(said.value)
    with pytest.raises(ValueError, match="input_value") as wrong:
        TokenResponse.model_validate({"access_token": {"secret": "s3cret"}})
    assert "s3cret" not in _say_error(wrong.value)


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
        patched.setattr(lake.kind, "commit_table", fail)
        with pytest.raises(kind):
            await sink.write(rows((2, "b"), version=2))
    await sink.aclose()
    assert held(lake) == [{"id": 1, "name": "a"}]


async def test_an_offset_is_set_and_looked_at(lake: Lake) -> None:
    sink = lake.make_sink(key=KEY)
    await sink.set_offset("orders", None)
    assert await sink.look("orders") is None
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    with pytest.raises(SinkRejected, match="its rows belong to its offset; remove the table"):
        await sink.set_offset("orders", None)


async def test_a_catalog_has_a_name(tmp_path: Path) -> None:
    """It is part of where a table is, in a catalog in SQL."""
    lake = Lake(tmp_path)
    catalog = {**lake.properties, "name": "prod"}
    await write(lake.make_sink(key=KEY, catalog=catalog), rows((1, "a")))
    assert lake.rows() == []
    at = load_catalog("prod", **lake.properties)
    assert at.load_table(lake.name).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("name", ["orders", "", ".orders", "a.", "a..b", "a.\0", "a.b#c", "a?.b"])
def test_a_table_is_in_a_namespace(lake: Lake, name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be namespace\.name"):
        lake.make_sink(table=name)


async def test_a_rehearsal_leaves_nothing(lake: Lake) -> None:
    await lake.make_sink(key=KEY).rehearse("orders", pa.schema([("id", pa.int64())]))
    assert not lake.open().namespace_exists(lake.namespace)


@pytest.mark.parametrize(
    "catalog",
    [{"type": "nothing"}, {}, {"type": "sql", "uri": "nothing"}, {"type": "sql", "uri": "no://x"}],
)
async def test_options_of_no_catalog_are_refused(lake: Lake, catalog: dict[str, str]) -> None:
    sink = lake.make_sink(key=KEY, catalog=catalog)
    with pytest.raises(ConfigError, match="the option 'catalog' names no catalog"):
        await sink.rehearse("orders", pa.schema([]))
