"""One commit: the content of its header actions, and its file actions on demand.

The actions of a commit have no order: metaData, protocol and cdc may follow the adds. A large
one is therefore read twice. The first pass gathers the few actions that determine how the others
are read, checks what the protocol forbids, and finds the paths that are both removed and added. The
second pass yields the file actions one by one. Neither keeps more than a few actions, so a commit
of hundreds of megabytes needs little memory. Some writers repeat an action: two that say the same
are one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import islice
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tailer.delta.actions import (
    Action,
    AddCDCFile,
    AddEntry,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    FileAction,
    Metadata,
    Protocol,
    RemoveEntry,
    RemoveFile,
    SetTransaction,
    Sidecar,
    choose_later,
)
from tailer.delta.digests import make_digest
from tailer.delta.parsing import parse_entries, parse_line
from tailer.delta.paths import parse_location, parse_locations
from tailer.delta.snapshot import TableState, find_file_key
from tailer.errors import CorruptLog, TableError

__all__ = [
    "Commit",
    "CommitHeader",
    "FileAction",
    "Lines",
    "check_repeats",
    "make_commit_id",
    "read_actions",
    "read_header",
]

K = TypeVar("K", bound=Hashable)
E = TypeVar("E", bound=AddEntry | RemoveEntry)

#: This number of lines is parsed together: larger lists leave the processor's cache.
_BATCH_LINES = 256
#: The actions of a commit of so few lines are kept; those of a longer one are parsed again.
_FEW_LINES = 64
#: This number of repeated actions is compared at once.
_COMPARED_AT_ONCE = 10_000

#: The lines of one file of the log, read again at each call.
Lines = Callable[[], Iterable[bytes]]


class CommitHeader(Struct):
    """The results of the first pass over a commit.

    ``added_again`` holds digests of the locations that are both removed and added, ``file_bytes``
    the sum of the sizes of the files with the commit's changes (bytes, None counted as 0).
    ``added`` and ``removed`` are the concatenated digests of the logical files
    (:mod:`tailer.delta.digests`). ``files`` are the file actions themselves, if they are few and
    there are digests. An action that is repeated counts once; ``repeated`` are those of files, each
    with its name in the log and the digest of its location.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    commit_info: CommitInfo | None = None
    transactions: list[SetTransaction] = []
    domains: list[DomainMetadata] = []
    adds: int = 0
    removes: int = 0
    cdcs: int = 0
    data_changes: int = 0
    file_bytes: int = 0
    cdc_partitions: int = 0
    added_again: frozenset[bytes] = frozenset()
    added: bytes = b""
    removed: bytes = b""
    files: tuple[FileAction, ...] | None = None
    repeated: frozenset[tuple[str, bytes]] = frozenset()


class Commit(Struct, frozen=True):
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

    def read_id(self) -> str:
        """Return what tells this commit from any other one: see :func:`make_commit_id`."""
        return make_commit_id(next(iter(self.lines()), b""), self.size)

    def file_actions(self) -> Iterator[FileAction]:
        """Yield the adds, removes and cdc files, in the file's order, and what is repeated once.

        Unless they are few, each call parses them again.
        """
        if self.header.files is not None:
            yield from self.header.files
            return
        is_first = self.first_mentions()
        for action in _file_actions(self.name, self.lines()):
            if is_first(_KINDS[type(action)], action.path):
                yield action

    def first_mentions(self) -> Callable[[str, str], bool]:
        """Return what says of each file action in turn, given by its name in the log and its path,
        whether it is the first that says so."""
        seen: set[tuple[str, bytes]] = set()

        def is_first(kind: str, path: str) -> bool:
            if not self.header.repeated:
                return True
            key = kind, make_digest(parse_location(path))
            if key in seen:
                return False
            if key in self.header.repeated:
                seen.add(key)
            return True

        return is_first

    def is_added_again(self, path: str) -> bool:
        """Return whether this location is both removed and added in this commit."""
        return make_digest(parse_location(path)) in self.header.added_again


_KINDS: dict[type[FileAction], str] = {AddFile: "add", RemoveFile: "remove", AddCDCFile: "cdc"}


def _file_actions(name: str, lines: Iterable[bytes]) -> Iterator[FileAction]:
    for action in read_actions(name, lines):
        if isinstance(action, AddFile | RemoveFile | AddCDCFile):
            yield action


