"""Consecutive commits of a feed: their notices, then their changes, in spans.

A span ends where the operator or a policy may step in: at a notice (of a new schema, of a skipped
version), an offset within a version, updates to be paired; and before a version that is too large
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from tailer.changes import ChangeFile, Notice, Offset
from tailer.delta.commit import Commit
from tailer.errors import DataLoss, FileGone, TableError
from tailer.feed.policy import build_schema_notice, build_skip_notice, stop_for_schema
from tailer.feed.read_context import Emit, ReadContext, RemoteDecoder
from tailer.feed.rows.span import Span, Version, VersionFiles
from tailer.feed.rows.span_reader import read_span
from tailer.plan.commit import CommitPlan, plan_commit
from tailer.plan.rules import Rewrite

if TYPE_CHECKING:
    from tailer.compare.pairing import Pairing


async def read_commits(
    context: ReadContext, commits: Sequence[Commit], start: Offset, emit: Emit, *, notices: bool
) -> None:
    """Read the notices and batches of consecutive commits, from an offset in the first one on."""
    reader = _CommitReader(context, emit, notices=notices)
    at = start
    try:
        try:
            for commit in commits:
                at = await reader.read_commit(commit, at)
        except Exception:
            await reader.end_span()  # the versions before the error come first
            raise
        await reader.end_span()
    except FileGone as e:
        if context.options.paired:
            e.rows = None  # a pair's other image may be elsewhere: its places can't be counted
        raise


class _CommitReader:
    """Reads commits one after the other, and the rows of several of them in one span."""

    def __init__(self, context: ReadContext, emit: Emit, *, notices: bool) -> None:
        self._context = context
        self._emit = emit
        self._notices = notices
        self._span: Span | None = None

    async def read_commit(self, commit: Commit, at: Offset) -> Offset:
        """Read a commit, or add it to the span that is read later. Return where the next begins."""
        context = self._context
        if at.table_id != commit.after.table_id:
            at = structs.replace(at, table_id=commit.after.table_id)
        first = at.resumable_with(context.counted_by)
        if commit.version in context.orders.skips:
            await self._emit_notice(build_skip_notice(first, commit.timestamp_ms))
            return first.next_version(commit.timestamp_ms, commit.read_id())
        await self._announce_schema(commit, first)
        with self._name_errors(commit):
            context.observer.note_commit(commit)
            context.check_selection(commit.after, commit.version)
            version, pairing = await _prepare_version(context, commit, first)
        if pairing is not None:
            from tailer.feed.pairing import read_paired  # loads on demand

            await self.end_span()
            await read_paired(context, version, pairing, first, self._emit)
        else:
            await self._add_to_span(version, first)
        return first.next_version(commit.timestamp_ms, commit.read_id())

    async def _emit_notice(self, notice: Notice) -> None:
        await self.end_span()
        await self._emit(notice)

    async def _add_to_span(self, version: Version, first: Offset) -> None:
        if self._span is not None and not self._span.can_take(version):
            await self.end_span()
        if self._span is None:
            self._span = Span(first)
        self._span.add_version(version)

    async def end_span(self) -> None:
        """Read the span's rows, if there is one."""
        span, self._span = self._span, None
        if span is not None:
            await read_span(self._context, span, self._emit, spans=self._context.options.spans)

    async def _announce_schema(self, commit: Commit, first: Offset) -> None:
        """Announce another schema, unless the policy on schema changes refuses it."""
        before, after = commit.before, commit.after
        if before is None or before is after or not self._notices or first.index:
            return
        shaper, policy = self._context.shaper, self._context.options.policies.on_schema_change
        with self._name_errors(commit):
            notice = build_schema_notice(
                shaper.shape_state(before), shaper.shape_state(after), first, commit.timestamp_ms
            )
        if notice is None:
            return
        if commit.version in self._context.orders.accepted:
            policy = "continue"
        if policy != "fail":
            await self._emit_notice(notice)
        with self._name_errors(commit):
            stop_for_schema(notice, policy)

    @contextmanager
    def _name_errors(self, commit: Commit) -> Iterator[None]:
        """Name the table and the commit in the block's errors."""
        try:
            yield
        except TableError as e:
            e.at(table=self._context.log.store.root, version=commit.version)
            raise


