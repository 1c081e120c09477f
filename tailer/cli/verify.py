"""`tailer verify`: prove that a table's or a topic's events are exact."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tailer.cli.reading import feed_options
from tailer.cli.table import check_range, on_table
from tailer.errors import ConfigError
from tailer.log.table import TableLog
from tailer.verify.table import Verdict
from tailer.verify.table import verify as verdicts

__all__ = ["verify"]


@on_table
async def verify(arguments: argparse.Namespace, log: TableLog) -> int:
    """Print the verdicts; return the exit status: 1 if one is not exact."""
    if arguments.topic is not None:
        return _show(await _verify_topic(arguments, log))
    first = await log.earliest_version() if arguments.first is None else arguments.first
    last = await log.latest_version() if arguments.last is None else arguments.last
    check_range(first, last)
    status = 0
    async for verdict in verdicts(log, first, last, feed_options(arguments, None)):
        status = max(status, _show(verdict))
    return status


async def _verify_topic(arguments: argparse.Namespace, log: TableLog) -> Verdict:
    from tailer.verify.topic import TopicSource, verify_topic

    if arguments.bootstrap_servers is None:
        raise ConfigError("--topic needs --bootstrap-servers")
    topic = TopicSource(arguments.topic, arguments.bootstrap_servers, _settings(arguments))
    last = await log.latest_version() if arguments.last is None else arguments.last
    options = feed_options(arguments, None)
    return await verify_topic(log, topic, arguments.first, last, options)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the consumer's settings from the file that the arguments name."""
    file = arguments.consumer_config
    if file is None:
        return {}
    try:
        settings = json.loads(Path(file).read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{file} can't be read ({e})") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return settings


def _show(verdict: Verdict) -> int:
    """Print a verdict; return its exit status."""
    where = f"versions {verdict.first} to {verdict.last}, {verdict.events} events"
    if verdict.exact:
        print(f"{where}: exact")
        return 0
    print(f"{where}: {verdict.missing} rows missing, {verdict.surplus} rows too many")
    for row in verdict.examples.to_pylist() if verdict.examples is not None else ():
        surplus = row.pop("surplus")
        print(f"  {surplus:+d} {json.dumps(row, default=str)}")
    return 1
