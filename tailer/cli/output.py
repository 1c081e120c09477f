"""Bounded reads into one file: Arrow IPC, Parquet or JSON lines.

The file appears under its name only when it is complete; a failed read leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

from tailer.api.batches import Ids
from tailer.changes import ChangeBatch
from tailer.delta.arrow_types import inner_fields
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.process.threads import run_blocking
from tailer.sink import Sink, SinkTraits, make_sink


class _ColumnarOutput(Sink):
    """One schema for all rows; ids, if requested, are columns at the end."""

    def __init__(self, path: Path, kind: str, schema: pa.Schema, ids: Ids) -> None:
        self.traits = SinkTraits(spans=True, own=ids.own)
        self._ids = ids
        self._writer: Any
        if kind == "arrow":
            self._writer = pa.ipc.new_file(str(path), schema)
        else:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(str(path), schema)

    async def open(self, feed: str) -> None:
        pass

    async def write(self, batch: ChangeBatch) -> None:
        if batch.num_rows:
            await run_blocking(self._write_batch, batch)

    def _write_batch(self, batch: ChangeBatch) -> None:
        self._writer.write_batch(self._ids.build_rows(batch))

    async def aclose(self) -> None:
        await run_blocking(self._writer.close)


@asynccontextmanager
async def open_output(output: str, kind: str, schema: pa.Schema, ids: Ids) -> AsyncIterator[Sink]:
    """Open the output of that name; it is complete when the block ends without an error.

    ``kind``: see :func:`tailer.cli.read.output_kind`. ``schema``: of the rows with their
    ids, for the columnar kinds. Raises :class:`ConfigError` if the file can't be created,
    :class:`SinkRejected` if it can't be written to its end.
    """
    if output == "-":
        sink = make_sink("jsonl", ids.of_jsonl("-"), Path())
        await sink.open("read")
        yield sink
        await sink.aclose()
        return
    path = Path(output)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.touch()
            temporary.unlink()  # ext4 would write a file that was emptied to the disk at its end
            opened = await _open_sink(temporary, kind, schema, ids)
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            hint = "" if path.parent.is_dir() else f"; make the folder {path.parent}"
            raise ConfigError(f"{output} can't be written ({e.strerror or e}){hint}") from e
        try:
            yield opened
        finally:
            with anyio.CancelScope(shield=True):
                await opened.aclose()
        temporary.replace(path)
    except (OSError, TransientError) as e:
        reason = (isinstance(e, OSError) and e.strerror) or str(e)
        if isinstance(e, TransientError) and str(temporary) not in reason:
            raise  # not an error of the output
        text = reason.replace(f"{temporary}: ", "")
        raise SinkRejected(f"{output} can't be written ({text}); nothing is left of it") from e
    finally:
        with suppress(OSError):
            temporary.unlink()


async def until_reader_gone(work: Callable[[], Awaitable[None]]) -> None:
    """Do some work; raise :class:`BrokenPipeError` when the reader of standard output has gone.

    A table in which nothing happens gives nothing to write, and so nothing that would fail. The
    work is cancelled.
    """
    try:
        output = sys.stdout.fileno()
        piped = stat.S_ISFIFO(os.fstat(output).st_mode)
    except OSError:  # it is closed, or no file
        piped = False
    if not piped:
        await work()
        return
    loop = asyncio.get_running_loop()
    gone = False
    with anyio.CancelScope() as scope:

        def end() -> None:
            nonlocal gone
            gone = True
            loop.remove_reader(output)  # it would be called again and again
            scope.cancel()

        # A pipe that is written to becomes readable only by the error that its reader has gone.
        loop.add_reader(output, end)
        try:
            await work()
        finally:
            loop.remove_reader(output)
    if gone:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _check_parquet(schema: pa.Schema) -> None:
    """Raise :class:`ConfigError` for a column of a type that Parquet does not have."""
    for field in schema:
        if _holds_empty_struct(field.type):
            raise ConfigError(
                f"the column {field.name!r} has a struct without fields, which Parquet can't hold; "
                "use --output .arrow or .jsonl, or select other columns with --select"
            )


def _holds_empty_struct(data_type: pa.DataType) -> bool:
    inside = inner_fields(data_type)
    empty = pa.types.is_struct(data_type) and not inside
    return empty or any(_holds_empty_struct(f.type) for f in inside)


async def _open_sink(path: Path, kind: str, schema: pa.Schema, ids: Ids) -> Sink:
    if kind == "parquet":
        _check_parquet(schema)
    if kind != "jsonl":
        return _ColumnarOutput(path, kind, schema, ids)
    sink = make_sink("jsonl", ids.of_jsonl(str(path)), Path())
    # Nothing continues from a part of the file.
    sink.sync = False  # type: ignore[attr-defined]
    await sink.open("read")
    return sink
