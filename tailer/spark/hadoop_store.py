"""The store of tables where only Hadoop's file systems lead, such as ``hdfs://``.

The driver reads there by the session's own Java, with what Hadoop's configuration says of user,
namenodes and time-outs. Tasks have no Java: they get the files that they need from Spark
(:mod:`tailer.spark.frames.task_files`).
"""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio.to_thread
import pyarrow as pa
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tailer.errors import ConfigError, FileGone, TableError, TailerError, TransientError
from tailer.spark.frames.compiled import java_session, maker_of
from tailer.storage import Storage, is_served, serve_scheme, take_also
from tailer.store import WHOLE_BYTES, FileStatus, FolderEntries, Found, Store, make_outside_error
from tailer.store.ranged import RangedFile, RangedReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailer.store.traffic import Traffic

T = TypeVar("T")

#: Size and time of a file, before its bytes.
_HEAD = struct.Struct(">qq")
#: Bytes of one call, which Java holds.
_PIECE_BYTES = 32 * 1024 * 1024
#: Bytes of a large file's end that are read as it is opened.
_TAIL_BYTES = 64 * 1024
#: Bytes of an open file in memory.
_FILE_BYTES_MAX = 64 * 1024 * 1024

#: What Hadoop's exceptions are called: no such file, no right to it, and what no repetition heals.
#: All others may pass, as does a namenode that is gone, in safe mode or the standby.
_ABSENT = ("FileNotFoundException", "ParentNotDirectoryException", "PathIsNotDirectoryException")
_DENIED = ("AccessControlException", "AccessDeniedException", "AuthorizationException")
_LASTING = (
    "IllegalArgumentException",
    "InvalidPathException",
    "UnsupportedFileSystemException",
    "UnsupportedOperationException",
    "NoClassDefFoundError",
)
#: An exception that a namenode has sent is named in that of the client.
_NAMED = re.compile(r"(?:[\w.$]*\.RemoteException\()?(?:[\w$]+\.)*([\w$]+)\)?(?:: )?(.*)")
_CAUSE = re.compile(
    r"^(?:Caused )?(?:by)?: ((?:org\.apache\.hadoop|java\.(?:io|net))\..*)", re.MULTILINE
)
_PASSES = re.compile("Connect|Socket|Timeout|SafeMode|Retriable|Standby|BlockMissing|[Hh]ost")
#: The file that Spark's own reader could not read.
READ_FILE = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+?)\.? ")
_URI = re.compile(r"([a-z][a-z0-9+.-]+):(?://(?=.)|(?=/))(.*)", re.IGNORECASE | re.DOTALL)


class FoundFile(NamedTuple):
    """A file: its address for Hadoop, and its bytes."""

    address: str
    size: int


def convert_fault(text: str, table: str, location: str) -> Exception:
    """Return what an exception of Hadoop's, as text, means for a table's file."""
    found = _NAMED.match(text.strip().partition("\n")[0])
    name, why = (found[1], found[2]) if found else ("", text)
    path = location or None
    if name in _ABSENT:
        return FileNotFoundError(location)
    if name in _DENIED:
        hint = "give the session's user the right to read it"
        return TableError(f"permission denied ({why})", table=table, path=path, hint=hint)
    if name == "SecurityException":
        return make_outside_error(table, location, why)
    if name in _LASTING and "UnknownHostException" not in why:
        said = f"Hadoop can't read it ({name}: {why})"
        return TableError(said, table=table, path=path, hint="check the address")
    at = f"{table}, {location}" if location else table
    return TransientError(f"{at}: Hadoop can't reach it now ({name}: {why})")


def find_fault(trace: str, address: str) -> TailerError | None:
    """Return what the last exception of Hadoop's in a trace of Java's means for an address; None if
    there is none."""
    causes = _CAUSE.findall(trace)
    fault = convert_fault(causes[-1], address, "") if causes else None
    if isinstance(fault, FileNotFoundError):
        return FileGone("the file is gone", table=address)
    if isinstance(fault, TransientError) and not _PASSES.search(causes[-1]):
        return None  # a damaged file, for example
    return fault if isinstance(fault, TailerError) else None


