"""``tailer check``: what a start would do first, tried without leaving anything behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pyarrow as pa

from tailer.changes import METADATA_FIELDS, Offset
from tailer.config.feeds import Config, FeedConfig
from tailer.daemon.assembly import (
    assemble_feed,
    check_targets,
    find_feed_start,
    list_feed_configs,
    lock_place,
    make_feed_sink,
    make_offset_store,
    make_park_sink,
    make_table_log,
)
from tailer.daemon.discovery import is_pattern
from tailer.delta.arrow_types import arrow_schema
from tailer.delta.features import row_tracking_enabled
from tailer.delta.snapshot import TableState
from tailer.errors import (
    ConfigError,
    OffsetHeld,
    SinkRejected,
    TailerError,
    may_heal,
    meant,
    mistakes,
    out_of_reach,
    placing,
    printable,
)
from tailer.feed.fitting import Fitting
from tailer.feed.publish import check_target
from tailer.files.durable import try_place
from tailer.log.same_table import check_place
from tailer.log.starts import find_start_offset
from tailer.offsets import OffsetStore
from tailer.shape.check import check_selection
from tailer.sink import Sink


async def check_feeds(config: Config, *, as_json: bool = False) -> int:
    """Reach every table and sink, and print where each feed would start: a sentence a feed, or a
    JSON object.

    Returns 0, or 1 if one of them can't be reached.
    """
    status = 0
    lock_place(config)
    _try_state(config)
    with mistakes() as part:  # errors in the file itself come first
        for feed in config.feeds.values():
            if not is_pattern(feed.table):
                with part():
                    assemble_feed(config, feed)
    check_targets(config)

    def refuse(name: str, sentence: str) -> None:
        nonlocal status
        status = 1
        facts = {"feed": name, "ok": False, "error": sentence}
        print(json.dumps(facts) if as_json else printable(f"{name}: {sentence}"))

    with mistakes() as part:
        for name, feed in (await list_feed_configs(config, refuse)).items():
            with part():
                try:
                    facts = {"feed": name, "ok": True, **await _check_feed(config, feed)}
                    print(json.dumps(facts) if as_json else printable(_format_feed(facts)))
                except ConfigError:
                    raise
                except TailerError as e:
                    refuse(name, str(e))
    return status


def _format_feed(facts: Mapping[str, Any]) -> str:
    """Format the line about a feed that would start."""
    access = f"; {facts['access']}" if facts["access"] else ""
    return (
        f"{facts['feed']}: ok, {facts['table']} (id {facts['table_id']}{access}) to "
        f"{facts['sink']}, from version {facts['version']}, index {facts['index']} "
        f"({facts['start']})"
    )


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


async def _check_feed(config: Config, feed: FeedConfig) -> dict[str, Any]:
    """Return where a feed would start, and of what. Raises the error that prevents a start."""
    log = make_table_log(config, feed)
    try:
        state = (await log.load_snapshot()).state
        shown = _check_selection(config, feed, state)
        sink, park = make_feed_sink(config, feed), make_park_sink(config, feed)
        fitting = Fitting(log.store.root, [sink, *([park] if park else ())])
        columns = arrow_schema(shown.schema)
        fitting.check_schema(pa.schema([*columns, *METADATA_FIELDS]))
        _check_key(config, feed, sink, columns.names)
        _check_row_ids(sink, state)
        offsets = make_offset_store(config, feed.name)
        with placing(f"{config.path}: feeds.{feed.name}"):
            has_written = await _check_saved_form(feed.name, sink, offsets)
            sink_offset, offset, owner = await _find_saved_offset(feed.name, sink, offsets)
            if offset is not None:
                await check_place(log, offset)
            check_target(sink, sink_offset, offset, has_written=has_written and not owner)
        await sink.rehearse(feed.name, columns)
        origin = f"saved offset{owner}"
        if offset is None:
            origin = find_feed_start(config, feed, sink)
            offset = await find_start_offset(log, origin)
        access = await log.store.access()
    finally:
        await log.store.aclose()
    return {
        "table": log.store.root,
        "table_id": state.table_id,
        "access": access,
        "sink": feed.sink.type,
        "version": offset.version,
        "index": offset.index,
        "start": origin,
    }


async def _check_saved_form(name: str, sink: Sink, offsets: OffsetStore) -> bool:
    """Raise the error of a start if the form of a sink's records must not change; return whether
    there were any."""
    saved_form = (await offsets.load_orders()).get("delivery") or {}
    sink.check_record_form(name, saved_form or None, await offsets.load())
    return bool(saved_form)


class _SavedOffset(NamedTuple):
    """The offset that a feed's sink has, and the one from which the feed continues. ``owner`` says
    who runs the feed, if its sink could not be tried for that."""

    of_sink: Offset | None
    offset: Offset | None
    owner: str = ""


async def _find_saved_offset(name: str, sink: Sink, offsets: OffsetStore) -> _SavedOffset:
    """Find from where a feed continues.

    Only the owner may open a sink: opening it would fence a running daemon. Reading it does not.
    """
    with suppress(NotImplementedError):
        sink_offset = await sink.look(name)
        return _SavedOffset(sink_offset, sink_offset or await offsets.load())
    try:
        await offsets.acquire()
    except OffsetHeld as held:
        owner = f"; {held.what}, and so its sink was not tried"
        return _SavedOffset(None, await offsets.load(), owner)
    try:
        sink_offset = await sink.open(name)
        return _SavedOffset(sink_offset, sink_offset or await offsets.load())
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()
            await offsets.release()


def _check_key(config: Config, feed: FeedConfig, sink: Sink, columns: list[str]) -> None:
    """Refuse a sink's key columns that it does not get from the table's present schema."""
    place = f"{config.path}: feeds.{feed.name}.sink.key"
    for name in sink.traits.key_columns:
        if name not in columns:
            raise ConfigError(
                f"{place} names {name!r}{meant(name, columns)}, and the feed's columns are: "
                f"{', '.join(columns)}"
            )


def _check_row_ids(sink: Sink, state: TableState) -> None:
    """Refuse a copy by row id of a table whose rows have none."""
    if sink.traits.row_ids and not row_tracking_enabled(state.protocol, state.metadata):
        raise SinkRejected(
            "the copy is kept by row ids, but row tracking is not enabled for the table; name the "
            'columns that identify a row, as in key = ["id"], or enable row tracking'
        )


def _check_selection(config: Config, feed: FeedConfig, state: TableState) -> TableState:
    """Return what sinks see of the table's present state. Raises :class:`ConfigError` for a
    selection or a key that does not fit it."""
    place, names, options = f"{config.path}: feeds.{feed.name}", state.schema.names, feed.options
    for name in options.key:
        if name not in names:
            raise ConfigError(
                f"{place}.key names {name!r}{meant(name, names)}, and the table's columns are: "
                f"{', '.join(names)}"
            )
    try:
        return check_selection(options.selection, state, options.decode.writer_timezone)
    except ConfigError as e:
        raise ConfigError(f"{place}.{e}") from None
