"""Conversion of Arrow's own types, which some writers note in their files, to plain types.

pyarrow can't select rows of views, nor of types that contain views. Durations and extension types
are in the file as whole numbers and as what they are stored as; Spark and the crate read that.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type as the file stores it: string for string_view, list for list_view.

    The plain type has the same values.
    """
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return plain_type(data_type.storage_type)
    if types.is_duration(data_type):
        return pa.int64()
    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if not types.is_nested(data_type):
        return data_type
    children = [data_type.field(i) for i in range(data_type.num_fields)]
    fields = [child.with_type(plain_type(child.type)) for child in children]
    if types.is_struct(data_type):
        return pa.struct(fields)
    if types.is_map(data_type):
        entries = fields[0].type
        return pa.map_(entries.field(0), entries.field(1))
    if types.is_list(data_type) or types.is_list_view(data_type):
        return pa.list_(fields[0])
    if types.is_large_list(data_type) or types.is_large_list_view(data_type):
        return pa.large_list(fields[0])
    return data_type


def without_views(array: pa.Array) -> pa.Array:
    """Convert the array to its :func:`plain_type`; return it unchanged if it has this type."""
    if isinstance(array.type, pa.BaseExtensionType):
        return without_views(array.storage)
    wanted = plain_type(array.type)
    if wanted.equals(array.type):
        return array
    types = pa.types
    mask = array.is_null() if array.null_count else None
    if types.is_struct(wanted):
        children = [without_views(array.field(i)) for i in range(wanted.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    if types.is_map(wanted):
        # A slice's offsets are those of the whole array.
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (part.slice(first, last - first) for part in (array.keys, array.items))
        keys, items = (without_views(part) for part in parts)
        offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=mask)
    if types.is_list(wanted) or types.is_large_list(wanted):
        # Rebuilt by hand: pyarrow's cast of a list_view loses its last values.
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0))
        kind = pa.LargeListArray if types.is_large_list(wanted) else pa.ListArray
        offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
        return kind.from_arrays(offsets, without_views(array.flatten()), type=wanted, mask=mask)
    return array.cast(wanted)
