"""The daemon's feeds as Structured Streaming queries: ``tailer spark CONFIG.toml``.

The executors decode, and the driver writes: each batch goes through the same sink that the daemon
would use, then the feed's offset is saved where the daemon keeps it. So the offset is the only
progress here too: a feed moves from daemon to cluster and back by stopping one and starting the
other, and a Spark checkpoint is only a scratch folder that each start creates again.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal

from tailer.changes import ChangeBatch, Offset
from tailer.errors import SinkRejected, TailerError, TransientError
from tailer.feed.fanout import FanOut
from tailer.feed.options import FeedOptions
from tailer.feed.publish import Publisher
from tailer.feed.reading import Item
from tailer.feed.run import Feed
from tailer.files.spill import SpillFolder
from tailer.spark.envelope import BatchSource, feed_option, items
from tailer.spark.options import STORE_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["PipelineFeed", "PipelineOptions", "run_pipeline", "start_session"]

_POLL_S = 0.2

#: Spark's messages when a process was too slow to start, or an executor is gone; and when two
#: queries that begin at one moment share a worker's environment while a task is being sent.
_HEALING = (
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "Python worker exited",
    "java.io.OptionalDataException",
    "java.util.ConcurrentModificationException",
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How the queries run. ``available_now`` ends each when it has read what there is."""

    available_now: bool = False
    interval_s: float = 0.5
    trigger_bytes_max: int = 256 * 1024 * 1024
    partition_bytes_max: int = 32 * 1024 * 1024
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PipelineFeed:
    """One feed of the configuration as the daemon would run it, and the options of its store."""

    feed: Feed
    store: Mapping[str, Any] = field(default_factory=dict)
    ended: TailerError | None = None


def start_session(options: PipelineOptions) -> SparkSession:
    """Return the session of ``spark-submit`` if there is one, else a new one."""
    from pyspark.sql import SparkSession

    # The workers must be able to import this package, and the first python3 on the PATH may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("tailer")
    if options.master is not None:
        builder = builder.master(options.master)
    for key, value in options.conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class _Stopped(Exception):  # an end, not an error
    """The query must end, and writes no further batch."""


class _Run:
    """One feed's query, from its saved offset on, until it ends or fails."""

    def __init__(
        self,
        spark: SparkSession,
        portal: BlockingPortal,
        planned: PipelineFeed,
        options: PipelineOptions,
    ) -> None:
        self.spark = spark
        self.portal = portal
        self.feed = planned.feed
        self.store = planned.store
        self.options = options
        self.error: Exception | None = None
        self.query: StreamingQuery | None = None
        self._open = False
        self._publisher: Publisher | None = None
        self._offset: Offset | None = None
        self._writing = threading.Lock()
        self._ending = False
        self.rejoin = False  # the query is over, and starts again with sinks that have waited
        self._checkpoint = SpillFolder("tailer-spark-")

    def start(self) -> None:
        """Open the sink, find the start offset, start the query."""
        feed, call = self.feed, self.portal.call
        self._open = True
        kept = call(feed.sink.open, feed.name)
        offset = call(feed.saver.begin, feed.offsets, kept, lambda: feed.start(feed.log))
        self._offset = offset
        feed.progress.started(offset)
        how = (feed.sink, feed.park, feed.offsets, feed.progress, feed.orders, feed.saver)
        self._publisher = Publisher(*how)
        reader = self.spark.readStream.format(BatchSource.name())
        # A row of the source is a batch of one file.
        wanted = replace(feed.options.for_sink(feed.sink), runs=False)
        for name, value in self._source_options(offset, wanted).items():
            reader = reader.option(name, value)
        writer = (
            reader.load(feed.log.store.root)
            .writeStream.queryName(f"tailer-{feed.name}")
            .option("checkpointLocation", str(self._checkpoint.folder))
            .foreachBatch(self._write)
        )
        if self.options.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.options.interval_s} seconds")
        self.query = writer.start()

    def _source_options(self, offset: Offset, options: FeedOptions) -> dict[str, str]:
        found = {
            "startingOffset": str(offset),
            "feed": feed_option(options),
            "maxBytesPerTrigger": str(self.options.trigger_bytes_max),
            "maxPartitionBytes": str(self.options.partition_bytes_max),
            "tornCommitMaxSeconds": str(max(1, round(self.feed.log.torn_commit_max_s))),
        }
        return found | {f"{STORE_PREFIX}{k}": str(v) for k, v in self.store.items()}

    def _write(self, frame: DataFrame, _: int) -> None:
        """Write one micro-batch: decode everywhere at once, then write here in order."""
        frame = frame.persist()
        try:
            frame.count()
            rows = frame.toLocalIterator(prefetchPartitions=True)
            for item in items((row.head, row.rows) for row in rows):
                self._publish(item)
        except _Stopped:
            raise
        except Exception as e:
            self.error = self.error or e
            raise
        finally:
            frame.unpersist()

    def _publish(self, item: Item) -> None:
        with self._writing:
            if self._ending or self._publisher is None:
                raise _Stopped
            if isinstance(item, ChangeBatch):
                if self._offset is not None and item.next_offset.position <= self._offset.position:
                    return
                self.feed.progress.read(item)
            self.portal.call(self._publisher.publish, item)
            self._offset = item.next_offset
            if isinstance(self.feed.sink, FanOut) and self.feed.sink.ends_stage(item):
                self._ending = self.rejoin = True

    def ended(self) -> bool:
        """Return whether the query has ended, by itself or with an error."""
        return self.rejoin or self.query is None or not self.query.isActive

    def failure(self) -> TailerError | None:
        """Return why it ended, as an error of the project; None if nothing failed."""
        found: Exception | None = self.error
        if found is None and self.query is not None and not self.rejoin:
            found = self.query.exception()
        return None if found is None else _told(found)

    def stop(self) -> None:
        """End the query after the current batch, and close the sink."""
        with self._writing:
            self._ending = True
        if self.query is not None:
            with suppress(Exception):  # it has failed, or the session is gone
                self.query.stop()
        if self._open:
            with self._writing:
                self.portal.call(self.feed.sink.aclose)
                if self.feed.park is not None:
                    self.portal.call(self.feed.park.aclose)
        self._checkpoint.close()


