"""One commit of a feed: its notice, then its changes. Plan, fetch, decode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from tailer.changes import ChangeBatch, ChangeFile, Notice, Offset
from tailer.decode.plan import Rewrite, is_passed_over
from tailer.delta.commit import Commit
from tailer.errors import DataLoss, FileGone, TableError
from tailer.feed.derive import derive
from tailer.feed.pairing import pair_updates, paired_batches
from tailer.feed.policy import schema_notice, skip_notice, stop_for_schema
from tailer.feed.version import Reading, VersionReader
from tailer.log.changes import plan_commit

__all__ = ["Item", "commit_items", "skipped"]

#: What goes from the reader to the publisher.
Item: TypeAlias = ChangeBatch | Notice


async def commit_items(
    reading: Reading, commit: Commit, start: Offset, *, notices: bool
) -> AsyncGenerator[Item, None]:
    """Yield one commit's notice and batches, from an offset in its version on."""
    first = replace(start, table_id=commit.after.table_id).under(reading.counted_by, reading.former)
    if commit.version in reading.orders.skips:
        yield skip_notice(first, commit.timestamp_ms)
        return
    try:
        changed = _new_schema(reading, commit, first) if notices else None
        if changed is not None:
            policy = reading.options.policies.on_schema_change
            if commit.version in reading.orders.accepted:
                policy = "continue"
            if policy != "fail":
                yield changed
            stop_for_schema(changed, policy)
        reading.observer.planned(commit)
        async with aclosing(_batches(reading, commit, first)) as batches:
            async for batch in batches:
                yield batch
    except TableError as e:
        if isinstance(e, FileGone) and reading.options.paired:
            e.rows = None  # a pair's other image may be elsewhere: its places can't be counted
        raise e.at(table=reading.log.store.root, version=commit.version) from None


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


async def _batches(
    reading: Reading, commit: Commit, first: Offset
) -> AsyncGenerator[ChangeBatch, None]:
    read = VersionReader(reading, commit, commit.timestamp_ms).batches
    files = await _plan(reading, commit)
    if reading.is_former(first) and reading.live.known(commit.version):
        first = replace(first, index=0)  # counted rows of files that the version lacks
    found = read(files, first)
    if reading.options.paired:
        files, pairing = await pair_updates(reading, commit, files)
        if pairing and reading.is_former(first):
            first = replace(first, index=await reading.settled(first, files))
        found = paired_batches(pairing, files, first, read) if pairing else read(files, first)
    async with aclosing(found) as batches:
        async for batch in batches:
            yield batch


async def _plan(reading: Reading, commit: Commit) -> Iterable[ChangeFile]:
    """Return the files whose rows are the commit's changes, in their order."""
    options, wants = reading.options, reading.selector.wants
    live, folder = reading.live, options.diff.spill_folder
    moot = await live.moot(reading.log, commit, options.change_source, folder)
    if is_passed_over(commit, options.policies):
        return []
    plan = await plan_commit(reading.log, commit, options.change_source, moot)
    if plan.compares:
        files = await _derived(reading, commit, plan.rewrite())
    else:
        files = filter(wants, plan.files())
    if not options.paired:
        return files
    kept = (file for file in files if file not in reading.lost)
    return list(kept) if plan.compares else kept


async def _derived(reading: Reading, commit: Commit, rewrite: Rewrite) -> Iterable[ChangeFile]:
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
