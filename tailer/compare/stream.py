"""Rows on their way to the comparison, and the SQL that stands for all values of a row.

NaN equals NaN, -0.0 equals 0.0, null equals null, maps have no order. Columns are named by number,
so that no name of a table ever enters a query.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailer.delta.arrow_types import holds_arrow_variant, inner_fields
from tailer.errors import UnsupportedTable

#: Sides of a row. ``PLACED`` is a row that leaves and comes at the same place of two files.
LEAVING, COMING, PLACED = 0, 1, 2

#: How deep maps may be nested, including the lists around them: the engine's memory for preparing a
#: query doubles with every level, and is a gigabyte at 15.
MAP_DEPTH_MAX = 8

#: The number of columns whose nulls are recorded in one column of bits.
_NULLS = "#nulls"
_NULLS_MAX = 62
_NARROW_DIGITS = 18
#: Prefix for the second hash: only data before a value changes how the value is hashed.
_SALT = "17"

#: The first columns of every row: its side, and its reference on that side.
REF_FIELDS = (pa.field("#side", pa.int8()), pa.field("#ref", pa.int64()))

#: The last column of a stream with placed rows: their reference on the side that comes.
OTHER_FIELD = pa.field("#other", pa.int64())


@dataclass(slots=True)
class RowStream:
    """A stream of rows for the engine, which keeps the error that ended it.

    The engine would only say that its input failed.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    error: BaseException | None = None

    def close(self) -> None:
        """Stop the batches, and close their source."""
        if isinstance(self.batches, Generator):
            self.batches.close()

    def list_fields(self) -> list[pa.Field]:
        """Return the columns that are compared."""
        return [f for f in self.schema if f not in (*REF_FIELDS, OTHER_FIELD)]

    def build_key(self) -> str:
        """Return SQL for all values of a row; equal rows give equal SQL values.

        Raises :class:`UnsupportedTable` for maps that are nested too deeply to be compared.
        """
        self._check_depth()
        return ", ".join(_build_canonical_sql(f.name, f.type) for f in self.list_fields())

    def _check_depth(self) -> None:
        if any(_measure_map_depth(f.type) > MAP_DEPTH_MAX for f in self.schema):
            raise UnsupportedTable(
                f"its rows can't be compared: maps are nested more than {MAP_DEPTH_MAX} deep",
                hint="follow it with its change data feed on",
            )

    def build_fingerprint(self, *, texts: bool = False) -> dict[str, str]:
        """Return SQL, by name, for all values of a row: 128 bits of hash, and values.

        The engine's hash has 64 bits, and salting it adds none, because it mixes the hashes of
        single values: two strings with one hash collide under every salt. So the second hash takes
        strings with a prefix. Each integer has its own hash, except the integer with the hash
        of NULL, which only the null columns distinguish. The halves of a wide decimal can be
        swapped without changing the hash, and nested values hide all of this; both are compared by
        value. With ``texts``, wide decimals are hashed as text instead.
        """
        self._check_depth()
        narrow = self._list_narrow_fields()
        masks = [f'"{f.name}"' for f, _ in self._plan_null_masks()]
        first, second, exact = [*masks], [_SALT, *masks], []
        for field in self.list_fields():
            value = _build_canonical_sql(field.name, field.type)
            text = texts and pa.types.is_decimal(field.type) and field not in narrow
            if text:
                value = f"{value}::VARCHAR::BLOB"
            elif field not in narrow:
                exact.append(value)
                continue
            first.append(value)
            if text or _is_text(field.type):
                value = f"'fingerp~'::BLOB || {value}"
            second.append(value)
        hashes = {"h1": f"hash({', '.join(first)})", "h2": f"hash({', '.join(second)})"}
        return hashes | {f"v{i}": sql for i, sql in enumerate(exact)}

    def build_hint(self) -> str | None:
        """Return SQL for a hash that equal rows share, and few others; None: use the first hash.

        Maps and variants are left out, because their canonical form takes time to compute.
        """
        if len(self._list_narrow_fields()) == len(self.list_fields()):
            return None
        plain = [
            f for f in self.list_fields() if not (has_map(f.type) or holds_arrow_variant(f.type))
        ]
        return f"hash({', '.join(f.name for f in plain) or _SALT})"

    def _list_narrow_fields(self) -> list[pa.Field]:
        """Return the columns that 128 bits of hash can represent."""
        return [f for f in self.list_fields() if _is_narrow(f.type)]

    def _plan_null_masks(self) -> list[tuple[pa.Field, list[pa.Field]]]:
        """Return each column of bits, with the narrow columns whose nulls it records."""
        narrow = self._list_narrow_fields()
        starts = range(0, max(1, len(narrow)), _NULLS_MAX)
        return [
            (pa.field(f"{_NULLS}{at}", pa.int64()), narrow[at : at + _NULLS_MAX]) for at in starts
        ]

    def open_reader(self) -> pa.RecordBatchReader:
        """Return the stream for the engine, once; with columns that record the nulls."""
        masks = self._plan_null_masks()
        given = [f.with_type(_find_engine_type(f.type)) for f in self.schema]
        schema = pa.schema([*given, *(mask for mask, _ in masks)])
        at = {name: i for i, name in enumerate(self.schema.names)}
        numbers = [[at[f.name] for f in fields] for _, fields in masks]

        def yield_batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in self.batches:
                    nulls = [
                        _build_null_mask([batch.column(i) for i in group], batch.num_rows)
                        for group in numbers
                    ]
                    columns = [
                        _remove_offsets(c, f.type)
                        for c, f in zip(batch.columns, given, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays([*columns, *nulls], schema=schema)
            except BaseException as e:
                self.error = e
                raise

        return pa.RecordBatchReader.from_batches(schema, yield_batches())


def _remove_offsets(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the same values in that type, in arrays without an offset: for a struct inside
    another value and in the middle of its array, some engines read the wrong rows."""
    column = pa.concat_arrays([column]) if pa.types.is_nested(column.type) else column
    return column if column.type == data_type else column.cast(data_type)


def _find_engine_type(data_type: pa.DataType) -> pa.DataType:
    """Return the engine's type for a column: strings become bytes, because the engine neither
    sorts nor keeps strings that are not UTF-8, and Spark has some; and each struct gets a field,
    because some engines reject structs without one."""
    types = pa.types
    if types.is_string(data_type):
        return pa.binary()
    inner = [f.with_type(_find_engine_type(f.type)) for f in inner_fields(data_type)]
    if types.is_struct(data_type):
        return pa.struct(inner or [pa.field("nothing", pa.bool_())])
    if types.is_map(data_type):
        return pa.map_(
            data_type.key_field.with_type(_find_engine_type(data_type.key_type)),
            data_type.item_field.with_type(_find_engine_type(data_type.item_type)),
        )
    return pa.list_(inner[0]) if types.is_list(data_type) else data_type


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _is_narrow(data_type: pa.DataType) -> bool:
    """Return whether the engine keeps a value in 64 bits, or as bytes."""
    types = pa.types
    if types.is_decimal(data_type):
        return bool(data_type.precision <= _NARROW_DIGITS)
    return bool(types.is_primitive(data_type) or _is_text(data_type))


def _build_null_mask(columns: list[pa.Array], count: int) -> pa.Int64Array:
    mask = pa.repeat(pa.scalar(0, pa.int64()), count)
    for i, column in enumerate(columns):
        if column.null_count:
            bit = pa.scalar(1 << i, pa.int64())
            mask = pc.add(mask, pc.multiply(column.is_null().cast(pa.int64()), bit))
    return mask


def _build_canonical_sql(name: str, data_type: pa.DataType) -> str:
    """Return SQL for the canonical form of a value, equal for equal values: maps have no order."""
    types = pa.types
    if types.is_map(data_type):
        key = _build_canonical_sql("e.key", data_type.key_type)
        value = _build_canonical_sql("e.value", data_type.item_type)
        entry = f"struct_pack(key := {key}, value := {value})"
        return f"list_sort(list_transform(map_entries({name}), lambda e: {entry}))"
    if types.is_struct(data_type) and has_map(data_type):
        parts = ", ".join(
            f"f{i} := {_build_canonical_sql(_build_member_sql(name, f.name), f.type)}"
            for i, f in enumerate(data_type)
        )
        return f"CASE WHEN {name} IS NULL THEN NULL ELSE struct_pack({parts}) END"
    if types.is_list(data_type) and has_map(data_type):
        element = _build_canonical_sql("x", data_type.value_type)
        return f"list_transform({name}, lambda x: {element})"
    return name


def _build_member_sql(name: str, field_name: str) -> str:
    quoted = field_name.replace('"', '""')
    return f'{name}."{quoted}"'


def _measure_map_depth(data_type: pa.DataType) -> int:
    """Return how many maps and lists are nested, down to the innermost map."""
    if not has_map(data_type):
        return 0
    inside = max(_measure_map_depth(f.type) for f in inner_fields(data_type))
    return inside + (not pa.types.is_struct(data_type))


def has_map(data_type: pa.DataType) -> bool:
    """Return whether there is a map at any depth."""
    return pa.types.is_map(data_type) or any(has_map(f.type) for f in inner_fields(data_type))
