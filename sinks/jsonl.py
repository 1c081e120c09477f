"""JSON lines to a file or to standard output: one event a line, in order.

A batch is durable when ``write`` returns: flushed and, for a file, synced to the disk. After a
crash the file may end in the middle of a line; the torn end belongs to a batch that was never
acknowledged, so :meth:`JsonlSink.open` cuts it off and the feed writes that batch again. At least
once, with ids by which what was written twice can be told.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc

from sinks.encode.json import text_of
from sinks.encode.records import Encoder, encoder_options, load_encoder
from sinks.encode.rows import row_objects
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import ConfigError, SinkRejected, TransientError, may_heal, out_of_reach
from tailer.sink import take_options

__all__ = ["FORMATS", "JsonlSink", "batch_lines", "encoded_lines"]

_TAIL_BYTES = 64 * 1024

#: The formats whose values are JSON, one line each.
FORMATS = ("rows", "debezium", "cloudevents")
#: The options of encoders that only a message broker has a place for.
_NOT_HERE = ("ids", "mode", "name", "schema", "tombstones", "topic")


def batch_lines(
    batch: ChangeBatch, *, ids: bool, origin: bool = False, row_ids: bool = False
) -> pa.Buffer:
    """A batch as JSON lines; the fields ``_event_id``, ``_origin`` and ``_row_id`` come last.

    A row id that is not known is null.
    """
    if not batch.num_rows:
        return pa.py_buffer(b"")
    return text_of(row_objects(batch, ids=ids, origin=origin, row_ids=row_ids, end="}\n"))


def encoded_lines(batch: ChangeBatch, encoder: Encoder) -> pa.Buffer:
    """The values of a batch's records as lines."""
    values = encoder.encode(batch).values.drop_null()
    if not len(values):
        return pa.py_buffer(b"")
    newline = pa.scalar(b"\n")
    return text_of(pc.binary_join_element_wise(values, newline, pa.scalar(b"")))


class JsonlSink:
    """Writes to ``path``, or to standard output where that is "-".

    ``format`` and its ``options`` are of :func:`sinks.encode.records.load_encoder`; ``ids``,
    ``origin`` and ``row_ids`` are for the format ``rows``.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        ids: bool = True,
        sync: bool = True,
        notices: bool = True,
        origin: bool = False,
        row_ids: bool = False,
        format: str = "rows",  # noqa: A002  # the option's name
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.ids = ids
        self.notices = notices
        self.sync = sync
        self.origin = origin
        self.row_ids = row_ids
        self.format = format
        self.options = dict(options or {})
        encoder = load_encoder(format, self.options)
        #: What the feed pairs updates by: see :class:`sinks.encode.records.Encoder`.
        self.paired, self.key_columns = encoder.paired, encoder.key_columns
        self._encoder = encoder
        self._file: BinaryIO | FileIO | None = None
        self._on_disk = False  # and neither standard output nor a device

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> JsonlSink:
        """Options: ``path`` (required); ``ids``, ``sync`` and ``notices`` (default true);
        ``origin`` and ``row_ids`` (default false); ``format`` (rows, debezium or cloudevents;
        default rows) and those of the format."""
        own: dict[str, tuple[type, Any]] = {"path": (str, ...), "format": (str, "rows")}
        own |= dict.fromkeys(("ids", "sync", "notices"), (bool, True))
        own |= dict.fromkeys(("origin", "row_ids"), (bool, False))
        wanted = options.get("format", "rows")
        if wanted not in FORMATS:
            raise ConfigError(
                f"option 'format' of sink 'jsonl' is {wanted!r}; it is one of: {', '.join(FORMATS)}"
            )
        of_format = {k: v for k, v in encoder_options(wanted).items() if k not in _NOT_HERE}
        taken = take_options("jsonl", options, {**own, **of_format})
        chosen = {k: taken.pop(k) for k in of_format}
        named = taken.pop("path")
        return cls(None if named == "-" else folder / named, **taken, options=chosen)

    @property
    def exclusive(self) -> str | None:
        """See :class:`tailer.sink.Sink`: the file."""
        return None if self.path is None else str(self.path.absolute())

    async def open(self, feed: str) -> Offset | None:
        """See :class:`tailer.sink.Sink`."""
        self._encoder = load_encoder(self.format, {**self.options, "name": feed})
        try:
            self._file = await anyio.to_thread.run_sync(self._open)
        except OSError as e:
            if may_heal(e):
                raise out_of_reach(f"{self.path} can't be opened", e) from e
            raise SinkRejected(f"{self.path} can't be opened ({e.strerror}); check it") from e
        return None

    def _open(self) -> BinaryIO | FileIO:
        if self.path is None:
            return sys.stdout.buffer
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what a full disk did not take must not be tried again when it is closed.
        file = self.path.open("ab+", buffering=0)
        try:
            mode = os.fstat(file.fileno()).st_mode
            self._on_disk = stat.S_ISREG(mode)
            if self._on_disk:
                self._lock(file)
                _cut_torn_line(file)
            elif not stat.S_ISCHR(mode):
                raise SinkRejected(
                    f"{self.path} is a pipe, which keeps nothing; name a file, or - for standard "
                    "output"
                )
        except BaseException:
            file.close()
            raise
        return file

    def _lock(self, file: FileIO) -> None:
        """Keep other processes from the file: what one has written half another would cut."""
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise TransientError(
                f"{self.path} is being written by another process; each feed needs its own file"
            ) from None

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        if batch.num_rows:
            await anyio.to_thread.run_sync(lambda: self._write(self._lines(batch)))

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
            if self.sync and self._on_disk:
                os.fdatasync(file.fileno())
        except BrokenPipeError as e:
            raise SinkRejected("the reader of standard output has gone") from e
        except OSError as e:
            raise TransientError(f"{self.path or 'standard output'}: {e.strerror}") from e

    def _lines(self, batch: ChangeBatch) -> pa.Buffer:
        if self.format == "rows":
            return batch_lines(batch, ids=self.ids, origin=self.origin, row_ids=self.row_ids)
        return encoded_lines(batch, self._encoder)

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
