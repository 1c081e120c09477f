"""Histories of a table, and what holds after each of their steps.

The table in memory (:mod:`tests.tables.model`) says which events a version must have and which
rows it must hold. :class:`Auditor` reads the very same by the feed and by snapshots, and compares.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
from msgspec import structs

from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.compare.engine import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource
from tailer.store import FileStatus
from tailer.store.folders import FolderWatch
from tailer.store.local import LocalStore
from tests.property.expected import Events, Key, derived, moved, recorded, shown_columns, unpaired
from tests.property.operations import OPERATIONS, Setting, created, ensure, features_of, oldest
from tests.tables.model import (
    TableVersion,
    event_key,
    physical_row,
    row_key,
)
from tests.tables.writer import TableWriter

LEAVING = ("delete", "update_preimage")
#: Versions are read at latest when so many are unread, and before the log is cleaned.
UNREAD_MAX = 8


@dataclass
class Tally:
    """What was played: numbers, and the pairs (operation, feature in force)."""

    histories: int = 0
    steps: int = 0
    versions: int = 0
    events: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.histories} histories, {self.steps} steps, {self.versions} versions, "
            f"{len(self.pairs)} pairs, {self.events} events, {dict(self.origins)}"
        )


@dataclass(frozen=True)
class Event:
    """One event: its row by the logical names of its batch, and its id."""

    kind: str
    row: Mapping[str, Any]
    id: str
    origin: str


def play(
    setting: Setting, steps: Sequence[tuple[str, int]], tally: Tally, keep: str | None = None
) -> None:
    """Play one history on a table of its own, and audit it. ``keep`` is a feature that is brought
    back into force before each step. Raises AssertionError, naming version and operation."""
    with tempfile.TemporaryDirectory() as folder:
        writer = created(Path(folder), setting)
        auditor = Auditor(writer, tally, setting.seed)
        for name, seed in steps:
            rng = random.Random(seed)
            if keep is not None:
                ensure(writer, keep, rng)
            if name == "clean_log" or writer.present.version - auditor.unread >= UNREAD_MAX:
                auditor.audit()
            before = features_of(writer.present)
            OPERATIONS[name](writer, rng)
            for feature in before | features_of(writer.present):
                tally.pairs[name, feature] += 1
            tally.steps += 1
            if name == "clean_log":
                auditor.unread = max(auditor.unread, oldest(writer) + 1)
        auditor.audit()
    tally.histories += 1


class QuickStore(LocalStore):
    """The local disk for tables at rest: reads where it is called, and watches nothing."""

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        for status in self._scan_folder(folder, start_after):
            yield status

    async def read(
        self, location: str, offset: int = 0, length: int | None = None
    ) -> tuple[bytes, FileStatus]:
        return self.read_here(location, offset, length)

    @asynccontextmanager
    async def watch(self, folder: str) -> AsyncIterator[FolderWatch]:  # noqa: ARG002 - nothing moves there
        yield StillWatch()


class StillWatch(FolderWatch):
    """Waits for nothing: every version that is asked for is there."""

    def __init__(self) -> None:
        pass

    async def wait(self, seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s for a version that is not there")


class Auditor:
    """Holds the feed and the snapshots against the table in memory. ``unread`` is the first
    version that was not read yet."""

    def __init__(self, writer: TableWriter, tally: Tally, seed: int) -> None:
        self.writer = writer
        self.tally = tally
        self.rng = random.Random(seed)
        self.unread = 0
        #: By what columns derived changes without row ids are paired into updates.
        self.key: tuple[str, ...] = ()
        self._ids: set[tuple[str, str]] = set()

    def audit(self) -> None:
        """Read all that is new, both ways, and check it."""
        first, last = self.unread, self.writer.present.version
        if first > last:
            return
        read = anyio.run(self._read, first, last)
        for version in range(first, last + 1):
            after = self.writer.versions[version]
            before = self.writer.versions[version - 1] if version else None
            where = f"version {version} ({after.operation})"
            for source in ("auto", "derived") if _has_cdf(after) else ("auto",):
                found = [b for b in read[source] if b.version == version]
                self._check_version(f"{where}, {source}", source, before, after, found)
            self._check_snapshot(where, after, read[f"snapshot {version}"])
            self.tally.versions += 1
        self.unread = last + 1

    # Reading

    async def _read(self, first: int, last: int) -> dict[str, list[ChangeBatch]]:
        versions = self.writer.versions
        log = TableLog(QuickStore(str(self.writer.builder.folder)))
        size = self.rng.choice([2, 1000])
        named = all(
            any(c.name == "id" for c in versions[v].columns) for v in range(first, last + 1)
        )
        self.key = ("id",) if named and self.rng.random() < 0.5 else ()
        found = {"auto": await _batches(log, Offset(first), last, "auto", size, self.key)}
        # Without a change data feed to read, auto derives the changes as well.
        found["derived"] = [
            batch
            for some in _runs([v for v in range(first, last + 1) if _has_cdf(versions[v])])
            for batch in await _batches(log, Offset(some[0]), some[-1], "derived", size, self.key)
        ]
        for version in range(first, last + 1):
            start = Offset(version, snapshot=True)
            found[f"snapshot {version}"] = await _batches(log, start, version, "auto", 1000)
        sources: list[ChangeSource] = ["auto", "derived"]
        source = self.rng.choice(sources if found["derived"] else sources[:1])
        await self._check_resumed(log, source, found[source])
        return found

    async def _check_resumed(
        self, log: TableLog, source: ChangeSource, whole: list[ChangeBatch]
    ) -> None:
        """Resumed within a version, the feed gives the rest of it."""
        counts = Counter(b.version for b in whole for _ in range(b.num_rows))
        if not counts:
            return
        version = self.rng.choice(sorted(counts))
        index = self.rng.randint(0, counts[version])
        plan = FeedOptions(change_source=source, key=self.key).counting_id()
        table_id = self.writer.present.table_id
        offset = Offset(version, index, table_id=table_id, counted_by=plan)
        resumed = await _batches(log, offset, version, source, 3, self.key)
        events = [e for b in whole if b.version == version for e in _events(b)]
        rest = [e for b in resumed for e in _events(b)]
        assert [e.id for e in rest] == [e.id for e in events[index:]], (version, index)
        assert [repr(e) for e in rest] == [repr(e) for e in events[index:]], (version, index)

    # Checks

    def _check_snapshot(
        self, where: str, version: TableVersion, batches: list[ChangeBatch]
    ) -> None:
        rows = [event for batch in batches for event in _events(batch)]
        held = Counter(event_key(event.row, version.columns) for event in rows)
        assert held == version.multiset(), f"{where}: snapshot"
        assert len({event.id for event in rows}) == len(rows), f"{where}: snapshot ids"

    def _check_version(
        self,
        where: str,
        source: str,
        before: TableVersion | None,
        after: TableVersion,
        batches: list[ChangeBatch],
    ) -> None:
        events = []
        for batch in batches:
            found = _events(batch)
            columns = after.columns
            if any(e.kind in LEAVING and e.origin != "cdf" for e in found) and before:
                columns = before.columns
            names = [c.name for c in columns]
            assert batch.rows.schema.names[: -len(METADATA_FIELDS)] == names, where
            assert batch.timestamp_ms == after.timestamp_ms, where
            events += [(event, physical_row(event.row, columns)) for event in found]
        ids = {(source, event.id) for event, _ in events}
        assert len(ids) == len(events) and not ids & self._ids, f"{where}: ids"  # noqa: PT018 - one fact
        self._ids |= ids
        self.tally.events += len(events)
        self.tally.origins.update(event.origin for event, _ in events)
        left, came = moved(before, after)
        origins = {event.origin for event, _ in events}
        says_files = origins == {"files"} and bool(left and came)
        expected = (
            recorded(after, left, came)
            if source == "auto" and _has_cdf(after)
            else derived(before, after, left, came, whole=says_files)
        )
        changes: list[tuple[str, Mapping[str, Any]]] = [(e.kind, row) for e, row in events]
        if self.key and origins == {"cancel_out"}:
            (key,) = (c for c in after.columns if (c.name,) == self.key)
            changes = unpaired(where, changes, key)
        got: Events = Counter((kind, row_key(row, after.columns)) for kind, row in changes)
        assert got == expected, f"{where}: events"
        self._check_applied(where, before, after, changes)

    def _check_applied(
        self,
        where: str,
        before: TableVersion | None,
        after: TableVersion,
        events: Iterable[tuple[str, Mapping[str, Any]]],
    ) -> None:
        """The events, applied to the rows before, give the rows after."""
        shown = shown_columns(before, after)
        rows = Counter[Key]() if before is None else before.multiset(shown)
        for kind, values in events:
            if kind in LEAVING:
                rows[row_key(values, shown)] -= 1
        assert all(count >= 0 for count in rows.values()), f"{where}: a row left that was not there"
        rows.update(row_key(values, shown) for kind, values in events if kind not in LEAVING)
        assert +rows == after.multiset(shown), f"{where}: applied"


def _has_cdf(version: TableVersion) -> bool:
    return version.cdc is not None or version.on("delta.enableChangeDataFeed")


def _runs(versions: list[int]) -> Iterator[list[int]]:
    """The versions as runs without a gap."""
    for _, run in groupby(enumerate(versions), lambda item: item[1] - item[0]):
        yield [version for _, version in run]


async def _batches(
    log: TableLog,
    start: Offset,
    last: int,
    source: ChangeSource,
    size: int,
    key: tuple[str, ...] = (),
) -> list[ChangeBatch]:
    options = FeedOptions(
        change_source=source,
        key=key,
        diff=DiffOptions(threads=1),
        decode=DecodeOptions(batch_rows_max=size),
    )
    async with aclosing(read_changes(log, start, last, options)) as found:
        batches = [batch async for batch in found]
    if (start.version + last + size) % 3 == 0:  # it takes its time
        async with aclosing(
            read_changes(log, start, last, structs.replace(options, spans=True))
        ) as found:
            runs = [batch async for batch in found]
        _check_runs(f"{start} to {last}", batches, runs)
    return batches


def _check_runs(where: str, batches: list[ChangeBatch], runs: list[ChangeBatch]) -> None:
    """Runs of versions have the same rows at the same places, however they are cut."""
    assert list(_placed(runs)) == list(_placed(batches)), where
    assert runs[-1].next_offset == batches[-1].next_offset, where
    assert len(runs) <= len(batches), where


def _placed(batches: list[ChangeBatch]) -> Iterator[tuple[object, ...]]:
    """Each row with its place. As text: Arrow holds one NaN unequal to another."""
    for batch in batches:
        for part in batch.by_file():
            of_part = part.rows.schema, part.state, part.offset.version, part.timestamp_ms
            ids, places = part.event_ids().to_pylist(), part.row_indices().to_pylist()
            for row, event_id, place in zip(part.rows.to_pylist(), ids, places, strict=True):
                yield repr(row), event_id, place, *of_part


def _events(batch: ChangeBatch) -> list[Event]:
    if batch.file is None or not batch.num_rows:
        return []
    rows, ids = batch.rows.to_pylist(), batch.event_ids().to_pylist()
    origin = batch.file.origin
    return [Event(r["_change_type"], r, i, origin) for r, i in zip(rows, ids, strict=True)]
