"""The checkpoints of a log as a store has them: what steers, and the list of files.

A list of files is given out only when all of it was read: where a part of it is damaged or gone,
another way to the same version is taken, and nobody has had a file twice by then. Until that is
known the files lie in a temporary file, as columns, so that memory stays bounded and the store is
asked once.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, TypeVar

import anyio.to_thread
import pyarrow as pa

from tailer.delta.actions import Action, AddFile, Sidecar
from tailer.delta.checkpoint import add_batches, checkpoint_actions
from tailer.delta.commit import Lines, read_actions
from tailer.delta.paths import location
from tailer.delta.segment import Checkpoint
from tailer.errors import CorruptLog, spilling
from tailer.store import LOG_DIR, Store

__all__ = ["CheckpointReader", "ListedFiles", "chunks"]

T = TypeVar("T")

#: Lists up to this size are kept in memory, others on the disk.
_MEMORY_BYTES_MAX = 16 * 1024 * 1024
_CHUNK = 4096


async def chunks(items: Iterator[T], size: int = _CHUNK) -> AsyncGenerator[list[T], None]:
    """The items in lists, each made in a worker thread."""
    while chunk := await anyio.to_thread.run_sync(lambda: list(islice(items, size))):
        yield chunk


class CheckpointReader:
    """Reads the files of checkpoints. ``lines`` gives the lines of a JSON file of the log."""

    def __init__(self, store: Store, lines: Callable[[str], Awaitable[Lines]]) -> None:
        self._store = store
        self._lines = lines

    async def steering(self, name: str) -> list[Action]:
        """The actions of a checkpoint's top-level file but for its files."""
        if name.endswith(".json"):
            lines = await self._lines(name)
            return await anyio.to_thread.run_sync(
                lambda: [a for a in read_actions(name, lines()) if not isinstance(a, AddFile)]
            )
        with await self._open(name) as source:
            return await anyio.to_thread.run_sync(lambda: list(checkpoint_actions(name, source)))

    async def listed_files(
        self, checkpoint: Checkpoint, fields: Sequence[str], counts: Mapping[str, int]
    ) -> ListedFiles:
        """The checkpoint's list of files, with these fields of each, read to its end.

        ``counts`` is how many there should be, by who says so. Raises :class:`CorruptLog` where
        any of its files is damaged or missing, or where there is not one who says as many.
        """
        listed = ListedFiles()
        try:
            for file in checkpoint.files:
                found = await self.steering(file.name)
                sidecars = [_sidecar_name(a) for a in found if isinstance(a, Sidecar)]
                await self._take(listed, file.name, fields, required=not sidecars)
                for name in sidecars:
                    await self._take(listed, name, fields, required=True)
            _check_count(checkpoint, listed.count, counts)
        except BaseException:
            listed.close()
            raise
        return listed

    async def _take(
        self, listed: ListedFiles, name: str, fields: Sequence[str], *, required: bool
    ) -> None:
        if name.endswith(".json"):  # a shared table's sidecars are, too
            await listed.take_lines(name, await self._lines(name))
            return
        with await self._open(name) as source:
            await listed.take(add_batches(name, source, fields, required=required))

    async def _open(self, name: str) -> pa.NativeFile:
        try:
            return await self._store.open(f"{LOG_DIR}/{name}", None)
        except FileNotFoundError:
            raise CorruptLog("the checkpoint's file is missing", path=name) from None


def _check_count(checkpoint: Checkpoint, count: int, counts: Mapping[str, int]) -> None:
    """One that fits will do: what contradicts it is a bad hint, and is ignored."""
    if counts and count not in counts.values():
        name, counted = next(iter(counts.items()))
        raise CorruptLog(
            f"the checkpoint lists {count} files, and {name} says {counted}",
            path=checkpoint.files[0].name,
            hint="no other file of this version shows which is right: restore the "
            f"checkpoint, or remove {' and '.join(counts)} if it is whole",
        )


def _sidecar_name(action: Sidecar) -> str:
    """A sidecar's name in the log folder. The protocol has them all in ``_sidecars``."""
    return "_sidecars/" + location(action.path).rsplit("/", 1)[-1]


class ListedFiles:
    """All adds of one checkpoint, ``count`` of them. Whoever has it closes it."""

    def __init__(self) -> None:
        self.count = 0
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # closed by close()
            max_size=_MEMORY_BYTES_MAX, prefix="tailer-checkpoint-"
        )
        self._streams: list[int] = []  # where in the spool each one begins
        self._lines: list[tuple[str, Lines]] = []

    def close(self) -> None:
        """Forget them."""
        self._spool.close()

    async def take(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Keep the adds of one file."""
        writer: pa.RecordBatchStreamWriter | None = None

        def keep() -> bool:
            nonlocal writer
            batch = next(batches, None)
            if batch is None:
                return False
            with spilling(None):
                if writer is None:
                    self._streams.append(self._spool.tell())
                    writer = pa.ipc.new_stream(self._spool, batch.schema, options=_options())
                writer.write_batch(batch)
            self.count += batch.num_rows
            return True

        while await anyio.to_thread.run_sync(keep):
            pass
        if writer is not None:
            with spilling(None):
                writer.close()

    async def take_lines(self, name: str, lines: Lines) -> None:
        """Keep the adds of one JSON file."""

        def count() -> int:
            return sum(isinstance(action, AddFile) for action in read_actions(name, lines()))

        self.count += await anyio.to_thread.run_sync(count)
        self._lines.append((name, lines))

    async def items(
        self,
        of_batch: Callable[[pa.RecordBatch], Iterator[T]],
        of_lines: Callable[[str, Lines], Iterator[T]],
    ) -> AsyncGenerator[list[T], None]:
        """What is made of the adds, in the checkpoint's order, in lists made in worker threads."""
        for name, lines in self._lines:
            async for chunk in chunks(of_lines(name, lines)):
                yield chunk
        made = (item for batch in self._batches() for item in of_batch(batch))
        async for chunk in chunks(made):
            yield chunk

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for start in self._streams:
            self._spool.seek(start)
            with pa.ipc.open_stream(self._spool) as stream:
                yield from stream


def _options() -> pa.ipc.IpcWriteOptions:
    # Paths are much alike, and the disk is slower than to pack them.
    return pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
