"""What pyiceberg 0.12 does otherwise than a daemon needs, set right for this process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog import rest
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType
from requests import Response, Session

#: How long to wait for a connection to a catalog, and for the next byte of its answer, in seconds.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 60.0


def patch_pyiceberg() -> None:
    """Have a REST catalog that stands still not waited for without end, and lists and maps keep
    their nulls: the package puts those of structs together again from their offsets, when it
    writes a file and when it reads one, and what is null becomes one without elements."""
    module: Any = rest
    module.Session = _Session
    visitor: Any = ArrowProjectionVisitor
    visitor.list, visitor.map = _project_list, _project_map


class _Session(Session):
    def request(self, *args: Any, **more: Any) -> Response:
        more.setdefault("timeout", (CONNECT_TIMEOUT_S, READ_TIMEOUT_S))
        return super().request(*args, **more)


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
