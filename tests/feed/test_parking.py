"""Rows that the sink refuses are parked; a fault of the sink costs no row."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.feed.parked_file import ParkedFile
from tailer.feed.parking import PARKED_IN_A_ROW_MAX, Parked, Parking
from tailer.feed.run import run_feed
from tailer.sink import Sink, SinkTraits, make_sink
from tailer.testing.batches import change_batch
from tailer.testing.conformance.target import SourceTable
from tests.support.feeds import position_of
from tests.support.rig import SCHEMA, Rig

pytestmark = pytest.mark.anyio


class Picky(Sink):
    """Refuses batches that hold certain ids, by an error of this class."""

    def __init__(self, rig: Rig, refused: set[int], error: type[Exception]) -> None:
        self.inner = make_sink("jsonl", {"path": str(rig.output)}, Path())
        self.rig = rig
        self.refused = refused
        self.error = error
        self.writes = 0

    async def open(self, feed: str) -> Offset | None:
        return await self.inner.open(feed)

    async def write(self, batch: ChangeBatch) -> None:
        self.writes += bool(batch.num_rows)
        if self.refused & set(batch.rows.column("id").to_pylist()):
            raise self.error("a poison row")
        await self.inner.write(batch)

    async def aclose(self) -> None:
        await self.inner.aclose()


class Parks(Rig):
    """A rig with a sink for refused rows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.parked = folder / "parked.jsonl"
        self.said: list[Parked] = []

    async def run(
        self,
        refused: set[int],
        error: type[Exception],
        *,
        file: ParkedFile | None = None,
        **options: Any,
    ) -> Picky:
        park = make_sink("jsonl", {"path": str(self.parked)}, Path())
        sink = Picky(self, refused, error)
        feed = self.feed(sink=sink, park=park, **options)
        feed.on_park = self.said.append
        feed.parked = file
        try:
            await run_feed(feed)
        finally:
            self.writes = sink.writes
        return sink

    @property
    def parked_events(self) -> list[dict[str, Any]]:
        if not self.parked.exists():
            return []
        return [json.loads(line) for line in self.parked.read_text().splitlines()]


async def test_refused_rows_are_parked_alone_and_counted(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(20)])
    rig.table.insert([{"id": 20}])
    poison = {0, 7, 8, 19, 20}
    await rig.run(poison, RowsRefused, batch_rows_max=16)
    assert rig.ids == [i for i in range(21) if i not in poison]
    lines = rig.parked_events
    assert [line["id"] for line in lines] == sorted(poison)
    ids = {line["_event_id"] for line in [*lines, *rig.events]}
    assert len(ids) == 21, "a parked row keeps its event id"
    assert rig.metric("tailer_parked_events_total") == len(poison)
    assert position_of(await rig.offset()) == (3, 0)


async def test_parked_rows_are_told_once_a_batch(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(20)])
    await rig.run({0, 7, 8, 19}, RowsRefused, batch_rows_max=16)
    assert [said.rows for said in rig.said] == [3, 1]
    first = str(rig.said[0])
    assert first.startswith("parked 3 of 16 rows, of version 1 (event ids: ")
    assert first.endswith("): a poison row")
    assert all(event["_event_id"] in first for event in rig.parked_events[:3])


async def test_many_parked_rows_make_a_short_line(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(100)])
    await rig.run(set(range(0, 100, 2)), RowsRefused, batch_rows_max=100)
    assert len(str(rig.said[0])) < 800
    assert "parked 50 of 100 rows" in str(rig.said[0])
    assert ", ...): a poison row" in str(rig.said[0])


