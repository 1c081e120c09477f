"""What every sink must hold that keeps a copy of a table by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TailerError, TransientError
from tailer.sink import Sink
from tailer.testing.batches import change_batch, change_span, empty_batch, notice
from tailer.testing.conformance.faults import FaultConformance
from tailer.testing.conformance.sink import (
    OWN_NAMES,
    SCHEMA,
    TYPES,
    VALUES,
    WIDER,
    MakeSink,
)

__all__ = ["MirrorConformance", "ReadRows"]

#: All rows of the copy, in any order, each as a mapping of its data columns.
ReadRows = Callable[[], Sequence[dict[str, Any]]]


def _make_row(key: int | None, name: str | None, kind: str = "insert") -> dict[str, Any]:
    return {"id": key, "name": name, "_change_type": kind}


def _make_update(key: int, old: str, new: str, to: int | None = None) -> list[dict[str, Any]]:
    """Return an update's two images; ``to`` is another key."""
    after = _make_row(key if to is None else to, new, "update_postimage")
    return [_make_row(key, old, "update_preimage"), after]


def _make_rows(**named: str) -> list[dict[str, Any]]:
    return [{"id": int(key[1:]), "name": name} for key, name in named.items()]


def _make_history() -> ChangeBatch:
    """Six versions with several changes of the same keys."""
    return change_span(
        SCHEMA,
        [
            [[_make_row(i, "a") for i in range(6)]],
            [_make_update(1, "a", "b"), [_make_row(2, "a", "delete")]],
            [
                [
                    _make_row(1, "b", "delete"),
                    _make_row(3, "a", "delete"),
                    _make_row(1, "c"),
                    _make_row(9, "new"),
                ]
            ],
            # A key moves to another row, before the row that had it gives it up.
            [[*_make_update(4, "a", "four", to=5), *_make_update(5, "a", "five", to=4)]],
            [_make_update(1, "c", "d"), _make_update(0, "a", "moved", to=7)],
            [[_make_row(2, "again")], [_make_row(9, "new", "delete")]],
        ],
    )


AFTER = _make_rows(k1="d", k2="again", k4="five", k5="four", k7="moved")


