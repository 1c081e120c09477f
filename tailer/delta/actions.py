"""The actions of the log as typed values; :mod:`tailer.delta.parsing` parses them from JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields, force_setattr

from tailer.delta.statistics import (
    Bounds,
    Statistics,
    find_bounds,
    find_record_count,
    parse_statistics,
)
from tailer.errors import CorruptLog

#: Every number in the log fits a long.
LONG_MAX = 2**63 - 1
StringMap: TypeAlias = dict[str, str | None]

# Types of fields that may be null in the log; the empty value of the kind replaces null here.
if TYPE_CHECKING:
    Long: TypeAlias = int
    Size: TypeAlias = int
    Text: TypeAlias = str
    Texts: TypeAlias = tuple[str, ...]
    Values: TypeAlias = StringMap
    Properties: TypeAlias = dict[str, str]
else:
    Long = Annotated[int, Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
    Size = Long | None
    Text, Texts = str | None, tuple[str, ...] | None
    Values = Properties = StringMap | None


class _Action(Struct, frozen=True, rename="camel"):
    """One action; its fields are named as in the log, except for their case."""


class DeletionVectorDescriptor(_Action, frozen=True):
    """The place of a deletion vector ("Deletion Vector Descriptor Schema").

    ``size_in_bytes`` is the raw size, before base85; ``cardinality`` the number of rows deleted.
    """

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: Long
    cardinality: Long
    offset: Long | None = None

    @property
    def unique_id(self) -> str:
        """The part of a logical file's key that distinguishes its deletion vectors."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{at}"


class AddEntry(_Action, frozen=True, gc=False):
    """An add without its statistics, which are most of its bytes. ``size`` in bytes."""

    path: str
    size: Long
    data_change: bool
    partition_values: Values = {}
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None


class RemoveEntry(_Action, frozen=True, gc=False):
    """A remove without its statistics; ``deletion_timestamp`` in epoch ms.

    All fields but ``path`` and ``data_change`` are optional: older writers leave out even the
    partition values, which are None then.
    """

    path: str
    data_change: bool = True
    deletion_timestamp: Long | float | None = None
    partition_values: StringMap | None = None
    size: Long | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None


class _Counted:
    """Statistics that are parsed on demand: a commit can have a hundred thousand, and few are used.

    For an action with the fields ``stats`` and ``stats_parsed``.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        stats: Any
        stats_parsed: Any

    @property
    def num_records(self) -> int | None:
        """``numRecords``; None without statistics that can be read."""
        return find_record_count(self._parse_statistics())

    @property
    def bounds(self) -> tuple[Bounds, ...]:
        """The bounds of a few integer columns."""
        return find_bounds(self._parse_statistics())

    def _parse_statistics(self) -> Statistics:
        return parse_statistics(self.stats, self.stats_parsed)


class AddFile(AddEntry, _Counted, frozen=True, kw_only=True):
    """A logical file that is added to the table. ``modification_time`` in epoch ms, as its writer
    gave it."""

    modification_time: Any = None
    stats: Any = None
    stats_parsed: Any = msgspec.field(name="stats_parsed", default=None)

    def __post_init__(self) -> None:
        if not self.partition_values:
            force_setattr(self, "partition_values", {})


class RemoveFile(RemoveEntry, _Counted, frozen=True, kw_only=True):
    """A logical file that is removed from the table."""

    stats: Any = None
    stats_parsed: Any = msgspec.field(name="stats_parsed", default=None)


class AddCDCFile(_Action, frozen=True):
    """A file of row-level changes ("Add CDC File"). ``size`` in bytes, 0 if it is unknown."""

    path: str
    partition_values: Values = {}
    size: Size = 0

    def __post_init__(self) -> None:
        force_setattr(self, "partition_values", self.partition_values or {})
        force_setattr(self, "size", self.size or 0)


class Protocol(_Action, frozen=True):
    """What readers and writers must support ("Protocol Evolution").

    The lists of features are None below versions 3 and 7.
    """

    min_reader_version: Long
    min_writer_version: Long
    reader_features: frozenset[str] | None = None
    writer_features: frozenset[str] | None = None


_NO_COLUMNS = '{"type":"struct","fields":[]}'


class Metadata(_Action, frozen=True):
    """The table's id, schema and properties ("Change Metadata"). ``created_time``: epoch ms.

    Without a ``schemaString`` the schema is empty, as for Spark: some pipelines commit such a
    version first.
    """

    id: str
    schema_string: Text = ""
    partition_columns: Texts = ()
    configuration: Properties = {}
    name: str | None = None
    description: str | None = None
    format: Any = None
    created_time: Long | float | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "schema_string", self.schema_string or _NO_COLUMNS)
        force_setattr(self, "partition_columns", self.partition_columns or ())
        given: StringMap = dict(self.configuration or {})
        force_setattr(self, "configuration", {k: v for k, v in given.items() if v is not None})

    def __hash__(self) -> int:
        return hash((self.id, self.schema_string, self.partition_columns))

    @property
    def provider(self) -> str:
        """The format of the table's files."""
        provider = self.format.get("provider") if isinstance(self.format, dict) else None
        return provider if isinstance(provider, str) else "parquet"


