"""Consecutive commits of a feed: their notices, then their changes, in runs.

A run ends where the operator or a policy may step in: at a notice, a new schema, a skipped version,
an offset within a version, updates to be paired; and before a version that is too large for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailer.changes import ChangeFile, Notice, Offset
from tailer.delta.commit import Commit
from tailer.errors import DataLoss, FileGone, TableError
from tailer.feed.policy import schema_notice, skip_notice, stop_for_schema
from tailer.feed.reading import Emit, Reading
from tailer.feed.rows.chunks import Version
from tailer.feed.rows.run_reader import RunReader
from tailer.plan.commit import CommitPlan, plan_commit
from tailer.plan.rules import Rewrite, is_passed_over

if TYPE_CHECKING:
    from tailer.compare.pairing import Pairing

__all__ = ["commit_plan", "read_commits", "skipped"]

#: The most files in a run of several versions, and their most encoded bytes.
_RUN_FILES = 1024
_RUN_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Planned:
    """A commit to read from ``first`` on: ``notice`` comes before its changes, and is the last
    item with an ``error``."""

    first: Offset
    notice: Notice | None = None
    error: Exception | None = None
    version: Version | None = None
    pairing: Pairing | None = None

    def size(self) -> tuple[int, int] | None:
        """Return the number of files and bytes; None if the commit can't be part of a run."""
        if self.version is None or self.pairing is not None or self.first.index:
            return None
        files = self.version.files
        if not isinstance(files, list):
            return None
        return len(files), sum(file.size or 0 for file in files)


async def read_commits(
    reading: Reading, commits: Sequence[Commit], start: Offset, emit: Emit, *, notices: bool
) -> None:
    """Read the notices and batches of consecutive commits, from an offset in the first one on."""
    try:
        await _read_runs(reading, commits, start, emit, notices=notices)
    except FileGone as e:
        if reading.options.paired:
            e.rows = None  # a pair's other image may be elsewhere: its places can't be counted
        raise


async def _read_runs(
    reading: Reading, commits: Sequence[Commit], start: Offset, emit: Emit, *, notices: bool
) -> None:
    run = _Run(reading)
    at = start
    for commit in commits:
        planned = await _planned(reading, commit, at, notices=notices)
        if not run.takes(planned):
            await run.read(emit)
        if planned.notice is not None:
            await emit(planned.notice)
        if planned.error is not None:
            raise planned.error
        if planned.version and planned.pairing:
            from tailer.feed.pairing import read_paired  # loads on demand

            await read_paired(reading, planned.version, planned.pairing, planned.first, emit)
        elif planned.version is not None:
            run.add(planned, planned.version)
        at = planned.first.next_version(commit.timestamp_ms)
    await run.read(emit)


