"""A table's log for Python programs, in the words of Delta on Spark.

    from tailer.deltalog import DeltaLog

    log = DeltaLog.for_table("/data/orders")
    print(log.update().version, log.transaction_version("my-stream"))
    for version, actions in log.get_changes(10):
        ...

It only reads. Calls are synchronous: each runs an event loop in a thread of its own, and waits for
it. Files and changes are streamed: a table of millions of files opens in bounded memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from threading import Lock
from typing import Any, ClassVar, TypeVar

from anyio.from_thread import start_blocking_portal

from tailer.delta.actions import Action, AddFile, DomainMetadata, Metadata, Protocol
from tailer.delta.add_fields import WITH_STATISTICS
from tailer.delta.partitions import find_partition_text, parse_partition_value
from tailer.delta.properties import tombstone_retention_ms
from tailer.delta.schema import StructField
from tailer.delta.segment import format_commit_name
from tailer.delta.snapshot import Snapshot, TableState
from tailer.errors import ConfigError, CorruptRow, DataLoss, TableError
from tailer.log.checksums import Sums, find_checksum_errors, find_snapshot_sums
from tailer.log.history import HistoryEntry, read_history
from tailer.log.table import TableLog
from tailer.log.times import version_at_or_before
from tailer.process.threads import run_blocking
from tailer.storage import open_store

__all__ = ["DeltaLog"]

T = TypeVar("T")

#: Small items that are pulled at once.
_MANY = 1024


class DeltaLog:
    """The log of one table. Get one by :meth:`for_table`, which remembers it."""

    _cache: ClassVar[dict[str, DeltaLog]] = {}
    _cache_lock: ClassVar[Lock] = Lock()

    def __init__(self, table: str, clock: Callable[[], float] = time.time) -> None:
        self.table = table
        self._clock = clock
        self._current: Snapshot | None = None
        self._updated_s = float("-inf")

    @classmethod
    def for_table(cls, table: str) -> DeltaLog:
        """Return the log of a table by its address; the same instance for the same address.

        Raises :class:`ConfigError` for an address that no store serves.
        """
        address = open_store(table).root
        with cls._cache_lock:
            return cls._cache.setdefault(address, cls(address))

    @classmethod
    def invalidate_cache(cls, table: str) -> None:
        """Forget the instance of one table."""
        with cls._cache_lock:
            cls._cache.pop(open_store(table).root, None)

    @classmethod
    def clear_cache(cls) -> None:
        """Forget all instances."""
        with cls._cache_lock:
            cls._cache.clear()

    def _run_work(self, work: Callable[[TableLog], Awaitable[T]]) -> T:
        async def main() -> T:
            store = open_store(self.table)
            try:
                return await work(TableLog(store))
            finally:
                await store.aclose()

        with start_blocking_portal() as portal:
            return portal.call(main)

    def _stream_items(
        self, items: Callable[[TableLog], AsyncGenerator[T, None]], at_once: int = 1
    ) -> Iterator[T]:
        """Yield the items of an asynchronous generator, pulled ``at_once``: each pull is a hop
        between threads. An error is raised after the items before it."""
        with start_blocking_portal() as portal:
            store = open_store(self.table)
            generator = items(TableLog(store))
            errors: list[Exception] = []

            async def following() -> list[T]:
                found: list[T] = []
                try:
                    while len(found) < at_once:
                        found.append(await anext(generator))
                except StopAsyncIteration:
                    pass
                except Exception as e:  # noqa: BLE001  # raised below
                    errors.append(e)
                return found

            async def close() -> None:
                async with aclosing(store), aclosing(generator):
                    pass

            try:
                while found := portal.call(following):
                    yield from found
                if errors:
                    raise errors[0]
            finally:
                portal.call(close)

    # State

    @property
    def table_exists(self) -> bool:
        """Return whether there is a version 0 or higher."""
        try:
            return self._run_work(lambda log: log.latest_version()) >= 0
        except TableError:
            return False

    def update(self, staleness_acceptable_s: float = 0.0) -> Snapshot:
        """Bring the current snapshot up to date and return it.

        A snapshot updated less than ``staleness_acceptable_s`` seconds ago is returned without
        reading the log.
        """
        age_s = self._clock() - self._updated_s
        if self._current is None or not 0 <= age_s < staleness_acceptable_s:
            self._current = self._run_work(lambda log: log.load_snapshot())
            self._updated_s = self._clock()
        return self._current

    @property
    def snapshot(self) -> Snapshot:
        """Return the current snapshot, as the last :meth:`update` found it."""
        return self._current or self.update()

    def snapshot_at(
        self, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> Snapshot:
        """Return the snapshot of a version, or of the last version at or before a time in epoch
        ms."""
        if (version is None) == (timestamp_ms is None):
            raise ConfigError("snapshot_at needs either a version or a timestamp")

        async def find(log: TableLog) -> Snapshot:
            if timestamp_ms is not None:
                return await log.load_snapshot(await version_at_or_before(log, timestamp_ms))
            return await log.load_snapshot(version)

        return self._run_work(find)

    def sums(self, snapshot: Snapshot | None = None) -> Sums:
        """Return how many live files a snapshot has (the current one by default), and their bytes.

        They come from the version's checksum file, without reading the list of files, if that
        exists and has the same protocol, metadata and transaction as the snapshot.
        """
        at = snapshot or self.snapshot
        return self._run_work(lambda log: find_snapshot_sums(log, at))

    def checksum_errors(self, snapshot: Snapshot | None = None) -> tuple[str, ...] | None:
        """Return the fields of the version's checksum file that contradict the log; this reads the
        log entries of all files. None if the version has no readable checksum file."""
        at = snapshot or self.snapshot
        return self._run_work(lambda log: find_checksum_errors(log, at))

    @property
    def metadata(self) -> Metadata:
        """Return the current metaData action."""
        return self.snapshot.state.metadata

    @property
    def protocol(self) -> Protocol:
        """Return the current protocol action."""
        return self.snapshot.state.protocol

    @property
    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self.metadata.configuration)

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version that an application has committed under its id; None if none."""
        transaction = self.snapshot.transactions.get(app_id)
        return transaction.version if transaction else None

    def domain_metadata(self, domain: str) -> DomainMetadata | None:
        """Return one metadata domain, None if the table has none of that name."""
        return self.snapshot.domains.get(domain)

    # Files

    def files(self, snapshot: Snapshot | None = None) -> Iterator[AddFile]:
        """Yield the live files of a snapshot; of the current one by default."""
        at = snapshot or self.snapshot
        return self._stream_items(lambda log: log.live_files(at, WITH_STATISTICS), _MANY)

    @staticmethod
    def filter_file_list(
        state: TableState,
        files: Iterable[AddFile],
        matches: Callable[[Mapping[str, Any]], bool],
        writer_timezone: str = "UTC",
    ) -> Iterator[AddFile]:
        """Yield the files whose partition values match.

        ``matches`` is called with the typed values by the columns' logical names. Raises
        :class:`TableError` for a value that does not have its type, or that Python can't represent.
        """
        fields = state.partition_fields()
        for file in files:
            values = {f.name: _find_value(file, state, f, writer_timezone) for f in fields}
            if matches(values):
                yield file

    # Changes

    def get_changes(self, start: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield (version, all its actions) of every commit from ``start`` to the newest, in order.

        They are exactly what the log has, even if a commit changes the table's id, and no snapshot
        is needed. Raises :class:`DataLoss` if one of them is missing.
        """

        async def commits(
            log: TableLog,
        ) -> AsyncGenerator[tuple[int, list[Action]], None]:
            last = await log.latest_version()
            for version in range(start, last + 1):
                try:
                    actions = await log.read_commit_actions(version)
                except FileNotFoundError:
                    raise DataLoss(
                        f"the commit is missing, though version {last} exists",
                        table=log.store.root,
                        version=version,
                        path=format_commit_name(version),
                        hint="the log was cleaned up or a file was lost; start at a newer version",
                    ) from None
                yield version, await run_blocking(list, actions)

        return self._stream_items(commits)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Return the commits that the log still has, newest first."""
        entries = list(self._stream_items(read_history, _MANY))[::-1]
        return entries if limit is None else entries[:limit]

    # Retention

    @property
    def tombstone_retention_millis(self) -> int:
        """Return ``delta.deletedFileRetentionDuration`` in milliseconds, a week by default."""
        return tombstone_retention_ms(self.metadata)

    def min_file_retention_timestamp(self) -> int:
        """Return a time in epoch ms; files removed before it may be gone."""
        return int(self._clock() * 1000) - self.tombstone_retention_millis


def _find_value(file: AddFile, state: TableState, field: StructField, writer_timezone: str) -> Any:
    """Return one partition value of a file as a Python value."""
    try:
        text = find_partition_text(file.partition_values, state.physical_name(field), field.name)
    except TableError as e:
        raise e.at(path=file.path) from None
    try:
        return parse_partition_value(text, field.type, writer_timezone).as_py()
    except OverflowError:
        raise CorruptRow(
            f"the partition value {text!r} of the column {field.name!r} is in a year that Python's "
            "dates don't have",
            path=file.path,
        ) from None
