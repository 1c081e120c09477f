"""Variant columns: shredded variants are reassembled, and all variants are made comparable.

A shredded variant lies in several Parquet columns ("Variant Shredding"): ``typed_value`` holds
what fits the type that the writer chose for the file, ``value`` the rest. All code after this
module sees only the two binary parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyarrow import types

from tailer.delta.arrow_types import VARIANT, holds_arrow_variant, is_arrow_variant
from tailer.delta.variant import Kind, VariantToken
from tailer.delta.variant_builder import (
    NULL,
    VariantBuilder,
    canonicalize_variant,
    decimal_value,
    integer_value,
    primitive_value,
    sized_value,
    text_value,
)
from tailer.errors import CorruptRow

# No writer nests Parquet's own schemas deeper than this.
_DEPTH_MAX = 100


def reassemble_variants(array: pa.StructArray, column: str) -> pa.StructArray:
    """Return shredded variants (``metadata``, ``value``, ``typed_value``) as unshredded ones.

    The bytes are the same as Spark's: keys are numbered in order of appearance, the shredded
    fields first, in the order of the file's schema; integers are as narrow as their value allows.
    Where both parts of a row are null, it is the variant null. ``column`` is for messages.

    Raises :class:`CorruptRow` for a type that can't be shredded and for contradicting parts.
    """
    present = array.is_valid().to_pylist()
    metadata = _list_bytes(array.field("metadata"))
    level = _build_level(array, column, 0)
    values: list[bytes | None] = []
    dictionaries: list[bytes | None] = []
    for row, there in enumerate(present):
        value, dictionary = None, None
        if there:
            names = metadata[row]
            if names is None:
                raise CorruptRow(f"a variant of the column {column!r} has no metadata")
            builder = VariantBuilder()
            level.add(row, builder, names)
            value, dictionary = builder.build_variant()
        values.append(value)
        dictionaries.append(dictionary)
    parts = [pa.array(values, pa.binary()), pa.array(dictionaries, pa.binary())]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=array.is_null())


class _Typed(Protocol):
    """A ``typed_value`` column, row by row."""

    def has(self, row: int) -> bool:
        """Return whether the row is not null."""

    def add(self, row: int, builder: VariantBuilder, metadata: bytes, rest: bytes | None) -> None:
        """Add that row's value; ``rest`` is the content of ``value`` beside it."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A pair of ``value`` and ``typed_value``: a whole variant, a field or an element."""

    values: list[bytes | None]
    typed: _Typed | None

    def has(self, row: int) -> bool:
        """Return whether there is a value; a field without one is missing."""
        return self.values[row] is not None or (self.typed is not None and self.typed.has(row))

    def add(self, row: int, builder: VariantBuilder, metadata: bytes) -> None:
        value = self.values[row]
        if self.typed is not None and self.typed.has(row):
            self.typed.add(row, builder, metadata, value)
        elif value is not None:
            builder.copy(value, metadata)
        else:
            builder.add(VariantToken.SCALAR, NULL)


@dataclass(frozen=True, slots=True)
class _Scalars:
    """Shredded scalars, in their encoded form. They take precedence over a ``value`` beside
    them."""

    encoded: list[bytes | None]

    def has(self, row: int) -> bool:
        return self.encoded[row] is not None

    def add(self, row: int, builder: VariantBuilder, metadata: bytes, rest: bytes | None) -> None:  # noqa: ARG002
        builder.add(VariantToken.SCALAR, self.encoded[row] or NULL)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Shredded arrays; row i's elements are those from ``offsets[i]`` to ``offsets[i + 1]``."""

    present: list[bool]
    offsets: list[int]
    elements: _Level

    def has(self, row: int) -> bool:
        return self.present[row]

    def add(self, row: int, builder: VariantBuilder, metadata: bytes, rest: bytes | None) -> None:  # noqa: ARG002
        builder.add(VariantToken.ARRAY)
        for element in range(self.offsets[row], self.offsets[row + 1]):
            self.elements.add(element, builder, metadata)
        builder.add(VariantToken.END)


@dataclass(frozen=True, slots=True)
class _Objects:
    """Shredded objects; fields that the schema does not name are in ``value``."""

    present: list[bool]
    fields: list[tuple[bytes, _Level]]

    def has(self, row: int) -> bool:
        return self.present[row]

    def add(self, row: int, builder: VariantBuilder, metadata: bytes, rest: bytes | None) -> None:
        builder.add(VariantToken.OBJECT)
        for name, level in self.fields:
            if level.has(row):
                builder.add(VariantToken.KEY, name)
                level.add(row, builder, metadata)
        if rest is not None:
            builder.copy(rest, metadata, fields_only=True)
        builder.add(VariantToken.END)


def _build_level(array: pa.StructArray, column: str, depth: int) -> _Level:
    if depth > _DEPTH_MAX:
        raise CorruptRow(f"the variants of {column!r} are shredded deeper than {_DEPTH_MAX} levels")
    parts = dict(zip((f.name for f in array.type), array.flatten(), strict=True))
    value = parts.get("value")
    typed = parts.get("typed_value")
    return _Level(
        _list_bytes(value) if value is not None else [None] * len(array),
        _build_typed(typed, column, depth) if typed is not None else None,
    )


