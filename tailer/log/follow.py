"""Following a table's log as it grows: the loop that carries out what a cursor asks for.

All waiting for a next commit is here. :mod:`tailer.log.cursor` decides what comes next, and
:mod:`tailer.log.readers` how the store is asked for it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing

import anyio

from tailer.changes import Offset
from tailer.delta.commit import Commit
from tailer.delta.segment import LogKind, format_commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, TableError
from tailer.log import questions as ask
from tailer.log.cursor import FollowOptions, LogCursor, LogFacts
from tailer.log.json_files import CommitText
from tailer.log.listing import list_versions
from tailer.log.questions import CursorAction, CursorAnswer
from tailer.log.readers import SMALL_BYTES_MAX, LogReader
from tailer.log.same_table import find_commit_tag, load_state_before
from tailer.log.table import TableLog
from tailer.process.threads import run_blocking
from tailer.store import LOG_DIR, Watch

__all__ = ["FollowOptions", "follow_backlog", "follow_commits"]


async def follow_commits(
    log: TableLog,
    start: Offset,
    last: int | None = None,
    options: FollowOptions | None = None,
    on_newest: Callable[[int], None] = lambda _: None,
) -> AsyncGenerator[Commit, None]:
    """Yield the commits of :func:`follow_backlog`, one by one."""
    async with aclosing(follow_backlog(log, start, last, options, on_newest)) as backlog:
        async for commits in backlog:
            for commit in commits:
                yield commit


async def follow_backlog(
    log: TableLog,
    start: Offset,
    last: int | None = None,
    options: FollowOptions | None = None,
    on_newest: Callable[[int], None] = lambda _: None,
    on_wait: Callable[[TableState], None] = lambda _: None,
) -> AsyncGenerator[list[Commit], None]:
    """Yield the commits from an offset's version on, contiguous and of one table, as they appear:
    as many at once as are there, at most :data:`tailer.log.cursor.BACKLOG_COMMITS_MAX`.

    Ends after version ``last``; without one, never. ``on_newest`` is called with the newest version
    of the table whenever it changes, ``on_wait`` with the state of the newest version when the next
    one does not exist yet. Raises :class:`DataLoss` for a gap or a version that is gone,
    :class:`TableReplaced` if the table is no longer the same, :class:`OffsetError` if it was
    another one from the start.
    """
    # Seen before the state is read: a table that replaces this one later is noticed.
    tag = await find_commit_tag(log, start.version - 1)
    before = await load_state_before(log, start)
    store = log.store
    facts = LogFacts(store.root, log.torn_commit_max_s, store.check_s, store.server_log)
    newest, reported = max(list_versions(log.listed), default=-1), -1
    cursor = LogCursor(
        facts, start, before, tag, random.random, newest=newest, last=last, options=options
    )
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(aclosing(log.open_reader()))
        watch: Watch | None = None
        while (action := cursor.next_action(anyio.current_time())) is not None:
            if cursor.newest != reported:
                on_newest(reported := cursor.newest)
            answer: CursorAnswer = None
            match action:
                case ask.Deliver(commits, at_head):
                    if at_head:
                        reader.request_ahead(commits[-1].version + 1, last)
                    yield commits
                case ask.Wait(seconds):
                    if cursor.before is not None:
                        on_wait(cursor.before)
                    log.forget_files()
                    if watch is None:
                        watch = await stack.enter_async_context(store.watch(LOG_DIR))
                    await watch.wait(seconds)
                case ask.Pause(seconds):
                    await anyio.sleep(seconds)
                case _:
                    answer = await _answer_cursor(log, reader, action)
            cursor.receive(answer)


async def _answer_cursor(log: TableLog, reader: LogReader, action: CursorAction) -> CursorAnswer:
    """Read what a cursor asks for."""
    match action:
        case ask.ReadCommit(version, before, floor_ms, asked_at):
            text = await reader.read_commit(version, asked_at)
            if not isinstance(text, CommitText):
                return text
            commit = await log.parse_commit(version, text, before, floor_ms)
            return ask.CommitsRead([commit], text.predecessor)
        case ask.ReadMore(after, count):
            versions = range(after.version + 1, after.version + 1 + count)
            reads = [(format_commit_name(version), SMALL_BYTES_MAX) for version in versions]
            files = await reader.find_blocking_files(reads, after.name)
            if files is None:
                return ask.CommitsRead([])
            return ask.CommitsRead(
                await run_blocking(log.read_commits_blocking, after, count, files)
            )
        case ask.StatCommit(version):
            return ask.FileTag(await log.find_tag(format_commit_name(version)))
        case ask.ListLog(after_name):
            listed = await log.list_files(after_name)
            commits = [file.version for file in listed if file.kind is LogKind.COMMIT]
            return ask.Listing(list_versions(listed), commits)
        case ask.ReadTableId(version_or_newest):
            return ask.TableId(await _find_table_id(log, version_or_newest))
    return None


async def _find_table_id(log: TableLog, version: int | None) -> str | None:
    try:
        return (await log.load_snapshot(version)).state.table_id
    except DataLoss:
        return None
    except TableError:
        if version is not None:
            raise
        return None  # if the newest version can't be read, nothing is known
