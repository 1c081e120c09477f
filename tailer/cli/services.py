"""The commands that run a configuration file: the daemon, Spark, the sharing server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import anyio

from tailer.config.feeds import Config, load_config
from tailer.config.readers import Readers
from tailer.errors import ConfigError
from tailer.process.signals import leave_process


async def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it, or all feeds once; return the exit status."""
    once = {"--until": arguments.until, "--give-up-after": arguments.patience_s}
    once["--json"] = arguments.json or None
    if arguments.once:
        limits = {} if arguments.patience_s is None else {"patience_s": arguments.patience_s}
        until = None if arguments.until == "now" else arguments.until
        config = load_config(Path(arguments.config))
        return await _run_once(config, None, until=until, as_json=arguments.json, **limits)
    if given := [name for name, value in once.items() if value is not None]:
        raise ConfigError(f"{given[0]} is for a run that ends; add --once")
    return await _run_daemon(load_config(Path(arguments.config)), None)


async def _run_daemon(config: Config, readers: Readers | None) -> int:
    from tailer.daemon.run import run_daemon

    return await run_daemon(config, readers)


async def _run_once(config: Config, readers: Readers | None, **options: Any) -> int:
    from tailer.daemon.once import OnceOptions, run_once

    return await run_once(config, OnceOptions(**options), readers)


async def check(arguments: argparse.Namespace) -> int:
    """Check the configuration, its tables and its sinks; return the exit status."""
    from tailer.daemon.check import check_feeds

    return await check_feeds(load_config(Path(arguments.config)), as_json=arguments.json)


async def spark(arguments: argparse.Namespace) -> int:
    """Run the feeds on a Spark cluster; return the exit status."""
    try:
        from tailer.spark.pipeline.cluster import ClusterOptions, SparkCluster
        from tailer.spark.pipeline.run import ClusterReaders
    except ModuleNotFoundError as e:
        raise ConfigError(
            f"Spark is not installed ({e}); install the extra: pip install 'delta-tailer[spark]'"
        ) from None
    settings = [setting.partition("=") for setting in arguments.conf]
    for key, equals, _ in settings:
        if not equals:
            raise ConfigError(f"--conf {key!r} must be KEY=VALUE")
    options = ClusterOptions(
        partition_bytes_max=arguments.partition_bytes_max,
        driver_bytes_max=arguments.driver_bytes_max,
        master=arguments.master,
        conf={key: value for key, _, value in settings},
    )
    config, cluster = load_config(Path(arguments.config)), SparkCluster(options)
    try:
        run_feeds = _run_once if arguments.available_now else _run_daemon
        status = await run_feeds(config, ClusterReaders(cluster))
    finally:
        with anyio.CancelScope(shield=True):
            has_ended = await cluster.aclose()
    if not has_ended:
        leave_process(status)
    return status


async def share(arguments: argparse.Namespace) -> int:
    """Run the sharing server, or manage its tokens; return the exit status."""
    from tailer.share_server import serve

    return await serve.run_share_command(arguments)
