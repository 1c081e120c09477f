"""The checkpoints of a log in a store: their state actions, and their list of files.

A list of files is returned only after all of it was read. If a part is damaged or missing, the
caller can therefore take another way to the same version, and no file is delivered twice. Until
then the list is in a temporary file, as columns, so that memory stays bounded and each file is
requested once.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from itertools import chain
from typing import IO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.delta.actions import Action, AddFile, Sidecar, choose_later
from tailer.delta.checkpoint import build_adds, read_add_batches, read_checkpoint_actions
from tailer.delta.commit import Lines, read_actions
from tailer.delta.paths import parse_location, parse_locations
from tailer.delta.segment import Checkpoint
from tailer.delta.snapshot import find_file_key
from tailer.errors import CorruptLog, TableError, spilling
from tailer.process.threads import list_in_threads, run_blocking, step_in_threads
from tailer.store import LOG_DIR, Store

T = TypeVar("T")

#: Lists up to this size are kept in memory, larger ones on the disk.
_MEMORY_BYTES_MAX = 4 * 1024 * 1024
#: So many files that are listed again are compared at once.
_COMPARED_AT_ONCE = 10_000


class CheckpointReader:
    """Reads the files of checkpoints. ``lines`` gives the lines of a JSON file of the log."""

    def __init__(self, store: Store, lines: Callable[[str], Awaitable[Lines]]) -> None:
        self._store = store
        self._lines = lines

    async def read_steering(self, name: str) -> list[Action]:
        """Return the actions of a checkpoint's top-level file, except those of data files."""
        if name.endswith(".json"):
            lines = await self._lines(name)
            return await run_blocking(
                lambda: [a for a in read_actions(name, lines()) if not isinstance(a, AddFile)]
            )
        with await self._open_file(name) as source:
            return await run_blocking(lambda: list(read_checkpoint_actions(name, source)))

    async def read_file_list(
        self, checkpoint: Checkpoint, fields: Sequence[str], counts: Mapping[str, int]
    ) -> ListedFiles:
        """Return the checkpoint's list of files, with these fields of each, read to its end.

        ``counts`` are the expected numbers of files, by the file that gives them. Raises
        :class:`CorruptLog` if any of its files is damaged or missing, if all of ``counts``
        contradict the list, or if it lists a file twice, and the two differ in these fields.
        """
        listed = ListedFiles()
        try:
            for file in checkpoint.files:
                found = await self.read_steering(file.name)
                sidecars = [a for a in found if isinstance(a, Sidecar)]
                _check_once(file.name, sidecars)
                await self._take_file(listed, file.name, None, fields, required=not sidecars)
                for one in sidecars:
                    name, size = _find_sidecar_name(one), one.size_in_bytes
                    await self._take_file(listed, name, size, fields, required=True)
            await run_blocking(listed.find_repeated, checkpoint.files[0].name)
            _check_count(checkpoint, listed, counts)
        except BaseException:
            listed.close()
            raise
        return listed

    async def _take_file(
        self,
        listed: ListedFiles,
        name: str,
        size: int | None,
        fields: Sequence[str],
        *,
        required: bool,
    ) -> None:
        if name.endswith(".json"):  # so are a shared table's sidecars
            await listed.take_lines(name, await self._lines(name))
            return
        with await self._open_file(name, size) as source:
            await listed.take_batches(read_add_batches(name, source, fields, required=required))

    async def _open_file(self, name: str, size: int | None = None) -> pa.NativeFile:
        """Open a file of a checkpoint, of this size where the checkpoint says it."""
        try:
            source = await self._store.open(f"{LOG_DIR}/{name}", size)
        except FileNotFoundError:
            raise CorruptLog("the checkpoint's file is missing", path=name) from None
        found = source.size()
        if size is None or found == size:
            return source
        source.close()
        raise CorruptLog(
            f"the file has {found} bytes, and the checkpoint says {size}: it was truncated "
            "or replaced",
            path=name,
        )


def _check_count(checkpoint: Checkpoint, listed: ListedFiles, counts: Mapping[str, int]) -> None:
    """Raise :class:`CorruptLog` unless one of ``counts`` fits, with what is repeated or without.

    One is enough: another number is a bad hint, and is ignored.
    """
    if counts and {listed.count, listed.different}.isdisjoint(counts.values()):
        name, counted = next(iter(counts.items()))
        raise CorruptLog(
            f"the checkpoint lists {listed.count} files, and {name} says {counted}",
            path=checkpoint.files[0].name,
            hint="no other file of this version shows which is right: restore the "
            f"checkpoint, or remove {' and '.join(counts)} if it is whole",
        )