def _by_id(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.anyio
class MirrorConformance(FaultConformance):
    """Subclass it and provide the fixtures ``make_sink``, ``read_rows`` and ``target_faults``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop's name: asyncio."""
        return "asyncio"

    @pytest.fixture
    def make_sink(self) -> MakeSink:
        """Return a function that makes sinks on one target, which is empty at first. The copy's key
        is the column ``id``."""
        raise NotImplementedError

    @pytest.fixture
    def read_rows(self) -> ReadRows:
        """Return a function that reads the copy back."""
        raise NotImplementedError

    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        """Return a value for each column of TYPES. Override it for what the target refuses."""
        return VALUES

    async def _write_batches(self, sink: Sink, *batches: ChangeBatch) -> Offset | None:
        found = await sink.open("orders")
        for batch in batches:
            await sink.write(batch)
        await sink.aclose()
        return found

    async def test_a_span_leaves_the_rows_of_its_last_version(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        await self._write_batches(make_sink(), _make_history())
        assert _by_id(read_rows()) == AFTER

    async def test_files_one_by_one_leave_the_same_rows(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        await self._write_batches(make_sink(), *_make_history().by_file())
        assert _by_id(read_rows()) == AFTER

    @pytest.mark.parametrize("cuts", [(3,), (6, 7), (8, 9, 10, 11), (13, 17, 18)], ids=str)
    async def test_a_span_may_be_cut_and_goes_on_at_the_stored_offset(
        self, make_sink: MakeSink, read_rows: ReadRows, cuts: tuple[int, ...]
    ) -> None:
        run = _make_history()
        ends = [0, *cuts, run.num_rows]
        for first, end in pairwise(ends):
            part = run.slice(first, end)
            found = await self._write_batches(make_sink(), part)
            assert found is None if not first else found == part.offset
        assert _by_id(read_rows()) == AFTER

    async def test_an_order_for_another_feed_changes_nothing(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        """For sinks that store progress: what is another feed's is neither removed nor moved."""
        batch = change_batch(SCHEMA, [_make_row(1, "a")], last=True)
        await self._write_batches(make_sink(), batch)
        for offset in (None, batch.offset):
            other = make_sink()
            with suppress(SinkRejected, ConfigError):
                await other.set_offset("others", offset)
            sink = make_sink()
            assert await sink.open("orders") in (None, batch.next_offset)
            await sink.aclose()
            assert read_rows() == _make_rows(k1="a")

    async def test_an_empty_batch_and_a_notice_move_the_offset_alone(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        batch = change_batch(SCHEMA, [_make_row(1, "a")], last=True)
        empty = empty_batch(SCHEMA, version=2)
        skipped = notice("skipped_version", empty.next_offset, versions=1)
        await self._write_batches(make_sink(), batch, empty)
        sink = make_sink()
        assert await sink.open("orders") == empty.next_offset
        await sink.announce(skipped)
        await sink.aclose()
        assert await self._write_batches(make_sink()) in (empty.next_offset, skipped.next_offset)
        assert read_rows() == _make_rows(k1="a")

    async def test_every_type_is_the_same_value(
        self, make_sink: MakeSink, read_rows: ReadRows, values: Mapping[str, Any]
    ) -> None:
        schema = pa.schema([("id", pa.int64()), *TYPES])
        nulls = dict.fromkeys(values)
        rows = [{"id": 1, **values}, {"id": 2, **nulls}]
        await self._write_batches(make_sink(), change_batch(schema, rows, last=True))
        expected = pa.Table.from_pylist(rows, schema=schema).to_pylist()
        assert _by_id(read_rows()) == expected

    async def test_columns_with_our_names_keep_their_values(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        assert not {*OWN_NAMES} & {*make_sink().traits.own.names}
        schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in OWN_NAMES)])
        rows = [{"id": 1, **dict.fromkeys(OWN_NAMES, "a")}]
        after = [{"id": 1, **dict.fromkeys(OWN_NAMES, "b")}, {"id": 2, **dict.fromkeys(OWN_NAMES)}]
        update = [{**rows[0], "_change_type": "update_preimage"},
                  {**after[0], "_change_type": "update_postimage"}, after[1]]  # fmt: skip
        await self._write_batches(
            make_sink(),
            change_batch(schema, rows, last=True),
            change_batch(schema, update, version=2, last=True),
        )
        assert _by_id(read_rows()) == after

    async def test_a_column_that_is_added_or_dropped_is_that_of_the_copy(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        wider = {**_make_row(2, "b"), "country": "DE"}
        await self._write_batches(
            make_sink(),
            change_batch(SCHEMA, [_make_row(1, "a")], last=True),
            change_batch(WIDER, [wider], version=2, last=True),
        )
        assert _by_id(read_rows()) == [
            {"id": 1, "name": "a", "country": None},
            {"id": 2, "name": "b", "country": "DE"},
        ]
        await self._write_batches(make_sink(), empty_batch(SCHEMA, version=3))
        assert _by_id(read_rows()) == _make_rows(k1="a", k2="b")

    async def test_a_type_is_widened(self, make_sink: MakeSink, read_rows: ReadRows) -> None:
        for version, number in enumerate((pa.int32(), pa.int64()), start=1):
            schema = pa.schema([("id", pa.int64()), ("number", number)])
            row = {"id": version, "number": version * 1000}
            await self._write_batches(
                make_sink(), change_batch(schema, [row], version=version, last=True)
            )
        assert _by_id(read_rows()) == [{"id": 1, "number": 1000}, {"id": 2, "number": 2000}]

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            ([_make_row(1, "twice")], "1"),
            ([_make_row(8, "a"), _make_row(8, "b")], "8"),
            ([_make_row(8, "a", "delete")], "8"),
            ([_make_row(1, "a", "delete"), _make_row(1, "a", "delete")], "1"),
            ([_make_row(None, "a")], "null"),
        ],
        ids=["there already", "twice in a version", "not there", "leaves twice", "null"],
    )
    async def test_rows_that_the_key_does_not_identify_are_refused(
        self, make_sink: MakeSink, read_rows: ReadRows, rows: list[dict[str, Any]], said: str
    ) -> None:
        first = change_batch(SCHEMA, [_make_row(1, "a"), _make_row(2, "b")], last=True)
        await self._write_batches(make_sink(), first)
        sink = make_sink()
        assert await sink.open("orders") == first.next_offset
        with pytest.raises(SinkRejected, match=said):
            await sink.write(change_batch(SCHEMA, rows, version=2, last=True))
        # The same sink may go on, for a feed may park what was refused.
        third = change_batch(SCHEMA, [_make_row(3, "c")], version=2, last=True)
        await sink.write(third)
        await sink.aclose()
        assert _by_id(read_rows()) == _make_rows(k1="a", k2="b", k3="c")
        assert await self._write_batches(make_sink()) == third.next_offset

    async def test_an_older_process_can_not_write_behind_a_newer_one(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        old, new = make_sink(), make_sink()
        await old.open("orders")
        await old.write(change_batch(SCHEMA, [_make_row(1, "a")], last=True))
        following = change_batch(SCHEMA, [_make_row(2, "b")], version=2, last=True)
        try:
            await new.open("orders")
        except TailerError:  # the older one has the target, until it closes it
            await old.aclose()
            await new.open("orders")
        with pytest.raises(TailerError):
            await old.write(following)
        await new.write(following)
        await old.aclose()
        await new.aclose()
        assert _by_id(read_rows()) == _make_rows(k1="a", k2="b")

    async def test_a_repair_replaces_and_removes_rows_and_leaves_the_offset(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        """For sinks whose copies can be repaired: the feed does not notice."""
        batch = change_batch(SCHEMA, [_make_row(key, "wrong") for key in (1, 2, 3)], last=True)
        await self._write_batches(make_sink(), batch)
        sink = make_sink()
        if type(sink).repair_mirror is Sink.repair_mirror:
            pytest.skip("the sink has no copy that can be repaired")
        with make_sink().read_mirror("orders") as copy:
            held = copy.as_held("id", pa.array([3, 9], pa.int64()))
        with sink.repair_mirror("orders") as mirror:
            assert mirror.offset == batch.next_offset
            mirror.replace(change_batch(SCHEMA, [_make_row(2, "b"), _make_row(4, "d")]))
            mirror.remove(pa.table({"id": held}))
            assert not mirror.reload()
        assert _by_id(read_rows()) == _make_rows(k1="wrong", k2="b", k4="d")
        after = change_batch(SCHEMA, [_make_row(4, "d", "delete")], version=2, last=True)
        assert await self._write_batches(make_sink(), after) == batch.next_offset
        assert _by_id(read_rows()) == _make_rows(k1="wrong", k2="b")

    async def test_a_repair_that_the_feed_has_overtaken_writes_nothing(
        self, make_sink: MakeSink, read_rows: ReadRows
    ) -> None:
        batch = change_batch(SCHEMA, [_make_row(1, "a")], last=True)
        feed, sink = make_sink(), make_sink()
        if type(sink).repair_mirror is Sink.repair_mirror:
            pytest.skip("the sink has no copy that can be repaired")
        await self._write_batches(feed, batch)
        with sink.repair_mirror("orders") as mirror:
            following = change_batch(SCHEMA, _make_update(1, "a", "b"), version=2, last=True)
            await self._write_batches(feed, following)
            with pytest.raises((TransientError, ConfigError)):
                mirror.replace(change_batch(SCHEMA, [_make_row(1, "a")]))
            assert read_rows() == _make_rows(k1="b")
            assert mirror.reload()
            assert mirror.offset == following.next_offset
            mirror.replace(change_batch(SCHEMA, [_make_row(1, "b"), _make_row(2, "c")]))
        assert _by_id(read_rows()) == _make_rows(k1="b", k2="c")
