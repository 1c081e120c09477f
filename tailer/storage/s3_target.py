"""Where sinks publish files on S3: a prefix of a bucket.

A file that is not there yet is created, whole or not at all, by ``If-None-Match``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio.to_thread

from tailer.errors import TableError, TargetRefused
from tailer.storage.targets import writing
from tailer.store.s3.client import Call
from tailer.store.s3.errors import refusal
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.store import S3Store, SharedClients
from tailer.store.traffic import Traffic

__all__ = ["S3Target"]


class S3Target:
    """Files under a prefix of a bucket, by requests of the project's client."""

    def __init__(self, address: str, options: S3Options) -> None:
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
