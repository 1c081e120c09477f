"""JSON lines to a file or to standard output: one event a line, in order.

A batch is durable when ``write`` returns: flushed and, for a file, synced to the disk. After a
crash the file may end in the middle of a line; the torn end belongs to a batch that was never
acknowledged, so :meth:`JsonlSink.open` cuts it off and the feed writes that batch again. At least
once, with ids by which what was written twice can be told.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
import pyarrow as pa

from sinks.encode.json import json_lines
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import SinkRejected, TableError, TransientError
from tailer.sink import take_options

__all__ = ["JsonlSink", "batch_lines"]

_TAIL_BYTES = 64 * 1024


def batch_lines(
    batch: ChangeBatch, *, ids: bool, origin: bool = False, row_ids: bool = False
) -> pa.Buffer:
    """A batch as JSON lines; the fields ``_event_id``, ``_origin`` and ``_row_id`` come last.

    A row id that is not known is null.
    """
    names, columns = list(batch.rows.schema.names), list(batch.rows.columns)
    if ids:
        names.append("_event_id")
        columns.append(batch.event_ids())
    if origin and batch.file is not None:
        names.append("_origin")
        columns.append(pa.repeat(pa.scalar(batch.file.origin), batch.num_rows))
    if row_ids:
        names.append("_row_id")
        unknown = pa.nulls(batch.num_rows, pa.int64())
        columns.append(unknown if batch.row_ids is None else batch.row_ids)
    try:
        return json_lines(names, columns)
    except TableError as e:  # a variant whose bytes are none
        raise e.at(version=batch.version, path=batch.file.path if batch.file else None) from None


class JsonlSink:
    """Writes to ``path``, or to standard output where that is "-"."""

    def __init__(
        self,
        path: Path | None,
        *,
        ids: bool = True,
        sync: bool = True,
        notices: bool = True,
        origin: bool = False,
        row_ids: bool = False,
    ) -> None:
        self.path = path
        self.ids = ids
        self.notices = notices
        self.sync = sync
        self.origin = origin
        self.row_ids = row_ids
        self._file: BinaryIO | FileIO | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> JsonlSink:
        """Options: ``path`` (required); ``ids``, ``sync`` and ``notices`` (default true);
        ``origin`` and ``row_ids`` (default false)."""
        allowed: dict[str, tuple[type, Any]] = {"path": (str, ...)}
        allowed |= dict.fromkeys(("ids", "sync", "notices"), (bool, True))
        allowed |= dict.fromkeys(("origin", "row_ids"), (bool, False))
        taken = take_options("jsonl", options, allowed)
        named = taken.pop("path")
        return cls(None if named == "-" else folder / named, **taken)

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002  # the file is this feed's alone
        """See :class:`tailer.sink.Sink`."""
        try:
            self._file = await anyio.to_thread.run_sync(self._open)
        except OSError as e:
            raise SinkRejected(f"{self.path} can't be opened ({e.strerror}); check it") from e
        return None

    def _open(self) -> BinaryIO | FileIO:
        if self.path is None:
            return sys.stdout.buffer
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what a full disk did not take must not be tried again when it is closed.
        file = self.path.open("ab+", buffering=0)
        _cut_torn_line(file)
        return file

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        if batch.num_rows:
            await anyio.to_thread.run_sync(
                lambda: self._write(
                    batch_lines(batch, ids=self.ids, origin=self.origin, row_ids=self.row_ids)
                )
            )

    async def announce(self, notice: Notice) -> None:
        """See :class:`tailer.sink.Announces`: one line, known by its field ``_notice``."""
        if self.notices:
            text = json.dumps(notice.to_json(), ensure_ascii=False, separators=(",", ":"))
            await anyio.to_thread.run_sync(self._write, text.encode() + b"\n")

    def _write(self, lines: pa.Buffer | bytes) -> None:
        file = self._file
        if file is None:
            raise SinkRejected("the sink is not open")
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            file.flush()
            if self.sync and self.path is not None:
                os.fdatasync(file.fileno())
        except BrokenPipeError as e:
            raise SinkRejected("the reader of standard output has gone") from e
        except OSError as e:
            raise TransientError(f"{self.path or 'standard output'}: {e.strerror}") from e

    async def aclose(self) -> None:
        """See :class:`tailer.sink.Sink`."""
        if self._file is not None and self.path is not None:
            self._file.close()
        self._file = None


def _cut_torn_line(file: FileIO) -> None:
    """Cut the file after its last newline."""
    end = file.seek(0, os.SEEK_END)
    at = end
    while at > 0:
        start = max(0, at - _TAIL_BYTES)
        file.seek(start)
        newline = file.read(at - start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    if at < end:
        file.truncate(at)
    file.seek(0, os.SEEK_END)
