"""From the columns of a Parquet file to the columns of a Delta schema.

A file may lack columns, have them under physical names or ids, in a narrower type, or in one of
the older physical forms; nested fields likewise. The conversion is computed once per file
("Reader Requirements for Column Mapping", "Delta Data Type to Parquet Type Mappings") and then
applied to whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tailer.decode.calendar import Calendar
from tailer.delta.arrow_types import VARIANT, arrow_type
from tailer.delta.char import char_length
from tailer.delta.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    is_variant,
)
from tailer.errors import CorruptLog, CorruptRow

#: Converts one array from the file into the Delta column's Arrow type.
Convert = Callable[[pa.Array], pa.Array]

_FIELD_ID = b"PARQUET:field_id"


class FileFields:
    """The fields of one level of a file, indexed by id and by name."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self.fields = list(fields)
        self._by_id: dict[bytes, list[int]] = {}
        self._by_name: dict[str, list[int]] = {}
        self._by_folded_name: dict[str, list[int]] = {}
        for i, field in enumerate(self.fields):
            number = (field.metadata or {}).get(_FIELD_ID)
            if number is not None:
                self._by_id.setdefault(number, []).append(i)
            self._by_name.setdefault(field.name, []).append(i)
            self._by_folded_name.setdefault(field.name.lower(), []).append(i)

    @property
    def lacks_ids(self) -> bool:
        """Whether there are fields, and none of them has an id."""
        return bool(self.fields) and not self._by_id

    def find_numbers(self, wanted: StructField, mapping: str) -> list[int]:
        """Return the fields for a Delta column: by id, by physical name, or by name.

        Delta's names differ by more than their case, and Spark matches them case-insensitively.
        """
        if mapping == "id":
            return self._by_id.get(str(wanted.field_id).encode(), [])
        name = wanted.name if mapping == "none" else wanted.physical_name
        return self._by_name.get(name) or self._by_folded_name.get(name.lower(), [])


def find_field(
    fields: FileFields, wanted: StructField, mapping: str
) -> tuple[int, pa.Field] | None:
    """Return the file's field for a Delta column: by id, by physical name, or by name.

    None if the file has no such column: its rows are null there. Raises :class:`CorruptLog` where
    that is not known, because the file names no ids at all, or several fields by this name.
    """
    if mapping == "id" and fields.lacks_ids and wanted.field_id is not None:
        raise CorruptLog(
            f"the data file has no field ids, and the column {wanted.name!r} is found by its id "
            "alone (column mapping by id)",
            hint="rewrite the file with a writer that knows column mapping, or skip this version",
        )
    numbers = fields.find_numbers(wanted, mapping)
    if len(numbers) > 1:
        names = " and ".join(repr(fields.fields[i].name) for i in numbers)
        raise CorruptLog(
            f"the data file has the columns {names}, and which of them is the table's "
            f"{wanted.name!r} is not known",
            hint="rewrite the file with only one of them, or skip this version",
        )
    return (numbers[0], fields.fields[numbers[0]]) if numbers else None


def _has_any(fields: FileFields, wanted: StructType, mapping: str) -> bool:
    """Return whether a level of the file has one of these columns."""
    return any(fields.find_numbers(f, mapping) for f in wanted)


def make_converter(
    source: pa.DataType,
    target: DataType,
    mapping: str,
    column: str,
    calendar: Calendar | None = None,
) -> Convert:
    """Return a converter from arrays of ``source`` to the Arrow type of ``target``.

    ``column`` is for messages, ``calendar`` converts the file's old dates. Raises
    :class:`CorruptRow` for a pair of types that neither a widening of the protocol nor an older
    physical form explains.
    """
    wanted = arrow_type(target)
    if pa.types.is_null(source):  # a column without any value, at any depth
        return lambda array: pa.nulls(len(array), wanted)
    if calendar is not None and isinstance(target, PrimitiveType):
        return _make_rebasing_converter(source, target, mapping, column, calendar)
    if source.equals(wanted) and calendar is None and _needs_no_conversion(target, mapping):
        return _return_same
    if isinstance(source, pa.DictionaryType):
        inner = make_converter(source.value_type, target, mapping, column, calendar)
        return lambda array: inner(array.dictionary_decode())
    if isinstance(source, pa.BaseExtensionType):
        stored = make_converter(source.storage_type, target, mapping, column, calendar)
        return lambda array: stored(array.storage)
    if is_variant(target):
        return _make_variant_converter(source, column)
    match target:
        case StructType():
            return _make_struct_converter(source, target, mapping, column, calendar)
        case ArrayType():
            return _make_list_converter(source, target, mapping, column, calendar)
        case MapType():
            return _make_map_converter(source, target, mapping, column, calendar)
        case PrimitiveType():
            return _make_primitive_converter(source, target, wanted, column)


