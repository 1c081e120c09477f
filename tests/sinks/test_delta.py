"""The Delta sink beyond the public suites: evolution, fences, and what it refuses."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import ChangeBatch, Offset
from tailer.errors import SinkRejected, TargetRefused, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.clouds.servers import SERVERS, Container
from tests.sinks.test_duckdb import mapped
from tests.support.sinks import NAMED, rows, write

pytestmark = pytest.mark.anyio


def new(folder: Path, **options: Any) -> Sink:
    return make_sink("delta", {"path": "copy", "key": ["id"], **options}, folder)


def copy(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        deltalake.DeltaTable(folder / "copy").to_pyarrow_table().to_pylist()
    )
    return sorted(found, key=str)


async def test_a_mirror_by_row_id_keeps_rows_of_equal_values_apart(tmp_path: Path) -> None:
    def with_ids(batch: ChangeBatch, *ids: int) -> ChangeBatch:
        return structs.replace(batch, row_ids=pa.array(ids, pa.int64()))

    first, gone = rows((1, "a"), (1, "a")), rows((1, "a"), kind="delete", version=2)
    await write(new(tmp_path, key=[]), with_ids(first, 10, 11), with_ids(gone, 11))
    assert copy(tmp_path) == [{"id": 1, "name": "a", "_row_id": 10}]
    sink = new(tmp_path, key=[])
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="version 3 has no row ids; name key columns in"):
        await sink.write(rows((1, "c"), version=3))


async def test_columns_are_renamed_dropped_and_widened(tmp_path: Path) -> None:
    before = pa.schema([("id", pa.int32()), ("name", pa.string()), ("old", pa.string())])
    after = pa.schema([("id", pa.int64()), ("title", pa.string()), ("new", pa.string())])
    first = change_batch(before, [{"id": 1, "name": "a", "old": "x"}], last=True)
    then = change_batch(after, [{"id": 2**40, "title": "b", "new": "y"}], version=2, last=True)
    await write(
        new(tmp_path),
        mapped(first, id="c1", name="c2", old="c3"),
        mapped(then, id="c1", title="c2", new="c4"),
    )
    assert copy(tmp_path) == [
        {"id": 1, "title": "a", "new": None},
        {"id": 2**40, "title": "b", "new": "y"},
    ]


async def test_a_type_that_would_change_values_is_refused(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a")))
    other = pa.schema([("id", pa.int64()), ("name", pa.int64())])
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'name' was of type string and is now of type int64"):
        await sink.write(change_batch(other, [{"id": 2, "name": 2}], version=2))
    assert copy(tmp_path) == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("mode", ["mirror", "log"])
async def test_a_map_with_zoneless_times_is_refused_by_name(
    tmp_path: Path, mode: str, *, later: bool
) -> None:
    """deltalake refuses it with words that looked like a fault that passes."""
    times = pa.map_(pa.string(), pa.struct([("at", pa.timestamp("us"))]))
    schema = pa.schema([("id", pa.int64()), ("times", times)])
    sink = new(tmp_path, mode=mode, key=["id"] if mode == "mirror" else [])
    if later:
        plain = pa.schema([("id", pa.int64())])
        await write(sink, change_batch(plain, [{"id": 1}], last=True))
    with pytest.raises(TargetRefused, match="the column 'times' has timestamps without a time"):
        await write(sink, change_batch(schema, [{"id": 2, "times": None}], version=2, last=True))


async def test_a_map_with_zoneless_times_is_written_beside_others(tmp_path: Path) -> None:
    """Whatever makes deltalake enable the feature, the map is then written."""
    times = pa.map_(pa.string(), pa.timestamp("us"))
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("times", times)])
    row = {"id": 1, "at": None, "times": [("a", datetime(2026, 3, 29, 1, 30))]}  # noqa: DTZ001
    await write(new(tmp_path), change_batch(schema, [row], last=True))
    assert copy(tmp_path) == [row]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_file_that_can_not_be_read_is_waited_for(tmp_path: Path, *, whole: bool) -> None:
    """It may be a proxy's or a disk's, and the package does not say which."""
    sink = new(tmp_path)
    await write(sink, rows((1, "a")))
    [file] = (tmp_path / "copy").glob("*.parquet")
    good = file.read_bytes()
    file.write_bytes(b"\0" * len(good) if whole else good[:20] + b"\xff" * 30 + good[50:])
    with pytest.raises(TransientError, match="can't be read or written now"):
        await write(sink, rows((1, "a"), kind="delete", version=2))
    with (
        pytest.raises(TransientError, match="can't be read or written now"),
        sink.read_mirror("orders") as mirror,
    ):
        list(mirror.rows(NAMED))
    file.write_bytes(good)
    await write(sink, rows((1, "a"), kind="delete", version=2))


async def test_others_may_compact_the_table(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await sink.open("orders")
    await sink.write(rows((1, "a")))
    await sink.write(rows((2, "b"), version=2))
    other = deltalake.DeltaTable(tmp_path / "copy")
    other.optimize.compact()
    await sink.write(rows((2, "b"), kind="delete", version=3))
    assert await write(new(tmp_path)) == rows((2, "b"), version=3).next_offset
    assert copy(tmp_path) == [{"id": 1, "name": "a"}]


async def test_a_column_with_any_name_is_a_key(tmp_path: Path) -> None:
    name = 'Order No. "'
    schema = pa.schema([(name, pa.int64())])
    gone = change_batch(schema, [{name: 1, "_change_type": "delete"}], version=2, last=True)
    there = change_batch(schema, [{name: 1}, {name: 2}], last=True)
    await write(new(tmp_path, key=[name]), there, gone)
    assert copy(tmp_path) == [{name: 2}]
    sink = new(tmp_path, path="other")
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="has a backtick in its name, which deltalake can't"):
        await sink.write(change_batch(pa.schema([("a`b", pa.int64())]), [{"a`b": 1}]))


async def test_what_somebody_else_did_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "theirs", pa.table({"id": [1]}))
    with pytest.raises(SinkRejected, match="is a table that the feed 'orders' has not made"):
        await new(tmp_path, path="theirs").open("orders")
    await write(new(tmp_path), rows((1, "a"), (2, "b")))
    with pytest.raises(SinkRejected, match="is a mirror and not a log; name another"):
        await new(tmp_path, mode="log", key=[]).open("orders")
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"with a key that the copy lacks; .*: {'id': 3}; remo"):
        await sink.write(rows((1, "a"), (3, "c"), kind="delete", version=2))
    assert len(copy(tmp_path)) == 2


async def test_an_offset_is_set_and_looked_at(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await sink.set_offset("orders", None)
    assert await sink.look("orders") is None
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    with pytest.raises(SinkRejected, match="its rows belong to its offset; remove the table"):
        await sink.set_offset("orders", None)


async def test_another_log_in_its_place_is_opened_again(tmp_path: Path) -> None:
    """Removed, restored from an older copy, or made again with as many versions."""
    first, second = rows((1, "a")), rows((2, "b"), version=2)
    await write(new(tmp_path, path="other"), first, second)
    sink = new(tmp_path)
    await sink.open("orders")
    await sink.write(first)
    shutil.copytree(tmp_path / "copy", tmp_path / "older")
    await sink.write(second)
    kept = {"older": first.next_offset, "other": second.next_offset, "nothing": None}
    for there, offset in kept.items():
        shutil.rmtree(tmp_path / "copy")
        if offset is not None:
            shutil.copytree(tmp_path / there, tmp_path / "copy")
        with pytest.raises(TransientError, match="was removed, or replaced by another table"):
            await sink.write(rows((3, "c"), version=3))
        assert await sink.open("orders") == offset


async def test_somebody_elses_rows_in_a_mirror_are_refused(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a"), (2, "b")))
    other = deltalake.DeltaTable(tmp_path / "copy")
    other.optimize.compact()
    other.delete("id = 2")
    said = r"version \d of the copy changed its rows and was written by somebody"
    with pytest.raises(SinkRejected, match=said):
        await new(tmp_path).open("orders")
    other.restore(1)
    with pytest.raises(SinkRejected, match=said):
        await new(tmp_path).open("orders")


@pytest.mark.parametrize("server", SERVERS)
async def test_a_mirror_on_a_server_notices_what_others_did(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place: Container = request.getfixturevalue(server).container()
    address, options = place.address("copy"), place.deltalake
    sink = new(tmp_path, path=address, storage_options=options)
    await sink.open("orders")
    await sink.write(rows((1, "a")))
    await sink.write(rows((2, "b"), version=2))
    other = deltalake.DeltaTable(address, storage_options=options)
    other.optimize.compact()
    await sink.write(rows((2, "b"), kind="delete", version=3))
    other.update_incremental()
    other.delete("id = 1")
    with pytest.raises(SinkRejected, match="was written by somebody else"):
        await sink.write(rows((3, "c"), version=4))
    for name in await place.keys("copy/"):
        await place.delete(name)
    with pytest.raises(TransientError, match="was removed, or replaced by another table"):
        await sink.write(rows((3, "c"), version=4))
    assert await sink.open("orders") is None


async def test_a_log_keeps_what_it_has_when_names_are_swapped_behind_a_rename(
    tmp_path: Path,
) -> None:
    """Its column of the first name stays one of its own."""
    one, two = pa.int32(), pa.string()
    kinds = [
        ({"z": one, "y": two}, {"z": 10, "y": "11"}, {"z": "p1", "y": "p2"}),
        ({"x": one, "y": two}, {"x": 20, "y": "21"}, {"x": "p1", "y": "p2"}),
        ({"x": two, "y": one}, {"x": "31", "y": 30}, {"x": "p2", "y": "p1"}),
    ]
    for version, (types, row, names) in enumerate(kinds, start=1):
        batch = change_batch(pa.schema(types), [row], version=version, last=True)
        await write(new(tmp_path, mode="log", key=[]), mapped(batch, **names))
    found = [{n: row[n] for n in ("x", "y", "z")} for row in copy(tmp_path)]
    assert sorted(found, key=str) == [
        {"x": "11", "y": None, "z": 10},
        {"x": "21", "y": 20, "z": None},
        {"x": "31", "y": 30, "z": None},
    ]


async def test_a_repair_that_ends_halfway_settles_nothing(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a"), (2, "b")))
    deltalake.DeltaTable(tmp_path / "copy").update({"name": "'other'"})
    with ExitStack() as stack:  # which is never closed, as by a kill
        mirror = stack.enter_context(new(tmp_path).repair_mirror("orders"))
        mirror.replace(rows((1, "a")))
        stack.pop_all()
    with pytest.raises(SinkRejected, match="changed its rows and was written by somebody else"):
        await new(tmp_path).open("orders")
    with new(tmp_path).repair_mirror("orders") as mirror:
        mirror.replace(rows((2, "b")))
    await new(tmp_path).open("orders")
    assert copy(tmp_path) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
