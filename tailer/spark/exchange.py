"""One comparison by value divided among Spark's tasks, which exchange hashes of rows.

A rewrite that is too large for one task is read by several: each would decode all of its files and
compare its own share of the rows, were it alone (:func:`tailer.spark.orders.fan_out`). In a frame,
tasks can do better: each decodes some of the files, and Spark brings equal hashes together
(:mod:`tailer.decode.hashes`), so that no row is decoded and compared twice. The changed rows are
decoded once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import structs

from tailer.decode.bucket import Bucket
from tailer.decode.plan import Rewrite, row_ids_hold
from tailer.delta.arrow_types import arrow_schema
from tailer.spark.failing import one_sentence
from tailer.spark.mapped import Task, map_in_arrow, rows_of_tasks
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, RewriteOrder, shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tailer.decode.comparison import Parts

__all__ = ["Exchange"]

#: Rows whose hashes one task compares: it holds them in memory, with about 50 bytes for each.
_ROWS_MAX = 2_000_000
#: For a file whose rows are not counted in the log: encoded rows are seldom smaller.
_ROW_BYTES = 16

_BLOCK = "label int, rows binary"
#: Labels for each task: Spark spreads them by chance.
_LABELS = 8


class Exchange:
    """Takes the orders of divided comparisons, and gives their rows as frames."""

    def __init__(self, options: SourceOptions, arrow_schema: pa.Schema, schema: StructType) -> None:
        self._options = options
        self._arrow_schema = arrow_schema
        self._schema = schema
        self._taken: list[tuple[Task, RewriteOrder, Bucket]] = []

    def take(self, tasks: Iterable[Task]) -> list[Task]:
        """Take the orders that are shares of one comparison by value, all of which are here; return
        the tasks of the others."""
        left = ((task, tuple(o for o in task.orders if not self._takes(task, o))) for task in tasks)
        return [structs.replace(task, orders=orders) for task, orders in left if orders]

    def _takes(self, task: Task, order: Order) -> bool:
        if not isinstance(order, RewriteOrder) or order.bucket is None or not _by_hashes(order):
            return False
        if order.bucket.number == 0:
            self._taken.append((task, order, order.bucket))
        return True

    def frames(self, spark: SparkSession) -> list[DataFrame]:
        """Return the rows of the orders that were taken."""
        return [self._frame(spark, *taken) for taken in self._taken]

    def _frame(
        self, spark: SparkSession, task: Task, order: RewriteOrder, bucket: Bucket
    ) -> DataFrame:
        count = bucket.of
        tasks = max(count, math.ceil(_rows(order.rewrite) / _ROWS_MAX))
        labels = _LABELS * tasks
        steps = _Steps(self._options, task, order, bucket.engine, labels, self._arrow_schema)
        hashes = rows_of_tasks(spark, shared(order.rewrite, count), steps.hashes, _BLOCK)
        equal = hashes.repartition(tasks, "label")
        near = map_in_arrow(equal, steps.unmatched, _BLOCK).repartition(count, "label")
        return map_in_arrow(near, steps.rows, self._schema)


class _Steps:
    """What the executors do. Each step loads what it needs by itself: the driver needs none.

    ``engine`` is the version of the driver's engine: hashes of another one are others.
    """

    def __init__(
        self,
        options: SourceOptions,
        task: Task,
        order: RewriteOrder,
        engine: str,
        labels: int,
        schema: pa.Schema,
    ) -> None:
        self._options = options
        self._decode = options.decoding(task.target, task.removals)
        self._order = order
        self._engine = engine
        self._labels = labels
        self._schema = schema

    @one_sentence
    def hashes(self, parts: Parts) -> Iterator[pa.RecordBatch]:
        """Yield the hashes of the rows of some files."""
        from tailer.spark.tasks import check_engine, hashes_of

        check_engine(self._engine)
        return hashes_of(parts, self._order, self._options, self._decode, self._labels)

    @one_sentence
    def unmatched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield which of these rows have changed."""
        from tailer.decode.hashes import unmatched

        keyed = bool(self._options.key)
        return unmatched(batches, self._options.diff, self._labels, keyed=keyed)

    @one_sentence
    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changed rows themselves."""
        from tailer.spark.tasks import changed_rows

        return changed_rows(batches, self._order, self._options, self._decode, self._schema)


def _by_hashes(order: RewriteOrder) -> bool:
    """Return whether hashes of its values decide for each row by itself whether it has changed."""
    commit = order.commit
    if commit.before != commit.after or row_ids_hold(commit, order.rewrite):
        return False
    from tailer.decode.stream import is_hashable_type  # imported when there is such an order

    return all(map(is_hashable_type, arrow_schema(commit.after.schema).types))


def _rows(rewrite: Rewrite) -> int:
    return sum(
        file.num_records if file.num_records is not None else (file.size or 0) // _ROW_BYTES
        for file in (*rewrite.leaving, *rewrite.coming)
    )
