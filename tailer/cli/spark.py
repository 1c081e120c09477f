"""A configuration's feeds on Spark, and conversion of offsets between daemon and queries."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path

import anyio

from tailer.changes import Offset
from tailer.config.feeds import Config
from tailer.daemon.assembly import assemble
from tailer.daemon.metrics import MetricFamilies
from tailer.daemon.run import feed_configs
from tailer.errors import OffsetError, TailerError
from tailer.feed.run import Feed
from tailer.process.signals import until_stopped
from tailer.spark.order_files import OrderFiles
from tailer.spark.pipeline import Cluster, PipelineOptions, run_pipeline

__all__ = ["checkpoint_offset", "run_cluster"]


async def run_cluster(config: Config, options: PipelineOptions) -> int:
    """Run all feeds by a cluster; return the exit status, 1 if a feed has ended with an error.

    SIGINT, SIGTERM and SIGHUP end it after the batches that are being written.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    families = MetricFamilies(registry)

    def refused(name: str, sentence: str) -> None:
        print(f"tailer: feed {name}: {sentence}", file=sys.stderr)

    configs = await feed_configs(config, refused)
    feeds = [(assemble(config, feed, families), feed.store) for feed in configs.values()]
    cluster = Cluster(options)
    failed: dict[str, TailerError] = {}

    try:
        async with _serving(config, registry, [feed for feed, _ in feeds]):
            await until_stopped(partial(run_pipeline, feeds, cluster, failed))
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.aclose()
    for name, error in failed.items():
        print(f"tailer: feed {name}: {error}", file=sys.stderr)
    return 1 if failed else 0


def _serving(
    config: Config, registry: object, feeds: list[Feed]
) -> AbstractAsyncContextManager[object]:
    """Serve /metrics, /healthz and /readyz, as the daemon does, while the block runs."""
    if config.http is None:
        return nullcontext()
    from tailer.daemon.http_api import health_routes, serve

    def unready() -> dict[str, str]:
        return {
            feed.name: str(feed.progress.error or "starting")
            for feed in feeds
            if not feed.progress.ready
        }

    return serve(config.http, health_routes(registry, unready))


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
