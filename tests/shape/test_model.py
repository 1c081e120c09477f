"""A model of the shaping in thirty lines: what the feed delivers is what it says of each row."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.changes import ChangeBatch, Offset
from tailer.decode.rows import DecodeOptions
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.selection import Selection
from tailer.testing.table import TableBuilder
from tests.property.test_published_operations import rewritten
from tests.support.extent import examples
from tests.support.feeds import table_log

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
METADATA = ("_change_type", "_commit_version", "_commit_timestamp")
#: Conditions and selections, each as SQL and as what it means of a row.
WHERE: dict[str, Callable[[Row], bool]] = {
    "": lambda _: True,
    "id % 2 = 0": lambda r: r["id"] % 2 == 0,
    "v <> 'a'": lambda r: r["v"] is not None and r["v"] != "a",
    "id < 5 or v is null": lambda r: r["id"] < 5 or r["v"] is None,
    "not (id between 2 and 50)": lambda r: not 2 <= r["id"] <= 50,
    "v in ('a', 'c') and id <> 90": lambda r: r["v"] in ("a", "c") and r["id"] != 90,
    "id > 1000": lambda _: False,
}
SELECT: dict[str, Callable[[Row], Row]] = {
    "": lambda r: r,
    "v": lambda r: {"v": r["v"]},
    "upper(v) as w, id": lambda r: {"w": r["v"] and r["v"].upper(), "id": r["id"]},
    "* replace (id * 2 as id)": lambda r: {**r, "id": r["id"] * 2},
    "* exclude (V)": lambda r: {k: x for k, x in r.items() if k != "v"},
    "id // 3 as third": lambda r: {"third": r["id"] // 3},
}


class Event(NamedTuple):
    id: str
    version: int
    place: int
    kind: str
    row: Row
    before: Row | None


def written(folder: Path, seed: list[int]) -> TableBuilder:
    """A table with every way to change: whole files, one of them of several row groups, vectors
    both ways, cdc files."""
    table = TableBuilder(folder, SCHEMA, cdf=True, table_id="t")
    table.create()
    rows = [{"id": i, "v": "abc"[i % 3]} for i in range(12)]
    first = table.add(rows, path="first", row_group_size=3)
    second = table.add([{"id": i} for i in range(50, 55)], path="second")
    table.commit(first, second)
    now = table.delete_rows(first, {i % 12 for i in seed})
    table.commit(*now)
    table.commit(*table.delete_rows(now[1], {i % 7 for i in seed}), table.remove(second))
    images = [
        {"id": i, "v": v, "_change_type": f"update_{kind}"}
        for i in seed
        for kind, v in (("preimage", "abca"[i % 4]), ("postimage", "abac"[i % 4]))
    ]
    others = [
        {"id": i, "v": None if i % 2 else "a", "_change_type": ("insert", "delete")[i % 2]}
        for i in seed
    ]
    table.commit(table.cdc(images, path="c"), table.cdc(others, path="d"))
    table.commit({"commitInfo": {"operation": "nothing"}})
    return table


def events_of(batches: list[ChangeBatch]) -> list[Event]:
    found = []
    for batch in batches:
        rows, ids = batch.rows.to_pylist(), batch.event_ids().to_pylist()
        olds = [None] * len(rows) if batch.before is None else batch.before.to_pylist()
        for row, event_id, place, old in zip(rows, ids, batch.row_indices(), olds, strict=True):
            kind, version, _ = (row.pop(name) for name in METADATA)
            found.append(Event(event_id, version, place.as_py(), kind, row, old))
    return found


def modelled(events: list[Event], where: str, select: str, *, drop: bool) -> Iterator[Event]:
    """What becomes of all events."""
    wanted, selected = WHERE[where], SELECT[select]
    for event in events:
        old, new = event.before, event.row
        if old is None:
            if wanted(new):
                yield event._replace(row=selected(new))
        elif wanted(old) and wanted(new):
            if not drop or selected(old) != selected(new):
                yield event._replace(row=selected(new), before=selected(old))
        elif wanted(new):
            yield event._replace(kind="insert", row=selected(new), before=None)
        elif wanted(old):
            yield event._replace(kind="delete", row=selected(old), before=None)


def read(table: TableBuilder, start: Offset, options: FeedOptions) -> list[ChangeBatch]:
    async def collect() -> list[ChangeBatch]:
        found = read_changes(table_log(table), start, table.version, options)
        async with aclosing(found) as batches:
            return [batch async for batch in batches]

    return anyio.run(collect)


def check(
    table: TableBuilder, where: str, select: str, options: FeedOptions, *, drop: bool
) -> None:
    everything = events_of(read(table, Offset(0), options))
    selection = Selection(
        parse_select(select),
        parse_condition(where) if where else None,
        unchanged="drop" if drop else "keep",
    )
    shaped = FeedOptions(
        decode=options.decode, spans=options.spans, paired=options.paired, key=options.key,
        selection=selection,
    )  # fmt: skip
    expected = list(modelled(everything, where, select, drop=drop and options.paired))
    found = read(table, Offset(0), shaped)
    assert events_of(found) == expected
    assert found[-1].next_offset.version == table.version + 1

    # Read on from any offset that may be saved: behind each batch, and within one.
    number = random.randrange(len(found))
    batch, before = found[number], events_of(found[:number])
    for cut in {0, batch.num_rows // 2, batch.num_rows}:
        if options.paired and cut < batch.num_rows:
            continue  # there is no offset between the halves of a pair
        head = batch.slice(0, cut)
        rest = events_of(read(table, head.next_offset, shaped))
        assert before + events_of([head]) + rest == expected


@settings(max_examples=examples(25))
@given(
    seed=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    rows=st.sampled_from([1, 3, 1000]),
    where=st.sampled_from(sorted(WHERE)),
    select=st.sampled_from(sorted(SELECT)),
    make=st.sampled_from([written, rewritten]),
    form=st.sampled_from(["plain", "runs", "paired"]),
    drop=st.booleans(),
)
def test_what_is_delivered_is_what_the_model_says(
    seed: list[int],
    rows: int,
    where: str,
    select: str,
    make: Callable[[Path, list[int]], TableBuilder],
    form: str,
    *,
    drop: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = FeedOptions(
            decode=DecodeOptions(batch_rows_max=rows),
            spans=form == "runs",
            paired=form == "paired",
            key=("id",) if form == "paired" or len(seed) % 2 else (),
        )
        # Neighbours that are equal are left out too, where updates are not paired: elsewhere.
        drop = drop and form == "paired"
        check(make(Path(folder), seed), where, select, options, drop=drop)