async def test_a_file_that_is_full_stops_the_feed_and_nothing_is_lost(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(20)])
    file = ParkedFile("orders", rig.parked, 1)
    poison = {3, 7, 11}
    said = f"the feed 'orders' parks no more rows: {rig.parked} has .* `park_bytes_max`, is 1; "
    with pytest.raises(TargetRefused, match=said):
        await rig.run(poison, RowsRefused, file=file, batch_rows_max=5)
    assert [event["id"] for event in rig.parked_events] == [3], "which came to the limit"
    file.bytes_max = 100_000
    await rig.run(poison, RowsRefused, file=file, batch_rows_max=5)
    assert {event["id"] for event in rig.parked_events} == poison
    assert set(rig.ids) == set(range(20)) - poison


def test_the_rows_of_a_file_are_counted_as_it_grows_and_begins_again(tmp_path: Path) -> None:
    file = ParkedFile("orders", tmp_path / "parked.jsonl", 100)
    assert file.measure() == {"rows": 0, "bytes": 0, "bytes_max": 100}
    file.path.write_text('{"id": 1}\n{"id": 2}\n')
    assert file.measure() == {"rows": 2, "bytes": 20, "bytes_max": 100}
    with file.path.open("a") as more:
        more.write('{"id": 3}\n')
    assert file.measure()["rows"] == 3
    file.path.write_text('{"id": 4}\n')
    assert file.measure() == {"rows": 1, "bytes": 10, "bytes_max": 100}, "it is shorter"
    beside = tmp_path / "new"
    beside.write_text('{"id": 4}\n{"id": 55555}\n{"id": 6}\n')
    beside.replace(file.path)
    assert file.measure()["rows"] == 3, "it is another one"
    file.path.unlink()
    assert file.measure()["rows"] == 0


async def test_a_sink_that_refuses_everything_is_not_parked_away(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    count = PARKED_IN_A_ROW_MAX + 10
    rig.table.insert([{"id": i} for i in range(count)])
    with pytest.raises(SinkRejected, match="a poison row"):
        await rig.run(set(range(count)), RowsRefused, batch_rows_max=count)
    assert position_of(await rig.offsets.load()) in (None, (1, 0))


@pytest.mark.parametrize("refused", [{0}, {0, 1}, {3}, {1, 2}, {7}, {0, 7}])
async def test_who_names_no_row_has_rows_parked_where_others_are_taken(
    tmp_path: Path, refused: set[int]
) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(8)])
    await rig.run(refused, SinkRejected, batch_rows_max=8)
    assert rig.ids == [i for i in range(8) if i not in refused]
    assert [event["id"] for event in rig.parked_events] == sorted(refused)


@pytest.mark.parametrize("count", [1, 2, 54])
async def test_who_names_no_row_has_none_parked_where_all_are_refused(
    tmp_path: Path, count: int
) -> None:
    """A right that was revoked, a password that was changed: no row is at fault."""
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(count)])
    with pytest.raises(SinkRejected):
        await rig.run(set(range(count)), SinkRejected, batch_rows_max=64)
    assert not rig.parked.exists()
    assert rig.said == []
    assert rig.metric("tailer_parked_events_total") == 0


async def test_a_refusal_of_the_target_is_of_no_row(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(8)])
    with pytest.raises(TargetRefused):
        await rig.run({3}, TargetRefused, batch_rows_max=8)
    assert rig.writes == 1, "it is not looked for"
    assert not rig.parked.exists()


async def test_no_row_is_passed_before_it_is_parked_where_the_sink_keeps_progress(
    tmp_path: Path,
) -> None:
    """The sink's offset would be after the row, and a crash would lose it."""
    rig = Parks(tmp_path)
    park = make_sink("jsonl", {"path": str(rig.parked)}, Path())
    sink = Picky(rig, {0}, SinkRejected)
    sink.traits = SinkTraits(keeps_offset=True)
    await sink.open("orders")
    parking = Parking(sink, park, rig.progress, rig.said.append)
    batch = change_batch(SCHEMA, [{"id": i} for i in range(4)], last=True)
    with pytest.raises(SinkRejected):
        await parking.write(batch, rig.offsets.save)
    assert not rig.output.read_text()
    sink.refused = {1}
    await parking.write(batch, rig.offsets.save)
    await sink.aclose()
    await park.aclose()
    assert rig.ids == [0, 2, 3]


