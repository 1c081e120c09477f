"""From one JSON line of the log to a typed action.

Unknown actions and unknown fields are passed over ("Protocol Evolution"); a known action that
lacks a required field, or has one of the wrong kind, is an error. Statistics are cut down while
parsing to ``num_records`` and the bounds of a few integer columns: a commit can hold a hundred
thousand of them, and no more is ever asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from tailer.delta.actions import (
    LONG_MAX,
    Action,
    AddCDCFile,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    Sidecar,
    StringMap,
)
from tailer.delta.statistics import file_statistics
from tailer.errors import CorruptLog

__all__ = ["action_of", "parse_line"]


def _is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8: JSON can escape half a surrogate pair, which can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Fields:
    """Typed access to one action's JSON object; what is missing or of another kind is an error."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: str, values: Any) -> None:
        if not isinstance(values, dict):
            raise CorruptLog(f"the {kind} action is not an object")
        self.kind = kind
        self.values: dict[str, Any] = values

    def _get(self, name: str, kinds: type | tuple[type, ...], *, required: bool) -> Any:
        value = self.values.get(name)
        if value is None:
            if required:
                raise CorruptLog(f"the {self.kind} action lacks its {name}")
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
            raise CorruptLog(f"{name} of the {self.kind} action is a {type(value).__name__}")
        if isinstance(value, int) and not -LONG_MAX - 1 <= value <= LONG_MAX:
            raise CorruptLog(f"{name} of the {self.kind} action does not fit in 64 bits")
        if isinstance(value, str) and not _is_unicode(value):
            raise CorruptLog(f"{name} of the {self.kind} action has half a surrogate pair in it")
        return value

    # A commit can have a hundred thousand files: what is as it should be is known at a glance.

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if type(value) is str and value.isascii():
            return value
        return self._get(name, str, required=True)  # type: ignore[no-any-return]  # checked there

    def text_or_none(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is int and -LONG_MAX <= value <= LONG_MAX:
            return value
        return self._get(name, int, required=True)  # type: ignore[no-any-return]  # checked there

    def integer_or_none(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.integer(name)

    def time(self, name: str) -> int:
        """A time in epoch ms, 0 if there is none. Some writers give it as a float; as in Spark,
        what is behind the point does not count."""
        value = self.values.get(name)
        if isinstance(value, float) and math.isfinite(value) and abs(value) <= LONG_MAX:
            return int(value)
        return self.integer_or_none(name) or 0

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        value = self.values.get(name)
        if value is True or value is False:
            return value
        value = self._get(name, bool, required=default is None)
        return bool(default) if value is None else bool(value)

    def flag_or_none(self, name: str) -> bool | None:
        return self._get(name, bool, required=False)  # type: ignore[no-any-return]  # checked there

    def strings(self, name: str) -> tuple[str, ...] | None:
        value = self._get(name, list, required=False)
        if value is None:
            return None
        if not all(isinstance(item, str) for item in value):
            raise CorruptLog(f"{name} of the {self.kind} action is not a list of strings")
        return tuple(value)

    def string_map_or_none(self, name: str) -> StringMap | None:
        value = self._get(name, (dict, list), required=False)
        if value is None:
            return None
        # A checkpoint read from Parquet gives a map as a list of pairs.
        if isinstance(value, list) and not all(isinstance(pair, tuple) for pair in value):
            raise CorruptLog(f"{name} of the {self.kind} action is not a map")
        pairs = dict(value) if isinstance(value, list) else value
        for key, item in pairs.items():
            if not (isinstance(key, str) and isinstance(item, str | None)):
                raise CorruptLog(f"{name} of the {self.kind} action is not a map of strings")
        return pairs


def _deletion_vector(values: Any) -> DeletionVectorDescriptor | None:
    if values is None:
        return None
    f = _Fields("deletionVector", values)
    return DeletionVectorDescriptor(
        storage_type=f.text("storageType"),
        path_or_inline_dv=f.text("pathOrInlineDv"),
        offset=f.integer_or_none("offset"),
        size_in_bytes=f.integer("sizeInBytes"),
        cardinality=f.integer("cardinality"),
    )


def _add(f: _Fields) -> AddFile:
    records, bounds = file_statistics(f.values)
    return AddFile(
        path=f.text("path"),
        partition_values=f.string_map_or_none("partitionValues") or {},
        size=f.integer("size"),
        modification_time=f.time("modificationTime"),
        data_change=f.flag("dataChange"),
        num_records=records,
        bounds=bounds,
        deletion_vector=_deletion_vector(f.values.get("deletionVector")),
        base_row_id=f.integer_or_none("baseRowId"),
        default_row_commit_version=f.integer_or_none("defaultRowCommitVersion"),
    )


def _remove(f: _Fields) -> RemoveFile:
    records, bounds = file_statistics(f.values)
    return RemoveFile(
        path=f.text("path"),
        data_change=f.flag("dataChange", default=True),
        deletion_timestamp=f.integer_or_none("deletionTimestamp"),
        partition_values=f.string_map_or_none("partitionValues"),
        size=f.integer_or_none("size"),
        num_records=records,
        bounds=bounds,
        deletion_vector=_deletion_vector(f.values.get("deletionVector")),
        base_row_id=f.integer_or_none("baseRowId"),
        default_row_commit_version=f.integer_or_none("defaultRowCommitVersion"),
        extended_file_metadata=f.flag_or_none("extendedFileMetadata"),
    )


def _cdc(f: _Fields) -> AddCDCFile:
    return AddCDCFile(
        path=f.text("path"),
        partition_values=f.string_map_or_none("partitionValues") or {},
        size=f.integer_or_none("size") or 0,
    )


def _metadata(f: _Fields) -> Metadata:
    file_format = f.values.get("format")
    provider = file_format.get("provider") if isinstance(file_format, dict) else None
    configuration = f.string_map_or_none("configuration") or {}
    return Metadata(
        id=f.text("id"),
        schema_string=f.text("schemaString"),
        partition_columns=f.strings("partitionColumns") or (),
        configuration={k: v for k, v in configuration.items() if v is not None},
        name=f.text_or_none("name"),
        description=f.text_or_none("description"),
        provider=provider if isinstance(provider, str) else "parquet",
        created_time=f.integer_or_none("createdTime"),
    )


def _protocol(f: _Fields) -> Protocol:
    readers, writers = f.strings("readerFeatures"), f.strings("writerFeatures")
    return Protocol(
        min_reader_version=f.integer("minReaderVersion"),
        min_writer_version=f.integer("minWriterVersion"),
        reader_features=None if readers is None else frozenset(readers),
        writer_features=None if writers is None else frozenset(writers),
    )


def _transaction(f: _Fields) -> SetTransaction:
    return SetTransaction(
        app_id=f.text("appId"),
        version=f.integer("version"),
        last_updated=f.integer_or_none("lastUpdated"),
    )


def _domain(f: _Fields) -> DomainMetadata:
    return DomainMetadata(
        domain=f.text("domain"),
        configuration=f.text_or_none("configuration") or "",
        removed=f.flag("removed", default=False),
    )


def _sidecar(f: _Fields) -> Sidecar:
    return Sidecar(
        path=f.text("path"),
        size_in_bytes=f.integer("sizeInBytes"),
        modification_time=f.time("modificationTime"),
    )


def _commit_info(f: _Fields) -> CommitInfo:
    return CommitInfo(f.values)


def _checkpoint_metadata(f: _Fields) -> CheckpointMetadata:
    return CheckpointMetadata(f.integer("version"))


_PARSERS: dict[str, Callable[[_Fields], Action]] = {
    "add": _add,
    "remove": _remove,
    "cdc": _cdc,
    "metaData": _metadata,
    "protocol": _protocol,
    "txn": _transaction,
    "domainMetadata": _domain,
    "commitInfo": _commit_info,
    "sidecar": _sidecar,
    "checkpointMetadata": _checkpoint_metadata,
}


_FILE_KINDS = frozenset({"add", "remove", "cdc"})


class _KeyTwice(ValueError):
    """An object of the line names a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _KeyTwice("it names a key twice")
    return found


def _flat(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


#: One decoder for all lines: to make it takes longer than to read a line.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
_LAST_WINS = json.JSONDecoder()
_PAIRS = json.JSONDecoder(object_pairs_hook=_flat)


def _document(text: str) -> Any:
    """The JSON of a line. A key may come twice within a commitInfo alone, whose shape the protocol
    leaves open; the last one counts there, as in Spark."""
    try:
        return _DECODER.decode(text)
    except _KeyTwice:
        if [kind for kind, _ in _PAIRS.decode(text)] != ["commitInfo"]:
            raise
        return _LAST_WINS.decode(text)


def action_of(kind: str, values: Any) -> Action | None:
    """The typed action of one ``{kind: values}`` pair; None if the kind is not known here.

    Raises :class:`CorruptLog` where a required field is missing or of the wrong kind.
    """
    parser = _PARSERS.get(kind)
    return None if parser is None or values is None else parser(_Fields(kind, values))


def parse_line(line: bytes | str, *, statistics: bool = True, files: bool = True) -> Action | None:
    """The action on one line of a commit file; None for a blank line or an unknown action.

    Without ``statistics`` a file's are passed over: to read them takes as long as all else.
    Without ``files`` a line with an add, remove or cdc action need only be JSON, and is None.
    Raises :class:`CorruptLog` without a place: the caller knows file and line number. A line with
    two actions is refused, since one of them would be lost.
    """
    if not line.strip():
        return None
    try:
        text = line if isinstance(line, str) else line.decode()
        document = _document(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"the line is not JSON ({e})") from None
    if not isinstance(document, dict):
        raise CorruptLog("the line is not a JSON object")
    if not files and len(document) == 1 and not _FILE_KINDS.isdisjoint(document):
        return None
    if not statistics:
        for values in document.values():
            if isinstance(values, dict):
                values.pop("stats", None)
    actions = [
        action
        for kind, values in document.items()
        if (action := action_of(kind, values)) is not None
    ]
    if len(actions) > 1:
        raise CorruptLog("the line has two actions, and a line may have one")
    return actions[0] if actions else None
