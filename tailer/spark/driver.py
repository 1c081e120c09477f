"""The table as the driver's process sees it, and the partitions that it hands to Spark.

Spark calls a source's methods one after the other from one thread; what they await runs in an event
loop of its own, which lives as long as the reader, so that a store keeps its connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition

from tailer.log import DeltaLog
from tailer.spark.options import SourceOptions
from tailer.spark.orders import Order
from tailer.spark.planning import Planner
from tailer.spark.tasks import store_portal

__all__ = ["Driver", "TaskPartition", "plan_once"]

T = TypeVar("T")


class TaskPartition(InputPartition):
    """One task's work. What Spark prints of it has no option and no secret."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self.orders = list(orders)

    def __repr__(self) -> str:
        return f"TaskPartition({len(self.orders)} orders)"


class Driver:
    """One table, opened when it is first asked."""

    def __init__(self, options: SourceOptions) -> None:
        self._open = ExitStack()
        self._portal, store = self._open.enter_context(store_portal(options))
        log = DeltaLog(store, torn_commit_max_s=options.torn_commit_max_s)
        self._planner = Planner(log, options)

    def run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run ``work(planner, *arguments)`` in the event loop."""
        return self._portal.call(work, self._planner, *arguments)

    def close(self) -> None:
        """Release the table's store and the event loop."""
        self._open.close()


def plan_once(options: SourceOptions, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run ``work(planner, *arguments)`` on a table that is opened for it alone."""
    driver = Driver(options)
    try:
        return driver.run(work, *arguments)
    finally:
        driver.close()
