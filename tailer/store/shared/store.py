"""The store of shared tables: ``profile.share#share.schema.table``.

It presents a Delta Sharing server's answers as a table's folder, so that the readers of tables read
shared ones: a ``_delta_log`` with a commit and a checkpoint for every version, and the files, whose
bytes come by ranges from pre-signed URLs.

The server is asked for its newest version at most every ``poll_interval_s`` seconds ("Delta Sharing
Streaming Specs"), however often the log is read.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
import anyio.to_thread
import pyarrow as pa

from tailer.errors import ConfigError, TableError, spilling
from tailer.files.spill import SpillFolder
from tailer.setting_fields import DeclaredOptions, declared, settings_of
from tailer.settings import Setting, SettingTable
from tailer.sharing.client import ClientOptions, SharingClient
from tailer.sharing.http import SharingRefused, format_timestamp
from tailer.sharing.model import Table
from tailer.sharing.profile import load_profile, parse_address
from tailer.store import LOG_DIR, FileStatus, Found, Store
from tailer.store.https import HttpsFiles, Link, LinkSource
from tailer.store.shared.links import LinkTable
from tailer.store.shared.log import MadeFile, SharedLog

POLL_INTERVAL_MIN_S = 30.0
_VERSIONS_PER_REQUEST = 100
_LISTED_MAX = 5_000_000

#: A checkpoint's name needs an id; there is one checkpoint for each version.
_CHECKPOINT = "checkpoint.00000000-0000-0000-0000-000000000000.json"
_COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT_NAME = re.compile(rf"([0-9]{{20}})\.{re.escape(_CHECKPOINT)}")


@dataclass(frozen=True, slots=True)
class SharingOptions(DeclaredOptions):
    """The options of a shared table's store."""

    # fmt: off
    poll_interval_s: float = declared(Setting(
        "number", POLL_INTERVAL_MIN_S, "Interval between requests for the newest version; the "
        "protocol allows none shorter than 30 s.", unit="seconds", least=POLL_INTERVAL_MIN_S,
        advanced=True,
    ))
    response_format: Literal["auto", "delta", "parquet"] = declared(Setting(
        "text", "auto", "Format of responses; `auto` lets the server choose.",
        choices=("auto", "delta", "parquet"), advanced=True,
    ))
    ca_file: str | None = declared(Setting(
        "text", None, "PEM file of the trusted authorities.", unset="the system's authorities",
        advanced=True,
    ))
    allow_http: bool = declared(Setting("flag", False, "Allow tokens to be sent without TLS.",
        advanced=True))
    # fmt: on

    @classmethod
    def setting_table(cls) -> SettingTable:
        return SettingTable("a shared table", settings_of(cls), text=True)


class _Parts(NamedTuple):
    """What is open while the table is read."""

    scratch: SpillFolder
    links: LinkTable
    log: SharedLog


