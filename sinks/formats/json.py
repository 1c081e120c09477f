"""Arrow arrays as JSON text, column by column.

Every function maps an array to a string array of the same length, one JSON value each. Rows are
assembled at the end, by one join over all columns.

How each type is written: integers and decimals as numbers with all their digits; NaN and the
infinities as the strings "NaN", "Infinity", "-Infinity"; invalid UTF-8 in a string as U+FFFD;
binary as base64; dates and timestamps in ISO 8601 with microseconds, and Z if they are instants;
structs as objects; maps as objects with their keys as strings, or, if keys are nested, as arrays
of {"key", "value"} objects; a variant as its JSON value, with its parts in these same forms.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import is_arrow_variant, variant_json
from tailer.native.rowbytes import (
    Column,
    JoinedText,
    Number,
    Text,
    has_escapes,
    join_parts,
    make_number,
)
from tailer.native.values import make_texts

_NULL = make_texts(["null"])[0]
_DAY_US = 86_400_000_000
#: 0001-01-01 and 10000-01-01, in days since 1970.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_CONTROL = r"[\x00-\x1f]"
# The two that every JSON string escapes come first, because the others add backslashes.
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')]
_CONTROL_ESCAPES = [(chr(c), json.dumps(chr(c))[1:-1]) for c in range(0x20)]


def json_lines(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Buffer:
    """Return rows as JSON lines, each ended by a newline, in one contiguous buffer of UTF-8."""
    return view_text(json_objects(names, columns, end="}\n"))


@dataclass(frozen=True, slots=True)
class JsonText:
    """Text that is JSON already: an array of strings, none of them null, or one for all rows."""

    text: pa.StringArray | str


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object of these members in every row: it is written without a separate copy."""

    members: Mapping[str, JsonMember]


#: The values of a member: an array of them, or JSON text.
JsonMember: TypeAlias = "pa.Array | JsonText | JsonObject"


def json_objects(
    names: Sequence[str], columns: Sequence[JsonMember], end: str = "}"
) -> pa.StringArray:
    """Return rows as JSON objects, one string each, none of them null. At least one member, at any
    depth, is an array."""
    return json_objects_joined(names, columns, end).array()


def json_objects_joined(
    names: Sequence[str], columns: Sequence[JsonMember], end: str = "}"
) -> JoinedText:
    """Return the objects of :func:`json_objects`, not put together yet."""
    parts: list[Column] = []
    constant = _add_object_parts(dict(zip(names, columns, strict=True)), "", parts)
    rows = next(len(_to_array(part)) for part in parts if not isinstance(part, str))
    return JoinedText([*parts, constant + end], rows)


def _to_array(part: pa.StringArray | Text | Number) -> pa.Array:
    return part if isinstance(part, pa.Array) else part.array


def _add_object_parts(members: Mapping[str, JsonMember], constant: str, parts: list[Column]) -> str:
    """Add an object without its closing brace to ``parts``, after a text that is the same for all
    rows; return the part of that text which is still to be added."""
    for i, (name, column) in enumerate(members.items()):
        constant += ("," if i else "{") + json.dumps(name) + ":"
        if isinstance(column, JsonObject):
            constant = _add_object_parts(column.members, constant, parts) + "}"
            continue
        if isinstance(column, JsonText):
            if isinstance(column.text, str):
                constant += column.text
                continue
            before, text, after = "", column.text, ""
        else:
            before, text, after = _split_quotes(column)
        parts += [constant + before, text]
        constant = after
    return constant


def view_text(texts: pa.StringArray | pa.BinaryArray) -> pa.Buffer:
    """Return the values of an array, one after the other, as they lie in memory (with any values
    beneath its nulls)."""
    if not len(texts) or texts.buffers()[2] is None:
        return pa.py_buffer(b"")
    offsets = texts.buffers()[1]
    ends = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset)
    first, last = ends[0].as_py(), ends[len(texts)].as_py()
    return texts.buffers()[2].slice(first, last - first)


class _Quoted(NamedTuple):
    """Values as JSON: each between two constant texts, which are not copied into each value."""

    before: str
    values: Column
    after: str


def _split_quotes(array: pa.Array) -> _Quoted:
    """Return each value as JSON, apart from what all values begin and end with."""
    if pa.types.is_string(array.type):
        text = _escape_strings(array)
        if text.null_count:
            return _Quoted("", Text(text, quoted=True), "")
        return _Quoted('"', text, '"')
    plain = make_number(array)
    if plain is not None and not _has_far_years(array):
        return _Quoted("", plain, "")
    if pa.types.is_timestamp(array.type) and not array.null_count:
        zone = _find_zone(array)
        text = _format_near_years(_drop_zone(array), _DAY_US)
        if text is not None:
            return _Quoted('"', text, zone + '"')
    return _Quoted("", Text(_find_encoder(array.type)(array)), "")


def _join_parts(*parts: pa.StringArray | str) -> pa.StringArray:
    """Join the parts of each row to one string; null where one of them is null."""
    if all(isinstance(part, str) or not part.null_count for part in parts):
        return join_parts([*parts], next(len(part) for part in parts if not isinstance(part, str)))
    given = (pa.scalar(part) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*given, pa.scalar(""))


