"""The actions of the log as typed values, and the parsing of one JSON line into one of them.

Unknown actions and unknown fields are passed over ("Protocol Evolution"); a known action that
lacks a required field, or has one of the wrong kind, is an error. Where an object names a key
twice, the last one counts, as in Spark; an action twice on one line is refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple, force_setattr

from tailer.delta.statistics import Bounds, Statistics, bounds, file_statistics, record_count
from tailer.errors import CorruptLog

__all__ = [
    "Action",
    "AddCDCFile",
    "AddFile",
    "CheckpointMetadata",
    "CommitInfo",
    "DeletionVectorDescriptor",
    "DomainMetadata",
    "FileAction",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "SetTransaction",
    "Sidecar",
    "action_of",
    "parse_line",
]

#: Every number of the log is a long at most.
LONG_MAX = 2**63 - 1
StringMap: TypeAlias = dict[str, str | None]

# What may be null in the log, and stands for the empty value of its kind here.
if TYPE_CHECKING:
    Long: TypeAlias = int
    Text: TypeAlias = str
    Texts: TypeAlias = tuple[str, ...]
    Values: TypeAlias = StringMap
    Properties: TypeAlias = dict[str, str]
else:
    Long = Annotated[int, Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
    Text, Texts = str | None, tuple[str, ...] | None
    Values = Properties = StringMap | None


class _Action(Struct, frozen=True, rename="camel"):
    """One action, its fields named as in the log but for their case."""


class DeletionVectorDescriptor(_Action, frozen=True):
    """Where a deletion vector lies ("Deletion Vector Descriptor Schema").

    ``size_in_bytes`` is the raw size, before base85; ``cardinality`` the number of rows deleted.
    """

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: Long
    cardinality: Long
    offset: Long | None = None

    @property
    def unique_id(self) -> str:
        """The part of a logical file's key that tells its deletion vectors apart."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{at}"


class _Counted(_Action, frozen=True):
    """An action with the statistics of its file, read when they are asked for: a commit can hold
    a hundred thousand of them, and few are."""

    @property
    def num_records(self) -> int | None:
        """``numRecords``; None without statistics that can be read."""
        return record_count(self._statistics())

    @property
    def bounds(self) -> tuple[Bounds, ...]:
        """The bounds of a few integer columns."""
        return bounds(self._statistics())

    def _statistics(self) -> Statistics:
        return file_statistics(self.stats, self.stats_parsed)  # type: ignore[attr-defined]  # below


class AddFile(_Counted, frozen=True):
    """A logical file that comes into the table. ``size`` in bytes."""

    path: str
    size: Long
    data_change: bool
    partition_values: Values = {}
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None
    stats: Any = None
    stats_parsed: Any = msgspec.field(name="stats_parsed", default=None)

    def __post_init__(self) -> None:
        if not self.partition_values:
            force_setattr(self, "partition_values", {})


class RemoveFile(_Counted, frozen=True):
    """A logical file that leaves the table; ``deletion_timestamp`` in epoch ms.

    All but ``path`` and ``data_change`` may be lacking: older writers leave out even the partition
    values, and None says that they did.
    """

    path: str
    data_change: bool = True
    deletion_timestamp: Long | float | None = None
    partition_values: StringMap | None = None
    size: Long | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None
    stats: Any = None
    stats_parsed: Any = msgspec.field(name="stats_parsed", default=None)


class AddCDCFile(_Action, frozen=True):
    """A file of row-level changes ("Add CDC File"). ``size`` in bytes, 0 if it is not known."""

    path: str
    partition_values: Values = {}
    size: Long | None = None

    def __post_init__(self) -> None:
        if not self.partition_values:
            force_setattr(self, "partition_values", {})


class Protocol(_Action, frozen=True):
    """What readers and writers must know ("Protocol Evolution"). Features: None below 3 and 7."""

    min_reader_version: Long
    min_writer_version: Long
    reader_features: frozenset[str] | None = None
    writer_features: frozenset[str] | None = None


class Metadata(_Action, frozen=True):
    """The table's id, schema and properties ("Change Metadata"). ``created_time``: epoch ms."""

    id: str
    schema_string: str
    partition_columns: Texts = ()
    configuration: Properties = {}
    name: str | None = None
    description: str | None = None
    format: Any = None
    created_time: Long | float | None = None

    def __post_init__(self) -> None:
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
    """Provenance of a commit. The protocol leaves its shape open: ``fields`` is what was there."""

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
    """Marks a v2 checkpoint and gives its version."""

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


class _Skipped(Struct):
    """An object whose fields nobody asks for."""


