"""Many feeds in one process, with their metrics, health and control over HTTP.

Feeds are independent: one that ends with an error leaves the others running. The daemon ends when
every feed has failed, or on SIGINT and SIGTERM, when each has finished its current batch. On
SIGHUP it reads its configuration again.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

from tailer.changes import METADATA_FIELDS, Offset
from tailer.config.feeds import Config, FeedConfig, load_config
from tailer.daemon.assembly import (
    assemble,
    check_targets,
    feed_sink,
    feed_start,
    feeds_of_pattern,
    offset_store,
    park_sink,
    table_log,
)
from tailer.daemon.discovery import is_pattern
from tailer.daemon.supervisor import Supervisor
from tailer.delta.features import row_tracking_enabled
from tailer.delta.snapshot import TableState
from tailer.errors import (
    ConfigError,
    OffsetHeld,
    SinkRejected,
    TailerError,
    cannot_listen,
    may_heal,
    mistakes,
    out_of_reach,
    printable,
)
from tailer.feed.fitting import Fitting
from tailer.feed.publish import check_target
from tailer.feed.reading import Reading
from tailer.files.durable import is_everyones, try_place
from tailer.log.same_table import check_place
from tailer.log.starts import start_offset
from tailer.offsets import OffsetStore
from tailer.offsets.owner import keep_place
from tailer.process.logs import set_up_logs
from tailer.process.signals import until_stopped
from tailer.sink import Looks, Rehearses, Sink, delivery_of, sink_traits
from tailer.store.traffic import StoreMetrics

__all__ = ["check_feeds", "feed_configs", "offset_store", "run_daemon", "table_log"]


async def run_daemon(config: Config) -> int:
    """Run all feeds of a configuration; returns the exit status.

    0 after a signal, 1 if a feed has failed, 2 if every failure is an error in the configuration.
    """
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

    from tailer.daemon.metrics import MetricFamilies

    _keep_place(config)
    logger = set_up_logs(config.log_format, config.log_level)
    if isinstance(config.state, Path) and is_everyones(config.state):
        logger.warning(
            "daemon.state: every user may write to %s, and so replace offsets; chmod 700 it",
            config.state,
        )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    families = MetricFamilies(registry)
    supervisor = Supervisor(
        config, lambda: load_config(config.path), families, StoreMetrics(registry), logger
    )

    async with _serving(config, registry, supervisor):
        stopped = await until_stopped(
            supervisor.run, supervisor.hangup, grace_s=config.stop_s, overdue=supervisor.overdue
        )
    failed = supervisor.failures()
    supervisor.say_end("on request" if stopped else "because every feed has failed or ended")
    for name, error in failed.items():
        print(printable(f"tailer: feed {name}: {error}"), file=sys.stderr)
    return (2 if supervisor.misconfigured() else 1) if failed else 0


def _keep_place(config: Config) -> None:
    try:
        keep_place(config.lock_folder)
    except ConfigError as e:
        raise ConfigError(f"{config.path}: daemon.lock_folder: {e}") from e


@asynccontextmanager
async def _serving(config: Config, registry: Any, supervisor: Supervisor) -> AsyncIterator[None]:
    """Serve metrics, health and control while the block runs."""
    if config.http is None:
        yield
        return
    from tailer.daemon.console import console_routes
    from tailer.daemon.http_api import api_routes, health_routes, serve

    routes = [
        *health_routes(registry, supervisor.unready),
        *api_routes(supervisor, config.token),
        *console_routes(supervisor, config.token),
    ]
    try:
        async with serve(config.http, routes):
            yield
    except OSError as e:
        raise cannot_listen(f"{config.path}: daemon.http", config.http, e) from e


async def feed_configs(
    config: Config, refused: Callable[[str, str], None] = lambda _, __: None
) -> dict[str, FeedConfig]:
    """Return all feeds of a configuration by name; patterns give the feeds that they find now.

    ``refused`` is called with a pattern's name and the sentence about a table that is not followed.
    """
    found: dict[str, FeedConfig] = {}
    for name, feed in config.feeds.items():
        if is_pattern(feed.table):
            tables = await feeds_of_pattern(config, feed)
            found |= tables.feeds
            if not tables.feeds and not tables.refused:
                refused(name, f"no table matches {feed.table}")
            for sentence in tables.refused.values():
                refused(name, sentence)
        else:
            found[name] = feed
    return found


async def check_feeds(config: Config) -> int:
    """Reach every table and sink, and print where each feed would start.

    Returns 0, or 1 if one of them can't be reached.
    """
    status = 0
    _keep_place(config)
    _try_state(config)
    with mistakes() as part:  # errors in the file itself come first
        for feed in config.feeds.values():
            if not is_pattern(feed.table):
                with part():
                    assemble(config, feed)
    check_targets(config)

    def refused(name: str, sentence: str) -> None:
        nonlocal status
        print(printable(f"{name}: {sentence}"))
        status = 1

    with mistakes() as part:
        for name, feed in (await feed_configs(config, refused)).items():
            with part():
                try:
                    print(printable(f"{name}: ok, {await _check_feed(config, feed)}"))
                except ConfigError:
                    raise
                except TailerError as e:
                    refused(name, str(e))
    return status


def _try_state(config: Config) -> None:
    """Refuse a folder of offsets that can't be written, or is full."""
    if isinstance(config.state, Path):
        try:
            try_place(config.state / "offset")
        except OSError as e:
            what = f"{config.path}: daemon.state: {config.state} can't be written"
            if may_heal(e):
                raise out_of_reach(what, e) from e
            raise ConfigError(f"{what} ({e.strerror}); let this user write there") from e