def _check_once(name: str, sidecars: Sequence[Sidecar]) -> None:
    """Raise :class:`CorruptLog` for a sidecar that is named twice: so would be all of its files."""
    often = Counter(map(_find_sidecar_name, sidecars)).most_common(1)
    if often and often[0][1] > 1:
        raise CorruptLog(f"the checkpoint names {often[0][0]} {often[0][1]} times", path=name)


def _find_sidecar_name(action: Sidecar) -> str:
    """Return a sidecar's name in the log folder. The protocol has them all in ``_sidecars``."""
    return "_sidecars/" + parse_location(action.path).rsplit("/", 1)[-1]


class ListedFiles:
    """All adds of one checkpoint, ``count`` of them. The caller closes it.

    ``repeated`` are the hashes of the locations that it lists more than once; ``different`` is how
    many logical files there are.
    """

    def __init__(self) -> None:
        self.count = self.different = 0
        self.repeated: AbstractSet[int] = frozenset()
        self._hashes = array("q")
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # closed by close()
            max_size=_MEMORY_BYTES_MAX, prefix="tailer-checkpoint-"
        )
        self._streams: list[int] = []  # where in the spool each one begins
        self._lines: list[tuple[str, Lines]] = []

    def close(self) -> None:
        """Remove the list."""
        self._spool.close()

    async def take_batches(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Store the adds of one file."""
        writer: pa.RecordBatchStreamWriter | None = None

        def keep() -> bool:
            nonlocal writer
            batch = next(batches, None)
            if batch is None:
                return False
            with spilling(None):
                if writer is None:
                    self._streams.append(self._spool.tell())
                    writer = pa.ipc.new_stream(
                        self._spool, batch.schema, options=_make_write_options()
                    )
                writer.write_batch(batch)
            self.count += batch.num_rows
            self._note_paths(batch.column(0).field("path").to_pylist())
            return True

        while await run_blocking(keep):
            pass
        if writer is not None:
            with spilling(None):
                writer.close()

    async def take_lines(self, name: str, lines: Lines) -> None:
        """Store the adds of one JSON file."""

        def note() -> None:
            paths = [add.path for add in _read_adds(name, lines)]
            self.count += len(paths)
            self._note_paths(paths)

        await run_blocking(note)
        self._lines.append((name, lines))

    def _note_paths(self, paths: Sequence[str]) -> None:
        self._hashes.extend(map(hash, parse_locations(paths)))

    def find_repeated(self, name: str) -> None:
        """Find what is listed more than once. Raises :class:`CorruptLog`, naming the checkpoint, if
        the adds of one logical file differ."""
        self.different = self.count
        hashes = pa.Array.from_buffers(
            pa.int64(), len(self._hashes), [None, pa.py_buffer(self._hashes)]
        )
        if len(pc.unique(hashes)) < self.count:
            found = pc.value_counts(hashes).to_pylist()
            self.repeated = frozenset(one["values"] for one in found if one["counts"] > 1)
        self._hashes = array("q")
        left = set(self.repeated)
        while left:
            some = {left.pop() for _ in range(min(len(left), _COMPARED_AT_ONCE))}
            try:
                self._compare_repeated(some)
            except TableError as e:
                raise e.at(path=name) from None

    def _compare_repeated(self, some: AbstractSet[int]) -> None:
        first: dict[tuple[str, str], AddFile] = {}
        lines = (add for name, lines in self._lines for add in _read_adds(name, lines))
        for add in chain(
            lines, (add for batch in self._read_batches() for add in build_adds(batch))
        ):
            if hash(parse_location(add.path)) in some:
                key = find_file_key(add)
                self.different -= key in first
                first[key] = choose_later(first.get(key), add)

    async def build_items(
        self,
        of_batch: Callable[[pa.RecordBatch], Iterator[T]],
        of_lines: Callable[[str, Lines], Iterator[T]],
    ) -> AsyncGenerator[list[T], None]:
        """Yield the items made from the adds, in the checkpoint's order.

        The lists are made in worker threads.
        """
        for name, lines in self._lines:
            async for chunk in list_in_threads(of_lines(name, lines)):
                yield chunk
        async with aclosing(step_in_threads(self._read_batches())) as batches:
            async for batch in batches:  # it is bounded by bytes, and so is what is made of it
                async for chunk in list_in_threads(of_batch(batch)):
                    yield chunk

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        for start in self._streams:
            self._spool.seek(start)
            with pa.ipc.open_stream(self._spool) as stream:
                yield from stream


def _read_adds(name: str, lines: Lines) -> Iterator[AddFile]:
    return (action for action in read_actions(name, lines()) if isinstance(action, AddFile))


def _make_write_options() -> pa.ipc.IpcWriteOptions:
    # Paths are similar to each other, and compressing them is faster than writing them to the disk.
    return pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
