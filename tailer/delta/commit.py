"""One commit: the content of its header actions, and its file actions on demand.

The actions of a commit have no order: metaData, protocol and cdc may follow the adds. A commit is
therefore read twice. The first pass gathers the few actions that determine how the others are read,
checks what the protocol forbids, and finds the paths that are both removed and added. The second
pass yields the file actions one by one. Neither keeps more than a few actions, so a commit of
hundreds of megabytes needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from tailer.delta.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    FileAction,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    Sidecar,
)
from tailer.delta.parsing import parse_line
from tailer.delta.paths import location
from tailer.delta.snapshot import TableState, file_key
from tailer.errors import CorruptLog, TableError

__all__ = [
    "KEPT_FILES_MAX",
    "KEY_BYTES",
    "Commit",
    "CommitHeader",
    "FileAction",
    "Lines",
    "file_digest",
    "read_actions",
    "read_header",
]

#: The length in bytes of a digest that stands for a logical file.
KEY_BYTES = 16
#: The file actions of a commit that are kept in memory from the first pass.
KEPT_FILES_MAX = 64

#: The lines of one file of the log, read again at each call.
Lines = Callable[[], Iterable[bytes]]


@dataclass(slots=True)
class CommitHeader:
    """The results of the first pass over a commit.

    ``paired`` holds digests of the locations that are both removed and added, ``file_bytes`` the
    sum of the sizes of the files with the commit's changes (bytes, None counted as 0). ``added``
    and ``removed`` are the concatenated digests of the logical files (:func:`file_digest`).
    ``files`` are the file actions themselves, if they are few.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    commit_info: CommitInfo | None = None
    transactions: list[SetTransaction] = field(default_factory=list)
    domains: list[DomainMetadata] = field(default_factory=list)
    adds: int = 0
    removes: int = 0
    cdcs: int = 0
    data_changes: int = 0
    file_bytes: int = 0
    cdc_partitions: int = 0
    paired: frozenset[bytes] = frozenset()
    added: bytes = b""
    removed: bytes = b""
    files: tuple[FileAction, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version's commit, with the table's state before it and after it.

    ``before`` is None for the table's first version; ``size`` is the commit file's, in bytes;
    ``timestamp_ms`` by the rules of :mod:`tailer.delta.timestamps`, and ``mtime_ms`` the file's;
    ``tag`` changes with the file.
    """

    version: int
    name: str
    timestamp_ms: int
    mtime_ms: int
    size: int
    header: CommitHeader
    lines: Lines
    before: TableState | None
    after: TableState
    tag: str = ""

    def file_actions(self) -> Iterator[FileAction]:
        """Yield the adds, removes and cdc files, in the file's order.

        Unless they are few, each call parses them again.
        """
        if self.header.files is not None:
            yield from self.header.files
            return
        for action in read_actions(self.name, self.lines()):
            if isinstance(action, AddFile | RemoveFile | AddCDCFile):
                yield action

    def is_paired(self, path: str) -> bool:
        """Return whether this location is both removed and added in this commit."""
        return _digest(location(path)) in self.header.paired


def read_actions(name: str, lines: Iterable[bytes], *, files: bool = True) -> Iterator[Action]:
    """Yield the actions of one JSON file of the log; without ``files``, those that are not files.

    An error names the file and the line.
    """
    for number, line in enumerate(lines, start=1):
        try:
            action = parse_line(line, files=files)
        except TableError as e:
            e.what = f"line {number}: {e.what}"
            raise e.at(path=name) from None
        if action is not None:
            yield action


def _digest(*parts: str) -> bytes:
    return blake2b("\x00".join(parts).encode(), digest_size=KEY_BYTES).digest()


def file_digest(action: AddFile | RemoveFile) -> bytes:
    """Return the digest of an action's logical file (:func:`tailer.delta.snapshot.file_key`)."""
    return _digest(*file_key(action))


class _Scan:
    """The first pass: fills a header and refuses what the protocol forbids in one commit."""

    def __init__(self) -> None:
        self.header = CommitHeader()
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()
        self._added_keys: set[bytes] = set()
        self._removed_keys: set[bytes] = set()
        self._cdc_partitions: set[bytes] = set()
        self._files: list[FileAction] | None = []

    def take(self, action: Action) -> None:
        header = self.header
        match action:
            case AddFile():
                header.adds += 1
                self._file(action, self._added, self._added_keys, "added")
            case RemoveFile():
                header.removes += 1
                self._file(action, self._removed, self._removed_keys, "removed")
            case AddCDCFile():
                header.cdcs += 1
                header.file_bytes += action.size
                self._keep(action)
                if len(self._cdc_partitions) < 2:
                    values = sorted(action.partition_values.items())
                    self._cdc_partitions.add(_digest(repr(values)))
            case Metadata():
                if header.metadata is not None:
                    raise CorruptLog("the commit has two metaData actions")
                header.metadata = action
            case Protocol():
                if header.protocol is not None:
                    raise CorruptLog("the commit has two protocol actions")
                header.protocol = action
            case CommitInfo():
                header.commit_info = header.commit_info or action
            case SetTransaction():
                header.transactions.append(action)
            case DomainMetadata():
                header.domains.append(action)
            case Sidecar() | CheckpointMetadata():
                raise CorruptLog("the commit has an action that only checkpoints may have")

    def _keep(self, action: FileAction) -> None:
        if self._files is not None:
            self._files.append(action)
            if len(self._files) > KEPT_FILES_MAX:
                self._files = None

    def _file(
        self, action: AddFile | RemoveFile, paths: set[bytes], keys: set[bytes], verb: str
    ) -> None:
        self._keep(action)
        self.header.data_changes += action.data_change
        self.header.file_bytes += action.size or 0
        where = location(action.path)
        path = _digest(where)
        if path in paths:
            raise CorruptLog(f"the commit has one file {verb} twice: {action.path}")
        paths.add(path)
        keys.add(_digest(where, action.deletion_vector.unique_id if action.deletion_vector else ""))

    def finish(self) -> CommitHeader:
        if not self._added_keys.isdisjoint(self._removed_keys):
            raise CorruptLog("the commit adds and removes one file with the same deletion vector")
        self.header.paired = frozenset(self._added & self._removed)
        self.header.added = b"".join(self._added_keys)
        self.header.removed = b"".join(self._removed_keys)
        self.header.cdc_partitions = len(self._cdc_partitions)
        self.header.files = None if self._files is None else tuple(self._files)
        return self.header


def read_header(name: str, lines: Iterable[bytes]) -> CommitHeader:
    """Make the first pass over a commit.

    Raises :class:`CorruptLog` for a line that can't be read, two metaData or protocol actions, a
    file that is added or removed twice or added and removed with the same deletion vector, and
    actions of v2 checkpoints ("Delta Log Entries", "Add File and Remove File").
    """
    scan = _Scan()
    try:
        for action in read_actions(name, lines):
            scan.take(action)
        return scan.finish()
    except TableError as e:
        raise e.at(path=name) from None
