"""Where sinks publish files: a local folder, or a prefix on S3.

Both create a file that is not there yet, whole or not at all, and say if it was there: by a hard
link from a temporary file, and by ``If-None-Match``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio.to_thread

from tailer.errors import TableError, TargetRefused, may_heal, out_of_reach
from tailer.files.durable import make_folder, sync_folder, try_place
from tailer.store.traffic import Traffic

if TYPE_CHECKING:
    from tailer.store.s3.options import S3Options

__all__ = ["LocalTarget", "S3Target", "Target", "writing"]

T = TypeVar("T")


class Target(Protocol):
    """A folder of files; names are relative to it. Raises :class:`TransientError` for what may
    pass, and :class:`SinkRejected` for what will not."""

    root: str

    def spool(self) -> Path:
        """Return the local folder in which files grow."""

    async def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names in a folder behind a name, in order; none if there is no folder."""

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
def writing(what: str) -> Iterator[None]:
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
        """See :class:`Target`: on the file system of the target, for hard links."""
        return self._folder / "_delta_tailer" / "temporary"

    async def _run(self, name: str, function: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            with writing(str(self._folder / name)):
                return function(*args)

        return await anyio.to_thread.run_sync(run)

    async def names(self, folder: str, after: str = "") -> list[str]:
        """See :class:`Target`."""
        found = await self._run(folder, self._names, folder)
        return sorted(name for name in found if name > after)

    def _names(self, folder: str) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._folder / folder) if entry.is_file()]
        except FileNotFoundError:
            return []

    async def read(self, name: str) -> bytes | None:
        """See :class:`Target`."""

        def read() -> bytes | None:
            with suppress(FileNotFoundError):
                return (self._folder / name).read_bytes()
            return None

        return await self._run(name, read)

    async def create(self, name: str, source: bytes | Path) -> bool:
        """See :class:`Target`."""
        return await self._run(name, self._create, name, source)

    def _create(self, name: str, source: bytes | Path) -> bool:
        at = self._folder / name
        make_folder(at.parent)
        temporary = source if isinstance(source, Path) else self._temporary(source)
        try:
            os.link(temporary, at)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(at.parent)
        return True

    def _temporary(self, data: bytes) -> Path:
        make_folder(self.spool())
        descriptor, name = tempfile.mkstemp(dir=self.spool())
        os.fchmod(descriptor, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return Path(name)

    async def replace(self, name: str, data: bytes) -> None:
        """See :class:`Target`."""
        await self._run(name, lambda: self._temporary(data).replace(self._folder / name))

    async def remove(self, name: str) -> None:
        """See :class:`Target`."""
        await self._run(name, lambda: (self._folder / name).unlink(missing_ok=True))

    async def rehearse(self) -> None:
        """See :class:`Target`."""
        await self._run("", try_place, self._folder)

    async def aclose(self) -> None:
        """See :class:`Target`."""


class S3Target:
    """Files under a prefix of a bucket, by requests of the project's client."""

    def __init__(self, address: str, options: S3Options) -> None:
        from tailer.store.s3.options import parse_s3_address
        from tailer.store.s3.store import S3Store

        address = address.rstrip("/")
        self._store = S3Store(address, options)
        self.root = self._store.root
        self._bucket, key = parse_s3_address(address) or ("", "")
        self._prefix = f"{key}/" if key else ""
        self._options = options
        self._spool: tempfile.TemporaryDirectory[str] | None = None

    def spool(self) -> Path:
        """See :class:`Target`: in the system's temporary folder."""
        if self._spool is None:
            self._spool = tempfile.TemporaryDirectory(prefix="delta-tailer-files-")
        return Path(self._spool.name)

    async def names(self, folder: str, after: str = "") -> list[str]:
        """See :class:`Target`."""
        with _refused():
            return [found.name async for found in self._store.list(folder, after)]

    async def read(self, name: str) -> bytes | None:
        """See :class:`Target`."""
        with _refused(), suppress(FileNotFoundError):
            return (await self._store.read(name))[0]
        return None

    async def create(self, name: str, source: bytes | Path) -> bool:
        """See :class:`Target`."""
        path = source if isinstance(source, Path) else None
        body = source if isinstance(source, bytes) else await self._bytes(source)
        created = await self._put(name, body, {"If-None-Match": "*"})
        if not created:  # also where this was done, and only the answer was lost
            created = await self.read(name) == body
        if path is not None:
            path.unlink()
        return created

    async def _bytes(self, path: Path) -> bytes:
        with writing(str(path)):
            return await anyio.to_thread.run_sync(path.read_bytes)

    async def replace(self, name: str, data: bytes) -> None:
        """See :class:`Target`."""
        await self._put(name, data, {})

    async def _put(self, name: str, body: bytes, headers: Mapping[str, str]) -> bool:
        return await self._request("put", name, (200, 412), headers, body) == 200

    async def remove(self, name: str) -> None:
        """See :class:`Target`."""
        await self._request("delete", name, (200, 204, 404))

    async def _request(
        self,
        what: str,
        name: str,
        expected: Sequence[int],
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> int:
        """Return the status of an answer, which is one of the expected ones."""
        from tailer.store.s3.client import Call
        from tailer.store.s3.errors import refusal
        from tailer.store.s3.store import SharedClients

        key = self._prefix + name
        call = Call(what, what.upper(), self._bucket, key, {}, headers or {}, body)
        with _refused():
            async with SharedClients.lent(self._options) as client:
                answer = await client.request(call, Traffic())
            if answer.status not in expected:
                raise refusal(answer, what, self._bucket, key)
        return int(answer.status)

    async def rehearse(self) -> None:
        """See :class:`Target`. Whether the bucket may be written is seen by a write alone."""

    async def aclose(self) -> None:
        """See :class:`Target`."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.cleanup()
        await self._store.aclose()


@contextmanager
def _refused() -> Iterator[None]:
    """Raise the refusals of the server as the sink's."""
    try:
        yield
    except TableError as e:
        raise TargetRefused(str(e)) from e
