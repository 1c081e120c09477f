"""What pyiceberg makes of lists and maps of structs, with their nulls.

pyiceberg 0.12 puts such a column together again from its offsets, when it writes a file and when it
reads one, and a list that is null becomes one without elements. Its two methods are replaced by
ones that keep what says which are null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType


def keep_nulls() -> None:
    """Replace the methods, for this process."""
    visitor: Any = ArrowProjectionVisitor
    visitor.list, visitor.map = _project_list, _project_map


def _project_list(
    self: Any, list_type: ListType, array: pa.Array | None, values: pa.Array | None
) -> pa.Array | None:
    if array is None or values is None:
        return None
    values = self._cast_if_needed(list_type.element_field, values)
    element = self._construct_field(list_type.element_field, values.type)
    whole = pa.large_list(element) if pa.types.is_large_list(array.type) else pa.list_(element)
    return _rebuild_array(whole, array, values)


def _project_map(
    self: Any, map_type: MapType, array: pa.Array | None, keys: pa.Array | None,
    items: pa.Array | None,
) -> pa.Array | None:  # fmt: skip
    if array is None or keys is None or items is None:
        return None
    keys = self._cast_if_needed(map_type.key_field, keys)
    items = self._cast_if_needed(map_type.value_field, items)
    fields = [
        self._construct_field(map_type.key_field, keys.type),
        self._construct_field(map_type.value_field, items.type),
    ]
    entries = pa.StructArray.from_arrays([keys, items], fields=fields)
    return _rebuild_array(pa.map_(fields[0], fields[1]), array, entries)


def _rebuild_array(whole: pa.DataType, array: pa.Array, child: pa.Array) -> pa.Array:
    """Return a list or map with the nulls and offsets of another one."""
    return pa.Array.from_buffers(
        whole, len(array), array.buffers()[:2], array.null_count, array.offset, [child]
    )
