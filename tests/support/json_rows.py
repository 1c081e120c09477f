"""Rows that a copy has as JSON, as Python's values of the types of the public suites."""

from __future__ import annotations

import datetime as dt
from base64 import b64decode
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tailer.testing.conformance.sink import TYPES


def typed_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose floating-point numbers were read as decimals."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    types = {field.name: field.type for field in TYPES}
    return [
        {c: _typed(row.get(c), types[c]) if c in types else row.get(c) for c in columns}
        for row in rows
    ]


def _typed(value: Any, data_type: pa.DataType) -> Any:
    """A JSON value as Python's of a type of Arrow's."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(data_type):
        return {f.name: _typed(value.get(f.name), f.type) for f in data_type.fields}
    if types.is_list(data_type):
        return [_typed(each, data_type.value_type) for each in value]
    if types.is_map(data_type):
        return list(value.items())
    if types.is_decimal(data_type):
        return Decimal(value)
    if types.is_binary(data_type):
        return b64decode(value)
    if types.is_date(data_type):
        return dt.date.fromisoformat(value)
    if types.is_timestamp(data_type):
        return dt.datetime.fromisoformat(value)
    if types.is_floating(data_type):
        return pa.scalar(float(value), data_type).as_py()
    return value
