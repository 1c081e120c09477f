"""Databases that are one file, and whether a path still names the one that was opened there."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from sinks.sql.database import Database
from sinks.sql.sink import SqlSink
from tailer.changes import Offset
from tailer.errors import TargetRefused, TransientError
from tailer.files.durable import make_folder, try_place
from tailer.storage.targets import translate_write_errors


class SameFile:
    """The file of a path. ``written``: the feed has written to it before, so it has to be there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self.written = False

    def begin(self) -> None:
        """Take whatever file is there. Raises :class:`TargetRefused` if it has to be and is not."""
        self._known = None
        if self.written and not self._path.exists():
            raise TargetRefused(
                f"{self._path} is not there, and the feed has written to it; restore it, or begin "
                "again with `tailer offsets reset`"
            )

    def note_opened_file(self) -> None:
        """Note which file was opened."""
        self._known = self._find_identity()

    def check(self) -> None:
        """Raise :class:`TransientError`, after which it is opened anew, if the path names another
        file than the one that was opened, or none."""
        if self._known is not None and self._find_identity() != self._known:
            self._known = None
            raise TransientError(
                f"{self._path} was removed, or is another file now; the feed restarts from "
                "the state found there"
            )

    def _find_identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino


class FileDatabase(Database):
    """A connection to a database in the file at ``path``; None: the file is not open here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)
        self._connection: Any = None
        self._file = SameFile(path)

    @abstractmethod
    def _open(self, *, read_only: bool) -> None:
        """Open the file, which another process may make meanwhile, as the connection."""

    @abstractmethod
    def _translate_errors(self) -> AbstractContextManager[None]:
        """Raise the driver's errors as those of ``faults``, around each use of it."""

    def begin_at(self, *, written: bool) -> None:
        self._file.written = written
        self._file.begin()

    def exists(self) -> bool:
        """Return whether the file is there."""
        with self._translate_errors():
            return self.path.exists()

    def connect(self, *, read_only: bool = False) -> None:
        """Open the file, if it is not open; it must be the one that was."""
        with self._translate_errors():
            try:
                self._file.check()
            except TransientError:
                self.abandon()
                raise
        if self._connection is not None:
            return
        with self._translate_errors():
            if not read_only:
                make_folder(self.path.parent)
            self._open(read_only=read_only)
            if not read_only:
                self._file.note_opened_file()


class FileSink(SqlSink):
    """A copy of a table, or a log of its changes, in a database that is one file."""

    #: The database, made with its path.
    file_class: ClassVar[type[FileDatabase]]

    def __init__(self, file: FileDatabase, **table: Any) -> None:
        super().__init__(file, **table)
        self._file = file

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> Self:
        """Create the sink. Options: those of the class's settings."""
        more = dict(options)
        return cls(cls.file_class(folder / more.pop("path")), **more)

    def _look_at_table(self, feed: str) -> Offset | None:
        return super()._look_at_table(feed) if self._file.exists() else None

    def _rehearse_feed(self, feed: str, schema: pa.Schema) -> None:
        with rehearsal_of_file(self._file.path) as path:
            self._database = self.file_class(path)
            try:
                super()._rehearse_feed(feed, schema)
            finally:
                self._database = self._file


@contextmanager
def rehearsal_of_file(path: Path) -> Iterator[Path]:
    """Provide the place of another file, in which a table may be made, if one could be at ``path``.

    Raises the error of a start if it could not: the database's own file may be locked by a daemon.
    """
    with translate_write_errors(str(path)):
        try_place(path)
    with tempfile.TemporaryDirectory(prefix="delta-tailer-check-") as folder:
        yield Path(folder) / path.name
