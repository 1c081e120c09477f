"""A file of whole lines that one process appends to, and that other programs may rotate.

A kernel lock reserves the file for this process; two names of one file, and two opens in one
process, share that lock. The file may be renamed or removed at any time: lines are durable only if
the path still names the file that they were written to. The lines being written when the file is
moved are written to the new file too, so they may be in both, and are never only in a file that a
rotation is about to remove.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from tailer.errors import SinkRejected, TargetRefused, TransientError, may_heal, out_of_reach
from tailer.files.durable import create_private, make_folder, sync_folder, try_place

_TAIL_BYTES = 64 * 1024
#: How often in a row a file may be moved away while one batch is written.
_MOVES_MAX = 5


def try_line_file(path: Path) -> None:
    """Raise the error of a file that could not be opened, without making it."""
    if path.exists() and not path.is_file() and not path.is_char_device():
        raise _make_kind_error(path)
    with _translate_errors(path):
        try_place(path)


def _make_kind_error(path: Path) -> SinkRejected:
    if path.is_dir():
        return TargetRefused(f"{path} is a folder; name a file in it")
    return TargetRefused(
        f"{path} is a pipe, which keeps nothing; name a file, or - for standard output"
    )


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if may_heal(e):
            raise out_of_reach(f"{path} can't be opened", e) from e
        raise TargetRefused(f"{path} can't be opened ({e.strerror}); check it") from e


class LineFile:
    """Appends to the file at ``path``; :meth:`open` first. A character device works too.

    With ``sync``, lines are on the disk when :meth:`append` returns. With ``private``, a file that
    it creates is for its owner alone. ``feed`` is for the log.
    All methods block. :meth:`reopen` may be called while another one runs.
    """

    def __init__(self, path: Path, feed: str, *, sync: bool, private: bool = False) -> None:
        self.path = path
        self._feed = feed
        self._sync = sync
        self._private = private
        self._turn = threading.Lock()
        self._open = False
        self._file: FileIO | None = None
        self._on_disk = False  # and not a device
        self._end = 0  # of what was appended; a shorter file was truncated

    def open(self) -> None:
        """Open the existing file, without a torn line at its end, or create it."""
        with self._turn:
            with _translate_errors(self.path):
                self._file = self._open_file()
            self._open = True

    def append(self, lines: memoryview) -> None:
        """Write whole lines; return when they are durable, in the file that the path names."""
        with self._turn:
            if not self._open:
                raise TargetRefused("the sink is not open")
            try:
                for _ in range(_MOVES_MAX):
                    self._follow_path()
                    self._write_lines(lines)
                    if self._is_whole():
                        return
            except OSError as e:
                raise out_of_reach(f"{self.path} can't be written", e) from e
            raise TransientError(f"{self.path} is moved away or truncated again and again")

    def reopen(self) -> None:
        """Close a file that was moved away, and open the new one.

        Errors are raised by the next :meth:`append`.
        """
        with self._turn, suppress(OSError, SinkRejected, TransientError):
            if self._open:
                self._follow_path()

    def close(self) -> None:
        """Close the file, and release it to other processes."""
        with self._turn:
            self._open = False
            self._close_file()

    # The file

    def _open_file(self) -> FileIO:
        make_folder(self.path.parent, private=self._private)
        for _ in range(_MOVES_MAX):
            # Unbuffered: bytes that a full disk refused must not be tried again when it is closed.
            if self._private:
                os.close(create_private(self.path))
            file = self.path.open("ab+", buffering=0)
            try:
                mode = os.fstat(file.fileno()).st_mode
                self._on_disk = stat.S_ISREG(mode)
                if not self._on_disk:
                    if stat.S_ISCHR(mode):
                        return file
                    raise _make_kind_error(self.path)
                self._lock_file(file)
                if self._is_named(file):
                    self._end = _cut_torn_line(file)
                    if self._sync:
                        sync_folder(Path(os.path.realpath(self.path)).parent)
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # moved away before it was locked
        raise TransientError(f"{self.path} is moved away again and again")

    def _lock_file(self, file: FileIO) -> None:
        """Lock the file: another process would cut off a line that this one is still writing."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TransientError(
                f"{self.path} is being written by another process or feed; each feed needs its own "
                "file"
            ) from None

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _is_named(self, file: FileIO) -> bool:
        """Return whether the path still names this file."""
        mine = os.fstat(file.fileno())
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return mine.st_nlink > 0 and (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)

    def _follow_path(self) -> None:
        """Move to the end of the file that the path names now."""
        if self._file is not None and self._on_disk:
            if not self._is_named(self._file):
                self._log_rotation(
                    logging.INFO,
                    f"{self.path} was renamed or removed: its next lines go into a new file",
                )
                self._close_file()
            elif (size := os.fstat(self._file.fileno()).st_size) < self._end:
                self._log_rotation(
                    logging.WARNING,
                    f"{self.path} was truncated by another program, from {self._end} bytes to "
                    f"{size}: lines that it had not copied before are lost; rotate by renaming",
                )
                self._end = _cut_torn_line(self._file)
        if self._file is None:
            self._file = self._open_file()

    def _write_lines(self, lines: memoryview) -> None:
        file = self._file
        assert file is not None
        start = os.fstat(file.fileno()).st_size if self._on_disk else 0
        try:
            left = lines
            while left:
                left = left[file.write(left) :]
            if self._sync and self._on_disk:
                os.fdatasync(file.fileno())
        except OSError:
            # The batch comes again: nothing of it stays, neither to fill up the disk nor as pages
            # that may or may not have been written.
            with suppress(OSError):
                if self._on_disk and os.fstat(file.fileno()).st_size > start:
                    file.truncate(start)
            raise
        self._end = start + len(lines)

    def _is_whole(self) -> bool:
        """Return whether all that was written is in the file that the path names."""
        if not self._on_disk:
            return True
        assert self._file is not None
        return self._is_named(self._file) and os.fstat(self._file.fileno()).st_size >= self._end

    def _log_rotation(self, level: int, text: str) -> None:
        more = {"feed": self._feed, "event": "rotated"}
        logging.getLogger("tailer.jsonl").log(level, "feed %s: %s", self._feed, text, extra=more)


def _cut_torn_line(file: FileIO) -> int:
    """Cut the file after its last newline; return the position of the cut."""
    end = file.seek(0, os.SEEK_END)
    at = end
    while at > 0:
        start = max(0, at - _TAIL_BYTES)
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    if at < end:
        file.truncate(at)
    file.seek(0, os.SEEK_END)
    return at
