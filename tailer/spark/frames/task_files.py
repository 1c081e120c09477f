"""The files of tasks whose executors can't reach the table: Spark reads them, and each task gets
its own, whole, in a folder of its executor's.

Spark hands a file to Python in pieces, so that neither holds all of it in a batch; but Java holds
the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as s

from tailer.changes import ChangeFile
from tailer.errors import TableError
from tailer.feed.rows.fetch import find_stored_vectors, make_gone_error
from tailer.spark.frames.planned_files import PlannedFile, frame_of_contents
from tailer.spark.frames.spark_reader import READ_OPTIONS
from tailer.spark.hadoop_store import FoundFile, HadoopStore
from tailer.spark.mapped_tasks import Decoder, map_in_arrow
from tailer.spark.source.counts import files_of
from tailer.spark.source.driver import TaskPartition
from tailer.store import FileStatus, Found, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailer.spark.source.data_source import ChangeReader
    from tailer.spark.source.reader import ChangeStreamReader

#: What a row of Spark's can have, less what a row needs itself.
_FILE_BYTES_MAX = 2**31 - 64
_PIECE_BYTES = 8 * 1024 * 1024
_PIECES = (
    f"explode(transform(sequence(0, greatest(0, octet_length(content) - 1) div {_PIECE_BYTES}), "
    f"at -> substring(content, int(at * {_PIECE_BYTES} + 1), {_PIECE_BYTES}))) AS content"
)

_FACTS = s.StructType().add("task", s.IntegerType()).add("location", s.StringType())


class TaskFiles(Store):
    """Whole files of a table, by location, at paths of this machine."""

    def __init__(self, root: str, paths: Mapping[str, Path]) -> None:
        self._root = root
        self._paths = paths

    @property
    def root(self) -> str:
        """The table's address."""
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
    reader: ChangeReader | ChangeStreamReader,
    tasks: Sequence[TaskPartition],
) -> DataFrame:
    """Return the rows of these tasks: each is a partition of the frame, with its files.

    Raises :class:`FileGone` for a file that is not there, and :class:`TableError` for one that is
    too large.
    """
    decoder = Decoder(reader.options, reader.target, reader.arrow_schema)
    root, spill_folder = store.root, reader.options.diff.spill_folder

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        with tempfile.TemporaryDirectory(dir=spill_folder or local or None) as folder:
            paths: dict[str, Path] = {}
            for batch in batches:
                for number, location, content in zip(*batch.columns, strict=True):
                    task = tasks[number.as_py()]
                    path = paths.setdefault(location.as_py(), Path(folder, str(len(paths))))
                    with path.open("ab") as file:
                        file.write(content.as_buffer())
            if paths:
                yield from decoder.decode_task(task, TaskFiles(root, paths))

    frame = frame_of_contents(spark, _FACTS, READ_OPTIONS, _plan_files(store, tasks))
    return map_in_arrow(frame.selectExpr("task", "location", _PIECES), read, reader.schema)


def _plan_files(store: HadoopStore, tasks: Sequence[TaskPartition]) -> list[list[PlannedFile]]:
    """Return each task's files."""
    needed: list[dict[str, ChangeFile]] = [{} for _ in tasks]
    for locations, task in zip(needed, tasks, strict=True):
        for file in (file for order in task.orders for file in files_of(order)):
            for location in (file.location, *find_stored_vectors(store, file).values()):
                locations.setdefault(location, file)
    every = {location: file for locations in needed for location, file in locations.items()}
    planned: dict[str, FoundFile] = {}
    for (location, file), found in zip(every.items(), store.find_files([*every]), strict=True):
        if found is None:
            data = "cdc" if file.change_type is None else "data"
            kind = data if location == file.location else "deletion vector"
            raise make_gone_error(store, file, location, kind)
        if found.size > _FILE_BYTES_MAX:
            raise TableError(
                f"the file has {found.size} bytes, and Spark hands a file of at most 2 GiB to a "
                "task that must decode it",
                table=store.root,
                version=file.version,
                path=location,
                hint="rewrite the table's files smaller, or read it where the store is mounted",
            )
        planned[location] = found
    return [
        [
            PlannedFile(found.address, found.size, 0, (str(number), location))
            for location in locations
            for found in [planned[location]]
        ]
        for number, locations in enumerate(needed)
    ]
