"""What of a table leaves: columns, partitions, masked values."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import SchemaChanged, TableError
from tailer.feed.run import run_feed
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.masks import Mask
from tailer.shape.selection import Selection
from tailer.shape.shaper import Shaper
from tailer.sink import Sink
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("year", pa.int32()), ("country", pa.string())]
)
KEY = b"a key of the tests"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """One file for each of (2020, DE), (2021, DE), (2021, FR), (null, FR)."""
    table = TableBuilder(tmp_path / "people", SCHEMA, partition_by=["year", "country"], cdf=True)
    rig = Rig(tmp_path, table)
    table.create()
    partitions = [("2020", "DE"), ("2021", "DE"), ("2021", "FR"), (None, "FR")]
    table.commit(
        *(
            table.add([{"id": i, "name": f"name {i}"}], partition={"year": y, "country": c})
            for i, (y, c) in enumerate(partitions)
        )
    )
    return rig


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("country = 'DE'", [0, 1]),
        ("COUNTRY = 'DE' AND year >= 2021", [1]),
        ("year < 2021", [0]),
        ("year <> 2021", [0]),
        ("year != 2021 and country = 'FR'", []),
        ("year is null", [3]),
        ('"year" is not null', [0, 1, 2]),
        ("country in ('FR', 'IT') and year in (2021)", [2]),
        ("year not in (2020)", [1, 2]),
        ("country > 'DE'", [2, 3]),
    ],
)
async def test_only_wanted_partitions_are_fetched(rig: Rig, where: str, ids: list[int]) -> None:
    script = Script({})
    await run_feed(rig.feed(script=script, selection=Selection(where=parse_condition(where))))
    assert rig.ids == ids
    opened = [name for name, what in script.calls if name == "open" and what.endswith(".parquet")]
    assert len(opened) == len(ids)


async def test_a_file_without_its_partition_value_is_refused_and_not_passed_over(rig: Rig) -> None:
    rig.table.commit(rig.table.add([{"id": 9}], partition={"YEAR": "2021", "country": "FR"}))
    with pytest.raises(TableError, match=r"version 2, part-.*'year', only one for 'YEAR'"):
        await run_feed(rig.feed(selection=Selection(where=parse_condition("year = 2021"))))
    assert rig.ids == [1, 2]


async def test_a_row_that_leaves_the_wanted_partition_is_a_delete(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("country", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, partition_by=["country"])
    rig = Rig(tmp_path, table)
    table.create()
    old = table.add([{"id": 1}, {"id": 2}], partition={"country": "DE"})
    table.commit(old)
    kept = table.add([{"id": 1}], partition={"country": "DE"})
    moved = table.add([{"id": 2}], partition={"country": "FR"})
    table.commit(table.remove(old), kept, moved)
    await run_feed(
        rig.feed(start="2", selection=Selection(where=parse_condition("country = 'DE'")))
    )
    assert [(e["id"], e["_change_type"]) for e in rig.events] == [(2, "delete")]


async def test_rows_are_chosen_by_any_column(rig: Rig) -> None:
    await run_feed(rig.feed(selection=Selection(where=parse_condition("name = 'name 2'"))))
    assert rig.ids == [2]


async def test_columns_leave_in_the_order_asked_for(rig: Rig) -> None:
    await run_feed(rig.feed(selection=Selection(parse_select("country, id"))))
    assert list(rig.events[0])[:2] == ["country", "id"]
    assert "name" not in rig.events[0]


def masked(**masks: Mask) -> Selection:
    selection = Selection(masks=masks, mask_key=KEY)
    assert "masks=" in repr(selection)
    assert repr(KEY) not in repr(selection), "the key is not shown"
    return selection


async def test_masked_values_never_leave(rig: Rig) -> None:
    selection = masked(NAME="hash", year="redact", country="drop", id="redact")
    await run_feed(rig.feed(selection=selection))
    expected = [
        blake2b(f"name {i}".encode(), key=KEY, digest_size=16).hexdigest() for i in range(4)
    ]
    assert [e["name"] for e in rig.events] == expected
    assert {(e["year"], e["id"]) for e in rig.events} == {(None, None)}
    text = rig.output.read_text()
    assert "country" not in text
    assert "name 1" not in text


async def test_texts_are_redacted_to_a_constant_and_null_stays_null(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    rig = Rig(tmp_path, table)
    table.create()
    table.insert([{"id": 1, "name": "x"}, {"id": 2, "name": None}])
    await run_feed(rig.feed(selection=masked(name="redact")))
    assert [e["name"] for e in rig.events] == ["[redacted]", None]
    rig.output.unlink()
    await rig.offsets.clear()
    await run_feed(rig.feed(selection=masked(name="hash", id="hash")))
    assert [e["name"] is None for e in rig.events] == [False, True]
    assert rig.events[0]["id"] == blake2b(b"1", key=KEY, digest_size=16).hexdigest()


async def test_masks_change_neither_which_rows_changed_nor_their_ids(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    rig = Rig(tmp_path, table)
    table.create()
    old = table.add([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    table.commit(old)
    table.commit(table.remove(old), table.add([{"id": 1, "name": "a"}, {"id": 2, "name": "c"}]))
    ids = []
    for selection in (Selection(), masked(name="drop"), Selection(parse_select("id"))):
        await run_feed(rig.feed(start="2", selection=selection, key=("id",)))
        ids.append([(e["_event_id"], e["_change_type"]) for e in rig.events])
        rig.output.unlink()
        await rig.offsets.clear()
    assert ids[0] == ids[1] == ids[2]
    assert [kind for _, kind in ids[0]] == ["update_preimage", "update_postimage"]


async def test_a_schema_notice_says_nothing_of_a_dropped_column(rig: Rig) -> None:
    rig.table.schema = pa.schema([*SCHEMA, ("phone", pa.string())])
    add = rig.table.add([{"id": 9, "phone": "1"}], partition={"year": "1", "country": "DE"})
    rig.table.commit(rig.table.metadata(), add)
    await run_feed(rig.feed(selection=masked(country="drop", name="hash")))
    (notice,) = rig.notices
    names = [f["name"] for f in json.loads(notice["details"]["schema"])["fields"]]
    assert names == ["id", "name", "year", "phone"]
    assert notice["details"]["partition_columns"] == ["year"]


async def test_a_masked_column_under_a_new_name_stops_the_feed(rig: Rig) -> None:
    fields: list[Any] = [pa.field("full_name", f.type) if f.name == "name" else f for f in SCHEMA]
    rig.table.schema = pa.schema(fields)
    add = rig.table.add([{"id": 9, "full_name": "x"}], partition={"year": "1", "country": "DE"})
    rig.table.commit(rig.table.metadata(), add)
    with pytest.raises(SchemaChanged, match="version 2: there is no column 'name' to mask"):
        await run_feed(rig.feed(selection=masked(name="hash")))
    assert len(rig.events) == 4
    assert "full_name" not in json.dumps(rig.events)


async def test_a_nested_column_can_not_be_hashed(tmp_path: Path) -> None:
    schema = pa.schema([("tags", pa.list_(pa.string()))])
    table = TableBuilder(tmp_path / "t", schema)
    rig = Rig(tmp_path, table)
    table.create()
    table.insert([{"tags": ["a"]}])
    with pytest.raises(TableError, match="'tags' is of a nested type"):
        await run_feed(rig.feed(selection=masked(tags="hash")))
    await run_feed(rig.feed(selection=masked(tags="redact")))
    assert rig.events[0]["tags"] is None


async def test_a_string_that_is_no_text_is_hashed_by_its_bytes(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    rig = Rig(tmp_path, table)
    table.create()
    add = table.add([{"id": 1, "name": "x"}], path="odd.parquet")
    file = table.folder / "odd.parquet"
    name = pa.array([b"stra\xdfe"]).view(pa.string())
    pq.write_table(pa.table({"id": [1], "name": name}), file)
    add["add"]["size"] = file.stat().st_size
    table.commit(add)
    await run_feed(rig.feed(selection=masked(name="hash")))
    assert rig.events[0]["name"] == blake2b(b"stra\xdfe", key=KEY, digest_size=16).hexdigest()


@pytest.mark.parametrize("where", ["year = 'abc'", "year in ('2020', 'x')"])
async def test_a_value_of_another_type_is_named_before_and_while_it_runs(
    rig: Rig, where: str
) -> None:
    parsed = parse_condition(where)
    state = (await rig.feed().log.load_snapshot()).state
    with pytest.raises(SchemaChanged, match=r"can't be computed: Could not convert string"):
        Shaper(Selection(where=parsed), TableColumns()).check_state(state)
    with pytest.raises(TableError, match=r"version 0: .*can't be computed"):
        await run_feed(rig.feed(selection=Selection(where=parsed)))


def test_the_key_is_not_shown() -> None:
    assert "tests" not in repr(masked(name="hash"))


async def test_preimages_beside_their_rows_are_masked_too(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("phone", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, cdf=True)
    rig = Rig(tmp_path, table)
    table.create()
    images = [("update_preimage", "secret a"), ("update_postimage", "secret b")]
    rows = [{"id": 0, "name": "secret", "phone": "1", "_change_type": "insert"}]
    rows += [{"id": 1, "name": n, "phone": "2", "_change_type": kind} for kind, n in images]
    table.commit(table.cdc(rows))
    found: list[ChangeBatch] = []

    class Gathering(Sink):
        async def open(self, feed: str) -> None:
            pass

        async def write(self, batch: ChangeBatch) -> None:
            found.append(batch)

        async def aclose(self) -> None:
            pass

    selection = masked(name="hash", phone="drop")
    more: dict[str, Any] = {"paired": True, "key": ("id",), "batch_rows_max": 9}
    feed = rig.feed(sink=Gathering(), selection=selection, **more)
    await run_feed(feed)
    (batch,) = (b for b in found if b.num_rows)
    assert batch.before is not None
    digests = [blake2b(n.encode(), key=KEY, digest_size=16).hexdigest() for _, n in images]
    assert batch.before.to_pylist() == [None, {"id": 1, "name": digests[0]}]
    assert batch.rows.column("name")[1].as_py() == digests[1]
    assert "secret" not in str(found)
    assert [f.name for f in batch.state.schema] == ["id", "name"]
