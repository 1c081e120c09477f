"""The DuckDB sink beyond the public suites: its file, its readers, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import ChangeBatch, Offset
from tailer.delta.actions import Metadata, Protocol
from tailer.delta.arrow_types import VARIANT
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tailer.testing.table import delta_schema
from tests.support.duckdb_files import rows_of
from tests.support.sinks import rows, write
from tests.support.variants import encoded
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def new(folder: Path, **options: Any) -> Sink:
    return make_sink("duckdb", {"path": "lake.duckdb", "key": ["id"], **options}, folder)


def copy(folder: Path, query: str = "FROM orders ORDER BY ALL") -> list[dict[str, Any]]:
    return rows_of(folder / "lake.duckdb", query)


async def test_a_mirror_by_row_id_keeps_rows_of_equal_values_apart(tmp_path: Path) -> None:
    def with_ids(batch: ChangeBatch, *ids: int) -> ChangeBatch:
        return structs.replace(batch, row_ids=pa.array(ids, pa.int64()))

    await write(
        new(tmp_path, key=[]),
        with_ids(rows((1, "a"), (1, "a"), (1, "a")), 10, 11, 12),
        with_ids(rows((1, "a"), kind="delete", version=2), 11),
        with_ids(rows((1, "b"), kind="update_postimage", version=3), 13),
    )
    assert copy(tmp_path) == [
        {"id": 1, "name": "a", "_row_id": 10},
        {"id": 1, "name": "a", "_row_id": 12},
        {"id": 1, "name": "b", "_row_id": 13},
    ]
    sink = new(tmp_path, key=[])
    assert sink.traits.row_ids
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="version 4 has no row ids; name key columns in"):
        await sink.write(rows((1, "c"), version=4))
    await sink.aclose()


def mapped(batch: ChangeBatch, **physical: str) -> ChangeBatch:
    """The batch of a table with column mapping."""
    fields = [
        f.with_metadata({"delta.columnMapping.physicalName": json.dumps(physical[f.name]),
                         "delta.columnMapping.id": str(i)})
        for i, f in enumerate(batch.rows.schema) if f.name in physical
    ]  # fmt: skip
    text = delta_schema(pa.schema(fields))
    metadata = Metadata(batch.state.table_id, text, (), {"delta.columnMapping.mode": "name"})
    return structs.replace(batch, state=TableState.from_actions(Protocol(2, 5), metadata))


async def test_a_renamed_column_keeps_its_values(tmp_path: Path) -> None:
    first = mapped(rows((1, "a")), id="c1", name="c2")
    renamed = pa.schema([("id", pa.int64()), ("title", pa.string())])
    then = change_batch(renamed, [{"id": 2, "title": "b"}], version=2, last=True)
    await write(new(tmp_path), first, mapped(then, id="c1", title="c2"))
    assert copy(tmp_path) == [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}]


async def test_a_renamed_key_is_the_same_key(tmp_path: Path) -> None:
    await write(new(tmp_path), mapped(rows((1, "a")), id="c1", name="c2"))
    renamed = pa.schema([("no", pa.int64()), ("name", pa.string())])
    gone = {"no": 1, "name": "a", "_change_type": "delete"}
    then = mapped(change_batch(renamed, [gone], version=2, last=True), no="c1", name="c2")
    sink = new(tmp_path, key=["name"])
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"has the key \['c1'\] and not \['c2'\]; set"):
        await sink.write(then)
    await sink.aclose()
    await write(new(tmp_path, key=["no"]), then)
    assert copy(tmp_path) == []


async def test_a_type_that_would_change_values_is_refused(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a")))
    other = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'name' was of type string and is now of type int64"):
        await sink.write(change_batch(other, [{"id": 2, "name": 2}], version=2))
    await sink.aclose()
    assert copy(tmp_path) == [{"id": 1, "name": "a"}]


async def test_a_log_has_the_columns_of_all_versions(tmp_path: Path) -> None:
    other = pa.schema([("id", pa.int64()), ("country", pa.string())])
    then = change_batch(other, [{"id": 2, "country": "DE"}], version=2, last=True)
    log = {"mode": "log", "key": []}
    await write(new(tmp_path, **log), rows((1, "a")), then, rows((3, "c"), version=3))
    found = copy(tmp_path, "SELECT id, name, country, _commit_version AS v FROM orders ORDER BY v")
    assert [tuple(row.values()) for row in found] == [
        (1, "a", None, 1), (2, None, "DE", 2), (3, "c", None, 3),
    ]  # fmt: skip


async def test_a_variant_is_its_json_and_refused_within_another_type(tmp_path: Path) -> None:
    value, metadata = encoded({"a": [1, "x"]})
    values = pa.array([{"value": value, "metadata": metadata}, None], VARIANT)
    batch = rows((1, "a"), (2, "b"))
    columns = [*batch.rows.columns[:2], values, *batch.rows.columns[2:]]
    fields = list(batch.rows.schema)
    schema = pa.schema([*fields[:2], pa.field("v", values.type), *fields[2:]])
    await write(
        new(tmp_path),
        structs.replace(batch, rows=pa.RecordBatch.from_arrays(columns, schema=schema)),
    )
    found = copy(tmp_path, "SELECT v ->> '$.a[1]' AS x FROM orders ORDER BY id")
    assert found == [{"x": "x"}, {"x": None}]
    nested = pa.StructArray.from_arrays([values], fields=[pa.field("v", values.type)])
    columns[2] = nested
    schema = pa.schema([*fields[:2], pa.field("s", nested.type), *fields[2:]])
    sink = new(tmp_path, table="other")
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'s' has a variant within another type"):
        await sink.write(
            structs.replace(batch, rows=pa.RecordBatch.from_arrays(columns, schema=schema))
        )
    await sink.aclose()


async def test_a_struct_without_fields_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([]))])
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'s' has a struct without fields"):
        await sink.write(change_batch(schema, [{"id": 1, "s": {}}]))
    await sink.aclose()


async def test_rows_of_a_snapshot_that_is_read_again_replace_their_keys(tmp_path: Path) -> None:
    again = rows((2, "new"), (3, "c"), version=1)
    at = Offset(1, snapshot=True, table_id=again.offset.table_id)
    first = rows((1, "a"), (2, "b"))
    again = structs.replace(again, offset=at, next_offset=first.next_offset)
    await write(new(tmp_path), first, again)
    assert [row["name"] for row in copy(tmp_path)] == ["a", "new", "c"]


async def test_two_feeds_write_to_one_file(tmp_path: Path) -> None:
    one, two = new(tmp_path), new(tmp_path)
    await one.open("orders")
    await two.open('cust"omers')
    await one.write(rows((1, "a")))
    await two.write(rows((2, "b")))
    await one.aclose()
    await two.aclose()
    assert copy(tmp_path, 'FROM orders UNION ALL FROM "cust""omers" ORDER BY id') == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]


READER = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).sql(sys.argv[2]))"
WAITING = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"


def reads(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READER, str(path), "SELECT count(*) FROM orders"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_others_read_the_file_while_no_batch_waits(tmp_path: Path) -> None:
    path = tmp_path / "lake.duckdb"
    sink: Any = new(tmp_path)
    await sink.open("orders")
    first, second = rows((1, "a")), rows((2, "b"), version=2)
    sink.prepare(first)
    sink.prepare(second)
    await sink.write(first)
    assert "lock" in reads(path).stderr, "the second one waits"
    await sink.write(second)
    eventually(lambda: "2" in reads(path).stdout, why="the file to be closed")
    await sink.aclose()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process that has the file open."""
    command = [sys.executable, "-c", WAITING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


async def test_a_file_that_another_process_has_open_is_waited_for(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await write(sink, rows((1, "a")))
    with held(tmp_path / "lake.duckdb"):
        with pytest.raises(TransientError, match="another process has it open: close it there"):
            await sink.open("orders")
        with pytest.raises(TransientError, match="another process has it open"):
            await sink.look("orders")
    await write(sink, rows((2, "b"), version=2))
    assert len(copy(tmp_path)) == 2


async def test_a_look_changes_nothing(tmp_path: Path) -> None:
    sink = new(tmp_path)
    assert await sink.look("orders") is None
    assert not (tmp_path / "lake.duckdb").exists()
    batch = rows((1, "a"))
    await write(sink, batch)
    before = copy(tmp_path, "FROM _delta_tailer")
    assert await sink.look("orders") == batch.next_offset
    assert copy(tmp_path, "FROM _delta_tailer") == before


async def test_a_target_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "lake.duckdb") as file:
        file.execute("CREATE TABLE Orders AS SELECT 1 AS id")
    with pytest.raises(SinkRejected, match="has a table 'orders' that no feed has made"):
        await new(tmp_path).open("orders")
    await write(new(tmp_path, table="mine"), rows((1, "a")))
    with pytest.raises(SinkRejected, match="'mine' is written by the feed 'orders'; name another"):
        await new(tmp_path, table="mine").open("customers")
    with pytest.raises(SinkRejected, match="'mine' is a mirror and not a log"):
        await new(tmp_path, table="mine", mode="log").open("orders")
    with duckdb.connect(tmp_path / "lake.duckdb") as file:
        file.execute("DROP TABLE mine")
    with pytest.raises(SinkRejected, match="'mine' was dropped; `tailer offsets reset` creates it"):
        await new(tmp_path, table="mine").open("orders")


async def test_what_is_not_a_duckdb_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lake.duckdb").write_bytes(b"some text" * 1000)
    with pytest.raises(SinkRejected, match="is not a DuckDB file"):
        await new(tmp_path).open("orders")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SinkRejected, match="Is a directory"):
        await new(tmp_path, path="folder").open("orders")