def json_values(array: pa.Array) -> pa.StringArray:
    """Return each value as JSON text; null as ``null``."""
    text = _find_encoder(array.type)(array)
    return pc.fill_null(text, _NULL) if text.null_count else text


def _find_encoder(data_type: pa.DataType) -> Callable[[pa.Array], pa.StringArray]:
    types = pa.types
    for holds, encode in (
        (types.is_string, _format_strings),
        (types.is_floating, _format_floats),
        (types.is_binary, _format_binary),
        (types.is_date, _format_dates),
        (types.is_timestamp, _format_timestamps),
        (is_arrow_variant, variant_text),
        (types.is_struct, _format_structs),
        (types.is_list, _format_lists),
        (types.is_map, _format_maps),
        (types.is_null, lambda array: pa.nulls(len(array), pa.string())),
        (types.is_large_string, lambda array: _format_strings(array.cast(pa.string()))),
        (types.is_large_binary, lambda array: _format_binary(array.cast(pa.binary()))),
    ):
        if holds(data_type):
            return encode
    return lambda array: array.cast(pa.string())  # integers, decimals and booleans


def _quote_values(array: pa.Array) -> pa.StringArray:
    return _join_parts('"', array.cast(pa.string()), '"')


def unicode_text(array: pa.StringArray) -> pa.StringArray:
    """Replace invalid UTF-8 in strings as Java does: JSON can't represent it."""
    try:
        array.validate(full=True)  # Parquet's reader does not, and Spark may write any bytes
    except pa.ArrowInvalid:
        values = array.cast(pa.binary()).to_pylist()
        decoded = [None if value is None else value.decode(errors="replace") for value in values]
        return pa.array(decoded, pa.string())
    return array


def _format_strings(array: pa.StringArray) -> pa.StringArray:
    return _join_parts('"', _escape_strings(array), '"')


def _escape_strings(array: pa.StringArray) -> pa.StringArray:
    array = unicode_text(array)
    if has_escapes(view_text(array)):  # or a value beneath a null
        for plain, escaped in _ESCAPES:
            array = pc.replace_substring(array, plain, escaped)
        if pc.any(pc.match_substring_regex(array, _CONTROL)).as_py():
            for plain, escaped in _CONTROL_ESCAPES:
                array = pc.replace_substring(array, plain, escaped)
    return array


def _format_floats(array: pa.Array) -> pa.StringArray:
    text = array.cast(pa.string())
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return text
    infinite = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(finite, text, pc.if_else(pc.is_nan(array), '"NaN"', infinite))


def _format_binary(array: pa.BinaryArray) -> pa.StringArray:
    return _quote_values(base64_text(array))


def base64_text(array: pa.BinaryArray) -> pa.StringArray:
    """Encode each value in base64, without quotes.

    Arrow has no base64, and one call for every value would be slow. So values are padded with zeros
    to a multiple of three bytes, encoded all at once, and the encoding of the zeros is replaced.
    """
    lengths = pc.fill_null(pc.binary_length(array), 0)
    rest = pc.subtract(lengths, pc.multiply(pc.divide(lengths, 3), 3))
    zeros = pa.array([b"", bytes(2), bytes(1)], array.type)
    whole = pc.binary_join_element_wise(array, zeros.take(rest), pa.scalar(b"", array.type))
    whole = pc.fill_null(whole, pa.scalar(b"", array.type))
    encoded = pa.py_buffer(binascii.b2a_base64(view_text(whole), newline=False))
    ends = pa.Array.from_buffers(pa.int32(), len(whole) + 1, [None, whole.buffers()[1]],
                                 offset=whole.offset)  # fmt: skip
    ends = pc.multiply(pc.divide(pc.subtract(ends, ends[0]), 3), 4).cast(pa.int32())
    text = pa.Array.from_buffers(pa.binary(), len(whole), [None, ends.buffers()[1], encoded])
    for left in (1, 2):
        cut = pc.equal(rest, left)
        if pc.any(cut).as_py():
            padding = pa.scalar(b"=" * (3 - left))
            short = pc.binary_slice(text, 0, left - 3)
            padded = pc.binary_join_element_wise(short, padding, pa.scalar(b""))
            text = pc.if_else(cut, padded, text)
    return mask_nulls(text.cast(pa.string()), array)


def _format_dates(array: pa.Array) -> pa.StringArray:
    return _format_calendar(array, 1, _iso_date)


def _format_timestamps(array: pa.TimestampArray) -> pa.StringArray:
    return _format_calendar(_drop_zone(array), _DAY_US, iso_timestamp, _find_zone(array))


def _find_zone(array: pa.TimestampArray) -> str:
    return "" if array.type.tz is None else "Z"


def _drop_zone(array: pa.TimestampArray) -> pa.TimestampArray:
    """Return the same without a zone: Arrow would look it up for every value, and UTC needs
    none."""
    return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def timestamp_text(array: pa.TimestampArray) -> pa.StringArray:
    """Format timestamps in ISO 8601, without quotes."""
    return pc.utf8_slice_codeunits(_format_timestamps(array), 1, -1)


