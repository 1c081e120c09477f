"""Whatever operations are published: the events are those of all changes, with ids and offsets."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import anyio
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.changes import ChangeBatch, Offset
from tailer.decode.rows import DecodeOptions
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.shape.selection import OPERATIONS, Operation, Selection
from tailer.testing.table import TableBuilder
from tests.property.test_decoding import written
from tests.support.extent import examples
from tests.support.feeds import table_log

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Event(NamedTuple):
    """An event, with its place in its version."""

    id: str
    version: int
    place: int
    kind: str
    row: int


def events_of(batches: list[ChangeBatch]) -> list[Event]:
    return [
        Event(event_id, row["_commit_version"], index, row["_change_type"], row["id"])
        for batch in batches
        for event_id, index, row in zip(
            batch.event_ids().to_pylist(),
            batch.row_indices().to_pylist(),
            batch.rows.to_pylist(),
            strict=True,
        )
    ]


def read(table: TableBuilder, start: Offset, options: FeedOptions) -> list[ChangeBatch]:
    async def collect() -> list[ChangeBatch]:
        found = read_changes(table_log(table), start, table.version, options)
        async with aclosing(found) as batches:
            return [batch async for batch in batches]

    return anyio.run(collect)


def check(table: TableBuilder, wanted: tuple[Operation, ...], options: FeedOptions) -> None:
    everything = events_of(read(table, Offset(0), options))
    expected = [event for event in everything if event.kind.startswith(wanted)]
    chosen = FeedOptions(
        decode=options.decode,
        spans=options.spans,
        paired=options.paired,
        key=options.key,
        selection=Selection(operations=wanted),
    )
    found = read(table, Offset(0), chosen)
    assert events_of(found) == expected
    assert found[-1].next_offset == read(table, Offset(0), options)[-1].next_offset

    # Resumed at any event, also at one that is not published.
    for event in random.sample(everything, 2):
        start = Offset(event.version, event.place, counted_by=options.counting_id())
        place = (event.version, event.place)
        rest = [one for one in expected if (one.version, one.place) >= place]
        assert events_of(read(table, start, chosen)) == rest

    # Resumed at any offset that may be saved: behind each batch, and within one.
    number = random.randrange(len(found))
    batch, before = found[number], events_of(found[:number])
    for cut in range(batch.num_rows + 1):
        head, tail = batch.slice(0, cut), batch.slice(cut, batch.num_rows)
        assert events_of([head, tail]) == events_of([batch])
        assert sum(one.num_rows for one in batch.by_file()) == batch.num_rows
        if options.paired and cut < batch.num_rows:
            continue  # there is no offset between the halves of a pair
        if cut < batch.num_rows:
            assert batch.rows_before(head.next_offset) == cut
        rest = events_of(read(table, head.next_offset, chosen))
        assert before + events_of([head]) + rest == expected


def rewritten(folder: Path, seed: list[int]) -> TableBuilder:
    """A table without a change data feed: rows added, rewritten, hidden by a vector and removed."""
    table = TableBuilder(folder, SCHEMA, table_id="t")
    table.create()
    first, second = table.add([{"id": i, "v": "a"} for i in range(12)]), table.add([])
    table.commit(first, second)
    rows = [
        {"id": i, "v": "b" if i + 1 in seed else "a"} for i in [*range(12), 90] if i not in seed
    ]
    after = table.add(rows)
    table.commit(table.remove(first), after)
    now = table.delete_rows(after, {len(rows) - 1})
    table.commit(*now, table.remove(second))
    table.commit(table.remove(now[1]))
    table.insert([{"id": i, "v": "c"} for i in seed])
    return table


@settings(max_examples=examples(15))
@given(
    seed=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    rows=st.sampled_from([1, 3, 1000]),
    wanted=st.sets(st.sampled_from(OPERATIONS), min_size=1),
    make=st.sampled_from([written, rewritten]),
    form=st.sampled_from(["plain", "runs", "paired"]),
)
def test_events_are_those_of_all_changes_that_are_wanted(
    seed: list[int],
    rows: int,
    wanted: set[Operation],
    make: Callable[[Path, list[int]], TableBuilder],
    form: str,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = FeedOptions(
            decode=DecodeOptions(batch_rows_max=rows),
            spans=form == "runs",
            paired=form == "paired",
            key=("id",) if form == "paired" or len(seed) % 2 else (),
        )
        check(make(Path(folder), seed), tuple(sorted(wanted)), options)
