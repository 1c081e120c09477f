"""Where a feed continues that takes over from a streaming query: read from Spark's checkpoint.

For its batch N, a checkpoint has::

    offsets/N    where the batch ends in each source; written before it runs
    commits/N    written when its sink has taken it

The feed continues at the end of the last batch with a commit. A later batch was planned only: its
sink may have none of it, a part, or all. Spark would run it again, and the feed sends it again.

A source of this package has our own offsets there. Those of Spark's Delta source name the table
(``reservoirId``), a version, the index of the last file that was delivered, and whether it is one
of the initial snapshot. A negative index is before the first file. Spark counts the files of a
version in the order of its log: the adds with ``dataChange``; with readChangeFeed its cdc files, or
else the removes too. It counts those of the initial snapshot by modification time and path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, structs

from tailer.changes import Offset
from tailer.delta.actions import AddCDCFile, AddFile
from tailer.delta.add_fields import KEYS
from tailer.delta.commit import Commit
from tailer.errors import OffsetError, TableError
from tailer.log.same_table import check_place
from tailer.log.table import TableLog
from tailer.plan.rules import ChangeSource, choose_source
from tailer.store import Store

_SET = "choose the feed's start by `tailer offsets set`"
_NO_OFFSET = "give the checkpointLocation of a query that reads the feed's table by format delta, "
_NO_OFFSET += "tailer or tailer.spark"


class SparkOffset(Struct, frozen=True):
    """A place in Spark's Delta source: after the first ``files`` of a version, or of the initial
    snapshot of one."""

    table_id: str
    version: int
    files: int
    snapshot: bool


class StreamCheckpoint(Struct, frozen=True):
    """The last committed batch of a query: where it ended in each source that reads a Delta table.

    ``planned`` is a batch after it that has no commit; ``time_ms`` when it began, in epoch ms.
    """

    query: str
    batch: int
    time_ms: int | None
    planned: int | None
    places: Sequence[SparkOffset | Offset]

    def list_sentences(self) -> Iterator[str]:
        """Yield what was committed, and what was not."""
        time = ""
        if self.time_ms is not None:
            time = f", which began at {datetime.fromtimestamp(self.time_ms / 1000, UTC):%F %T} UTC"
        yield f"query {self.query} has committed batch {self.batch}{time}"
        if self.planned is not None:
            yield (
                f"batch {self.planned} has no commit, so its changes are sent again: the query's "
                "sink may have some of them already"
            )


async def read_checkpoint(store: Store) -> StreamCheckpoint:
    """Read the checkpoint of a streaming query, the root of a store.

    Raises :class:`OffsetError` if there is none, or no batch of it is committed.
    """
    commits = await _list_batches(store, "commits")
    if not commits:
        raise OffsetError(
            "the checkpoint has no committed batch", path=store.root,
            hint="give the checkpointLocation of a query that has run; or begin as it would have, "
            "by `tailer offsets set` with --from snapshot or --from its startingVersion",
        )  # fmt: skip
    batch, path = max(commits), f"offsets/{max(commits)}"
    planned = max(await _list_batches(store, "offsets"), default=batch)
    try:
        version, metadata, *rest = (await store.read(path))[0].decode().splitlines()
        places = [place for text in _split_sources(version, rest) if (place := _parse_place(text))]
        began = json.loads(metadata or "{}").get("batchTimestampMs")
    except (FileNotFoundError, ValueError, AttributeError) as e:
        raise _make_damaged_error(
            f"the checkpoint's offsets can't be read ({e})", store, path
        ) from None
    except OffsetError as e:
        e.at(path=f"{store.root}/{path}")
        raise
    query = "of the checkpoint"
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # a name for people
        query = json.loads((await store.read("metadata"))[0])["id"]
    return StreamCheckpoint(query, batch, began, planned if planned > batch else None, places)


def _make_damaged_error(what: str, store: Store, path: str) -> OffsetError:
    return OffsetError(what, path=f"{store.root}/{path}", hint=_NO_OFFSET)


async def _list_batches(store: Store, folder: str) -> list[int]:
    async with aclosing(store.list(folder)) as files:
        return [int(file.name) async for file in files if re.fullmatch(r"\d+", file.name)]


def _split_sources(version: str, lines: list[str]) -> list[str]:
    """Return the sources' offsets as JSON; "-" for one without. v2 has them by the sources' names.

    Raises ValueError.
    """
    if version == "v1":
        return lines
    if version != "v2":
        raise ValueError(f"they are of format {version!r}, and v1 and v2 are known")
    return [text or "-" for text in json.loads(lines[0]).values()]


def _parse_place(text: str) -> SparkOffset | Offset | None:
    """Return a source's place; None for a source that reads no Delta table."""
    if text == "-" or not isinstance(found := json.loads(text), dict):
        return None
    if "reservoirId" in found:
        return _parse_spark_offset(found)
    return Offset.from_json(found) if found.keys() >= {"format", "table_id"} else None


def _parse_spark_offset(found: dict[str, Any]) -> SparkOffset:
    """Return the place that a DeltaSourceOffset names. Raises :class:`OffsetError` for one of a
    format that is not known."""
    if found.get("sourceVersion") not in (1, 3):
        raise OffsetError(
            f"an offset of Delta's source has sourceVersion {found.get('sourceVersion')!r}, and 1 "
            "and 3 are known",
            hint="it is damaged, or a newer Delta wrote it",
        )
    table, version, index = (found.get(k) for k in ("reservoirId", "reservoirVersion", "index"))
    snapshot = found.get("isStartingVersion", found.get("isInitialSnapshot"))
    if (
        isinstance(table, str)
        and isinstance(version, int)
        and isinstance(index, int)
        and isinstance(snapshot, bool)
        and version >= 0
    ):
        return SparkOffset(table, version, max(index, -1) + 1, snapshot)
    raise OffsetError("an offset of Delta's source lacks a field, or has one of a wrong kind")


