"""The JSON files of a log: the lines of commits, compactions and JSON checkpoints.

A large file is kept on disk while it is processed, not in memory. A commit whose writer does not
rename it into place may be read while it is being written: it counts only once it is whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import anyio
from msgspec import Struct

from tailer.delta.commit import Lines
from tailer.delta.parsing import parse_line
from tailer.delta.segment import format_commit_name
from tailer.errors import CorruptLog, TableError, TransientError, spilling
from tailer.files.spill import SpillFile
from tailer.log.questions import FileTag, Patience, Torn
from tailer.process.threads import parse_in_thread, run_blocking, stop_if_cancelled
from tailer.store import LOG_DIR, BlockingFiles, FileStatus, Found, Store
from tailer.store.fetched_files import FetchedFiles

#: A commit up to this size is kept in memory while it is processed; a larger one on disk.
MEMORY_BYTES_MAX = 16 * 1024 * 1024
#: No line of the log is longer than this; one action is a few kilobytes at most.
LINE_BYTES_MAX = 64 * 1024 * 1024
READ_CHUNK_BYTES = 8 * 1024 * 1024
#: How many lines are read before it is asked whether they are still wanted.
_LINES_AT_ONCE = 4096
#: Most bytes of small files that are kept.
_KEPT_BYTES_MAX = 4 * 1024 * 1024


class CommitText(Struct, frozen=True):
    """A commit that is whole, unparsed; and the file before it if it was looked up afterwards."""

    lines: Lines
    status: FileStatus
    predecessor: FileTag | None = None


class JsonFile(NamedTuple):
    """A file's lines, which can be read repeatedly, its status and its last byte."""

    lines: Lines
    status: FileStatus
    last_byte: bytes


class JsonFiles:
    """Reads the JSON files of one table's log.

    A half-written commit is waited for up to ``torn_commit_max_s`` seconds. Only a log that was
    listed once (:mod:`tailer.log.listed`) keeps what it has read: its small files that still have
    the tags that they were ``listed`` with. For a log that is followed, nothing is kept.
    """

    def __init__(
        self, store: Store, torn_commit_max_s: float, listed: Mapping[str, str] | None = None
    ) -> None:
        self.store = store
        self.torn_commit_max_s = torn_commit_max_s
        # From here on for a log that is listed once; empty for one that is followed.
        self._listed = listed or {}
        self._predecessors: dict[str, FileTag] = {}
        self._kept: dict[str, Found] = {}
        self._kept_bytes = 0
        self._atomic = store.atomic

    async def read_file(self, name: str) -> JsonFile:
        """Read a JSON file of the log. Raises FileNotFoundError.

        A large file is kept in a temporary file, not in memory.
        """
        path = f"{LOG_DIR}/{name}"
        found = self._kept.get(name)
        if found is None:
            found = await self.store.read(path, 0, MEMORY_BYTES_MAX)
            self._keep_file(name, found)
        data, status = found
        if status.size <= len(data):
            return JsonFile(partial(io.BytesIO, data), status, data[-1:])
        with spilling(None):
            spool = SpillFile()
        at, last, line_bytes = 0, b"", 0
        while True:
            last = data[-1:] or last
            try:
                line_bytes = _count_open_line_bytes(line_bytes, data, name)
            except TableError as e:
                raise e.at(table=self.store.root) from None
            with spilling(None):
                await run_blocking(spool.file.write, data)
            at += len(data)
            if at >= status.size or not data:
                break
            data, now = await self.store.read(path, at, READ_CHUNK_BYTES)
            if self._atomic and now.tag != status.tag:
                raise TransientError(f"{self.store.root}, {path} was replaced while it was read")
        with spilling(None):
            spool.file.flush()

        def again() -> Iterator[bytes]:
            with io.BufferedReader(spool.reopen()) as f:
                yield from _split_lines(f, name)

        return JsonFile(again, status, last)

    def _keep_file(self, name: str, found: Found) -> None:
        """Keep a small file that has not changed since it was listed."""
        data, status = found
        kept_bytes = self._kept_bytes + len(data)
        is_whole = self._listed.get(name) == status.tag and status.size == len(data)
        if is_whole and name not in self._kept and kept_bytes <= _KEPT_BYTES_MAX:
            self._kept[name], self._kept_bytes = found, kept_bytes

    async def fetch_files(
        self, reads: Sequence[tuple[str, int]], after: str | None
    ) -> FetchedFiles:
        """Read small files at once; then look up the file ``after``, if given. What is kept is not
        read again."""
        files: dict[str, Found | None] = {
            f"{LOG_DIR}/{name}": self._kept.get(name) for name, _ in reads
        }
        if None in files.values():
            sizes = [(path, size) for path, (_, size) in zip(files, reads, strict=True)]
            files = dict(zip(files, await self.store.read_many(sizes), strict=True))
        if after is not None:
            path = f"{LOG_DIR}/{after}"
            with suppress(FileNotFoundError):
                files[path] = (b"", await self.store.stat(path))
        return FetchedFiles(self.store.root, files)

    def read_whole_blocking(
        self, here: BlockingFiles, name: str, *, may_be_kept: bool = False
    ) -> CommitText | None:
        """Return a commit whose last line is whole, read in the calling thread; None if the file is
        large or torn. A writer without atomic rename may still be at work on it: the caller
        compares the tag of its status with one of another moment. With ``may_be_kept``, a file that
        is kept is not read again. Raises FileNotFoundError."""
        kept = self._kept.get(name) if may_be_kept else None
        data, status = kept or here.read_here(f"{LOG_DIR}/{name}", 0, MEMORY_BYTES_MAX)
        self._keep_file(name, (data, status))
        lines = partial(io.BytesIO, data)
        whole = status.size <= len(data) and (data.endswith(b"\n") or _ends_whole(lines))
        return CommitText(lines, status) if whole else None

    async def read_commit_text(self, name: str) -> CommitText | Torn:
        """Return a commit if its last line is whole and its size no longer changes: a writer
        without atomic rename may be in the middle of it. (A tear exactly at a line's end can't be
        seen.) Raises FileNotFoundError."""
        lines, status, last = await self.read_file(name)
        form = _detect_form(lines)  # what is packed may end as a line does
        if (
            form is None
            and (self._atomic or (await self.store.stat(f"{LOG_DIR}/{name}")).size == status.size)
            and (last == b"\n" or await parse_in_thread(partial(_ends_whole, lines), status.size))
        ):
            return CommitText(lines, status, self._predecessors.get(name))
        self._kept.pop(name, None)
        return Torn(form)

    async def prefetch_commit(self, version: int) -> None:
        """Read a commit, and look up the one before it; :meth:`read_commit_text` has both then."""
        name = format_commit_name(version)
        if isinstance(await self.read_commit_text(name), CommitText) and name in self._kept:
            before = await self.store.stat(f"{LOG_DIR}/{format_commit_name(version - 1)}")
            self._predecessors[name] = FileTag(before.tag)

    async def read_whole_commit(self, version: int) -> CommitText:
        """Return a commit, and wait for its writer if it is torn."""
        patience = Patience(self.torn_commit_max_s)
        while isinstance(text := await self.read_commit_text(format_commit_name(version)), Torn):
            pause_s = patience.pause_s(text)
            if pause_s is None:
                raise patience.make_error(text, self.store.root, version)
            await anyio.sleep(pause_s)
        return text


