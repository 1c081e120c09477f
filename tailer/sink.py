"""The sink contract, and the look-up of sinks by name.

Built-in and third-party sinks are found the same way: by an entry point in the group
``tailer.sinks`` whose name is the sink's ``type`` in the configuration.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import ConfigError, meant
from tailer.settings import Setting, SettingTable

__all__ = [
    "GROUP",
    "Announces",
    "DeclaresSettings",
    "KeepsProgress",
    "KnowsDelivery",
    "Looks",
    "Prepares",
    "Reopens",
    "SilentNotices",
    "Sink",
    "SinkFactory",
    "SinkTraits",
    "announce",
    "delivery_of",
    "load_sink",
    "make_sink",
    "reopen",
    "sink_traits",
    "take_options",
]

GROUP = "tailer.sinks"


@dataclass(frozen=True, slots=True)
class SinkTraits:
    """What a sink asks of its feed. An unknown trait is a ``TypeError`` that names it.

    ``paired``: an update is one row, with its preimage in :attr:`ChangeBatch.before`; it is paired
    by ``key_columns`` where the feed has no key, and ``check`` refuses columns that the table does
    not have. ``row_ids``: batches carry stable row ids (:attr:`ChangeBatch.row_ids`), which costs
    a column more to read. ``exclusive`` names a target that no other sink may write to.
    """

    paired: bool = False
    key_columns: tuple[str, ...] = ()
    row_ids: bool = False
    exclusive: str | None = None


class Sink(typing.Protocol):
    """Where change batches go. One feed uses one sink; calls never overlap.

    A sink that asks something of its feed has an attribute or property ``traits``, which is a
    :class:`SinkTraits`; one without asks nothing.
    """

    async def open(self, feed: str) -> Offset | None:
        """Get ready to write for the feed of that name.

        A sink that stores progress together with the data returns the offset to resume from;
        any other returns None, and the feed's offset store decides.
        """

    async def write(self, batch: ChangeBatch) -> None:
        """Write a batch; return only when it is durable.

        Called with empty batches too, which carry nothing but an offset. Raises
        :class:`TransientError` for what may heal, :class:`SinkRejected` for what will not; in
        either case the batch comes again, or nothing does.
        """

    async def aclose(self) -> None:
        """Release everything; what was written stays."""


@typing.runtime_checkable
class Announces(typing.Protocol):
    """A sink that takes notices too. Those that do not are passed by."""

    async def announce(self, notice: Notice) -> None:
        """Write a notice between the batches; return only when it is as durable as they are.

        The same errors as of :meth:`Sink.write`. A notice may come again, with the same id and
        bytes; a sink that stores progress with the data stores ``notice.next_offset`` with it.
        """


@typing.runtime_checkable
class Looks(typing.Protocol):
    """A sink that can tell whether it could be opened without opening it."""

    async def look(self, feed: str) -> Offset | None:
        """What :meth:`Sink.open` would return, or the error that it would raise, as far as that
        can be seen: nothing is changed, and a daemon that runs the feed is not disturbed."""


@typing.runtime_checkable
class KeepsProgress(typing.Protocol):
    """A sink that stores progress with the data, and can be told another one."""

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the progress of a feed that does not run; None forgets it.

        Does nothing where the sink's options leave the progress to the feed's offset store.
        """


@typing.runtime_checkable
class KnowsDelivery(typing.Protocol):
    """A sink whose records others read by rules that a change of its options may break."""

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """What the records are like under the sink's options, a JSON object that the feed keeps
        beside its offset; empty where the sink keeps it itself, with the progress.

        ``kept`` is that of the records before, None if there were none, and ``at`` where the feed
        goes on. Raises :class:`ConfigError` if the two differ and the options do not accept it.
        """


def delivery_of(
    sink: object, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
) -> Mapping[str, Any]:
    """What a sink delivers, as it says itself; empty if it does not."""
    return sink.delivery(feed, kept or None, at) if isinstance(sink, KnowsDelivery) else {}


@typing.runtime_checkable
class Prepares(typing.Protocol):
    """A sink that can begin with a batch before its turn: encode it, say."""

    def prepare(self, batch: ChangeBatch) -> None:
        """Called once for each batch when it has been read, in order, mostly while the one before
        it is being written; then :meth:`Sink.write` follows with the same object, or nothing does.

        Neither waits nor raises: what goes wrong is raised by the write.
        """


