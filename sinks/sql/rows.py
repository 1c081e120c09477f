"""Arrow columns as the values of Python's database drivers, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import timestamp_text
from sinks.sql.database import ValueRefused
from sinks.sql.text import canonical_json, is_json, json_text
from tailer.errors import TargetRefused

_ROWS_MAX = 65536


def bind_rows(rows: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows as lists of tuples. What drivers have no exact type for is text: decimals, dates
    and timestamps in ISO 8601, JSON."""
    for batch in rows.to_batches(_ROWS_MAX):
        columns = [_to_text(column).to_pylist() for column in batch.columns]
        yield list(zip(*columns, strict=True))


def _to_text(column: pa.Array) -> pa.Array:
    if is_json(column.type):
        return json_text(column)
    if pa.types.is_timestamp(column.type):
        return timestamp_text(column)
    if pa.types.is_decimal(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.string())
    return column


def read_batches(
    place: str, fetch: Callable[[int], Sequence[tuple[Any, ...]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a cursor as :func:`make_json_comparable` has them. Raises
    :class:`SinkRejected` for a value that is not of the schema's type."""
    while rows := fetch(_ROWS_MAX):
        try:
            columns = [
                make_json_comparable(_parse_values(list(values), field.type), field.type)
                for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
        except (pa.ArrowException, ValueError, TypeError) as e:
            raise TargetRefused(
                f"{place}: a row is not of the Delta table's types ({e}); somebody else has "
                "changed the table"
            ) from e
        yield pa.RecordBatch.from_arrays(columns, names=schema.names)


def _parse_values(values: list[Any], data_type: pa.DataType) -> pa.Array:
    types = pa.types
    if is_json(data_type):
        return pa.array(values, pa.string())
    if types.is_boolean(data_type):
        return pa.array(values, pa.int64()).cast(data_type)
    if types.is_decimal(data_type) or types.is_temporal(data_type):
        texts = [None if value is None else str(value) for value in values]
        return pa.array(texts, pa.string()).cast(data_type)
    return pa.array(values, data_type)


def make_json_comparable(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a column with its JSON in one form; see :class:`sinks.sql.database.Database`."""
    if not is_json(data_type):
        return column
    text = column if pa.types.is_string(column.type) else json_text(column)
    return canonical_json(text, data_type)


def check_finite(column: pa.Array, database: str, *, infinity: bool) -> None:
    """Raise :class:`ValueRefused` for NaN, and without ``infinity`` for the infinities."""
    if not pa.types.is_floating(column.type):
        return
    beyond = pc.is_nan(column) if infinity else pc.invert(pc.is_finite(column))
    row = pc.index(beyond, value=True).as_py()
    if row >= 0:
        raise ValueRefused(f"{column[row].as_py()}, which {database} can't hold", row)