def read_actions(
    name: str, lines: Iterable[bytes], *, files: bool = True, first: int = 1
) -> Iterator[Action]:
    """Yield the actions of one JSON file of the log; without ``files``, those that are not files.

    An error names the file and the line; ``first`` is the number of the first one.
    """
    for number, line in enumerate(lines, start=first):
        try:
            action = parse_line(line, files=files)
        except TableError as e:
            e.what = f"line {number}: {e.what}"
            raise e.at(path=name) from None
        if action is not None:
            yield action


class _Files(Generic[K]):
    """The files that a commit adds, or those that it removes.

    ``key`` makes what stands for a file in memory from its location and deletion vector, as one
    text.
    """

    def __init__(self, key: Callable[[str], K]) -> None:
        self._key: Callable[[str], K] = key
        self.places: set[K] = set()
        self.repeated: set[K] = set()
        self._vectors: dict[K, K] = {}

    def take(self, files: Sequence[E]) -> Sequence[E]:
        """Take some files; return those among them that were not there before."""
        keys = [*map(self._key, parse_locations([file.path for file in files]))]
        known = set() if self.places.isdisjoint(keys) else self.places.intersection(keys)
        different = len(self.places) + len(keys)
        self.places.update(keys)
        if len(self.places) < different:
            fresh = self._drop_repeated(files, keys, known)
            files, keys = [*fresh.values()], [*fresh]
        if [file.deletion_vector for file in files].count(None) == len(files):
            return files
        for file, key in zip(files, keys, strict=True):
            if file.deletion_vector is not None:
                text = f"{parse_location(file.path)}\x00{file.deletion_vector.unique_id}"
                self._vectors[key] = self._key(text)
        return files

    def _drop_repeated(self, files: Sequence[E], keys: Sequence[K], known: set[K]) -> dict[K, E]:
        """Return the files that come for the first time, by their keys; note the others."""
        fresh: dict[K, E] = {}
        for file, key in zip(files, keys, strict=True):
            if key in known:
                self.repeated.add(key)
            else:
                known.add(key)
                fresh[key] = file
        return fresh

    def find_logical_keys(self) -> AbstractSet[K]:
        """Return what stands for the files with their deletion vectors."""
        vectors = self._vectors
        return {vectors.get(key, key) for key in self.places} if vectors else self.places


class _Scan(Generic[K]):
    """The first pass: fills a header and refuses what the protocol forbids in one commit."""

    def __init__(self, key: Callable[[str], K]) -> None:
        self.header = CommitHeader()
        self._key: Callable[[str], K] = key
        self.added: _Files[K] = _Files(key)
        self.removed: _Files[K] = _Files(key)
        self.repeated: set[tuple[str, K]] = set()
        self._cdc_partitions: set[str] = set()

    def read(self, name: str, lines: Lines, *, keeps_files: bool) -> CommitHeader:
        """Read all lines of the commit ``name``. ``keeps_files``: keep the file actions, if they
        are few."""
        rest = iter(lines())
        batch, number = list(islice(rest, _BATCH_LINES)), 1
        if keeps_files and len(batch) <= _FEW_LINES:
            self._take_all([*read_actions(name, batch)])
            batch = []
        while batch:
            added, removed, others = parse_entries(batch)
            self._add_files(added)
            self._remove_files(removed)
            for action in read_actions(name, others, first=number):
                self._take_action(action)
            number += len(batch)
            batch = list(islice(rest, _BATCH_LINES))
        self.repeated |= {("add", key) for key in self.added.repeated}
        self.repeated |= {("remove", key) for key in self.removed.repeated}
        if self.repeated:
            _check_same(
                name, lines, self.repeated, lambda file: self._key(parse_location(file.path))
            )
            self.header.files = None  # it has them twice
        if not self.added.find_logical_keys().isdisjoint(self.removed.find_logical_keys()):
            raise CorruptLog("the commit adds and removes one file with the same deletion vector")
        self.header.cdc_partitions = len(self._cdc_partitions)
        return self.header

    def _take_all(self, actions: Sequence[Action]) -> None:
        """Take all actions of a commit, and keep those of its files."""
        added = [action for action in actions if isinstance(action, AddFile)]
        removed = [action for action in actions if isinstance(action, RemoveFile)]
        self._add_files(added)
        self._remove_files(removed)
        for action in actions:
            if not isinstance(action, AddFile | RemoveFile):
                self._take_action(action)
        self.header.files = tuple(
            action for action in actions if isinstance(action, AddFile | RemoveFile | AddCDCFile)
        )

    def _take_action(self, action: Action) -> None:
        header = self.header
        match action:
            case AddFile():
                self._add_files([action])
            case RemoveFile():
                self._remove_files([action])
            case AddCDCFile():
                header.cdcs += 1
                header.file_bytes += action.size
                if len(self._cdc_partitions) < 2:
                    self._cdc_partitions.add(repr(sorted(action.partition_values.items())))
            case Metadata():
                header.metadata = choose_later(header.metadata, action)
            case Protocol():
                header.protocol = choose_later(header.protocol, action)
            case CommitInfo():
                header.commit_info = header.commit_info or action
            case SetTransaction():
                header.transactions.append(action)
            case DomainMetadata():
                header.domains.append(action)
            case Sidecar() | CheckpointMetadata():
                raise CorruptLog("the commit has an action that only checkpoints may have")

    def _add_files(self, files: Sequence[AddEntry]) -> None:
        fresh = self.added.take(files)
        self.header.adds += len(fresh)
        self._count_files(fresh)

    def _remove_files(self, files: Sequence[RemoveEntry]) -> None:
        fresh = self.removed.take(files)
        self.header.removes += len(fresh)
        self._count_files(fresh)

    def _count_files(self, files: Sequence[AddEntry | RemoveEntry]) -> None:
        self.header.data_changes += [file.data_change for file in files].count(True)
        self.header.file_bytes += sum([file.size or 0 for file in files])


