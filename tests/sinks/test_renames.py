"""Columns that get other names, in every order and in other case, in every target with columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailer.changes import ChangeBatch
from tailer.sink import make_sink
from tailer.testing.batches import change_batch, table_state
from tests.support.column_targets import COLUMN_TARGETS, ColumnTarget, column_target

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


def version_of(names: Sequence[str], version: int) -> ChangeBatch:
    """A row of a version, whose columns are the same in each, whatever their names are."""
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)])
    values = {name: 10 * version + place for place, name in enumerate(names)}
    batch = change_batch(schema, [{"id": version, **values}], version=version, last=True)
    mapped = pa.schema(
        f.with_metadata({"delta.columnMapping.physicalName": json.dumps(f"p{place}"),
                         "delta.columnMapping.id": str(place)})
        for place, f in enumerate(schema)
    )  # fmt: skip
    state = table_state(mapped)
    metadata = replace_properties(state.metadata, {"delta.columnMapping.mode": "name"})
    return replace(batch, state=type(state).of(type(state.protocol)(2, 5), metadata))


def replace_properties(metadata: Any, properties: dict[str, str]) -> Any:
    return type(metadata)(
        metadata.id, metadata.schema_string, metadata.partition_columns, properties
    )


async def written(target: ColumnTarget, folder: Path, history: list[list[str]], **more: Any) -> int:
    number = target.new()
    options = {**target.options(number), **more}
    kind = options.pop("type")
    for version, names in enumerate(history, start=1):
        sink = make_sink(kind, options, folder)
        await sink.open("orders")
        await sink.write(version_of(names, version))
        await sink.aclose()
    return number


def check_mirror(target: ColumnTarget, folder: Path, history: list[list[str]]) -> None:
    number = anyio.run(lambda: written(target, folder, history, key=["id"]))
    rows = sorted(target.read(number), key=lambda row: row["id"])
    last = history[-1]
    assert rows == [
        {"id": version, **{name: 10 * version + place for place, name in enumerate(last)}}
        for version in range(1, len(history) + 1)
    ]


def check_log(target: ColumnTarget, folder: Path, history: list[list[str]]) -> None:
    number = anyio.run(lambda: written(target, folder, history, mode="log"))
    fold = str.lower if target.folded else str
    for row in target.read(number):
        found = {fold(name): value for name, value in row.items()}
        names = [fold(name) for name in history[row["id"] - 1]]
        assert [found[name] for name in names] == [10 * row["id"] + i for i in range(3)]


@pytest.mark.parametrize("history", KNOWN, ids=str)
def test_a_mirror_has_each_value_under_its_columns_last_name(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]]
) -> None:
    check_mirror(target, tmp_path, history)


@pytest.mark.parametrize("history", KNOWN, ids=str)
def test_a_log_has_each_value_under_the_name_of_its_version(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]]
) -> None:
    check_log(target, tmp_path, history)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_any_names_may_follow_each_other(
    target: ColumnTarget, tmp_path: Path, history: list[list[str]]
) -> None:
    check_mirror(target, tmp_path, history)
    check_log(target, tmp_path, history)
