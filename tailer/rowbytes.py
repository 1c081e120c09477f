"""Joins columns of bytes row by row, in C if that is compiled, else by Arrow.

``native`` is the compiled module (``_rowbytes.c``), or None (:mod:`tailer.compiled`). Both ways
give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from tailer.compiled import loaded

__all__ = [
    "OPTIONAL",
    "RAW",
    "SIZED",
    "Column",
    "Text",
    "array_part",
    "has_escapes",
    "join",
    "native",
]

#: The version of ``_rowbytes.c`` that this file needs.
_INTERFACE = 2

#: The kinds of parts, as ``_rowbytes.c`` numbers them.
RAW, TEXT, QUOTED, SIZED, OPTIONAL = 1, 2, 3, 4, 5

_NULL, _QUOTE, _EMPTY = pa.scalar("null"), pa.scalar('"'), pa.scalar("")
#: What JSON must escape, as a pattern for Arrow.
_ESCAPES = r'["\\\x00-\x1f]'


native: Any = loaded("_rowbytes", _INTERFACE)


@dataclass(frozen=True, slots=True)
class Text:
    """Strings as members of JSON objects: a null is the word ``null``, and with ``quoted`` other
    values are in double quotes. They contain nothing that JSON would escape."""

    array: pa.StringArray
    quoted: bool = False


#: A part of every row: the same text in all, strings without nulls, or strings as JSON.
Column: TypeAlias = "str | pa.StringArray | Text"


def join(parts: list[Column], rows: int) -> pa.StringArray:
    """Join the parts of each row: ``rows`` strings, none of them null.

    Raises :class:`pyarrow.ArrowInvalid` or :class:`OverflowError` beyond 2 GiB.
    """
    if native is None:
        import pyarrow.compute as pc

        return pc.binary_join_element_wise(
            *(each for part in parts for each in _by_arrow(part)),
            pa.repeat(_EMPTY, rows) if all(isinstance(part, str) for part in parts) else _EMPTY,
            _EMPTY,
        )
    ends, data = native.join([_native_part(part) for part in parts], rows)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)], null_count=0
    )


def _by_arrow(part: Column) -> list[pa.Array | pa.Scalar]:
    import pyarrow.compute as pc

    if isinstance(part, str):
        return [pa.scalar(part)]
    if not isinstance(part, Text):
        return [part]
    array = part.array
    if not part.quoted:
        return [pc.fill_null(array, _NULL) if array.null_count else array]
    if not array.null_count:
        return [_QUOTE, array, _QUOTE]
    quoted = pc.binary_join_element_wise(_QUOTE, array, _QUOTE, _EMPTY)
    return [pc.fill_null(quoted, _NULL)]


def _native_part(part: Column) -> object:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, Text):
        return array_part(part.array, QUOTED if part.quoted else TEXT)
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
    return _matches(text, _ESCAPES)


def _matches(text: pa.Buffer, pattern: str) -> bool:
    import pyarrow.compute as pc

    ends = pa.array([0, text.size], pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, text])
    return bool(pc.match_substring_regex(whole, pattern)[0].as_py())
