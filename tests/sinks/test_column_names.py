"""Columns and tables of any name: each has its value in the target, or is refused by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailer.errors import SinkRejected, TargetRefused, UnsupportedTable
from tailer.feed.fitting import Fitting
from tailer.sink import make_sink
from tailer.testing.batches import change_batch
from tests.support.column_targets import COLUMN_TARGETS, ColumnTarget, column_target
from tests.support.extent import examples
from tests.support.sinks import write

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.lists(
    TEXTS | st.sampled_from(["ctid", "rowid", "oid", "", "a ", "a\n", "a\0", "'", '"', "`", "\\"])
    | st.sampled_from(["x" * 64, "x" * 65, "x" * 63 + "1", "é" * 32, "😀", "?", "%s", "{feed}"])
    | st.sampled_from(["a", "A", "É", "é", "İ", "K", "ß", "ẞ", "_seq", "_SEQ", "_CHANGE_TYPE"]),
    min_size=1, max_size=3, unique=True,
).filter(lambda names: "id" not in names)  # fmt: skip


@pytest.fixture(params=COLUMN_TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ColumnTarget:
    return column_target(request.param, tmp_path, request)


async def written(target: ColumnTarget, folder: Path, names: list[str], **more: Any) -> None:
    number = target.new()
    options = {**target.options(number), **more}
    sink = make_sink(options.pop("type"), options, folder)
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)])
    rows = [{"id": 1, **{name: place for place, name in enumerate(names, start=2)}}]
    rows.append({**rows[0], "id": 2})
    batch = change_batch(schema, rows, last=True)
    following = [{**row, "_change_type": "delete"} for row in rows[:1]]
    Fitting("the table", [sink]).check_batch(batch)
    for one in (batch, change_batch(schema, following, version=2, last=True)):
        await sink.open("orders")
        await sink.write(one)
        await sink.aclose()


def refusal_of(write: Callable[[], Awaitable[Any]]) -> str | None:
    """The sentence by which a name is refused; None if all went well."""
    try:
        anyio.run(write)
    except (TargetRefused, UnsupportedTable) as refused:
        return str(refused)
    return None


@settings(max_examples=examples(40))
@example(names=["x" * 63 + "1", "x" * 63 + "2"], log=False)
@example(names=["ctid"], log=False)
@example(names=["a", "A"], log=False)
@example(names=["a\0b"], log=False)
@example(names=[""], log=True)
@example(names=["x" * 65], log=True)
@example(names=["_CHANGE_TYPE"], log=True)
@given(names=NAMES, log=st.booleans())
def test_a_column_has_its_value_or_is_refused_by_name(
    target: ColumnTarget, tmp_path: Path, names: list[str], *, log: bool
) -> None:
    more: dict[str, Any] = {"mode": "log"} if log else {"key": ["id"]}
    said = refusal_of(lambda: written(target, tmp_path, names, **more))
    if said is not None:
        assert "exclude " in said
        assert any(repr(name) in said or ascii(name)[1:-1] in said for name in names)
        return
    number = target.made
    (row, *_) = (row for row in target.read(number) if row["id"] == 2)
    most = target.kept_bytes
    kept = [name.encode()[:most].decode(errors="ignore") for name in names]
    assert [row[name] for name in kept] == list(range(2, 2 + len(names)))


def test_more_columns_than_a_table_has_are_refused(target: ColumnTarget, tmp_path: Path) -> None:
    number = target.new()
    options = target.options(number)
    sink = make_sink(kind := options.pop("type"), {**options, "key": ["id"]}, tmp_path)
    names = [f"c{number}" for number in range(2001)]
    batch = change_batch(pa.schema([("id", pa.int64()), *((n, pa.int8()) for n in names)]), [])
    if kind in ("clickhouse", "duckdb", "delta", "iceberg"):
        Fitting("the table", [sink]).check_batch(batch)
        return
    with pytest.raises(TargetRefused, match=r"there are 2002 columns, and a table in .* at most"):
        Fitting("the table", [sink]).check_batch(batch)


@pytest.mark.parametrize(
    ("kind", "count", "data_type"),
    [("mysql", 1010, pa.decimal128(38, 0)), ("postgres", 1500, pa.int64())],
)
def test_a_row_that_is_too_wide_is_refused(
    kind: str, count: int, data_type: pa.DataType, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = column_target(kind, tmp_path, request)
    options = {**target.options(target.new()), "mode": "log"}
    sink = make_sink(options.pop("type"), options, tmp_path)
    names = [f"c{number}" for number in range(count)]
    schema = pa.schema([(name, data_type) for name in names])
    values = dict.fromkeys(names, 10**18)
    with pytest.raises(
        SinkRejected, match="too wide for a row: exclude some with the feed's option"
    ):
        anyio.run(lambda: write(sink, change_batch(schema, [values], last=True)))


@pytest.mark.parametrize("name", ["", "a\0b", "a ", "x" * 65, "é" * 32, "😀"])
def test_a_table_has_its_name_or_is_refused_by_it(
    target: ColumnTarget, tmp_path: Path, name: str
) -> None:
    options = target.options(target.new())
    if "table" not in options:
        return
    if options["type"] == "iceberg":  # whose tables are in a namespace
        name = f"lake.{name.replace(chr(0), '') or ' '}"
    options |= {"table": name, "key": ["id"]}
    sink = make_sink(options.pop("type"), options, tmp_path)
    batch = change_batch(pa.schema([("id", pa.int64())]), [{"id": 1}], last=True)

    async def write_twice() -> None:
        for _ in range(2):
            await sink.open(name)
            await sink.aclose()
        await sink.open(name)
        await sink.write(batch)
        await sink.aclose()
        await sink.open(name)
        await sink.aclose()

    said = refusal_of(write_twice)
    assert said is None or (repr(name) in said and "another in the option 'table'" in said)
