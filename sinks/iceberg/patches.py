"""What pyiceberg 0.12 does otherwise than a daemon needs, set right for this process."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import rest
from pyiceberg.catalog.rest import auth
from pyiceberg.io import pyarrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.types import ListType, MapType
from requests import Response, Session

#: How long to wait for a connection to a catalog, and for the next byte of its answer, in seconds.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 60.0


def patch_pyiceberg() -> None:
    """Have a REST catalog that stands still not waited for without end, bounds of texts that a file
    can have, and lists and maps keep their nulls: the package puts those of structs together again
    from their offsets, when it writes a file and when it reads one, and what is null becomes one
    without elements."""
    module: Any = rest
    module.Session = _Session
    visitor: Any = ArrowProjectionVisitor
    visitor.list, visitor.map = _project_list, _project_map
    of_tokens: Any = auth
    of_tokens.requests = _Requests
    arrow: Any = pyarrow
    arrow.truncate_upper_bound_text_string = _find_upper_bound


class RewriteSnapshot(_OverwriteFiles):
    """A snapshot in which files take the place of others. The package's own keeps, and reads at
    each commit, the list of each snapshot that ever removed a file."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [
            each
            for each in super()._existing_manifests()
            if each.has_added_files() or each.has_existing_files()
        ]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [each for each in manifests if each.content == ManifestContent.DATA]
        deletes = [each for each in manifests if each.content != ManifestContent.DATA]
        properties = self._transaction.table_metadata.properties
        merger: Any = _ManifestMergeManager(
            target_size_bytes=TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
            min_count_to_merge=TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT,
            merge_enabled=properties.get(TableProperties.MANIFEST_MERGE_ENABLED) == "true",
            snapshot_producer=self,
        )
        merged: list[ManifestFile] = merger.merge_manifests(data)
        return merged + deletes


class _Requests:
    """What asks for a token with the type ``oauth2``."""

    @staticmethod
    def post(*args: Any, **more: Any) -> Response:
        with _Session() as session:
            return session.post(*args, **more)


def _find_upper_bound(value: str, length: int | None) -> str | None:
    """Return a text that is not less than those that begin like this one. The package's own has a
    surrogate, which no file can have, behind U+D7FF."""
    cut = value[:length]
    if cut == value:
        return cut
    for i in reversed(range(len(cut))):
        following = ord(cut[i]) + 1
        if following <= sys.maxunicode:
            return cut[:i] + chr(0xE000 if following == 0xD800 else following)
    return None


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
