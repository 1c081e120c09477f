"""A table that a catalog names: its files are another store's, its versions the catalog's.

The catalog says where the table is, and that store reads the files. If the catalog *manages* the
table, its log in ``_delta_log`` is shown as the catalog has ratified it:

1. A version exists if the catalog has ratified it. One that is newer than the newest of these does
   not exist, whatever lies in the folder: a staged commit, a commit, a checkpoint.
2. A commit that the catalog lists is read from ``_delta_log/_staged_commits``, where the file that
   it names is the commit. Every other one is published, and is read from ``_delta_log``. Both are
   shown under the published name, with a tag that does not change when a commit is published.
3. What is ratified stays ratified: an answer that is older than a former one is not used.
4. A ratified commit that can't be found is waited for, unless later files show that it was cleaned
   up: its writer says that it is published before it is, or the storage is late.

The catalog is asked for a version that is newer than those it has named, and for a listing.
Versions that it has named are read while it is away.

What must never happen: a staged commit is read that the catalog has not ratified; the staged and
the published file of one version are taken for two versions, or for two states of one.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct

from tailer.delta.segment import LogKind, format_commit_name, parse_log_file
from tailer.errors import TransientError
from tailer.process.threads import run_blocking
from tailer.store import LOG_DIR, FileStatus, Found, Store
from tailer.store.budget import Budget
from tailer.store.unity.answers import CatalogTable

if TYPE_CHECKING:
    import pyarrow as pa

_STAGED = f"{LOG_DIR}/_staged_commits"
#: Limit of the bytes fetched ahead from a store that fetches nothing ahead itself.
_AHEAD_BYTES_MAX = 64 * 1024 * 1024


class TableSource(Struct, frozen=True):
    """How a table is found and read: ``load`` asks the catalog what the name stands for, ``open``
    opens the store of what it said, ``close`` is called at the end. ``account`` says, for people,
    which catalog was asked, and by whom.

    ``recheck_s``: how often, in seconds, the catalog is asked whether a table that it does not
    manage has moved, or is managed now. ``ratifies``: it may manage tables.
    """

    load: Callable[[], Awaitable[CatalogTable]]
    open: Callable[[CatalogTable], Awaitable[Store]]
    close: Callable[[], Awaitable[None]]
    account: str
    recheck_s: float = 30.0
    ratifies: bool = True


class CatalogStore(Store):
    """The table of a name, ``root``. ``clock`` gives steady seconds."""

    check_s = 120.0

    def __init__(
        self, root: str, source: TableSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._source, self._clock = root, source, clock
        self.by_catalog = source.ratifies
        self._lock = anyio.Lock()
        self._table: CatalogTable | None = None
        self._asked_at = float("-inf")
        self._files: Store | None = None
        self._former: list[Store] = []
        self._ahead = Budget(_AHEAD_BYTES_MAX)

    @property
    def root(self) -> str:
        return self._root

    # What the catalog says

    async def _load_table(
        self, version: int = -1, *, newer_than_s: float = float("-inf")
    ) -> CatalogTable:
        """Return what the catalog says, asked again if it has not named this version yet, or if
        it was asked before ``newer_than_s``."""
        asked_at = self._clock()
        table = self._table
        if table is None or version > table.latest or self._asked_at < newer_than_s:
            async with self._lock:
                if self._table is None or self._asked_at < asked_at:  # else somebody just has
                    await self._use_table(await self._source.load())
                    self._asked_at = asked_at
                table = self._table
        assert table is not None
        return table

    async def _use_table(self, table: CatalogTable) -> None:
        known = self._table
        if known is None or (known.table_id, known.location) != (table.table_id, table.location):
            opened = await self._source.open(table)
            # Files of the former one may still be open.
            self._former += [] if self._files is None else [self._files]
            self._files = opened
        elif known.managed and table.managed and table.latest < known.latest:
            return
        self._table = table

    async def _open_files(self) -> Store:
        if self._files is None:
            await self._load_table()
        assert self._files is not None
        return self._files

    async def _load_for_log(self, version: int = -1, *, listing: bool = False) -> CatalogTable:
        """Return what the catalog says for a read of the log: of a table that it manages it is
        asked for news, of any other now and then."""
        now = self._clock()
        table = await self._load_table()
        if table.managed:
            return await self._load_table(version, newer_than_s=now if listing else float("-inf"))
        return await self._load_table(newer_than_s=now - self._source.recheck_s)

    def _list_places(self, table: CatalogTable, location: str, version: int) -> list[str]:
        """Return where the commit of a version may lie, in the order in which to look."""
        if version > table.latest:
            return []
        commit = table.commits.get(version)
        return [f"{_STAGED}/{commit.file_name}", location] if commit else [location]

    async def _read_file(
        self, location: str, read: Callable[[Store, str], Awaitable[FileStatus | Found]]
    ) -> FileStatus | Found:
        """Read a file from the table's store; a commit of the log from where it lies."""
        version = _version_of(location)
        if version is None:
            return await read(await self._open_files(), location)
        table = await self._load_for_log(version)
        files = await self._open_files()
        if not table.managed:
            return await read(files, location)
        for again in (False, True):
            for place in self._list_places(table, location, version):
                try:
                    return _tag_commit(await read(files, place), table, version)
                except FileNotFoundError:
                    continue
            if again or version > table.latest:
                break
            # The answer may be older than the file's move.
            table = await self._load_table(newer_than_s=self._clock())
        if version <= table.latest and not await _is_passed(files, version, table.latest):
            raise TransientError(
                f"{self.root}: the catalog has ratified version {version}, and its commit is "
                "neither staged nor published"
            )
        raise FileNotFoundError(location)

    # The store

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`. Files of versions that are not ratified are left out."""
        # Before the folder is listed: what is not listed by the catalog lies there by then.
        is_log = folder == LOG_DIR
        table = await self._load_for_log(listing=True) if is_log else await self._load_table()
        newest = -1
        async with aclosing((await self._open_files()).list(folder, start_after)) as listing:
            async for status in listing:
                file = parse_log_file(status.name, status.size, status.mtime_ms)
                if not (is_log and table.managed) or file is None:
                    yield status
                    continue
                if file.version <= table.latest and file.kind is not LogKind.CHECKSUM:
                    newest = max(newest, file.version)
                if file.last_version <= table.latest and file.version not in (
                    table.commits if file.kind is LogKind.COMMIT else ()
                ):
                    is_commit = file.kind is LogKind.COMMIT
                    yield _tag_status(status, table, file.version) if is_commit else status
        if is_log:
            self._check_listed(table, newest, start_after)
            for version, commit in sorted(table.commits.items()):
                if (name := format_commit_name(version)) > start_after:
                    size, mtime_ms = commit.file_size, commit.file_modification_timestamp
                    yield _tag_status(FileStatus(name, size, mtime_ms, ""), table, version)

    def _check_listed(self, table: CatalogTable, newest: int, start_after: str) -> None:
        """Raise :class:`TransientError` if a listing lacks the newest version that is published by
        what the catalog says: with the staged ones, it would be a log with a gap."""
        published = min(table.commits, default=table.latest + 1) - 1
        if newest < published and format_commit_name(published) > start_after:
            raise TransientError(
                f"{self.root}: the catalog says that version {published} is published, and the "
                "listing of _delta_log ends before it"
            )

    async def stat(self, location: str) -> FileStatus:
        found = await self._read_file(location, lambda files, place: files.stat(place))
        assert isinstance(found, FileStatus)
        return found

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        found = await self._read_file(
            location, lambda files, place: files.read(place, offset, length)
        )
        assert isinstance(found, tuple)
        return found

    async def read_many(self, reads: Sequence[tuple[str, int]]) -> Sequence[Found | None]:
        """See :class:`tailer.store.Store`: at once, and what is not where it should be by
        itself."""
        versions = [_version_of(location) for location, _ in reads]
        newest = max((version for version in versions if version is not None), default=-1)
        table, files = await self._load_for_log(newest), await self._open_files()
        places: list[tuple[str, int]] = []
        for (location, length), version in zip(reads, versions, strict=True):
            is_managed = table.managed and version is not None
            lies_in = self._list_places(table, location, version or 0) if is_managed else [location]
            places.append(((lies_in or [location])[0], length))
        found: list[Found | None] = [*await _read_many(files, places)]
        for at, version in enumerate(versions):
            if not table.managed or version is None:
                continue
            one = found[at] if version <= table.latest else None
            if one is None:
                location, length = reads[at]
                found[at] = await self._read_beginning(location, length)
            else:
                found[at] = one[0], _tag_status(one[1], table, version)
        return found

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        return await (await self._open_files()).open(location, size)

    def ahead(self) -> Budget:
        """See :class:`tailer.store.Store`: that of the table's store, once it is known."""
        own = None if self._files is None else self._files.ahead()
        return own or self._ahead

    async def presigner(self, at: dt.datetime, ttl_s: int) -> Callable[[str], str | None] | None:
        return await (await self._open_files()).presigner(at, ttl_s)

    async def access(self) -> str:
        place = (await self._open_files()).root
        managed = ", which ratifies its commits" if (await self._load_table()).managed else ""
        return f"at {place}, by {self._source.account}{managed}"

    async def aclose(self) -> None:
        for files in (*self._former, *([] if self._files is None else [self._files])):
            await files.aclose()
        self._former, self._files, self._table = [], None, None
        await self._source.close()


def _version_of(location: str) -> int | None:
    """Return the version of a commit in the log; None for any other file."""
    name = location.removeprefix(f"{LOG_DIR}/")
    if name == location:
        return None
    file = parse_log_file(name, 0, 0)
    return file.version if file is not None and file.kind is LogKind.COMMIT else None


def _tag_status(status: FileStatus, table: CatalogTable, version: int) -> FileStatus:
    """Return the status of a commit with a tag that publishing does not change."""
    return FileStatus(status.name, status.size, status.mtime_ms, f"{table.table_id}:{version}")


def _tag_commit(found: FileStatus | Found, table: CatalogTable, version: int) -> FileStatus | Found:
    if isinstance(found, FileStatus):
        return _tag_status(found, table, version)
    return found[0], _tag_status(found[1], table, version)


async def _read_many(files: Store, reads: list[tuple[str, int]]) -> Sequence[Found | None]:
    here = files.blocking_files()
    if here is None:
        return await files.read_many(reads)

    def read() -> list[Found | None]:
        found: list[Found | None] = []
        for location, length in reads:
            try:
                found.append(here.read_here(location, 0, length))
            except FileNotFoundError:
                found.append(None)
        return found

    return await run_blocking(read)


async def _is_passed(files: Store, version: int, latest: int) -> bool:
    """Return whether the log has a later commit or a checkpoint, so that the commit of a version
    was cleaned up rather than not published yet."""
    async with aclosing(files.list(LOG_DIR, f"{version:020d}")) as listing:
        async for status in listing:
            file = parse_log_file(status.name, status.size, status.mtime_ms)
            proves = file is not None and file.kind not in (LogKind.CHECKSUM, LogKind.COMPACTED)
            if file is not None and proves and file.version <= latest:
                return True
    return False
