"""The actions of a Delta log as JSON objects, and what they refer to as bytes: pure functions.

"Actions", "Schema Serialization Format", "Deletion Vector Format". A
:class:`~tailer.testing.table.TableBuilder` writes with them; a test that has a model of its own
table makes its actions with them too.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyroaring import BitMap64

from tailer.delta.arrow_types import delta_field

__all__ = [
    "Action",
    "add_action",
    "cdc_action",
    "deletion_vector_bytes",
    "delta_schema",
    "inline_vector",
    "metadata_action",
    "remove_action",
    "vector_file",
    "z85_encode",
]

#: One line of the log: ``{"add": {...}}`` and similar.
Action = dict[str, Any]

_DV_MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
#: Of an add action, what its remove repeats if it is not lean.
_REPEATED = ("partitionValues", "size", "baseRowId", "defaultRowCommitVersion", "tags")


def delta_schema(schema: pa.Schema) -> str:
    """Return the ``schemaString`` of an Arrow schema ("Schema Serialization Format").

    Metadata of top-level and nested fields whose key begins with ``delta.`` goes into the log; its
    values are JSON. Raises ValueError for a type that Delta does not have.
    """
    return json.dumps({"type": "struct", "fields": [delta_field(f) for f in schema]})


def metadata_action(
    table_id: str,
    schema: pa.Schema | str,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    /,
    **fields: Any,
) -> Action:
    """Return a metaData action; ``schema`` may be a ``schemaString``. ``fields`` replace or add
    some of it."""
    text = schema if isinstance(schema, str) else delta_schema(schema)
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": list(partition_by),
            "configuration": dict(properties or {}),
            "createdTime": 0,
            **fields,
        }
    }


def add_action(
    path: str,
    size: int,
    rows: int,
    partition: Mapping[str, str | None] | None = None,
    /,
    **fields: Any,
) -> Action:
    """Return the add action of a data file of so many bytes and rows; ``path`` is decoded.
    ``fields`` replace or add some of it."""
    return {
        "add": {
            "path": quote(path),
            "partitionValues": dict(partition or {}),
            "size": size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
            **fields,
        }
    }


def remove_action(add: Action, /, *, lean: bool = False, **fields: Any) -> Action:
    """Return the remove action for the file of an add; ``fields`` replace or add some of it.
    With ``lean`` it says no more than the protocol requires."""
    file = add["add"]
    known = {name: file[name] for name in ("path", "deletionVector") if name in file}
    if not lean:
        known |= {name: file[name] for name in _REPEATED if name in file}
        known["extendedFileMetadata"] = True
    return {"remove": {**known, "deletionTimestamp": 0, "dataChange": True, **fields}}


def cdc_action(
    path: str, size: int, partition: Mapping[str, str | None] | None = None, /, **fields: Any
) -> Action:
    """Return the cdc action of a file of so many bytes; as :func:`add_action`."""
    known = {"path": quote(path), "partitionValues": dict(partition or {}), "size": size}
    return {"cdc": {**known, "dataChange": False, **fields}}


def z85_encode(data: bytes) -> str:
    """Return the Z85 text of some bytes, padded with zeros to a multiple of four."""
    text = []
    for (value,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)):
        text += [_Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(text)


def deletion_vector_bytes(rows: Iterable[int], *, run: bool = False) -> bytes:
    """Return magic and bitmap of a deletion vector ("Deletion Vector Format"), without size and
    CRC; with ``run`` the bitmap may have containers of runs."""
    bitmap = BitMap64(rows)
    if run:
        bitmap.run_optimize()
    return struct.pack("<i", _DV_MAGIC) + bytes(bitmap.serialize())


def inline_vector(rows: Iterable[int], *, run: bool = False) -> dict[str, Any]:
    """Return the descriptor of a deletion vector that holds it itself."""
    positions = list(rows)
    data = deletion_vector_bytes(positions, run=run)
    size = {"sizeInBytes": len(data), "cardinality": len(positions)}
    return {"storageType": "i", "pathOrInlineDv": z85_encode(data), **size}


def vector_file(several: Iterable[Iterable[int]], *, run: bool = False) -> tuple[bytes, list[Any]]:
    """Return a file of deletion vectors, and of each its offset, size and cardinality as a
    descriptor has them."""
    stored, places = b"\x01", []
    for positions in map(list, several):
        data = deletion_vector_bytes(positions, run=run)
        size = {"sizeInBytes": len(data), "cardinality": len(positions)}
        places.append({"offset": len(stored), **size})
        stored += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return stored, places
