"""The files of ``_delta_log`` by name, and those that make up a version's snapshot.

The order of a listing is not guaranteed, so everything here is sorted. ``_last_checkpoint`` is not
needed: it only says where a listing may begin ("Last Checkpoint File").
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from tailer.delta.actions import LONG_MAX
from tailer.errors import DataLoss


class LogKind(enum.Enum):
    """The kind of a log file, by its name."""

    COMMIT = "commit"
    CLASSIC_CHECKPOINT = "checkpoint"
    MULTI_PART_CHECKPOINT = "multi-part checkpoint"
    UUID_CHECKPOINT = "v2 checkpoint"
    COMPACTED = "log compaction"
    CHECKSUM = "version checksum"


class LogFile(Struct, frozen=True):
    """One file of the log. ``last_version`` differs from ``version`` in a compaction only.

    ``size`` in bytes, ``mtime_ms`` the file's modification time in epoch ms; ``part`` and
    ``parts`` are 1-based and belong to multi-part checkpoints. ``tag`` changes whenever the file
    does; empty if it is unknown.
    """

    name: str
    kind: LogKind
    version: int
    last_version: int
    size: int
    mtime_ms: int
    part: int = 1
    parts: int = 1
    tag: str = ""


class Checkpoint(Struct, frozen=True):
    """A complete checkpoint: all its top-level files, in order of their parts."""

    version: int
    files: tuple[LogFile, ...]


class LogSegment(Struct, frozen=True):
    """The files to read for the snapshot of ``version``.

    They are a checkpoint, if there is one, and the commits or compactions after it, oldest first.
    """

    version: int
    checkpoint: Checkpoint | None
    deltas: tuple[LogFile, ...]


#: What follows the version in a name.
_PLAIN_ENDS = {
    "json": LogKind.COMMIT,
    "crc": LogKind.CHECKSUM,
    "checkpoint.parquet": LogKind.CLASSIC_CHECKPOINT,
}
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# Compiled on first use, which takes half a millisecond.
_ENDS = {
    LogKind.UUID_CHECKPOINT: rf"checkpoint\.{_UUID}\.(?:json|parquet)",
    LogKind.MULTI_PART_CHECKPOINT: r"checkpoint\.([0-9]{10})\.([0-9]{10})\.parquet",
    LogKind.COMPACTED: r"([0-9]{20})\.compacted\.json",
}


def format_commit_name(version: int) -> str:
    """Return the commit file's name: the version, zero-padded to 20 digits."""
    return f"{version:020d}.json"


def parse_log_file(name: str, size: int, mtime_ms: int, tag: str = "") -> LogFile | None:
    """Return the file of the log with that name; None if the protocol has no such name."""
    digits, _, end = name.partition(".")
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    version = int(digits)
    if version > LONG_MAX:
        return None
    if plain := _PLAIN_ENDS.get(end):
        return LogFile(name, plain, version, version, size, mtime_ms, tag=tag)
    for kind, pattern in _ENDS.items():
        match = re.fullmatch(pattern, end)
        if match is None:
            continue
        if kind is LogKind.COMPACTED:
            last = int(match[1])
            whole = LogFile(name, kind, version, last, size, mtime_ms, tag=tag)
            return whole if last > version else None
        if kind is LogKind.MULTI_PART_CHECKPOINT:
            part, parts = int(match[1]), int(match[2])
            if not 1 <= part <= parts:
                return None
            return LogFile(name, kind, version, version, size, mtime_ms, part, parts)
        return LogFile(name, kind, version, version, size, mtime_ms)
    return None


def find_commits(files: Iterable[LogFile]) -> dict[int, LogFile]:
    """Return the commit files by version, oldest first."""
    commits = {f.version: f for f in files if f.kind is LogKind.COMMIT}
    return dict(sorted(commits.items()))


def _find_checkpoints(files: Iterable[LogFile]) -> list[Checkpoint]:
    """Return every complete checkpoint, newest first; a multi-part one needs all its parts.

    If a version has several, a v2 checkpoint comes first: its top level is small.
    """
    whole: list[tuple[int, int, str, Checkpoint]] = []
    parts: defaultdict[tuple[int, int], dict[int, LogFile]] = defaultdict(dict)
    for f in files:
        if f.size == 0:
            continue
        if f.kind is LogKind.UUID_CHECKPOINT:
            whole.append((f.version, 2, f.name, Checkpoint(f.version, (f,))))
        elif f.kind is LogKind.CLASSIC_CHECKPOINT:
            whole.append((f.version, 1, f.name, Checkpoint(f.version, (f,))))
        elif f.kind is LogKind.MULTI_PART_CHECKPOINT:
            parts[f.version, f.parts][f.part] = f
    for (version, count), found in parts.items():
        if len(found) == count:
            ordered = tuple(found[i] for i in range(1, count + 1))
            whole.append((version, 0, ordered[0].name, Checkpoint(version, ordered)))
    return [c for *_, c in sorted(whole, key=lambda w: w[:3], reverse=True)]


def find_segments(files: Iterable[LogFile], version: int) -> Iterator[LogSegment]:
    """Yield every way to build the snapshot of ``version``, the cheapest first.

    The later ones are for a checkpoint that turns out to be damaged. When none is left, raises
    :class:`DataLoss`, naming the first version that is missing.
    """
    files = list(files)
    missing: int | None = None
    for checkpoint in [*_find_checkpoints(f for f in files if f.version <= version), None]:
        first = checkpoint.version + 1 if checkpoint else 0
        deltas, gap = _cover_versions(files, first, version)
        if gap is None:
            yield LogSegment(version, checkpoint, tuple(deltas))
        elif missing is None:
            missing = gap
    raise DataLoss(
        f"the snapshot of version {version} can't be built: commit {missing or 0} is missing",
        path=format_commit_name(missing or 0),
        hint="the log was cleaned up, or the file was lost; start at a newer version",
    )


class _Cover(NamedTuple):
    """The files with some versions, and the first version that none of them has."""

    files: list[LogFile]
    missing: int | None


def _cover_versions(files: list[LogFile], first: int, last: int) -> _Cover:
    """Return the fewest files with the versions first..last.

    A compaction replaces the commits in its range ("Log Compaction Files"). Taking the longest one
    at each step would be wrong: where commits are missing, it may lead to a gap that a shorter one
    avoids.
    """
    starting: defaultdict[int, list[LogFile]] = defaultdict(list)
    for f in files:
        # An empty compaction was never written to its end.
        delta = f.kind is LogKind.COMMIT or (f.kind is LogKind.COMPACTED and f.size > 0)
        if delta and first <= f.version and f.last_version <= last:
            starting[f.version].append(f)
    # The fewest files that reach up to a version (exclusive), and the last of them.
    reached: dict[int, tuple[int, LogFile | None]] = {first: (0, None)}
    for version in sorted(starting):
        if version not in reached:
            continue
        count = reached[version][0] + 1
        for f in starting[version]:
            after = f.last_version + 1
            if after not in reached or count < reached[after][0]:
                reached[after] = count, f
    if last + 1 not in reached:
        return _Cover([], max(reached))
    chosen: list[LogFile] = []
    _, file = reached[last + 1]
    while file is not None:
        chosen.append(file)
        _, file = reached[file.version]
    return _Cover(chosen[::-1], None)
