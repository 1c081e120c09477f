"""The daemon's feeds on a cluster: ``tailer spark CONFIG.toml``.

A feed runs as in the daemon (:mod:`tailer.feed.run`), but for the reading: the driver plans some
versions, a job of Spark reads them on the executors, and their batches come back in order. So sink,
offset, policies and retries are the daemon's, and a feed moves from one to the other by stopping
here and starting there.

What is so little that a job takes longer than the context, the driver reads itself. The session is
started with the first job.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructType

from tailer.changes import ChangeBatch, Offset
from tailer.config.feeds import FeedConfig
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.feed.read import ItemSender, ReadOn, read_in_process
from tailer.feed.read_context import FeedItem, ReadContext
from tailer.spark.hadoop_access import is_hadoop_address
from tailer.spark.mapped_tasks import rows_of_tasks
from tailer.spark.options import SourceOptions
from tailer.spark.orders import VersionOrder, pack_orders
from tailer.spark.pipeline.envelope import VersionReader, join_orders, unpack_items
from tailer.spark.pipeline.parts import divide_version, group_jobs
from tailer.spark.session_access import session_access
from tailer.spark.source.planning import Budget, Planner
from tailer.spark.source.reader import end_of_log

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

#: The files of one job, at most, as in Delta's own source.
_FILES_MAX = 1000

#: Spark's messages when a process was too slow to start, or an executor is gone; and when two
#: jobs that begin at one moment share a worker's environment while a task is being sent.
_HEALING = (
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "Python worker exited",
    "java.io.OptionalDataException",
    "java.util.ConcurrentModificationException",
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How the feeds run. ``available_now`` ends each when it has read what there is; ``interval_s``
    is how often a feed looks for news, in seconds. One job reads ``trigger_bytes_max`` bytes of
    data files at most, and a task about ``partition_bytes_max``. Up to ``driver_bytes_max`` bytes
    are no job: the driver reads them."""

    available_now: bool = False
    interval_s: float = 0.5
    trigger_bytes_max: int = 256 * 1024 * 1024
    partition_bytes_max: int = 32 * 1024 * 1024
    driver_bytes_max: int = 16 * 1024 * 1024
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def _start_session(options: PipelineOptions) -> SparkSession:
    """Return the session of ``spark-submit`` if there is one, else a new one."""
    # The workers must be able to import this package, and the first python3 on the PATH may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("tailer")
    if options.master is not None:
        builder = builder.master(options.master)
    for key, value in options.conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Cluster:
    """The session, once a feed needs it."""

    def __init__(self, options: PipelineOptions) -> None:
        self.options = options
        self._starting = anyio.Lock()
        self._session: SparkSession | None = None

    async def ensure_session(self) -> SparkSession:
        """Return the session, started by the first call. Raises :class:`ConfigError` if Spark
        can't be started."""
        async with self._starting:
            if self._session is None:
                try:
                    self._session = await anyio.to_thread.run_sync(_start_session, self.options)
                except Exception as e:
                    # PySpark's frames hold the pipe to a JVM that is gone. It is closed now: at
                    # its end, Python would warn of it.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", ResourceWarning)
                        traceback.clear_frames(e.__traceback__)
                    raise ConfigError(
                        f"Spark does not start ({_extract_cause(str(e))}); check --master and "
                        "--conf, that there is Java 17 or newer, and what Spark has printed"
                    ) from e
            return self._session

    async def add_session_access(self, feeds: Mapping[str, FeedConfig]) -> dict[str, FeedConfig]:
        """Return the feeds with the session's access to tables whose store has no options."""
        with_access = dict(feeds)
        for name, feed in feeds.items():
            if not feed.store and is_hadoop_address(feed.table):
                session = await self.ensure_session()
                access = await anyio.to_thread.run_sync(session_access, feed.table, session)
                with_access[name] = replace(feed, store=access.options)
        return with_access

    async def aclose(self) -> None:
        """End the session, if it was started."""
        if self._session is not None:
            await anyio.to_thread.run_sync(self._session.stop)

    async def read_items(
        self, name: str, orders: list[VersionOrder], reader: VersionReader, at: Offset
    ) -> AsyncGenerator[FeedItem, None]:
        """Yield what the orders give, in their order, from an offset on: whole versions, or parts
        of one. ``name`` is for Spark's own pages.

        On cancellation, the job is cancelled too. Raises what reading raises, and
        :class:`TransientError` if the cluster has failed in a way that may pass.
        """
        spark = await self.ensure_session()
        context = spark.sparkContext
        tasks = orders
        if orders[0].part is None:
            size = self.options.partition_bytes_max
            shares = pack_orders(orders, size, context.defaultParallelism, ordered=True)
            tasks = [join_orders(share) for share in shares]
        tag = f"tailer-{re.sub(r'[^A-Za-z0-9_-]', '-', name)}"
        collected = _collect_items(_make_frame(spark, tasks, reader), len(tasks), tag, at)
        while True:
            try:
                item = await anyio.to_thread.run_sync(next, collected, None, abandon_on_cancel=True)
            except anyio.get_cancelled_exc_class():
                with suppress(Exception):  # the session may be gone
                    context.cancelJobsWithTag(tag)
                raise
            except TailerError:
                raise
            except Exception as e:
                raise _convert_error(e) from e
            if item is None:
                return
            yield item


