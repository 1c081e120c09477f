"""Holds the reading path against the naive reader: what is read of a table, and what has to be.

Of the dressed log, which has checkpoints and compactions, all that can be read must be what the
reference says of the plain one, which has every commit and nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any
from unittest import mock

import anyio
import anyio.to_thread
import duckdb
from msgspec import structs

import tailer.feed.rows.comparing
from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, Offset
from tailer.compare.engine import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.errors import DataLoss
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.checksums import find_snapshot_sums
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource
from tests.fuzz.grammar import History, write
from tests.fuzz.memory import MemoryStore
from tests.fuzz.reference import Change, Reference, State, key
from tests.fuzz.table import Table
from tests.simulation.inline import InlinePortal, shared_duckdb

_LEAVING = ("delete", "update_preimage")
#: How often a read is repeated from an offset in its middle: it costs as much as the read.
_RESUMED = 0.25


class Tally(Counter[str]):
    """What was read: versions, events, and versions by the way in which changes were found."""


def disagreement(history: History, tally: Tally | None = None) -> str | None:
    """What a reader and the reference say differently of a history; None where they agree."""
    return anyio.run(judged, history, Tally() if tally is None else tally)


async def judged(history: History, tally: Tally) -> str | None:
    """As :func:`disagreement`, for callers that have an event loop."""
    table = write(history)
    reading = _Reading(table, Reference(table.plain), random.Random(history.seed), tally)
    try:
        await reading.check()
    except _Disagreement as e:
        return str(e)
    except Exception as e:  # noqa: BLE001 - whatever a reader raises for a legal log is a finding
        return f"{type(e).__name__}: {e}"
    return None


@contextmanager
def inline_threads() -> Iterator[None]:
    """Run the work of worker threads where it is called, and all comparisons in one database:
    threads and starts take most of a small table's time."""

    async def run_sync(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return work(*args)

    with ExitStack() as stack:
        for place, name, value in (
            (anyio.to_thread, "run_sync", run_sync),
            (tailer.feed.rows.comparing, "BlockingPortal", InlinePortal),
            (duckdb, "connect", shared_duckdb),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        yield


class _Disagreement(AssertionError):
    pass


def _agree(where: str, read: Any, wanted: Any) -> None:
    if read != wanted:
        if isinstance(read, Counter) and isinstance(wanted, Counter):
            read, wanted = dict(read - wanted), dict(wanted - read)
            raise _Disagreement(f"{where}: only read {read!s:.900}; only right {wanted!s:.900}")
        raise _Disagreement(f"{where}: read {read!s:.900}; right {wanted!s:.900}")


class _Reading:
    def __init__(
        self, table: Table, reference: Reference, rng: random.Random, tally: Tally
    ) -> None:
        self.table, self.right, self.rng, self.tally = table, reference, rng, tally
        self.last = len(reference.commits) - 1
        self.options = FeedOptions(
            diff=DiffOptions(threads=1),
            decode=DecodeOptions(batch_rows_max=rng.choice([2, 1000]), row_ids=rng.random() < 0.5),
        )
        # Another generator: whether a read is repeated changes nothing else of a seed.
        self._chance = random.Random(f"repeats {rng.getstate()}")

    def _repeats(self) -> bool:
        return self._chance.random() < _RESUMED

    async def check(self) -> None:
        log = TableLog(MemoryStore(self.table.dressed))
        first = max(self.table.buildable + 1, self.table.cleaned) if self.table.cleaned else 0
        if first <= self.last:
            _agree("earliest version", await log.earliest_version(), first)
            await self._check_changes(log, first)
        await self._check_snapshot(
            log, self.rng.choice([self.last, self.rng.randint(0, self.last)])
        )
        if self.table.log and self.rng.random() < 0.3:
            plain = TableLog(MemoryStore(self.table.plain))
            await self._check_snapshot(plain, self.rng.randint(0, self.last))
        self.tally["versions"] += self.last + 1

    async def _batches(
        self, log: TableLog, start: Offset, last: int, source: ChangeSource = "auto"
    ) -> list[ChangeBatch]:
        options = self.options if source == "auto" else FeedOptions(
            change_source=source, diff=self.options.diff, decode=self.options.decode
        )  # fmt: skip
        found: AsyncGenerator[ChangeBatch, None] = read_changes(
            log, start, last, structs.replace(options, spans=True)
        )
        async with aclosing(found) as runs:
            return [batch async for run in runs for batch in run.by_file()]

    # Changes

    async def _check_changes(self, log: TableLog, first: int) -> None:
        batches = await self._batches(log, Offset(first), self.last)
        floor: int | None = None
        for version in range(first, self.last + 1):
            found = [b for b in batches if b.version == version]
            floor = self.right.timestamp(version, floor)
            _agree(f"version {version}: time", {b.timestamp_ms for b in found} or {floor}, {floor})
            self._check_version(version, found, self.right.changes(version))
        await self._check_resumed(log, batches)
        if self.rng.random() < 0.15:
            await self._check_derived(log, first)

    async def _check_derived(self, log: TableLog, first: int) -> None:
        version = self.rng.randint(first, self.last)
        actions = self.right.commits[version]
        kinds = {kind for action in actions for kind in action}
        if "metaData" in kinds and {"add", "remove"} <= kinds:
            return  # types that can't be compared are not the reference's matter
        if "cdc" in kinds and not kinds & {"add", "remove"}:
            return
        batches = await self._batches(log, Offset(version), version, "derived")
        self._check_version(version, batches, self.right.derived(version))

    def _check_version(
        self, version: int, batches: list[ChangeBatch], wanted: list[Change]
    ) -> None:
        after = self.right.states[version]
        before = self.right.states[version - 1] if version else after
        read: Counter[Any] = Counter()
        came = False
        ids: list[str] = []
        for batch in batches:
            if batch.file is None or not batch.num_rows:
                continue
            origin = batch.file.origin
            self.tally[origin] += 1
            ids += batch.event_ids().to_pylist()
            for row in batch.rows.to_pylist():
                kind = row[CHANGE_TYPE]
                leaves = kind in _LEAVING
                state = before if leaves and origin != "cdf" else after
                names = [c["name"] for c in state.columns] + [f.name for f in METADATA_FIELDS]
                _agree(f"version {version}: columns", list(row), names)
                if origin != "cdf":
                    _agree(f"version {version}: a row left after one came", came and leaves, False)
                came |= not leaves
                shown = state.physical_row(row)
                read[kind, _comparable(shown, origin, after)] += 1
        _agree(f"version {version}: event ids", len(set(ids)), len(ids))
        origins = [b.file.origin for b in batches if b.file is not None]
        right = Counter((c.kind, _comparable(c.row, "".join(origins[:1]), after)) for c in wanted)
        _agree(f"version {version}: changes", read, right)
        self.tally["events"] += len(ids)

    async def _check_resumed(self, log: TableLog, batches: list[ChangeBatch]) -> None:
        """Resumed from any offset, the feed gives exactly the rest."""
        offsets = [b.next_offset for b in batches]
        at = self.rng.randrange(len(offsets))
        if offsets[at].version > self.last:
            return
        end = min(self.last, offsets[at].version + self.rng.randrange(2))
        if not self._repeats():
            return
        resumed = await self._batches(log, offsets[at], end)
        rest = [batch for batch in batches[at + 1 :] if batch.version <= end]
        _agree(f"resumed at {offsets[at]}", _told(resumed), _told(rest))

    # Snapshots

    async def _check_snapshot(self, log: TableLog, version: int) -> None:
        where = f"snapshot {version}"
        lost = log.store._files is not self.table.plain and version < self.table.buildable  # type: ignore[attr-defined]
        try:
            snapshot = await log.load_snapshot(version)
        except DataLoss:
            _agree(f"{where}: lost", True, lost)
            return
        _agree(f"{where}: lost", False, lost)
        state = self.right.states[version]
        transactions = {t.app_id: t.version for t in snapshot.transactions.values()}
        _agree(f"{where}: transactions", transactions, self.right.transactions[version])
        domains = {d.domain: d.configuration for d in snapshot.domains.values()}
        _agree(f"{where}: domains", domains, self.right.domains[version])
        _agree(f"{where}: protocol", snapshot.state.protocol.min_reader_version,
               int(state.protocol["minReaderVersion"]))  # fmt: skip
        _agree(
            f"{where}: properties", dict(snapshot.state.metadata.configuration), state.properties
        )
        if self.rng.random() < 0.2:
            sums = await find_snapshot_sums(log, snapshot)
            live = self.right.live[version].values()
            size = sum(int(add["size"]) for add in live)
            _agree(f"{where}: sums", (sums.files, sums.size_bytes), (len(live), size))
        start = Offset(version, snapshot=True)
        batches = await self._batches(log, start, min(self.last, version + 1))
        at = self.rng.randrange(len(batches))
        if batches[at].next_offset.version <= self.last and self._repeats():
            rest = await self._batches(log, batches[at].next_offset, min(self.last, version + 1))
            _agree(
                f"{where}: resumed at {batches[at].next_offset}",
                _told(rest),
                _told(batches[at + 1 :]),
            )
        batches = [batch for batch in batches if batch.offset.snapshot]
        read: Counter[Any] = Counter()
        with_ids = self.options.decode.row_ids and state.tracked
        for batch in batches:
            numbers = batch.row_ids.to_pylist() if with_ids and batch.row_ids is not None else None
            for i, row in enumerate(batch.rows.to_pylist()):
                shown = state.physical_row(row)
                read[key(shown), None if numbers is None else numbers[i]] += 1
        wanted: Counter[Any] = Counter()
        for row in self.right.rows(version):
            number = row.pop("", None)
            wanted[key(row), number if with_ids else None] += 1
        _agree(where, read, wanted)


def _comparable(row: dict[str, Any], origin: str, after: State) -> Any:
    """A row in the columns that compare it: derived changes are found in the later ones."""
    return key(after.visible(row) if origin in ("cancel_out", "row_ids") else row)


def _told(batches: list[ChangeBatch]) -> list[str]:
    """All events, in order, with their ids."""
    return [
        f"{i} {row}"
        for b in batches
        if b.num_rows
        for i, row in zip(b.event_ids().to_pylist(), b.rows.to_pylist(), strict=True)
    ]
