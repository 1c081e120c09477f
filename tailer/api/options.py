"""The options of a read, as the command line and Python have them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Self

from msgspec import Struct, structs

from tailer.decode.rows import DecodeOptions
from tailer.decode.tracking import OnRead
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, meant, placing
from tailer.feed.options import FeedOptions
from tailer.log.follow import FollowOptions
from tailer.plan.rules import ChangeSource
from tailer.settings import OWN_PREFIX_SETTING, WRITER_TIMEZONE_SETTING, Setting, SettingTable
from tailer.shape.check import check_selection
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.selection import Selection
from tailer.sink import OWN_PREFIX

_BATCH_ROWS_MAX = 65_536


def _parse_names(value: Any) -> tuple[str, ...]:
    """Return a list of names; one name may stand for itself."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(value)
    return tuple(value)


def _parse_expressions(value: Any) -> tuple[str, ...]:
    """Return a list of expressions. One that is empty may have been meant to select nothing."""
    names = _parse_names(value)
    if not "".join(names).strip():
        raise ValueError(value)
    return names


def _check_given(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


# As the command line has them; the help is there.
_SETTINGS: Mapping[str, Setting] = {
    "where": Setting("text", None, "", form="a condition", parse=_check_given),
    "select": Setting("any", None, "", form="a text or a list of texts", parse=_parse_expressions),
    "key": Setting("any", (), "", form="a name or a list of names", parse=_parse_names),
    "change_source": Setting("text", "auto", "", choices=("auto", "cdf", "derived")),
    "with_ids": Setting("flag", False, ""),
    "own_prefix": OWN_PREFIX_SETTING,
    "writer_timezone": WRITER_TIMEZONE_SETTING,
    "page_checksums": Setting("flag", True, ""),
}  # fmt: skip


class ReadOptions(Struct, frozen=True, kw_only=True):
    """How rows are found, chosen and decoded."""

    selection: Selection = Selection()
    key: tuple[str, ...] = ()
    change_source: ChangeSource = "auto"
    with_ids: bool = False
    own_prefix: str = OWN_PREFIX
    writer_timezone: str = "UTC"
    page_checksums: bool = True

    @classmethod
    def from_options(cls, owner: str, **options: Any) -> Self:
        """Return the options of a call of ``owner``; None is an option that is not given. Raises
        :class:`ConfigError`, also for a condition or a list that is not understood or not pure."""
        given = {name: value for name, value in options.items() if value is not None}
        settings = {name: setting for name, setting in _SETTINGS.items() if name in options}
        return cls._from_values(SettingTable(owner, settings).take(given), "")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Return the options of a command, which has some of them or all. Raises the errors of
        :meth:`from_options`."""
        given = {n: getattr(arguments, n) for n in _SETTINGS if hasattr(arguments, n)}
        return cls._from_values({**given, "key": tuple(given.get("key", ()))}, "--")

    @classmethod
    def _from_values(cls, options: dict[str, Any], flag: str) -> Self:
        name = "select"
        try:
            select = parse_select(options.pop(name, None) or "")
            name = "where"
            where = options.pop(name, None)
            selection = Selection(select, parse_condition(where) if where else None)
        except ConfigError as e:
            raise ConfigError(f"{flag}{name} {e}") from None
        return cls(selection=selection, **options)

    def feed_options(
        self,
        target: TableState | None = None,
        *,
        bounded: bool = True,
        on_read: OnRead | None = None,
    ) -> FeedOptions:
        """Return the options of the feed. ``target`` is the state whose schema all rows get;
        ``on_read`` counts the bytes that are read."""
        decode = DecodeOptions(
            batch_rows_max=_BATCH_ROWS_MAX,
            writer_timezone=self.writer_timezone,
            page_checksums=self.page_checksums,
            target=target,
            row_ids=self.with_ids,
        )
        return FeedOptions(
            follow=FollowOptions(same_table=not bounded),
            change_source=self.change_source,
            key=self.key,
            decode=structs.replace(decode, on_read=on_read),
            selection=self.selection,
            spans=True,
        )

    def names_columns(self) -> bool:
        """Return whether the table has to be asked if the options fit it."""
        return bool(self.selection.select or self.selection.where or self.key)

    def check(self, state: TableState, table: str) -> None:
        """Raise :class:`ConfigError` for a selection or a column of the key that does not fit the
        table."""
        with placing(table):
            check_selection(self.selection, state, self.writer_timezone)
        for name in self.key:
            if name not in state.schema.names:
                raise ConfigError(
                    f"{table} has no column {name!r}{meant(name, state.schema.names)}; it has "
                    f"{', '.join(state.schema.names)}"
                )