async def test_between_batches_the_log_is_left_and_in_the_end_the_file_has_all(
    tmp_path: Path,
) -> None:
    path, log = tmp_path / "lake.duckdb", tmp_path / "lake.duckdb.wal"
    sink: Any = new(tmp_path)
    await sink.open("orders")
    made = path.read_bytes()
    for key in (1, 2):
        sink.prepare(batch := rows((key, "a"), version=key))
        await sink.write(batch)
        eventually(lambda: "1" in reads(path).stdout or "2" in reads(path).stdout, 10.0)
        assert path.read_bytes() == made, "no checkpoint, which a kill could cut in two"
    other: Any = new(tmp_path)  # as `tailer check`, beside the daemon
    await other.look("orders")
    await other.aclose()
    assert path.read_bytes() == made
    assert log.exists()
    await sink.aclose()
    assert not log.exists()
    assert len(copy(tmp_path)) == 2


async def test_a_long_log_is_written_into_the_file(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await sink.open("orders")
    await sink.write(rows(*((n, str(n) * 100) for n in range(30_000))))
    eventually(lambda: "30000" in reads(tmp_path / "lake.duckdb").stdout, 10.0)
    assert not (tmp_path / "lake.duckdb.wal").exists()
    await sink.aclose()


async def test_a_damaged_file_is_refused_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "lake.duckdb"
    await write(new(tmp_path), rows((1, "a")))
    with path.open("r+b") as file:
        file.seek(12_300)
        file.write(b"torn")
    with pytest.raises(SinkRejected, match=r"Corrupt .*; restore it, or remove it with its \.wal"):
        await new(tmp_path).open("orders")


async def test_a_row_that_was_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a"), (2, "b")))
    with duckdb.connect(tmp_path / "lake.duckdb") as file:
        file.execute("DELETE FROM orders WHERE id = 2")
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"with a key that the copy lacks; .*: {'id': 2}; `t"):
        await sink.write(rows((1, "a"), (2, "b"), kind="delete", version=2))
    await sink.aclose()
    assert copy(tmp_path) == [{"id": 1, "name": "a"}]


async def test_a_reset_drops_the_table_with_its_offset(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await sink.open("orders") == Offset(7)
    await sink.aclose()
    await sink.set_offset("orders", None)
    assert copy(tmp_path, "FROM _delta_tailer") == []
    await write(sink, rows((1, "a")))
    assert len(copy(tmp_path)) == 1


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'keys' of sink 'duckdb' is not known .did you mean"):
        new(tmp_path, keys=["id"])
