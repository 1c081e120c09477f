"""Shaped feeds: what becomes of columns that come and go, of rows that can't be computed, masks."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.decode.options import DecodeOptions
from tailer.errors import CorruptRow, SchemaChanged, TableError
from tailer.feed.options import FeedOptions
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.read import read_changes
from tailer.feed.run import run_feed
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.masks import Mask
from tailer.shape.selection import Selection, Unchanged
from tailer.sink import make_sink
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.feeds import table_log
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def shape(
    select: str = "", where: str = "", unchanged: Unchanged = "keep", **masks: Mask
) -> Selection:
    condition = parse_condition(where) if where else None
    return Selection(
        parse_select(select), condition, masks, b"a key of the tests", unchanged=unchanged
    )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Five rows in one version, v is the id as text."""
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    table.insert([{"id": i, "v": str(i)} for i in range(5)])
    return Rig(tmp_path, table)


def values(rig: Rig) -> list[dict[str, Any]]:
    return [{k: x for k, x in e.items() if not k.startswith("_")} for e in rig.events]


async def test_a_column_that_was_added_later_is_null_before(rig: Rig) -> None:
    rig.table.schema = pa.schema([*SCHEMA, ("n", pa.int32())])
    rig.table.commit(rig.table.metadata(), rig.table.add([{"id": 9, "v": "9", "n": 4}]))
    await run_feed(rig.feed(selection=shape("id, n, coalesce(n, 0) + 1 as m", "id > 2")))
    assert values(rig) == [{"id": 3, "m": 1}, {"id": 4, "m": 1}, {"id": 9, "n": 4, "m": 5}]
    assert [n["details"]["added"] for n in rig.notices] == [["n"]]


async def test_a_column_that_an_expression_needs_stops_the_feed_when_it_goes(rig: Rig) -> None:
    rig.table.schema = pa.schema([("id", pa.int64())])
    rig.table.commit(rig.table.metadata(), rig.table.add([{"id": 9}]))
    with pytest.raises(SchemaChanged, match=r"version 2: .*no column 'v', which .*upper\(v\) AS u"):
        await run_feed(rig.feed(selection=shape("id, upper(v) as u")))
    assert len(rig.events) == 5


async def test_a_dropped_column_that_nobody_selects_is_no_change(rig: Rig) -> None:
    rig.table.schema = pa.schema([("id", pa.int64())])
    rig.table.commit(rig.table.metadata(), rig.table.add([{"id": 9}]))
    await run_feed(rig.feed(selection=shape("id * 2 as twice")))
    assert [e["twice"] for e in rig.events] == [0, 2, 4, 6, 8, 18]
    assert not rig.notices


@pytest.mark.parametrize("select", ["id, v::int as n", "v::int as n"])
@pytest.mark.parametrize("batch_rows_max", [2, 1000])
async def test_a_row_that_can_not_be_computed_is_refused_by_name(
    rig: Rig, select: str, batch_rows_max: int
) -> None:
    rig.table.insert([{"id": 7, "v": "7"}, {"id": 8, "v": "none"}, {"id": 9, "v": "9"}])
    feed = rig.feed(selection=shape(select), batch_rows_max=batch_rows_max)
    with pytest.raises(CorruptRow, match=r"version 2, part.*v='none'.*Could not convert string"):
        await run_feed(feed)
    assert [e["n"] for e in rig.events] == [0, 1, 2, 3, 4, 7]


async def test_such_rows_are_parked_without_what_is_not_selected(rig: Rig, tmp_path: Path) -> None:
    rig.table.insert([{"id": 7, "v": "x"}, {"id": 8, "v": "8"}, {"id": 9, "v": "y"}])
    park = make_sink("jsonl", {"path": str(tmp_path / "parked.jsonl")}, Path())
    await run_feed(rig.feed(selection=shape("id, v::int as n"), park=park, batch_rows_max=1000))
    assert [e["n"] for e in rig.events] == [0, 1, 2, 3, 4, 8]
    parked = [json.loads(line) for line in (tmp_path / "parked.jsonl").read_text().splitlines()]
    assert [(e["id"], e["n"]) for e in parked] == [(7, None), (9, None)]
    assert "v" not in parked[0]
    assert (await rig.offset()).version == 3