class _Run:
    """Consecutive versions that are read together."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._versions: list[Version] = []
        self._first = Offset(0)
        self._room: tuple[int, int] | None = None

    def takes(self, planned: _Planned) -> bool:
        """Return whether the versions so far are read together with this one."""
        if not self._versions:
            return True
        size = planned.size()
        if planned.notice or planned.error or size is None or self._room is None:
            return False
        return size[0] <= self._room[0] and size[1] <= self._room[1]

    def add(self, planned: _Planned, version: Version) -> None:
        """Add a version, which the run takes."""
        if not self._versions:
            self._first, self._room = planned.first, (_RUN_FILES, _RUN_BYTES)
        size = planned.size()
        if size is None or self._room is None:
            self._room = None
        else:
            self._room = self._room[0] - size[0], self._room[1] - size[1]
        self._versions.append(version)

    async def read(self, emit: Emit) -> None:
        """Read all versions, and begin again without any."""
        if not self._versions:
            return
        versions, self._versions = self._versions, []
        reader = RunReader(self._reading, joins=self._reading.options.runs)
        await reader.read(versions, self._first, emit)


async def _planned(reading: Reading, commit: Commit, at: Offset, *, notices: bool) -> _Planned:
    """Plan a commit. An error is part of the plan: what lies before it is read first."""
    if at.table_id != commit.after.table_id:
        at = replace(at, table_id=commit.after.table_id)
    first = at.under(reading.counted_by)
    if commit.version in reading.orders.skips:
        return _Planned(first, skip_notice(first, commit.timestamp_ms))
    notice = None
    try:
        changed = _new_schema(reading, commit, first) if notices else None
        if changed is not None:
            policy = reading.options.policies.on_schema_change
            if commit.version in reading.orders.accepted:
                policy = "continue"
            notice = changed if policy != "fail" else None
            stop_for_schema(changed, policy)
        reading.observer.planned(commit)
        reading.check(commit.after, commit.version)
        return await _with_files(reading, commit, first, notice)
    except Exception as e:  # noqa: BLE001 - raised after what comes before it
        if isinstance(e, TableError):
            e.at(table=reading.log.store.root, version=commit.version)
        return _Planned(first, notice, e)


async def skipped(reading: Reading, at: Offset) -> Notice:
    """Return the notice of a skipped version, with its timestamp if its commit is readable."""
    log, timestamp_ms = reading.log, None
    try:
        before = await log.state_before(at.version)
        timestamp_ms = (await log.commit(at.version, before, at.timestamp_floor_ms)).timestamp_ms
    except (TableError, FileNotFoundError):
        pass
    return skip_notice(at, timestamp_ms)


def _new_schema(reading: Reading, commit: Commit, first: Offset) -> Notice | None:
    if commit.before is None or first.index:
        return None
    states = (reading.selector.state(commit.before), reading.selector.state(commit.after))
    return schema_notice(*states, first, commit.timestamp_ms)


async def _with_files(
    reading: Reading, commit: Commit, first: Offset, notice: Notice | None
) -> _Planned:
    files = await _files(reading, commit)
    pairing = None
    if reading.options.paired:
        from tailer.feed.pairing import pair_updates  # loads on demand

        files, pairing = await pair_updates(reading, commit, files)
    if commit.header.files is not None:
        files = list(files)
    version = Version(commit.version, commit.timestamp_ms, commit.after, files)
    return _Planned(first, notice, version=version, pairing=pairing)


async def _files(reading: Reading, commit: Commit) -> Iterable[ChangeFile]:
    """Return the files whose rows are the commit's changes, in their order."""
    plan = await commit_plan(reading, commit)
    if plan is None:
        return []
    files: Iterable[ChangeFile]
    if plan.compares:
        files = await _derived(reading, commit, plan.rewrite())
    else:
        files = reading.chosen(plan.files())
    if not reading.options.paired:
        return files
    kept = (file for file in files if file not in reading.lost)
    return list(kept) if plan.compares else kept


async def commit_plan(reading: Reading, commit: Commit) -> CommitPlan | None:
    """Return the plan of a commit's changes; None if a policy passes over them."""
    options, live = reading.options, reading.live
    folder = options.diff.spill_folder
    moot = await live.moot(reading.log, commit, options.change_source, folder)
    if is_passed_over(commit, options.policies):
        return None
    return await plan_commit(reading.log, commit, options.change_source, moot)


async def _derived(reading: Reading, commit: Commit, rewrite: Rewrite) -> Iterable[ChangeFile]:
    from tailer.feed.derive import derive  # loads on demand, with the engine

    wants, options = reading.selector.wants, reading.options
    rewrite = replace(
        rewrite,
        leaving=[file for file in rewrite.leaving if wants(file)],
        coming=[file for file in rewrite.coming if wants(file)],
    )
    how = (reading.decode, options.diff, options.key, reading.observer.noops)
    try:
        return await derive(reading.log.store, commit, rewrite, *how)
    except FileGone as e:
        # Without one of its files, the other files' rows are ambiguous: the version is lost.
        raise DataLoss(e.what, version=commit.version, path=e.path, hint=e.hint) from None
