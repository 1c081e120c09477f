"""The steps that keep a log short, and commit nothing: checkpoints, compactions, clean-up."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from tests.fuzz.model import START_MS, Action
from tests.fuzz.table import Table
from tests.support.builders import CLASSIC_KINDS, V2_KINDS


def checkpoint(table: Table) -> None:
    """A checkpoint of one version, of a kind that the table allows."""
    version = table.rng.randint(table.cleaned, table.version)
    kind = _write(table, version)
    table.story[-1] += f" ({kind} of version {version})"


def _write(table: Table, version: int) -> str:
    """Write a checkpoint, with or without a hint; return its kind."""
    rng = table.rng
    v2 = "v2Checkpoint" in table.state.features
    kind = rng.choice(("classic", *V2_KINDS) if v2 else CLASSIC_KINDS)
    actions = _actions(table, version)
    parts, sidecars = rng.randint(2, 3), rng.choice([0, 1, 2, 3])
    table.builder.checkpoint(
        version, kind=kind, actions=actions, parts=parts, sidecars=sidecars, hint=False
    )
    if rng.random() < 0.7:
        more: dict[str, Any] = {"parts": parts} if kind == "multi-part" else {}
        if rng.random() < 0.5:
            more["numOfAddFiles"] = sum("add" in a for a in actions)
        if rng.random() < 0.3:
            more["tags"] = {"a b": "é/"}
        table.builder.hint(version, len(actions), checksum=rng.random() < 0.5, **more)
    return kind


def _actions(table: Table, version: int) -> list[Action]:
    """The actions in effect, spelled anew."""
    actions = table.builder.reconciled(version)
    if table.rng.random() >= 0.7:  # the tombstones have expired
        actions = [action for action in actions if "remove" not in action]
    for i, action in enumerate(actions):
        ((kind, fields),) = action.items()
        if kind in ("add", "remove"):
            path = unquote(fields["path"]).removeprefix("file:").replace("//", "", 1)
            actions[i] = {kind: {**fields, "path": table.spelled(path)}}
    return actions


def compact(table: Table) -> None:
    """A compaction of two versions or more."""
    rng = table.rng
    if table.version - table.cleaned < 1:
        return
    first = rng.randint(table.cleaned, table.version - 1)
    last = rng.randint(first + 1, table.version)
    table.builder.compact_log(first, last)
    table.story[-1] += f" (versions {first} to {last})"


def checksum(table: Table) -> None:
    """A version checksum file."""
    version = table.rng.randint(table.cleaned, table.version)
    more = {"inCommitTimestampOpt": START_MS} if table.rng.random() < 0.3 else {}
    table.builder.checksum(version, **more)


def clean(table: Table) -> None:
    """Write a checkpoint, and remove what is older; its own commit may go as well."""
    if table.version - table.cleaned < 1:
        return
    version = table.rng.randint(table.cleaned + 1, table.version)
    _write(table, version)
    table.cleaned = version + (version < table.version and table.rng.random() < 0.3)
    for name in list(table.log):
        number = name.removeprefix("_delta_log/")[:20]
        if not number.isdigit():
            continue
        compacted = name.endswith("compacted.json")
        if int(number) < version or (compacted and int(number) <= version):
            del table.log[name]
    table.buildable = version
    table.story[-1] += f" (before version {version})"


def noise(table: Table) -> None:
    """Files in the log's folder that are none of its own."""
    version = table.version
    names = [
        f".{version:020d}.json.crc",
        f"{version:020d}.json.tmp",
        "_commits/x.json",
        f"{version + 1:020d}.checkpoint.parquet.tmp",
        f"{version:020d}.checkpoint.0000000001.0000000002.parquet",
    ]
    # A part of a real checkpoint stays as it is.
    table.log.setdefault("_delta_log/" + table.rng.choice(names), (b"not of the log", START_MS))