@typing.runtime_checkable
class Reopens(typing.Protocol):
    """A sink that writes to files which other programs may rotate."""

    async def reopen(self) -> None:
        """Leave the files that were renamed or removed, and begin those that the paths name now.

        Called when the operator says that files were rotated, also while another call runs, and
        before :meth:`Sink.open` and after :meth:`Sink.aclose`. Does not raise: what goes wrong is
        raised by the next write.
        """


class SilentNotices:
    """For sinks whose target has no place for notices: they are passed by."""

    async def announce(self, notice: Notice) -> None:
        """See :class:`Announces`."""


async def announce(sink: object, notice: Notice) -> None:
    """Give a sink a notice, if it takes any."""
    if isinstance(sink, Announces):
        await sink.announce(notice)


async def reopen(sink: object) -> None:
    """Have a sink reopen its files, if it has any."""
    if isinstance(sink, Reopens):
        await sink.reopen()


def sink_traits(sink: object) -> SinkTraits:
    """What a sink asks of its feed. Raises :class:`ConfigError` for traits of another class."""
    traits = getattr(sink, "traits", None)
    if traits is None:
        # Sinks written for 0.1 have an attribute for each trait.
        return SinkTraits(
            paired=bool(getattr(sink, "paired", False)),
            key_columns=tuple(getattr(sink, "key_columns", ())),
            row_ids=bool(getattr(sink, "row_ids", False)),
            exclusive=getattr(sink, "exclusive", None),
        )
    if not isinstance(traits, SinkTraits):
        raise ConfigError(
            f"the sink {type(sink).__name__} has traits of the class {type(traits).__name__}; "
            "make them a tailer.sink.SinkTraits"
        )
    return traits


class SinkFactory(typing.Protocol):
    """What an entry point of the group names: usually the sink's class. It may declare its options:
    see :class:`DeclaresSettings`."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> Sink:
        """The sink of one configuration table, less its ``type``.

        ``folder`` is what relative paths are relative to. Raises :class:`ConfigError` naming the
        key that is missing, unknown or of the wrong kind.
        """


@typing.runtime_checkable
class DeclaresSettings(typing.Protocol):
    """A factory that says which options its sink has.

    Then they are checked before :meth:`SinkFactory.from_options` gets them, with the errors that
    all options have ("did you mean ...?"), and complete: those that are not given have their
    defaults.
    """

    settings: Mapping[str, Setting]


@cache
def _installed() -> dict[str, EntryPoint]:
    """The sinks by type. To look for them takes 10 ms, for all that is installed is gone through,
    and a configuration may have hundreds."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_sink(kind: str) -> SinkFactory:
    """The sink of that type. Raises :class:`ConfigError`, listing what there is."""
    if kind not in _installed():
        _installed.cache_clear()  # it may have been installed since
    known = _installed()
    if kind not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"there is no sink of type {kind!r}{meant(kind, known)}; installed are: {installed}"
        )
    try:
        return known[kind].load()  # type: ignore[no-any-return]  # a promise of the group
    except ImportError as e:
        raise ConfigError(
            f"the sink {kind!r} can't be loaded ({e}); is its extra installed?"
        ) from e


def make_sink(kind: str, options: Mapping[str, Any], folder: Path) -> Sink:
    """The sink of that type with these options; see :meth:`SinkFactory.from_options`."""
    factory = load_sink(kind)
    if isinstance(factory, DeclaresSettings):
        options = SettingTable(f"sink {kind!r}", factory.settings).take(options)
    return factory.from_options(options, folder)


def take_options(
    kind: str,
    options: Mapping[str, Any],
    allowed: Mapping[str, tuple[type, Any]],
    what: str = "sink",
) -> dict[str, Any]:
    """A sink's options, checked: ``allowed`` maps each key to its type and default.

    The short form of :class:`DeclaresSettings`. A default of ``...`` makes the key required;
    ``what`` is what messages call it. Raises :class:`ConfigError` naming the key and what is
    allowed.
    """
    settings = {name: _setting(*declaration) for name, declaration in allowed.items()}
    return SettingTable(f"{what} {kind!r}", settings).take(options)


def _setting(expected: type, default: Any) -> Setting:
    def parse(value: Any) -> Any:
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ValueError(value)
        return value

    return Setting("any", default, "", form=f"of type {expected.__name__}", parse=parse)
