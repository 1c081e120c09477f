"""The rows that a feed has parked in a file of JSON lines: list them, deliver them, drop them.

A line has the row, and in its field ``_parked`` why it was refused and where it lies in the table.
It is read from there again, so that what is delivered has the id and the bytes that it would have
had, under the feed's present options.
"""

from __future__ import annotations

import json
import os
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from tailer.changes import ChangeBatch, Offset
from tailer.errors import (
    ConfigError,
    OffsetError,
    SinkRejected,
    TableError,
    TargetRefused,
    unreadable,
)
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.files.durable import create_private, open_private, sync_folder
from tailer.log.table import TableLog
from tailer.sink import Sink


class ParkedRow(Struct, frozen=True):
    """A row in the file: its ``line`` (empty: it was not kept), event id, and what ``_parked`` says
    of it: its ``offset``, why it was refused, when, and its data file."""

    line: bytes
    id: str
    offset: Offset
    reason: str
    at: str
    file: str | None = None


class Replayed(Struct):
    """How many rows were delivered, and why each of the others is still refused."""

    delivered: int = 0
    refused: list[tuple[ParkedRow, str]] = []


def read_parked(
    path: Path, rows_max: int | None = None, *, keeps_lines: bool = False
) -> list[ParkedRow]:
    """Return the rows of a file, or its first ones, in the order of the feed; none if there is no
    file.

    Raises :class:`ConfigError` for a line that says not where its row lies, as those of older
    releases, and for a file that can't be read.
    """
    rows = islice(_iterate_rows(path), rows_max)
    kept = rows if keeps_lines else (structs.replace(row, line=b"") for row in rows)
    return sorted(kept, key=_order)


def find_unknown(path: Path, ids: Collection[str]) -> set[str]:
    """Return those of some ids of which no row is in a file."""
    return set(ids).difference(row.id for row in _iterate_rows(path))


def _iterate_rows(path: Path) -> Iterator[ParkedRow]:
    """Yield the rows that are not delivered, each once, in the order of the file."""
    known = _read_delivered(path)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):  # else its write was not acknowledged, and it comes again
                    row = _parse_line(line, f"{path}, line {number}")
                    if row.id not in known:
                        known.add(row.id)
                        yield row
    except FileNotFoundError:
        return
    except OSError as e:
        raise unreadable(f"the file of parked rows, {path},", path, e) from e


def _order(row: ParkedRow) -> tuple[int, bool]:
    return row.offset.version, not row.offset.snapshot


def _parse_line(line: bytes, where: str) -> ParkedRow:
    try:
        *_, parked = json.loads(line).values()  # its name may be another one than `_parked`
        offset = Offset.from_json(parked["offset"])
        return ParkedRow(
            line, str(parked["id"]), offset, parked["reason"], parked["at"], parked.get("file")
        )
    except (ValueError, KeyError, TypeError, AttributeError, OffsetError) as e:
        raise ConfigError(
            f"{where}: no parked row of this release ({type(e).__name__}: {e}); read what was "
            "parked with another program, and move the file away"
        ) from None


def remove_parked(path: Path, ids: Collection[str] | None) -> int:
    """Remove rows (None: all), and those of :func:`note_delivered`, from a file that no feed writes
    to, in one step; return how many of ``ids`` there were."""
    removed = 0
    if (ids is None or ids or _read_delivered(path)) and path.exists():
        beside = path.with_name(f"{path.name}.new")
        beside.unlink(missing_ok=True)
        with open(create_private(beside), "wb") as file:  # noqa: PTH123  # its descriptor
            for row in _iterate_rows(path):
                if ids is None or row.id in ids:
                    removed += 1
                else:
                    file.write(row.line)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    _delivered_beside(path).unlink(missing_ok=True)
    return removed


def note_delivered(path: Path, id: str) -> None:  # noqa: A002  # the event's
    """Note that a row is delivered, beside the file, which is too large to be written for each. It
    is of this file alone, by its inode: rows of the next one have these ids only if they come
    again."""
    beside = _delivered_beside(path)
    text = id if beside.exists() else f"{path.stat().st_ino}\n{id}"
    file = open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, f"{text}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def _read_delivered(path: Path) -> set[str]:
    try:
        inode, *ids = _delivered_beside(path).read_text(errors="replace").splitlines() or [""]
        return set(ids) if inode == str(path.stat().st_ino) else set()
    except FileNotFoundError:
        return set()


def _delivered_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.delivered")


class Replay:
    """Delivers parked rows to an open sink, in the order of the feed.

    ``at`` is where the feed continues, which stays. ``note`` gets the id of each row that is
    delivered.
    """

    def __init__(
        self,
        log: TableLog,
        sink: Sink,
        options: FeedOptions,
        at: Offset,
        note: Callable[[str], Awaitable[object]],
    ) -> None:
        self._log = log
        self._sink = sink
        self._options = options
        self._at = at
        self._note = note
        self._result = Replayed()

    async def run(self, rows: Sequence[ParkedRow]) -> Replayed:
        """Deliver the rows. Raises the sink's errors that are of no row."""
        for (version, changed), group in groupby(rows, key=_order):
            await self._replay_version(Offset(version, snapshot=not changed), list(group))
        return self._result

    async def _replay_version(self, start: Offset, rows: Sequence[ParkedRow]) -> None:
        missing: dict[str, ParkedRow] = {}
        for row in rows:
            if row.offset.position < self._at.position:
                missing[row.id] = row
            else:
                why = "the feed has not come to it, and delivers it itself"
                self._result.refused.append((row, why))
        if not missing:
            return
        async with aclosing(_find_rows(self._log, start, self._options, missing)) as found:
            async for event in found:
                (id,) = event.event_ids().to_pylist()  # noqa: A001  # the event's
                await self._deliver_row(event, missing.pop(id))
        gone = f"version {start.version} no longer has it under the feed's options"
        self._result.refused += [(row, gone) for row in missing.values()]

    async def _deliver_row(self, event: ChangeBatch, row: ParkedRow) -> None:
        try:
            if event.refused is not None:
                raise event.refused  # as the sink would
            await self._sink.write(structs.replace(event, next_offset=self._at))
        except TargetRefused:
            raise
        except (SinkRejected, TableError) as e:
            self._result.refused.append((row, str(e)))
        else:
            with anyio.CancelScope(shield=True):
                await self._note(row.id)
            self._result.delivered += 1


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
