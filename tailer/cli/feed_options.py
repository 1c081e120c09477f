"""The options that `tail`, `read` and `verify` share."""

from __future__ import annotations

import argparse

from msgspec import structs

from tailer.decode.rows import DecodeOptions
from tailer.decode.tracking import OnRead
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, meant
from tailer.feed.options import FeedOptions
from tailer.log.follow import FollowOptions
from tailer.shape.check import check_selection
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.selection import Selection

_BATCH_ROWS_MAX = 65_536


def feed_options(
    arguments: argparse.Namespace,
    target: TableState | None,
    *,
    bounded: bool = True,
    on_read: OnRead | None = None,
) -> FeedOptions:
    """Return the options of a read. ``target`` is the state whose schema all rows get; ``on_read``
    counts the bytes that are read."""
    return FeedOptions(
        follow=FollowOptions(same_table=not bounded),
        change_source=arguments.change_source,
        key=tuple(arguments.key),
        decode=structs.replace(_decode_options(arguments, target), on_read=on_read),
        selection=selection_of(arguments),
        spans=True,
    )


def _decode_options(arguments: argparse.Namespace, target: TableState | None) -> DecodeOptions:
    return DecodeOptions(
        batch_rows_max=_BATCH_ROWS_MAX,
        writer_timezone=arguments.writer_timezone,
        page_checksums=arguments.page_checksums,
        target=target,
        row_ids=arguments.with_ids,
    )


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Return the selection of --where and --select. Raises :class:`ConfigError` for what is not
    understood or not pure."""
    name = "--select"
    try:
        select = parse_select(arguments.select or "")
        name = "--where"
        where = parse_condition(arguments.where) if arguments.where else None
    except ConfigError as e:
        raise ConfigError(f"{name} {e}") from None
    return Selection(select, where)


def check_columns(arguments: argparse.Namespace, state: TableState, table: str) -> None:
    """Raise :class:`ConfigError` for a selection or a column of --key that does not fit the
    table."""
    try:
        check_selection(selection_of(arguments), state, arguments.writer_timezone)
    except ConfigError as e:
        raise ConfigError(f"{table}: {e}") from None
    for name in getattr(arguments, "key", ()):
        if name not in state.schema.names:
            raise ConfigError(
                f"{table} has no column {name!r}{meant(name, state.schema.names)}; it has "
                f"{', '.join(state.schema.names)}"
            )
