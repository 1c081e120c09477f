"""One function per command. Each is given the parsed arguments and returns the exit status."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tailer.changes import Offset
from tailer.cli.output import jsonl_options, open_output, output_kind
from tailer.decode.output import output_schema
from tailer.decode.rows import DecodeOptions
from tailer.delta.checkpoint import WITH_STATISTICS
from tailer.delta.features import cdf_enabled
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, TableError, TailerError, printable
from tailer.feed.options import FeedOptions
from tailer.feed.pipe import pipe
from tailer.feed.progress import FeedProgress
from tailer.feed.read import read_changes
from tailer.feed.run import Feed, run_feed
from tailer.log.follow import FollowOptions
from tailer.log.history import (
    checksum_errors,
    history,
    parse_timestamp,
    start_offset,
    version_at_or_after,
    version_at_or_before,
)
from tailer.log.mapping_removals import mapping_removals
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.process.signals import EXIT_INTERRUPTED, signalled, until_stopped
from tailer.sink import load_sink
from tailer.store import open_store

if TYPE_CHECKING:
    from tailer.verify.table import Verdict

__all__ = ["run"]

#: The number of characters of a writer's value that are shown on a line.
_TEXT_MAX = 200


def run(arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name, until a signal ends it."""
    if arguments.command in _WITH_OWN_END:
        return anyio.run(_COMMANDS[arguments.command], arguments)
    return anyio.run(_until_stopped, arguments)


async def _until_stopped(arguments: argparse.Namespace) -> int:
    """Run a command that a signal only interrupts. Raises :class:`TableError` if the interrupt
    leaves its output file unwritten."""
    status: int | None = None

    async def work() -> None:
        nonlocal status
        status = await _COMMANDS[arguments.command](arguments)

    await until_stopped(work)
    if status is not None:
        return status
    if arguments.command == "tail":
        return 0
    if getattr(arguments, "output", None) is not None:
        raise TableError("interrupted; no output file was written", table=arguments.table)
    print(f"tailer: {arguments.command} was interrupted before its end", file=sys.stderr)
    return signalled() or EXIT_INTERRUPTED


def _on_table(
    command: Callable[[argparse.Namespace, TableLog], Awaitable[int]],
) -> Callable[[argparse.Namespace], Awaitable[int]]:
    """Wrap a command so that it gets the log of its table."""

    async def opened(arguments: argparse.Namespace) -> int:
        async with _table_log(arguments) as log:
            try:
                return await command(arguments, log)
            except TableError as e:
                raise e.at(table=log.store.root) from None

    return opened


def _decode_options(arguments: argparse.Namespace, target: TableState | None) -> DecodeOptions:
    return DecodeOptions(
        batch_rows_max=arguments.batch_rows_max,
        writer_timezone=arguments.writer_timezone,
        target=target,
        columns=tuple(arguments.columns) if arguments.columns else None,
        row_ids=arguments.with_ids,
    )


def _feed_options(
    arguments: argparse.Namespace, target: TableState | None, *, bounded: bool = True
) -> FeedOptions:
    return FeedOptions(
        follow=FollowOptions(same_table=not bounded),
        change_source=arguments.change_source,
        key=tuple(arguments.key),
        decode=_decode_options(arguments, target),
    )


def _check_columns(columns: list[str] | None, state: TableState, table: str) -> None:
    for name in columns or ():
        if name not in state.schema.names:
            raise ConfigError(
                f"{table} has no column {name!r}; it has {', '.join(state.schema.names)}"
            )


@asynccontextmanager
async def _table_log(arguments: argparse.Namespace) -> AsyncIterator[TableLog]:
    """Open the log of the command's table; close its connections afterwards."""
    options: dict[str, Any] = {}
    for option in arguments.store_options:
        key, separator, value = option.partition("=")
        if not separator:
            raise ConfigError(f"--store-option {option!r} must be KEY=VALUE")
        options[key] = value
    torn = getattr(arguments, "torn_commit_max_s", 10.0)
    store = open_store(arguments.table, options)
    try:
        yield TableLog(store, torn_commit_max_s=torn)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def _tail(arguments: argparse.Namespace, log: TableLog) -> int:
    offset = await start_offset(log, arguments.start)
    if arguments.last is not None:
        _check_range(offset.version, arguments.last)
    if arguments.columns:
        _check_columns(arguments.columns, (await log.snapshot()).state, log.store.root)

    async def start(_: TableLog) -> Offset:
        return offset

    feed = Feed(
        name="tail",
        log=log,
        sink=load_sink("jsonl").from_options(
            {**jsonl_options("-", ids=arguments.with_ids), "notices": arguments.with_notices},
            Path(),
        ),
        offsets=MemoryOffsetStore(),
        start=start,
        progress=FeedProgress("tail", time.time),
        on_retry=_tell_once(),
        jitter=random.random,
        options=_feed_options(arguments, None, bounded=False),
        last=arguments.last,
    )
    await run_feed(feed)
    return 0