def _check_same(
    name: str,
    lines: Lines,
    repeated: AbstractSet[tuple[str, K]],
    key_of: Callable[[AddFile | RemoveFile], K],
) -> None:
    """Raise :class:`CorruptLog` if one of the repeated actions of files is not the same each time.

    Actions are parsed again, because to keep those of a large commit takes much memory.
    """
    left = set(repeated)
    while left:
        some = {left.pop() for _ in range(min(len(left), _COMPARED_AT_ONCE))}
        first: dict[tuple[str, K], Any] = {}
        for action in read_actions(name, lines()):
            if isinstance(action, AddFile | RemoveFile):
                key = _KINDS[type(action)], key_of(action)
                if key in some:
                    first[key] = choose_later(first.get(key), action)


def check_repeats(name: str, lines: Lines) -> None:
    """Read a compaction to its end. Raises :class:`CorruptLog` for a line that can't be read, and
    for a logical file that is added or removed twice by actions that differ."""
    seen: set[tuple[str, tuple[str, str]]] = set()
    repeated: set[tuple[str, tuple[str, str]]] = set()
    for action in read_actions(name, lines()):
        if isinstance(action, AddFile | RemoveFile):
            key = _KINDS[type(action)], find_file_key(action)
            (repeated if key in seen else seen).add(key)
    try:
        _check_same(name, lines, repeated, find_file_key)
    except TableError as e:
        raise e.at(path=name) from None


#: So many bytes of a commit's first line make its id.
ID_BYTES = 64 * 1024


def make_commit_id(start: bytes, size: int) -> str:
    """Return what tells a commit from any other one of its version: 12 hex digits, of its size in
    bytes and its first line, which has a time or the name of a new file. A copy has the same."""
    first = start[:ID_BYTES].partition(b"\n")[0]
    return blake2b(b"%d %b" % (size, first), digest_size=6).hexdigest()


def read_header(name: str, lines: Lines, *, digests: bool = True) -> CommitHeader:
    """Make the first pass over a commit. Without ``digests`` it has none, and takes half the time.

    Raises :class:`CorruptLog` for a line that can't be read, two metaData or protocol actions that
    differ, a file that is added or removed twice by actions that differ, or added and removed with
    the same deletion vector, and actions of v2 checkpoints ("Delta Log Entries", "Add File and
    Remove File").
    """
    try:
        if not digests:
            return _Scan(str).read(name, lines, keeps_files=False)
        scan = _Scan(make_digest)
        header = scan.read(name, lines, keeps_files=True)
    except TableError as e:
        raise e.at(path=name) from None
    header.repeated = frozenset(scan.repeated)
    header.added_again = frozenset(scan.added.places & scan.removed.places)
    header.added = b"".join(scan.added.find_logical_keys())
    header.removed = b"".join(scan.removed.find_logical_keys())
    return header
