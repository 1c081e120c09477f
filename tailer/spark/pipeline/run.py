"""The daemon's feeds on a cluster: ``tailer spark CONFIG.toml``.

It is the daemon, and a feed runs as in the daemon: the driver reads the log, plans, makes batches,
shapes and delivers them. What is large is decoded and compared by Spark's tasks, which run the
daemon's decoder and send the rows back in order. So sinks, offsets, policies, orders and metrics
are the daemon's, and a feed moves from one to the other by stopping here and starting there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from msgspec import structs

from tailer.changes import ChangeFile
from tailer.config.feeds import Config, FeedConfig
from tailer.config.readers import Readers
from tailer.delta.commit import Commit
from tailer.errors import TransientError
from tailer.feed.read import ItemSender, ReadFunction, read_in_process
from tailer.feed.read_context import ReadContext, RemoteDecoder
from tailer.feed.rows.span import DecodedStep, SpanEntry
from tailer.plan.rules import Rewrite
from tailer.process.threads import run_blocking
from tailer.spark.hadoop_access import is_hadoop_address
from tailer.spark.hadoop_store import HadoopStore, find_hadoop_address
from tailer.spark.options import SourceOptions
from tailer.spark.orders import rewrite_order
from tailer.spark.pipeline.cluster import SparkCluster
from tailer.spark.pipeline.group_task import (
    CompareTask,
    GroupTask,
    PackedStep,
    Rest,
    TableAccess,
    TaskObserver,
    load_sent,
)
from tailer.spark.session_access import session_access

#: The most groups whose rows may wait here: the driver does not use them faster.
_LANES_MAX = 9


class ClusterReaders(Readers):
    """Read each feed's table with a cluster's help."""

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster

    async def complete_config(self, config: Config) -> Config:
        """Return the feeds with the session's access to tables whose store has no options."""
        feeds = dict(config.feeds)
        for name, feed in config.feeds.items():
            by_hadoop = find_hadoop_address(feed.table) is not None
            if by_hadoop or (not feed.store and is_hadoop_address(feed.table)):
                find_access = partial(session_access, feed.table)
                access = await self._cluster.ask_session(find_access)
                feeds[name] = replace(feed, store={**access.options, **feed.store})
        return replace(config, feeds=feeds)

    def make_read_function(self, feed: FeedConfig) -> ReadFunction:
        async def read(context: ReadContext, sender: ItemSender, last: int | None) -> None:
            if not isinstance(context.log.store, HadoopStore):  # whose files tasks can't reach
                decoder = ClusterDecoder(self._cluster, feed)
                context = structs.replace(context, remote=decoder)
            await read_in_process(context, sender, last)

        return read


class ClusterDecoder(RemoteDecoder):
    """Decodes the files of a feed's table by tasks of a cluster."""

    def __init__(self, cluster: SparkCluster, feed: FeedConfig) -> None:
        self.group_bytes = cluster.options.partition_bytes_max
        self.here_bytes_max = cluster.options.driver_bytes_max
        self.lanes_max = _LANES_MAX
        self._cluster = cluster
        self._feed = feed

    async def start(self) -> int:
        # Twice as many as there are cores: some wait while the rows of another are used.
        return min(_LANES_MAX, 2 * await self._cluster.warm_up() + 1)

    async def decode_group(
        self,
        context: ReadContext,
        group: list[SpanEntry],
        use: Callable[[DecodedStep], Awaitable[None]],
    ) -> None:
        access = self._make_table_access(context)
        rest: Rest | None = Rest(0, 0)
        while rest is not None:
            group = group[rest.place :]
            task = GroupTask.from_group(access, group, rest.skip)
            rest, end = None, None
            for sent in await self._cluster.run_task(self._feed.name, task.run):
                end = found = await run_blocking(load_sent, sent)
                if isinstance(found, PackedStep):
                    await use(await run_blocking(found.unpack, group))
                elif isinstance(found, Rest):
                    rest = found
            _take_end(end, context)

    async def derive_changes(
        self, context: ReadContext, commit: Commit, rewrite: Rewrite
    ) -> list[ChangeFile]:
        task = CompareTask(self._make_table_access(context), rewrite_order(commit, rewrite))
        files: list[ChangeFile] = []
        end: object = None
        for sent in await self._cluster.run_task(self._feed.name, task.run):
            end = found = load_sent(sent)
            if isinstance(found, list):
                files = found
        _take_end(end, context)
        return files

    def _make_table_access(self, context: ReadContext) -> TableAccess:
        source = SourceOptions(
            table=context.log.store.root,
            change_source=context.options.change_source,
            store=self._feed.store,
        )
        decode = structs.replace(context.decode, on_read=None)
        # Masks are for the driver: tasks need the names of their columns, and no key.
        selection = structs.replace(context.options.selection, mask_key=b"")
        options = structs.replace(context.options, selection=selection)
        return TableAccess(source, options, decode, context.columns)


def _take_end(end: object, context: ReadContext) -> None:
    """Take what a task sends last: what it has counted, and an error."""
    if not isinstance(end, TaskObserver):
        raise TransientError("Spark's connection was cut off within the results of a task")
    end.add_to(context)
    if end.error is not None:
        raise end.error