def _make_frame(spark: SparkSession, tasks: list[VersionOrder], reader: VersionReader) -> DataFrame:
    schema = StructType().add("head", BinaryType()).add("rows", BinaryType())
    return rows_of_tasks(spark, tasks, reader.read_rows, schema)


def _collect_items(frame: DataFrame, tasks: int, tag: str, at: Offset) -> Iterator[FeedItem]:
    """Compute a frame of that many tasks everywhere at once, then yield its items from an offset
    on."""
    persisted = frame.persist() if tasks > 1 else None
    try:
        with _tag_jobs(frame.sparkSession.sparkContext, tag):
            if persisted is not None:
                persisted.count()
            rows = frame.toLocalIterator(prefetchPartitions=tasks > 1)
        yield from unpack_items(((row.head, row.rows) for row in rows), at)
    finally:
        if persisted is not None:
            with suppress(Exception):  # the session may be gone
                persisted.unpersist()


@contextmanager
def _tag_jobs(context: SparkContext, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts within the block."""
    context.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(Exception):  # the session may be gone
            context.removeJobTag(tag)


def _convert_error(error: Exception) -> TailerError:
    """Return an error of the cluster as one of ours."""
    text = str(error)
    if any(sign in text for sign in _HEALING):
        return TransientError(_extract_cause(text))
    return TailerError(f"Spark's job has failed: {_extract_cause(text)}")


def _extract_cause(text: str) -> str:
    """Extract the cause from Spark's text of an error."""
    # The last line of a Python traceback has the error; in other texts, the first line has it.
    causes = re.findall(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    lines = text.splitlines() or ["it did not say why"]
    return causes[-1] if "Traceback" in text and causes else lines[0]


class _Jobs(NamedTuple):
    """The orders of the next jobs, and the offset after them."""

    orders: list[VersionOrder]
    end: Offset


class _ClusterReader:
    """Reads the table of the feed ``name``. ``store`` are the options of the table's store."""

    def __init__(self, cluster: Cluster, name: str, store: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._name = name
        self._store = store
        self._last: int | None = None

    async def read(self, context: ReadContext, sent: ItemSender, last: int | None) -> None:
        """Send what comes after an offset, in jobs of bounded size: see
        :func:`tailer.feed.read.send_items`."""
        options = self._cluster.options
        if options.available_now:
            if self._last is None:  # a busy writer does not keep it here
                self._last = await context.log.latest_version()
            last = self._last
        await context.learn_columns()
        source = self._make_source_options(context)
        planner = Planner(context.log, source)
        # The feed itself decides about a loss, and a row of the frame is a batch of one file.
        policies = structs.replace(context.options.policies, on_data_loss="fail")
        feed = structs.replace(context.options, policies=policies, spans=False)
        reader = VersionReader(source, feed, context.lost, context.columns)
        while True:
            orders, end = await self._plan_orders(planner, context, sent.at, last)
            if not orders and last is not None:
                return
            if not orders:
                await anyio.sleep(options.interval_s)
            elif sum(order.cost for order in orders) <= options.driver_bytes_max:
                await read_in_process(context, sent, end.version - 1)
            else:
                for job in group_jobs(orders, options.trigger_bytes_max):
                    feed_items = self._cluster.read_items(self._name, job, reader, sent.at)
                    async with aclosing(feed_items):
                        async for item in feed_items:
                            if _is_new(item, sent.at):
                                await sent(item)
            sent.at = max(sent.at, end, key=lambda offset: offset.position)

    def _make_source_options(self, context: ReadContext) -> SourceOptions:
        log, options = context.log, context.options
        return SourceOptions(
            table=log.store.root,
            change_source=options.change_source,
            key=options.key,
            paired=True,
            store=self._store,
        )

    async def _plan_orders(
        self, planner: Planner, context: ReadContext, at: Offset, last: int | None
    ) -> _Jobs:
        """Plan the next jobs: no orders if nothing is new."""
        newest = await end_of_log(planner, at)
        context.observer.note_newest(newest)
        until = newest if last is None else min(newest, last)
        if not at.snapshot and at.version > until:
            return _Jobs([], at)
        options = self._cluster.options
        budget = Budget(files=_FILES_MAX, bytes=options.trigger_bytes_max)
        end = await planner.advance(at, until, budget, None)
        async with aclosing(planner.plan_orders(at, end)) as planned_orders:
            orders = [
                order async for _, version_orders in planned_orders for order in version_orders
            ]
        size = options.partition_bytes_max
        whole = [order for order in orders if isinstance(order, VersionOrder)]
        parts = [part for order in whole for part in await divide_version(context, order, size)]
        return _Jobs(parts, end)


def make_cluster_reader(cluster: Cluster, name: str, store: Mapping[str, Any]) -> ReadOn:
    """Return what reads the table of the feed ``name`` on a cluster, for its ``read``. ``store``
    are the options of the table's store."""
    return _ClusterReader(cluster, name, store).read


def _is_new(item: FeedItem, at: Offset) -> bool:
    return not isinstance(item, ChangeBatch) or item.next_offset.position > at.position