def _count_open_line_bytes(before: int, data: bytes, name: str) -> int:
    """Return the length so far of the line that is open at the end of ``data``, in bytes.

    ``before`` is the length of the line that was open at its beginning. Raises :class:`CorruptLog`
    for a line that is too long: a file of one endless line is not kept on the disk.
    """
    newline = data.find(b"\n")
    if before + (len(data) if newline < 0 else newline) > LINE_BYTES_MAX:
        raise _make_long_line_error(name)
    return before + len(data) if newline < 0 else len(data) - data.rfind(b"\n") - 1


def _make_long_line_error(name: str) -> CorruptLog:
    return CorruptLog(
        f"a line is longer than {LINE_BYTES_MAX} bytes, which no action needs",
        version=int(name[:20]),
        path=name,
        hint="restore the file from a backup, or skip this version",
    )


def _split_lines(file: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    while True:
        for _ in range(_LINES_AT_ONCE):
            line = file.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            if len(line) > LINE_BYTES_MAX:
                raise _make_long_line_error(name)
            yield line
        stop_if_cancelled()  # to parse a large commit takes longer than the end may


#: How files begin that are whole, and no lines of JSON.
_FORMS = {
    b"\x1f\x8b": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"BZh": "packed by bzip2",
    b"PK\x03\x04": "packed by zip",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def _detect_form(lines: Lines) -> str | None:
    """Return what else than lines of JSON a file is; None if its beginning may be one."""
    first = next(iter(lines()), b"")
    return next((form for mark, form in _FORMS.items() if first.startswith(mark)), None)


def _ends_whole(lines: Lines) -> bool:
    """Return whether the last line, which no newline ends, is readable JSON."""
    last = b""
    for line in lines():
        last = line
    try:
        parse_line(last)
    except TableError:
        return False
    return bool(last.strip())
