"""Changes as an ordinary frame: planned here, read by Spark itself wherever that gives the rows.

    from tailer.spark import changes

    changes(spark, "/data/orders", startingVersion=0).where("amount > 100").show()

The files that Spark's own Parquet reader reads right (:mod:`tailer.spark.native`) get no further
than Java; conditions and the choice of columns reach them. All others go through the decoder, in
the same frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tailer.errors import ConfigError
from tailer.spark.driver import TaskPartition, tasks_of
from tailer.spark.failing import one_sentence
from tailer.spark.native import NativeFiles
from tailer.spark.opening import open_table
from tailer.spark.python import use_this_python
from tailer.spark.source import ChangeReader, TailerSource
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["changes"]


@one_sentence
def changes(
    spark: SparkSession, table: str, *, native: Literal["auto", "never"] = "auto", **options: Any
) -> DataFrame:
    """Return a table's changes: the rows and columns of ``format("tailer")``, with its options.

    The log is read now, so the frame always has the same rows. ``native="never"`` leaves all
    reading to the decoder.
    """
    if native not in ("auto", "never"):
        raise ConfigError(f"the option native is {native!r}; it must be auto or never")
    use_this_python()
    source = TailerSource({"path": table, **{name: _text(v) for name, v in options.items()}})
    schema = source.schema()
    reader = source.reader(schema)
    assert isinstance(reader, ChangeReader)
    orders, removals = reader.planned()
    frames: list[DataFrame] = []
    if native == "auto" and (files := _native_files(spark, reader, schema)) is not None:
        orders = files.take(orders)
        frames += files.frames(spark)
    if orders or not frames:
        tasks = tasks_of(reader.options, orders, removals)
        frames.append(_decoded(spark, reader, tasks, schema))
    return reduce(lambda one, other: one.unionAll(other), frames)


def _text(value: Any) -> str:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value)
    return str(value)


def _native_files(
    spark: SparkSession, reader: ChangeReader, schema: StructType
) -> NativeFiles | None:
    """Return what takes the files for Spark; None if the query can have none of them.

    An S3 table's files are not at an address that this Spark is known to reach, and ids are made
    of places in the files.
    """
    options = reader.options
    store = open_table(options)
    by_name = spark.conf.get("spark.sql.caseSensitive") == "false"
    if not isinstance(store, LocalStore) or options.with_ids or not by_name:
        return None
    return NativeFiles(store, reader.target[0], schema, options.decode.writer_timezone)


class _PlannedReader(DataSourceReader):
    """Reads the tasks of a plan that was made before."""

    def __init__(self, reader: ChangeReader, tasks: Sequence[TaskPartition]) -> None:
        self._reader = reader
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; one without orders if there is nothing to read."""
        return self._tasks or [TaskPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows."""
        return self._reader.read(partition)


def _decoded(
    spark: SparkSession, reader: ChangeReader, tasks: Sequence[TaskPartition], columns: StructType
) -> DataFrame:
    """Return the rows of the tasks, by the decoder.

    A frame keeps the source that its name meant when it was made, so the name can be used again.
    """

    class PlannedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tailer_planned"

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
            return _PlannedReader(reader, tasks)

    spark.dataSource.register(PlannedSource)
    return spark.read.format("tailer_planned").load()
