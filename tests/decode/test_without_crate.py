"""Where the crate in ``native/`` was not built, pyarrow opens and decodes: the same rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta import parquet_columns
from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import UnsupportedTable
from tests.decode.test_rows import decoded, order, parquet, values
from tests.delta.test_native_columns import table
from tests.support.feeds import refusal, state

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _no_crate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_columns, "native", None)


def test_the_rows_are_those_that_were_written() -> None:
    rows, sink = table(7), pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=4000)
    columns = ParquetColumns(pa.BufferReader(sink.getvalue()))
    assert not columns.skips_rows
    batches = columns.read_batches(999, range(3), rows.column_names, threads=True)
    assert pa.Table.from_batches(batches).select(rows.column_names).equals(rows)
    last = columns.read_rows(999, 1, ["word"], threads=False, first=3999)
    assert pa.Table.from_batches(last).equals(rows.slice(7999, 1).select(["word"]))


def test_a_name_with_a_dot_is_not_a_field() -> None:
    """pyarrow finds columns by texts, in which the two look alike."""
    of_struct = pa.array([{"b": 1, "c": 2}], pa.struct([("b", pa.int64()), ("c", pa.int64())]))
    rows, sink = pa.table({"a": of_struct, "a.b": ["x"]}), pa.BufferOutputStream()
    pq.write_table(rows, sink)
    columns = ParquetColumns(pa.BufferReader(sink.getvalue()))
    [both] = columns.read_rows(10, 0, ["a.b", "a"], threads=False)
    assert both.to_pylist() == rows.to_pylist()
    [dotted] = columns.read_rows(10, 0, ["a.b"], threads=False)
    assert dotted.to_pylist() == [{"a.b": "x"}]
    [field] = columns.read_rows(10, 0, [("a", "b")], threads=False)
    assert field.to_pylist() == [{"a": {"b": 1}}]


def test_a_row_group_that_is_small_in_the_file_alone_is_refused() -> None:
    kind = pa.schema([("s", pa.string())])
    data = parquet([{"s": "z" * 200 * MIB}] * 3, kind, compression="zstd", store_schema=False)
    message = refusal(lambda: decoded(data, order(state(kind))), UnsupportedTable)
    assert "when it is unpacked" in message
    assert "a row group of" in message


def test_batches_are_bounded_by_bytes() -> None:
    """Long texts behind short ones, which nothing tells of in advance."""
    kind = pa.schema([("id", pa.int64()), ("s", pa.string())])
    rows = [{"id": i, "s": "y" * (20_000 if i > 600 else 1)} for i in range(2000)]
    found = decoded(parquet(rows, kind), order(state(kind)), batch_bytes_max=MIB)
    assert values(found) == list(range(2000))
    assert all(batch.batch.nbytes <= 1.1 * MIB for batch in found)


def extension(kind: pa.DataType, rows: list[object]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))


@pytest.mark.parametrize(
    ("noted", "stored", "rows"),
    [
        (pa.array([36, None, -1], pa.duration("us")), pa.int64(), [36, None, -1]),
        (
            pa.array([[36], None, [None, -1]], pa.list_(pa.duration("ns"))),
            pa.list_(pa.int64()),
            [[36], None, [None, -1]],
        ),
        (
            extension(pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], [3, 4]]),
            pa.list_(pa.int32()),
            [[1, 2], [3, 4]],
        ),
        (extension(pa.opaque(pa.int32(), "t", "v"), [1, None]), pa.int32(), [1, None]),
    ],
)
def test_what_a_writer_noted_of_its_own_types_is_read_as_it_is_stored(
    noted: pa.Array, stored: pa.DataType, rows: list[object]
) -> None:
    """pandas and polars leave durations, and CONVERT TO DELTA makes LONG columns of them."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": noted}), sink)
    data = sink.getvalue().to_pybytes()
    assert values(decoded(data, order(state(pa.schema([("x", stored)])))), "x") == rows
