"""Arrow arrays as JSON text, column by column.

Every function maps an array to a string array of the same length, one JSON value each. Rows are
put together at the end, by one join over all columns.

How each type is written: integers and decimals as numbers with all their digits; NaN and the
infinities as the strings "NaN", "Infinity", "-Infinity"; what is not UTF-8 in a string as U+FFFD;
binary as base64; dates and timestamps in ISO 8601 with microseconds, and Z where they are instants;
structs as objects; maps as objects with their keys as strings, or, where keys are nested, as arrays
of {"key", "value"} objects; a variant as the JSON value that it is, its parts in these same forms.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import is_arrow_variant, variant_json

__all__ = ["json_lines", "json_members", "json_objects", "json_values", "text_of"]

_NULL = pa.scalar("null")
_DAY_US = 86_400_000_000
#: 0001-01-01 and 10000-01-01, in days since 1970.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_MUST_ESCAPE = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"
# The two that every JSON string escapes come first: the others bring backslashes of their own.
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')]
_CONTROL_ESCAPES = [(chr(c), json.dumps(chr(c))[1:-1]) for c in range(0x20)]


def json_lines(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Buffer:
    """Rows as JSON lines, each ended by a newline, in one contiguous buffer of UTF-8."""
    return text_of(json_objects(names, columns, end="}\n"))


def json_objects(
    names: Sequence[str], columns: Sequence[pa.Array], end: str = "}"
) -> pa.StringArray:
    """Rows as JSON objects, one string each, none of them null. There is at least one column."""
    return _join(*_members(names, [json_values(column) for column in columns]), pa.scalar(end))


def json_members(names: Sequence[str], texts: Sequence[pa.Array | pa.Scalar]) -> pa.StringArray:
    """JSON objects of members that are JSON text already: arrays, or one scalar for all rows."""
    return _join(*_members(names, texts), pa.scalar("}"))


def _members(
    names: Sequence[str], texts: Sequence[pa.Array | pa.Scalar]
) -> list[pa.Array | pa.Scalar]:
    parts: list[pa.Array | pa.Scalar] = []
    for i, (name, text) in enumerate(zip(names, texts, strict=True)):
        parts += [pa.scalar(("{" if i == 0 else ",") + json.dumps(name) + ":"), text]
    return parts


def text_of(texts: pa.StringArray | pa.BinaryArray) -> pa.Buffer:
    """The values of an array without nulls, one behind the other, as they lie in memory."""
    if not len(texts):
        return pa.py_buffer(b"")
    offsets = texts.buffers()[1]
    ends = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset)
    first, last = ends[0].as_py(), ends[len(texts)].as_py()
    return texts.buffers()[2].slice(first, last - first)


def _join(*parts: pa.Array | pa.Scalar) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, pa.scalar(""))


def json_values(array: pa.Array) -> pa.StringArray:
    """Each value as JSON text; null as ``null``."""
    text = _encoder(array.type)(array)
    return pc.fill_null(text, _NULL) if text.null_count else text


def _encoder(data_type: pa.DataType) -> Callable[[pa.Array], pa.StringArray]:
    types = pa.types
    for holds, encode in (
        (types.is_string, _string),
        (types.is_floating, _floating),
        (types.is_binary, _binary),
        (types.is_date, _date),
        (types.is_timestamp, _timestamp),
        (is_arrow_variant, _variant),
        (types.is_struct, _struct),
        (types.is_list, _list),
        (types.is_map, _map),
        (types.is_null, lambda array: pa.nulls(len(array), pa.string())),
        (types.is_large_string, lambda array: _string(array.cast(pa.string()))),
        (types.is_large_binary, lambda array: _binary(array.cast(pa.binary()))),
    ):
        if holds(data_type):
            return encode
    return lambda array: array.cast(pa.string())  # integers, decimals and booleans


def _quoted(array: pa.Array) -> pa.StringArray:
    quote = pa.scalar('"')
    return _join(quote, array.cast(pa.string()), quote)


def _matches(array: pa.StringArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(array, pattern)).as_py())


def _unicode(array: pa.StringArray) -> pa.StringArray:
    """The same, with what is not UTF-8 replaced as Java does it: JSON has no way to carry it."""
    try:
        array.validate(full=True)  # Parquet's reader does not, and Spark may have written anything
    except pa.ArrowInvalid:
        values = array.cast(pa.binary()).to_pylist()
        decoded = [None if value is None else value.decode(errors="replace") for value in values]
        return pa.array(decoded, pa.string())
    return array


def _string(array: pa.StringArray) -> pa.StringArray:
    array = _unicode(array)
    if _matches(array, _MUST_ESCAPE):
        for plain, escaped in _ESCAPES:
            array = pc.replace_substring(array, plain, escaped)
        if _matches(array, _CONTROL):
            for plain, escaped in _CONTROL_ESCAPES:
                array = pc.replace_substring(array, plain, escaped)
    return _quoted(array)


def _floating(array: pa.Array) -> pa.StringArray:
    text = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return text
    infinite = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(finite, text, pc.if_else(pc.is_nan(array), '"NaN"', infinite))


def _binary(array: pa.BinaryArray) -> pa.StringArray:
    # Arrow has no base64; this is the one type that is written value by value.
    encoded = [
        None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()
    ]
    return _quoted(pa.array(encoded, pa.string()))


def _date(array: pa.Array) -> pa.StringArray:
    return _calendar(array, 1, _iso_date)


def _timestamp(array: pa.TimestampArray) -> pa.StringArray:
    zone = "" if array.type.tz is None else "Z"
    micros = array.cast(pa.timestamp("us", array.type.tz))
    return _calendar(micros, _DAY_US, lambda us: _iso_timestamp(us) + zone)


def _calendar(array: pa.Array, per_day: int, far: Callable[[int], str]) -> pa.StringArray:
    """Dates and times as text. Arrow writes the years 1 to 9999; the few beyond, which Spark can
    hold, are written by ``far``, value by value."""
    numbers = array.cast(pa.int32() if per_day == 1 else pa.int64()).cast(pa.int64())
    near = pc.and_(
        pc.greater_equal(numbers, _FIRST_DAY * per_day), pc.less(numbers, _END_DAY * per_day)
    )
    if pc.all(near).as_py() is not False:
        text = array.cast(pa.string())
        return _quoted(pc.replace_substring(text, " ", "T", max_replacements=1))
    known = _calendar(pc.if_else(near, array, pa.scalar(None, array.type)), per_day, far)
    beyond = pc.if_else(near, pa.scalar(None, pa.int64()), numbers).to_pylist()
    texts = pa.array([None if n is None else f'"{far(n)}"' for n in beyond], pa.string())
    return pc.coalesce(known, texts)


def _iso_date(days: int) -> str:
    """ISO 8601 of any day since 1970, in the proleptic Gregorian calendar; years beyond four
    digits have a sign."""
    cycles, day = divmod(days + 719_468, 146_097)  # 400 years each, from 0000-03-01
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month, year = (month + 2) % 12 + 1, year + 400 * cycles + (month >= 10)
    text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{text}-{month:02d}-{day:02d}"


def _iso_timestamp(micros: int) -> str:
    days, rest = divmod(micros, _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{_iso_date(days)}T{hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}"


def _struct(array: pa.StructArray) -> pa.StringArray:
    parts: list[pa.Array | pa.Scalar] = []
    for i in range(array.type.num_fields):
        name = json.dumps(array.type.field(i).name)
        parts.append(pa.scalar(("{" if i == 0 else ",") + name + ":"))
        parts.append(json_values(array.field(i)))
    if not parts:
        parts = [pa.repeat(pa.scalar("{"), len(array))]
    return _mask(_join(*parts, pa.scalar("}")), array)


def _variant(array: pa.StructArray) -> pa.StringArray:
    parts = (array.field(name).to_pylist() for name in ("value", "metadata"))
    return pa.array(
        [
            variant_json(value, metadata or b"") if there and value is not None else None
            for there, value, metadata in zip(array.is_valid().to_pylist(), *parts, strict=True)
        ],
        pa.string(),
    )


def _mask(text: pa.StringArray, array: pa.Array) -> pa.StringArray:
    """``text``, null where the array is."""
    if not array.null_count:
        return text
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _whole(array: pa.Array) -> pa.Array:
    return array.take(pa.arange(0, len(array))) if array.offset else array


def _list(array: pa.ListArray) -> pa.StringArray:
    array = _whole(array)
    return _bracketed("[", array.offsets, json_values(array.values), "]", array)


def _bracketed(
    left: str, offsets: pa.Int32Array, items: pa.StringArray, right: str, array: pa.Array
) -> pa.StringArray:
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _mask(_join(pa.scalar(left), joined, pa.scalar(right)), array)


def _map(array: pa.MapArray) -> pa.StringArray:
    array = _whole(array)
    values = json_values(array.items)
    if pa.types.is_nested(array.type.key_type):
        keys = json_values(array.keys)
        items = _join(pa.scalar('{"key":'), keys, pa.scalar(',"value":'), values, pa.scalar("}"))
        return _bracketed("[", array.offsets, items, "]", array)
    keys = json_values(array.keys)
    text = pa.types.is_string(array.type.key_type)
    unquoted = not (text or pc.all(pc.starts_with(keys, '"')).as_py())
    if unquoted:
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, _quoted(keys))
    items = _join(keys, pa.scalar(":"), values)
    return _bracketed("{", array.offsets, items, "}", array)
