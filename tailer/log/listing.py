"""The files of a table's log: which versions exist, and the hints beside them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

import anyio

from tailer.delta.checksum import VersionChecksum, parse_checksum
from tailer.delta.last_checkpoint import LastCheckpoint, parse_last_checkpoint
from tailer.delta.segment import LogFile, LogKind, find_segments, format_commit_name, parse_log_file
from tailer.errors import CorruptLog, DataLoss, TableError, TransientError, ungrouping
from tailer.log.json_files import MEMORY_BYTES_MAX
from tailer.store import LOG_DIR, Store

T = TypeVar("T")
U = TypeVar("U")

#: The most names that a server gives in one answer (S3's "ListObjectsV2").
_PAGE_NAMES = 1000
#: A listing of more files is not kept.
_KEPT_FILES_MAX = 10_000
#: About the bytes of such an answer.
_PAGE_BYTES = 512 * 1024


class LogListing:
    """The listing of the ``_delta_log`` of one table."""

    #: The files of a log that is listed only once: :class:`tailer.log.listed.ListedLog`.
    listed: Sequence[LogFile] = ()

    def __init__(self, store: Store) -> None:
        self.store = store
        #: The mark of a folder that rests, what was listed of it, and the files.
        self._rest: tuple[str, str, list[LogFile]] | None = None

    async def list_files(self, start_after: str = "") -> list[LogFile]:
        """Return the files of the log, by version; other files in the folder are left out. A folder
        that has not changed is not listed again."""
        mark = self.store.rest_mark(LOG_DIR)
        if mark is not None and self._rest is not None and self._rest[:2] == (mark, start_after):
            return [*self._rest[2]]
        found = await self._list_up_to(math.inf, start_after) or []
        self._rest = None
        if mark is not None and len(found) <= _KEPT_FILES_MAX:
            self._rest = mark, start_after, found
        return [*found]

    def forget_files(self) -> None:
        """Forget what was listed of a folder that rests: many feeds at their heads would hold
        megabytes each, which none needs again."""
        self._rest = None

    async def _list_up_to(self, names_max: float, start_after: str = "") -> list[LogFile] | None:
        """Return the files of the log, by version; None if the folder has more names."""
        found, names = [], 0
        async with aclosing(self.store.list(LOG_DIR, start_after)) as listing:
            async for status in listing:
                names += 1
                if names > names_max:
                    return None
                file = parse_log_file(status.name, status.size, status.mtime_ms, status.tag)
                if file is not None:
                    found.append(file)
        return sorted(found, key=lambda f: (f.version, f.name))

    async def recent_files(self) -> list[LogFile]:
        """Return the files from the last known checkpoint on; all of them if it is unknown, or if
        they are few: a slow store is asked for both at the same time, if that may be."""
        ahead = self.store.ahead()
        if ahead is not None and ahead.try_take(_PAGE_BYTES):
            try:
                few, hint = await _wait_for_both(
                    self._list_up_to(_PAGE_NAMES), self.last_checkpoint()
                )
            finally:
                ahead.give_back(_PAGE_BYTES)
            if few is not None:
                return few
        else:
            hint = await self.last_checkpoint()
        if hint is not None:
            files = await self.list_files(f"{hint.version:020d}")
            if any(f.version == hint.version and f.kind is not LogKind.COMMIT for f in files):
                return files
        return await self.list_files()

    async def last_checkpoint(self) -> LastCheckpoint | None:
        """Return the content of ``_last_checkpoint``, a hint; None if it can't be trusted."""
        return await self._read_hint("_last_checkpoint", parse_last_checkpoint)

    async def read_checksum(self, version: int) -> VersionChecksum | None:
        """Return a version's checksum file (``.crc``), parsed; None without a trustworthy one."""
        return await self._read_hint(f"{version:020d}.crc", parse_checksum)

    async def _read_hint(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            data, status = await self.store.read(f"{LOG_DIR}/{name}", 0, MEMORY_BYTES_MAX)
            return parse(data) if status.size <= len(data) else None
        except (FileNotFoundError, CorruptLog):
            return None

    async def latest_version(self) -> int:
        """Return the newest version. Raises :class:`TableError` if there is no table here."""
        versions = list_versions(await self.recent_files())
        if not versions:
            from tailer.store.surroundings import (
                make_no_table_error,  # on demand: for this error alone
            )

            raise await make_no_table_error(self.store)
        return max(versions)

    async def earliest_version(self) -> int:
        """Return the first commit whose version before can still be built.

        Its removed rows can then be read.
        """
        files = await self.list_files()
        for version in sorted(f.version for f in files if f.kind is LogKind.COMMIT):
            if version == 0 or can_build(files, version - 1):
                return version
        await self.latest_version()  # raises if there is no table at all
        raise DataLoss(
            "no version's changes can be read: no commit follows a version that can be built",
            table=self.store.root,
            hint="start with a snapshot",
        )

    async def readable_after(self, version: int) -> int:
        """Return the first later version whose changes can be read.

        Without one, return the next version that will appear.
        """
        files = await self.list_files()
        for later in sorted(f.version for f in files if f.kind is LogKind.COMMIT):
            if later > version and can_build(files, later - 1):
                return later
        return max([version, *list_versions(files)]) + 1

    async def has_commit(self, version: int) -> bool:
        """Return whether the commit exists.

        It is looked up by itself, because a listing may be older.
        """
        return version >= 0 and await self.find_tag(format_commit_name(version)) is not None

    async def find_tag(self, name: str) -> str | None:
        """Return the tag of a file of the log; None if there is no such file."""
        try:
            return (await self.store.stat(f"{LOG_DIR}/{name}")).tag
        except FileNotFoundError:
            return None

    async def check_exists(self, files: list[LogFile], version: int) -> None:
        """Raise an error if a version is newer than these files of the log."""
        newest = max(list_versions(files), default=-1)
        if version > newest:
            if await self.has_commit(version):  # the listing is older than the commit
                raise TransientError(
                    f"{self.store.root}: the log's listing ends before version {version}, which is "
                    "there"
                )
            await self.latest_version()  # raises if there is no table at all
            raise TableError(
                f"there is no version {version}: the newest is {newest}",
                table=self.store.root,
                hint="ask for a version that exists",
            )

    def make_vanished_error(self, e: FileNotFoundError) -> TransientError:
        """Return the error for a file of the log that was listed and is gone.

        It was cleaned up in between, or the listing is old. The next listing shows which.
        """
        return TransientError(f"{self.store.root}, {e.filename or e}: listed and can't be read")

    def locate_error(self, error: TableError) -> TableError:
        """Return the error with the table's address."""
        return error.at(table=self.store.root)


async def _wait_for_both(one: Awaitable[T], other: Awaitable[U]) -> tuple[T, U]:
    """Wait for both at the same time. The first error is raised unchanged."""
    found: list[U] = []

    async def wait() -> None:
        found.append(await other)

    with ungrouping():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            first = await one
    return first, found[0]


def list_versions(files: Iterable[LogFile]) -> list[int]:
    """Return the versions that exist: a checkpoint proves its version as well as a commit does."""
    return [f.version for f in files if f.kind not in (LogKind.COMPACTED, LogKind.CHECKSUM)]


def can_build(files: list[LogFile], version: int) -> bool:
    """Return whether these files of the log suffice for the version's snapshot."""
    try:
        next(find_segments(files, version))
    except DataLoss:
        return False
    return version in list_versions(files)