def _needs_no_conversion(target: DataType, mapping: str) -> bool:
    """Return whether arrays of the right Arrow type need no look inside.

    We add the mark of a variant, and equal types need not have it; a CHAR may lack its blanks; and
    under column mapping two nested fields may have swapped their names.
    """
    match target:
        case StructType(fields):
            return mapping == "none" and all(_needs_no_conversion(f.type, mapping) for f in fields)
        case ArrayType(element):
            return _needs_no_conversion(element, mapping)
        case MapType(key, value):
            return _needs_no_conversion(key, mapping) and _needs_no_conversion(value, mapping)
    return not is_variant(target) and char_length(target) is None


def _make_rebasing_converter(
    source: pa.DataType, target: PrimitiveType, mapping: str, column: str, calendar: Calendar
) -> Convert:
    """Return a converter as :func:`make_converter` does, which first rebases dates and timestamps.

    Timestamps without zone are newer than the old calendar. In Arrow, only INT96 timestamps have
    no zone where the column has one.
    """
    convert = make_converter(source, target, mapping, column)
    if target.name not in ("date", "timestamp"):
        return convert
    int96 = pa.types.is_timestamp(source) and source.tz is None
    return lambda array: convert(calendar.rebase_array(array, int96=int96))


def _return_same(array: pa.Array) -> pa.Array:
    return array


def _make_mismatch_error(source: pa.DataType, target: str, column: str) -> CorruptRow:
    return CorruptRow(
        f"the column {column!r} is {source} in the file, which can't be read as {target}",
        hint="its type was changed by an overwrite; read up to the version before, or one at a "
        "time",
    )


def _make_primitive_converter(
    source: pa.DataType, target: PrimitiveType, wanted: pa.DataType, column: str
) -> Convert:
    if not _is_readable(source, wanted):
        raise _make_mismatch_error(source, target.name, column)

    length = char_length(target)
    nanoseconds = pa.types.is_timestamp(source) and source.unit == "ns"
    # Bytes that no one has called text may be none: what is done about it is the feed's rule.
    as_given = pc.CastOptions(wanted, allow_invalid_utf8=True)

    def convert(array: pa.Array) -> pa.Array:
        try:
            values = pc.cast(array, options=as_given)
            return values if length is None else pc.utf8_rpad(values, width=length)
        except pa.ArrowInvalid as e:
            raise CorruptRow(
                f"a value of the column {column!r} can't be read as {target.name} ({e})",
                hint=_NANOSECONDS if nanoseconds else None,
            ) from None

    return convert


_NANOSECONDS = (
    "Delta's timestamps are microseconds and nothing is rounded here: rewrite the file with "
    "timestamps of microseconds (pyarrow: coerce_timestamps='us', allow_truncated_timestamps=True)"
)


_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    # Delta has no unsigned types: a table made from other files has each in the next wider one.
    # Some writers declare the type of the same width; then each value is checked.
    pa.uint8(): (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    pa.uint16(): (pa.int16(), pa.int32(), pa.int64()),
    pa.uint32(): (pa.int32(), pa.int64()),
    pa.uint64(): (pa.int64(),),
}