def _build_typed(array: pa.Array, column: str, depth: int) -> _Typed:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_struct(array.type):
        fields = []
        for field, child in zip(array.type, array.flatten(), strict=True):
            if not types.is_struct(field.type):
                raise _make_type_error(field.type, column)
            fields.append((field.name.encode(), _build_level(child, column, depth + 1)))
        return _Objects(array.is_valid().to_pylist(), fields)
    if types.is_list(array.type) or types.is_large_list(array.type):
        if not types.is_struct(array.type.value_type):
            raise _make_type_error(array.type, column)
        elements = _build_level(array.values, column, depth + 1)
        return _Arrays(array.is_valid().to_pylist(), array.offsets.to_pylist(), elements)
    return _Scalars(_encode_scalars(array, column))


def _make_type_error(data_type: pa.DataType, column: str) -> CorruptRow:
    return CorruptRow(f"the variant column {column!r} has {data_type} in place of a typed value")


def _list_bytes(array: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = array.cast(pa.binary()).to_pylist()
    return found


def _encode_each(array: pa.Array, encode: Callable[[bytes], bytes]) -> list[bytes | None]:
    """Return the encoded form of each value, made from its own bytes."""
    return [None if data is None else encode(data) for data in array.to_pylist()]


def _encode_scalars(array: pa.Array, column: str) -> list[bytes | None]:
    """Encode scalars of the types of the table "Shredded Value Types" as variants."""
    kind = array.type
    if types.is_boolean(kind):
        both = {True: primitive_value(Kind.TRUE), False: primitive_value(Kind.FALSE), None: None}
        return [both[value] for value in array.to_pylist()]
    if types.is_signed_integer(kind):
        return [None if value is None else integer_value(value) for value in array.to_pylist()]
    if types.is_decimal(kind):
        raw = array.cast(pa.decimal128(38, kind.scale)).view(pa.binary(16))
        return _encode_each(
            raw,
            lambda data: decimal_value(int.from_bytes(data, "little", signed=True), kind.scale),
        )
    if types.is_string(kind) or types.is_large_string(kind):
        return _encode_each(array.cast(pa.binary()), text_value)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _encode_each(array, lambda data: sized_value(Kind.BINARY, data))
    fixed = _FIXED.get(kind)
    if fixed is None and types.is_timestamp(kind) and kind.unit in ("us", "ns"):
        nanos = kind.unit == "ns"
        fixed = (
            (Kind.TIMESTAMP_NANOS if nanos else Kind.TIMESTAMP)
            if kind.tz is not None
            else (Kind.TIMESTAMP_NTZ_NANOS if nanos else Kind.TIMESTAMP_NTZ)
        )
    if fixed is None:
        raise _make_type_error(kind, column)
    raw = array.view(pa.binary(kind.bit_width // 8))
    return _encode_each(raw, lambda data: primitive_value(fixed, data))


#: The types whose values have the same bytes in Arrow and in a variant.
_FIXED: dict[pa.DataType, Kind] = {
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.DATE,
    pa.time64("us"): Kind.TIME,
    pa.binary(16): Kind.UUID,
}


def canonicalize_variants(array: pa.Array) -> pa.Array:
    """Return the same values with every variant, at any depth, in canonical form.

    See :func:`tailer.delta.variant_builder.canonicalize_variant` for what is equal. Bytes that
    are not a variant stay as they are, so a damaged row is equal only to its copies.
    """
    data_type = array.type
    if not holds_arrow_variant(data_type):
        return array
    mask = array.is_null() if array.null_count else None
    if array.offset:  # buffers ignore slices
        array = array.take(pa.arange(0, len(array)))
    if is_arrow_variant(data_type):
        return _canonicalize_column(array, mask)
    if types.is_struct(data_type):
        children = [canonicalize_variants(array.field(i)) for i in range(data_type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
    if types.is_map(data_type):
        items = canonicalize_variants(array.items)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=data_type, mask=mask)
    elements = canonicalize_variants(array.values)
    return pa.ListArray.from_arrays(array.offsets, elements, type=data_type, mask=mask)


def _canonicalize_column(array: pa.StructArray, mask: pa.Array | None) -> pa.StructArray:
    pairs = zip(*(array.field(i).to_pylist() for i in range(2)), strict=True)
    canonical = [_canonicalize_value(value, metadata) for value, metadata in pairs]
    parts = [pa.array([pair[i] for pair in canonical], pa.binary()) for i in range(2)]
    return pa.StructArray.from_arrays(parts, fields=list(array.type), mask=mask)


def _canonicalize_value(
    value: bytes | None, metadata: bytes | None
) -> tuple[bytes | None, bytes | None]:
    if value is None or metadata is None:
        return value, metadata
    try:
        return canonicalize_variant(value, metadata)
    except CorruptRow:
        return value, metadata
