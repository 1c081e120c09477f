"""Which type of Iceberg a column of a table has, as one of Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.schema import make_compatible_name

from tailer.errors import TargetRefused


def find_stored_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type with which an Iceberg table has the values of one of Arrow, and the same for
    each spelling of it: without bytes and shorts, large offsets, names of elements, and what may
    be null."""
    types = pa.types
    if types.is_int8(data_type) or types.is_int16(data_type):
        return pa.int32()
    if types.is_large_string(data_type):
        return pa.string()
    if types.is_large_binary(data_type):
        return pa.binary()
    if types.is_map(data_type):
        return pa.map_(find_stored_type(data_type.key_type), find_stored_type(data_type.item_type))
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pa.list_(pa.field("element", find_stored_type(data_type.value_type)))
    if types.is_struct(data_type):
        return pa.struct([pa.field(f.name, find_stored_type(f.type)) for f in data_type])
    return data_type


def find_stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types of :func:`find_stored_type`, and all else of its fields."""
    return pa.schema([field.with_type(find_stored_type(field.type)) for field in schema])


def check_names(schema: pa.Schema) -> None:
    """Raise :class:`TargetRefused` for a column whose name, or that of a field in it, no Iceberg
    table can have, or has already: the package knows fields by their path with dots, and files have
    names in which all but letters and digits is replaced."""
    taken: set[str] = set()
    for column in schema:
        paths = list(_list_paths(column.with_type(find_stored_type(column.type)), ()))
        names = [name for path in paths for name in path]
        spelt = [".".join(path) for path in paths]
        what = None
        if not all(names) or any("\0" in name for name in names):
            what = "without a name, or with the character NUL in it"
        else:
            spelt += [make_compatible_name(path[0]) for path in paths if len(path) == 1]
            siblings = [(*path[:-1], make_compatible_name(path[-1])) for path in paths]
            again = len(set(siblings)) < len(siblings) or len({".".join(p) for p in paths}) < len(
                paths
            )
            if again or taken.intersection(spelt):
                what = "called like another one, by its path with dots or as files spell it"
        if what:
            raise TargetRefused(
                f"the column {column.name!r} is, or has a field, {what}, which an Iceberg table "
                "can't have; exclude it with the feed's option 'select'"
            )
        taken.update(spelt)


def _list_paths(field: pa.Field, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    path = (*above, field.name)
    yield path
    for i in range(field.type.num_fields):
        yield from _list_paths(field.type.field(i), path)
