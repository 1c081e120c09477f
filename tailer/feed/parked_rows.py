"""The rows that a feed has parked in a file of JSON lines: list them, deliver them, drop them.

A line has the row, and in its field ``_parked`` why it was refused and where it lies in the table.
It is read from there again, so that what is delivered has the id and the bytes that it would have
had, under the feed's present options.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, OffsetError, SinkRejected, TableError, TargetRefused
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.files.durable import create_private, sync_folder
from tailer.log.table import TableLog
from tailer.sink import Sink


class ParkedRow(Struct, frozen=True):
    """A row in the file: its ``line``, event id, and what ``_parked`` says of it: the version and
    whether it is of a snapshot, why it was refused, and when."""

    line: bytes
    id: str
    version: int
    snapshot: bool
    reason: str
    at: str


class Replayed(Struct):
    """How many rows were delivered, and why each of the others is still refused."""

    delivered: int = 0
    refused: list[tuple[ParkedRow, str]] = []


def read_parked(path: Path, prefix: str) -> list[ParkedRow]:
    """Return the rows of a file, in the order of the feed; none if there is no file. ``prefix`` is
    that of the fields that are not the table's.

    Raises :class:`ConfigError` for a line that says not where its row lies, as those of older
    releases.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found: dict[str, ParkedRow] = {}
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):  # else its write was not acknowledged, and it is parked again
            row = _parse_line(line, prefix, f"{path}, line {number}")
            found.setdefault(row.id, row)  # parked again, as nothing had followed it
    return sorted(found.values(), key=_order)


def _order(row: ParkedRow) -> tuple[int, bool]:
    return row.version, not row.snapshot


def _parse_line(line: bytes, prefix: str, where: str) -> ParkedRow:
    try:
        found = json.loads(line)
        parked = found[f"{prefix}parked"]
        offset = Offset.from_json(parked["offset"])
        return ParkedRow(
            line, found[f"{prefix}event_id"], offset.version, offset.snapshot, parked["reason"],
            parked["at"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, OffsetError) as e:
        raise ConfigError(
            f"{where}: no parked row of this release ({type(e).__name__}: {e}); read what was "
            "parked with another program, and move the file away"
        ) from None


def remove_parked(path: Path, ids: Collection[str], prefix: str) -> int:
    """Remove rows from a file that no feed writes to, in one step; return how many there were."""
    rows = read_parked(path, prefix)
    left = [row.line for row in rows if row.id not in ids]
    if len(left) < len(rows):
        beside = path.with_name(f"{path.name}.new")
        beside.unlink(missing_ok=True)
        with open(create_private(beside), "wb") as file:  # noqa: PTH123  # its descriptor
            file.write(b"".join(left))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    return len(rows) - len(left)


async def replay_parked(
    log: TableLog,
    sink: Sink,
    options: FeedOptions,
    rows: Sequence[ParkedRow],
    at: Offset,
    remove: Callable[[Collection[str]], Awaitable[None]],
) -> Replayed:
    """Deliver parked rows to an open sink, in the order of the feed, version by version; ``remove``
    gets the ids of those that are delivered. ``at`` is where the feed continues, which stays, but
    behind rows that nothing has followed yet."""
    result = Replayed()
    for (version, changed), group in groupby(rows, key=_order):
        missing = {row.id: row for row in group}
        delivered = []
        start = Offset(version, snapshot=not changed)
        async with aclosing(_find_rows(log, start, options, missing)) as found:
            async for event in found:
                (id,) = event.event_ids().to_pylist()  # noqa: A001  # the event's
                row = missing.pop(id)
                try:
                    if event.refused is not None:
                        raise event.refused  # as the sink would
                    # A sink that keeps the offset may have parked its last row behind it.
                    passed = event.offset.position < at.position
                    await sink.write(structs.replace(event, next_offset=at) if passed else event)
                    at = at if passed else event.next_offset
                    delivered.append(id)
                except TargetRefused:
                    raise
                except (SinkRejected, TableError) as e:
                    result.refused.append((row, str(e)))
        await remove(delivered)
        result.delivered += len(delivered)
        gone = f"version {version} no longer has it under the feed's options"
        result.refused += [(row, gone) for row in missing.values()]
    return result


async def _find_rows(
    log: TableLog, start: Offset, options: FeedOptions, wanted: Mapping[str, Any]
) -> AsyncGenerator[ChangeBatch, None]:
    """Yield the changes of a version that have these ids, each as a batch."""
    ids = pa.array(list(wanted), pa.string())
    found = read_changes(log, start, start.version, options, keep_refused=True)
    async with aclosing(found) as batches:
        async for batch in batches:
            if batch.num_rows:
                for place in pc.indices_nonzero(pc.is_in(batch.event_ids(), ids)).to_pylist():
                    yield batch.slice(place, place + 1)