async def _check_feed(config: Config, feed: FeedConfig) -> str:
    """Return where a feed would start. Raises the error that prevents a start."""
    log = table_log(config, feed)
    try:
        state = (await log.snapshot()).state
        _check_selection(config, feed, state.schema.names, state)
        sink, park = feed_sink(config, feed), park_sink(config, feed)
        fitting = Fitting(log.store.root, [sink, *([park] if park else ())])
        schema = Reading.of(log, feed.options).no_rows(state).schema
        fitting.check_schema(schema)
        _check_key(config, feed, sink, state.schema.names)
        _check_row_ids(sink, state)
        offsets = offset_store(config, feed.name)
        try:
            delivered = await _check_delivery(feed.name, sink, offsets)
            kept, offset, owner = await _saved(feed.name, sink, offsets)
            if offset is not None:
                await check_place(log, offset)
            check_target(sink, kept, offset, delivered=delivered and not owner)
        except ConfigError as e:
            raise ConfigError(f"{config.path}: feeds.{feed.name}: {e}") from e
        if isinstance(sink, Rehearses):
            columns = [*schema][: -len(METADATA_FIELDS)]
            await sink.rehearse(feed.name, pa.schema(columns))
        origin = f"saved offset{owner}"
        if offset is None:
            origin = feed_start(config, feed, sink)
            offset = await start_offset(log, origin)
    finally:
        await log.store.aclose()
    return (
        f"{log.store.root} (id {state.table_id}) to {feed.sink.type}, "
        f"from version {offset.version}, index {offset.index} ({origin})"
    )


async def _check_delivery(name: str, sink: Sink, offsets: OffsetStore) -> bool:
    """Raise the error of a start if the form of a sink's records must not change; return whether
    there were any."""
    kept = (await offsets.load_orders()).get("delivery") or {}
    delivery_of(sink, name, kept, await offsets.load())
    return bool(kept)


async def _saved(
    name: str, sink: Sink, offsets: OffsetStore
) -> tuple[Offset | None, Offset | None, str]:
    """Return the offset that a feed's sink has, the one from which the feed goes on, and who runs
    the feed, as text, if the sink could not be tried for that.

    Only the owner may open a sink: opening it would fence a running daemon. Reading it does not.
    """
    if isinstance(sink, Looks):
        kept = await sink.look(name)
        return kept, kept or await offsets.load(), ""
    try:
        await offsets.acquire()
    except OffsetHeld as held:
        return None, await offsets.load(), f"; {held.what}, and so its sink was not tried"
    try:
        kept = await sink.open(name)
        return kept, kept or await offsets.load(), ""
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
            await offsets.release()


def _check_key(config: Config, feed: FeedConfig, sink: Sink, names: list[str]) -> None:
    """Refuse a sink's key columns that it does not get from the table's present schema."""
    place = f"{config.path}: feeds.{feed.name}.sink.key"
    known = feed.options.selection.columns or names
    for name in sink_traits(sink).key_columns:
        if name not in known:
            raise ConfigError(
                f"{place} names {name!r}, and the feed's columns are: {', '.join(known)}"
            )


def _check_row_ids(sink: Sink, state: TableState) -> None:
    """Refuse a copy by row id of a table whose rows have none."""
    if sink_traits(sink).row_ids and not row_tracking_enabled(state.protocol, state.metadata):
        raise SinkRejected(
            "the copy is kept by row ids, but row tracking is not enabled for the table; name the "
            'columns that identify a row, as in key = ["id"], or enable row tracking'
        )


def _check_selection(config: Config, feed: FeedConfig, names: list[str], state: Any) -> None:
    """Refuse columns that the table does not have now."""
    place = f"{config.path}: feeds.{feed.name}"
    selection = feed.options.selection
    known = {name.lower() for name in names}
    for key, wanted in (
        ("columns", selection.columns or ()),
        ("key", feed.options.key),
        ("mask", tuple(selection.masks)),
    ):
        for name in wanted:
            if (name.lower() if key == "mask" else name) not in (known if key == "mask" else names):
                raise ConfigError(
                    f"{place}.{key} names {name!r}, and the table's columns are: {', '.join(names)}"
                )
    if selection.where is not None:
        try:
            selection.where.check(state)
        except ConfigError as e:
            raise ConfigError(f"{place}.where {e}") from None