def _is_readable(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a physical type may stand for a column's type: widened, or in an older
    form."""
    types = pa.types
    if wanted in _WIDER.get(source, ()):
        return True
    decimal, timestamp = types.is_decimal(wanted), types.is_timestamp(wanted)
    if types.is_integer(source):
        # Some writers leave byte and short as plain INT32, without an annotation.
        small = types.is_int8(wanted) or types.is_int16(wanted)
        return bool(decimal or (types.is_int32(source) and small))
    if decimal:
        return bool(types.is_decimal(source))
    if timestamp:
        return bool(types.is_timestamp(source) or types.is_date32(source))
    text = (
        types.is_string, types.is_large_string, types.is_string_view,
        types.is_binary, types.is_large_binary, types.is_binary_view,
    )  # fmt: skip
    if types.is_binary(wanted) and types.is_fixed_size_binary(source):
        return True
    wants_text = types.is_string(wanted) or types.is_binary(wanted)
    return wants_text and any(holds(source) for holds in text)


def _drop_offset(array: pa.Array) -> pa.Array:
    """Return the same values in an array that begins at the start of its buffers.

    Nested arrays are taken apart by their buffers below, which ignore slices.
    """
    return array.take(pa.arange(0, len(array))) if array.offset else array


def _find_nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _make_struct_converter(
    source: pa.DataType, target: StructType, mapping: str, column: str, calendar: Calendar | None
) -> Convert:
    if not pa.types.is_struct(source):
        raise _make_mismatch_error(source, "struct", column)
    file_fields = FileFields(source.fields)
    parts: list[tuple[int, Convert] | pa.DataType] = []
    for field in target:
        match = find_field(file_fields, field, mapping)
        if match is None:
            parts.append(arrow_type(field.type))
        else:
            at, file_field = match
            name = f"{column}.{field.name}"
            parts.append((at, make_converter(file_field.type, field.type, mapping, name, calendar)))
    fields = [pa.field(f.name, arrow_type(f.type)) for f in target]

    def convert(array: pa.Array) -> pa.Array:
        array = _drop_offset(array)
        children = [
            part[1](array.field(part[0])) if isinstance(part, tuple) else pa.nulls(len(array), part)
            for part in parts
        ]
        if not children:  # an array of structs takes its length from its children
            return _make_empty_structs(array)
        return pa.StructArray.from_arrays(children, fields=fields, mask=_find_nulls(array))

    return convert


def _make_empty_structs(array: pa.StructArray) -> pa.StructArray:
    """Return structs without fields, null where these are null."""
    validity = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(pa.struct([]), len(array), [validity], array.null_count)


def _make_list_converter(
    source: pa.DataType, target: ArrayType, mapping: str, column: str, calendar: Calendar | None
) -> Convert:
    if pa.types.is_fixed_size_list(source):
        plain = pa.list_(source.value_field)
        same = _make_list_converter(plain, target, mapping, column, calendar)
        return lambda array: same(array.cast(plain))
    if not (pa.types.is_list(source) or pa.types.is_large_list(source)):
        raise _make_mismatch_error(source, "array", column)
    inner = _make_element_converter(
        source.value_field, target, mapping, f"{column}.element", calendar
    )
    wanted = arrow_type(target)

    def convert(array: pa.Array) -> pa.Array:
        array = _drop_offset(array)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(
            offsets, inner(array.values), type=wanted, mask=_find_nulls(array)
        )

    return convert


def _make_element_converter(
    source: pa.Field, target: ArrayType, mapping: str, column: str, calendar: Calendar | None
) -> Convert:
    """Return the converter of a list's elements.

    A two-level list, as old writers made it, has no group around its element: for structs with one
    field, pyarrow then returns that field's values. As in Spark, the table's schema decides.
    """
    element, struct = target.element, pa.types.is_struct(source.type)
    if isinstance(element, StructType) and not (struct and source.name == "element"):
        own, inside = FileFields([source]), FileFields(source.type if struct else [])
        if _has_any(own, element, mapping) and not _has_any(inside, element, mapping):
            convert = make_converter(pa.struct([source]), element, mapping, column, calendar)
            return lambda array: convert(pa.StructArray.from_arrays([array], fields=[source]))
    return make_converter(source.type, element, mapping, column, calendar)


def _make_map_converter(
    source: pa.DataType, target: MapType, mapping: str, column: str, calendar: Calendar | None
) -> Convert:
    if not pa.types.is_map(source):
        raise _make_mismatch_error(source, "map", column)
    keys = make_converter(source.key_type, target.key, mapping, f"{column}.key", calendar)
    items = make_converter(source.item_type, target.value, mapping, f"{column}.value", calendar)
    wanted = arrow_type(target)

    def convert(array: pa.Array) -> pa.Array:
        array = _drop_offset(array)
        return pa.MapArray.from_arrays(
            array.offsets,
            keys(array.keys),
            items(array.items),
            type=wanted,
            mask=_find_nulls(array),
        )

    return convert


def _make_variant_converter(source: pa.DataType, column: str) -> Convert:
    """Return the converter of a variant to its two parts; shredded variants are reassembled."""
    names = set(source.names) if pa.types.is_struct(source) else set()
    if "metadata" not in names or not names & {"value", "typed_value"}:
        raise _make_mismatch_error(source, "variant", column)
    if "typed_value" in names:
        from tailer.decode.variant import reassemble_variants

        return lambda array: reassemble_variants(array, column)
    fields = list(VARIANT)

    def convert(array: pa.Array) -> pa.Array:
        array = _drop_offset(array)
        children = [array.field(f.name).cast(pa.binary()) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_find_nulls(array))

    return convert
