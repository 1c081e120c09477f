"""Paired updates: which images become one row, in which order, and that offsets stay the same."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.compare.engine import DiffOptions
from tailer.compare.preimages import Preimages
from tailer.decode.rows import DecodeOptions
from tailer.errors import OffsetError, TableError
from tailer.feed.options import FeedOptions
from tailer.feed.policy import Policies
from tailer.feed.read import read_changes
from tailer.feed.run import run_feed
from tailer.plan.rules import ChangeSource
from tailer.shape.selection import Selection
from tailer.sink import make_sink
from tailer.testing.table import Action, TableBuilder
from tests.support.feeds import events, offset_of, refusal, table_log
from tests.support.rig import Rig

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}
PRE, POST = "update_preimage", "update_postimage"


def cdf_table(folder: Path, **options: Any) -> TableBuilder:
    table = TableBuilder(
        folder / "t", SCHEMA, properties={"delta.enableChangeDataFeed": "true"}, **options
    )
    table.create()
    return table


def image(kind: str, key: int | None, value: str | None) -> dict[str, Any]:
    return {"id": key, "v": value, "_change_type": kind}


def paired(
    table: TableBuilder,
    start: int | Offset,
    *,
    key: tuple[str, ...] = (),
    rows: int = 65_536,
    memory: int = 512 * 1024 * 1024,
    source: ChangeSource = "auto",
) -> list[ChangeBatch]:
    offset = Offset(start) if isinstance(start, int) else start
    options = FeedOptions(
        change_source=source,
        key=key,
        paired=True,
        diff=DiffOptions(memory_bytes_max=memory),
        decode=DecodeOptions(batch_rows_max=rows),
    )

    async def read() -> list[ChangeBatch]:
        found = read_changes(table_log(table), offset, table.version, options)
        async with aclosing(found) as batches:
            return [batch async for batch in batches]

    return anyio.run(read)


Row = tuple[int, str, Any, Any]


def listed(batches: list[ChangeBatch]) -> list[Row]:
    """Place, change type, row and row before, of every row."""
    found: list[Row] = []
    for batch in batches:
        before = [None] * batch.num_rows if batch.before is None else batch.before.to_pylist()
        places = batch.row_indices().to_pylist()
        for place, row, old in zip(places, batch.rows.to_pylist(), before, strict=True):
            kind, data = row.pop("_change_type"), {k: row[k] for k in row if k[0] != "_"}
            found.append((place, kind, tuple(data.values()), old and tuple(old.values())))
    return found


def test_adjacent_images_of_a_strict_file_become_one_row(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    images = [image(k, i, f"{k}{i}") for i in range(3) for k in (PRE, POST)]
    table.commit(table.cdc(images))
    expected = [(2 * i + 1, POST, (i, f"{POST}{i}"), (i, f"{PRE}{i}")) for i in range(3)]
    for rows in (1, 2, 3, 100):
        assert listed(paired(table, 1, rows=rows)) == expected


@pytest.mark.parametrize(
    "images",
    [
        [image("insert", 9, "x"), image(PRE, 1, "a"), image(POST, 1, "b")],
        [image(PRE, 1, "a"), image(PRE, 2, "a"), image(POST, 1, "b"), image(POST, 2, "b")],
        [image(PRE, 1, "a"), image(POST, 1, "b"), image(PRE, 2, "c")],
    ],
    ids=["an insert before", "in blocks", "one left over"],
)
def test_images_of_any_other_file_stay_alone_without_a_key(
    tmp_path: Path, images: list[dict[str, Any]]
) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc(images))
    found = listed(paired(table, 1))
    assert found == [(i, r["_change_type"], (r["id"], r["v"]), None) for i, r in enumerate(images)]


def test_images_the_other_way_round_are_put_in_order(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(POST, 1, "b"), image(PRE, 1, "a")]))
    assert listed(paired(table, 1)) == [(0, PRE, (1, "a"), None), (1, POST, (1, "b"), None)]
    assert listed(paired(table, 1, key=("id",))) == [(1, POST, (1, "b"), (1, "a"))]


def test_one_file_that_is_not_strict_does_not_spoil_the_others(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(
        table.cdc([image("delete", 5, "z"), image(PRE, 1, "a"), image(POST, 1, "b")]),
        table.cdc([image(PRE, 2, "a"), image(POST, 2, "b")]),
    )
    found = listed(paired(table, 1))
    assert [row[:2] for row in found] == [(0, "delete"), (1, PRE), (2, POST), (4, POST)]
    assert found[3][3] == (2, "a")


def test_with_a_key_images_are_paired_by_it_whatever_their_order(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    images = [
        image("insert", 9, "new"),
        image(POST, 2, "b2"),
        image(PRE, 1, "a1"),
        image(PRE, 2, "a2"),
        image("delete", 8, "old"),
        image(POST, 1, "b1"),
    ]
    table.commit(table.cdc(images))
    expected = [
        (2, "delete", (8, "old"), None),
        (3, "insert", (9, "new"), None),
        (4, POST, (2, "b2"), (2, "a2")),
        (5, POST, (1, "b1"), (1, "a1")),
    ]
    for rows in (1, 2, 100):
        assert listed(paired(table, 1, key=("id",), rows=rows)) == expected


def test_an_update_that_changes_the_key_stays_two_rows(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(PRE, 1, "a"), image(POST, 2, "a")]))
    assert listed(paired(table, 1, key=("id",))) == [
        (0, PRE, (1, "a"), None),
        (1, POST, (2, "a"), None),
    ]
    [whole] = listed(paired(table, 1))
    assert whole == (1, POST, (2, "a"), (1, "a"))


def test_a_key_that_is_there_twice_pairs_nothing(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(k, 1, v) for v in "ab" for k in (PRE, POST)]))
    assert [row[3] for row in listed(paired(table, 1, key=("id",)))] == [None] * 4


def test_a_key_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(PRE, 1, "a"), image(POST, 1, "b")]))
    said = refusal(lambda: paired(table, 1, key=("nr",)), TableError)
    assert "version 1: the key column 'nr' does not exist in this version" in said


def partitioned(folder: Path, per_file: int = 3) -> TableBuilder:
    """Every row moves from one partition to the other, so that the cdc files are read twice."""
    table = cdf_table(folder, partition_by=["v"])
    ids = range(per_file)
    table.commit(
        table.cdc([image(PRE, i, None) for i in ids], partition={"v": "old"}),
        table.cdc([image(POST, i, None) for i in reversed(ids)], partition={"v": "new"}),
    )
    return table


def test_images_in_several_partitions_are_paired_by_key(tmp_path: Path) -> None:
    found = listed(paired(partitioned(tmp_path), 1, key=("id",), rows=2))
    assert found == [(3 + i, POST, (2 - i, "new"), (2 - i, "old")) for i in range(3)]


def test_strict_files_in_several_partitions_are_paired_by_their_order(tmp_path: Path) -> None:
    table = cdf_table(tmp_path, partition_by=["v"])
    ids = {"p": (0, 1), "q": (2, 3), "r": (4,)}
    files = [
        table.cdc([image(k, i, None) for i in n for k in (PRE, POST)], partition={"v": p})
        for p, n in ids.items()
    ]
    files.insert(
        1, table.cdc([image("delete", 7, None), image(PRE, 8, None)], partition={"v": "s"})
    )
    table.commit(*files)
    found = listed(paired(table, 1, rows=1))
    assert [(row[1], row[2][0], row[3] and row[3][0]) for row in found] == [
        ("delete", 7, None),
        (PRE, 8, None),
        *((POST, i, i) for i in range(5)),
    ]
    plain = events(table, 1)
    assert [plain[row[0]]["id"] for row in found] == [row[2][0] for row in found]


def test_what_waits_longer_than_memory_lasts_lies_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cdf_table(tmp_path, partition_by=["v"])
    count = 200_000
    ids = range(count)
    table.commit(
        table.cdc([image(PRE, i, None) for i in ids], partition={"v": "old" * 20}),
        table.cdc([image(POST, i * 7 % count, None) for i in ids], partition={"v": "new"}),
    )
    written: list[int] = []
    write = Preimages._move_to_file

    def counted(self: Preimages, held: Any) -> None:
        written.append(1)
        write(self, held)

    monkeypatch.setattr(Preimages, "_move_to_file", counted)
    batches = paired(table, 1, key=("id",), rows=10_000, memory=32_000_000)
    assert len(written) > 10
    assert sum(b.num_rows for b in batches) == count
    for batch in batches:
        assert batch.before is not None
        assert batch.before.field("id").equals(batch.rows.column("id"))
        assert set(batch.before.field("v").to_pylist()) == {"old" * 20}


@pytest.mark.parametrize("keyed", [False, True])
def test_from_any_offset_the_same_rows_follow(tmp_path: Path, keyed: bool) -> None:  # noqa: FBT001
    table = partitioned(tmp_path, 4)
    images = [image(k, i, None) for i in range(3) for k in (PRE, POST)]
    table.commit(table.cdc(images, partition={"v": "one"}), table.cdc([image("insert", 9, None)]))
    key = ("id",) if keyed else ()
    for version, count in ((1, 8), (2, 7)):

        def of_version(start: int, rows: int, version: int = version) -> list[Row]:
            found = paired(table, offset_of(table, version, start), key=key, rows=rows)
            return listed([batch for batch in found if batch.version == version])

        whole = of_version(0, 100)
        assert bool([row for row in whole if row[3]]) == (keyed or version == 2)
        for index in range(count + 1):
            assert of_version(index, 2) == [row for row in whole if row[0] >= index]


def test_offsets_follow_one_another_and_end_with_the_version(tmp_path: Path) -> None:
    table = partitioned(tmp_path, 5)
    found = paired(table, 1, key=("id",), rows=2)
    assert found[0].offset.index == 0
    assert [b.next_offset for b in found[:-1]] == [b.offset for b in found[1:]]
    assert found[-1].next_offset.version == 2
    resumed = paired(table, found[1].next_offset, key=("id",), rows=2)
    assert [b.event_ids() for b in resumed] == [b.event_ids() for b in found[2:]]
    assert [b.offset for b in resumed] == [b.offset for b in found[2:]]


def test_an_offset_beyond_the_version_is_refused(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    said = refusal(lambda: paired(table, offset_of(table, 1, 7), key=("id",)), OffsetError)
    assert "the offset names change 7 of a version that has 6" in said


def test_a_version_without_updates_is_the_plain_sequence(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.insert([{"id": 1, "v": "a"}])
    table.commit(table.cdc([image("insert", 2, "b")]))
    found = paired(table, 1)
    assert [(b.before, b.indices) for b in found] == [(None, None)] * 2


def tracked(folder: Path) -> tuple[TableBuilder, Action]:
    table = TableBuilder(folder / "t", SCHEMA, properties=TRACKED)
    features = {"writerFeatures": ["rowTracking", "domainMetadata", "appendOnly", "invariants"]}
    table.create(table.protocol(1, 7, **features))
    rows = [{"id": i, "v": f"a{i}"} for i in range(4)]
    first = table.add(rows, baseRowId=0, defaultRowCommitVersion=1)
    table.commit(first)
    return table, first


def rewritten(table: TableBuilder, first: Action, rows: list[dict[str, Any]]) -> None:
    data = table.schema
    table.schema = pa.schema([*data, ("_row_id", pa.int64()), ("_row_version", pa.int64())])
    new = table.add(rows, baseRowId=4, defaultRowCommitVersion=2)
    table.schema = data
    table.commit(
        {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}, table.remove(first), new
    )


UPDATED = [
    {"id": 3, "v": "b3", "_row_id": 3, "_row_version": None},
    {"id": 0, "v": "a0", "_row_id": 0, "_row_version": 1},
    {"id": 11, "v": "a1", "_row_id": 1, "_row_version": None},
    {"id": 7, "v": "new", "_row_id": None, "_row_version": None},
]


def test_row_ids_pair_images_wherever_they_stand(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rewritten(table, first, UPDATED)
    found = listed(paired(table, 2, rows=1))
    assert [row[1:] for row in found] == [
        ("delete", (2, "a2"), None),
        (POST, (3, "b3"), (3, "a3")),
        (POST, (11, "a1"), (1, "a1")),
        ("insert", (7, "new"), None),
    ]
    plain = events(table, 2)
    assert [plain[row[0]]["_change_type"] for row in found] == [row[1] for row in found]


def test_an_update_by_row_id_that_changes_the_key_is_a_delete_and_an_insert(tmp_path: Path) -> None:
    table, first = tracked(tmp_path)
    rewritten(table, first, UPDATED)
    assert [row[1:] for row in listed(paired(table, 2, key=("id",)))] == [
        (PRE, (1, "a1"), None),
        ("delete", (2, "a2"), None),
        (POST, (3, "b3"), (3, "a3")),
        (POST, (11, "a1"), None),
        ("insert", (7, "new"), None),
    ]


def test_preimages_are_read_in_the_schema_that_their_version_leads_to(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    table.create()
    first = table.add([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    table.commit(first)
    table.schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("v", pa.string())])
    new = table.add([{"id": 1, "n": 5, "v": "A"}])
    table.commit(table.metadata(), table.remove(first), new)
    found = listed(paired(table, 2, key=("id",)))
    assert [row[1:] for row in found] == [
        ("delete", (2, "b"), None),
        (POST, (1, 5, "A"), (1, None, "a")),
    ]


def test_nothing_that_waited_stays_behind(tmp_path: Path) -> None:
    table = partitioned(tmp_path / "table", 4)
    spill = tmp_path / "spill"
    spill.mkdir()
    options = FeedOptions(
        key=("id",), paired=True, diff=DiffOptions(64_000_000, str(spill)),
        decode=DecodeOptions(batch_rows_max=1),
    )  # fmt: skip

    async def one() -> None:
        found = read_changes(table_log(table), Offset(1), 1, options)
        async with aclosing(found) as batches:
            await anext(batches)

    anyio.run(one)
    assert list(spill.iterdir()) == []


def debezium(rig: Rig, **options: Any) -> list[dict[str, Any]]:
    """Run the rig's feed into a file of Debezium's events, and give those."""
    sink = make_sink(
        "jsonl", {"path": str(rig.output), "format": "debezium", "key": ["id"]}, Path()
    )
    anyio.run(run_feed, rig.feed(sink=sink, **options))
    return [line for line in rig.lines if "op" in line]


def test_a_sink_that_wants_pairs_gets_them_by_its_own_key(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    images = [image(k, i, None) for k in (POST, PRE) for i in range(3)]
    rig.table.commit(rig.table.cdc([{**i, "id": i["id"]} for i in images]))
    found = debezium(rig)
    assert [(e["op"], e["before"], e["after"]) for e in found] == [
        ("u", {"id": i}, {"id": i}) for i in range(3)
    ]
    assert [e["source"]["index"] for e in found] == [3, 4, 5]


def test_a_lost_file_leaves_the_other_images_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    files = [
        rig.table.cdc([{"id": 1, "_change_type": PRE}, {"id": 2, "_change_type": PRE}]),
        rig.table.cdc([{"id": 1, "_change_type": POST}]),
        rig.table.cdc([{"id": 2, "_change_type": POST}]),
    ]
    rig.table.commit(*files)
    rig.table.insert([{"id": 3}])
    (rig.table.folder / files[1]["cdc"]["path"]).unlink()
    found = debezium(rig, policies=Policies(on_data_loss="skip"))
    assert [(e["op"], (e["after"] or e["before"])["id"]) for e in found] == [
        ("d", 1), ("u", 2), ("c", 3),
    ]  # fmt: skip
    assert [e["source"]["unpaired"] for e in found] == [True, False, False]


def test_masks_hold_for_preimages_too(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = TableBuilder(tmp_path / "masked", schema, cdf=True)
    table.create()
    for order in ((PRE, POST), (POST, PRE)):  # in the second, preimages are read for themselves
        table.commit(
            table.cdc([{"id": 1, "name": f"secret {k}", "_change_type": k} for k in order])
        )
    rig = Rig(tmp_path, table)
    found = debezium(rig, selection=Selection(masks={"name": "redact"}))
    assert [e["op"] for e in found] == ["u", "u"]
    assert "secret" not in rig.output.read_text()
