"""What every sink must hold (:class:`tailer.sink.Sink`)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TransientError, UnsupportedTable
from tailer.sink import Sink, SinkTraits
from tailer.testing.batches import change_batch, change_span, empty_batch, notice
from tailer.testing.conformance.faults import FaultConformance

__all__ = ["Event", "MakeSink", "ReadEvents", "SinkConformance"]


@dataclass(frozen=True)
class Event:
    """One event as it lies in the sink's target.

    ``payload`` is its raw form (bytes, text or a mapping), compared for equality only.
    """

    event_id: str
    change_type: str
    commit_version: int
    payload: Any


#: A new sink on the same target, as another process would make it.
MakeSink = Callable[[], Sink]
#: Everything in the target, in order.
ReadEvents = Callable[[], Sequence[Event]]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
#: What outputs call their own columns.
OWN_NAMES = ("_event_id", "_origin", "_row_id", "_seq", "_notice", "_delta_tailer_gone")
WIDER = pa.schema([*SCHEMA, ("country", pa.string())])
TYPES = pa.schema(
    {
        "bool": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "decimal": pa.decimal128(38, 10),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "list": pa.list_(pa.field("element", pa.int32())),
        "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct({"a": pa.int64(), "b": pa.list_(pa.field("element", pa.string()))}),
    }
)
VALUES: dict[str, Any] = {
    "bool": True,
    "byte": -128,
    "short": -32768,
    "integer": -(2**31),
    "long": 2**63 - 1,
    "float": 0.1,
    "double": 1e308,
    "decimal": Decimal("1234567890123456789012345678.0123456789"),
    "string": 'quote " backslash \\ newline \n tab \t NUL \x00 größe 数 😀',
    "binary": b"\x00\xff\n",
    "date": dt.date(1582, 10, 4),
    "timestamp": dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC),
    "timestamp_ntz": dt.datetime(1, 1, 1),  # noqa: DTZ001 - a time without a zone
    "list": [1, None, 3],
    "map": {"a": 1, "": None},
    "struct": {"a": None, "b": ["x", None]},
}


def _make_rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}"} for i in range(first, first + count)]


def _make_span() -> ChangeBatch:
    """Three versions: of two files, of one, and of two again."""
    kinds = ("insert", "update_preimage", "update_postimage", "delete")
    rows = [{**row, "_change_type": kinds[i % 4]} for i, row in enumerate(_make_rows(0, 13))]
    return change_span(SCHEMA, [[rows[:2], rows[2:5]], [rows[5:7]], [rows[7:11], rows[11:]]])


def _list_ids(batches: Sequence[ChangeBatch]) -> list[str]:
    return [event for batch in batches for event in batch.event_ids().to_pylist()]


def _without_repeats(events: Sequence[Event]) -> list[Event]:
    """Return the events without repeated ones; repeated events must be equal."""
    seen: dict[str, Event] = {}
    for event in events:
        assert seen.setdefault(event.event_id, event) == event, "a repeated event differs"
    return list(seen.values())


@pytest.mark.anyio
class SinkConformance(FaultConformance):
    """Subclass it and provide the fixtures ``make_sink``, ``read_events`` and ``target_faults``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop's name: asyncio."""
        return "asyncio"

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        """Return a value for each column of TYPES. Override it for what the target refuses."""
        return VALUES

    @pytest.fixture
    def make_sink(self) -> MakeSink:
        """Return a function that makes sinks on one target, which is empty at first."""
        raise NotImplementedError

    @pytest.fixture
    def read_events(self) -> ReadEvents:
        """Return a function that reads the target back."""
        raise NotImplementedError

    async def _write_batches(self, sink: Sink, *batches: ChangeBatch) -> None:
        await sink.open("orders")
        for batch in batches:
            await sink.write(batch)
        await sink.aclose()

    async def test_traits_are_those_of_the_contract(self, make_sink: MakeSink) -> None:
        """An unknown trait, or traits of another class, are refused by name."""
        assert isinstance(make_sink().traits, SinkTraits)

    async def test_an_empty_target_has_no_offset(self, make_sink: MakeSink) -> None:
        sink = make_sink()
        assert await sink.open("orders") is None
        await sink.aclose()

    async def test_events_lie_in_the_target_in_order(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        kinds = ("insert", "update_preimage", "update_postimage", "delete")
        rows = [{**row, "_change_type": kinds[i % 4]} for i, row in enumerate(_make_rows(0, 8))]
        batches = [
            change_batch(SCHEMA, rows[:4]),
            change_batch(SCHEMA, rows[4:], index=4, last=True),
            change_batch(SCHEMA, _make_rows(8, 2), version=2, last=True),
        ]
        await self._write_batches(make_sink(), *batches)
        events = read_events()
        assert [e.event_id for e in events] == _list_ids(batches)
        assert [e.change_type for e in events] == [*kinds, *kinds, "insert", "insert"]
        assert [e.commit_version for e in events] == [1] * 8 + [2] * 2

    async def test_a_written_batch_is_there_before_the_sink_is_closed(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        sink = make_sink()
        await sink.open("orders")
        for index in (0, 3):
            batch = change_batch(SCHEMA, _make_rows(index, 3), index=index)
            await sink.write(batch)
            assert [e.event_id for e in read_events()][index:] == _list_ids([batch])
        await sink.aclose()

    async def test_an_empty_batch_writes_nothing(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        batch = change_batch(SCHEMA, _make_rows(0, 1), version=2, last=True)
        await self._write_batches(
            make_sink(), empty_batch(SCHEMA), batch, empty_batch(SCHEMA, version=3)
        )
        assert [e.event_id for e in read_events()] == _list_ids([batch])

    async def test_a_batch_that_was_begun_early_is_written_in_its_turn_or_never(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        sink = make_sink()
        batches = [
            change_batch(SCHEMA, _make_rows(i, 3), version=i, last=True) for i in range(1, 6)
        ]
        await sink.open("orders")
        await sink.write(batches[0])
        for batch, following in pairwise(batches[1:]):
            prepared = sink.prepare(batch)
            late = structs.replace(following, prepared=sink.prepare(following))
            await sink.write(structs.replace(batch, prepared=prepared))
        await sink.aclose()  # the last one was begun twice, and not written
        assert [e.event_id for e in read_events()] == _list_ids(batches[:-1])
        await sink.open("orders")
        await sink.write(late)  # what was prepared before it was opened again is of no use
        await sink.aclose()
        assert [e.event_id for e in read_events()] == _list_ids(batches)

    async def test_what_lies_before_an_offset_within_a_batch_is_there(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """The feed saves it: see :meth:`tailer.sink.Sink.write_pieces`."""
        sink = make_sink()
        if hasattr(sink, "piece_rows"):
            sink.piece_rows = 2
        batch = change_batch(SCHEMA, _make_rows(0, 7), last=True)
        await sink.open("orders")
        offsets = []
        async for offset in sink.write_pieces(batch):
            offsets.append(offset)
            before = batch.rows_before(offset)
            assert [e.event_id for e in read_events()][:before] == _list_ids([batch])[:before]
        await sink.aclose()
        assert [offset.position for offset in offsets] == sorted(o.position for o in offsets)
        assert offsets[-1] == batch.next_offset

    async def test_another_sink_goes_on_behind_what_is_there(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        batches = [
            change_batch(SCHEMA, _make_rows(i, 2), version=i, last=True) for i in range(1, 5)
        ]
        for batch in batches:
            await self._write_batches(make_sink(), batch)
        assert [e.event_id for e in read_events()] == _list_ids(batches)

    async def test_a_sink_that_was_never_closed_has_lost_nothing(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        batches = [change_batch(SCHEMA, _make_rows(i, 2), version=i, last=True) for i in (1, 2)]
        abandoned = make_sink()
        await abandoned.open("orders")
        await abandoned.write(batches[0])
        assert [e.event_id for e in read_events()] == _list_ids(batches[:1])
        if abandoned.traits.exclusive is not None:
            with pytest.raises(TransientError):
                await make_sink().open(
                    "orders"
                )  # until the other one is closed, or its process ends
            await abandoned.aclose()
        await self._write_batches(make_sink(), batches[1])
        assert [e.event_id for e in read_events()] == _list_ids(batches)
        await abandoned.aclose()

    async def test_a_batch_that_comes_again_is_the_same(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        batch = change_batch(SCHEMA, _make_rows(0, 3), last=True)
        following = change_batch(SCHEMA, _make_rows(3, 3), version=2, last=True)
        await self._write_batches(make_sink(), batch)
        await self._write_batches(make_sink(), batch, following)
        assert [e.event_id for e in _without_repeats(read_events())] == _list_ids(
            [batch, following]
        )

    async def test_a_span_is_written_as_its_files_are(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """A sink whose traits ask for spans writes each event as if its file came alone: see
        :class:`tailer.sink.SinkTraits`."""
        if not make_sink().traits.spans:
            return
        span = _make_span()
        await self._write_batches(make_sink(), span)
        assert [e.event_id for e in read_events()] == _list_ids([span])
        assert [e.commit_version for e in read_events()] == [1] * 5 + [2] * 2 + [3] * 6
        await self._write_batches(make_sink(), *span.by_file())
        assert len(_without_repeats(read_events())) == span.num_rows

    async def test_a_span_may_be_cut_anywhere_and_come_again(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """For sinks whose traits ask for spans. A stored offset is where the cut is."""
        if not make_sink().traits.spans:
            return
        span = _make_span()
        cuts = [0, 2, 6, 7, 12, span.num_rows]
        parts = [span.slice(first, end) for first, end in pairwise(cuts)]
        for part in parts:
            sink = make_sink()
            found = await sink.open("orders")
            assert found is None or found.position == part.offset.position
            await sink.write(part)
            await sink.aclose()
        assert [e.event_id for e in read_events()] == _list_ids([span])
        await self._write_batches(make_sink(), span)
        assert len(_without_repeats(read_events())) == span.num_rows

    async def test_a_column_has_its_own_value_or_is_refused_by_name(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """The traits say which names the output gives to columns of its own: a table that has them
        is refused. A column of any other name keeps its values."""
        own = make_sink().traits.own
        for name in own.names:
            with pytest.raises(UnsupportedTable, match=name):
                own.check(["id", name])
        others = [name for name in OWN_NAMES if name not in own.names]
        schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in others)])
        values = {name: f"value of {name}" for name in others}
        await self._write_batches(
            make_sink(), change_batch(schema, [{"id": 1, **values}], last=True)
        )
        (event,) = read_events()
        for value in values.values():
            assert value in str(event.payload)

    async def test_an_order_for_another_feed_changes_nothing(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """For sinks that store progress: what is another feed's is neither removed nor moved."""
        batch = change_batch(SCHEMA, _make_rows(0, 2), last=True)
        await self._write_batches(make_sink(), batch)
        for offset in (None, batch.offset):
            other = make_sink()
            with suppress(SinkRejected, ConfigError):
                await other.set_offset("others", offset)
            sink = make_sink()
            assert await sink.open("orders") in (None, batch.next_offset)
            await sink.aclose()
            assert [e.event_id for e in read_events()] == _list_ids([batch])

    async def test_a_stored_offset_is_that_of_the_last_batch(self, make_sink: MakeSink) -> None:
        """For sinks that store progress with the data; other sinks return none."""
        saved: Offset | None = None
        for batch in (
            change_batch(SCHEMA, _make_rows(0, 2)),
            change_batch(SCHEMA, _make_rows(2, 2), index=2, last=True),
            empty_batch(SCHEMA, version=2),
        ):
            sink = make_sink()
            found = await sink.open("orders")
            assert found is None or saved is None or found.to_json() == saved.to_json()
            await sink.write(batch)
            await sink.aclose()
            saved = batch.next_offset

    async def test_the_schema_may_change_between_batches(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        batches = [
            change_batch(SCHEMA, _make_rows(0, 1), last=True),
            change_batch(WIDER, [{"id": 1, "name": "b", "country": "DE"}], version=2, last=True),
            change_batch(SCHEMA, _make_rows(2, 1), version=3, last=True),
        ]
        await self._write_batches(make_sink(), *batches)
        assert [e.event_id for e in read_events()] == _list_ids(batches)

    async def test_every_type_is_written_and_null(
        self, make_sink: MakeSink, read_events: ReadEvents, values: Mapping[str, Any]
    ) -> None:
        nulls = dict.fromkeys(values)
        batch = change_batch(TYPES, [values, nulls, values], last=True)
        await self._write_batches(make_sink(), batch)
        assert [e.event_id for e in read_events()] == _list_ids([batch])

    async def test_bytes_are_the_same_wherever_a_batch_is_cut(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        await self._write_batches(make_sink(), change_batch(SCHEMA, _make_rows(0, 6), last=True))
        halves = [change_batch(SCHEMA, _make_rows(i, 3), index=i, last=i > 0) for i in (0, 3)]
        await self._write_batches(make_sink(), *halves)
        assert len(_without_repeats(read_events())) == 6

    async def test_notices_are_taken_between_batches_and_are_no_events(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """A sink may ignore notices; it may not fail, nor make events of them."""
        first = change_batch(SCHEMA, _make_rows(0, 2), last=True)
        second = change_batch(
            WIDER, [{"id": 2, "name": "c", "country": "DE"}], version=2, last=True
        )
        sink = make_sink()
        await sink.open("orders")
        await sink.announce(notice("snapshot_begin", first.offset))
        await sink.write(first)
        for _ in range(2):  # it may come again
            await sink.announce(notice("schema_change", second.offset))
        await sink.write(second)
        await sink.announce(notice("heartbeat", second.next_offset))
        await sink.aclose()
        assert [e.event_id for e in _without_repeats(read_events())] == _list_ids([first, second])

    async def test_a_stored_offset_is_not_behind_a_notice(self, make_sink: MakeSink) -> None:
        """For sinks that store progress with the data and take notices."""
        batch = change_batch(SCHEMA, _make_rows(0, 2), last=True)
        skipped = notice("skipped_version", batch.next_offset, versions=1)
        sink = make_sink()
        await sink.open("orders")
        await sink.write(batch)
        await sink.announce(skipped)
        await sink.aclose()
        again = make_sink()
        found = await again.open("orders")
        await again.aclose()
        assert found is None or found in (batch.next_offset, skipped.next_offset)

    async def test_closing_is_harmless_at_any_time(self, make_sink: MakeSink) -> None:
        never_open = make_sink()
        await never_open.aclose()
        sink = make_sink()
        await sink.open("orders")
        await sink.aclose()
        await sink.aclose()

    async def test_a_closed_sink_can_be_opened_again(
        self, make_sink: MakeSink, read_events: ReadEvents
    ) -> None:
        """A failed feed opens its sink again and continues."""
        sink = make_sink()
        batches = [change_batch(SCHEMA, _make_rows(i, 2), version=i, last=True) for i in (1, 2)]
        await self._write_batches(sink, batches[0])
        await self._write_batches(sink, batches[1])
        assert [e.event_id for e in read_events()] == _list_ids(batches)
