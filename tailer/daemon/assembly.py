"""From a feed's configuration to the parts that it runs on."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio

from tailer.changes import Offset
from tailer.config.feeds import Config, FeedConfig, SinkConfig
from tailer.daemon.discovery import discover_tables, is_pattern
from tailer.errors import ConfigError, placing
from tailer.feed.copy_repairs import RepairCopy, RepairCounts
from tailer.feed.parked_file import ParkedFile
from tailer.feed.progress import FeedProgress, Observer
from tailer.feed.run import Feed
from tailer.log.starts import find_start_to_keep
from tailer.log.table import TableLog
from tailer.offsets import OffsetStore
from tailer.offsets.document import make_document_name
from tailer.offsets.owner import keep_place
from tailer.shape.expressions import Condition
from tailer.sink import OWN_PREFIX, Sink, make_sink
from tailer.storage import is_url, open_offset_store, open_store, storage_of
from tailer.store.traffic import Traffic
from tailer.verify.repair import repair_mirror

if TYPE_CHECKING:
    from tailer.daemon.metrics import MetricFamilies

#: Placeholder in a sink's options for the text that a pattern's stars match.
_TABLE = "{table}"


def make_offset_store(config: Config, feed: str, *, standby: bool = False) -> OffsetStore:
    """Return the store of the feed's offset. ``standby``: acquiring it waits for its owner."""
    options = config.stores.get(storage_of(str(config.state)).name, {})
    with placing(f"{config.path}: daemon.state"):
        return open_offset_store(
            config.state, feed, options, standby=standby, lease_s=config.lease_s
        )


def lock_place(config: Config) -> None:
    """Lock the place in the configuration's lock folder. Raises :class:`ConfigError` naming it."""
    with placing(f"{config.path}: daemon.lock_folder"):
        keep_place(config.lock_folder)


def _resolve_address(config: Config, table: str) -> str:
    """Resolve a table's address or pattern; a relative path is relative to the configuration
    file."""
    local = "://" not in table and not table.startswith(("file:", "~"))
    return str(config.folder / table) if local else table


def make_table_log(config: Config, feed: FeedConfig, traffic: Traffic | None = None) -> TableLog:
    """Return the log of a feed's table."""
    with placing(f"{config.path}: feeds.{feed.name}"):
        address = _resolve_address(config, feed.table)
        store = open_store(address, feed.store, traffic)
    return TableLog(store)


def _make_sink(config: Config, place: str, sink: SinkConfig) -> Sink:
    with placing(f"{config.path}: feeds.{place}"):
        return make_sink(sink.type, sink.options, config.folder)


def make_feed_sink(config: Config, feed: FeedConfig) -> Sink:
    """Return the feed's sink. Raises :class:`ConfigError` naming the invalid key."""
    sink = _make_sink(config, f"{feed.name}.sink", feed.sink)
    if feed.options.selection.operations and sink.traits.copies:
        raise ConfigError(
            f"{config.path}: feeds.{feed.name}.operations is given, but a mirror needs all "
            "changes; leave it out"
        )
    return sink


def _check_spill_folder(config: Config, feed: FeedConfig) -> None:
    """Check the spill folder at the start: only a large version needs it, which may come late."""
    folder = feed.options.diff.spill_folder
    if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{config.path}: feeds.{feed.name}.spill_folder is {folder!r}, which is not a folder "
            "that this user may write to; make it"
        )


def make_park_sink(config: Config, feed: FeedConfig) -> Sink | None:
    """Return the sink of the rows that the feed's sink refuses, if it has one."""
    if feed.options.policies.on_reject != "park":
        return None
    if feed.park is not None:
        return _make_sink(config, f"{feed.name}.park", feed.park)
    file = _default_parked_file(config, feed)
    # Its rows have our names as the sink's have: of a table that has these names, it says others.
    options = {
        "path": str(file.absolute()),
        "private": True,
        "notices": False,
        "own_prefix": feed.sink.options.get("own_prefix", OWN_PREFIX),
    }
    return _make_sink(config, f"{feed.name}.park", SinkConfig("jsonl", options))


