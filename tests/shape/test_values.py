"""What expressions give: as DuckDB gives it, in each version of it that is allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.delta.actions import Metadata, Protocol
from tailer.delta.arrow_types import arrow_type
from tailer.delta.snapshot import TableState
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import parse_select
from tailer.shape.selection import Selection
from tailer.shape.shaper import Shaper
from tailer.testing.actions import delta_schema
from tests.shape.expressions import GOLDEN, ROWS, listed, plain

EXPECTED: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def state_of(schema: pa.Schema) -> TableState:
    """The state of a table with this schema."""
    text = delta_schema(schema)
    return TableState.from_actions(Protocol(1, 2), Metadata("t", text))


def batch_of(rows: pa.Table) -> ChangeBatch:
    """A batch of inserts."""
    (data,) = rows.combine_chunks().to_batches()

    more = [
        pa.array([v] * rows.num_rows, f.type)
        for v, f in zip(("insert", 0, 0), METADATA_FIELDS, strict=True)
    ]
    whole = pa.RecordBatch.from_arrays(
        [*data.columns, *more], schema=pa.schema([*data.schema, *METADATA_FIELDS])
    )
    return ChangeBatch(
        whole, pa.array(range(rows.num_rows)), state_of(rows.schema), None, 0, Offset(0), Offset(1)
    )


def shaped(*expressions: str, rows: pa.Table = ROWS) -> ChangeBatch:
    """The rows with these expressions, which are named by their numbers."""
    named = ", ".join(f"{sql} as found{number}" for number, sql in enumerate(expressions))
    shaper = Shaper(Selection(parse_select(named)), TableColumns())
    (batch,) = shaper.shape_batch(batch_of(rows))
    return batch


def computed(sql: str) -> Any:
    """The values and the type of an expression."""
    return told(shaped(sql).rows.column("found0"))


def told(column: pa.Array) -> Any:
    return {"type": str(column.type), "values": plain(column.to_pylist())}


@pytest.fixture(scope="module")
def every() -> ChangeBatch:
    """The rows with every expression: to start DuckDB takes longer than all of them."""
    return shaped(*listed())


@pytest.fixture(scope="module")
def alone() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB without us, with the rows as the table ``given``."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if duckdb.__version__ >= "2":
            connection.execute("SET error_on_division_by_zero = false")
        connection.register("given", ROWS)
        yield connection


def test_there_are_enough() -> None:
    assert len(listed()) >= 150
    assert sorted(EXPECTED) == sorted(listed())


@pytest.mark.parametrize(("number", "sql"), [*enumerate(listed())])
def test_an_expression_gives_what_it_gave_and_what_duckdb_gives_alone(
    number: int, sql: str, every: ChangeBatch, alone: duckdb.DuckDBPyConnection
) -> None:
    column = every.rows.column(f"found{number}")
    assert told(column) == EXPECTED[sql]
    theirs = alone.sql(f"SELECT {sql} AS found FROM given").to_arrow_table()
    assert plain(column.to_pylist()) == plain(theirs.column("found").to_pylist())
    field = [*every.state.schema][number]
    assert column.type == arrow_type(field.type)


def test_the_machine_s_time_zone_changes_nothing() -> None:
    code = "from tests.shape.test_values import computed; print(computed('ts::varchar'))"
    environment = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(computed("ts::varchar"))
