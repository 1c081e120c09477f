"""Whatever order images stand in: what is paired, at which place, and from any offset the rest."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tailer.changes import CHANGE_TYPES
from tailer.feed.options import FeedOptions
from tailer.testing.table import TableBuilder
from tests.feed.test_pair import POST, PRE, SCHEMA, Row, listed, paired
from tests.support.extent import examples
from tests.support.feeds import events, offset_of

images = st.builds(
    lambda kind, key, value: {"id": key, "v": value, "_change_type": kind},
    st.sampled_from([*CHANGE_TYPES, PRE, POST]),
    st.one_of(st.none(), st.integers(0, 4)),
    st.sampled_from(["a", "b", "ü"]),
)
#: How changes are counted in offsets of these feeds.
PLAN = FeedOptions(key=("id",), paired=True).counting_id()
versions = st.lists(
    st.tuples(st.sampled_from(["p", "q"]), st.lists(images, min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


def expected(plain: list[dict[str, Any]], names: list[str]) -> list[Row]:
    """Of each key with one preimage and one postimage the two as one, at the postimage's place."""
    places: dict[Any, dict[str, list[int]]] = defaultdict(lambda: {PRE: [], POST: []})
    for place, row in enumerate(plain):
        if row["_change_type"] in (PRE, POST):
            places[row["id"]][row["_change_type"]].append(place)
    partner = {
        found[POST][0]: found[PRE][0]
        for found in places.values()
        if len(found[PRE]) == len(found[POST]) == 1
    }

    def values(place: int) -> tuple[Any, ...]:
        return tuple(plain[place][name] for name in names)

    return [
        (
            place,
            row["_change_type"],
            values(place),
            values(partner[place]) if place in partner else None,
        )
        for place, row in enumerate(plain)
        if place not in partner.values()
    ]


@settings(max_examples=examples(30))  # each starts the engine twice
@given(versions, st.integers(1, 4), st.booleans(), st.data())
def test_updates_are_paired_by_their_keys(
    files: list[tuple[str, list[dict[str, Any]]]],
    rows: int,
    partitioned: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = ["p"] if partitioned else []
        schema = SCHEMA.append(SCHEMA.field("v").with_name("p")) if partitioned else SCHEMA
        table = TableBuilder(Path(folder, "t"), schema, cdf=True, partition_by=columns)
        table.create()
        table.commit(
            *(table.cdc(found, partition={"p": p} if partitioned else {}) for p, found in files)
        )
        whole = expected(events(table, 1), schema.names)
        assert listed(paired(table, offset_of(table, 1), key=("id",), rows=rows)) == whole
        count = sum(len(found) for _, found in files)
        index = data.draw(st.integers(0, count))
        start = structs.replace(offset_of(table, 1, index), counted_by=PLAN)
        rest = listed(paired(table, start, key=("id",), rows=rows))
        assert rest == [row for row in whole if row[0] >= index]
