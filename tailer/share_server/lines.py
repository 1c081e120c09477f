"""The lines of an answer: actions of the log in the protocol's parquet and delta formats.

Actions are the JSON objects of the log, so that the delta format passes on fields that are not read
here (tags, full statistics). Only locations change: ``path`` becomes a URL, and so does the file of
a deletion vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailer.delta.actions import DeletionVectorDescriptor, Metadata, Protocol
from tailer.delta.checksum import VersionChecksum
from tailer.delta.features import FEATURES, supports_feature
from tailer.delta.paths import find_dv_location, parse_location
from tailer.delta.schema import ArrayType, DataType, MapType, PrimitiveType, StructType
from tailer.delta.snapshot import TableState
from tailer.share_server.refusals import unsupported_operation
from tailer.sharing.model import Capabilities, ResponseFormat

#: Features for reading the log do not concern clients, which get files.
_SERVER_SIDE = {"v2checkpoint", "vacuumprotocolcheck"}
#: One encoder for all lines: creating it takes as long as writing a line.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_IN_COMMIT = {
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
}
_PARQUET_TYPES = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date",
    "timestamp",
}  # fmt: skip


#: Features that recipients do not see: this server asks the catalog.
_OF_CATALOGS = frozenset(f.name for f in FEATURES.values() if f.by_catalog)


def _find_needed_features(state: TableState) -> set[str]:
    """Return the reader features that a client needs for this table's files, in lower case."""
    found = {
        f.name.lower()
        for f in FEATURES.values()
        if f.for_readers and not f.by_catalog and supports_feature(state.protocol, f.name)
    }
    if state.mapping == "none":
        found.discard("columnmapping")  # supported by the protocol, and not in use
    return found - _SERVER_SIDE


def _has_plain_types(data_type: DataType) -> bool:
    match data_type:
        case PrimitiveType(name):
            return name in _PARQUET_TYPES or name.startswith(("decimal", "char", "varchar"))
        case ArrayType(element):
            return _has_plain_types(element)
        case MapType(key, value):
            return _has_plain_types(key) and _has_plain_types(value)
        case StructType(fields):
            return all(_has_plain_types(f.type) for f in fields)


def needs_delta(state: TableState) -> bool:
    """Return whether the parquet format can't express this version of a table."""
    return bool(_find_needed_features(state)) or not _has_plain_types(state.schema)


def choose_format(asked: Capabilities, *states: TableState) -> ResponseFormat:
    """Return the format of an answer about these states.

    "Delta Sharing Capabilities Header". Raises a :class:`Refusal` if the client accepts no format
    that fits, or lacks a reader feature.
    """
    needed = any(needs_delta(state) for state in states)
    chosen = asked.choose_format(needs_delta=needed)
    features = set().union(*(_find_needed_features(state) for state in states))
    if chosen is None:
        why = ", ".join(sorted(features)) or "types that the parquet format lacks"
        raise unsupported_operation(
            f"the table needs responseformat=delta ({why}), and the client takes "
            f"{', '.join(asked.response_formats) or 'parquet'} only"
        )
    missing = features - asked.reader_features
    if chosen == "delta" and missing:
        raise unsupported_operation(
            f"the table needs the reader features {', '.join(sorted(missing))}, which the client "
            "does not announce in delta-sharing-capabilities"
        )
    return chosen


def _encode_line(document: dict[str, Any]) -> bytes:
    return _ENCODER.encode(document).encode() + b"\n"


def _compute_file_id(root: str, where: str) -> str:
    """Return a file's id, which does not reveal its location.

    It is the same for the same file in every answer, even if the table was replaced in between.
    """
    return hashlib.blake2b(f"{root}\0{where}".encode(), digest_size=16).hexdigest()


