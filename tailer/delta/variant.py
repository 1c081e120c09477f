"""Reading the variant's binary form, and its JSON text.

A variant is two byte strings, ``value`` and ``metadata``, the dictionary of its objects' keys
(Parquet's "Variant Binary Encoding"). They come from the file's writer, so nothing here trusts
them: offsets are checked, nesting is walked without recursion, and a value whose parts overlap,
which would make it grow without bound, is refused.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from collections.abc import Iterator
from datetime import date
from enum import Enum, IntEnum, auto

from tailer.errors import CorruptRow

# The limit of Spark's parser.
DEPTH_MAX = 1000
# The dictionary has each key once; the text repeats it at every use.
JSON_CHARACTERS_MAX = 128 * 1024 * 1024

_SHORT_STRING, _OBJECT, _ARRAY = 1, 2, 3
_DECIMAL_DIGITS_MAX = 38

_SECONDS_OF_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats itself after this many days, which are 400 years.
_DAYS_OF_CYCLE = 146_097


class Kind(IntEnum):
    """The primitive types ("Variant primitive types"); a container or short string has none."""

    NULL = 0
    TRUE = 1
    FALSE = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    DOUBLE = 7
    DECIMAL4 = 8
    DECIMAL8 = 9
    DECIMAL16 = 10
    DATE = 11
    TIMESTAMP = 12
    TIMESTAMP_NTZ = 13
    FLOAT = 14
    BINARY = 15
    STRING = 16
    TIME = 17
    TIMESTAMP_NANOS = 18
    TIMESTAMP_NTZ_NANOS = 19
    UUID = 20


#: The types of exact numbers, which are equal regardless of width and scale.
EXACT_NUMERICS = frozenset(range(Kind.INT8, Kind.INT64 + 1)) | frozenset(
    range(Kind.DECIMAL4, Kind.DECIMAL16 + 1)
)
# Bytes of each type's value without the header byte; None: a length of four bytes comes first.
_WIDTHS: dict[int, int | None] = dict(
    zip(Kind, [0, 0, 0, 1, 2, 4, 8, 8, 5, 9, 17, 4, 8, 8, 4, None, None, 8, 8, 8, 16], strict=True)
)


class VariantToken(Enum):
    """The tokens of :func:`walk_variant`: a key precedes its value, END closes the innermost
    container."""

    OBJECT = auto()
    ARRAY = auto()
    KEY = auto()
    SCALAR = auto()
    END = auto()


def make_damage_error(what: str) -> CorruptRow:
    """Return the error for bytes that are not a variant."""
    return CorruptRow(f"a variant is damaged: {what}", hint="write the row again")


def _read_unsigned(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise make_damage_error("it ends too early")
    return int.from_bytes(data[at : at + width], "little")


class _Names:
    """The dictionary in ``metadata``, read only when a name is looked up."""

    def __init__(self, metadata: bytes) -> None:
        header = _read_unsigned(metadata, 0, 1)
        if header & 0x0F != 1:
            raise make_damage_error(f"its version is {header & 0x0F}")
        self._metadata = metadata
        self._width = (header >> 6) + 1
        self._count = _read_unsigned(metadata, 1, self._width)
        self._bytes = 1 + (self._count + 2) * self._width

    def __getitem__(self, number: int) -> bytes:
        if number >= self._count:
            raise make_damage_error("a key is not in its dictionary")
        at = 1 + (number + 1) * self._width
        start = _read_unsigned(self._metadata, at, self._width)
        end = _read_unsigned(self._metadata, at + self._width, self._width)
        if not start <= end <= len(self._metadata) - self._bytes:
            raise make_damage_error("its dictionary ends too early")
        return self._metadata[self._bytes + start : self._bytes + end]


def walk_variant(
    value: bytes, metadata: bytes, *, by_key: bool = False
) -> Iterator[tuple[VariantToken, bytes]]:
    """Yield the variant's parts in order: keys by name, scalars in their encoded form, with header.

    Fields come in the order of the object, or sorted. Raises :class:`CorruptRow` for bytes that are
    not a variant.
    """
    names = _Names(metadata)
    # Parts do not overlap, so together they are no longer than the whole.
    left = len(value)
    stack: list[Iterator[tuple[bytes | None, int]]] = [iter([(None, 0)])]
    while stack:
        child = next(stack[-1], None)
        if child is None:
            stack.pop()
            if stack:
                yield VariantToken.END, b""
            continue
        key, at = child
        if key is not None:
            yield VariantToken.KEY, key
        header = _read_unsigned(value, at, 1)
        container = header & 3 in (_OBJECT, _ARRAY)
        size = _find_header_size(value, at) if container else _scalar_size(value, at)
        left -= size
        if left < 0 or at + size > len(value):
            raise make_damage_error("its parts overlap, or it ends too early")
        if not container:
            yield VariantToken.SCALAR, value[at : at + size]
            continue
        if len(stack) > DEPTH_MAX:
            raise make_damage_error(f"it is nested deeper than {DEPTH_MAX} levels")
        yield (VariantToken.OBJECT if header & 3 == _OBJECT else VariantToken.ARRAY), b""
        children = _find_children(value, at, names)
        stack.append(iter(sorted(children, key=_by_key) if by_key else children))


def _by_key(child: tuple[bytes | None, int]) -> bytes:
    return child[0] or b""  # in an array all keys are equal, so the order is kept


def _scalar_size(value: bytes, at: int) -> int:
    header = value[at] >> 2
    if value[at] & 3 == _SHORT_STRING:
        return 1 + header
    if header not in _WIDTHS:
        raise make_damage_error(f"it has the primitive type {header}, which is not known here")
    width = _WIDTHS[header]
    return 1 + width if width is not None else 5 + _read_unsigned(value, at + 1, 4)


def _read_layout(value: bytes, at: int) -> tuple[int, int, int, int]:
    """Return a container's start of lists, number of elements, and widths of ids and offsets."""
    header = value[at] >> 2
    is_object = value[at] & 3 == _OBJECT
    large = header >> (4 if is_object else 2) & 1
    id_width = (header >> 2 & 3) + 1 if is_object else 0
    count_width = 4 if large else 1
    return (
        at + 1 + count_width,
        _read_unsigned(value, at + 1, count_width),
        id_width,
        (header & 3) + 1,
    )