class LibraryError(Exception):
    """As a client library has them."""


@pytest.mark.parametrize("error", [LibraryError, ConnectionResetError, EOFError])
async def test_an_error_that_a_sink_does_not_explain_is_passing(
    tmp_path: Path, error: type[Exception]
) -> None:
    """Nobody knows whether it passes, and it costs no row."""
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(4)])
    told: list[str] = []

    def retry(error: Exception) -> None:
        assert isinstance(error, TransientError)
        told.append(str(error))
        if len(told) == 3:
            sink.refused = set()

    rig.on_retry = retry
    sink = Picky(rig, {2}, error)
    park = make_sink("jsonl", {"path": str(rig.parked)}, Path())
    await run_feed(rig.feed(sink=sink, park=park, batch_rows_max=4))
    assert rig.ids == [0, 1, 2, 3]
    assert not rig.parked.exists()
    assert f"({error.__name__}: a poison row)" in told[0]


class Piecewise(Picky):
    """Writes each row for itself, and says so; then refuses all that is new, as a server does whose
    operator revokes a right."""

    async def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
        for row in range(batch.num_rows):
            piece = batch.slice(row, row + 1)
            await self.write(piece)
            yield piece.next_offset

    async def write(self, batch: ChangeBatch) -> None:
        if self.writes >= 3:
            self.refused = set(range(3, 8))
        if self.writes < 3 or batch.rows.column("id")[-1].as_py() >= 3:
            await super().write(batch)


async def test_what_was_taken_before_a_refusal_proves_nothing(tmp_path: Path) -> None:
    rig = Parks(tmp_path)
    rig.table.insert([{"id": i} for i in range(8)])
    park = make_sink("jsonl", {"path": str(rig.parked)}, Path())
    sink = Piecewise(rig, set(), SinkRejected)
    await sink.open("orders")
    parking = Parking(sink, park, rig.progress, rig.said.append)
    saved: list[Offset] = []

    async def save(offset: Offset) -> None:
        saved.append(offset)

    batch = change_batch(SCHEMA, [{"id": i} for i in range(8)], last=True)
    with pytest.raises(SinkRejected):
        await parking.write(batch, save)
    await sink.aclose()
    assert rig.ids == [0, 1, 2]
    assert [offset.index for offset in saved] == [1, 2, 3]
    assert not rig.parked.exists()


async def test_a_target_that_has_taken_no_row_has_lost_none(tmp_path: Path) -> None:
    """All that came was parked, and the target has no offset yet."""
    source = SourceTable(tmp_path / "orders")
    source.insert(1)

    async def run(*refused: int) -> None:
        rig = Rig(tmp_path, source.table)
        sink = Keeps(rig, set(refused), RowsRefused)
        feed = await source.feed(sink, last=source.table.version)
        feed.park = make_sink("jsonl", {"path": str(tmp_path / "parked")}, Path())
        await run_feed(feed)

    await run(1)
    source.insert(2)
    await run(1)
    assert [event["id"] for event in Rig(tmp_path, source.table).events] == [2]
    (tmp_path / "out.jsonl").unlink()
    source.insert(3)
    with pytest.raises(SinkRejected, match="what the feed has written is not there"):
        await run(1)


class Keeps(Picky):
    """Keeps the offset in its target, as if that were the number of lines."""

    traits = SinkTraits(keeps_offset=True)

    def check_record_form(self, feed: str, saved: object, at: Offset | None) -> dict[str, str]:  # noqa: ARG002
        return {"type": "keeps"}

    async def open(self, feed: str) -> Offset | None:
        await self.inner.open(feed)
        found = self.rig.lines
        return Offset(found[-1]["_commit_version"] + 1) if found else None
