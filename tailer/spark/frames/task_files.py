"""The files of tasks whose executors can't reach the table: Spark reads them, and each task gets
its own, whole, in a folder of its executor's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as s

from tailer.changes import ChangeFile
from tailer.feed.rows.fetch import find_stored_vectors, make_gone_error
from tailer.spark.frames.planned_files import PlannedFile, frame_of_pieces
from tailer.spark.frames.spark_reader import READ_OPTIONS
from tailer.spark.hadoop_store import FoundFile, HadoopStore
from tailer.spark.mapped_tasks import map_in_arrow
from tailer.spark.source.counts import files_of
from tailer.spark.source.driver import StreamQuery, TaskPartition
from tailer.store import FileStatus, Found, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FACTS = s.StructType().add("file", s.IntegerType())


class _CarriedFile(NamedTuple):
    task: int
    location: str
    size: int


class TaskFiles(Store):
    """Whole files of a table, by location, at paths of this machine."""

    def __init__(self, root: str, paths: Mapping[str, Path]) -> None:
        self._root = root
        self._paths = paths

    @property
    def root(self) -> str:
        return self._root

    def path(self, location: str) -> Path:
        if location not in self._paths:
            raise FileNotFoundError(location)
        return self._paths[location]

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:  # noqa: ARG002
        """Yield nothing: a task is given its files."""
        nothing: Sequence[FileStatus] = ()
        for status in nothing:
            yield status

    async def stat(self, location: str) -> FileStatus:
        return FileStatus(location.rpartition("/")[2], self.path(location).stat().st_size, 0, "")

    async def read(self, location: str, offset: int = 0, length: int | None = None) -> Found:
        status = await self.stat(location)
        rest = max(0, status.size - offset)  # a damaged log may ask for any length
        with self.path(location).open("rb") as file:
            file.seek(offset)
            return file.read(rest if length is None else min(length, rest)), status

    async def open(self, location: str, size: int | None) -> pa.NativeFile:  # noqa: ARG002  # it is here
        return pa.OSFile(str(self.path(location)), "rb")


def rows_of_carried_tasks(
    spark: SparkSession,
    store: HadoopStore,
    query: StreamQuery,
    tasks: Sequence[TaskPartition],
) -> DataFrame:
    """Return the rows of these tasks: each is a partition of the frame, with its files.

    Raises :class:`FileGone` for a file that is not there.
    """
    root, spill_folder = store.root, query.options.diff.spill_folder
    carried: list[_CarriedFile] = []
    planned: list[list[PlannedFile]] = []
    found = _find_files(store, tasks)
    for number, task in enumerate(tasks):
        planned.append([])
        for location in _list_needed_files(store, task):
            address, size = found[location]
            planned[-1].append(PlannedFile(address, size, 0, (str(len(carried)),)))
            carried.append(_CarriedFile(number, location, size))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        with tempfile.TemporaryDirectory(dir=spill_folder or local or None) as folder:
            paths: dict[int, Path] = {}
            for batch in batches:
                for number in pc.unique(batch.column(0)).to_pylist():
                    pieces = batch.filter(pc.equal(batch.column(0), number)).column(1)
                    path = paths[number] = Path(folder, str(number))
                    with path.open("ab") as file:
                        file.writelines(pieces.to_pylist())
            for number, path in paths.items():
                if path.stat().st_size > carried[number].size:  # the end of the last line
                    os.truncate(path, carried[number].size)
            if paths:
                files = {carried[number].location: path for number, path in paths.items()}
                task = tasks[carried[min(paths)].task]
                yield from query.decode_task(task, TaskFiles(root, files))

    frame = frame_of_pieces(spark, _FACTS, READ_OPTIONS, planned)
    return map_in_arrow(frame, read, query.schema)


def _list_needed_files(store: HadoopStore, task: TaskPartition) -> dict[str, ChangeFile]:
    """Return the locations of what a task reads, each with the file that needs it."""
    needed: dict[str, ChangeFile] = {}
    for file in (file for order in task.orders for file in files_of(order)):
        for location in (file.location, *find_stored_vectors(store, file).values()):
            needed.setdefault(location, file)
    return needed


def _find_files(store: HadoopStore, tasks: Sequence[TaskPartition]) -> dict[str, FoundFile]:
    """Return where the tasks' files are, by location."""
    needed: dict[str, ChangeFile] = {}
    for task in tasks:
        needed.update(_list_needed_files(store, task))
    found: dict[str, FoundFile] = {}
    for (location, file), one in zip(needed.items(), store.find_files([*needed]), strict=True):
        if one is None:
            data = "cdc" if file.change_type is None else "data"
            kind = data if location == file.location else "deletion vector"
            raise make_gone_error(store, file, location, kind)
        found[location] = one
    return found
