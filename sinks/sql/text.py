"""Arrow columns as the texts that SQL databases take, column by column."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_values, mask_nulls, variant_text, view_text
from tailer.changes import is_arrow_variant

#: The type of a variant's JSON.
JSON = pa.json_()
#: Numbers of any length, as they are.
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_DAY_US = 86_400_000_000
#: 0001-01-01 and 10000-01-01, in days since 1970.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897


class ValueRefused(Exception):
    """A column that the database can't hold, and why; ``row`` is the first such row, if it is a
    value."""

    def __init__(self, what: str, row: int | None = None) -> None:
        super().__init__(what)
        self.row = row


@dataclass(frozen=True, slots=True)
class Room:
    """How many characters, or bytes, a value of a column may have."""

    most: int
    unit: Literal["characters", "bytes"]

    def check(self, column: pa.Array, database: str) -> None:
        """Raise :class:`ValueRefused` for a text, or bytes, that are longer."""
        text = pa.types.is_string(column.type)
        if not text and not pa.types.is_binary(column.type):
            return
        characters = text and self.unit == "characters"
        sizes = pc.utf8_length(column) if characters else pc.binary_length(column)
        row = pc.index(pc.greater(sizes, self.most), value=True).as_py()
        if row >= 0:
            raise ValueRefused(
                f"a value of {sizes[row]} {self.unit}, and {database} holds {self.most} there", row
            )


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
    return mask_nulls(json_values(column), column)


def canonical_json(texts: pa.StringArray, data_type: pa.DataType) -> pa.StringArray:
    """Return JSON texts of a type in a form that equal values share: members sorted, those of a
    struct without null, numbers by value, where -0.0 is 0."""
    found = [None if t is None else _canonicalize_json(t, data_type) for t in texts.to_pylist()]
    return pa.array(found, pa.string())


def _canonicalize_json(text: str, data_type: pa.DataType) -> str:
    value = json.loads(text, parse_float=_canonicalize_number, parse_int=_canonicalize_number)
    return json.dumps(_without_nulls(value, data_type), sort_keys=True)


def _canonicalize_number(text: str) -> str:
    number = _EXACT.create_decimal(text)
    return f"#{number.normalize(_EXACT)}" if number else "#0"


def _without_nulls(value: Any, data_type: pa.DataType) -> Any:
    """Return a value without the null fields of its structs: a field that was added is null in
    older rows. An entry of a map, or a member of a variant's object, is there although it is
    null."""
    types = pa.types
    if isinstance(value, dict) and types.is_struct(data_type):
        kinds = {field.name: field.type for field in data_type}
        return {
            name: _without_nulls(member, kinds.get(name, pa.null()))
            for name, member in value.items()
            if member is not None
        }
    if isinstance(value, dict) and types.is_map(data_type):
        return {k: _without_nulls(item, data_type.item_type) for k, item in value.items()}
    if isinstance(value, list) and types.is_list(data_type):
        return [_without_nulls(item, data_type.value_type) for item in value]
    return value


def check_nul(column: pa.Array, database: str) -> None:
    """Raise :class:`ValueRefused` for the character NUL in texts, also in those within others, and
    in the names of fields."""
    texts = list(_list_texts(column))
    if not any(pc.any(pc.match_substring(text, "\x00")).as_py() for text in texts):
        return
    found = pc.match_substring(column, "\x00") if pa.types.is_string(column.type) else None
    if found is None:  # JSON escapes it, and a backslash too
        found = pc.match_substring_regex(json_text(column), r"(^|[^\\])(\\\\)*\\u0000")
    row = pc.index(found, value=True).as_py()
    if row >= 0:
        raise ValueRefused(f"text with the character NUL, which {database} can't hold", row)
    if not len(column):
        raise ValueRefused(f"a field with the character NUL, which {database} can't hold")


def _list_texts(column: pa.Array) -> Iterator[pa.StringArray]:
    """Yield all texts of a column, at all levels; a variant's are its JSON, with NUL unescaped."""
    types, kind = pa.types, column.type
    if types.is_string(kind):
        yield column
    elif kind == JSON:
        yield pc.replace_substring(column.storage, "\\u0000", "\x00")
    elif types.is_struct(kind):
        yield pa.array([field.name for field in kind], pa.string())
        for child in column.flatten():
            yield from _list_texts(child)
    elif types.is_map(kind):
        yield from _list_texts(column.keys)
        yield from _list_texts(column.items)
    elif types.is_list(kind):
        yield from _list_texts(column.flatten())


def hex_text(column: pa.BinaryArray, prefix: str = "") -> pa.StringArray:
    """Return bytes in hexadecimal; all at once, for a call for each value would be slow."""
    large = pa.large_string()
    if not len(column):
        return pa.array([], large)
    digits = pa.py_buffer(binascii.hexlify(view_text(column)))
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
