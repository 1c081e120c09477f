"""The actions of the log as typed values; :mod:`tailer.delta.parsing` makes them from JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailer.delta.statistics import Bounds

__all__ = [
    "Action",
    "AddCDCFile",
    "AddFile",
    "CheckpointMetadata",
    "CommitInfo",
    "DeletionVectorDescriptor",
    "DomainMetadata",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "SetTransaction",
    "Sidecar",
]

StringMap = dict[str, str | None]

#: Every number of the log is a long at most.
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DeletionVectorDescriptor:
    """Where a deletion vector lies ("Deletion Vector Descriptor Schema").

    ``size_in_bytes`` is the raw size, before base85; ``cardinality`` the number of rows deleted.
    """

    storage_type: str
    path_or_inline_dv: str
    offset: int | None
    size_in_bytes: int
    cardinality: int

    @property
    def unique_id(self) -> str:
        """The part of a logical file's key that tells its deletion vectors apart."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{at}"


@dataclass(frozen=True, slots=True)
class Protocol:
    """What readers and writers must know ("Protocol Evolution"). Features: None below 3 and 7."""

    min_reader_version: int
    min_writer_version: int
    reader_features: frozenset[str] | None = None
    writer_features: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table's id, schema and properties ("Change Metadata"). ``created_time``: epoch ms."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str] = field(hash=False)
    name: str | None = None
    description: str | None = None
    provider: str = "parquet"
    created_time: int | None = None


@dataclass(frozen=True, slots=True)
class AddFile:
    """A logical file that comes into the table. ``size`` in bytes, times in epoch ms."""

    path: str
    partition_values: StringMap = field(hash=False)
    size: int
    modification_time: int
    data_change: bool
    num_records: int | None = None
    bounds: tuple[Bounds, ...] = ()
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A logical file that leaves the table. All but ``path`` and ``data_change`` may be lacking:
    older writers leave out even the partition values, and None says that they did."""

    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    partition_values: StringMap | None = field(default=None, hash=False)
    size: int | None = None
    num_records: int | None = None
    bounds: tuple[Bounds, ...] = ()
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    extended_file_metadata: bool | None = None


@dataclass(frozen=True, slots=True)
class AddCDCFile:
    """A file of row-level changes ("Add CDC File"). ``size`` in bytes."""

    path: str
    partition_values: StringMap = field(hash=False)
    size: int


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """The last transaction of one application. ``last_updated``: epoch ms."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """The configuration of one metadata domain; ``removed`` makes it a tombstone."""

    domain: str
    configuration: str
    removed: bool


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Provenance of a commit. The protocol leaves its shape open: ``fields`` is what was there."""

    fields: dict[str, Any] = field(hash=False)

    @property
    def in_commit_timestamp(self) -> int | None:
        """Epoch ms ("In-Commit Timestamps"), if the writer gave one."""
        value = self.fields.get("inCommitTimestamp")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def row_tracking_preserved(self) -> bool:
        """Whether the writer says that it kept all stable row ids ("Row Tracking", writers)."""
        tags = self.fields.get("tags")
        return isinstance(tags, dict) and tags.get("delta.rowTracking.preserved") == "true"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file of file actions that a v2 checkpoint refers to. Size in bytes, time in epoch ms."""

    path: str
    size_in_bytes: int
    modification_time: int


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Marks a v2 checkpoint and gives its version."""

    version: int


Action = (
    AddFile
    | RemoveFile
    | AddCDCFile
    | Metadata
    | Protocol
    | SetTransaction
    | DomainMetadata
    | CommitInfo
    | Sidecar
    | CheckpointMetadata
)
