"""Writing the variant's binary form, and the canonical form in which equal variants are equal."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from msgspec import Struct

from tailer.delta.variant import (
    EXACT_NUMERICS,
    Kind,
    VariantToken,
    make_damage_error,
    read_digits,
    walk_variant,
)

#: The variant null, which is a value, not a missing one.
NULL = b"\x00"

_SHORT_STRING_MAX = 63
_INTEGERS = {1: Kind.INT8, 2: Kind.INT16, 4: Kind.INT32, 8: Kind.INT64}


def primitive_value(kind: Kind, data: bytes = b"") -> bytes:
    """Encode a value of a type of fixed width."""
    return bytes([kind << 2]) + data


def integer_value(number: int) -> bytes:
    """Encode an integer of at most 64 bits in the narrowest type that holds it."""
    width = next(w for w in _INTEGERS if -(1 << 8 * w - 1) <= number < 1 << 8 * w - 1)
    return primitive_value(_INTEGERS[width], number.to_bytes(width, "little", signed=True))


def decimal_value(unscaled: int, scale: int) -> bytes:
    """Encode a decimal with this scale in the narrowest type that holds it."""
    digits = max(scale, len(str(abs(unscaled))))
    kind, width = (
        (Kind.DECIMAL4, 4)
        if digits <= 9
        else (Kind.DECIMAL8, 8)
        if digits <= 18
        else (Kind.DECIMAL16, 16)
    )
    data = unscaled.to_bytes(width, "little", signed=True)
    return primitive_value(kind, bytes([scale]) + data)


def sized_value(kind: Kind, data: bytes) -> bytes:
    """Encode a value of a type that is preceded by its length."""
    return primitive_value(kind, len(data).to_bytes(4, "little") + data)


def text_value(data: bytes) -> bytes:
    """Encode a string."""
    if len(data) > _SHORT_STRING_MAX:
        return sized_value(Kind.STRING, data)
    return bytes([len(data) << 2 | 1]) + data


def canonicalize_variant(value: bytes, metadata: bytes) -> tuple[bytes, bytes]:
    """Return the same variant in a form in which equal variants have equal bytes.

    Equality follows the encoding's equivalence classes: an integer of any width and a decimal of
    any scale are one number; a timestamp is the same in micro- and in nanoseconds; strings are
    compared by their characters, objects by keys and values without order. A double never equals a
    float or an exact number. As in columns, NaN equals NaN and -0.0 equals 0.0. Raises
    :class:`CorruptRow` for bytes that are not a variant.
    """
    names = sorted(
        {data for token, data in walk_variant(value, metadata) if token is VariantToken.KEY}
    )
    builder = VariantBuilder(names)
    for token, data in walk_variant(value, metadata, by_key=True):
        builder.add(token, _canonical_scalar(data) if token is VariantToken.SCALAR else data)
    return builder.build_variant()


def _canonical_scalar(scalar: bytes) -> bytes:
    kind = scalar[0] >> 2
    if scalar[0] & 3:  # a short string
        return scalar
    if kind == Kind.STRING:
        return text_value(scalar[5:])
    if kind in EXACT_NUMERICS:
        unscaled, scale = read_digits(scalar)
        while scale and unscaled % 10 == 0:
            unscaled, scale = unscaled // 10, scale - 1
        if not scale and -(1 << 63) <= unscaled < 1 << 63:
            return integer_value(unscaled)
        return decimal_value(unscaled, scale)
    if kind in (Kind.DOUBLE, Kind.FLOAT):
        code = "<d" if kind == Kind.DOUBLE else "<f"
        (number,) = struct.unpack(code, scalar[1:])
        return scalar[:1] + struct.pack(code, math.nan if math.isnan(number) else number + 0.0)
    if kind in (Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS):
        micros, rest = divmod(int.from_bytes(scalar[1:], "little", signed=True), 1000)
        if not rest:
            coarse = Kind.TIMESTAMP if kind == Kind.TIMESTAMP_NANOS else Kind.TIMESTAMP_NTZ
            return primitive_value(coarse, micros.to_bytes(8, "little", signed=True))
    return scalar


class _Container(Struct):
    is_object: bool
    slot: int
    start: int
    #: Key (empty in an array), its number in the dictionary, and the child's offset.
    entries: list[tuple[bytes, int, int]] = []


class VariantBuilder:
    """Writes one variant, part by part.

    Keys are numbered in the order in which they arrive. ``names``, sorted and without repetition,
    are all the keys that will be added: then the dictionary is marked as sorted.
    """

    def __init__(self, names: Iterable[bytes] | None = None) -> None:
        self._sorted = names is not None
        self._numbers = {name: i for i, name in enumerate(names or ())}
        # A container's header is known only at its end, and then goes into the slot kept for it.
        self._pieces: list[bytes] = []
        self._size = 0
        self._open: list[_Container] = []

    def add(self, token: VariantToken, data: bytes = b"") -> None:
        """Add the next part, as :func:`walk_variant` yields them."""
        if token is VariantToken.KEY:
            number = self._numbers.setdefault(data, len(self._numbers))
            parent = self._open[-1]
            parent.entries.append((data, number, self._size - parent.start))
            return
        if token is VariantToken.END:
            container = self._open.pop()
            data = self._pieces[container.slot] = self._build_header(container)
        else:
            if self._open and not self._open[-1].is_object:
                parent = self._open[-1]
                parent.entries.append((b"", 0, self._size - parent.start))
            if token is not VariantToken.SCALAR:
                slot = len(self._pieces)
                self._open.append(_Container(token is VariantToken.OBJECT, slot, self._size))
            self._pieces.append(data)
        self._size += len(data)

    def copy(self, value: bytes, metadata: bytes, *, fields_only: bool = False) -> None:
        """Add another variant as the next part; with ``fields_only``, only an object's fields.

        Raises :class:`CorruptRow` for bytes that are not a variant, or not an object.
        """
        depth = 0
        for token, data in walk_variant(value, metadata):
            depth -= token is VariantToken.END
            if depth or not fields_only:
                self.add(token, data)
            elif token in (VariantToken.ARRAY, VariantToken.SCALAR):
                raise make_damage_error("the rest of a shredded object is not an object")
            depth += token in (VariantToken.OBJECT, VariantToken.ARRAY)

    def _build_header(self, container: _Container) -> bytes:
        entries = sorted(container.entries) if container.is_object else container.entries
        if container.is_object and len({key for key, _, _ in entries}) < len(entries):
            raise make_damage_error("an object has a key twice")
        data_size = self._size - container.start
        large = len(entries) > 0xFF
        offset_width = _find_width(data_size)
        parts = [len(entries).to_bytes(4 if large else 1, "little")]
        if container.is_object:
            id_width = _find_width(max((number for _, number, _ in entries), default=0))
            parts += [number.to_bytes(id_width, "little") for _, number, _ in entries]
            header = large << 4 | id_width - 1 << 2 | offset_width - 1
        else:
            header = large << 2 | offset_width - 1
        parts += [offset.to_bytes(offset_width, "little") for _, _, offset in entries]
        parts.append(data_size.to_bytes(offset_width, "little"))
        basic = 2 if container.is_object else 3
        return bytes([header << 2 | basic]) + b"".join(parts)

    def build_variant(self) -> tuple[bytes, bytes]:
        """Return ``value`` and ``metadata`` of what was added."""
        names = list(self._numbers)
        width = _find_width(max(len(names), sum(map(len, names))))
        header = 1 | self._sorted << 4 | width - 1 << 6
        parts = [bytes([header]), len(names).to_bytes(width, "little")]
        end = 0
        for length in (0, *map(len, names)):
            end += length
            parts.append(end.to_bytes(width, "little"))
        return b"".join(self._pieces), b"".join([*parts, *names])


def _find_width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)