def _find_header_size(value: bytes, at: int) -> int:
    start, count, id_width, offset_width = _read_layout(value, at)
    return start - at + count * id_width + (count + 1) * offset_width


def _find_children(value: bytes, at: int, names: _Names) -> list[tuple[bytes | None, int]]:
    """Return the children's keys (None in an array) and positions.

    The header is known to be whole.
    """
    start, count, id_width, offset_width = _read_layout(value, at)
    offsets = start + count * id_width
    first = offsets + (count + 1) * offset_width
    positions = [
        first + _read_unsigned(value, i, offset_width)
        for i in range(offsets, offsets + count * offset_width, offset_width)
    ]
    if not id_width:
        return [(None, position) for position in positions]
    keys = [names[_read_unsigned(value, i, id_width)] for i in range(start, offsets, id_width)]
    if len(set(keys)) < count:
        raise make_damage_error("an object has a key twice")
    return list(zip(keys, positions, strict=True))


def read_digits(scalar: bytes) -> tuple[int, int]:
    """Return an exact numeric as its unscaled integer and its scale."""
    kind = scalar[0] >> 2
    if kind <= Kind.INT64:
        return int.from_bytes(scalar[1:], "little", signed=True), 0
    unscaled, scale = int.from_bytes(scalar[2:], "little", signed=True), scalar[1]
    if scale > _DECIMAL_DIGITS_MAX or len(str(abs(unscaled))) > _DECIMAL_DIGITS_MAX:
        raise make_damage_error("a decimal has more than 38 digits")
    return unscaled, scale