class _Steering(Struct, rename="camel"):
    """A line of the log, by the kinds of action that are no files."""

    add: _Skipped | None = None
    remove: _Skipped | None = None
    cdc: _Skipped | None = None
    meta_data: Metadata | None = None
    protocol: Protocol | None = None
    txn: SetTransaction | None = None
    domain_metadata: DomainMetadata | None = None
    commit_info: dict[str, Any] | None = None
    sidecar: Sidecar | None = None
    checkpoint_metadata: CheckpointMetadata | None = None


class _Line(_Steering):
    """A line of the log."""

    add: AddFile | None = None  # type: ignore[assignment]  # all of it, here
    remove: RemoveFile | None = None  # type: ignore[assignment]
    cdc: AddCDCFile | None = None  # type: ignore[assignment]


_TYPES = {
    "add": AddFile,
    "remove": RemoveFile,
    "cdc": AddCDCFile,
    "metaData": Metadata,
    "protocol": Protocol,
    "txn": SetTransaction,
    "domainMetadata": DomainMetadata,
    "sidecar": Sidecar,
    "checkpointMetadata": CheckpointMetadata,
}

_QUOTED = [f'"{field.encode_name}"'.encode() for field in msgspec.structs.fields(_Line)]
_LINES = msgspec.json.Decoder(_Line)
_STEERING = msgspec.json.Decoder(_Steering)


def parse_line(line: bytes | str, *, files: bool = True) -> Action | None:
    """The action on one line of a commit file; None for a blank line or an unknown action.

    Without ``files`` a line with an add, remove or cdc action need only be a JSON object, and is
    None. Raises :class:`CorruptLog` without a place: the caller knows file and line number. A line
    with two actions is refused, since one of them would be lost.
    """
    data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
    if not data or data.isspace():
        return None
    decoder = _LINES if files else _STEERING
    try:
        found = decoder.decode(data)
    except (ValueError, RecursionError):
        found = _converted(data, decoder.type)
    return _only(found, data)


def action_of(kind: str, values: Any) -> Action | None:
    """The typed action of one ``{kind: values}`` pair; None if the kind is not known here.

    Raises :class:`CorruptLog` where a required field is missing or of the wrong kind.
    """
    if values is None or kind not in _TYPES:
        return None
    try:
        return msgspec.convert(values, _TYPES[kind])  # type: ignore[no-any-return]  # an action
    except msgspec.ValidationError as e:
        raise CorruptLog(_reason(e, kind)) from None


def _only(found: _Steering, data: bytes) -> Action | None:
    """The one action that a line may have."""
    actions = astuple(found)
    if actions.count(None) < len(actions) - 1:
        raise CorruptLog("the line has two actions, and a line may have one")
    for quoted, action in zip(_QUOTED, actions, strict=True):
        if action is not None:
            if data.count(quoted) > 1:  # of two that are named alike only the last one was found
                _check_names(data)
            if isinstance(action, dict):
                return CommitInfo(action)
            return None if isinstance(action, _Skipped) else action
    _check_names(data)
    return None


def _converted(data: bytes, kind: type[_Steering]) -> _Steering:
    """A line that msgspec refuses, by Python's own parser: a mark may lie before it, and half a
    surrogate pair, NaN or 1e999 in a field that nobody reads. Raises :class:`CorruptLog`."""
    try:
        document = json.loads(data.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"the line is not JSON ({e})") from None
    try:
        found = msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise CorruptLog(_reason(e)) from None
    try:
        msgspec.json.encode(msgspec.structs.replace(found, commit_info=None))
    except UnicodeEncodeError:
        raise CorruptLog("the action has half a surrogate pair in it") from None
    return found


def _check_names(data: bytes) -> None:
    """Raise :class:`CorruptLog` for a line that names an action twice: one would be lost."""
    pairs = json.loads(data.decode().removeprefix("\ufeff"), object_pairs_hook=list)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise CorruptLog("the line names an action twice, and one of them would be lost")


_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_LACKING = re.compile(r"Object missing required field `(.*)`|.*, got `null`")


def _reason(error: Exception, kind: str = "") -> str:
    """What msgspec says of a field, with the action's name."""
    said = _AT.fullmatch(str(error))
    what, place = said.groups() if said else (str(error), "")
    path = [part for part in [kind, *place.split(".")] if part]
    if not path:
        return f"the line is no action: {what}"
    lacking = _LACKING.fullmatch(what)
    if lacking and lacking[1]:
        return f"the {path[-1]} action lacks its {lacking[1]}"
    if len(path) == 1:
        return f"the {path[0]} action is not an object"
    *_, owner, field = path
    if lacking:
        return f"the {owner} action lacks its {field}"
    if "<=" in what or ">=" in what:
        return f"{field} of the {owner} action does not fit in 64 bits"
    return f"{field} of the {owner} action: {what[0].lower()}{what[1:]}"
