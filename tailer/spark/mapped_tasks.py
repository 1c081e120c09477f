"""Tasks that Spark runs as `mapInArrow`: workers of its own pool decode, with the one decoder.

A data source in Python costs a process for each query, and Spark asks it for its plan again and
again. A function over a frame of tasks costs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")


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