class SharingStore(Store, LinkSource):
    """A shared table. ``clock`` gives epoch seconds, and ``versions_per_request`` are the most
    versions whose changes one request asks for; see :class:`tailer.store.Store`.

    Raises :class:`ConfigError` for an address, a profile or an option that is wrong.
    """

    #: Made files appear whole, and looking for more costs no request.
    atomic = True
    server_log = True

    def __init__(
        self,
        address: str,
        options: SharingOptions | None = None,
        clock: Callable[[], float] = time.time,
        versions_per_request: int = _VERSIONS_PER_REQUEST,
    ) -> None:
        self._versions_per_request = versions_per_request
        self._options = options = options or SharingOptions()
        file, share, schema, name = parse_address(address)
        profile = load_profile(file, allow_http=options.allow_http)
        self._table = Table(name, schema, share)
        self._root = f"{file}#{self._table}"
        self._client = SharingClient(
            profile,
            clock,
            ClientOptions(
                options.response_format,
                ca_file=options.ca_file,
            ),
        )
        self._files = HttpsFiles(
            self._client.sessions.open_files_session, self, clock, root=self._root,
            allow_http=options.allow_http, whereabouts=self._client.sessions.whereabouts,
        )  # fmt: skip
        self._lock = anyio.Lock()
        self._opened: _Parts | None = None
        self._newest: int | None = None
        self._oldest: int | None = None
        self._poll_at = 0.0
        self._went_back = False

    @property
    def root(self) -> str:
        """The table's address: the profile's file and the table's name."""
        return self._root

    def _open_log(self) -> SharedLog:
        return self._open_parts().log

    def _open_parts(self) -> _Parts:
        if self._opened is None:
            with spilling(None):
                scratch = SpillFolder("tailer-share-")
            links = LinkTable(scratch.folder / "links.db")
            log = SharedLog(
                self._client, self._table, scratch.folder, links,
                "auto", self._versions_per_request,
            )  # fmt: skip
            self._opened = _Parts(scratch, links, log)
        return self._opened

    def serve(self, change_source: str) -> None:
        if change_source not in ("auto", "cdf", "derived"):
            raise ConfigError(f"{change_source!r} is not a change source")
        self._open_log().use_requests(change_source)  # type: ignore[arg-type]  # one of the three

    # Versions

    async def _find_newest(self, wanted: int | None = None) -> int:
        """Return the newest known version.

        If ``wanted`` is later, ask the server again, at most once per poll interval.
        """
        newest, now = self._newest, anyio.current_time()
        if newest is not None and (wanted is None or wanted <= newest or now < self._poll_at):
            return newest
        found = await self._client.find_version(self._table)
        self._poll_at = now + self._options.poll_interval_s
        # One server of several may lag: an older version is believed only the second time.
        if newest is not None and found < newest and not self._went_back:
            self._went_back = True
            return newest
        self._went_back = False
        self._newest = found
        return found

    async def _find_oldest(self) -> int:
        """Return the first version that the server knows of; 0 if it can't say."""
        if self._oldest is None:
            try:
                self._oldest = await self._client.find_version(self._table, format_timestamp(0))
            except SharingRefused as e:
                if e.status == 401:
                    raise
                self._oldest = 0
        return self._oldest

    async def version_at_or_after(self, timestamp_ms: int) -> int | None:
        """Return the first version at or after a time in epoch ms; None if all are before it.

        Raises :class:`TableError` if the server does not look versions up by time.
        """
        async with self._lock:
            try:
                return await self._client.find_version(self._table, format_timestamp(timestamp_ms))
            except SharingRefused as e:
                if e.status == 401:
                    raise
                try:
                    await self._client.find_version(self._table, format_timestamp(0))
                except SharingRefused:
                    raise e.at(table=self._root) from None
                return None

    # The store

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        if folder.strip("/") != LOG_DIR:
            return
        digits = re.match(r"[0-9]{1,20}", start_after)
        async with self._lock:
            newest = await self._find_newest()
            first = int(digits[0]) if digits else await self._find_oldest()
            known_time = self._open_log().known_time
        if newest - first > _LISTED_MAX:
            raise TableError(
                f"the sharing server speaks of {newest - first} versions, too many to list",
                table=self._root,
                hint="start at a version",
            )
        for version in range(first, newest + 1):
            time_ms = known_time(version)
            for name in (f"{version:020d}.{_CHECKPOINT}", f"{version:020d}.json"):
                if name > start_after:
                    yield FileStatus(name, 1, time_ms, name)

    async def stat(self, location: str) -> FileStatus:
        if location.startswith(("data/", "dv/")):
            piece = await self._files.read(location, 0, 1)
            return FileStatus(location, piece.total, 0, piece.state)
        async with self._lock:
            return await _make_status(location, await self._make_file(location))

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        if location.startswith(("data/", "dv/")):
            piece = await self._files.read(location, offset, length)
            return piece.data, FileStatus(location, piece.total, 0, piece.state)
        async with self._lock:
            if location == f"{LOG_DIR}/_last_checkpoint":
                hint = b'{"version":%d,"size":1}' % await self._find_newest()
                end = None if length is None else offset + length
                return hint[offset:end], FileStatus("_last_checkpoint", len(hint), 0, "")
            made = await self._make_file(location)
            status = await _make_status(location, made)
            return await anyio.to_thread.run_sync(_read_file, made.file, offset, length), status

    async def _make_file(self, location: str) -> MadeFile:
        """Return a file of the log, made if it does not exist yet. Raises FileNotFoundError."""
        folder, _, name = location.rpartition("/")
        try:
            if folder == f"{LOG_DIR}/_sidecars" and (match := _COMMIT_NAME.fullmatch(name)):
                return await self._open_log().make_sidecar(
                    int(match[1]), await self._newest_for(match[1])
                )
            if folder == LOG_DIR and (match := _COMMIT_NAME.fullmatch(name)):
                return await self._open_log().fetch_commit(
                    int(match[1]), await self._newest_for(match[1])
                )
            if folder == LOG_DIR and (match := _CHECKPOINT_NAME.fullmatch(name)):
                await self._newest_for(match[1])
                return await self._open_log().make_checkpoint(int(match[1]))
        except TableError as e:
            raise e.at(table=self._root) from None
        raise FileNotFoundError(location)

    async def _newest_for(self, digits: str) -> int:
        """Return the newest version.

        Raises FileNotFoundError if the given one does not exist yet.
        """
        newest = await self._find_newest(int(digits))
        if int(digits) > newest:
            raise FileNotFoundError(digits)
        return newest

    async def open(self, location: str, size: int | None) -> pa.NativeFile:
        return await self._files.open(location, size)

    async def aclose(self) -> None:
        """Close all connections, and remove the files kept on the disk."""
        await self._client.aclose()
        if self._opened is not None:
            parts, self._opened = self._opened, None
            parts.links.close()
            await anyio.to_thread.run_sync(parts.scratch.close)

    # Links

    async def expect(self, location: str, version: int, *, snapshot: bool) -> None:
        """See :class:`tailer.store.Store`: another store may have read the log."""
        _, links, log = self._open_parts()
        if location in links:
            return
        async with self._lock:
            try:
                await log.request_urls(location, version, snapshot=snapshot)
            except TableError as e:
                raise e.at(table=self._root) from None

    async def find_link(self, location: str) -> Link:
        return self._open_parts().links.find_link(location).link

    async def renew_link(self, location: str, old: Link) -> Link:
        _, links, log = self._open_parts()
        async with self._lock:
            # Several readers may find their URLs expired at once: one of them renews all.
            stored = links.find_link(location)
            if stored.link.issued == old.issued:
                await log.renew_urls(stored.origin)
                stored = links.find_link(location)
                if stored.link.issued == old.issued:
                    raise FileNotFoundError(location)
            return stored.link


async def _make_status(location: str, made: MadeFile) -> FileStatus:
    size = (await anyio.to_thread.run_sync(made.file.stat)).st_size
    name = location.rpartition("/")[2]
    return FileStatus(name, size, made.mtime_ms, name)


def _read_file(file: Path, offset: int, length: int | None) -> bytes:
    with file.open("rb") as f:
        f.seek(offset)
        return f.read() if length is None else f.read(length)
