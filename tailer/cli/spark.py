"""A configuration's feeds on Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial

import anyio
from prometheus_client import CollectorRegistry

from tailer.config.feeds import Config
from tailer.daemon.assembly import assemble_feed, list_feed_configs
from tailer.daemon.http_api import make_health_routes, serve_routes
from tailer.daemon.metrics import MetricFamilies
from tailer.daemon.progress_log import ProgressLog
from tailer.daemon.runner import Runner
from tailer.errors import printable
from tailer.feed.progress import FeedProgress
from tailer.process.logs import set_up_logs
from tailer.process.signals import run_until_stopped
from tailer.spark.pipeline.run import Cluster, PipelineOptions, make_cluster_reader


async def run_cluster(config: Config, options: PipelineOptions) -> int:
    """Run all feeds by a cluster, and say in the log what the daemon says of them. Return the exit
    status, 1 if a feed has ended with an error.

    SIGINT, SIGTERM and SIGHUP end it after the batches that are being written.
    """
    logger = set_up_logs(config.log_format, config.log_level)
    registry = CollectorRegistry()
    families = MetricFamilies(registry)
    cluster = Cluster(options)
    runners: dict[str, Runner] = {}
    log = ProgressLog(logger)
    try:
        config = replace(config, feeds=await cluster.add_session_access(config.feeds))
        for feed in (await list_feed_configs(config)).values():
            parts = assemble_feed(config, feed, families)
            parts.read = make_cluster_reader(cluster, parts.name, feed.store)
            runners[feed.name] = Runner(parts, feed.sink.type, logger=logger)
        async with _serve_health(config, registry, runners):
            works = [partial(_run_to_end, runner) for runner in runners.values()]
            every_s = config.progress_s
            stopped = await run_until_stopped(
                partial(log.run_all, works, _find_progress(runners), every_s)
            )
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.aclose()
    log.log_end(_find_progress(runners), "asked to" if stopped else "because every feed has ended")
    failed = {name: runner.error for name, runner in runners.items() if runner.error is not None}
    for name, error in failed.items():
        print(printable(f"tailer: feed {name}: {error}"), file=sys.stderr)
    return 1 if failed else 0


async def _run_to_end(runner: Runner) -> None:
    """Run a feed until it has come to its end: nobody can give it an order here."""
    async with anyio.create_task_group() as one:
        one.start_soon(runner.run)
        await runner.wait_for_rest()
        await runner.end()


def _find_progress(runners: Mapping[str, Runner]) -> dict[str, FeedProgress]:
    return {name: runner.feed.progress for name, runner in runners.items()}


def _serve_health(
    config: Config, registry: object, runners: Mapping[str, Runner]
) -> AbstractAsyncContextManager[object]:
    """Serve /metrics, /healthz and /readyz, as the daemon does, while the block runs."""
    if config.http is None:
        return nullcontext()

    def unready() -> dict[str, str]:
        return {
            name: runner.last_error or runner.feed.progress.state
            for name, runner in runners.items()
            if not runner.ready
        }

    return serve_routes(config.http, make_health_routes(registry, unready))
