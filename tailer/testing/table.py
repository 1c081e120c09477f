"""Delta tables for tests, written action by action with pyarrow alone.

A :class:`TableBuilder` writes real data files, cdc files, deletion vectors, commits, checksums and
classic checkpoints. Actions are the log's own JSON objects, so that a test can change or leave out
whatever it is about before it commits them::

    table = TableBuilder(tmp_path, pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    first = table.add([{"id": 1}, {"id": 2}])
    table.commit(first)
    table.commit(*table.delete_rows(first, [0]), table.cdc([{"id": 1, "_change_type": "delete"}]))
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tailer.delta.arrow_types import is_arrow_variant
from tailer.testing.checkpoint_files import checksum_document, write_checkpoint, write_hint

__all__ = ["Action", "TableBuilder", "deletion_vector_bytes", "delta_schema", "z85_encode"]

#: One line of the log: ``{"add": {...}}`` and similar.
Action = dict[str, Any]
Row = Mapping[str, Any]

_DV_MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

_PRIMITIVES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def _delta_type(data_type: pa.DataType) -> Any:
    if data_type in _PRIMITIVES:
        return _PRIMITIVES[data_type]
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if is_arrow_variant(data_type):
        return "variant"
    if pa.types.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        return {"type": "struct", "fields": [_delta_field(f) for f in fields]}
    if pa.types.is_list(data_type):
        element = _delta_type(data_type.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(data_type):
        return {
            "type": "map",
            "keyType": _delta_type(data_type.key_type),
            "valueType": _delta_type(data_type.item_type),
            "valueContainsNull": True,
        }
    raise ValueError(f"Delta has no type for {data_type}")


def _delta_field(field: pa.Field) -> dict[str, Any]:
    metadata = {
        key.decode(): json.loads(value)
        for key, value in (field.metadata or {}).items()
        if key.startswith(b"delta.")
    }
    return {
        "name": field.name,
        "type": _delta_type(field.type),
        "nullable": field.nullable,
        "metadata": metadata,
    }


def delta_schema(schema: pa.Schema) -> str:
    """Return the ``schemaString`` of an Arrow schema ("Schema Serialization Format").

    Metadata of top-level and nested fields whose key begins with ``delta.`` goes into the log; its
    values are JSON. Raises ValueError for a type that Delta does not have.
    """
    return json.dumps({"type": "struct", "fields": [_delta_field(f) for f in schema]})


def z85_encode(data: bytes) -> str:
    """Return the Z85 text of some bytes, padded with zeros to a multiple of four."""
    text = []
    for (value,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)):
        text += [_Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(text)


def deletion_vector_bytes(rows: Iterable[int]) -> bytes:
    """Return magic and bitmap of a deletion vector ("Deletion Vector Format"), without size and
    CRC."""
    return struct.pack("<i", _DV_MAGIC) + bytes(BitMap64(rows).serialize())


class TableBuilder:
    """Writes one table. ``folder`` is the table's root, created if necessary.

    ``schema`` holds all columns, also those of ``partition_by``, which are left out of the files.
    With ``cdf`` the table has the change data feed on; ``properties`` are further entries of the
    configuration. The builder never overwrites a commit: a version that exists is an error.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        cdf: bool = False,
        properties: Mapping[str, str] | None = None,
        table_id: str | None = None,
    ) -> None:
        self.folder = folder
        self.schema = schema
        self.partition_by = tuple(partition_by)
        self.properties = {
            **({"delta.enableChangeDataFeed": "true"} if cdf else {}),
            **(properties or {}),
        }
        self.table_id = table_id or str(uuid.uuid4())
        self.log = folder / "_delta_log"
        self.log.mkdir(parents=True, exist_ok=True)

    # Actions

    def protocol(self, reader: int = 1, writer: int = 4, **features: Sequence[str]) -> Action:
        """Return a protocol action; ``readerFeatures`` and ``writerFeatures`` are keyword
        arguments."""
        lists = {name: list(values) for name, values in features.items()}
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **lists}}

    def metadata(self, **fields: Any) -> Action:
        """Return a metaData action of the builder's schema; ``fields`` replace or add some."""
        return {
            "metaData": {
                "id": self.table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": delta_schema(self.schema),
                "partitionColumns": list(self.partition_by),
                "configuration": dict(self.properties),
                "createdTime": 0,
                **fields,
            }
        }

    def add(
        self,
        rows: Sequence[Row],
        *,
        partition: Mapping[str, str | None] | None = None,
        path: str | None = None,
        row_group_size: int | None = None,
        **fields: Any,
    ) -> Action:
        """Write a data file, and return its add action.

        ``partition`` has the partition values as the log spells them, ``path`` the file's decoded
        path; ``fields`` replace or add some of the action's.
        """
        where = path or f"part-{uuid.uuid4()}.parquet"
        size = self._write(where, rows, self._file_schema(), row_group_size)
        return {
            "add": {
                "path": quote(where),
                "partitionValues": dict(partition or {}),
                "size": size,
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps({"numRecords": len(rows)}),
                **fields,
            }
        }

    def remove(self, add: Action, **fields: Any) -> Action:
        """Return the remove action for the file of an add; ``fields`` replace or add some of it."""
        kept = ("path", "partitionValues", "size", "deletionVector", "baseRowId",
                "defaultRowCommitVersion")  # fmt: skip
        return {
            "remove": {
                **{name: add["add"][name] for name in kept if name in add["add"]},
                "deletionTimestamp": 0,
                "dataChange": True,
                "extendedFileMetadata": True,
                **fields,
            }
        }

    def cdc(
        self,
        rows: Sequence[Row],
        *,
        partition: Mapping[str, str | None] | None = None,
        path: str | None = None,
        **fields: Any,
    ) -> Action:
        """Write a cdc file, and return its cdc action; each row has its ``_change_type``."""
        where = path or f"_change_data/cdc-{uuid.uuid4()}.parquet"
        schema = self._file_schema().append(pa.field("_change_type", pa.string()))
        return {
            "cdc": {
                "path": quote(where),
                "partitionValues": dict(partition or {}),
                "size": self._write(where, rows, schema),
                "dataChange": False,
                **fields,
            }
        }

    def delete_rows(
        self, add: Action, rows: Iterable[int], storage: str = "u"
    ) -> tuple[Action, Action]:
        """Return the remove and the add that leave a file with these row positions deleted (all
        that are deleted after it, not only the new ones). ``storage``: as in :meth:`vector`."""
        after = {**add["add"], "deletionVector": self.vector(rows, storage)}
        return self.remove(add), {"add": after}

    def vector(self, rows: Iterable[int], storage: str = "u") -> dict[str, Any]:
        """Return a deletion vector's descriptor; ``u`` and ``p`` write a file too, ``i`` is
        inline."""
        data = deletion_vector_bytes(rows := list(rows))
        if storage != "i":
            return self.vectors([rows], storage)[0]
        size = {"sizeInBytes": len(data), "cardinality": len(rows)}
        return {"storageType": storage, "pathOrInlineDv": z85_encode(data), **size}

    def vectors(
        self, several: Iterable[Iterable[int]], storage: str = "u", prefix: str = ""
    ) -> list[dict[str, Any]]:
        """Return descriptors of several deletion vectors that lie in one file, one after the other.

        ``prefix`` is the random folder that the file lies in, for storage ``u``.
        """
        name = uuid.uuid4()
        file = self.folder / prefix / f"deletion_vector_{name}.bin"
        where = file.absolute().as_uri()
        if storage == "u":
            where = prefix + z85_encode(name.bytes)
        stored, found = b"\x01", []
        for rows in map(list, several):
            data = deletion_vector_bytes(rows)
            found.append(
                {
                    "storageType": storage,
                    "pathOrInlineDv": where,
                    "offset": len(stored),
                    "sizeInBytes": len(data),
                    "cardinality": len(rows),
                }
            )
            stored += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(stored)
        return found

    def _file_schema(self) -> pa.Schema:
        return pa.schema([f for f in self.schema if f.name not in self.partition_by])

    def _write(
        self, where: str, rows: Sequence[Row], schema: pa.Schema, group: int | None = None
    ) -> int:
        """Write these rows to a Parquet file, and return its size in bytes."""
        file = self.folder / where
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        pq.write_table(table, file, row_group_size=group)
        return file.stat().st_size

    # The log

    def commit_path(self, version: int) -> Path:
        """Return the commit file of a version."""
        return self.log / f"{version:020d}.json"

    @property
    def version(self) -> int:
        """Return the newest version; -1 before the first."""
        return max((int(f.stem) for f in self.log.glob("*.json") if f.stem.isdigit()), default=-1)

    def create(self, *actions: Action, timestamp_ms: int | None = None) -> int:
        """Commit version 0: protocol, metaData and further actions."""
        if not any("protocol" in action for action in actions):
            actions = (self.protocol(), *actions)
        return self.commit(*actions, self.metadata(), version=0, timestamp_ms=timestamp_ms)

    def commit(
        self, *actions: Action, version: int | None = None, timestamp_ms: int | None = None
    ) -> int:
        """Commit these actions as the next version, or as ``version``; return the version.
        Without actions it is a commit that changes nothing.

        ``timestamp_ms`` becomes the commit file's modification time. The file appears whole, and
        only if it does not exist: otherwise raises FileExistsError.
        """
        version = self.version + 1 if version is None else version
        temporary = self.log / f".{uuid.uuid4()}.tmp"
        lines: Sequence[Action] = actions or [{"commitInfo": {}}]
        temporary.write_text("".join(json.dumps(action) + "\n" for action in lines))
        if timestamp_ms is not None:
            os.utime(temporary, ns=(timestamp_ms * 1_000_000,) * 2)
        try:
            os.link(temporary, self.commit_path(version))
        finally:
            temporary.unlink()
        return version

    def insert(self, rows: Sequence[Row], **options: Any) -> int:
        """Commit one new data file; ``options`` as of :meth:`add`. Returns the version."""
        return self.commit(self.add(rows, **options))

    def actions(self, last: int | None = None) -> list[Action]:
        """Return all actions of the log's commits up to a version, oldest first."""
        versions = range((self.version if last is None else last) + 1)
        lines = (line for v in versions for line in self.commit_path(v).read_text().splitlines())
        return [json.loads(line) for line in lines]

    def checkpoint(self, version: int | None = None, *, hint: bool = True) -> Path:
        """Write the classic checkpoint of a version, and ``_last_checkpoint`` with ``hint``.

        Needs the commits from version 0 on. Returns the checkpoint's path.
        """
        version = self.version if version is None else version
        rows = self.reconciled(version)
        path = self.log / f"{version:020d}.checkpoint.parquet"
        write_checkpoint(path, [rows])
        if hint:
            write_hint(self.log, version, len(rows))
        return path

    def checksum(self, version: int | None = None, **fields: Any) -> Path:
        """Write the version checksum of a version (``.crc``); ``fields`` replace some of it.

        Needs the commits from version 0 on. Returns its path.
        """
        version = self.version if version is None else version
        actions = {next(iter(a)): a for a in self.reconciled(version)}
        sizes = [a["add"]["size"] for a in self.reconciled(version) if "add" in a]
        document = checksum_document(actions["protocol"], actions["metaData"], sizes)
        path = self.log / f"{version:020d}.crc"
        path.write_text(json.dumps({**document, **fields}))
        return path

    def reconciled(self, version: int) -> list[Action]:
        """Return the actions in effect at a version ("Action Reconciliation"), with tombstones."""
        single: dict[str, Action] = {}
        files: dict[tuple[str, str], Action] = {}
        for action in self.actions(version):
            ((kind, values),) = action.items()
            if kind in ("add", "remove"):
                dv = values.get("deletionVector")
                files[values["path"], json.dumps(dv)] = action
            elif kind in ("protocol", "metaData"):
                single[kind] = action
            elif kind in ("txn", "domainMetadata"):
                single[kind + str(values.get("appId", values.get("domain")))] = action
        return [*single.values(), *files.values()]