class SetTransaction(_Action, frozen=True):
    """The last transaction of one application. ``last_updated``: epoch ms."""

    app_id: str
    version: Long
    last_updated: Long | None = None


class DomainMetadata(_Action, frozen=True):
    """The configuration of one metadata domain; ``removed`` makes it a tombstone."""

    domain: str
    configuration: Text = ""
    removed: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "configuration", self.configuration or "")


class CommitInfo(_Action, frozen=True):
    """Provenance of a commit. The protocol leaves its shape open: ``fields`` are those it has."""

    fields: dict[str, Any]

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


class Sidecar(_Action, frozen=True):
    """A file of file actions that a v2 checkpoint refers to. Size in bytes."""

    path: str
    size_in_bytes: Long


class CheckpointMetadata(_Action, frozen=True):
    """The mark of a v2 checkpoint, with its version."""

    version: Long


FileAction: TypeAlias = AddFile | RemoveFile | AddCDCFile
Action: TypeAlias = (
    FileAction
    | Metadata
    | Protocol
    | SetTransaction
    | DomainMetadata
    | CommitInfo
    | Sidecar
    | CheckpointMetadata
)

_A = TypeVar("_A", Protocol, Metadata, AddFile, RemoveFile)
_SAID = {
    Protocol: "there are two protocol actions",
    Metadata: "there are two metaData actions",
    AddFile: "one file is added twice",
    RemoveFile: "one file is removed twice",
}
_MAY_DIFFER = ("id", "created_time", "modification_time")


def choose_later(first: _A | None, again: _A) -> _A:
    """Return the later of two actions in one file of the log that say the same: it counts, as in
    Spark's replay. The protocol allows one, but some writers repeat it.

    Of two metaData actions ``createdTime`` may differ, which says nothing about the table, and so
    may ``id``: deltalake 0.17 to 0.22 makes a new one for each, and no row depends on it. So may
    an add's ``modificationTime``. Raises
    :class:`CorruptLog` for two that differ else, with the first field in which they do.
    """
    for field in fields(again) if first not in (None, again) else ():
        values = getattr(first, field.name), getattr(again, field.name)
        if field.name not in _MAY_DIFFER and values[0] != values[1]:
            path = getattr(again, "path", "")
            # Texts may hold rows' values, or secrets.
            shown = all(isinstance(v, int | float | frozenset | None) for v in values)
            values_shown = [sorted(v) if isinstance(v, frozenset) else v for v in values]
            both = f" ({values_shown[0]} and {values_shown[1]})" if shown else ""
            what = f"{_SAID[type(again)]}, by actions that differ in {field.encode_name}{both}"
            raise CorruptLog(f"{what}: {path}" if path else what)
    return again