async def test_expressions_see_what_masks_have_left_and_conditions_the_value(rig: Rig) -> None:
    selection = shape("id, v || '!' as w, length(v) as n", "v = '3'", v="redact")
    await run_feed(rig.feed(selection=selection))
    assert values(rig) == [{"id": 3, "w": "[redacted]!", "n": 10}]
    rig.output.unlink()
    await rig.offsets.clear()
    await run_feed(rig.feed(selection=shape("* replace (length(v) as id)", "v = '3'", v="hash")))
    assert [e["id"] for e in rig.events] == [32]


async def test_a_dropped_value_can_not_be_computed_with(rig: Rig) -> None:
    with pytest.raises(SchemaChanged, match="needs 'v', which `mask` drops"):
        await run_feed(rig.feed(selection=shape("upper(v) as u", v="drop")))
    await run_feed(rig.feed(selection=shape("*", "v = '3'", v="drop")))
    assert values(rig) == [{"id": 3}]


async def test_values_that_are_passed_on_keep_their_bits(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("d", pa.float64()), ("t", pa.timestamp("us"))])
    rows = [{"id": i, "d": d} for i, d in enumerate([float("nan"), -0.0, float("inf")])]
    table = TableBuilder(tmp_path / "t", schema)
    table.create()
    table.insert(rows)
    rig = Rig(tmp_path, table)
    await run_feed(rig.feed())
    plain = values(rig)
    rig.output.unlink()
    await rig.offsets.clear()
    await run_feed(rig.feed(selection=shape("id + 0 as id, d, t", "id >= 0")))
    assert values(rig) == plain


async def test_what_is_shaped_is_read_in_half_batches_for_it_is_in_memory_twice(rig: Rig) -> None:
    decode = DecodeOptions(batch_rows_max=4)
    plain, shaped = FeedOptions(decode=decode), FeedOptions(decode=decode, selection=shape("id"))
    for options, counts in ((plain, [4, 1]), (shaped, [2, 2, 1])):
        batches = read_changes(table_log(rig.table), Offset(1), 1, options)
        assert [batch.num_rows async for batch in batches] == counts
    halved = DecodeOptions(batch_bytes_max=100 << 20).halve_batches()
    assert (halved.batch_bytes_max, halved.page_batch_bytes) == (50 << 20, 100 << 20)


async def test_names_that_are_no_identifiers(tmp_path: Path) -> None:
    schema = pa.schema([('quo"x', pa.int64()), ("do.t", pa.int64()), ("select", pa.int64())])
    properties = {"delta.columnMapping.mode": "name"}
    table = TableBuilder(tmp_path / "t", schema, properties=properties)
    table.create()
    table.insert([{'quo"x': 1, "do.t": 2, "select": 3}])
    rig = Rig(tmp_path, table)
    select = '"quo""x", "do.t" + "select" as "s u.m"'
    await run_feed(rig.feed(selection=shape(select, '"select" = 3')))
    assert values(rig) == [{'quo"x': 1, "s u.m": 5}]


