"""Several sinks behind one reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, SinkRejected, TableReplaced, TransientError
from tailer.feed.fanout import Branch, FanOut
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.policy import Policies
from tailer.feed.run import Feed, run_feed
from tailer.log.starts import start_offset
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink, load_sink, make_sink
from tailer.testing.batches import change_batch
from tailer.testing.faulty import FaultyOffsetStore, FaultySink, Script
from tests.support.feeds import ID as SCHEMA
from tests.support.feeds import position_of
from tests.support.rig import Rig
from tests.support.sinks import named
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio


class Several:
    """The rig's table to sinks a, b, ... each with its own file, offsets and script."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder

    def feed(self, *names: str, start: str = "0", **scripts: Script) -> tuple[Feed, Script]:
        reading = Script({})
        feed = self.rig.feed(script=reading, start=start)

        async def first() -> Offset:
            return await start_offset(feed.log, start)

        branches = [
            Branch(name, self.sink(name, scripts.get(name)), self.offsets(name)) for name in names
        ]
        feed.sink = feed.offsets = FanOut(branches, first)
        return feed, reading

    def offsets(self, name: str) -> LocalOffsetStore:
        return LocalOffsetStore(self.folder / "state", f"orders/{name}")

    def sink(self, name: str, script: Script | None) -> Sink:
        sink = load_sink("jsonl").from_options({"path": f"{name}.jsonl"}, self.folder)
        return FaultySink(sink, script) if script else sink

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [*map(json.loads, (self.folder / f"{name}.jsonl").read_text().splitlines())]

    def ids(self, name: str, suffix: str = "") -> list[int]:
        events = [line for line in self.lines(name) if "_notice" not in line]
        return [event["id"] for event in events if event["_event_id"].endswith(suffix)]

    def snapshot_ids(self, name: str) -> list[int]:
        return self.ids(name, suffix="s")

    def notices(self, name: str) -> list[str]:
        return [line["_notice"] for line in self.lines(name) if "_notice" in line]


@pytest.fixture
def several(tmp_path: Path) -> Several:
    rig = Rig(tmp_path)
    rig.table.commit(
        *(rig.table.add([{"id": 2 * i}, {"id": 2 * i + 1}], path=f"{i}.parquet") for i in range(3))
    )
    rig.table.insert([{"id": 6}], path="3.parquet")
    return Several(rig, tmp_path)


def opened(script: Script) -> list[str]:
    return [what for name, what in script.calls if name == "open" and what.endswith(".parquet")]


async def test_each_file_is_read_once_and_everyone_has_everything(several: Several) -> None:
    feed, reading = several.feed("a", "b", "c")
    await run_feed(feed)
    assert several.ids("a") == several.ids("b") == several.ids("c") == list(range(7))
    assert opened(reading) == ["0.parquet", "1.parquet", "2.parquet", "3.parquet"]
    for name in "abc":
        assert position_of(await several.offsets(name).load()) == (3, 0)


@pytest.mark.parametrize("error", [SinkRejected("no"), TransientError("no")])
async def test_one_that_fails_neither_loses_nor_repeats_for_the_others(
    several: Several, error: Exception
) -> None:
    feed, _ = several.feed("a", "b", b=Script({"write": [None, None, error]}))
    try:
        await run_feed(feed)
    except SinkRejected:
        assert several.ids("b") == [0, 1]
        assert several.ids("a") == [0, 1, 2, 3], "what was begun was finished"
        feed, _ = several.feed("a", "b")
        await run_feed(feed)
    assert several.ids("a") == several.ids("b") == list(range(7))


async def test_a_sink_is_given_the_rest_of_a_batch(several: Several) -> None:
    """Its offset may lie inside one, saved when batches were cut elsewhere."""
    table_id = several.rig.table.table_id
    await several.offsets("a").save(Offset(1, 1, table_id=table_id))
    await several.offsets("b").save(Offset(1, 4, table_id=table_id))
    feed, _ = several.feed("a", "b")
    await run_feed(feed)
    assert several.ids("a") == [1, 2, 3, 4, 5, 6]
    assert several.ids("b") == [4, 5, 6]


@pytest.mark.parametrize("last", [Offset(2, 1), Offset(3)])
async def test_a_table_that_went_back_behind_a_sink_that_is_ahead_is_noticed(
    several: Several, last: Offset
) -> None:
    """The reader starts where the slowest sink is, and would wait for the versions that the other
    one has: what is written anew under their numbers would be lost for it."""
    table = several.rig.table
    await several.offsets("a").save(Offset(0, table_id=table.table_id))
    await several.offsets("b").save(replace(last, table_id=table.table_id))
    table.commit_path(2).unlink()
    feed, _ = several.feed("a", "b")
    feed.last = None
    with anyio.fail_after(60), pytest.raises(TableReplaced, match="went back to version 1"):
        await run_feed(feed)
    assert await several.offsets("b").load() == replace(last, table_id=table.table_id)


