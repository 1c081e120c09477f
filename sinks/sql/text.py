"""Arrow columns as the texts that SQL databases take, column by column."""

from __future__ import annotations

import binascii
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_values, text_of, variant_text
from sinks.sql.database import ValueRefused
from tailer.changes import is_arrow_variant

__all__ = ["JSON", "canonical_json", "check_times", "hex_text", "is_json", "json_text", "with_json"]

#: The type of a variant's JSON.
JSON = pa.json_()
_DAY_US = 86_400_000_000
#: 0001-01-01 and 10000-01-01, in days since 1970.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897


def is_json(data_type: pa.DataType) -> bool:
    """Return whether values of a type are kept as JSON: variants and nested types."""
    return bool(data_type == JSON or pa.types.is_nested(data_type))


def with_json(column: pa.Array) -> pa.Array:
    """Return a variant as its JSON, and all else as it is."""
    if is_arrow_variant(column.type):
        return pa.ExtensionArray.from_storage(JSON, variant_text(column))
    return column


def json_text(column: pa.Array) -> pa.StringArray:
    """Return values of a type that :func:`is_json` as JSON text; null stays null."""
    if column.type == JSON:
        return column.storage
    text = json_values(column)
    if not column.null_count:
        return text
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def canonical_json(texts: pa.StringArray) -> pa.StringArray:
    """Return JSON texts in a form that equal values share: members sorted and without null, numbers
    by value."""
    return pa.array([None if t is None else _canonical(t) for t in texts.to_pylist()], pa.string())


def _canonical(text: str) -> str:
    value = json.loads(text, parse_float=_number, parse_int=_number, object_hook=_without_nulls)
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> str:
    return f"#{Decimal(text).normalize():f}"


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def hex_text(column: pa.BinaryArray, prefix: str = "") -> pa.StringArray:
    """Return bytes in hexadecimal; all at once, for a call for each value would be slow."""
    large = pa.large_string()
    if not len(column):
        return pa.array([], large)
    digits = pa.py_buffer(binascii.hexlify(text_of(column)))
    ends = pa.Array.from_buffers(
        pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset
    )
    ends = pc.multiply(pc.subtract(ends.cast(pa.int64()), ends[0].cast(pa.int64())), 2)
    text = pa.LargeStringArray.from_buffers(len(column), ends.buffers()[1], digits)
    text = pc.binary_join_element_wise(pa.scalar(prefix, large), text, pa.scalar("", large))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, large))


def check_times(column: pa.Array) -> None:
    """Raise :class:`ValueRefused` for a date or a timestamp beyond the years 1 to 9999."""
    if pa.types.is_timestamp(column.type):
        per_day, numbers = _DAY_US, column.cast(pa.timestamp("us", column.type.tz))
    elif pa.types.is_date(column.type):
        per_day, numbers = 1, column.cast(pa.int32())
    else:
        return
    numbers = numbers.cast(pa.int64())
    low, high = _FIRST_DAY * per_day, _END_DAY * per_day
    ends = pc.min_max(numbers)
    if ends["min"].is_valid and (ends["min"].as_py() < low or ends["max"].as_py() >= high):
        beyond = pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, high))
        row = pc.index(beyond, value=True).as_py()
        raise ValueRefused("a time beyond the years 1 to 9999", row)