def _format_calendar(
    array: pa.Array, per_day: int, far: Callable[[int], str], zone: str = ""
) -> pa.StringArray:
    """Format dates and times as text. Arrow writes the years 1 to 9999; the few beyond, which Spark
    supports, are written by ``far``, value by value."""
    text = _format_near_years(array, per_day)
    if text is not None:
        return _join_parts('"', text, zone + '"')
    numbers, low, high = _to_numbers(array, per_day), _FIRST_DAY * per_day, _END_DAY * per_day
    near = pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high))
    known = _format_calendar(
        pc.if_else(near, array, pa.scalar(None, array.type)), per_day, far, zone
    )
    beyond = pc.if_else(near, pa.scalar(None, pa.int64()), numbers).to_pylist()
    texts = pa.array([None if n is None else f'"{far(n)}{zone}"' for n in beyond], pa.string())
    return pc.coalesce(known, texts)


def _to_numbers(array: pa.Array, per_day: int) -> pa.Int64Array:
    return array.cast(pa.int32() if per_day == 1 else pa.int64()).cast(pa.int64())


def _has_far_years(array: pa.Array) -> bool:
    """Return whether an array has dates or times (in microseconds) whose years are not of four
    digits."""
    per_day = 1 if pa.types.is_date32(array.type) else _DAY_US
    if per_day > 1 and not pa.types.is_timestamp(array.type):
        return False
    numbers, low, high = _to_numbers(array, per_day), _FIRST_DAY * per_day, _END_DAY * per_day
    ends = pc.min_max(numbers)
    return bool(ends["min"].is_valid and (ends["min"].as_py() < low or ends["max"].as_py() >= high))


def _format_near_years(array: pa.Array, per_day: int) -> pa.StringArray | None:
    """Format dates and times as text without quotes, if Arrow can write all of them."""
    if _has_far_years(array):
        return None
    text = array.cast(pa.string())
    return text if per_day == 1 else pc.binary_replace_slice(text, 10, 11, b"T")


def _iso_date(days: int) -> str:
    """Format any day since 1970 in ISO 8601, in the proleptic Gregorian calendar; years beyond four
    digits have a sign."""
    cycles, day = divmod(days + 719_468, 146_097)  # 400 years each, from 0000-03-01
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month, year = (month + 2) % 12 + 1, year + 400 * cycles + (month >= 10)
    text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{text}-{month:02d}-{day:02d}"


def iso_timestamp(micros: int) -> str:
    """Format any number of microseconds since 1970 in ISO 8601."""
    days, rest = divmod(micros, _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{_iso_date(days)}T{hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}"


def _format_structs(array: pa.StructArray) -> pa.StringArray:
    fields = array.type.names
    if not fields:
        return mask_nulls(pa.repeat(pa.scalar("{}"), len(array)), array)
    return mask_nulls(json_objects(fields, list_children(array)), array)


def list_children(array: pa.StructArray) -> list[pa.Array]:
    """Return the fields of a struct, null where it is null: values beneath a null are undefined."""
    if array.null_count:
        return list(array.flatten())
    return [array.field(i) for i in range(array.type.num_fields)]


def variant_text(array: pa.StructArray) -> pa.StringArray:
    """Return variants as JSON text; null where there is none."""
    parts = (array.field(name).to_pylist() for name in ("value", "metadata"))
    return pa.array(
        [
            variant_json(value, metadata or b"") if there and value is not None else None
            for there, value, metadata in zip(array.is_valid().to_pylist(), *parts, strict=True)
        ],
        pa.string(),
    )


def mask_nulls(text: pa.StringArray, array: pa.Array) -> pa.StringArray:
    """Return ``text``, null where the array is null."""
    if not array.null_count:
        return text
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def drop_offset(array: pa.Array) -> pa.Array:
    """Return the array without an offset into its buffers."""
    return array.take(pa.arange(0, len(array))) if array.offset else array


def _format_lists(array: pa.ListArray) -> pa.StringArray:
    array = drop_offset(array)
    return _join_items("[", array.offsets, json_values(array.values), "]", array)


def _join_items(
    left: str, offsets: pa.Int32Array, items: pa.StringArray, right: str, array: pa.Array
) -> pa.StringArray:
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return mask_nulls(_join_parts(left, joined, right), array)


def _format_maps(array: pa.MapArray) -> pa.StringArray:
    array = drop_offset(array)
    values = json_values(array.items)
    if pa.types.is_nested(array.type.key_type):
        keys = json_values(array.keys)
        items = _join_parts('{"key":', keys, ',"value":', values, "}")
        return _join_items("[", array.offsets, items, "]", array)
    keys = json_values(array.keys)
    text = pa.types.is_string(array.type.key_type)
    unquoted = not (text or pc.all(pc.starts_with(keys, '"')).as_py())
    if unquoted:
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, _quote_values(keys))
    items = _join_parts(keys, ":", values)
    return _join_items("{", array.offsets, items, "}", array)