async def test_neighbours_that_are_equal_as_selected_are_left_out(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    table.create()
    images = [
        {"id": i, "v": v, "_change_type": f"update_{kind}"}
        for i in range(4)
        for kind, v in (("preimage", "a"), ("postimage", "b" if i % 2 else "A"))
    ]
    table.commit(table.cdc(images))
    rig = Rig(tmp_path, table)
    await run_feed(rig.feed(selection=shape("id, upper(v) as u", unchanged="drop")))
    assert [(e["id"], e["u"]) for e in rig.events] == [(1, "A"), (1, "B"), (3, "A"), (3, "B")]


async def test_files_that_can_not_match_are_not_read_and_count(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    files = [table.add([{"id": i * 10 + n, "v": "x"} for n in range(10)]) for i in range(8)]
    for number, file in enumerate(files):
        bounds = {"minValues": {"id": number * 10}, "maxValues": {"id": number * 10 + 9}}
        file["add"]["stats"] = json.dumps({"numRecords": 10, **bounds})
    table.commit(*files)
    rig, script = Rig(tmp_path, table), Script({})
    condition = "id between 42 and 44 and v = 'x'"
    await run_feed(rig.feed(script=script, selection=shape(where=condition)))
    assert rig.ids == [42, 43, 44]
    opened = [name for name, what in script.calls if name == "open" and what.endswith(".parquet")]
    assert len(opened) == 1, "of eight files"
    rig.output.unlink()
    await rig.offsets.clear()
    script = Script({})
    await run_feed(rig.feed(script=script, start="snapshot", selection=shape(where=condition)))
    assert sorted(rig.ids) == [42, 43, 44]
    opened = [name for name, what in script.calls if name == "open" and what.endswith(".parquet")]
    assert len(opened) == 1


@pytest.mark.parametrize("start", ["0", "snapshot"])
async def test_row_groups_that_can_not_match_are_not_decoded(tmp_path: Path, start: str) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    rows = [{"id": i, "v": f"{i * 7919 % 1009}"} for i in range(8000)]
    first = table.add(rows, row_group_size=1000)
    table.commit(first)
    table.commit(*table.delete_rows(first, {500, 4500, 4501}))
    rig = Rig(tmp_path, table)
    await run_feed(rig.feed(start=start, selection=shape(where="id between 4499 and 4502")))
    kept = [4499, 4502]
    assert rig.ids == (kept if start == "snapshot" else [4499, 4500, 4501, 4502, 4500, 4501])
    read = rig.metric("tailer_read_bytes_total")
    assert read < first["add"]["size"] * (0.2 if start == "snapshot" else 0.4)


@pytest.mark.parametrize(
    ("select", "why"),
    [("v + 1 as x", "can't be computed"), ("hex(id) as _change_type", "of every change"),
     ("id::ubigint as x", "Delta does not have"), ("interval 1 day as x", "Delta does not have")],
)  # fmt: skip
async def test_what_does_not_fit_the_table_is_refused(rig: Rig, select: str, why: str) -> None:
    with pytest.raises(TableError, match=why):
        await run_feed(rig.feed(selection=shape(select)))
    assert not rig.output.exists() or not rig.events


async def test_an_error_shows_no_value_that_is_masked(rig: Rig) -> None:
    rig.table.insert([{"id": 9, "v": "a secret"}])
    with pytest.raises(CorruptRow, match=r"version 2.*can't be computed") as caught:
        await run_feed(rig.feed(selection=shape("id", "v::int >= 0", v="hash")))
    assert "secret" not in str(caught.value)
    with pytest.raises(CorruptRow, match="a secret"):
        await run_feed(rig.feed(selection=shape("id", "v::int >= 0")))


async def test_a_condition_of_a_resnapshot_that_fails_is_a_sentence(rig: Rig) -> None:
    await run_feed(rig.feed())
    rig.table.insert([{"id": 9, "v": "none"}])
    await run_feed(rig.feed())
    rig.orders.resnapshots.append(ResnapshotRequest(parse_condition("v::int > 1")))
    with pytest.raises(CorruptRow, match=r"condition 'v::int > 1' can't be computed .*'none'"):
        await run_feed(rig.feed(batch_rows_max=1000))


@pytest.mark.parametrize(("where", "seen"), [("v = 'b'", None), ("v <> ''", {"id": 1, "v": "a"})])
async def test_the_other_image_is_shown_only_if_it_is_wanted(
    tmp_path: Path, where: str, seen: dict[str, Any] | None
) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    table.create()
    table.commit(
        table.cdc(
            [
                {"id": 1, "v": "a", "_change_type": "update_preimage"},
                {"id": 2, "v": "b", "_change_type": "update_postimage"},
            ]
        )
    )
    options = FeedOptions(selection=shape(where=where), key=("id",), paired=True)
    async with aclosing(read_changes(table_log(table), Offset(1), 1, options)) as batches:
        found = [batch async for batch in batches if batch.num_rows]
    (batch,) = found
    assert batch.rows.column("id").to_pylist()[-1] == 2
    assert batch.partner is not None
    assert batch.partner.to_pylist()[-1] == seen