class HadoopStore(Store):
    """A table in a file system of Hadoop's. ``also`` are folders outside of the table's in which
    its files may be."""

    def __init__(self, session: SparkSession, table: str, also: Sequence[str] = ()) -> None:
        self._session = session
        self._root = table.rstrip("/")
        self._also = list(also)
        self._java: Any = None

    @property
    def root(self) -> str:
        return self._root

    def _call_java(self, name: str, location: str, *arguments: Any) -> Any:
        """Return what a method of Java's files says of a location, in the calling thread. Raises a
        store's errors."""
        try:
            if self._java is None:
                maker = maker_of(self._session, "HadoopFiles")
                also = self._session.sparkContext._jvm.java.util.ArrayList()  # type: ignore[union-attr]  # noqa: SLF001
                for folder in self._also:
                    also.add(folder)
                self._java = maker.files(java_session(self._session), self._root, also)
            return getattr(self._java, name)(location, *arguments)
        except Py4JJavaError as e:
            raise convert_fault(e.java_exception.toString(), self._root, location) from None
        except PySparkException as e:  # as it calls some of Java's
            raise convert_fault(f"{type(e).__name__}: {e}", self._root, location) from None
        except (OSError, Py4JNetworkError) as e:  # the session's Java answers nothing any more
            raise TailerError(
                f"{self._root}, {location}: the Java of the Spark session has ended ({e}); start "
                "this program again"
            ) from e

    def find_files(self, locations: Sequence[str]) -> list[FoundFile | None]:
        """Return the addresses of files and their bytes; None for one that is not there."""
        found = json.loads(self._call_java("files", json.dumps(locations)))
        return [FoundFile(one[0], one[1]) if one else None for one in found]

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        text = await _wait_for(partial(self._call_java, "list", folder, start_after))
        for name, size, mtime_ms, is_file in json.loads(text or "[]"):
            if is_file:
                yield _make_status(name, size, mtime_ms)

    async def entries(self, address: str) -> FolderEntries | None:
        folder = address if address.count("/") > 2 else f"{address}/"
        text = await _wait_for(partial(self._call_java, "entries", folder))
        if text is None:
            return None
        found = json.loads(text)
        return FolderEntries([f[0] for f in found if f[3]], [f[0] for f in found if not f[3]])

    async def stat(self, location: str) -> FileStatus:
        return (await self.read(location, 0, 0))[1]

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        return await _wait_for(partial(self._read_here, location, offset, length))

    def _read_here(self, location: str, offset: int, length: int | None) -> Found:
        parts: list[bytes] = []
        at = offset
        first: FileStatus | None = None
        while True:
            most = _PIECE_BYTES if length is None else min(_PIECE_BYTES, offset + length - at)
            with tempfile.NamedTemporaryFile() as file:
                answer = self._call_java("read", location, at, most, file.name)
                part = answer[_HEAD.size :] or file.read()
            size, mtime_ms = _HEAD.unpack_from(answer)
            status = _make_status(location.rpartition("/")[2], size, mtime_ms)
            if first is not None and status != first:
                raise TransientError(f"{self._root}, {location} was replaced while it was read")
            first = status
            parts.append(part)
            at += len(part)
            if len(part) < most or at >= status.size or at - offset == length:
                return parts[0] if len(parts) == 1 else b"".join(parts), status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        """See :class:`tailer.store.Store`. A small file is read whole."""
        is_small = size is None or size <= WHOLE_BYTES
        data, opened = await self.read(location, 0, WHOLE_BYTES if is_small else 0)
        if len(data) == opened.size:
            return pa.BufferReader(data)
        tail, _ = await self.read(location, max(0, opened.size - _TAIL_BYTES))

        async def fetch(start: int, end: int) -> Sequence[bytes]:
            data, status = await self.read(location, start, end - start)
            if status != opened:
                raise TransientError(f"{self._root}, {location} was replaced while it was read")
            return [data]

        return RangedFile(RangedReader(fetch, opened.size, tail, _FILE_BYTES_MAX), mode="r")


async def _wait_for(work: Callable[[], T]) -> T:
    """Call what blocks as long as Hadoop's own time-outs let it; a cancellation does not wait."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def _make_status(name: str, size: int, mtime_ms: int) -> FileStatus:
    return FileStatus(name, size, mtime_ms, f"{mtime_ms}-{size}")


class HadoopStorage(Storage):
    """The file systems of a session's Hadoop, for reading tables."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def open_store(
        self,
        table: str,
        options: Mapping[str, Any],
        traffic: Traffic | None = None,  # noqa: ARG002
    ) -> HadoopStore:
        also, rest = take_also(options)
        if rest:
            said = f"{table!r} is read by the session's Hadoop, and takes no option {min(rest)!r}"
            raise ConfigError(f"{said}: give the session its settings")
        return HadoopStore(self._session, table, also)


def find_hadoop_address(table: str) -> str | None:
    """Return an address that only a file system of Hadoop's may have, with the two slashes that
    Hadoop lets be left out; None for any other."""
    found = _URI.fullmatch(table)
    if found is None or found[1].lower() in ("file", "http", "https"):
        return None
    address = f"{found[1].lower()}://{found[2]}"
    return None if is_served(address) else address


def serve_by_hadoop(address: str, session: SparkSession) -> bool:
    """Let this process open tables where only the session's Hadoop leads; return whether it has a
    file system for the address."""
    scheme = address.partition(":")[0]
    known = maker_of(session, "HadoopFiles").knows(java_session(session), scheme)
    if known:
        serve_scheme(scheme, HadoopStorage(session))
    return bool(known)