def _told(error: Exception) -> TailerError:
    """Return an error of the project; an error on an executor comes as text only."""
    if isinstance(error, TailerError):
        return error
    told = _sentence(str(error))
    healing = told.startswith("[transient]") or any(sign in str(error) for sign in _HEALING)
    return TransientError(told) if healing else SinkRejected(told)


def _sentence(text: str) -> str:
    """Extract our sentence from Spark's text of an error."""
    for line in text.splitlines():
        _, mark, told = line.partition("TailerSourceError: ")
        if mark:
            return told
    # The last line of a Python traceback has the error; in other texts, the first line has it.
    causes = re.findall(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    lines = text.splitlines() or ["the query ended without saying why"]
    return causes[-1] if "Traceback" in text and causes else lines[0]


def run_pipeline(
    spark: SparkSession,
    portal: BlockingPortal,
    feeds: list[PipelineFeed],
    options: PipelineOptions,
    stopping: threading.Event,
) -> None:
    """Run all feeds until ``stopping`` is set, or each has ended; ``ended`` gets the reason.

    A feed that fails with a :class:`TransientError` starts again from its saved offset.
    """
    from tailer.spark.listener import ProgressListener

    spark.dataSource.register(BatchSource)
    listener = ProgressListener({f"tailer-{f.feed.name}": f.feed.progress for f in feeds})
    spark.streams.addListener(listener)
    threads = [
        threading.Thread(
            target=_keep_running, args=(spark, portal, feed, options, stopping), name=feed.feed.name
        )
        for feed in feeds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # in short waits, so that signals are seen
            thread.join(_POLL_S)
    spark.streams.removeListener(listener)


def _keep_running(
    spark: SparkSession,
    portal: BlockingPortal,
    planned: PipelineFeed,
    options: PipelineOptions,
    stopping: threading.Event,
) -> None:
    feed = planned.feed
    backoff, acquired = feed.options.retry.backoff(feed.jitter), False
    try:
        portal.call(feed.offsets.acquire)
        acquired = True
        while not stopping.is_set():
            written = feed.progress.versions_delivered
            run = _Run(spark, portal, planned, options)
            failure = _run_once(run, stopping)
            if failure is None and run.rejoin:
                continue
            if failure is None:
                return
            feed.progress.failed(failure)
            if not isinstance(failure, TransientError):
                planned.ended = failure
                return
            if feed.progress.versions_delivered > written:
                backoff.reset()
            stopping.wait(backoff.next_s(failure.retry_after_s))
    except TailerError as e:
        feed.progress.failed(e)
        planned.ended = e
    finally:
        if acquired:
            portal.call(feed.offsets.release)


def _run_once(run: _Run, stopping: threading.Event) -> TailerError | None:
    try:
        run.start()
        while not run.ended() and not stopping.is_set():
            time.sleep(_POLL_S)
        return None if stopping.is_set() and run.error is None else run.failure()
    except Exception as e:  # noqa: BLE001  # Spark raises many kinds; none may end unseen
        return _told(e)
    finally:
        run.stop()
