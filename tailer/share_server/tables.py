"""One shared table: its log, the snapshots requested lately, and its files as the log has them."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio

from tailer.delta.add_fields import AS_LOGGED
from tailer.delta.checkpoint import add_objects
from tailer.delta.commit import Lines
from tailer.delta.parsing import build_action, parse_document
from tailer.delta.snapshot import Reconciliation, Snapshot
from tailer.delta.timestamps import find_enablement
from tailer.errors import CorruptLog, TableError
from tailer.log.table import TableLog
from tailer.log.times import list_times
from tailer.plan.live_files import LiveFiles
from tailer.share_server.grants import TableConfig
from tailer.storage import open_store
from tailer.store import LOG_DIR, Store

#: Snapshots that are kept of a table: the newest, and those requested by time travel.
_SNAPSHOTS_KEPT = 8
#: Sets of live files that are kept, each at the version where a client's last range ended.
_LIVE_KEPT = 2

FileAction = tuple[str, dict[str, Any]]


def list_raw_actions(name: str, lines: Lines) -> Iterator[FileAction]:
    """Yield (kind, JSON object) of the adds, removes and cdc actions of a JSON file of the log."""
    for line in lines():
        if not line.strip():
            continue
        try:
            document = parse_document(line)
        except CorruptLog as e:
            raise e.at(path=name) from None
        for kind in ("add", "remove", "cdc"):
            values = document.get(kind) if isinstance(document, dict) else None
            if isinstance(values, dict):
                yield kind, values


class SharedTable:
    """A shared table. Its creator closes ``store``, which no other object uses."""

    def __init__(self, config: TableConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.users = 0
        # Readers do not wait for writers: a half-written commit counts as not written yet.
        self.log = TableLog(store, torn_commit_max_s=0.5)
        self._snapshots: OrderedDict[int, tuple[object, Snapshot]] = OrderedDict()
        self._reading = anyio.Lock()
        self._live: list[LiveFiles] = []

    async def latest_version(self) -> int:
        """Return the newest version, by one listing."""
        return await self.log.latest_version()

    async def load_snapshot(self, version: int) -> Snapshot:
        """Return the snapshot of a version, from memory if its commit file is unchanged."""
        identity = await self._find_identity(version)
        kept = self._snapshots.get(version)
        if kept is not None and kept[0] == identity:
            self._snapshots.move_to_end(version)
            return kept[1]
        async with self._reading:
            kept = self._snapshots.get(version)
            if kept is None or kept[0] != identity:
                snapshot = await self.log.load_snapshot(version)
                self._snapshots[version] = (identity, snapshot)
                while len(self._snapshots) > _SNAPSHOTS_KEPT:
                    self._snapshots.popitem(last=False)
                return snapshot
            return kept[1]

    @contextmanager
    def borrow_live_files(self, version: int) -> Generator[LiveFiles]:
        """Yield the table's files, for one walk over the commits from that version on.

        A client that requests the versions after an earlier range reuses what was read for that
        one.
        """
        fit = next((f for f in self._live if f.version in (version - 1, version)), None)
        if fit is not None:
            self._live.remove(fit)
        live = fit or LiveFiles()
        yield live
        if live.version is not None:
            self._live = [*self._live, live][-_LIVE_KEPT:]

    async def _find_identity(self, version: int) -> object:
        """Return an identity that changes with the table; None if the commit is gone."""
        try:
            status = await self.store.stat(f"{LOG_DIR}/{version:020d}.json")
        except FileNotFoundError:
            return None
        return status.size, status.mtime_ms, status.tag

    async def make_presigner(
        self, at: dt.datetime, ttl_s: int
    ) -> Callable[[str], str | None] | None:
        """Return a function that makes URLs of the store; None if this server serves the files."""
        return None if self.config.proxy else await self.store.presigner(at, ttl_s)

    async def find_timestamp(self, version: int, snapshot: Snapshot) -> int:
        """Return the version's timestamp in epoch ms, as in the history of the table."""
        state = snapshot.state
        since = find_enablement(state.protocol, state.metadata)
        in_commit = since is not None and version >= since[0]
        floor = None if in_commit else (await list_times(self.log)).get(version)
        return await self.log.find_timestamp(version, snapshot, floor)

    def list_live_files(self, snapshot: Snapshot) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield lists of the snapshot's adds as the log has them; see
        :meth:`SnapshotFiles.stream_live_files`."""
        return self.log.snapshot_files.stream_live_files(
            snapshot,
            AS_LOGGED,
            lambda batch: (("add", add) for add in add_objects(batch)),
            list_raw_actions,
            partial(_select_live, Reconciliation()),
        )


def _select_live(
    reconciliation: Reconciliation,
    actions: Iterator[FileAction],
    *,
    remember: AbstractSet[int] | None = None,
) -> Iterator[dict[str, Any]]:
    for kind, values in actions:
        action = build_action(kind, values)
        if action is not None and any(reconciliation.find_live_files([action], remember=remember)):
            yield values


class OpenTables:
    """The open tables.

    They are opened on demand, and closed when they are no longer configured and no longer in use.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], SharedTable] = {}

    def take_table(self, config: TableConfig) -> SharedTable:
        """Return the table of a configuration; :meth:`give_back` returns it.

        Raises :class:`ConfigError` if no store serves it.
        """
        table = self._open.get(config.key)
        if table is None:
            options = {**config.store, "also": config.also} if config.also else config.store
            store = open_store(config.location, options)
            table = self._open[config.key] = SharedTable(config, store)
        table.users += 1
        return table

    async def give_back(self, table: SharedTable) -> None:
        """Record that a table is no longer used."""
        table.users -= 1
        if not table.users and self._open.get(table.config.key) is not table:
            await table.store.aclose()

    async def keep_only(self, configs: Iterable[TableConfig]) -> None:
        """Close the tables that are not among these, now or when they are given back."""
        wanted = {config.key: config for config in configs}
        for key, table in list(self._open.items()):
            if wanted.get(key) != table.config:
                del self._open[key]
                if not table.users:
                    await table.store.aclose()

    async def aclose(self) -> None:
        """Close all tables."""
        await self.keep_only(())


def make_missing_error(version: int) -> TableError:
    """Return the error for a commit that the log no longer has."""
    return TableError(f"version {version} is no longer in the table's log")