def _default_parked_file(config: Config, feed: FeedConfig) -> Path:
    if not isinstance(config.state, Path):
        raise ConfigError(
            f"{config.path}: feeds.{feed.name}.park is missing; with a state that is not "
            "local there is no folder for refused rows"
        )
    return config.state / f"{make_document_name(feed.name, '.parked.jsonl')}.parked.jsonl"


def find_parked_file(config: Config, feed: FeedConfig) -> Path:
    """Return the file of the rows that the feed's sink refuses. Raises :class:`ConfigError` if the
    feed parks nothing, or elsewhere."""
    if feed.options.policies.on_reject != "park" or feed.park is not None:
        what = "parks no rows" if feed.park is None else "parks its rows in a sink of its own"
        raise ConfigError(
            f'the feed {feed.name!r} {what}; without `park`, on_reject = "park" keeps them in a '
            "file beside the state"
        )
    return _default_parked_file(config, feed)


def _make_parked_file(config: Config, feed: FeedConfig) -> ParkedFile | None:
    if feed.options.policies.on_reject != "park" or feed.park is not None:
        return None
    limit = feed.options.policies.park_bytes_max
    return ParkedFile(feed.name, _default_parked_file(config, feed), limit)


def check_targets(config: Config) -> None:
    """Refuse two sinks that write to one target which only one sink may use.

    Raises :class:`ConfigError` naming both. No feed of a pattern may write where another feed
    writes, and its sink must be valid for any table.
    """
    writers: dict[str, str] = {}
    paths: dict[str, Any] = {}
    for name, feed in config.feeds.items():
        if is_pattern(feed.table):
            _check_pattern_targets(config, feed)
            continue
        sink, park = make_feed_sink(config, feed), make_park_sink(config, feed)
        for place, writer, sink_config in (("sink", sink, feed.sink), ("park", park, feed.park)):
            target = None if writer is None else writer.traits.exclusive
            path = None if sink_config is None else sink_config.options.get("path")
            if target in writers:
                same = f" ({paths[target]} and {path} are one file)" if path is not None else ""
                raise ConfigError(
                    f"{config.path}: feeds.{name}.{place} writes to {target}, as {writers[target]} "
                    f"does; each must have its own{same}"
                )
            if target is not None:
                writers[target], paths[target] = f"feeds.{name}.{place}", path


def _check_pattern_targets(config: Config, feed: FeedConfig) -> None:
    _check_spill_folder(config, feed)
    one, two = (_build_feed_config(feed, match, feed.table) for match in ("a", "b"))
    target, other = (make_feed_sink(config, each).traits.exclusive for each in (one, two))
    make_park_sink(config, one)
    if target is not None and target == other:
        raise ConfigError(
            f"{config.path}: feeds.{feed.name}.sink writes all tables of the pattern to {target}; "
            f"each must have its own: put {_TABLE} into it"
        )


def find_feed_start(config: Config, feed: FeedConfig, sink: Sink) -> str:
    """Return where a feed without a saved offset starts.

    Raises :class:`ConfigError` for a copy of the table that would lack the rows that are there.
    """
    copies = sink.traits.copies
    if copies and feed.start == "latest":
        raise ConfigError(
            f"{config.path}: feeds.{feed.name}.from is 'latest', but a mirror needs the rows that "
            "the table already has; remove it, or set it to 'snapshot'"
        )
    return feed.start or ("snapshot" if copies else "latest")