def variant_json(value: bytes, metadata: bytes) -> str:
    """Return a variant as JSON text, which loses only the widths of numbers.

    Integers and decimals have all their digits; NaN and the infinities are the strings "NaN",
    "Infinity", "-Infinity"; dates, times and timestamps are ISO 8601 strings with six digits of a
    second (nine for nanoseconds) and Z for instants; binary is base64; a UUID is its usual text;
    bytes that are not UTF-8 become U+FFFD. Keys keep their order.

    Raises :class:`CorruptRow` for bytes that are not a variant.
    """
    parts: list[str] = []
    ends: list[str] = []
    separator, size = "", 0
    for token, data in walk_variant(value, metadata):
        if token is VariantToken.END:
            text = ends.pop()
        elif token is VariantToken.KEY:
            text = f"{separator}{_json_string(data)}:"
        elif token is VariantToken.SCALAR:
            text = separator + _json_scalar(data)
        else:
            text = separator + ("{" if token is VariantToken.OBJECT else "[")
            ends.append("}" if token is VariantToken.OBJECT else "]")
        separator = "," if token in (VariantToken.END, VariantToken.SCALAR) else ""
        parts.append(text)
        size += len(text)
        if size > JSON_CHARACTERS_MAX:
            raise make_damage_error(f"it has more than {JSON_CHARACTERS_MAX} characters as JSON")
    return "".join(parts)


def _json_string(data: bytes) -> str:
    return json.dumps(data.decode(errors="replace"), ensure_ascii=False)


def _json_scalar(scalar: bytes) -> str:
    kind = scalar[0] >> 2
    if scalar[0] & 3 == _SHORT_STRING:
        return _json_string(scalar[1:])
    if kind in (Kind.TRUE, Kind.FALSE):
        return "true" if kind == Kind.TRUE else "false"
    if kind in EXACT_NUMERICS:
        unscaled, scale = read_digits(scalar)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        at = len(digits) - scale
        return "-" * (unscaled < 0) + digits[:at] + ("." + digits[at:] if scale else "")
    if kind == Kind.STRING:
        return _json_string(scalar[5:])
    if kind in (Kind.DOUBLE, Kind.FLOAT):
        return _json_floating(scalar)
    return f'"{_format_quoted(kind, scalar)}"' if kind else "null"


def _json_floating(scalar: bytes) -> str:
    is_double = scalar[0] >> 2 == Kind.DOUBLE
    (number,) = struct.unpack("<d" if is_double else "<f", scalar[1:])
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if is_double:
        return repr(number)
    # The fewest digits that give this 32-bit float again; nine always do.
    shorter = (float(f"{number:.{digits}g}") for digits in range(1, 10))
    return repr(next((n for n in shorter if _is_float(n, scalar[1:])), number))


def _is_float(number: float, data: bytes) -> bool:
    try:
        return struct.pack("<f", number) == data
    except OverflowError:  # rounded up, beyond the largest
        return False


def _format_quoted(kind: int, scalar: bytes) -> str:
    """Return the text of a type that JSON puts in quotes."""
    if kind == Kind.BINARY:
        return base64.b64encode(scalar[5:]).decode()
    if kind == Kind.UUID:
        return str(uuid.UUID(bytes=scalar[1:]))
    number = int.from_bytes(scalar[1:], "little", signed=True)
    if kind == Kind.DATE:
        return _format_day(number)
    digits = 9 if kind in (Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS) else 6
    seconds, fraction = divmod(number, 10**digits)
    days, second = divmod(seconds, _SECONDS_OF_DAY)
    minute, second = divmod(second, 60)
    text = f"{minute // 60:02}:{minute % 60:02}:{second:02}.{fraction:0{digits}}"
    if kind == Kind.TIME:
        if days:
            raise make_damage_error("a time is not within a day")
        return text
    zone = "Z" if kind in (Kind.TIMESTAMP, Kind.TIMESTAMP_NANOS) else ""
    return f"{_format_day(days)}T{text}{zone}"


def _format_day(days: int) -> str:
    """Return the date of a day counted from 1970-01-01, also in years that :class:`date` lacks."""
    cycles, rest = divmod(days + _EPOCH - 1, _DAYS_OF_CYCLE)
    day = date.fromordinal(rest + 1)
    year = day.year + 400 * cycles
    return f"{'-' * (year < 0)}{abs(year):04}-{day.month:02}-{day.day:02}"
