"""What a feed does by itself when the table changes under it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import DataLoss, FileGone, SchemaChanged, SinkRejected, TransientError
from tailer.feed.policy import FeedPaused, OnDataLoss, Policies
from tailer.feed.run import run_feed
from tailer.shape.selection import Selection
from tailer.sink import Sink
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.feeds import position_of
from tests.support.rig import SCHEMA, Rig

pytestmark = pytest.mark.anyio

WIDER = pa.schema([*SCHEMA, ("country", pa.string())])


def location(table: TableBuilder, action: dict[str, Any]) -> Path:
    (values,) = action.values()
    return Path(table.folder, values["path"])


# Schema changes


@pytest.fixture
def evolved(tmp_path: Path) -> Rig:
    """Version 1: two rows; version 2: a new column and two rows; version 3: one row."""
    rig = Rig(tmp_path)
    rig.table.insert([{"id": 1}, {"id": 2}])
    rig.table.schema = WIDER
    rows = [{"id": 3, "country": "DE"}, {"id": 4, "country": "FR"}]
    rig.table.commit(rig.table.metadata(), rig.table.add(rows))
    rig.table.insert([{"id": 5, "country": "IT"}])
    return rig


async def test_a_new_schema_is_said_before_its_first_row(evolved: Rig) -> None:
    await run_feed(evolved.feed())
    kinds = [line.get("_notice", line.get("id")) for line in evolved.lines]
    assert kinds == [1, 2, "schema_change", 3, 4, 5]
    (notice,) = evolved.notices
    assert notice["version"] == 2
    assert notice["table_id"] == evolved.table.table_id
    assert notice["details"]["added"] == ["country"]
    assert [f["name"] for f in json.loads(notice["details"]["schema"])["fields"]] == [
        "id",
        "country",
    ]
    assert evolved.metric("tailer_notices_total", kind="schema_change") == 1


async def test_a_notice_that_comes_again_is_the_same_line(evolved: Rig) -> None:
    with pytest.raises(SinkRejected):
        await run_feed(evolved.feed(script=Script({"write": [None] * 2 + [SinkRejected("no")]})))
    await run_feed(evolved.feed())
    lines = evolved.output.read_text().splitlines()
    notices = [line for line in lines if "_notice" in line]
    assert len(notices) == 2, "the crash was between the notice and the first row"
    assert len(set(notices)) == 1
    assert evolved.ids == [1, 2, 3, 4, 5]


async def test_inside_the_version_it_is_not_said_again(evolved: Rig) -> None:
    script = Script({"write": [None] * 3 + [SinkRejected("no")]})
    with pytest.raises(SinkRejected):
        await run_feed(evolved.feed(script=script, batch_rows_max=1))
    assert (await evolved.offset()).index == 1 or (await evolved.offset()).version == 2
    await run_feed(evolved.feed(batch_rows_max=1))
    assert evolved.ids == [1, 2, 3, 4, 5]


async def test_fail_stops_before_the_first_row_by_name(evolved: Rig) -> None:
    policies = Policies(on_schema_change="fail")
    with pytest.raises(SchemaChanged, match=r"version 2: the schema changes \(added country\)"):
        await run_feed(evolved.feed(policies=policies))
    assert evolved.ids == [1, 2]
    assert position_of(await evolved.offset()) == (2, 0)
    evolved.orders.accepted.add(2)
    await run_feed(evolved.feed(policies=policies))
    assert evolved.ids == [1, 2, 3, 4, 5]


async def test_pause_says_it_and_waits_for_the_operator(evolved: Rig) -> None:
    policies = Policies(on_schema_change="pause")
    for _ in range(2):
        with pytest.raises(FeedPaused, match="version 2: the schema changes"):
            await run_feed(evolved.feed(policies=policies))
        assert [n["_notice"] for n in evolved.notices][-1] == "schema_change"
        assert evolved.ids == [1, 2]
    assert evolved.metric("tailer_errors_total", family="paused") == 0, "it is no error"
    evolved.orders.accepted.add(2)
    await run_feed(evolved.feed(policies=policies))
    assert evolved.ids == [1, 2, 3, 4, 5]


async def test_a_comment_is_no_new_schema(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.table.commit(rig.table.metadata(description="orders"), rig.table.add([{"id": 1}]))
    await run_feed(rig.feed(policies=Policies(on_schema_change="fail")))
    assert rig.ids == [1]
    assert rig.notices == []


# Data loss


@pytest.fixture
def long(tmp_path: Path) -> Rig:
    """Versions 1 to 6, one row each."""
    rig = Rig(tmp_path)
    for i in range(1, 7):
        rig.table.insert([{"id": i}])
    return rig


def clean_up(table: TableBuilder, before: int) -> None:
    """A checkpoint, and the commits before it deleted, as log cleanup does."""
    table.checkpoint(before)
    for version in range(before):
        table.commit_path(version).unlink()


async def test_log_cleanup_past_the_offset_fails_by_name(long: Rig) -> None:
    await run_feed(long.feed(last=2))
    clean_up(long.table, 5)
    with pytest.raises(DataLoss, match="the log was cleaned up"):
        await run_feed(long.feed(last=6))
    assert position_of(await long.offset()) == (3, 0)
    assert long.ids == [1, 2]


async def test_skip_goes_on_where_the_log_can_be_read_and_says_what_is_lost(long: Rig) -> None:
    await run_feed(long.feed(last=2))
    clean_up(long.table, 5)
    await run_feed(long.feed(last=6, policies=Policies(on_data_loss="skip")))
    assert long.ids == [1, 2, 6]
    (notice,) = long.notices
    details = notice["details"]
    assert (notice["_notice"], notice["version"]) == ("data_loss", 3)
    assert (details["first_version"], details["last_version"]) == (3, 5)
    assert long.metric("tailer_data_loss_total", unit="version") == 3
    assert position_of(await long.offset()) == (7, 0)


async def test_behind_a_loss_the_feed_is_bound_to_the_table(long: Rig) -> None:
    """Also one that had delivered nothing before: rows of a table that replaces this one must not
    follow."""
    clean_up(long.table, 5)
    script = Script({"write": [SinkRejected("no")]})
    with pytest.raises(SinkRejected):
        await run_feed(long.feed(script=script, last=6, policies=Policies(on_data_loss="skip")))
    offset = await long.offset()
    assert (position_of(offset), offset.table_id) == ((6, 0), long.table.table_id)
    assert [notice["table_id"] for notice in long.notices] == [long.table.table_id]


async def test_snapshot_starts_anew_with_the_newest_rows(long: Rig) -> None:
    await run_feed(long.feed(last=2))
    clean_up(long.table, 5)
    await run_feed(long.feed(last=6, policies=Policies(on_data_loss="snapshot")))
    assert long.ids[:2] == [1, 2]
    assert sorted(long.ids[2:]) == [1, 2, 3, 4, 5, 6]
    kinds = [n["_notice"] for n in long.notices]
    assert kinds == ["data_loss", "snapshot_begin", "snapshot_end"]
    assert long.notices[0]["details"]["last_version"] == 6
    long.table.insert([{"id": 7}])
    await run_feed(long.feed(last=7, policies=Policies(on_data_loss="snapshot")))
    assert long.ids[-1] == 7


@pytest.mark.parametrize("policy", ["fail", "skip", "snapshot"])
async def test_cleanup_passes_a_feed_that_runs(long: Rig, policy: OnDataLoss) -> None:
    """The sink is slow, and meanwhile the versions behind the one in hand are cleaned away."""
    feed = long.feed(last=6, policies=Policies(on_data_loss=policy))
    inner = feed.sink

    class Slow(Sink):
        async def open(self, name: str) -> Offset | None:
            return await inner.open(name)

        async def write(self, batch: ChangeBatch) -> None:
            if batch.version == 1 and batch.num_rows and not batch.offset.snapshot:
                await anyio.wait_all_tasks_blocked()  # one more is read, and waits
                clean_up(long.table, 5)
            await inner.write(batch)

        async def announce(self, notice: Notice) -> None:
            await inner.announce(notice)

        async def aclose(self) -> None:
            await inner.aclose()

    feed.sink = Slow()
    if policy == "fail":
        with pytest.raises(DataLoss, match="the commit is missing, though version"):
            await run_feed(feed)
        assert long.ids == [1, 2]
        return
    await run_feed(feed)
    assert long.ids[:2] == [1, 2]
    assert sorted(long.ids[2:]) == ([6] if policy == "skip" else [1, 2, 3, 4, 5, 6])
    assert long.notices[0]["details"]["first_version"] == 3
    assert position_of(await long.offset()) == (7, 0)


async def test_a_file_that_vacuum_took_fails_or_is_left_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    adds = [rig.table.add([{"id": 10 * i}, {"id": 10 * i + 1}]) for i in range(3)]
    rig.table.commit(*adds)
    rig.table.insert([{"id": 99}])
    location(rig.table, adds[1]).unlink()
    with pytest.raises(FileGone, match="the data file is gone"):
        await run_feed(rig.feed(batch_rows_max=1))
    await run_feed(rig.feed(batch_rows_max=1, policies=Policies(on_data_loss="skip")))
    assert rig.ids == [0, 1, 20, 21, 99]
    (notice,) = rig.notices
    assert notice["details"]["files"] == [adds[1]["add"]["path"]]
    assert rig.metric("tailer_data_loss_total", unit="file") == 1
    assert rig.metric("tailer_data_loss_total", unit="version") == 0


async def test_a_loss_is_told_though_the_sink_was_away(tmp_path: Path) -> None:
    """The notice failed: the retry must not pass the file over in silence."""
    rig = Rig(tmp_path)
    adds = [rig.table.add([{"id": 10 * i}, {"id": 10 * i + 1}]) for i in range(3)]
    rig.table.commit(*adds)
    location(rig.table, adds[1]).unlink()
    script = Script({"announce": [TransientError("away"), TransientError("away")]})
    policies = Policies(on_data_loss="skip")
    await run_feed(rig.feed(batch_rows_max=1, script=script, policies=policies))
    assert rig.ids == [0, 1, 20, 21]
    (notice,) = rig.notices
    assert notice["details"]["files"] == [adds[1]["add"]["path"]]
    assert notice["details"]["rows"] == 2


@pytest.mark.parametrize("stop_after", range(1, 8))
@pytest.mark.parametrize("cdc", [False, True])
async def test_what_is_left_comes_whole_wherever_the_feed_was_stopped(
    tmp_path: Path, stop_after: int, *, cdc: bool
) -> None:
    """Also where nobody knows how many changes the lost file had (a cdc file)."""
    rig = Rig(tmp_path)

    def file(first: int) -> dict[str, Any]:
        rows = [{"id": first + i, "_change_type": "insert"} for i in range(2)]
        return rig.table.cdc(rows) if cdc else rig.table.add([{"id": r["id"]} for r in rows])

    actions = [file(10 * i) for i in range(3)]
    rig.table.commit(*actions)
    rig.table.insert([{"id": 99}])
    policies = Policies(on_data_loss="skip")
    script = Script({"write": [None] * stop_after + [SinkRejected("stop")]})
    with suppress(SinkRejected):
        await run_feed(rig.feed(script=script, batch_rows_max=1, policies=policies))
    location(rig.table, actions[0]).unlink()
    await run_feed(rig.feed(batch_rows_max=1, policies=policies))
    delivered = {event["_event_id"]: event["id"] for event in rig.events}
    assert {10, 11, 20, 21, 99} <= set(delivered.values())
    assert len(delivered) == len(set(delivered.values())), "repeats have the same ids"
    first_time = list(delivered.values())
    assert first_time == sorted(first_time)


async def test_a_derived_version_without_one_of_its_files_is_lost_whole(tmp_path: Path) -> None:
    rig = Rig(tmp_path, TableBuilder(tmp_path / "plain", SCHEMA))
    rig.table.create()
    old = rig.table.add([{"id": 1}, {"id": 2}])
    rig.table.commit(old)
    rig.table.commit(rig.table.remove(old), rig.table.add([{"id": 1}]))
    rig.table.insert([{"id": 3}])
    await run_feed(rig.feed(last=1))
    location(rig.table, old).unlink()
    with pytest.raises(DataLoss, match="version 2"):
        await run_feed(rig.feed())
    await run_feed(rig.feed(policies=Policies(on_data_loss="skip")))
    assert rig.ids == [1, 2, 3]
    assert rig.notices[0]["details"]["last_version"] == 2


# Skip options


@pytest.fixture
def rewritten(tmp_path: Path) -> Rig:
    """Version 1 inserts, 2 deletes a file, 3 rewrites one, 4 inserts, 5 rearranges."""
    rig = Rig(tmp_path, TableBuilder(tmp_path / "orders", SCHEMA))
    table = rig.table
    table.create()
    adds = [table.add([{"id": 10 * i}, {"id": 10 * i + 1}]) for i in range(2)]
    table.commit(*adds)
    table.commit(table.remove(adds[0]))
    table.commit(table.remove(adds[1]), table.add([{"id": 10}]))
    last = table.add([{"id": 20}], path="last.parquet")
    table.commit(last)
    table.commit(table.remove(last, dataChange=False), table.add([{"id": 20}], dataChange=False))
    return rig


@pytest.mark.parametrize(
    ("operations", "versions"),
    [
        (None, {1, 2, 3, 4}),
        (("insert", "update"), {1, 4}),
        (("delete",), {2, 3}),
    ],
)
async def test_operations_that_are_not_wanted_are_not_published(
    rewritten: Rig, operations: Any, versions: set[int]
) -> None:
    if operations == ("delete",):  # what only adds files is not read
        (rewritten.table.folder / "last.parquet").unlink()
    await run_feed(rewritten.feed(selection=Selection(operations=operations)))
    assert {e["_commit_version"] for e in rewritten.events} == versions
    assert position_of(await rewritten.offset()) == (6, 0)


async def test_a_version_that_the_operator_skips_is_recorded(rewritten: Rig) -> None:
    rewritten.orders.skips.add(3)
    await run_feed(rewritten.feed())
    assert {e["_commit_version"] for e in rewritten.events} == {1, 2, 4}
    (notice,) = rewritten.notices
    assert (notice["_notice"], notice["version"]) == ("skipped_version", 3)


async def test_also_one_in_whose_midst_the_feed_stands(rewritten: Rig) -> None:
    script = Script({"write": [None, SinkRejected("stop")]})
    with pytest.raises(SinkRejected):
        await run_feed(rewritten.feed(start="1", script=script, batch_rows_max=1))
    assert (await rewritten.offset()).index == 1
    rewritten.orders.skips.add(1)
    await run_feed(rewritten.feed())
    assert [e["_commit_version"] for e in rewritten.events][:2] == [1, 2]
    assert rewritten.notices[0]["details"] == {"from_index": 1}


async def test_other_options_read_a_version_from_its_start(rewritten: Rig) -> None:
    """The index was counted under options under which the version had other changes."""
    script = Script({"write": [None, SinkRejected("stop")]})
    with pytest.raises(SinkRejected):
        await run_feed(rewritten.feed(start="1", script=script, batch_rows_max=1))
    assert (await rewritten.offset()).index == 1
    await run_feed(rewritten.feed(batch_rows_max=1, change_source="derived", last=1))
    ids = [e["id"] for e in rewritten.events]
    assert ids == [0, 0, 1, 10, 11]
    assert len({e["_event_id"] for e in rewritten.events}) == 4


class Unplugged(Script):
    """Moves a table away before its second data file is read, and back at the first retry."""

    def __init__(self, rig: Rig) -> None:
        super().__init__({})
        self.there, self.away = rig.table.folder, rig.table.folder.with_name("away")
        rig.on_retry = self.plug
        self.told: list[str] = []

    def __call__(self, method: str, argument: object = "") -> None:
        super().__call__(method, argument)
        data = [argument for _, argument in self.calls if argument.endswith(".parquet")]
        if len(set(data)) > 1 and not self.told and self.there.exists():
            self.there.rename(self.away)

    def plug(self, error: Exception) -> None:
        if not self.told:
            self.away.rename(self.there)
        self.told.append(str(error))


@pytest.mark.parametrize("policy", ["fail", "skip", "snapshot"])
async def test_files_of_a_table_that_is_away_are_not_lost(
    tmp_path: Path, policy: OnDataLoss
) -> None:
    rig = Rig(tmp_path)
    rig.table.commit(*(rig.table.add([{"id": i}]) for i in range(3)))
    script = Unplugged(rig)
    with anyio.fail_after(150):
        await run_feed(rig.feed(script=script, policies=Policies(on_data_loss=policy)))
    assert "the table is gone" in script.told[0]
    assert rig.notices == []
    assert sorted(set(rig.ids)) == [0, 1, 2]
