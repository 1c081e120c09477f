"""The log of a shared table, made from the sharing server's answers and kept on the disk.

A shared table has no visible log, but the server's answers have the same content. Each answer to a
range of versions becomes the commit files of those versions, and each answer to a snapshot becomes
a checkpoint with one sidecar. The readers of logs read these files.

A range comes from one of two requests: ``changes``, the change data feed, or ``files``, the plain
data changes of /query. ``cdf`` uses the first and ``derived`` the second; ``auto`` chooses by the
table's properties at each version, and cuts a range where they change.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio.to_thread

from tailer.errors import DataLoss, TableError, spilling
from tailer.sharing.answers import Line, SharedFile
from tailer.sharing.client import SharingClient
from tailer.sharing.http import SharingRefused
from tailer.sharing.model import EndOfStream, Table
from tailer.sharing.query import QueryAnswer, TableQuery
from tailer.store.shared.links import LinkTable, Origin
from tailer.store.shared.ranges import CommitRange
from tailer.store.shared.spool import AnswerSpool, append_actions
from tailer.store.shared.state import SharedState, Timeline, feed_enabled

#: Which requests fetch a table's changes.
ChangeRequests = Literal["auto", "cdf", "derived"]

#: The ranges whose commits are kept: the one being read, and the one before it.
_RANGES_KEPT = 2
_STATES_KEPT = 8


@dataclass(frozen=True, slots=True)
class MadeFile:
    """One made file on the disk; ``mtime_ms`` is the modification time that a log reader gets."""

    file: Path
    mtime_ms: int


class SharedLog:
    """Commits, checkpoints and sidecars by version. One caller at a time: the store ensures it.

    ``folder`` is where they are kept, ``versions_per_request`` the most versions in one request.
    """

    def __init__(
        self,
        client: SharingClient,
        table: Table,
        folder: Path,
        links: LinkTable,
        requests: ChangeRequests,
        versions_per_request: int,
    ) -> None:
        self._client = client
        self._table = table
        self._folder = folder
        self._links = links
        self._requests = requests
        self._span = versions_per_request
        self._ranges: list[CommitRange] = []
        self._states: dict[int, SharedState] = {}
        self._times: dict[int, int] = {}
        self._sidecar: tuple[Origin, Path] | None = None
        self._refresh_token: str | None = None
        self._made = 0

    def use_requests(self, requests: ChangeRequests) -> None:
        """Request changes in this way from now on, and drop those fetched in another one."""
        if requests != self._requests:
            self._requests = requests
            while self._ranges:
                commit_range = self._ranges.pop()
                shutil.rmtree(commit_range.folder, ignore_errors=True)
                self._links.drop_links(commit_range.origin)

    # Commits

    async def fetch_commit(self, version: int, newest: int) -> MadeFile:
        """Return a version's commit, fetched with those that follow it up to ``newest``.

        Raises :class:`DataLoss` for a version that the server does not give.
        """
        commit_range = next((r for r in self._ranges if r.has_version(version)), None)
        if commit_range is None:
            last = min(newest, version + self._span - 1)
            try:
                commit_range = await self._fetch_range(version, last)
            except SharingRefused as e:
                raise self._make_loss_error(e, version, "the changes") from None
            await self._keep_range(commit_range)
        return MadeFile(commit_range.commit_path(version), self._times.get(version, 0))

    def _make_loss_error(self, refusal: SharingRefused, version: int, what: str) -> TableError:
        if refusal.status == 401:
            return refusal
        return DataLoss(
            f"the sharing server does not give {what} of this version: {refusal.what}",
            version=version,
            hint="it may be too old, or the provider shares no history or no change data feed; "
            "start at a newer version, or with a snapshot",
        )

    async def _fetch_range(self, first: int, last: int) -> CommitRange:
        if self._requests == "derived":
            return await self._request_range("files", first, last)
        if self._requests == "cdf":
            return await self._fetch_feed(first, last)
        before = self._states.get(first - 1)
        guess = feed_enabled(before.metadata) if before is not None else None
        refusal: SharingRefused | None = None
        if guess is not False:
            try:
                return await self._request_range("changes", first, last)
            except SharingRefused as e:
                refusal = e
                if e.status == 401:
                    raise
        try:
            commit_range = await self._request_range("files", first, last)
        except SharingRefused as e:
            if refusal is not None and last == first:
                raise refusal from None
            if e.status == 401:
                raise
            return await self._fetch_feed(first, first if refusal else last)
        return await self._split_by_properties(commit_range, last, refusal)

    async def _fetch_feed(self, first: int, last: int) -> CommitRange:
        """Return the feed of a range, or of its first version alone if a later one has none."""
        try:
            return await self._request_range("changes", first, last)
        except SharingRefused as e:
            if last == first or e.status == 401:
                raise
            return await self._request_range("changes", first, first)

    async def _split_by_properties(
        self, commit_range: CommitRange, last: int, refusal: SharingRefused | None
    ) -> CommitRange:
        """Return the part of a range of files in which the table has no feed.

        If it has a feed at the first version, return the feed of the part in which it stays on.
        """
        timeline, first = commit_range.timeline, commit_range.first
        if timeline.feed_at(first) is not True:
            on = timeline.first_with_feed(on=True, last=last)
            if on is not None:
                commit_range.last = on - 1
            return commit_range
        off = timeline.first_with_feed(on=False, last=last)
        if refusal is not None and off is None:
            raise refusal
        await self._forget_range(commit_range)
        return await self._fetch_feed(first, last if off is None else off - 1)

    def _send_request(self, origin: Origin) -> AbstractAsyncContextManager[QueryAnswer]:
        """Send the request that an origin names."""
        if origin.kind == "changes":
            return self._client.request_changes(
                self._table, starting_version=origin.first, ending_version=origin.last
            )
        if origin.kind == "files":
            query = TableQuery(starting_version=origin.first, ending_version=origin.last)
            return self._client.send_query(self._table, query)
        return self._client.send_query(self._table, TableQuery(version=origin.first))

    async def _request_range(self, kind: str, first: int, last: int) -> CommitRange:
        """Fetch one request's commits, written as they arrive."""
        self._made += 1
        origin = Origin(kind, first, last)
        folder = self._folder / f"range-{self._made}"
        commit_range = CommitRange(origin, folder, Timeline(first), last)
        async with self._send_request(origin) as answer:
            with spilling(None):
                folder.mkdir()
            spool = AnswerSpool(self._links, origin)
            try:
                async with aclosing(answer.parse_lines()) as lines:
                    async for line in lines:
                        await commit_range.add_line(line, spool)
                await spool.flush()
                await self._finish_range(commit_range)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return commit_range

    async def _finish_range(self, commit_range: CommitRange) -> None:
        """Complete the commits after the whole answer has arrived."""
        if commit_range.timeline.is_complete and commit_range.timeline.changes_unstamped:
            async with self._client.request_metadata(self._table) as answer:
                now = await _read_states(answer, 0)
            commit_range.timeline.widen_protocols(now.find_state(0).protocol)
        before = self._states.get(commit_range.first - 1)
        if before is None and commit_range.first > 0:
            with suppress(SharingRefused):
                before = await self._find_state(commit_range.first - 1)
        time = self._times.get(commit_range.first - 1)
        await anyio.to_thread.run_sync(commit_range.complete_commits, before, time)

    async def _keep_range(self, commit_range: CommitRange) -> None:
        self._ranges.append(commit_range)
        self._remember_state(commit_range.last, commit_range.find_state(commit_range.last))
        for version, time in commit_range.times.items():
            self._times[version] = time
        while len(self._ranges) > _RANGES_KEPT:
            await self._forget_range(self._ranges.pop(0))
        oldest = self._ranges[0].first - 1
        self._times = {v: t for v, t in self._times.items() if v >= oldest}

    def _remember_state(self, version: int, state: SharedState) -> None:
        self._states.pop(version, None)
        self._states[version] = state
        while len(self._states) > _STATES_KEPT:
            self._states.pop(next(iter(self._states)))

    async def _forget_range(self, commit_range: CommitRange) -> None:
        await anyio.to_thread.run_sync(
            lambda: shutil.rmtree(commit_range.folder, ignore_errors=True)
        )
        self._links.drop_links(commit_range.origin)

    def known_time(self, version: int) -> int:
        """Return the time of a version in epoch ms if an answer gave it, else 0."""
        time_ms = self._times.get(version)
        if time_ms is None and (state := self._states.get(version)) is not None:
            return state.created_ms
        return time_ms or 0

    # Snapshots

    async def make_checkpoint(self, version: int) -> MadeFile:
        """Return a checkpoint of a version: its state, and a sidecar by name.

        Raises :class:`DataLoss` for a version that the server does not give.
        """
        try:
            state = await self._find_state(version)
        except SharingRefused as e:
            raise self._make_loss_error(e, version, "the metadata") from None
        file = self._folder / f"{version:020d}.checkpoint.json"
        sidecar = {"path": f"{version:020d}.json", "sizeInBytes": 1, "modificationTime": 0}
        file.unlink(missing_ok=True)
        append_actions(
            file,
            [
                {"checkpointMetadata": {"version": version}},
                *state.make_actions(None),
                {"sidecar": sidecar},
            ],
        )
        return MadeFile(file, self.known_time(version))

    async def _find_state(self, version: int) -> SharedState:
        """Return the state at a version, from the first request that gives it."""
        remembered = self._states.get(version)
        if remembered is not None:
            return remembered
        refusal: SharingRefused | None = None
        async with self._client.request_metadata(self._table) as answer:
            current = await _read_states(answer, version)
            if answer.version == version:
                state = current.find_state(version)
                self._remember_state(version, state)
                return state
        for request in (
            self._client.send_query(self._table, TableQuery(version=version, limit_hint=1)),
            self._send_request(Origin("changes", version, version)),
            self._send_request(Origin("files", version, version)),
        ):
            try:
                async with request as answer:
                    answered = (await _read_states(answer, version)).find_state(version)
            except SharingRefused as e:
                refusal = refusal or e
                continue
            self._remember_state(version, answered)
            return answered
        raise refusal or TableError("the sharing server sent no metadata")

    async def make_sidecar(self, version: int, newest: int) -> MadeFile:
        """Return the files of a snapshot.

        Raises :class:`DataLoss` if the server does not give it.
        """
        origin = Origin("snapshot", version, version)
        if self._sidecar is None or self._sidecar[0] != origin:
            if self._sidecar is not None:
                self._sidecar[1].unlink(missing_ok=True)
                self._links.drop_links(self._sidecar[0])
                self._sidecar = None
            file = self._folder / f"{version:020d}.sidecar.json"
            try:
                await self._write_snapshot(origin, file, current=version == newest)
            except SharingRefused as e:
                raise self._make_loss_error(e, version, "the snapshot") from None
            self._sidecar = origin, file
        return MadeFile(self._sidecar[1], self.known_time(version))

    async def _write_snapshot(self, origin: Origin, file: Path, *, current: bool) -> None:
        """Write a snapshot's files.

        The current snapshot can be read without shared history, but the table may have changed
        since its version was requested.
        """
        if current:
            query = TableQuery(include_refresh_token=True)
            async with self._client.send_query(self._table, query) as answer:
                if answer.version == origin.first:
                    self._refresh_token = await self._spool_answer(answer, origin, file)
                    return
        self._refresh_token = None
        async with self._send_request(origin) as answer:
            if answer.version not in (None, origin.first):
                raise TableError(
                    f"the sharing server was asked for version {origin.first}, and answers with "
                    f"version {answer.version}"
                )
            await self._spool_answer(answer, origin, file)

    async def _spool_answer(
        self, answer: QueryAnswer, origin: Origin, file: Path | None
    ) -> str | None:
        """Write the files of an answer, or only store their URLs; return the refresh token."""
        spool = AnswerSpool(self._links, origin)
        if file is not None:
            append_actions(file, [])
        async with aclosing(answer.parse_lines()) as lines:
            async for line in lines:
                if isinstance(line, SharedFile):
                    await spool.add_file(file, line)
        await spool.flush()
        return answer.end.refresh_token if answer.end is not None else None

    # URLs

    async def request_urls(self, location: str, version: int, *, snapshot: bool) -> None:
        """Request the URLs of one version, or of its snapshot, until they include the file's."""
        kinds = {"cdf": ("changes",), "derived": ("files",)}.get(
            self._requests, ("changes", "files")
        )
        refusal: TableError | None = None
        for kind in ("snapshot",) if snapshot else kinds:
            if location not in self._links:
                try:
                    await self.renew_urls(Origin(kind, version, version))
                except DataLoss as e:
                    refusal = refusal or e
        if location not in self._links and refusal is not None:
            raise refusal

    async def renew_urls(self, origin: Origin) -> None:
        """Repeat the request that gave these URLs, and store the new ones."""
        self._links.issue += 1
        token = self._refresh_token
        if origin.kind == "snapshot" and token is not None:
            query = TableQuery(refresh_token=token, include_refresh_token=True)
            with suppress(SharingRefused):
                async with self._client.send_query(self._table, query) as answer:
                    self._refresh_token = await self._spool_answer(answer, origin, None) or token
                    return
        try:
            async with self._send_request(origin) as answer:
                await self._spool_answer(answer, origin, None)
        except SharingRefused as e:
            raise self._make_loss_error(e, origin.first, "new URLs for the files") from None


async def _read_states(answer: QueryAnswer, version: int) -> Timeline:
    """Return the states at the head of an answer, without waiting for the rest."""
    timeline = Timeline(version)
    lines: AsyncGenerator[Line, None] = answer.parse_lines()
    async with aclosing(lines):
        async for line in lines:
            if isinstance(line, SharedFile | EndOfStream):
                break
            timeline.add_line(line)
            if timeline.is_complete:
                break
    timeline.find_state(version)  # raises if something is missing
    return timeline
