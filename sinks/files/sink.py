"""The files sink: every change event once, in files that are published whole.

Rows grow in local files. These are published together, with the offset after them, when one of
them is large or old enough, or when no batch waits (:mod:`sinks.files.manifest`). What is not
published yet when the process dies is read again from the manifest's offset.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pyarrow as pa

from sinks.files.folders import FORM, Folders
from sinks.files.manifest import Manifest, PublishedFile
from sinks.files.spool import ENDINGS, Format, GrowingFile
from sinks.shared.change_rows import EVENT_ID, change_rows, check_type
from sinks.shared.record_form import check_record_form
from tailer.changes import ChangeBatch, Notice, Offset, is_arrow_variant
from tailer.errors import TailerError, TargetRefused
from tailer.files.durable import make_folder
from tailer.settings import OWN_PREFIX_SETTING, REQUIRED, Setting
from tailer.sink import OwnNames, Sink, SinkTraits
from tailer.sink.own_names import add_prefix
from tailer.storage import open_target
from tailer.storage.targets import FolderTarget, translate_write_errors

_MIB = 1024**2
SETTINGS: dict[str, Setting] = {
    "path": Setting(
        "text", REQUIRED, "Local folder, `s3://bucket/prefix`, or one on Azure or Google.",
    ),
    "format": Setting(
        "text", "parquet", "Format of the files; `arrow` is Arrow's IPC file format.",
        choices=("parquet", "arrow", "jsonl"),
    ),
    "folders": Setting(
        "text", "", "Subfolders, for example `country={country}/day={_commit_date}`, made of "
        "columns, `_commit_date` and `_commit_hour` (UTC).",
        form=FORM, parse=Folders,
    ),
    "own_prefix": OWN_PREFIX_SETTING,
    "roll_bytes": Setting(
        "whole", 128 * _MIB, "Publish all open files when one reaches this size.",
        unit="bytes", least=1024, most=1024 * _MIB, advanced=True,
    ),
    "roll_s": Setting(
        "number", 0, "Publish files of this age; 0 means as soon as no batch is waiting.",
        unit="seconds", least=0,
    ),
    "store": Setting(
        "table", {}, "Options of the target's store, as in `[store.s3]`, `[store.az]` "
        "or `[store.gs]`.", advanced=True,
    ),
}  # fmt: skip
#: Memory for rows that are not encoded yet, and files that are open at once.
_WAITING_BYTES_MAX = 64 * _MIB
_OPEN_MAX = 256


class FilesSink(Sink):
    """Change events in files, exactly once."""

    settings = SETTINGS

    def __init__(
        self,
        target: FolderTarget,
        *,
        format: Format = "parquet",  # noqa: A002  # the option's name
        folders: Folders | None = None,
        id_column: str = EVENT_ID,
        roll_rows: int = 1_000_000,
        roll_bytes: int = 128 * _MIB,
        roll_s: float = 0,
    ) -> None:
        self.format = format
        self.id_column = id_column
        own = OwnNames((id_column,))
        self.traits = SinkTraits(spans=True, own=own, keeps_offset=True)
        self.roll_rows, self.roll_bytes = roll_rows, roll_bytes
        self.roll_s = roll_s
        self._target = target
        self._folders = folders or Folders("")
        self._manifest = Manifest(target)
        self._open = False
        self._turn = anyio.Lock()
        self._files: dict[str, GrowingFile] = {}
        self._offset: Offset | None = None
        self._schema: pa.Schema | None = None
        self._waiting = 0
        self._timer: asyncio.Task[None] | None = None
        self._failed: Exception | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> FilesSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        more = {name: value for name, value in options.items() if name not in ("path", "store")}
        more["id_column"] = add_prefix(EVENT_ID, more.pop("own_prefix"))
        return cls(open_target(options["path"], folder, options["store"]), **more)

    def check_columns(self, schema: pa.Schema) -> None:
        for field in schema if self.format == "parquet" else ():
            if not is_arrow_variant(field.type):  # which becomes text
                check_type(field.name, field.type, "Parquet")

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. The folder itself has the offset: it may move."""
        folders = self._folders.template
        form = {"type": "files", "format": self.format, "folders": folders, "ids": self.id_column}
        return check_record_form(form, saved, feed, at)

    async def open(self, feed: str) -> Offset | None:
        """Take the target over for this process."""
        await self._drop_unpublished()
        self._waiting, self._failed = 0, None
        await self._manifest.claim(feed)
        await anyio.to_thread.run_sync(self._remove_leftovers)
        self._offset = self._manifest.offset
        self._open = True
        return self._offset

    async def look(self, feed: str) -> Offset | None:
        manifest = Manifest(self._target)
        try:
            await manifest.load()
            manifest.check(feed)
        finally:
            await self._target.aclose()
        return manifest.offset

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:  # noqa: ARG002  # any columns fit, or are checked
        await self._target.rehearse()

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the offset. None removes the files, which belong to it."""
        manifest = Manifest(self._target)
        try:
            await manifest.claim(feed)
            if offset is None:
                await manifest.forget()
            else:
                await manifest.publish(offset, {}, [])
        finally:
            await self._target.aclose()

    def prepare(self, batch: ChangeBatch) -> None:  # noqa: ARG002  # that there is one is enough
        """Note that a batch waits."""
        self._waiting += 1

    async def write(self, batch: ChangeBatch) -> None:
        """Write a batch. Rows that are not published yet are not durable, and the
        offset from which they are read again is."""
        self._waiting = max(0, self._waiting - 1)
        async with self._turn:
            self._check_open()
            self._open = False  # until all of it is done
            if self._manifest.offset is None:
                await self._manifest.publish(batch.offset, {}, [])
            for piece in self._split_batch(batch):
                if self._schema not in (None, piece.rows.schema):
                    await self._publish_files()
                if piece.num_rows:
                    await anyio.to_thread.run_sync(self._add_rows, piece)
                await self._note_offset(piece.next_offset)
            self._open = True

    async def announce(self, notice: Notice) -> None:
        """Keep a notice's offset."""
        if notice.next_offset == notice.offset:
            return
        async with self._turn:
            self._check_open()
            if self._manifest.offset is not None:  # else the first batch stores one
                await self._note_offset(notice.next_offset)

    async def aclose(self) -> None:
        """Publish what is whole, and release everything."""
        async with self._turn:  # what is being published by now is published
            if self._open:
                with suppress(TailerError):  # it is read again
                    await self._publish_files()
            self._open = False
            await self._drop_unpublished()
        await self._target.aclose()

    def _check_open(self) -> None:
        if self._failed is not None:
            raise self._failed
        if not self._open:
            raise TargetRefused("the sink is not open")

    async def _drop_unpublished(self) -> None:
        """Drop what is not published."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        files, self._files = self._files, {}
        self._schema = None
        for file in files.values():
            await anyio.to_thread.run_sync(file.discard)

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left; those that still run have lost the target."""
        spool = self._target.spool()
        with translate_write_errors(str(spool)):
            for path in spool.iterdir() if spool.is_dir() else ():
                path.unlink(missing_ok=True)

    # Rolling

    def _split_batch(self, batch: ChangeBatch) -> Iterator[ChangeBatch]:
        """Yield a batch, cut at ``roll_rows`` rows."""
        first = 0
        while first < batch.num_rows:
            end = min(batch.num_rows, first + self.roll_rows - self._count_rows())
            piece = batch if (first, end) == (0, batch.num_rows) else batch.slice(first, end)
            yield piece
            first = end
        if not batch.num_rows:
            yield batch

    def _count_rows(self) -> int:
        return sum(file.num_rows for file in self._files.values())

    async def _note_offset(self, offset: Offset) -> None:
        """Note how far the rows go, and publish them if it is time."""
        self._offset = offset
        if self._is_full() or not (self._waiting or self.roll_s):
            await self._publish_files()
        elif self.roll_s and self._timer is None:
            self._timer = asyncio.create_task(self._publish_later(), name="files: roll_s")

    def _is_full(self) -> bool:
        sizes = [file.find_size() for file in self._files.values()]
        large = max(sizes, default=0) >= self.roll_bytes or len(sizes) >= _OPEN_MAX
        return large or self._count_rows() >= self.roll_rows

    async def _publish_later(self) -> None:
        await anyio.sleep(self.roll_s)
        async with self._turn:
            self._timer = None
            try:
                await self._publish_files()
            except Exception as e:  # noqa: BLE001  # the next call raises it
                self._failed, self._open = e, False

    # Files

    def _add_rows(self, batch: ChangeBatch) -> None:
        rows = change_rows(batch, self.id_column, variants=self.format == "jsonl")
        if self._schema is None:
            self.check_columns(rows.schema)
            self._schema = batch.rows.schema
        spool = self._target.spool()
        with translate_write_errors(str(spool)):
            for folder, part in self._folders.split_rows(rows):
                if folder not in self._files:
                    self._files[folder] = self._open_spool(spool, part.schema)
                self._files[folder].add(part)
            if sum(file.waiting_bytes for file in self._files.values()) > _WAITING_BYTES_MAX:
                for file in self._files.values():
                    file.encode_waiting()

    def _open_spool(self, spool: Path, schema: pa.Schema) -> GrowingFile:
        make_folder(spool)
        return GrowingFile(spool / uuid.uuid4().hex, self.format, schema)

    async def _publish_files(self) -> None:
        """Publish all open files, and the offset after them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        number = self._manifest.number + 1
        name = f"{number:010}{ENDINGS[self.format]}"
        named = {f"{folder}/{name}".lstrip("/"): file for folder, file in self._files.items()}
        if named or self._offset != self._manifest.offset:
            with translate_write_errors(self._target.root):
                sizes = await anyio.to_thread.run_sync(
                    lambda: {path: file.finish() for path, file in named.items()}
                )
            files = [
                PublishedFile(path, f.num_rows, sizes[path], f.first_version, f.last_version)
                for path, f in named.items()
            ]
            sources = {path: file.path for path, file in named.items()}
            await self._manifest.publish(self._offset, sources, files)
        self._files, self._schema = {}, None
