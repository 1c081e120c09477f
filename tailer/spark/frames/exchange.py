"""One comparison by value divided among Spark's tasks, which exchange rows.

A rewrite that is too large for one task (:func:`tailer.spark.orders.fan_out`) can be read by
several in a frame: each decodes some of the files, and Spark brings equal rows together
(:mod:`tailer.compare.blocks`), so that no row is decoded or compared twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import structs

from tailer.delta.arrow_types import arrow_schema
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError
from tailer.plan.rules import row_ids_hold
from tailer.spark.failing import one_sentence
from tailer.spark.mapped import Task, map_in_arrow, rows_of_tasks
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order, RewriteOrder, shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tailer.compare.comparison import Parts

__all__ = ["Exchange"]

#: Rows that one task compares, in bytes, as far as the log tells: it holds them in memory, and
#: Spark may hand them over as one batch.
_TASK_BYTES = 128 * 1024 * 1024
#: Decoded rows have so many times the bytes of their files, or more if they are very equal.
_DECODED = 4
#: What a row takes beside its values, and what one of a size that is not known does.
_ROW_BYTES, _VALUE_BYTES = 16, 16

_BLOCK = "label int, rows binary"


class Exchange:
    """Takes the orders of divided comparisons, and gives their rows as frames."""

    def __init__(self, options: SourceOptions, arrow_schema: pa.Schema, schema: StructType) -> None:
        self._options = options
        self._arrow_schema = arrow_schema
        self._schema = schema
        self._taken: list[tuple[Task, RewriteOrder]] = []

    def take(self, tasks: Iterable[Task]) -> list[Task]:
        """Take the orders that are worth several tasks; return the tasks of the others."""
        left = ((task, tuple(o for o in task.orders if not self._takes(task, o))) for task in tasks)
        return [structs.replace(task, orders=orders) for task, orders in left if orders]

    def _takes(self, task: Task, order: Order) -> bool:
        if not isinstance(order, RewriteOrder) or order.tasks < 2:
            return False
        if not _is_divisible(order, task.target[0]):
            return False
        self._taken.append((task, order))
        return True

    def frames(self, spark: SparkSession) -> list[DataFrame]:
        """Return the rows of the orders that were taken."""
        return [self._frame(spark, *taken) for taken in self._taken]

    def _frame(self, spark: SparkSession, task: Task, order: RewriteOrder) -> DataFrame:
        # So many for each, so that all end together.
        tasks = order.tasks * math.ceil(_decoded_bytes(order) / order.tasks / _TASK_BYTES)
        steps = _Steps(self._options, task, order, self._arrow_schema, tasks)
        blocks = rows_of_tasks(spark, shared(order.rewrite, order.tasks), steps.blocks, _BLOCK)
        return map_in_arrow(_together(blocks, tasks), steps.rows, self._schema)


def _together(blocks: DataFrame, tasks: int) -> DataFrame:
    """Return the blocks with each label in a task of its own."""
    by_label = getattr(blocks, "repartitionById", None)
    if by_label is None:  # before Spark 4.1 chance spreads them, and some tasks have several
        return blocks.repartition(tasks, "label")
    spread: DataFrame = by_label(tasks, "label")
    return spread


class _Steps:
    """What the executors do. Each step loads what it needs by itself: the driver needs none."""

    def __init__(
        self,
        options: SourceOptions,
        task: Task,
        order: RewriteOrder,
        schema: pa.Schema,
        tasks: int,
    ) -> None:
        self._options = options
        self._decode = options.decoding(task.target, task.removals)
        self._order = order
        self._engine = _engine_version()
        self._schema = schema
        self._labels = tasks

    @one_sentence
    def blocks(self, parts: Parts) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files."""
        from tailer.spark.tasks import blocks_of

        if self._engine != _engine_version():
            raise ConfigError(
                f"the driver has DuckDB {self._engine} and this executor {_engine_version()}, and "
                "tasks bring equal rows together only if all have one version; install the same "
                "one everywhere, or set derivedFanOut to 1"
            )
        return blocks_of(parts, self._order, self._options, self._decode, self._labels)

    @one_sentence
    def rows(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changed rows among these."""
        from tailer.spark.tasks import changed_rows

        return changed_rows(blocks, self._order, self._options, self._decode, self._schema)


def _engine_version() -> str:
    """Return the engine's version: two engines of one version hash alike."""
    import duckdb

    return str(duckdb.__version__)


def _is_divisible(order: RewriteOrder, target: TableState) -> bool:
    """Return whether rows that come together by their values say by themselves what has changed,
    and are those of a query in the schema ``target``."""
    commit = order.commit
    if not commit.before == commit.after == target or row_ids_hold(commit, order.rewrite):
        return False
    from tailer.compare.blocks import travels  # imported when there is such an order

    return all(map(travels, arrow_schema(commit.after.schema).types))


def _decoded_bytes(order: RewriteOrder) -> int:
    """Return about how many bytes all rows of a rewrite have."""
    types = arrow_schema(order.commit.after.schema).types
    fixed = (t.bit_width // 8 if pa.types.is_primitive(t) else _VALUE_BYTES for t in types)
    width = _ROW_BYTES + sum(fixed)
    files = (*order.rewrite.leaving, *order.rewrite.coming)
    return max(_DECODED * order.cost, sum((file.num_records or 0) * width for file in files))
