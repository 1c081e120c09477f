"""``CONFIG.toml``: read, checked, and turned into values.

Every mistake is one line that names the file, the key and what is allowed. ``${NAME}`` in a string
is replaced by the environment variable NAME, so that secrets stay out of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, get_args

from tailer.config.settings import DAEMON, FEED, TABLE_OF_OPTIONS, Section, read_document
from tailer.decode.options import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.errors import ConfigError, mistakes, placing
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.policy import Policies
from tailer.log.follow import FollowOptions
from tailer.process.signals import GRACE_S
from tailer.settings import REQUIRED, Setting
from tailer.shape.expressions import Condition, Select, parse_condition, parse_select
from tailer.shape.masks import Mask
from tailer.shape.selection import Selection
from tailer.storage import remote_schemes, storage_named, storage_of

#: The options of all tables of a storage, by its name.
Stores: TypeAlias = Mapping[str, Mapping[str, Any]]
_KEY_BYTES = range(16, 65)
_POLL_MIN_S = 0.5
_TOP = {
    "daemon": TABLE_OF_OPTIONS,
    "store": TABLE_OF_OPTIONS,
    "catalogs": TABLE_OF_OPTIONS,
    "feeds": Setting("table", REQUIRED, "", form="tables named [feeds.NAME]"),
}
#: Tables that only `tailer share` reads; their environment variables need not be set.
_OF_THE_SHARING_SERVER = ("share", "shares", "recipients")


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """One sink: its type and its own options. They may hold secrets, so they are not shown."""

    type: str
    options: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class FeedConfig:
    """One ``[feeds.NAME]``: a table, its sink and the options between them.

    ``table`` may be a pattern; then there is one feed for each table that it finds.
    """

    name: str
    table: str
    start: str | None
    options: FeedOptions
    sink: SinkConfig
    park: SinkConfig | None = None
    store: dict[str, Any] = field(default_factory=dict, repr=False)
    discover_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration. ``http`` is (host, port), or None if it is off; ``state`` a folder
    or an address, ``stores`` the options that all tables of a storage share, by its name."""

    path: Path
    http: tuple[str, int] | None
    state: Path | str
    feeds: dict[str, FeedConfig]
    token: str = field(default="", repr=False)
    log_format: str = "console"
    log_level: str = "info"
    measure_s: float = 30.0
    progress_s: float = 60.0
    stop_s: float = GRACE_S
    lease_s: float = 60.0
    lock_folder: Path | None = None
    stores: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        """Return the folder that the file's relative paths are relative to."""
        return self.path.parent


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Load the configuration of a file. Raises :class:`ConfigError` for the mistakes in it, with
    those of all feeds."""
    document = read_document(path, environment, _OF_THE_SHARING_SERVER)
    top = Section(path, "", document, _TOP)
    daemon = Section(path, "daemon", top["daemon"], DAEMON)
    stores = _parse_stores(path, top["store"])
    if top["catalogs"]:
        stores["catalogs"] = _parse_catalogs(path, top["catalogs"])
    feeds = top["feeds"]
    state = _parse_state(daemon, path.parent)
    if not feeds:
        raise ConfigError(f"{path}: feeds is empty; describe one as [feeds.NAME]")
    found: dict[str, FeedConfig] = {}
    with mistakes() as part:
        for name, values in feeds.items():
            with part():
                found[name] = _parse_feed(path, name, values, stores)
    return Config(
        path=path,
        http=daemon["http"],
        state=state,
        feeds=found,
        token=daemon["token"],
        log_format=daemon["log_format"],
        log_level=daemon["log_level"],
        measure_s=daemon["measure_s"],
        progress_s=daemon["progress_s"],
        stop_s=daemon["stop_s"],
        lease_s=daemon["lease_s"],
        lock_folder=path.parent / daemon["lock_folder"] if daemon["lock_folder"] else None,
        stores=stores,
    )


def _parse_state(daemon: Section, folder: Path) -> Path | str:
    text: str = daemon["state"]
    if not text:
        raise daemon.make_error("state", "is empty, and must be a folder or s3://bucket/prefix")
    return text if "://" in text else folder / text


def _parse_feed(path: Path, name: str, values: Any, stores: Stores) -> FeedConfig:
    if not name or "/" in name:
        raise ConfigError(f"{path}: feeds has the name {name!r}; it must not be empty or hold a /")
    feed = Section(path, f"feeds.{name}", values, FEED)
    table = feed["table"]
    if "**" in table:
        raise feed.make_error(
            "table", f"is {table!r}; a * stands for one folder's name: write /*/*/ for two levels"
        )
    return FeedConfig(
        name=name,
        table=table,
        start=feed["from"] or None,
        options=_make_feed_options(feed),
        sink=_parse_sink(feed, "sink"),
        park=_parse_sink(feed, "park") if feed["park"] else None,
        store=_merge_store_options(feed, stores),
        discover_s=feed["discover_s"],
    )


def _parse_stores(path: Path, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables ``[store.NAME]``, checked."""
    if not values:
        return {}  # the schemes are not looked up
    section = Section(
        path, "store", values, dict.fromkeys(remote_schemes(catalogs=False), TABLE_OF_OPTIONS)
    )
    for name in section.given:
        with placing(f"{path}: store.{name}"):
            storage_named(name).check_options(section[name])
    return section.given


