"""A configuration's feeds on Spark, and conversion of offsets between daemon and queries."""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from tailer.changes import Offset
from tailer.config.feeds import Config
from tailer.daemon.assembly import assemble
from tailer.daemon.metrics import MetricFamilies
from tailer.errors import OffsetError
from tailer.process.signals import listen, stop_asked
from tailer.spark.order_files import OrderFiles
from tailer.spark.pipeline import PipelineFeed, PipelineOptions, run_pipeline, start_session

__all__ = ["checkpoint_offset", "run_cluster"]


def run_cluster(config: Config, options: PipelineOptions) -> int:
    """Run all feeds as queries; return the exit status, 1 if a feed has ended with an error.

    SIGINT, SIGTERM and SIGHUP end it after the current batches.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    families = MetricFamilies(registry)
    feeds = [
        PipelineFeed(assemble(config, feed, families), feed.store) for feed in config.feeds.values()
    ]
    stopping = threading.Event()

    async def stop() -> None:
        # Not in a handler, which may interrupt the very thread that holds the event's lock.
        await stop_asked(on_hangup=True)
        stopping.set()

    spark = start_session(options)
    listen()  # Spark's own handler for SIGINT would interrupt running batches
    try:
        with start_blocking_portal() as portal, _serving(portal, config, registry, feeds):
            waiting = portal.start_task_soon(stop)
            try:
                run_pipeline(spark, portal, feeds, options, stopping)
            finally:
                waiting.cancel()
    finally:
        spark.stop()
    failed = [feed for feed in feeds if feed.ended is not None]
    for feed in failed:
        print(f"tailer: feed {feed.feed.name}: {feed.ended}", file=sys.stderr)
    return 1 if failed else 0


def _serving(
    portal: BlockingPortal, config: Config, registry: object, feeds: list[PipelineFeed]
) -> AbstractContextManager[object]:
    """Serve /metrics, /healthz and /readyz, as the daemon does, while the block runs."""
    if config.http is None:
        return nullcontext()
    from tailer.daemon.http_api import health_routes, serve

    def unready() -> dict[str, str]:
        return {
            one.feed.name: str(one.ended or one.feed.progress.error or "starting")
            for one in feeds
            if one.ended is not None or not one.feed.progress.ready
        }

    routes = health_routes(registry, unready)
    return portal.wrap_async_context_manager(serve(config.http, routes))


def checkpoint_offset(folder: Path) -> Offset:
    """Return where a query of this package continues: the end of its last committed batch.

    ``folder`` is the query's checkpoint. A batch that was begun and not committed comes again.
    Raises :class:`OffsetError` if there is no such offset.
    """
    orders = OrderFiles(folder)
    if orders.folder.is_dir() and (last := orders.committed()) >= 0:
        return Offset.from_json(orders.head(last).end)
    commits = folder / "commits"
    numbers = [int(f.name) for f in commits.glob("*") if re.fullmatch(r"\d+", f.name)]
    if not numbers:
        raise OffsetError(
            "the checkpoint has no committed batch", path=str(folder),
            hint="give the checkpointLocation of a query that has run",
        )  # fmt: skip
    file = folder / "offsets" / str(max(numbers))
    try:
        version, _, *offsets = file.read_text(encoding="utf-8").splitlines()
        (offset,) = offsets
        found = Offset.from_json(json.loads(offset))
    except (OSError, ValueError, OffsetError) as e:
        raise OffsetError(
            f"the checkpoint's offset is not one of a query of the tailer source ({e})",
            path=str(file),
            hint="the query must read one table, by format tailer or tailer.spark",
        ) from None
    if version != "v1":
        raise OffsetError(f"the checkpoint is of format {version!r}, not v1", path=str(file))
    return found