async def find_skip_notice(context: ReadContext, at: Offset) -> Notice:
    """Return the notice of a skipped version, with its timestamp if its commit is readable."""
    log, timestamp_ms = context.log, None
    try:
        before = await log.state_before(at.version)
        timestamp_ms = (
            await log.read_commit(at.version, before, at.timestamp_floor_ms)
        ).timestamp_ms
    except (TableError, FileNotFoundError):
        pass
    return build_skip_notice(at, timestamp_ms)


class _PreparedVersion(NamedTuple):
    version: Version
    pairing: Pairing | None


async def _prepare_version(context: ReadContext, commit: Commit, first: Offset) -> _PreparedVersion:
    """Find a commit's files, and the pairs of its updates."""
    files = await _find_files(context, commit, first)
    pairing = None
    if context.options.paired:
        from tailer.feed.pairing import pair_updates  # loads on demand

        files, pairing = await pair_updates(context, commit, files)
    if files.count is None and commit.header.files is not None:  # few, and parsed already
        files = VersionFiles.from_list(files.in_order)
    version = Version(commit.version, commit.timestamp_ms, commit.after, files, commit.read_id())
    return _PreparedVersion(version, pairing)


async def _find_files(context: ReadContext, commit: Commit, first: Offset) -> VersionFiles:
    """Return the files whose rows are the commit's changes, in their order; none if none of the
    changes are published, unless an index has to be found among them."""
    plan = await _plan_commit(context, commit)
    if not first.index and not context.options.selection.may_have(commit.header):
        return VersionFiles.from_list([])
    files: Iterable[ChangeFile]
    if plan.compares:
        files = await _derive_files(context, commit, plan.plan_rewrite())
    else:
        files = context.select_files(plan.plan_files(first.delivered_files))
    if context.options.paired:
        files = (file for file in files if file not in context.lost)
    return VersionFiles.from_list(files) if plan.compares else VersionFiles(files)


async def _plan_commit(context: ReadContext, commit: Commit) -> CommitPlan:
    """Return the plan of a commit's changes, without the file actions that change nothing."""
    options, live = context.options, context.live
    folder = options.diff.spill_folder
    ineffective = await live.apply_commit(context.log, commit, options.change_source, folder)
    return await plan_commit(context.log, commit, options.change_source, ineffective)


def _is_large(rewrite: Rewrite, remote: RemoteDecoder) -> bool:
    files = (*rewrite.leaving, *rewrite.coming)
    return sum(file.size or 0 for file in files) > remote.here_bytes_max


async def _derive_files(
    context: ReadContext, commit: Commit, rewrite: Rewrite
) -> Iterable[ChangeFile]:
    from tailer.feed.derive import derive_changes  # loads on demand, with the engine

    wants, options = context.is_selected, context.options
    rewrite = structs.replace(
        rewrite,
        leaving=[file for file in rewrite.leaving if wants(file)],
        coming=[file for file in rewrite.coming if wants(file)],
    )
    remote = context.remote
    try:
        if remote is not None and rewrite.needs_diff and _is_large(rewrite, remote):
            return await remote.derive_changes(context, commit, rewrite)
        return await derive_changes(
            context.log.store,
            commit,
            rewrite,
            decode=context.decode,
            options=options.diff,
            key=options.key,
            noops=context.observer.count_noops,
        )
    except FileGone as e:
        # Without one of its files, the other files' rows are ambiguous: the version is lost.
        raise DataLoss(e.what, version=commit.version, path=e.path, hint=e.hint) from None
