"""From one JSON line of the log to a typed action.

Unknown actions and unknown fields are ignored ("Protocol Evolution"); a known action that lacks a
required field, or has one of the wrong kind, is an error. If an object names a key twice, the last
one counts, as in Spark; an action twice on one line is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from tailer.delta.actions import (
    Action,
    AddCDCFile,
    AddEntry,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveEntry,
    RemoveFile,
    SetTransaction,
    Sidecar,
)
from tailer.errors import CorruptLog
from tailer.process.json_decoders import json_decoder


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


class _AddLine(Struct, forbid_unknown_fields=True, gc=False):
    """A line with an add and nothing else."""

    add: AddEntry


class _RemoveLine(Struct, forbid_unknown_fields=True, gc=False):
    """A line with a remove and nothing else."""

    remove: RemoveEntry


_QUOTED = [f'"{name}"'.encode() for name in _Line.__struct_encode_fields__]
#: What msgspec may raise; not all of its releases have ValueError as the base.
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
_WRITER = "its writer does not follow Delta's protocol: have it corrected, and skip this version"
# How deep it may be is Python's to say: some 1,000 levels, and since 3.14 what the stack holds.
_NESTED = "the line is nested too deep to be read"


def parse_line(line: bytes | str, *, files: bool = True) -> Action | None:
    """Parse the action on one line of a commit file; None for a blank line or an unknown action.

    Without ``files``, a line with an add, remove or cdc action need only be a JSON object, and
    gives None. Raises :class:`CorruptLog` without a place: the caller knows file and line number. A
    line with two actions is refused, because one of them would be lost.
    """
    data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
    if not data or data.isspace():
        return None
    kind = _Line if files else _Steering
    try:
        found = json_decoder(kind).decode(data)
    except _REFUSALS:
        found = _convert_document(parse_document(data), kind)
    action, name = _find_only_action(found)
    # Of two with the same name only the last one was decoded.
    if not name or data.count(name) > 1:
        _check_names(data)
    return action


class FileLines(NamedTuple):
    """The adds and removes among some lines. ``others`` are all lines, with those of ``adds`` and
    ``removes`` blank; none if no other line is left."""

    adds: list[AddEntry]
    removes: list[RemoveEntry]
    others: list[bytes]


def parse_entries(lines: Sequence[bytes]) -> FileLines:
    """Parse the adds and removes among some lines, several times as fast as :func:`parse_line`.

    :func:`parse_line` must read the other lines. If anything about the adds or the removes is
    unusual, they are among these too, so that it decides.
    """
    are_adds = [*map(bytes.startswith, lines, repeat(b'{"add":'))]
    all_add = all(are_adds)
    adds = lines if all_add else [*compress(lines, are_adds)]
    removes = [] if all_add else [line for line in lines if line.startswith(b'{"remove":')]
    try:
        add_lines = json_decoder(_AddLine).decode_lines(_join_lines(adds, b'"add"'))
        remove_lines = json_decoder(_RemoveLine).decode_lines(_join_lines(removes, b'"remove"'))
    except _REFUSALS:
        return FileLines([], [], [*lines])
    added = [line.add for line in add_lines]
    removed = [line.remove for line in remove_lines]
    if len(added) + len(removed) == len(lines):
        return FileLines(added, removed, [])
    taken = (b'{"add":', b'{"remove":')
    others = [b"" if line.startswith(taken) else line for line in lines]
    return FileLines(added, removed, others)


def _join_lines(lines: Sequence[bytes], name: bytes) -> bytes:
    """Return the lines as one text. Raises ValueError unless it is UTF-8 with one name a line.

    The decoder does not look into strings that it skips, and of two fields with one name it drops
    the first.
    """
    text = b"".join(lines)
    if text.count(name) != len(lines):
        raise ValueError("an action is named twice")
    if not text.isascii():
        text.decode()
    return text


def build_action(kind: str, values: Any) -> Action | None:
    """Return the typed action of one ``{kind: values}`` pair; None if the kind is unknown here.

    Raises :class:`CorruptLog` if a required field is missing or of the wrong kind.
    """
    return _find_only_action(_convert_document({kind: values}, _Line)).action


def parse_document(line: bytes) -> Any:
    """Return the JSON of a line. Raises :class:`CorruptLog` without a place.

    Python's parser has the last word: msgspec refuses a byte order mark, half a surrogate pair,
    NaN and 1e999.
    """
    try:
        return msgspec.json.decode(line)
    except _REFUSALS:
        return _parse_by_python(line)


def _parse_by_python(line: bytes, pairs: Callable[[Any], Any] | None = None) -> Any:
    """Parse a line with Python's parser, its objects made by ``pairs``."""
    try:
        return json.loads(line.decode().removeprefix("\ufeff"), object_pairs_hook=pairs)
    except RecursionError:
        raise CorruptLog(_NESTED) from None
    except ValueError as e:
        raise CorruptLog(f"the line is not JSON ({e})") from None


def _convert_document(document: Any, kind: type[_Steering]) -> _Steering:
    """Return a line's actions, given as Python objects."""
    json_decoder(kind)  # msgspec looks at a kind in one thread alone
    try:
        found = msgspec.convert(document, kind)
        # Strings are converted unseen. A commitInfo may hold what it likes.
        msgspec.json.encode(msgspec.structs.replace(found, commit_info=None))
    except RecursionError:
        raise CorruptLog(_NESTED) from None
    except msgspec.ValidationError as e:
        raise CorruptLog(_format_reason(e), hint=_WRITER) from None
    except UnicodeEncodeError:
        raise CorruptLog("the action has half a surrogate pair") from None
    return found


class _NamedAction(NamedTuple):
    """An action and its quoted name in the log; b"" without one."""

    action: Action | None
    name: bytes


def _find_only_action(found: _Steering) -> _NamedAction:
    """Return the single action of a line."""
    actions = astuple(found)
    if actions.count(None) < len(actions) - 1:
        raise CorruptLog("the line has two actions, and a line may have one")
    for name, action in zip(_QUOTED, actions, strict=True):
        if action is not None:
            if isinstance(action, dict):
                return _NamedAction(CommitInfo(action), name)
            return _NamedAction(None if isinstance(action, _Skipped) else action, name)
    return _NamedAction(None, b"")


def _check_names(line: bytes) -> None:
    """Raise :class:`CorruptLog` for a line that names an action twice: one would be lost."""
    names = [name for name, _ in _parse_by_python(line, list)]
    if len(set(names)) < len(names):
        raise CorruptLog("the line names an action twice, and one of them would be lost")


def _format_reason(error: Exception) -> str:
    """Return msgspec's message about a field, with the action's name."""
    said = re.fullmatch(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
    what, place = said.groups() if said else (str(error), "")
    inside = place.endswith("[...]")  # of a map or a list
    path = [part for part in place.removesuffix("[...]").split(".") if part]
    if not path:
        return f"the line is not an action: {what}"
    lacking = re.fullmatch(r"Object missing required field `(.*)`|.*, got `null`", what)
    if lacking and lacking[1]:
        return f"the {path[-1]} action lacks its {lacking[1]}"
    if len(path) == 1:
        return f"the {path[0]} action is not an object"
    *_, owner, field = path
    if inside:
        return f"a value in {field} of the {owner} action: {what[0].lower()}{what[1:]}"
    if lacking:
        return f"the {owner} action lacks its {field}"
    if "<=" in what or ">=" in what:
        return f"{field} of the {owner} action does not fit in 64 bits"
    return f"{field} of the {owner} action: {what[0].lower()}{what[1:]}"
