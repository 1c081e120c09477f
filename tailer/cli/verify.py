"""`tailer verify`: prove that a table's events, or the copy of one, are exact."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from tailer.api.options import ReadOptions
from tailer.api.ranges import check_range
from tailer.cli.feeds import find_feed
from tailer.cli.progress import ComparisonProgress
from tailer.cli.table import on_table
from tailer.config.feeds import load_config
from tailer.daemon.assembly import make_feed_sink, make_table_log
from tailer.errors import ConfigError, TableError
from tailer.feed.options import FeedOptions
from tailer.log.table import TableLog
from tailer.log.times import first_version, last_version
from tailer.sink import Sink
from tailer.verify.mirror import MirrorVerdict, verify_mirror
from tailer.verify.repair import repair_mirror
from tailer.verify.table import Verdict, verify_versions

#: How often a copy is compared, and repaired if it differs.
_REPAIRS_MAX = 4


async def verify(arguments: argparse.Namespace) -> int:
    """Print the verdicts; return the exit status: 1 if one is not exact."""
    if arguments.dry_run and not arguments.repair:
        raise ConfigError("--dry-run is for --repair; without it nothing is written")
    if arguments.feed is not None:
        return await _verify_mirror(arguments)
    if arguments.repair:
        raise ConfigError("--repair needs a feed: `tailer verify CONFIG FEED --repair`")
    return await _verify_table(arguments)


@on_table
async def _verify_table(arguments: argparse.Namespace, log: TableLog) -> int:
    start, end = arguments.start, arguments.end
    first = await log.earliest_version() if start is None else await first_version(log, start)
    last = await log.latest_version() if end is None else await last_version(log, end)
    check_range(first, last)
    status = 0
    with ComparisonProgress(f"versions {first} to {last}") as progress:
        options = ReadOptions.from_arguments(arguments).feed_options()
        async for verdict in verify_versions(log, first, last, options, progress):
            progress.drawn.close()  # a verdict is printed where it was drawn
            status = max(status, _show_verdict(verdict))
    return status


async def _verify_mirror(arguments: argparse.Namespace) -> int:
    """Compare the copy that a feed keeps with its table."""
    config = load_config(Path(arguments.table))
    feed = await find_feed(config, arguments.feed)
    sink = make_feed_sink(config, feed)
    log = make_table_log(config, feed)
    try:
        options = feed.options.for_sink(sink)
        if arguments.repair:
            return await _repair_mirror(arguments, log, sink, options, config.progress_s)
        versions = await _choose_versions(arguments, log, sink)
        with ComparisonProgress(feed.name, config.progress_s) as progress:
            verdicts = [
                await verify_mirror(log, sink, feed.name, options, v, progress) for v in versions
            ]
        return max(map(_show_mirror, verdicts))
    except TableError as e:
        raise e.at(table=log.store.root) from None
    finally:
        with anyio.CancelScope(shield=True):
            await log.store.aclose()


async def _choose_versions(
    arguments: argparse.Namespace, log: TableLog, sink: Sink
) -> Sequence[int | None]:
    """Return the versions to verify a copy at; None is the one that it has."""
    if arguments.start is None and arguments.end is None:
        return [None]
    if not sink.traits.keeps_versions:
        raise ConfigError("--from and --to are for a table or a history; a mirror has one version")
    if arguments.start is None or arguments.end is None:
        raise ConfigError("a history is verified --from VERSION --to VERSION, or without both")
    first = await first_version(log, arguments.start)
    last = await last_version(log, arguments.end)
    check_range(first, last)
    return range(first, last + 1)


async def _repair_mirror(
    arguments: argparse.Namespace,
    log: TableLog,
    sink: Sink,
    options: FeedOptions,
    progress_s: float,
) -> int:
    """Write what differs, and prove the copy again; what a feed wrote meanwhile may differ too."""
    feed, dry = arguments.feed, arguments.dry_run
    for _ in range(_REPAIRS_MAX):
        with ComparisonProgress(feed, progress_s) as progress:
            verdict, counts = await repair_mirror(log, sink, feed, options, progress, dry_run=dry)
        status = _show_mirror(verdict)
        if counts.refused:
            print(f"{counts.refused} rows can't be repaired: {counts.reason}", file=sys.stderr)
        if not counts.transactions:
            break
        what = f"{counts.rows} rows to write, {counts.removed} keys to remove"
        if dry:
            print(f"{what}; nothing was written")
            break
        what = f"{counts.rows} rows written, {counts.removed} keys removed"
        print(f"repaired: {what}, in {counts.transactions} transactions")
    return status


def _show_mirror(verdict: MirrorVerdict) -> int:
    where = f"version {verdict.version}, {verdict.rows} rows in the mirror"
    if verdict.exact:
        print(f"{where}: exact")
        return 0
    print(f"{where}: {verdict.missing} rows missing, {verdict.surplus} rows too many")
    for one in verdict.differences:
        what = "differs" if one.missing and one.surplus else (
            "is missing" if one.missing else "is not in the table"
        )  # fmt: skip
        print(f"  {json.dumps(one.key, default=str)} {what}")
    return 1


def _show_verdict(verdict: Verdict) -> int:
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
