"""The merge plan of mirrors: random histories, cut anywhere, leave what a dictionary has."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from sinks.shared.merge import PHYSICAL, Merge, find_steps, fold_batch
from tailer.changes import ChangeBatch
from tailer.errors import SinkRejected
from tailer.testing.batches import change_batch, change_span

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("value", pa.int64())])
KEY = ("a", "b")
Key = tuple[Any, ...]


def plan(batch: ChangeBatch) -> Merge:
    return fold_batch(batch, batch.rows.select(SCHEMA.names), KEY)


def keys_of(table: pa.Table) -> list[Key]:
    return [tuple(row.values()) for row in table.to_pylist()]


def apply(copy: dict[Key, int], merge: Merge) -> None:
    """Apply a merge to a copy as a database does; what it says of the copy must be so."""
    for key in keys_of(merge.present):
        del copy[key]
    assert not copy.keys() & set(keys_of(merge.absent))
    for a, b, value in keys_of(merge.rows):
        assert copy.setdefault((a, b), value) == value


def version_of(table: dict[Key, int], chance: random.Random) -> list[dict[str, Any]]:
    """The events of one version, which changes the table: deletes, inserts, updates and moves."""
    events = []

    def event(kind: str, key: Key, value: int) -> None:
        events.append({"a": key[0], "b": key[1], "value": value, "_change_type": kind})

    for key in chance.sample(sorted(table), min(len(table), chance.randrange(6))):
        old = table.pop(key)
        if chance.random() < 0.4:
            event("delete", key, old)
            continue
        to = key if chance.random() < 0.6 else (chance.randrange(5), chance.choice("xyz"))
        if to in table or any(
            one["_change_type"] == "update_postimage" and (one["a"], one["b"]) == to
            for one in events
        ):
            to = key
        event("update_preimage", key, old)
        event("update_postimage", to, old + 1)
    for one in events:
        if one["_change_type"] == "update_postimage":
            table[one["a"], one["b"]] = one["value"]
    for _ in range(chance.randrange(4)):
        key = (chance.randrange(5), chance.choice("xyz"))
        if key not in table:
            table[key] = chance.randrange(100)
            event("insert", key, table[key])
    return events


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_leaves_the_table(seed: int) -> None:
    chance = random.Random(seed)
    table: dict[Key, int] = {}
    versions = [version_of(table, chance) for _ in range(12)]
    versions = [events for events in versions if events]
    run = change_span(SCHEMA, [[events] for events in versions])
    ends = [part.first for part in run.parts()[1:]] + [run.num_rows]
    copy: dict[Key, int] = {}
    first = 0
    for end in ends:
        if end == run.num_rows or chance.random() < 0.3:
            apply(copy, plan(run.slice(first, end)))
            first = end
    assert copy == table


def test_rows_keep_their_order() -> None:
    rows = [{"a": a, "b": "x", "value": 0} for a in (5, 1, 3, 2)]
    assert plan(change_batch(SCHEMA, rows)).rows["a"].to_pylist() == [5, 1, 3, 2]


def test_a_key_that_is_refused_is_named_with_its_version() -> None:
    rows = [{"a": 1, "b": "x", "value": 0}] * 2
    with pytest.raises(SinkRejected, match=r"version 7: two rows with the key {'a': 1, 'b': 'x'}"):
        plan(change_batch(SCHEMA, rows, version=7))
    with pytest.raises(SinkRejected, match="version 7: the key column 'b' is null; choose"):
        plan(change_batch(SCHEMA, [{"a": 1, "b": None, "value": 0}], version=7))


@pytest.mark.parametrize("data_type", [pa.float64(), pa.list_(pa.int64())], ids=str)
def test_a_key_that_compares_differently_elsewhere_is_refused(data_type: pa.DataType) -> None:
    batch = change_batch(pa.schema([("k", data_type)]), [{"k": None}])
    with pytest.raises(SinkRejected, match=r"'k' is of type .* choose other key columns"):
        fold_batch(batch, batch.rows.select(["k"]), ["k"])


def columns(**named: tuple[str, pa.DataType]) -> pa.Schema:
    fields = (
        pa.field(name, data_type, metadata={PHYSICAL: physical})
        for name, (physical, data_type) in named.items()
    )
    return pa.schema(list(fields))


def steps(old: pa.Schema, new: pa.Schema, *, keep: bool = False) -> list[tuple[str, str, str]]:
    return [(s.kind, s.column, s.field.name) for s in find_steps(old, new, keep=keep)]


LONG, TEXT = pa.int64(), pa.string()


def test_columns_are_recognized_by_their_physical_names() -> None:
    old = columns(a=("1", LONG), b=("2", TEXT), gone=("3", TEXT))
    new = columns(b=("1", LONG), a=("2", TEXT), gone=("4", TEXT))
    assert steps(old, new) == [
        ("drop", "gone", "gone"),
        ("rename", "a", "_delta_tailer_0"),
        ("rename", "b", "_delta_tailer_1"),
        ("rename", "_delta_tailer_0", "b"),
        ("rename", "_delta_tailer_1", "a"),
        ("add", "gone", "gone"),
    ]


def test_a_log_keeps_its_columns() -> None:
    old, new = columns(a=("1", LONG), b=("2", TEXT)), columns(c=("1", LONG))
    assert steps(old, new, keep=True) == [("add", "c", "c")]


STRUCT = pa.struct({"x": pa.int32()})


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.decimal128(10, 0), True),
        (pa.int32(), pa.decimal128(10, 1), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(11, 4), False),
        (pa.date32(), pa.timestamp("us"), True),
        (pa.date32(), pa.timestamp("us", "UTC"), False),
        (pa.string(), pa.int64(), False),
        (STRUCT, pa.struct({"y": TEXT, "x": LONG}), True),
        (STRUCT, pa.struct({"y": pa.int32()}), False),
        (pa.list_(pa.int32()), pa.list_(LONG), True),
        (pa.map_(TEXT, STRUCT), pa.map_(TEXT, pa.struct({"x": LONG})), True),
    ],
    ids=str,
)
def test_a_type_changes_only_where_no_value_does(
    old: pa.DataType, new: pa.DataType, *, fits: bool
) -> None:
    before, after = columns(c=("c", old)), columns(c=("c", new))
    if fits:
        assert steps(before, after) == [("retype", "c", "c")]
    else:
        with pytest.raises(SinkRejected, match=r"'c' was of type .* `tailer offsets reset`"):
            steps(before, after)


def test_nested_fields_under_column_mapping_are_not_guessed_at() -> None:
    old, new = columns(c=("col-1", STRUCT)), columns(c=("col-1", pa.struct({"x": LONG})))
    with pytest.raises(SinkRejected, match="'c' was of type"):
        steps(old, new)
