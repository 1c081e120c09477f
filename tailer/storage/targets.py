"""Where sinks publish files, and the local folder that is one.

A file that does not exist yet is created whole or not at all, by a hard link from a temporary file,
which also shows whether it existed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio.to_thread

from tailer.errors import TargetRefused, may_heal, out_of_reach
from tailer.files.durable import make_folder, sync_folder, try_place

T = TypeVar("T")


class FolderTarget(Protocol):
    """A folder of files; names are relative to it. Raises :class:`TransientError` for what may
    pass, and :class:`SinkRejected` for what will not."""

    root: str

    def spool(self) -> Path:
        """Return the local folder in which files grow."""

    async def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names in a folder after a name, in order; none if there is no folder."""

    async def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is none."""

    async def create(self, name: str, source: bytes | Path) -> bool:
        """Create a durable file; False if another one is there. A source file is removed."""

    async def replace(self, name: str, data: bytes) -> None:
        """Write a small file, over the one that is there."""

    async def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    async def rehearse(self) -> None:
        """Raise the error of a target that can't be written, without writing to it."""

    async def aclose(self) -> None:
        """Release everything."""


@contextmanager
def translate_write_errors(what: str) -> Iterator[None]:
    """Raise errors of the operating system as those of a sink, which say ``what`` is concerned."""
    try:
        yield
    except OSError as e:
        if may_heal(e):
            raise out_of_reach(f"{what} can't be written", e) from e
        raise TargetRefused(f"{what} can't be written ({e.strerror}); check the folder") from e


class LocalTarget:
    """Files in a local folder. The file system must have hard links."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        self._folder = folder

    def spool(self) -> Path:
        """See :class:`FolderTarget`: on the file system of the target, for hard links."""
        return self._folder / "_delta_tailer" / "temporary"

    async def _run_in_thread(self, name: str, function: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            with translate_write_errors(str(self._folder / name)):
                return function(*args)

        return await anyio.to_thread.run_sync(run)

    async def names(self, folder: str, after: str = "") -> list[str]:
        found = await self._run_in_thread(folder, self._list_names, folder)
        return sorted(name for name in found if name > after)

    def _list_names(self, folder: str) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._folder / folder) if entry.is_file()]
        except FileNotFoundError:
            return []

    async def read(self, name: str) -> bytes | None:
        def read() -> bytes | None:
            with suppress(FileNotFoundError):
                return (self._folder / name).read_bytes()
            return None

        return await self._run_in_thread(name, read)

    async def create(self, name: str, source: bytes | Path) -> bool:
        return await self._run_in_thread(name, self._create_file, name, source)

    def _create_file(self, name: str, source: bytes | Path) -> bool:
        at = self._folder / name
        make_folder(at.parent)
        temporary = source if isinstance(source, Path) else self._write_temporary(source)
        try:
            os.link(temporary, at)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(at.parent)
        return True

    def _write_temporary(self, data: bytes) -> Path:
        make_folder(self.spool())
        descriptor, name = tempfile.mkstemp(dir=self.spool())
        os.fchmod(descriptor, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return Path(name)

    async def replace(self, name: str, data: bytes) -> None:
        await self._run_in_thread(
            name, lambda: self._write_temporary(data).replace(self._folder / name)
        )

    async def remove(self, name: str) -> None:
        await self._run_in_thread(name, lambda: (self._folder / name).unlink(missing_ok=True))

    async def rehearse(self) -> None:
        await self._run_in_thread("", try_place, self._folder)

    async def aclose(self) -> None:
        """See :class:`FolderTarget`."""
