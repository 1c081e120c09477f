"""The files of checkpoints, as their writers make them: the only place that knows their columns.

"Checkpoint Schema", "Last Checkpoint File", "Version Checksum File".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.actions import Action

__all__ = [
    "CLASSIC_SCHEMA",
    "FILES_SCHEMA",
    "V2_SCHEMA",
    "checksum_document",
    "hint_document",
    "write_checkpoint",
]

_Where = TypeVar("_Where", Path, IO[bytes])

_STRINGS = pa.map_(pa.string(), pa.string())
_DV = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_FILE = {
    "path": pa.string(),
    "partitionValues": _STRINGS,
    "size": pa.int64(),
    "dataChange": pa.bool_(),
    "deletionVector": _DV,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
}
_TYPES = {
    "add": pa.struct(
        {**_FILE, "modificationTime": pa.int64(), "stats": pa.string(), "tags": _STRINGS}
    ),
    "remove": pa.struct(
        {**_FILE, "deletionTimestamp": pa.int64(), "extendedFileMetadata": pa.bool_()}
    ),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "name": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "configuration": _STRINGS,
            "createdTime": pa.int64(),
        }
    ),
    "protocol": pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": pa.list_(pa.string()),
            "writerFeatures": pa.list_(pa.string()),
        }
    ),
    "domainMetadata": pa.struct(
        {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
    ),
    "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
}
_V2_TYPES = {
    "checkpointMetadata": pa.struct({"version": pa.int64(), "tags": _STRINGS}),
    "sidecar": pa.struct(
        {"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()}
    ),
}

#: Of a sidecar; of a classic checkpoint; of a v2 checkpoint's top level in Parquet.
FILES_SCHEMA = pa.schema({name: _TYPES[name] for name in ("add", "remove")})
CLASSIC_SCHEMA = pa.schema(_TYPES)
V2_SCHEMA = pa.schema({**_TYPES, **_V2_TYPES})


def write_checkpoint(
    where: _Where,
    parts: Iterable[Sequence[Action] | Mapping[str, pa.StructArray]],
    schema: pa.Schema = CLASSIC_SCHEMA,
) -> _Where:
    """Write one Parquet file of a checkpoint, a row group for each part; return where.

    A part is a list of actions; or, for very many actions, one action kind as an array whose struct
    has some of the schema's fields.
    """
    with pq.ParquetWriter(where, schema, compression="snappy") as writer:
        for part in parts:
            writer.write_table(_build_table(part, schema))
    return where


def _build_table(
    part: Sequence[Action] | Mapping[str, pa.StructArray], schema: pa.Schema
) -> pa.Table:
    if not isinstance(part, Mapping):
        return pa.Table.from_pylist([*part], schema=schema)
    rows = max(len(column) for column in part.values())
    columns = [
        _widen_array(part[field.name], field.type)
        if field.name in part
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _widen_array(array: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    """Return the array with its missing fields added, as nulls."""
    fields = wanted.fields
    given = set(array.type.names)
    children = [
        array.field(f.name) if f.name in given else pa.nulls(len(array), f.type) for f in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields)


def hint_document(version: int, size: int, *, checksum: bool = True, **more: Any) -> Action:
    """Return ``_last_checkpoint`` for a checkpoint of ``size`` actions, with its checksum."""
    document = {"version": version, "size": size, **more}
    if checksum:
        digest = md5(_format_canonical(document).encode(), usedforsecurity=False).hexdigest()
        document["checksum"] = digest
    return document


def _format_canonical(document: Action) -> str:
    """Return the canonical form that the checksum is of: by the protocol's text, not by ours."""
    leaves = []
    for key, value in document.items():
        if isinstance(value, dict):
            leaves += [
                (f'"{key}"+"{quote(k, safe="")}"', f'"{quote(v, safe="")}"')
                for k, v in value.items()
            ]
        else:
            leaves.append((f'"{key}"', str(value)))
    return ",".join(f"{k}={v}" for k, v in sorted(leaves, key=lambda leaf: leaf[0].encode()))


def checksum_document(protocol: Action, metadata: Action, sizes: Sequence[int]) -> Action:
    """Return a version checksum of a table with live files of these sizes in bytes."""
    return {
        "tableSizeBytes": sum(sizes),
        "numFiles": len(sizes),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata["metaData"],
        "protocol": protocol["protocol"],
    }