def _tell_once() -> Callable[[TailerError], None]:
    """Return a function that shows the user what the command waits for, once per cause."""
    told = ""

    def tell(error: TailerError) -> None:
        nonlocal told
        if str(error) != told:
            told = str(error)
            print(f"tailer: {told}; trying again", file=sys.stderr)

    return tell


async def _range(arguments: argparse.Namespace, log: TableLog) -> tuple[int, int]:
    """Return the first and last version of a bounded read, both inclusive."""
    newest = await log.latest_version()
    first, last = arguments.starting_version, arguments.ending_version
    if first is None:
        first = await version_at_or_after(log, parse_timestamp(arguments.starting_timestamp))
    if arguments.ending_timestamp is not None:
        last = await version_at_or_before(log, parse_timestamp(arguments.ending_timestamp))
    last = newest if last is None else last
    for name, version in (("starting", first), ("ending", last)):
        if version > newest:
            raise TableError(
                f"the {name} version is {version}, and the newest is {newest}",
                table=log.store.root,
                hint="ask for versions that exist",
            )
    _check_range(first, last)
    return first, last


def _check_range(first: int, last: int) -> None:
    if last < first:
        raise ConfigError(f"the range ends at version {last}, before it starts at {first}")


async def _read(arguments: argparse.Namespace, log: TableLog) -> int:
    kind = output_kind(arguments.output)
    first, last = await _range(arguments, log)
    end = (await log.snapshot(last)).state
    _check_columns(arguments.columns, end, log.store.root)
    # One file has one schema: the end version's, as in Spark. JSON lines each have their version's.
    target = None if kind == "jsonl" else end
    options = _feed_options(arguments, target)
    if target is not None:
        removals = await mapping_removals(log, first, last, end)
        options = replace(options, decode=replace(options.decode, removals=removals))
    schema = output_schema(end, options.decode.columns)
    changes = read_changes(log, Offset(first), last, options)
    async with open_output(arguments.output, schema, ids=arguments.with_ids) as output:
        await pipe(changes, output.write)
    return 0


async def _snapshot(arguments: argparse.Namespace, log: TableLog) -> int:
    version = arguments.at_version
    if arguments.timestamp is not None:
        version = await version_at_or_before(log, parse_timestamp(arguments.timestamp))
    snapshot = await log.snapshot(version)
    if arguments.output:
        decode = DecodeOptions(writer_timezone=arguments.writer_timezone)
        start = Offset(snapshot.version, snapshot=True)
        rows = read_changes(log, start, snapshot.version, FeedOptions(decode=decode))
        schema = output_schema(snapshot.state)
        async with open_output(arguments.output, schema, ids=False) as output:
            await pipe(rows, output.write)
        return 0
    files = size = 0
    records: int | None = 0  # unknown if one of the files has no statistics
    async for add in log.live_files(snapshot, WITH_STATISTICS):
        files, size = files + 1, size + add.size
        deleted = add.deletion_vector.cardinality if add.deletion_vector else 0
        if records is not None:
            records = None if add.num_records is None else records + add.num_records - deleted
    found = _describe(snapshot.version, snapshot.state, files, size, records)
    print(json.dumps({**found, "checksum_errors": await checksum_errors(log, snapshot)}, indent=2))
    return 0


def _describe(
    version: int, state: TableState, files: int, size: int, rows: int | None
) -> dict[str, Any]:
    protocol, table = state.protocol, state.metadata
    return {
        "version": version,
        "table_id": table.id,
        "name": table.name,
        "files": files,
        "bytes": size,
        "rows": rows,
        "change_data_feed": cdf_enabled(protocol, table),
        "min_reader_version": protocol.min_reader_version,
        "min_writer_version": protocol.min_writer_version,
        "reader_features": sorted(protocol.reader_features or ()),
        "writer_features": sorted(protocol.writer_features or ()),
        "partition_columns": list(table.partition_columns),
        "properties": table.configuration,
        "schema": json.loads(table.schema_string),
    }


