"""Changes between versions: /changes, and the streaming side of /query.

They follow the rules of the protocol's change feed ("Add CDC File"): a version with cdc actions is
read from them alone, any other from its adds and removes with dataChange=true. The client finds out
which rows of a file changed, from the deletion vectors in the actions. Adds of files that are
already in the table and removes of files that are not change nothing, and are left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import anyio.to_thread

from tailer.delta.actions import AddFile, RemoveFile
from tailer.delta.commit import Commit
from tailer.delta.digests import file_digest
from tailer.delta.parsing import build_action
from tailer.delta.snapshot import find_file_key
from tailer.errors import TailerError
from tailer.log.times import list_times, version_at_or_after, version_at_or_before
from tailer.plan.commit import CommitPlan, plan_commit
from tailer.plan.live_files import LiveFiles
from tailer.plan.rules import ChangeSource, Completions, choose_source
from tailer.share_server.lines import LineWriter, choose_format
from tailer.share_server.query import (
    Links,
    QueryBody,
    QueryResult,
    make_broken_end,
    make_line_writer,
    parse_timestamp_parameter,
)
from tailer.share_server.refusals import Refusal, invalid_parameter
from tailer.share_server.tables import SharedTable, list_raw_actions, make_missing_error
from tailer.sharing.model import Capabilities, EndOfStream, encode_ndjson_line

_BATCH = 512


@dataclass(frozen=True, slots=True)
class ChangesRange:
    """The parameters of /changes, unchecked ("Read Change Data Feed from a Table")."""

    starting_version: int | None
    starting_timestamp: str | None
    ending_version: int | None
    ending_timestamp: str | None
    historical_metadata: bool

    async def find_versions(self, table: SharedTable) -> tuple[int, int]:
        """Return the first and last version, both inclusive. Raises a :class:`Refusal`."""
        if self.starting_version is None and self.starting_timestamp is None:
            raise invalid_parameter("startingVersion or startingTimestamp is missing")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise invalid_parameter("startingVersion and startingTimestamp exclude each other")
        if self.ending_version is not None and self.ending_timestamp is not None:
            raise invalid_parameter("endingVersion and endingTimestamp exclude each other")
        newest = await table.latest_version()
        if self.starting_version is not None:
            first = self.starting_version
        else:
            first = await version_at_or_after(
                table.log, parse_timestamp_parameter(self.starting_timestamp or "")
            )
        last = newest
        if self.ending_version is not None:
            last = min(self.ending_version, newest)
        elif self.ending_timestamp is not None:
            last = await version_at_or_before(
                table.log, parse_timestamp_parameter(self.ending_timestamp)
            )
        if first > newest:
            raise invalid_parameter(
                f"the range starts at version {first}, and the newest is {newest}"
            )
        if last < first:
            raise invalid_parameter(
                f"the range ends at version {last}, before it starts at {first}"
            )
        return first, last


async def answer_changes(
    table: SharedTable, asked_range: ChangesRange, asked: Capabilities, links: Links
) -> QueryResult:
    """Answer with the change feed of a range of versions."""
    if not table.config.cdf:
        raise invalid_parameter("the change data feed of this table is not shared")
    first, last = await asked_range.find_versions(table)
    walk = _Walk(table, first, last, feed=True, historical=asked_range.historical_metadata)
    return await walk.make_answer(asked, links)


async def answer_stream(
    table: SharedTable, body: QueryBody, asked: Capabilities, links: Links
) -> QueryResult:
    """Answer with the files added and removed since startingVersion, and the metadata between."""
    if not table.config.history:
        raise invalid_parameter("startingVersion needs a table whose history is shared")
    newest = await table.latest_version()
    first = body.starting_version or 0
    if first > newest:
        raise invalid_parameter(f"startingVersion is {first}, and the newest version is {newest}")
    last = newest if body.ending_version is None else min(body.ending_version, newest)
    return await _Walk(table, first, last, feed=False, historical=True).make_answer(asked, links)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over versions ``first`` to ``last``.

    ``feed``: by the change feed's rules, else only files; ``historical``: with the metadata of each
    version that changes it.
    """

    table: SharedTable
    first: int
    last: int
    feed: bool
    historical: bool

    async def make_answer(self, asked: Capabilities, links: Links) -> QueryResult:
        end = (await self.table.load_snapshot(self.last)).state
        before = await self.table.log.state_before(self.first)
        opening = await self._read_commit(self.first, before, await self._find_time_before())
        start = opening.after
        form = choose_format(asked, start, end)
        # One range has one schema, its end's; a client that replays the log begins with the
        # start's.
        shown, at = (start, self.first) if self.historical else (end, self.last)
        writer = make_line_writer(self.table, links, form, versioned=True)
        head = writer.make_protocol_line(end.protocol)
        sums = None if self.historical else await self.table.log.read_checksum(at)
        # The version is sent only if metadata of other versions may follow.
        head += writer.make_metadata_line(shown, at if self.historical else None, sums)
        chunks = self._make_chunks(opening, writer, asked, links)
        return QueryResult(self.first, form, asked.end_of_stream, head, chunks, hold=True)

    async def _find_time_before(self) -> int | None:
        return (await list_times(self.table.log)).get(self.first - 1)

    async def _read_commit(self, version: int, before: Any, floor: int | None) -> Commit:
        try:
            commit = await self.table.log.read_commit(version, before, floor)
        except FileNotFoundError:
            raise make_missing_error(version) from None
        if self.feed:
            choose_source(commit, "cdf")
        return commit

    async def _make_chunks(
        self, opening: Commit, writer: LineWriter, asked: Capabilities, links: Links
    ) -> AsyncGenerator[bytes, None]:
        commit = opening
        try:
            with self.table.borrow_live_files(self.first) as live:
                while True:
                    async with aclosing(
                        self._make_version_chunks(commit, live, writer, asked)
                    ) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    if commit.version >= self.last:
                        break
                    commit = await self._read_commit(
                        commit.version + 1, commit.after, commit.timestamp_ms
                    )
        except (TailerError, Refusal) as e:
            # A client that supports the action gets the reason; for others the stream breaks off.
            if asked.end_of_stream and commit is not opening:
                yield encode_ndjson_line(make_broken_end(e).to_json())
                return
            raise
        if asked.end_of_stream:
            yield encode_ndjson_line(EndOfStream(None, None, links.expires_ms).to_json())

    async def _make_version_chunks(
        self, commit: Commit, live: LiveFiles, writer: LineWriter, asked: Capabilities
    ) -> AsyncGenerator[bytes, None]:
        # A feature may be added and dropped within the range.
        if choose_format(asked, commit.after) != writer.form and writer.form == "parquet":
            raise invalid_parameter(f"version {commit.version} can't be sent in the parquet format")
        changed = commit.header.metadata is not None or commit.header.protocol is not None
        if self.historical and changed and commit.version > self.first:
            yield writer.make_metadata_line(commit.after, commit.version, None)
        source: ChangeSource = "cdf" if self.feed else "derived"
        ineffective = await live.apply_commit(self.table.log, commit, source)
        lines = self._make_lines(
            await plan_commit(self.table.log, commit, source, ineffective), writer
        )
        while chunk := await anyio.to_thread.run_sync(partial(_join_batch, lines)):
            yield chunk

    def _make_lines(self, plan: CommitPlan, writer: LineWriter) -> Iterator[bytes]:
        commit = plan.commit
        by_cdc = self.feed and commit.header.cdcs > 0
        # Clients that process the lines in order see removed rows before added ones.
        for wanted in ("cdc",) if by_cdc else ("remove", "add"):
            if wanted == "remove" and not commit.header.removes:
                continue
            is_first = commit.first_mentions()
            for kind, values in list_raw_actions(commit.name, commit.lines):
                if kind != wanted or (kind != "cdc" and not values.get("dataChange", True)):
                    continue
                if not is_first(kind, values["path"]):
                    continue
                if (
                    plan.ineffective
                    and kind != "cdc"
                    and _compute_digest(kind, values) in plan.ineffective
                ):
                    continue
                action = values
                if kind == "remove":
                    action = _complete_remove(values, plan.completions)
                    if action.get("partitionValues") is None and writer.form == "parquet":
                        action = {**action, "partitionValues": {}}
                yield writer.make_file_line(
                    kind, action, commit.version, commit.timestamp_ms, snapshot=False
                )


def _join_batch(lines: Iterator[bytes]) -> bytes:
    return b"".join(islice(lines, _BATCH))


def _compute_digest(kind: str, values: dict[str, Any]) -> bytes:
    """Return the digest of the logical file of an add or remove, given as in the log."""
    action = build_action(kind, values)
    assert isinstance(action, AddFile | RemoveFile)
    return file_digest(action)


def _complete_remove(remove: dict[str, Any], completions: Completions) -> dict[str, Any]:
    """Complete a remove with fields that only the removed add has (:mod:`tailer.plan.rules`)."""
    action = build_action("remove", remove) if completions else None
    add = completions.get(find_file_key(action)) if isinstance(action, RemoveFile) else None
    if add is None:
        return remove
    found: dict[str, Any] = {"partitionValues": add.partition_values, "size": add.size}
    if add.base_row_id is not None:
        found["baseRowId"] = add.base_row_id
        found["defaultRowCommitVersion"] = add.default_row_commit_version
    kept = {key: value for key, value in remove.items() if value is not None}
    return {**found, **kept}
