"""JSON lines to a file or to standard output: one event a line, in order.

A batch is durable when ``write`` returns: flushed and, for a file, synced to the disk, under the
configured name (see :mod:`sinks.shared.line_file`). After a crash the file may end in the middle of
a line; the torn end belongs to a batch that was never acknowledged, so :meth:`JsonlSink.open` cuts
it off and the feed writes that batch again. Delivery is at least once; ids identify repeated
events.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import view_text
from sinks.formats.json_formats import all_format_settings
from sinks.formats.load import LARGE, TEXT_FORMATS, encoder_settings, format_setting, load_encoder
from sinks.formats.rows import own_fields, row_objects
from sinks.shared.line_file import LineFile, try_line_file
from sinks.shared.merge import unused_name
from sinks.shared.record_form import build_record_form, check_record_form
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TargetRefused, TransientError
from tailer.process.threads import run_blocking
from tailer.settings import REQUIRED, Setting
from tailer.sink import OWN_PREFIX, OwnNames, Sink, SinkTraits
from tailer.sink.encoder import Encoder
from tailer.sink.own_names import add_prefix

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The file, or `-` for standard output.", form="a file or -"),
    "format": format_setting(
        "Format of the lines; the sink also takes the format's options.", TEXT_FORMATS
    ),
    "ids": Setting(
        "text", "event", "Format `rows`: add `_event_id` (`event`), also `_origin` and `_row_id` "
        "(`all`), or nothing (`none`).", choices=("event", "all", "none"),
    ),
    "notices": Setting("flag", True, "Write notices, as lines with the field `_notice`.",
        advanced=True),
    "private": Setting("flag", False, "Create the file with mode 0600, readable only by its "
        "owner.", advanced=True),
}  # fmt: skip
#: Encoder options that apply only to a message broker.
_NOT_HERE = ("ids", "name", "schema", "tombstones", "topic", *LARGE)


def format_batch(
    batch: ChangeBatch,
    *,
    ids: bool,
    origin: bool = False,
    row_ids: bool = False,
    own_prefix: str = OWN_PREFIX,
) -> pa.Buffer:
    """Return a batch as JSON lines; the fields ``_event_id``, ``_origin`` and ``_row_id`` come
    last, with ``own_prefix`` in place of the underscore.

    An unknown row id is null.
    """
    if not batch.num_rows:
        return pa.py_buffer(b"")
    wanted = {"ids": ids, "origin": origin, "row_ids": row_ids}
    return view_text(row_objects(batch, **wanted, prefix=own_prefix, end="}\n"))


def encode_lines(batch: ChangeBatch, encoder: Encoder) -> pa.Buffer:
    """Return the values of a batch's records as lines."""
    values = encoder.encode(batch).whole_values().drop_null()
    if not len(values):
        return pa.py_buffer(b"")
    newline = pa.scalar(b"\n")
    return view_text(pc.binary_join_element_wise(values, newline, pa.scalar(b"")))


