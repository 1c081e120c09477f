"""Many feeds in one process, with their metrics, health and control over HTTP.

Feeds are independent: one that ends with an error leaves the others running. The daemon ends when
every feed has failed, or on SIGINT and SIGTERM, when each has finished its current batch. On
SIGHUP it reads its configuration again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from tailer.config.feeds import Config, load_config
from tailer.config.readers import Readers
from tailer.daemon.console import make_console_routes
from tailer.daemon.http_api import make_api_routes, make_health_routes, serve_routes
from tailer.daemon.metrics import MetricFamilies
from tailer.daemon.set_up import set_up_process
from tailer.daemon.supervisor import Supervisor
from tailer.errors import (
    cannot_listen,
    printable,
)
from tailer.process.signals import run_until_stopped
from tailer.store.traffic import StoreMetrics


async def run_daemon(config: Config, readers: Readers | None = None) -> int:
    """Run all feeds of a configuration by these readers; returns the exit status.

    0 after a signal, 1 if a feed has failed, 2 if every failure is an error in the configuration.
    """
    logger = set_up_process(config)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    families = MetricFamilies(registry)
    readers = readers or Readers()

    async def load() -> Config:
        return await readers.complete_config(load_config(config.path))

    supervisor = Supervisor(
        await readers.complete_config(config),
        load,
        families,
        StoreMetrics(registry),
        logger,
        readers,
    )

    async with _serve_daemon(config, registry, supervisor, logger):
        stopped = await run_until_stopped(
            supervisor.run,
            supervisor.handle_hangup,
            grace_s=config.stop_s,
            overdue=supervisor.log_overdue,
        )
    failed = supervisor.find_failures()
    supervisor.log_end("on request" if stopped else "because every feed has failed or ended")
    for name, error in failed.items():
        print(printable(f"tailer: feed {name}: {error}"), file=sys.stderr)
    return (2 if supervisor.is_misconfigured() else 1) if failed else 0


@asynccontextmanager
async def _serve_daemon(
    config: Config, registry: Any, supervisor: Supervisor, logger: logging.Logger
) -> AsyncIterator[None]:
    """Serve metrics, health and control while the block runs."""
    if config.http is None:
        yield
        return
    routes = [
        *make_health_routes(registry, supervisor.find_unready),
        *make_api_routes(supervisor, config.token),
        *make_console_routes(supervisor, config.token),
    ]
    try:
        async with serve_routes(config.http, routes) as port:
            host = config.http[0]
            place = f"[{host}]" if ":" in host else host
            logger.info("console, metrics and health checks at http://%s:%d", place, port)
            yield
    except OSError as e:
        raise cannot_listen(f"{config.path}: daemon.http", config.http, e) from e