def _make_progress(feed: str) -> FeedProgress:
    """Return what counts a feed's progress and, where traces are asked for, sends them too."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return FeedProgress(feed, time.time)
    try:
        from tailer.daemon.traces import TracedProgress
    except ImportError as e:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need OpenTelemetry ({e}): "
            "pip install 'delta-tailer[otel]', or unset it"
        ) from e
    return TracedProgress(feed, time.time)


def _make_repair(
    config: Config, feed: FeedConfig, sink: Sink, traffic: Traffic | None
) -> RepairCopy | None:
    """Return what sets a copy right beside its feed; None for a sink that keeps none."""
    if not sink.traits.copies or sink.traits.keeps_versions:
        return None

    async def repair(where: Condition | None, observer: Observer) -> RepairCounts:
        log, copy = make_table_log(config, feed, traffic), make_feed_sink(config, feed)
        options = feed.options.for_sink(copy)
        try:
            return (
                await repair_mirror(log, copy, feed.name, options, observer, where=where)
            ).counts
        finally:
            with anyio.CancelScope(shield=True):
                await log.store.aclose()

    return repair


def assemble_feed(
    config: Config,
    feed: FeedConfig,
    families: MetricFamilies | None = None,
    traffic: Traffic | None = None,
) -> Feed:
    """Return the feed, ready to run. Nothing is opened, reached or acquired yet.

    Raises :class:`ConfigError` naming the invalid key.
    """
    _check_spill_folder(config, feed)
    log = make_table_log(config, feed, traffic)
    sink = make_feed_sink(config, feed)

    async def start(log: TableLog) -> Offset:
        return await find_start_to_keep(log, find_feed_start(config, feed, sink))

    progress = _make_progress(feed.name)
    if families is not None:
        families.watch_feed(progress)
    return Feed(
        name=feed.name,
        log=log,
        sink=sink,
        offsets=make_offset_store(config, feed.name, standby=True),
        start=start,
        progress=progress,
        jitter=random.random,
        options=feed.options,
        park=make_park_sink(config, feed),
        parked=_make_parked_file(config, feed),
        repair=_make_repair(config, feed, sink, traffic),
    )


@dataclass(frozen=True, slots=True)
class PatternFeeds:
    """The feeds that a pattern stands for, by name: ``NAME/<match>``.

    ``refused`` has a sentence for each table that is not followed, by its address.
    """

    feeds: dict[str, FeedConfig]
    refused: dict[str, str]


async def find_pattern_feeds(config: Config, feed: FeedConfig) -> PatternFeeds:
    """Return the feeds that a pattern stands for now.

    ``{table}`` in a sink's options is replaced by the text that the stars match.
    """
    with placing(f"{config.path}: feeds.{feed.name}.table"):
        discovered = await discover_tables(_resolve_address(config, feed.table), feed.store)
    feeds = [_build_feed_config(feed, match, table) for match, table in discovered.tables.items()]
    refused = {
        table: f"{table} is not followed: {match!r}, the match of the pattern, can't be part of "
        "a name; rename its folder, or make it a separate feed"
        for table, match in sorted(discovered.unclean.items())
    }
    for match, tables in discovered.shared.items():
        for table in tables:
            other_tables = " and ".join(other for other in tables if other != table)
            refused[table] = (
                f"{table} is not followed: feed {feed.name}/{match} would be it, or "
                f"{other_tables}; rename one of the folders, or make it a separate feed"
            )
    for folder in discovered.closed:
        refused[folder] = (
            f"{folder} is not followed, if it is a table: this user may not list it; give it the "
            "right to, or choose a pattern without this folder"
        )
    return PatternFeeds({one.name: one for one in feeds}, refused)


async def list_feed_configs(
    config: Config, refused: Callable[[str, str], None] = lambda _, __: None
) -> dict[str, FeedConfig]:
    """Return all feeds of a configuration by name; patterns give the feeds that they find now.

    ``refused`` is called with a pattern's name and the sentence about a table that is not followed.
    """
    configs: dict[str, FeedConfig] = {}
    for name, feed in config.feeds.items():
        if is_pattern(feed.table):
            tables = await find_pattern_feeds(config, feed)
            configs |= tables.feeds
            if not tables.feeds and not tables.refused:
                refused(name, f"no table matches {feed.table}")
            for sentence in tables.refused.values():
                refused(name, sentence)
        else:
            configs[name] = feed
    return configs


def _build_feed_config(feed: FeedConfig, match: str, table: str) -> FeedConfig:
    """Return the feed of one table of a pattern."""
    return replace(
        feed,
        name=f"{feed.name}/{match}",
        table=table,
        sink=_fill_sink_config(feed.sink, match),
        park=feed.park and _fill_sink_config(feed.park, match),
    )


def _fill_sink_config(sink: SinkConfig, match: str) -> SinkConfig:
    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(_TABLE, quote(match) if is_url(value) else match)
        if isinstance(value, Mapping):
            return {k: fill(v) for k, v in value.items()}
        return [fill(v) for v in value] if isinstance(value, list) else value

    return SinkConfig(sink.type, fill(sink.options))
