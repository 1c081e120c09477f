"""The table as the driver's process sees it, and the partitions that it hands to Spark.

Spark calls a source's methods one after the other from one thread. What they await runs in a
separate event loop, which lives as long as the reader, so that a store keeps its connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import InputPartition

from tailer.changes import Offset
from tailer.decode.naming import Removal
from tailer.decode.options import DecodeOptions
from tailer.log.table import TableLog
from tailer.spark.error_sentence import one_sentence
from tailer.spark.options import QueryTarget, SourceOptions
from tailer.spark.orders import Order, pack_orders
from tailer.spark.source.planning import StreamPlanner
from tailer.spark.table_store import store_portal
from tailer.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")


class TaskPartition(InputPartition):
    """One task's work. Spark prints it without options and secrets.

    ``removals`` are the column mapping removals between the orders' files and the query's schema.
    The task also reads what the table has from ``newer_from`` on when it runs, unless that is None.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        removals: Sequence[Removal] = (),
        newer_from: Offset | None = None,
    ) -> None:
        self.orders = list(orders)
        self.removals = tuple(removals)
        self.newer_from = newer_from

    def __repr__(self) -> str:
        return f"TaskPartition({len(self.orders)} orders)"


class StreamQuery(NamedTuple):
    """A query: its checked options, the state whose schema its rows have, and that schema with the
    metadata columns. Picklable."""

    options: SourceOptions
    target: QueryTarget
    schema: StructType
    arrow_schema: pa.Schema

    def make_decode_options(self, removals: tuple[Removal, ...]) -> DecodeOptions:
        """Return how the executors decode: into the schema of ``target``.

        ``removals`` are the column mapping removals between that version and the versions read.
        """
        state, version = self.target
        return structs.replace(
            self.options.decode,
            target=state,
            target_version=version,
            removals=removals,
            columns=self.options.columns,
        )

    @one_sentence
    def decode_task(
        self, task: TaskPartition, given: Store | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; ``given`` is a store that has its files, if not the table's own."""
        from tailer.spark.tasks import spark_batches  # on demand: planning decodes nothing

        decode = self.make_decode_options(task.removals)
        return spark_batches(task.orders, self.options, decode, self.arrow_schema, given)


def tasks_of(
    options: SourceOptions,
    orders: Sequence[Order],
    removals: Sequence[Removal],
    *,
    divides: bool = True,
) -> list[TaskPartition]:
    """Return the tasks of these orders; without ``divides``, no file is divided among
    them."""
    size, least = options.partition_bytes_max, options.partitions_min
    shares = pack_orders(orders, size, least, divides=divides)
    return [TaskPartition(share, removals) for share in shares]


class Driver:
    """One table, opened on first use."""

    def __init__(self, options: SourceOptions) -> None:
        self._open = ExitStack()
        self._portal, store = self._open.enter_context(store_portal(options))
        log = TableLog(store)
        self._planner = StreamPlanner(log, options)

    def run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run ``work(planner, *arguments)`` in the event loop."""
        return self._portal.call(work, self._planner, *arguments)

    def close(self) -> None:
        """Release the table's store and the event loop."""
        self._open.close()


def plan_once(options: SourceOptions, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run ``work(planner, *arguments)`` on a table that is opened only for this call."""
    driver = Driver(options)
    try:
        return driver.run(work, *arguments)
    finally:
        driver.close()
