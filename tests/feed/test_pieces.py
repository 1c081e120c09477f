"""The offset is saved behind each piece of a batch that is durable, where the sink keeps none."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from sinks.http import HttpSink
from tailer.changes import ChangeBatch, Offset
from tailer.errors import SinkRejected, TransientError
from tailer.feed.run import Feed, run_feed
from tailer.sink import Sink, SinkTraits, make_sink
from tests.support.rig import Rig
from tests.support.webhook import webhook

pytestmark = pytest.mark.anyio
ROWS, PIECE = 40, 10


class InPieces(Sink):
    """Takes rows in pieces, and fails once at each of these ids, after those before it."""

    traits = SinkTraits(spans=True)

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.taken: list[int] = []

    async def open(self, feed: str) -> Offset | None:
        del feed
        return None

    async def write(self, batch: ChangeBatch) -> None:
        async for _ in self.write_pieces(batch):
            pass

    async def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
        for first in range(0, batch.num_rows, PIECE):
            piece = batch.slice(first, min(first + PIECE, batch.num_rows))
            ids = piece.rows.column("id").to_pylist()
            for place, found in enumerate(ids):
                if error := self.fails.pop(found, None):
                    self.taken += ids[:place]
                    if place:
                        yield piece.slice(0, place).next_offset
                    raise error
            self.taken += ids
            yield piece.next_offset

    async def aclose(self) -> None:
        pass


def with_rows(folder: Path) -> Rig:
    rig = Rig(folder)
    rig.table.insert([{"id": i} for i in range(ROWS)])
    return rig


def feed_to(rig: Rig, sink: Any, **options: Any) -> Feed:
    """The feed to the sink itself, without one around it that fails."""
    feed = rig.feed(last=1, batch_rows_max=ROWS, **options)
    feed.sink = sink
    return feed


async def test_a_retry_begins_behind_what_is_durable(tmp_path: Path) -> None:
    rig = with_rows(tmp_path)
    sink = InPieces({3: TransientError("away"), 25: TransientError("away"), 30: TransientError("")})
    await run_feed(feed_to(rig, sink))
    assert sink.taken == list(range(ROWS)), "each once"
    assert rig.progress.events_delivered == ROWS
    assert rig.metric("tailer_versions_total") == 2


async def test_a_crash_repeats_a_piece_and_not_the_batch(tmp_path: Path) -> None:
    rig = with_rows(tmp_path)
    sink = InPieces({20: SinkRejected("no")})
    with pytest.raises(SinkRejected):
        await run_feed(feed_to(rig, sink))
    assert sink.taken == list(range(20))
    saved = await rig.offsets.load()
    assert saved is not None
    assert saved.index == 20
    assert rig.progress.events_delivered == 20
    rest = InPieces()
    await run_feed(feed_to(rig, rest))
    assert rest.taken == list(range(20, ROWS))


async def test_a_sink_that_keeps_the_offset_is_not_written_in_pieces(tmp_path: Path) -> None:
    rig = with_rows(tmp_path)
    sink = InPieces({20: SinkRejected("no")})
    sink.traits = SinkTraits(spans=True, keeps_offset=True)
    with pytest.raises(SinkRejected):
        await run_feed(feed_to(rig, sink))
    saved = await rig.offsets.load()
    assert saved is not None
    assert saved.index == 0


async def test_a_saved_offset_that_is_behind_its_sink_is_saved_at_the_start(tmp_path: Path) -> None:
    """A process was killed between the sink's commit and this one; the table has nothing new."""
    rig = with_rows(tmp_path)
    await run_feed(feed_to(rig, InPieces({})))
    end = await rig.offsets.load()

    class Keeper(InPieces):
        async def open(self, feed: str) -> Offset | None:
            del feed
            return end

    assert end is not None
    await rig.offsets.save(Offset(0, table_id=end.table_id))
    await run_feed(feed_to(rig, Keeper({})))
    assert await rig.offsets.load() == end


async def test_rows_are_parked_behind_pieces_that_were_taken(tmp_path: Path) -> None:
    rig = with_rows(tmp_path)
    park = make_sink("jsonl", {"path": str(tmp_path / "parked.jsonl")}, Path())

    class Picky(InPieces):
        async def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
            self.fails = {15: SinkRejected("a poison row")}
            async for offset in super().write_pieces(batch):
                yield offset

    sink = Picky()
    await run_feed(feed_to(rig, sink, park=park))
    parked = (tmp_path / "parked.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in parked] == [15]
    assert sorted({*sink.taken}) == [i for i in range(ROWS) if i != 15]
    assert rig.progress.events_delivered == ROWS


async def test_what_a_webhook_gets_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real sink of messages: what is saved whenever it has sent one request more."""
    monkeypatch.setattr(HttpSink, "piece_rows", PIECE)
    rig = with_rows(tmp_path)
    saved: list[tuple[int, int]] = []
    async with webhook() as hook:

        def look() -> None:
            (file,) = (tmp_path / "state").glob("orders*.json")
            saved.append((len(hook.events()), json.loads(file.read_text())["offset"]["index"]))

        hook.then = look
        options = {"url": hook.url, "request_events_max": 4, "table": "orders"}
        await run_feed(feed_to(rig, make_sink("http", options, Path())))
        assert [event.payload["id"] for event in hook.events()] == list(range(ROWS))
    assert saved[:4] == [(4, 0), (8, 0), (10, 0), (14, 10)]
    assert all(0 < came - index <= PIECE for came, index in saved)