async def test_a_new_sink_joins_when_it_has_caught_up(several: Several) -> None:
    feed, _ = several.feed("a")
    await run_feed(feed)
    several.rig.table.insert([{"id": 7}])
    feed, _ = several.feed("a", "b", start="snapshot")
    await run_feed(feed)
    assert several.ids("a") == list(range(8))
    assert sorted(several.ids("b")) == list(range(8))
    assert several.notices("b") == ["snapshot_begin", "snapshot_end"]
    assert several.rig.progress.totals.keys().isdisjoint({("retries",), ("errors", "transient")})
    assert several.notices("a") == []
    assert several.rig.metric("tailer_retries_total") == 0, "to join in is no failure"


async def test_two_new_ones_share_one_snapshot(several: Several) -> None:
    feed, reading = several.feed("a", "b", start="snapshot")
    await run_feed(feed)
    assert sorted(several.ids("a")) == sorted(several.ids("b")) == list(range(7))
    assert len(opened(reading)) == 4


async def test_a_snapshot_in_mid_stream_is_for_everyone(several: Several) -> None:
    feed, _ = several.feed("a", "b")
    await run_feed(feed)
    several.rig.table.insert([{"id": 7}])
    several.rig.orders.resnapshots.append(ResnapshotRequest())
    feed, _ = several.feed("a", "b")
    await run_feed(feed)
    for name in "ab":
        assert sorted(several.ids(name)[7:]) == [*range(8)]
        assert several.notices(name) == ["snapshot_begin", "snapshot_end"]
        assert position_of(await several.offsets(name).load()) == (4, 0)


@pytest.mark.parametrize("ahead", [Offset(2, 1), Offset(3), Offset(4)])
async def test_a_snapshot_in_mid_stream_begins_when_all_sinks_are_at_one_place(
    several: Several, ahead: Offset
) -> None:
    """Earlier, the sinks ahead of the reader would be left out, or given older rows than they
    have."""
    table = several.rig.table
    several.rig.table.insert([{"id": 7}])
    await several.offsets("a").save(Offset(1, table_id=table.table_id))
    await several.offsets("b").save(replace(ahead, table_id=table.table_id))
    several.rig.orders.resnapshots.append(ResnapshotRequest())
    feed, _ = several.feed("a", "b")
    await run_feed(feed)
    for name in "ab":
        assert several.notices(name) == ["snapshot_begin", "snapshot_end"]
        assert sorted(several.snapshot_ids(name)) == list(range(8 if ahead.version == 4 else 7))
    assert several.rig.orders.resnapshots == []


async def test_a_loss_is_told_to_sinks_ahead_within_the_version(several: Several) -> None:
    table_id = several.rig.table.table_id
    await several.offsets("a").save(Offset(1, 1, table_id=table_id))
    await several.offsets("b").save(Offset(1, 5, table_id=table_id))
    await several.offsets("c").save(Offset(2, 0, table_id=table_id))
    (several.rig.table.folder / "2.parquet").unlink()
    feed, _ = several.feed("a", "b", "c")
    feed.options = replace(feed.options, policies=Policies(on_data_loss="skip"))
    await run_feed(feed)
    assert several.ids("a") == [1, 2, 3, 6]
    assert several.ids("b") == several.ids("c") == [6], "it does not go back"
    assert several.notices("a") == several.notices("b") == ["data_loss"]
    assert several.notices("c") == [], "it had the version"


async def test_a_loss_of_nobody_knows_how_many_changes_is_told_to_all(several: Several) -> None:
    """The reader goes back to the version's start, and so do all sinks in it."""
    table = several.rig.table
    rows = [{"id": 7 + i, "_change_type": "insert"} for i in range(4)]
    table.commit(table.cdc(rows[:2], path="c0.parquet"), table.cdc(rows[2:], path="c1.parquet"))
    (table.folder / "c1.parquet").unlink()
    feed, _ = several.feed("a", "b")
    feed.options = replace(feed.options, policies=Policies(on_data_loss="skip"))
    await run_feed(feed)
    for name in "ab":
        assert several.notices(name) == ["data_loss"]
        assert set(several.ids(name)) == set(range(9))


async def test_all_are_owned_or_none(several: Several) -> None:
    other = several.offsets("b")
    await other.acquire()
    feed, _ = several.feed("a", "b")
    with pytest.raises(OffsetError, match="another process"):
        await run_feed(feed)
    await several.offsets("a").acquire()
    await other.release()


