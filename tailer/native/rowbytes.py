"""Joins columns of bytes row by row, in C if that is compiled, else by Arrow.

``native`` is the compiled module (``_rowbytes.c``), or None (:mod:`tailer.native.compiled`). Both
ways give the same bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from tailer.native.compiled import load_compiled
from tailer.native.values import make_texts

#: The version of ``_rowbytes.c`` that this file needs.
_INTERFACE = 4

#: The kinds of parts, as ``_rowbytes.c`` numbers them.
RAW, TEXT, QUOTED, SIZED, OPTIONAL = 1, 2, 3, 4, 5
_INT32, _INT64, _DECIMAL, _DATE, _MICROS = 7, 8, 9, 10, 11
#: The most bytes of a number: a decimal has 38 digits, a sign, a point and a zero before it.
_MOST = {_INT32: 11, _INT64: 20, _DECIMAL: 41, _DATE: 12, _MICROS: 29}

#: Arrow writes a decimal with more digits behind its point with an exponent, if it is small.
_SCALE_MAX = 6

_NULL, _QUOTE, _EMPTY = make_texts(["null", '"', ""])
#: What JSON must escape, as a pattern for Arrow.
_ESCAPES = r'["\\\x00-\x1f]'


native: Any = load_compiled("_rowbytes", _INTERFACE)


class Text(Struct, frozen=True):
    """Strings as members of JSON objects: a null is the word ``null``, and with ``quoted`` other
    values are in double quotes. They contain nothing that JSON would escape."""

    array: pa.StringArray
    quoted: bool = False


class Number(Struct, frozen=True):
    """Numbers as members of JSON objects, written by ``_rowbytes.c``: see :func:`make_number`."""

    array: pa.Array
    kind: int
    constant: bytes | None = None


#: A part of every row: the same text in all, strings without nulls, or JSON values.
Column: TypeAlias = "str | pa.StringArray | Text | Number"


def make_number(array: pa.Array) -> Number | None:
    """Return integers, decimals, dates or timestamps (microseconds) as they are in JSON, dates and
    timestamps in double quotes, a null as ``null``. None if this is not compiled or not such an
    array: the caller then makes text of it. Dates are of the years 1 to 9999."""
    kind = array.type
    if native is None:
        return None
    if pa.types.is_signed_integer(kind):
        if kind.bit_width < 32:
            array = array.cast(pa.int32())
        return Number(array, _INT64 if kind.bit_width == 64 else _INT32)
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= _SCALE_MAX:
        return Number(array, _DECIMAL, bytes([kind.scale]))
    if pa.types.is_date32(kind):
        return Number(array, _DATE, b'"')
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return Number(array, _MICROS, b'"' if kind.tz is None else b'Z"')
    return None


def whole_numbers(array: pa.Array) -> Column:
    """Return integers, none of them null, as parts of rows."""
    return make_number(array) or array.cast(pa.string())


class JoinedText(Struct, frozen=True):
    """Strings that are not put together yet: ``rows`` rows of these parts, none of them null.

    Who writes them elsewhere anyway (:func:`native_parts`) spares their bytes a copy.
    """

    parts: list[Column]
    rows: int

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self.rows

    def array(self) -> pa.StringArray:
        """Return the strings; raises as :func:`join_parts`."""
        return join_parts(self.parts, self.rows)

    def slice(self, first: int, count: int) -> JoinedText:
        """Return ``count`` rows from ``first`` on."""
        return JoinedText([_slice_part(part, first, count) for part in self.parts], count)

    def sizes(self) -> pa.Int64Array:
        """Return the most bytes (int64) that each row may take."""
        fixed = sum(_fixed_size(part) for part in self.parts)
        sizes: pa.Array | None = None
        for part in self.parts:
            text = part.array if isinstance(part, Text) else part
            if isinstance(text, pa.Array):
                own = pc.binary_length(text)
                own = pc.fill_null(own, 0) if own.null_count else own
                sizes = own.cast(pa.int64()) if sizes is None else pc.add(sizes, own)
        fixed_size = pa.scalar(fixed, pa.int64())
        return pa.repeat(fixed_size, self.rows) if sizes is None else pc.add(sizes, fixed_size)


def _slice_part(part: Column, first: int, count: int) -> Column:
    if isinstance(part, str):
        return part
    if isinstance(part, pa.Array):
        return part.slice(first, count)
    return structs.replace(part, array=part.array.slice(first, count))


def _fixed_size(part: Column) -> int:
    """Return the most bytes that a part takes in a row, besides the bytes of a string."""
    if isinstance(part, str):
        return len(part.encode())
    if isinstance(part, Number):
        return _MOST[part.kind]
    return 2 + len("null") if isinstance(part, Text) else 0


def join_parts(parts: list[Column], rows: int) -> pa.StringArray:
    """Join the parts of each row: ``rows`` strings, none of them null.

    Raises :class:`pyarrow.ArrowInvalid` or :class:`OverflowError` beyond 2 GiB.
    """
    if native is None:
        return pc.binary_join_element_wise(
            *(each for part in parts for each in _by_arrow(part)),
            pa.repeat(_EMPTY, rows) if all(isinstance(part, str) for part in parts) else _EMPTY,
            _EMPTY,
        )
    ends, data = native.join(native_parts(parts), rows)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)], null_count=0
    )


def _by_arrow(part: str | pa.StringArray | Text) -> list[pa.Array | pa.Scalar]:
    if isinstance(part, str):
        return [pa.scalar(part, pa.string())]
    if not isinstance(part, Text):
        return [part]
    array = part.array
    if not part.quoted:
        return [pc.fill_null(array, _NULL) if array.null_count else array]
    if not array.null_count:
        return [_QUOTE, array, _QUOTE]
    quoted = pc.binary_join_element_wise(_QUOTE, array, _QUOTE, _EMPTY)
    return [pc.fill_null(quoted, _NULL)]


def native_parts(parts: list[Column]) -> list[object]:
    """Return parts in the form that ``_rowbytes.c`` takes; within another list of parts, this one
    is a value after its size."""
    return [_native_part(part) for part in parts]


def _native_part(part: Column) -> object:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Text):
        return array_part(part.array, QUOTED if part.quoted else TEXT)
    if isinstance(part, Number):
        validity, data = part.array.buffers()
        there = validity if part.array.null_count else None
        return part.kind, None, data, there, part.array.offset, part.constant
    return array_part(part, RAW)


def array_part(array: pa.Array, kind: int, constant: bytes | None = None) -> tuple[object, ...]:
    """Return a string or binary array in the form that ``_rowbytes.c`` takes."""
    validity, ends, data = array.buffers()
    if ends is None:  # an empty array may have no offsets
        ends = pa.py_buffer(bytes(4 * (array.offset + len(array) + 1)))
    return kind, ends, data, validity if array.null_count else None, array.offset, constant


def has_escapes(text: pa.Buffer) -> bool:
    """Return whether JSON must escape a byte of a UTF-8 text: a quote, a backslash, a control."""
    if native is not None:
        return bool(native.escapes(text))
    return _has_match(text, _ESCAPES)


def _has_match(text: pa.Buffer, pattern: str) -> bool:
    ends = pa.array([0, text.size], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, text])
    return bool(pc.match_substring_regex(whole, pattern)[0].as_py())
