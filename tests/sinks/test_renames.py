"""Columns that get other names, in every order and in other case, in every target with columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tailer.changes import ChangeBatch
from tailer.errors import TargetRefused
from tailer.sink import make_sink
from tailer.testing.batches import change_batch, table_state
from tests.support.column_targets import COLUMN_TARGETS, ColumnTarget, column_target
from tests.support.extent import examples
from tests.support.sinks import write
from tests.support.sql_targets import SQL_SINKS, sql_target

#: Names of three columns at one time. No two differ in case alone, but those of two times may.
NAMES = st.lists(
    st.sampled_from(["a", "A", "b", "B", "c", "_delta_tailer_0", "_Delta_Tailer_1"]),
    min_size=3, max_size=3, unique_by=str.lower,
)  # fmt: skip
HISTORIES = st.lists(NAMES, min_size=2, max_size=4)
#: What is known to have stopped a target: case alone, a swap, a swap with it, a circle.
KNOWN = [
    [["a", "b", "c"], ["A", "b", "c"]],
    [["a", "b", "c"], ["b", "a", "c"]],
    [["a", "b", "c"], ["B", "A", "c"]],
    [["a", "b", "c"], ["b", "c", "A"], ["C", "a", "b"]],
    [["a", "_delta_tailer_0", "c"], ["A", "_Delta_Tailer_1", "_delta_tailer_0"]],
]


@pytest.fixture(params=COLUMN_TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ColumnTarget:
    return column_target(request.param, tmp_path, request)


def value_of(version: int, place: int, types: Sequence[pa.DataType]) -> Any:
    number = 10 * version + place
    return f"{number}" if pa.types.is_string(types[place]) else number


def version_of(names: Sequence[str], version: int, types: Sequence[pa.DataType]) -> ChangeBatch:
    """A row of a version, whose columns are the same in each, whatever their names are."""
    columns = zip(names, types, strict=True)
    schema = pa.schema([("id", pa.int64()), *columns])
    values = {name: value_of(version, place, types) for place, name in enumerate(names)}
    batch = change_batch(schema, [{"id": version, **values}], version=version, last=True)
    mapped = pa.schema(
        f.with_metadata({"delta.columnMapping.physicalName": json.dumps(f"p{place}"),
                         "delta.columnMapping.id": str(place)})
        for place, f in enumerate(schema)
    )  # fmt: skip
    state = table_state(mapped)
    metadata = replace_properties(state.metadata, {"delta.columnMapping.mode": "name"})
    return structs.replace(
        batch, state=type(state).from_actions(type(state.protocol)(2, 5), metadata)
    )


def replace_properties(metadata: Any, properties: dict[str, str]) -> Any:
    return type(metadata)(
        metadata.id, metadata.schema_string, metadata.partition_columns, properties
    )


async def written(
    target: ColumnTarget, folder: Path, history: list[list[str]],
    types: Sequence[pa.DataType], **more: Any,
) -> int:  # fmt: skip
    number = target.new()
    options = {**target.options(number), **more}
    kind = options.pop("type")
    for version, names in enumerate(history, start=1):
        sink = make_sink(kind, options, folder)
        await write(sink, version_of(names, version, types))
    return number


NUMBERS = [pa.int64()] * 3
MIXED = [pa.int64(), pa.string(), pa.int64()]
TYPES = pytest.mark.parametrize(
    "types",
    [pytest.param(NUMBERS, marks=pytest.mark.slow, id="numbers"), pytest.param(MIXED, id="mixed")],
)


def check_mirror(
    target: ColumnTarget, folder: Path, history: list[list[str]], types: Sequence[pa.DataType]
) -> None:
    number = anyio.run(lambda: written(target, folder, history, types, key=["id"]))
    rows = sorted(target.read(number), key=lambda row: row["id"])
    assert rows == [
        {"id": v, **{name: value_of(v, i, types) for i, name in enumerate(history[-1])}}
        for v in range(1, len(history) + 1)
    ]


def check_log(
    target: ColumnTarget, folder: Path, history: list[list[str]], types: Sequence[pa.DataType]
) -> None:
    """No value is lost. Those of the last version, and of all versions where no name has changed
    its type, have the names that they had then."""
    number = anyio.run(lambda: written(target, folder, history, types, mode="log"))
    fold = str.lower if target.folded else str
    rows = target.read(number)
    assert len(rows) == len(history)
    for row in rows:
        version, found = row["id"], {fold(name): value for name, value in row.items()}
        values = [value_of(version, place, types) for place in range(3)]
        assert set(values) <= set(found.values())
        if types is NUMBERS or version == len(history):
            assert [found[fold(name)] for name in history[version - 1]] == values


@TYPES
@pytest.mark.parametrize("history", KNOWN, ids=str)
def test_a_mirror_has_each_value_under_its_columns_last_name(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]], types: list[pa.DataType]
) -> None:
    check_mirror(target, tmp_path, history, types)


@TYPES
@pytest.mark.parametrize("history", KNOWN, ids=str)
def test_a_log_has_each_value(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]], types: list[pa.DataType]
) -> None:
    check_log(target, tmp_path, history, types)


@settings(max_examples=examples(12))
@given(history=HISTORIES, types=st.sampled_from([NUMBERS, MIXED]))
def test_any_names_may_follow_each_other(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]], types: list[pa.DataType]
) -> None:
    check_mirror(target, tmp_path, history, types)
    with suppress(TargetRefused) if types is MIXED else nullcontext():  # a name that is taken
        check_log(target, tmp_path, history, types)


def test_a_column_that_a_log_keeps_is_kept_where_another_one_becomes_wider(
    target: ColumnTarget, tmp_path: Path
) -> None:
    """Where that rewrites the table, the values of dropped columns are among its rows."""
    number = target.new()
    options = {**target.options(number), "mode": "log"}
    sink = make_sink(kind := options.pop("type"), options, tmp_path)
    first = pa.schema([("id", pa.int64()), ("gone", pa.int64()), ("n", pa.int32())])
    then = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    versions = [
        change_batch(first, [{"id": 1, "gone": 7, "n": 1}], last=True),
        change_batch(then.set(1, first.field("n")), [{"id": 2, "n": 2}], version=2, last=True),
        change_batch(then, [{"id": 3, "n": 2**40}], version=3, last=True),
    ]
    anyio.run(lambda: write(sink, *versions))
    found = sorted(((row["id"], row["gone"], row["n"]) for row in target.read(number)), key=str)
    assert found == [(1, 7, 1), (2, None, 2), (3, None, 2**40)], kind


def test_the_event_ids_of_a_log_stay_ids_under_another_name(
    target: ColumnTarget, tmp_path: Path
) -> None:
    """The table gets a column of their name, and the option `own_prefix` gives them another."""
    number = target.new()
    options = {**target.options(number), "mode": "log"}
    kind = options.pop("type")
    first = change_batch(pa.schema([("id", pa.int64())]), [{"id": 1}], last=True)
    wider = pa.schema([("id", pa.int64()), ("_event_id", pa.string())])
    then = change_batch(wider, [{"id": 2, "_event_id": "the table's"}], version=2, last=True)
    anyio.run(lambda: write(make_sink(kind, options, tmp_path), first))
    renamed = make_sink(kind, {**options, "own_prefix": "tailer_"}, tmp_path)
    if kind == "clickhouse":  # whose key they are of, which nothing renames
        with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
            anyio.run(lambda: write(renamed, then))
        return
    anyio.run(lambda: write(renamed, then))
    found = {row["id"]: (row["_event_id"], row["tailer_event_id"]) for row in target.read(number)}
    assert found == {
        1: (None, first.event_ids()[0].as_py()),
        2: ("the table's", then.event_ids()[0].as_py()),
    }


@pytest.mark.parametrize("kind", SQL_SINKS)
def test_a_column_that_somebody_has_added_is_named(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = sql_target(kind, tmp_path, request)
    options = {**target.options, "mode": "log"}
    batch = change_batch(pa.schema([("id", pa.int64())]), [{"id": 1}], last=True)
    wider = pa.schema([("id", pa.int64()), ("note", pa.string())])
    then = change_batch(wider, [{"id": 2, "note": "x"}], version=2, last=True)
    anyio.run(lambda: write(make_sink(kind, options, tmp_path), batch))
    target.query(f"ALTER TABLE {target.prefix}orders ADD COLUMN note INTEGER")
    with pytest.raises(TargetRefused, match="has a column 'note' that is not the Delta table's"):
        anyio.run(lambda: write(make_sink(kind, options, tmp_path), then))
