"""A span as data: consecutive versions that are read together, and their files in order."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from tailer.changes import ChangeFile, DecodedRows, Offset
from tailer.decode.byte_range import ByteRange
from tailer.delta.snapshot import TableState
from tailer.feed.rows.fetch import Fetched

#: The most files in a span of several versions, and their most encoded bytes.
_SPAN_FILES = 1024
_SPAN_BYTES = 256 * 1024 * 1024


class VersionFiles(Struct, frozen=True):
    """The selected files of a version, ``in_order``: as they are read.

    ``count`` and ``known_bytes`` are those of all files. They are None if the files are planned
    only while they are read, because a snapshot or a commit may have millions of them.
    """

    in_order: Iterable[ChangeFile]
    count: int | None = None
    known_bytes: int | None = None

    @classmethod
    def from_list(cls, files: Iterable[ChangeFile]) -> VersionFiles:
        """Return few files, counted."""
        listed = list(files)
        return cls(listed, len(listed), sum(file.size or 0 for file in listed))


class Version(Struct, frozen=True):
    """A version to read: the files whose rows are its changes, its state, and the id of its commit,
    if it is read from one."""

    number: int
    timestamp_ms: int
    state: TableState
    files: VersionFiles
    commit_id: str | None = None


class Span(Struct):
    """Consecutive versions, of which the first one is read from the offset ``first`` on.

    ``count`` and ``known_bytes`` are those of all files, None if a version's are not known.
    """

    first: Offset
    versions: list[Version] = field(default_factory=list)
    count: int | None = 0
    known_bytes: int | None = 0

    @classmethod
    def from_version(cls, version: Version, first: Offset) -> Span:
        """Return the span of one version."""
        span = cls(first)
        span.add_version(version)
        return span

    def can_take(self, version: Version) -> bool:
        """Return whether a version may follow those that the span has."""
        if not self.versions:
            return True
        count = _add_known(self.count, version.files.count)
        known_bytes = _add_known(self.known_bytes, version.files.known_bytes)
        if count is None or known_bytes is None or self.first.index:
            return False
        return count <= _SPAN_FILES and known_bytes <= _SPAN_BYTES

    def add_version(self, version: Version) -> None:
        """Add a version, which the span takes."""
        files = version.files
        self.versions.append(version)
        self.count = _add_known(self.count, files.count)
        self.known_bytes = _add_known(self.known_bytes, files.known_bytes)


def _add_known(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class SpanEntry(Struct, eq=False):
    """A file of a span, or the end of a version, which follows its files and has no ``file``.

    The rows of a file that ``is_unread`` are counted as if they were delivered: it is lost, or none
    of its rows is selected (:class:`tailer.feed.read_context.Unread`). ``opened`` is the file's
    content, where it was opened ahead of decoding. With a ``byte_range``, only the rows in it are
    meant, and the entries of the other parts follow.
    """

    version: Version
    file: ChangeFile | None = None
    is_unread: bool = False
    opened: Fetched | None = None
    byte_range: ByteRange | None = None

    @property
    def file_to_read(self) -> ChangeFile | None:
        """Return the file; None if there is nothing to read."""
        return None if self.is_unread else self.file

    def find_size(self) -> int:
        """Return the encoded bytes that are read."""
        file = self.file_to_read
        size = 0 if file is None else file.size or 0
        return (
            size
            if self.byte_range is None
            else min(size, self.byte_range.end) - self.byte_range.first
        )

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.opened is not None:
            self.opened.source.close()


class DecodedEntries(Struct, frozen=True):
    """Consecutive entries of a span, each with the number of its changes that are meant here, and
    the rows of all of them; None if they have none: a file that is not read, row groups that are
    left out, the end of a version."""

    counts: list[tuple[SpanEntry, int]]
    rows: DecodedRows | None = None


class DecodedStep(Struct):
    """What one step decodes. ``size`` are the bytes of all rows; ``files_read`` and ``bytes_read``
    the number and the size of the files that were read to their ends."""

    decoded: list[DecodedEntries] = field(default_factory=list)
    size: int = 0
    files_read: int = 0
    bytes_read: int = 0
    is_last: bool = False