async def test_a_standby_that_stops_waiting_owns_nothing(several: Several) -> None:
    """It had the first offset, and waited for the second."""
    other = several.offsets("b")
    await other.acquire()
    feed, _ = several.feed("a", "b")
    assert isinstance(feed.offsets, FanOut)
    feed.offsets.branches[1].offsets = LocalOffsetStore(other.path.parent, other.name, standby=True)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.offsets.acquire)
            await eventually_async(lambda: feed.offsets.waiting_for, why="it waits for the second")
            scope.cancel()
    await several.offsets("a").acquire()
    await other.release()


async def test_a_disk_that_is_full_under_an_offset_repeats_one_batch(several: Several) -> None:
    feed, _ = several.feed("a", "b")
    full = TransientError("the offset can't be saved")
    script = Script({"save": [None, None, *[full] * 5]})  # of the start, of version 0, ...
    assert isinstance(feed.sink, FanOut)
    branch = feed.sink.branches[1]
    branch.offsets = FaultyOffsetStore(branch.offsets, script)
    await run_feed(feed)
    assert several.ids("a") == list(range(7))
    assert several.ids("b") == [0, 1, *range(7)]


async def test_what_is_left_of_a_batch_may_be_preimages_alone(tmp_path: Path) -> None:
    """Its offset stands behind the batch's last row, and before images that are no rows."""
    rows = change_batch(SCHEMA, [{"id": 1}, {"id": 2}])
    paired = replace(rows, indices=pa.array([0, 3]), next_offset=Offset(1, 6))
    writes = Script({})
    sink = load_sink("jsonl").from_options({"path": "a.jsonl"}, tmp_path)
    offsets = MemoryOffsetStore()
    await offsets.save(Offset(1, 5))

    async def nowhere() -> Offset:
        raise AssertionError("it has an offset")

    fan_out = FanOut([Branch("a", FaultySink(sink, writes), offsets)], nowhere)
    await fan_out.open("orders")
    await fan_out.write(paired)
    await fan_out.aclose()
    assert [what for name, what in writes.calls if name == "write"] == [str(Offset(1, 5))]
    assert (tmp_path / "a.jsonl").read_text() == ""
    assert position_of(await offsets.load()) == (1, 6)


def test_each_sinks_delivery_is_kept_by_its_name(tmp_path: Path) -> None:
    """Of those that keep it themselves, there is only their type."""

    def branches(key: str) -> FanOut:
        common: dict[str, object] = {"bootstrap_servers": "127.0.0.1:9", "topic": "t", "key": [key]}
        kinds: list[tuple[str, str, dict[str, object]]] = [
            ("a", "kafka", {**common, "delivery": "at-least-once"}),
            ("b", "kafka", common),
            ("c", "jsonl", {"path": "c.jsonl"}),
        ]
        return FanOut(
            [
                Branch(name, load_sink(kind).from_options(options, tmp_path), MemoryOffsetStore())
                for name, kind, options in kinds
            ],
            lambda: pytest.fail("nothing starts"),
        )

    kept = branches("id").delivery("orders", None, None)
    assert kept.keys() == {"a", "b", "c"}
    assert kept["b"] == {"type": "kafka"}
    assert kept["a"]["key"] == ["id"]
    assert branches("id").delivery("orders", kept, Offset(3)) == kept
    with pytest.raises(ConfigError, match=r"at version 3, where feed 'orders/a' goes on"):
        branches("v").delivery("orders", kept, Offset(3))


async def test_only_who_has_written_has_a_form_to_keep(tmp_path: Path) -> None:
    """A sink that waits has a target without an offset, and has lost nothing."""

    def fan(*paths: str) -> FanOut:
        made = [make_sink("files", {"path": path}, tmp_path) for path in paths]
        branches = zip("ab", made, stores, strict=True)
        return FanOut([Branch(name, sink, store) for name, sink, store in branches], start)

    async def start() -> Offset:
        return Offset(5)

    stores = [MemoryOffsetStore(), MemoryOffsetStore()]
    await stores[1].save(Offset(2, snapshot=True))  # it is served alone
    several = fan("a", "b")
    forms = several.delivery("orders", await several.load_orders(), None)
    assert forms.keys() == {"a", "b"}
    await several.open("orders")
    await several.write(named(version=2, last=False))
    await several.save_orders({"delivery": forms})
    await several.aclose()
    assert (await stores[0].load_orders()).get("delivery") is None
    assert (await stores[1].load_orders())["delivery"].keys() == {"b"}

    again = fan("a", "b")
    again.delivery("orders", (await again.load_orders())["delivery"], None)
    await again.open("orders")
    await again.aclose()
    lost = fan("a", "elsewhere")
    lost.delivery("orders", (await lost.load_orders())["delivery"], None)
    with pytest.raises(SinkRejected, match="what the feed has written is not there"):
        await lost.open("orders")
    await lost.aclose()