class JsonlSink(Sink):
    """Events as JSON lines in a file, or on standard output.

    ``path`` None is standard output.
    Attributes: ``private``, the file is created for its owner alone; ``sync``, each batch is synced
    to the disk.
    ``format`` and its ``options`` are of :func:`sinks.formats.load.load_encoder`; ``ids``,
    ``origin`` and ``row_ids`` are for the format ``rows``.
    """

    settings = SETTINGS

    def __init__(
        self,
        path: Path | None,
        *,
        ids: bool = True,
        notices: bool = True,
        origin: bool = False,
        row_ids: bool = False,
        format: str = "rows",  # noqa: A002  # the option's name
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.ids = ids
        self.notices = notices
        self.sync, self.private = True, False
        self.origin = origin
        self.with_row_ids = row_ids
        self.format = format
        self.options = dict(options or {})
        self.own_prefix: str = self.options.get("own_prefix", OWN_PREFIX)
        self._named = "-" if path is None else str(path)  # as the options have it
        self._encoder = load_encoder(format, self.options)
        self._target: LineFile | _StandardOutput | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> JsonlSink:
        """Create the sink. Options: :data:`SETTINGS` and those of the format."""
        named, every = options["path"], options["ids"] == "all"
        sink = cls(
            None if named == "-" else folder / named,
            ids=options["ids"] != "none",
            notices=options["notices"],
            origin=every,
            row_ids=every,
            format=options["format"],
            options=cls._format_options(options),
        )
        sink.private, sink._named = options["private"], named
        return sink

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        found = encoder_settings(format).items()
        return {name: setting for name, setting in found if name not in _NOT_HERE}

    @classmethod
    def listed_settings(cls) -> Mapping[str, Mapping[str, Setting]]:
        return {"": cls.settings, "format": all_format_settings(cls.format_settings)}

    @property
    def traits(self) -> SinkTraits:  # type: ignore[override]
        return SinkTraits(
            paired=self._encoder.paired,
            key_columns=self._encoder.key_columns,
            row_ids=self.with_row_ids,
            exclusive=self._find_file_id(),
            spans=True,
            own=self._find_own_names(),
        )

    def _find_own_names(self) -> OwnNames:
        """Return the names of the fields that are not the table's, in its rows' objects."""
        if self.format != "rows":
            return self._encoder.own
        fields = own_fields(ids=self.ids, origin=self.origin, row_ids=self.with_row_ids)
        # A reader knows notices by their field.
        return OwnNames.of(*fields, *["_notice"] * self.notices, prefix=self.own_prefix)

    def _find_file_id(self) -> str | None:
        """Return an id of the file that is the same for all its names."""
        if self.path is None:
            return None
        with suppress(OSError):
            found = self.path.stat()
            if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
                return f"the file of several names with inode {found.st_ino} on {found.st_dev:#x}"
        return os.path.realpath(self.path)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        added = {"ids": self.ids, "origin": self.origin, "row_ids": self.with_row_ids}
        more = self.options if self.format != "rows" else {**self.options, **added}
        form = build_record_form(more, type="jsonl", path=self._named, format=self.format)
        return check_record_form(form, saved, feed, at)

    async def look(self, feed: str) -> Offset | None:
        """Return None: a file has no offset."""

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:  # noqa: ARG002  # a file's lines have any columns
        if self.path is not None:
            await run_blocking(try_line_file, self.path)

    async def open(self, feed: str) -> Offset | None:
        self._encoder = load_encoder(self.format, {**self.options, "name": feed})
        if self.path is None:
            self._target = _StandardOutput()
        else:
            file = LineFile(self.path, feed, sync=self.sync, private=self.private)
            await run_blocking(file.open)
            self._target = file
        return None

    async def reopen(self) -> None:
        if isinstance(self._target, LineFile):
            await run_blocking(self._target.reopen)

    async def write(self, batch: ChangeBatch) -> None:
        if batch.num_rows:
            await run_blocking(lambda: self._append_lines(self._format_lines(batch)))

    async def write_refused(self, row: ChangeBatch, refusal: Mapping[str, Any]) -> None:
        """Write the row with ``refusal`` as its last field: ``_parked``, or another name if the
        table has that. Only the format ``rows`` has a place for it."""
        if self.format != "rows":
            await self.write(row)
            return
        name = unused_name(add_prefix("_parked", self.own_prefix), row.rows.schema.names)
        more = json.dumps({name: refusal}, ensure_ascii=False, separators=(",", ":"))
        line = bytes(self._format_lines(row)).removesuffix(b"}\n") + f",{more[1:]}\n".encode()
        await run_blocking(self._append_lines, line)

    async def announce(self, notice: Notice) -> None:
        """Write a notice as one line, which has the field ``_notice``."""
        if self.notices:
            document = {
                add_prefix(name, self.own_prefix) if name.startswith(OWN_PREFIX) else name: value
                for name, value in notice.to_json().items()
            }
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            await run_blocking(self._append_lines, text.encode() + b"\n")

    def _append_lines(self, lines: pa.Buffer | bytes) -> None:
        if self._target is None:
            raise TargetRefused("the sink is not open")
        self._target.append(memoryview(lines))

    def _format_lines(self, batch: ChangeBatch) -> pa.Buffer:
        if self.format == "rows":
            return format_batch(
                batch,
                ids=self.ids,
                origin=self.origin,
                row_ids=self.with_row_ids,
                own_prefix=self.own_prefix,
            )
        return encode_lines(batch, self._encoder)

    async def aclose(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            await run_blocking(target.close)


#: In UTF-8: control characters beyond ASCII, which some terminals obey (U+009B begins a command);
#: ends of lines and paragraphs; marks that change the direction of writing.
_NOT_SHOWN = re.compile(
    rb"\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c"
)


def _escape_hidden(lines: memoryview) -> bytes | memoryview:
    """Return lines of JSON with what a terminal obeys, or hides, as escapes of JSON: they have the
    same value. JSON itself escapes those of ASCII."""
    data = bytes(lines)
    if data.isascii():
        return lines
    return _NOT_SHOWN.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), data)


class _StandardOutput:
    """Lines for the reader of this process's output."""

    def append(self, lines: memoryview) -> None:
        file = sys.stdout.buffer
        try:
            left = memoryview(_escape_hidden(lines))
            while left:
                left = left[file.write(left) :]
            file.flush()
        except BrokenPipeError as e:
            raise TargetRefused("the reader of standard output has gone") from e
        except OSError as e:
            raise TransientError(f"standard output: {e.strerror}") from e

    def close(self) -> None:
        pass