class _SentVector(NamedTuple):
    """A deletion vector as it is sent, and the id of its file; None: it is inline."""

    values: dict[str, Any]
    file_id: str | None


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes lines in one format.

    ``root`` is the table's address; ``url`` gives the URL of a location, valid until
    ``expires_ms``; ``versioned``: lines carry version and timestamp; ``feed``: the table's change
    data feed is shared.
    """

    form: ResponseFormat
    root: str
    url: Callable[[str], str]
    expires_ms: int
    versioned: bool
    feed: bool

    def make_protocol_line(self, protocol: Protocol) -> bytes:
        """Return the first line, with the protocol."""
        if self.form == "parquet":
            return _encode_line({"protocol": {"minReaderVersion": 1}})
        values: dict[str, Any] = {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
        }
        if protocol.reader_features is not None:
            values["readerFeatures"] = sorted(protocol.reader_features - _OF_CATALOGS)
        if protocol.writer_features is not None:
            values["writerFeatures"] = sorted(protocol.writer_features - _OF_CATALOGS)
        return _encode_line({"protocol": {"deltaProtocol": values}})

    def make_metadata_line(
        self, state: TableState, version: int | None, sums: VersionChecksum | None
    ) -> bytes:
        """Return the line of a version's metadata; ``sums`` add its size if the log has them."""
        more: dict[str, Any] = {}
        if self.versioned and version is not None:
            more["version"] = version
        if sums is not None:
            more |= {"size": sums.table_size_bytes, "numFiles": sums.num_files}
        metadata = _make_metadata(state.metadata)
        if self.form == "delta":
            return _encode_line({"metaData": {"deltaMetadata": metadata, **more}})
        metadata.pop("createdTime", None)
        metadata["format"].pop("options")
        feed = self.feed and state.cdf
        metadata["configuration"] = {"enableChangeDataFeed": "true"} if feed else {}
        return _encode_line({"metaData": {**metadata, **more}})

    def make_file_line(
        self, kind: str, action: dict[str, Any], version: int, timestamp_ms: int, *, snapshot: bool
    ) -> bytes:
        """Return the line of an add, remove or cdc action.

        ``snapshot``: of a table's files instead of its changes.
        """
        where = parse_location(action["path"])
        document: dict[str, Any] = {"id": _compute_file_id(self.root, where)}
        if self.form == "delta":
            changed = dict(action)
            changed["path"] = self.url(where)
            dv = action.get("deletionVector")
            if dv is not None:
                vector = self._move_vector(dv)
                changed["deletionVector"] = vector.values
                if vector.file_id is not None:
                    document["deletionVectorFileId"] = vector.file_id
            if self.versioned:
                document |= {"version": version, "timestamp": timestamp_ms}
            document["expirationTimestamp"] = self.expires_ms
            document["deltaSingleAction"] = {kind: changed}
            return _encode_line({"file": document})
        document = {"url": self.url(where), **document}
        document["partitionValues"] = action.get("partitionValues") or {}
        document["size"] = action.get("size") or 0
        if kind == "add" and isinstance(action.get("stats"), str):
            document["stats"] = action["stats"]
        if self.versioned:
            document |= {"version": version, "timestamp": timestamp_ms}
        document["expirationTimestamp"] = self.expires_ms
        name = "file" if snapshot else {"cdc": "cdf"}.get(kind, kind)
        return _encode_line({name: document})

    def _move_vector(self, values: dict[str, Any]) -> _SentVector:
        descriptor = DeletionVectorDescriptor(
            values["storageType"], values["pathOrInlineDv"], values["sizeInBytes"],
            values["cardinality"], values.get("offset"),
        )  # fmt: skip
        where = find_dv_location(descriptor)
        if where is None:
            return _SentVector(values, None)
        moved = {**values, "storageType": "p", "pathOrInlineDv": self.url(where)}
        return _SentVector(moved, _compute_file_id(self.root, where))


def _make_metadata(metadata: Metadata) -> dict[str, Any]:
    # Commits are not sent, and so neither are the timestamps in them: a client that builds a log
    # from these lines would miss them. A line's `timestamp` is the one that counts.
    configuration = {k: v for k, v in metadata.configuration.items() if k not in _IN_COMMIT}
    values: dict[str, Any] = {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": metadata.provider, "options": {}},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": configuration,
        "createdTime": metadata.created_time,
    }
    return {key: value for key, value in values.items() if value is not None}
