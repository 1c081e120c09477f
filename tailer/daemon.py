"""Many feeds in one process, with their metrics and health over HTTP.

Feeds are independent: one that ends with an error leaves the others running. The daemon ends when
no feed is left, or on SIGINT and SIGTERM, when every feed has finished its batch in hand.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from tailer.changes import Offset
from tailer.config import Config, FeedConfig
from tailer.errors import ConfigError, TailerError
from tailer.feed import Feed, run_feed
from tailer.history import check_start, start_offset
from tailer.log import DeltaLog
from tailer.metrics import FeedMetrics, MetricFamilies
from tailer.offsets import OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.signals import until_stopped
from tailer.sink import Sink, load_sink
from tailer.store import open_store, source_options

__all__ = ["check_feeds", "offset_store", "run_daemon", "table_log"]


def offset_store(config: Config, feed: str) -> OffsetStore:
    """Where the feed's offset is kept."""
    return LocalOffsetStore(config.state, feed)


def _sink(config: Config, feed: FeedConfig) -> Sink:
    try:
        return load_sink(feed.sink_type).from_options(feed.sink_options, config.folder)
    except ConfigError as e:
        raise ConfigError(f"{config.path}: feeds.{feed.name}.sink: {e}") from e


def _check_start(config: Config, feed: FeedConfig) -> None:
    try:
        check_start(feed.start)
    except ConfigError as e:
        raise ConfigError(f"{config.path}: feeds.{feed.name}.from: {e}") from None


def table_log(config: Config, feed: FeedConfig) -> DeltaLog:
    """The log of a feed's table; a relative path is relative to the configuration file."""
    local = "://" not in feed.table and not feed.table.startswith(("file:", "~"))
    address = str(config.folder / feed.table) if local else feed.table
    options = source_options(address, feed.options.change_source)
    return DeltaLog(open_store(address, options), torn_commit_max_s=feed.torn_commit_max_s)


@dataclass(slots=True)
class _Running:
    """One feed of the daemon and what became of it."""

    feed: Feed
    ended: TailerError | None = None

    @property
    def ready(self) -> bool:
        """Following its table, and the last attempt did not fail."""
        return self.ended is None and self.feed.metrics.ready


def _feed(config: Config, feed: FeedConfig, families: MetricFamilies) -> Feed:
    _check_start(config, feed)

    async def start(log: DeltaLog) -> Offset:
        return await start_offset(log, feed.start)

    return Feed(
        name=feed.name,
        log=table_log(config, feed),
        sink=_sink(config, feed),
        offsets=offset_store(config, feed.name),
        start=start,
        metrics=FeedMetrics(feed.name, time.time, families),
        jitter=random.random,
        options=feed.options,
    )


async def run_daemon(config: Config) -> int:
    """Run all feeds of a configuration; returns the exit status.

    0 after a signal, 1 if every feed has ended with an error.
    """
    from prometheus_client import CollectorRegistry

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    registry = CollectorRegistry()
    families = MetricFamilies(registry)
    running = [_Running(_feed(config, feed, families)) for feed in config.feeds.values()]

    async def work() -> None:
        async with _serving(config, registry, running), anyio.create_task_group() as tasks:
            for one in running:
                tasks.start_soon(_run, one)

    stopped = await until_stopped(work)
    failed = [one for one in running if one.ended is not None]
    for one in failed:
        print(f"tailer: feed {one.feed.name}: {one.ended}", file=sys.stderr)
    return 0 if stopped and not failed else 1 if failed else 0


async def _run(one: _Running) -> None:
    logger = logging.getLogger("tailer")
    logger.info("feed %s: following %s", one.feed.name, one.feed.log.store.root)
    try:
        await run_feed(one.feed)
    except TailerError as e:
        one.ended = e
        logger.error("feed %s stopped: %s", one.feed.name, e)  # noqa: TRY400  # the sentence says it
    finally:
        with anyio.CancelScope(shield=True):
            await one.feed.log.store.aclose()


@asynccontextmanager
async def _serving(
    config: Config, registry: object, running: list[_Running]
) -> AsyncIterator[None]:
    """Serve /metrics, /healthz and /readyz while the block runs."""
    if config.http is None:
        yield
        return
    from tailer.web import serve

    def ready() -> dict[str, str]:
        return {
            one.feed.name: str(one.ended or one.feed.metrics.error or "starting")
            for one in running
            if not one.ready
        }

    try:
        async with serve(config.http, registry, ready):
            yield
    except OSError as e:
        host, port = config.http
        raise ConfigError(f"{config.path}: daemon.http: {host}:{port} can't be served ({e})") from e


async def check_feeds(config: Config) -> int:
    """Reach every table and sink, and print where each feed would start.

    Returns 0, or 1 if one of them can't be reached.
    """
    status = 0
    for name, feed in config.feeds.items():
        _check_start(config, feed)
        log = table_log(config, feed)
        try:
            saved = await offset_store(config, name).load()
            offset = saved or await start_offset(log, feed.start)
            state = (await log.snapshot()).state
            await log.store.aclose()
            sink = _sink(config, feed)
            await sink.open(name)
            await sink.aclose()
        except ConfigError:
            raise
        except TailerError as e:
            print(f"{name}: {e}")
            status = 1
        else:
            origin = "saved offset" if saved else feed.start
            print(
                f"{name}: ok, {log.store.root} (id {state.table_id}) to {feed.sink_type}, from "
                f"version {offset.version}, index {offset.index} ({origin})"
            )
        finally:
            await log.store.aclose()
    return status
