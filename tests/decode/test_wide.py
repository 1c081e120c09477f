"""Many columns: what each costs does not depend on how many there are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pyarrow as pa
import pytest

from sinks.formats.json import json_lines
from tailer.decode.project import FileFields, find_field
from tailer.delta.schema import PrimitiveType, StructField
from tests.decode.test_rows import decoded, order, parquet
from tests.support.feeds import state


def calls(work: Callable[[], object]) -> int:
    """How many calls it makes, of Python's and of C's functions."""
    count = 0

    def counted(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # what is called at a collection counts, too
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def read_and_write(columns: int, partitions: int) -> None:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(columns)])
    names = schema.names[:partitions]
    data = parquet([dict.fromkeys(schema.names[partitions:], 1)], schema)
    file = order(state(schema, *names), partition_values=dict.fromkeys(names, "1"))
    (rows,) = decoded(data, file, own_columns=True)
    assert len(json_lines(rows.batch.schema.names, rows.batch.columns)) > columns


@pytest.mark.parametrize("partitions", [0, 3])
def test_each_column_costs_the_same_however_many_there_are(partitions: int) -> None:
    read_and_write(10, partitions)  # what is imported and cached once
    few, many = (calls(lambda n=n: read_and_write(n, partitions)) for n in (200, 800))  # type: ignore[misc]  # a lambda has no types
    assert many < few * 4.4


def test_a_column_is_looked_up_and_not_searched_for() -> None:
    fields = FileFields(pa.field(f"C{i}", pa.int64()) for i in range(2000))
    wanted = [StructField(f"c{i}", PrimitiveType("long")) for i in (0, 1999)]
    first, last = (calls(lambda f=f: find_field(fields, f, "none")) for f in wanted)  # type: ignore[misc]  # a lambda has no types
    assert first == last
