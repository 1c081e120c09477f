"""Tasks that Spark runs as `mapInArrow`: workers of its own pool decode, with the one decoder.

A data source in Python costs a process for each query, and Spark asks it for its plan again and
again. A function over a frame of tasks costs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tailer.spark.error_sentence import one_sentence
from tailer.spark.options import QueryTarget, SourceOptions
from tailer.spark.source.driver import TaskPartition
from tailer.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")


class Decoder:
    """Turns tasks into rows, in exactly the Arrow schema of the frame. ``target`` is the schema of
    the rows, with its version."""

    def __init__(self, options: SourceOptions, target: QueryTarget, schema: pa.Schema) -> None:
        self._options = options
        self._target = target
        self._schema = schema

    @one_sentence
    def decode_task(
        self, task: TaskPartition, given: Store | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; ``given`` is a store that has its files, if not the table's own."""
        decode = self._options.make_decode_options(self._target, task.removals)
        from tailer.spark.tasks import spark_batches  # on demand: planning decodes nothing

        return spark_batches(task.orders, self._options, decode, self._schema, given)


def rows_of_tasks(
    spark: SparkSession,
    tasks: Sequence[T],
    rows: Callable[[T], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return the rows of these tasks: each is a partition of the frame."""
    count = max(1, len(tasks))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number < len(tasks):
                    yield from rows(tasks[number])

    return map_in_arrow(spark.range(0, count, 1, count), read, schema)


def map_in_arrow(
    frame: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Return ``frame.mapInArrow(function, schema)``, which asks for pandas without a need."""
    java: Any = getattr(frame, "_jdf", None)
    if java is None:  # Spark Connect, whose client has pandas
        return frame.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as Frame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    udf = UserDefinedFunction(function, returnType=schema, evalType=kind)
    column: Any = udf(*(frame[name] for name in frame.columns))
    return Frame(java.mapInArrow(column._jc, False, None), frame.sparkSession)  # noqa: SLF001  # as it does itself
