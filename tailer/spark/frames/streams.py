"""Changes as a stream of work orders: planned in the driver, ahead of Spark.

    from tailer.spark import foreach_batch

    foreach_batch(spark, "/data/orders", "/data/checkpoints/orders", function, startingVersion=0)

Spark's own file source reads the orders (:mod:`tailer.spark.frames.order_files`), so its checkpoint
says which changes were delivered. Each batch is a frame that Spark reads itself where it can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from tailer.errors import ConfigError
from tailer.spark.error_sentence import one_sentence, said, said_first
from tailer.spark.frames.changes import SparkReader, check_spark_reader, frame_of, source_of
from tailer.spark.frames.order_files import OrderHead
from tailer.spark.frames.plan_ahead import PlanAhead, plan_ahead
from tailer.spark.frames.planned_files import java_session
from tailer.spark.mapped_tasks import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tailer.spark.source.limited_stream import LimitedStreamReader

#: What may precede the path of a local file, and what precedes all else, such as ``dbfs:/``.
_FILE = re.compile(r"^file:(//)?(?=/)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: Paths that Spark would take for a pattern.
_PATTERN = re.compile(r"[*?\[\]{}\\]")


@one_sentence
def foreach_batch(
    spark: SparkSession,
    table: str | PathLike[str],
    checkpoint: str | PathLike[str],
    function: Callable[[DataFrame, int], None],
    *,
    spark_reader: SparkReader = "auto",
    **options: Any,
) -> DataStreamWriter:
    """Return a writer that calls ``function(frame, batch id)`` with each batch of changes.

    The frames are those of :func:`tailer.spark.changes`. The writer has the checkpoint and the
    function already: give it a trigger and start it.
    """
    check_spark_reader(spark_reader)
    reader = _stream_reader(spark, table, options)
    ahead = _planned(spark, reader, fspath(checkpoint))

    @said_first
    def call(lines: DataFrame, batch: int) -> None:
        # Read here: as rows of the frame, they are a job of their own.
        tasks = list(_tasks(ahead.files.lines_of(batch)))
        function(frame_of(lines.sparkSession, reader, tasks, spark_reader), batch)

    writer = _lines(spark, ahead).writeStream.option("checkpointLocation", fspath(checkpoint))
    return writer.foreachBatch(call)


def _stream_reader(
    spark: SparkSession, table: str | PathLike[str], options: dict[str, Any]
) -> LimitedStreamReader:
    """Return what plans the stream."""
    instead = "use format tailer, with foreachBatch for a function"
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise ConfigError(
            f"foreach_batch needs PySpark 4.2, and this is {pyspark.__version__}; {instead}"
        )
    if java_session(spark) is None:
        raise ConfigError(
            f"foreach_batch plans beside Spark, which Spark Connect does not let it; {instead}"
        )
    from tailer.spark.source.limited_stream import LimitedStreamReader

    source = source_of(spark, table, options)
    reader = source.stream_reader(LimitedStreamReader, source.schema())
    assert isinstance(reader, LimitedStreamReader)
    return reader


def _planned(spark: SparkSession, reader: LimitedStreamReader, checkpoint: str) -> PlanAhead:
    path = _FILE.sub("", checkpoint)
    if _SCHEME.match(path) or _PATTERN.search(path):
        raise ConfigError(
            f"the checkpoint {checkpoint!r} is not the path of a local or mounted folder, without "
            "any of *?[]{}\\; use such a folder, or format tailer"
        )
    return plan_ahead(spark, reader, Path(path).absolute())


def _lines(spark: SparkSession, ahead: PlanAhead) -> DataFrame:
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    return reader.load(f"file://{ahead.files.folder}")


def _tasks(lines: Iterable[str]) -> Iterator[Task]:
    """Yield the tasks of order files' lines. Raises the error that a file ends the query with."""
    for line in lines:
        if not line.startswith("{"):
            yield Task.from_text(line)
        elif (error := OrderHead.from_line(line).error) is not None:
            raise said(error)
