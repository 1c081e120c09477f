"""From one JSON line of the log to a typed action.

Unknown actions and unknown fields are ignored ("Protocol Evolution"); a known action that lacks a
required field, or has one of the wrong kind, is an error. If an object names a key twice, the last
one counts, as in Spark; an action twice on one line is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from tailer.delta.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    Sidecar,
)
from tailer.errors import CorruptLog

__all__ = ["action_of", "parse_line"]


class _Skipped(Struct):
    """An object whose fields are not read."""


class _Steering(Struct, rename="camel"):
    """A line of the log, with the fields of actions that are not files."""

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
    """Parse the action on one line of a commit file; None for a blank line or an unknown action.

    Without ``files``, a line with an add, remove or cdc action need only be a JSON object, and
    gives None. Raises :class:`CorruptLog` without a place: the caller knows file and line number. A
    line with two actions is refused, because one of them would be lost.
    """
    data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
    if not data or data.isspace():
        return None
    decoder = _LINES if files else _STEERING
    try:
        found = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = _converted(data, decoder.type)
    return _only(found, data)


def action_of(kind: str, values: Any) -> Action | None:
    """Return the typed action of one ``{kind: values}`` pair; None if the kind is unknown here.

    Raises :class:`CorruptLog` if a required field is missing or of the wrong kind.
    """
    if values is None or kind not in _TYPES:
        return None
    try:
        return msgspec.convert(values, _TYPES[kind])  # type: ignore[no-any-return]  # an action
    except msgspec.ValidationError as e:
        raise CorruptLog(_reason(e, kind)) from None


def _only(found: _Steering, data: bytes) -> Action | None:
    """Return the single action of a line."""
    actions = astuple(found)
    if actions.count(None) < len(actions) - 1:
        raise CorruptLog("the line has two actions, and a line may have one")
    for quoted, action in zip(_QUOTED, actions, strict=True):
        if action is not None:
            if data.count(quoted) > 1:  # of two with the same name only the last one was decoded
                _check_names(data)
            if isinstance(action, dict):
                return CommitInfo(action)
            return None if isinstance(action, _Skipped) else action
    _check_names(data)
    return None


def _converted(data: bytes, kind: type[_Steering]) -> _Steering:
    """Parse, with Python's parser, a line that msgspec refuses.

    It may begin with a byte order mark, or have half a surrogate pair, NaN or 1e999 in a field that
    is not read. Raises :class:`CorruptLog`.
    """
    document = _document(data)
    try:
        found = msgspec.convert(document, kind)
        msgspec.json.encode(msgspec.structs.replace(found, commit_info=None))
    except (msgspec.ValidationError, RecursionError) as e:
        raise CorruptLog(_reason(e)) from None
    except UnicodeEncodeError:
        raise CorruptLog("the action has half a surrogate pair in it") from None
    return found


def _document(data: bytes, pairs: Callable[[Any], Any] | None = None) -> Any:
    """Return a line's JSON by Python's own parser, its objects made by ``pairs``."""
    try:
        return json.loads(data.decode().removeprefix("\ufeff"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"the line is not JSON ({e})") from None


def _check_names(data: bytes) -> None:
    """Raise :class:`CorruptLog` for a line that names an action twice: one would be lost."""
    pairs = _document(data, list)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise CorruptLog("the line names an action twice, and one of them would be lost")


_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_LACKING = re.compile(r"Object missing required field `(.*)`|.*, got `null`")


def _reason(error: Exception, kind: str = "") -> str:
    """Return msgspec's message about a field, with the action's name."""
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