async def find_offset(
    log: TableLog, checkpoint: StreamCheckpoint, change_source: ChangeSource, *, change_feed: bool
) -> Offset:
    """Return where a feed of the table continues after a checkpoint's query.

    ``change_feed``: the query reads with readChangeFeed. Raises :class:`OffsetError` if the query
    does not read the table that is there, or stopped where no feed can continue exactly.
    """
    table_id = (await log.load_snapshot()).state.table_id
    places = {place for place in checkpoint.places if place.table_id in (None, table_id)}
    if len(places) != 1:
        raise _make_place_error(log, checkpoint, table_id, len(places))
    (place,) = places
    if isinstance(place, Offset):
        return place
    offset = Offset(place.version, snapshot=place.snapshot, table_id=table_id)
    try:
        await check_place(log, structs.replace(offset, delivered_files=place.files))
    except TableError as e:
        e.hint = _SET
        raise
    if place.snapshot:
        snapshot = await log.load_snapshot(place.version)
        async with aclosing(log.live_files(snapshot, KEYS)) as live:
            files = sum([1 async for _ in live])
    elif place.files:
        files = await _count_files(log, place, change_source, change_feed=change_feed)
    else:
        return offset
    if place.files >= files:
        return Offset(place.version + 1, table_id=table_id)
    return structs.replace(offset, delivered_files=place.files)


def _make_place_error(
    log: TableLog, checkpoint: StreamCheckpoint, table_id: str, found: int
) -> OffsetError:
    if found:
        what = f"the checkpoint's query reads table {table_id} {found} times, up to other places"
        hint = _SET
    elif checkpoint.places:
        read = " and ".join(sorted({str(place.table_id) for place in checkpoint.places}))
        what = (
            f"the checkpoint's query reads table {read}, and the table there is {table_id}: it was "
            "made again, or the checkpoint is that of another query"
        )
        hint = "to read the present table from its beginning, use `tailer offsets set ... --from "
        hint += "snapshot`"
    else:
        what, hint = "the checkpoint's query reads no Delta table", _NO_OFFSET
    return OffsetError(what, table=log.store.root, hint=hint)


async def _count_files(
    log: TableLog, place: SparkOffset, source: ChangeSource, *, change_feed: bool
) -> int:
    """Return the number of a version's files that the query counts; it has delivered some.

    Raises :class:`OffsetError` if the changes in the others are not the rest of the feed's.
    """
    try:
        commit = await log.read_commit(place.version, await log.state_before(place.version), None)
    except FileNotFoundError:
        raise OffsetError(
            "the query stopped within this version, and its commit was cleaned up",
            table=log.store.root, version=place.version, hint=_SET,
        ) from None  # fmt: skip
    header, hint = commit.header, ""
    files = sum(_mark_counted(commit, change_feed=change_feed))
    exact = not (header.added_again or header.repeated or header.cdcs)
    exact = exact and header.adds + header.removes == header.data_changes
    if header.removes or header.cdcs:  # or else both kinds of streams count the same
        if change_feed and place.files >= files:
            return files
        exact = exact and change_feed and choose_source(commit, source) == "cdf"
        hint = "" if change_feed else "; if it reads with readChangeFeed, say --read-change-feed"
    if not exact:
        raise OffsetError(
            f"the query stopped after {place.files} files of this version, and the rest of its "
            "changes is not in the other files alone",
            table=log.store.root, version=place.version,
            hint="let the query commit the whole version, as a run with Trigger.AvailableNow does, "
            f"and import again{hint}",
        )  # fmt: skip
    return files


def _mark_counted(commit: Commit, *, change_feed: bool) -> Iterator[bool]:
    """Yield of each file action whether the query counts it."""
    by_cdc = change_feed and commit.header.cdcs > 0
    for action in commit.file_actions():
        if by_cdc or isinstance(action, AddCDCFile):
            yield by_cdc and isinstance(action, AddCDCFile)
        else:
            yield action.data_change and (change_feed or isinstance(action, AddFile))


def describe_place(offset: Offset) -> str:
    """Return where an offset is."""
    version = f"version {offset.version}"
    if offset.snapshot:
        version = f"the initial snapshot of {version}"
    if offset.delivered_files:
        return f"{version}, after the {offset.delivered_files} files of it that the query has sent"
    return f"{version}, index {offset.index}" if offset.index else version


def describe_difference(
    operations: Sequence[str] | None, *, change_feed: bool, copies: bool
) -> Iterator[str]:
    """Yield how a feed of these ``operations`` differs from a Spark stream; ``copies``: its sink
    keeps a mirror, which needs all of them."""
    if change_feed:
        if operations is not None:
            yield f"the stream sent all operations, and this feed sends {', '.join(operations)}"
        return
    if operations is None and not copies:
        yield (
            "a stream without readChangeFeed sends inserts; this feed sends updates and deletes "
            'too, unless you set operations = ["insert"]'
        )
    yield (
        "this feed also sends the inserts of versions that skipChangeCommits passes over, and "
        "never the unchanged rows that ignoreChanges sends again"
    )