def _parse_catalogs(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables ``[catalogs.NAME]``, checked."""
    for name, options in values.items():
        with placing(f"{path}: catalogs.{name}"):
            if not isinstance(options, dict):
                raise ConfigError("it must be a table")
            storage_of("uc://").check_options(options)
    return {**values}


def _merge_store_options(feed: Section, stores: Stores) -> dict[str, Any]:
    """Return the options of the table's store."""
    try:
        shared = storage_of(feed["table"]).options_of(feed["table"], stores)
    except ConfigError:
        shared = {}  # opening the table says so
    options = {**shared, **feed["store"]}
    if also := feed["also"]:
        folder = feed.file.parent
        options["also"] = [one if "://" in one else str(folder / one) for one in also]
    return options


def _make_feed_options(feed: Section) -> FeedOptions:
    return FeedOptions(
        change_source=feed["change_source"],
        key=tuple(feed["key"]),
        diff=DiffOptions(
            memory_bytes_max=feed["diff_memory_bytes_max"],
            spill_folder=str(feed.file.parent / spill) if (spill := feed["spill_folder"]) else None,
        ),
        decode=DecodeOptions(
            batch_rows_max=feed["batch_rows_max"],
            batch_bytes_max=feed["batch_bytes_max"],
            writer_timezone=feed["writer_timezone"],
            page_checksums=feed["page_checksums"],
        ),
        follow=FollowOptions(min(_POLL_MIN_S, feed["poll_max_s"]), feed["poll_max_s"]),
        retry=RetryOptions(pause_max_s=feed["retry_max_s"]),
        selection=_parse_selection(feed),
        policies=Policies(
            on_schema_change=feed["on_schema_change"],
            on_data_loss=feed["on_data_loss"],
            on_reject=feed["on_reject"],
            park_bytes_max=feed["park_bytes_max"],
            on_invalid_text=feed["on_invalid_text"],
        ),
        heartbeat_s=feed["heartbeat_s"],
    )


def _parse_selection(feed: Section) -> Selection:
    masks, key = feed["mask"], feed["mask_key"].encode()
    for column, mask in masks.items():
        if mask not in get_args(Mask):
            allowed = ", ".join(get_args(Mask))
            raise feed.make_error(f"mask.{column}", f"is {mask!r}, and must be one of {allowed}")
    if "hash" in masks.values() and len(key) not in _KEY_BYTES:
        short = f"has {len(key)} bytes" if key else "is missing, by which masks are hashed"
        raise feed.make_error("mask_key", f"{short}, and must have 16 to 64 bytes")
    select: Select | None = None
    where: Condition | None = None
    name = "select"
    try:
        select, name = parse_select(feed["select"]), "where"
        where = parse_condition(feed["where"]) if feed["where"] else None
    except ConfigError as e:
        raise feed.make_error(name, str(e)) from None
    operations = tuple(feed["operations"]) or None
    return Selection(select, where, masks, key, operations, feed["unchanged"])


def _parse_sink(feed: Section, key: str) -> SinkConfig:
    if key not in feed.given:
        raise feed.make_error(key, f"is missing; describe it as [{feed.name}.{key}]")
    values = feed[key]
    kind = values.get("type")
    if kind is None:
        raise feed.make_error(f"{key}.type", "is missing")
    if not isinstance(kind, str):
        raise feed.make_error(f"{key}.type", f"is {kind!r}, and must be a string")
    return SinkConfig(kind, {k: v for k, v in values.items() if k != "type"})