def _plain(value: Any) -> str:
    """Return a value of a commitInfo, which may be anything, as text for a terminal line."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return printable(text, _TEXT_MAX)


async def _history(arguments: argparse.Namespace, log: TableLog) -> int:
    entries = [entry async for entry in history(log)]
    for entry in entries[::-1][: arguments.limit]:
        moment = dt.datetime.fromtimestamp(entry.timestamp_ms / 1000, dt.UTC)
        when = moment.isoformat(timespec="milliseconds")
        operation = _plain(entry.info.get("operation"))
        if arguments.json:
            # A commitInfo's own timestamp is the writer's clock, not the commit's.
            fields = {**entry.info, "version": entry.version, "timestamp": when}
            print(json.dumps(fields))
        else:
            counts = f"+{entry.adds} -{entry.removes} files, {entry.cdcs} cdc"
            print(f"{entry.version:>8}  {when}  {operation:<20} {counts}")
    return 0


async def _verify(arguments: argparse.Namespace, log: TableLog) -> int:
    from tailer.verify.table import verify

    if arguments.topic is not None:
        return _show(await _verify_topic(arguments, log))
    first = await log.earliest_version() if arguments.first is None else arguments.first
    last = await log.latest_version() if arguments.last is None else arguments.last
    _check_range(first, last)
    status = 0
    async for verdict in verify(log, first, last, _feed_options(arguments, None)):
        status = max(status, _show(verdict))
    return status


async def _verify_topic(arguments: argparse.Namespace, log: TableLog) -> Verdict:
    from tailer.verify.topic import TopicSource, verify_topic

    if arguments.bootstrap_servers is None:
        raise ConfigError("--topic needs --bootstrap-servers")
    topic = TopicSource(arguments.topic, arguments.bootstrap_servers, _settings(arguments))
    last = await log.latest_version() if arguments.last is None else arguments.last
    options = _feed_options(arguments, None)
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


async def _shares(arguments: argparse.Namespace) -> int:
    from tailer.cli.shares import list_shares

    return await list_shares(arguments)


async def _run(arguments: argparse.Namespace) -> int:
    from tailer.config.feeds import load_config
    from tailer.daemon.run import run_daemon

    return await run_daemon(load_config(Path(arguments.config)))


async def _check(arguments: argparse.Namespace) -> int:
    from tailer.config.feeds import load_config
    from tailer.daemon.run import check_feeds

    return await check_feeds(load_config(Path(arguments.config)))


async def _spark(arguments: argparse.Namespace) -> int:
    from tailer.config.feeds import load_config

    try:
        from tailer.cli.spark import run_cluster
        from tailer.spark.pipeline import PipelineOptions
    except ModuleNotFoundError as e:
        raise ConfigError(
            f"Spark is not installed ({e}); install the extra: pip install 'delta-tailer[spark]'"
        ) from None
    settings = [setting.partition("=") for setting in arguments.conf]
    for key, equals, _ in settings:
        if not equals:
            raise ConfigError(f"--conf {key!r} must be KEY=VALUE")
    options = PipelineOptions(
        available_now=arguments.available_now,
        interval_s=arguments.interval_s,
        trigger_bytes_max=arguments.trigger_bytes_max,
        master=arguments.master,
        conf={key: value for key, _, value in settings},
    )
    return run_cluster(load_config(Path(arguments.config)), options)


async def _offsets(arguments: argparse.Namespace) -> int:
    from tailer.cli.offsets import offsets

    return await offsets(arguments)


async def _share(arguments: argparse.Namespace) -> int:
    from tailer.share_server.serve import share

    return await share(arguments)


_COMMANDS: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
    "tail": _on_table(_tail),
    "read": _on_table(_read),
    "run": _run,
    "check": _check,
    "snapshot": _on_table(_snapshot),
    "history": _on_table(_history),
    "offsets": _offsets,
    "verify": _on_table(_verify),
    "share": _share,
    "spark": _spark,
    "shares": _shares,
}

#: A signal ends these cleanly, and they handle it themselves.
_WITH_OWN_END = ("run", "share", "spark")
