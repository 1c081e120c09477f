"""The sink contract, and the look-up of sinks by name.

Built-in and third-party sinks are found the same way: by an entry point in the group
``tailer.sinks`` whose name is the sink's ``type`` in the configuration.
"""

from __future__ import annotations

import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import ConfigError, closest, meant
from tailer.plugins.entry_points import installed_points, load_point
from tailer.settings import Setting, SettingTable, own_prefix
from tailer.sink.faults import FaultTable
from tailer.sink.own_names import NO_NAMES, OWN_PREFIX, OwnNames, fold_case

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import pyarrow as pa

__all__ = [
    "GROUP",
    "OWN_PREFIX",
    "Announces",
    "ChecksColumns",
    "DeclaresSettings",
    "FaultTable",
    "KeepsCopy",
    "KeepsProgress",
    "KnowsDelivery",
    "ListsFaults",
    "ListsSettings",
    "Looks",
    "MirrorCopy",
    "OwnNames",
    "Prepares",
    "ReadsMirror",
    "Rehearses",
    "Reopens",
    "SilentNotices",
    "Sink",
    "SinkFactory",
    "SinkTraits",
    "WritesPieces",
    "announce",
    "delivery_of",
    "fold_case",
    "installed_sinks",
    "listed_settings",
    "load_sink",
    "make_sink",
    "own_prefix",
    "reopen",
    "sink_traits",
    "write_pieces",
]

GROUP = "tailer.sinks"


class SinkTraits(Struct, frozen=True):
    """What a sink requires of its feed. An unknown trait is a ``TypeError`` that names it.

    ``paired``: an update is one row, with its preimage in :attr:`ChangeBatch.before`; updates are
    paired by ``key_columns`` if the feed has no key, and ``check`` refuses columns that the table
    does not have. ``row_ids``: batches carry stable row ids (:attr:`ChangeBatch.row_ids`), which
    takes reading one more column. ``exclusive`` names a target that no other sink may write to.
    ``spans``: a batch may have rows of several files and versions (:attr:`ChangeBatch.span`), which
    saves most of the time where versions are small; without it, each batch is of one file.
    ``own`` are the names that the output gives to columns of its own: a table that has one of them
    is refused before anything is written. ``keeps_offset``: the target keeps the offset together
    with what was written, so a target without an offset has nothing of the feed, and a feed that
    has written before stops there. ``copies``: the target is a copy of the table, so a feed that
    begins, begins with a snapshot.
    """

    paired: bool = False
    key_columns: tuple[str, ...] = ()
    row_ids: bool = False
    exclusive: str | None = None
    spans: bool = False
    own: OwnNames = NO_NAMES
    keeps_offset: bool = False
    copies: bool = False


@typing.runtime_checkable
class WritesPieces(typing.Protocol):
    """A sink that writes a batch in pieces, each of which is durable before the next one.

    The feed of a sink that keeps no offset saves its own behind each piece, so that a crash repeats
    one of them, and not the batch.
    """

    def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
        """Write a batch as :meth:`Sink.write` does; yield the offset behind each piece, and behind
        what is durable of one that fails."""


async def write_pieces(
    sink: Sink, batch: ChangeBatch, save: Callable[[Offset], Awaitable[None]]
) -> None:
    """Write a batch to a sink, and ``save`` the offsets within it behind which all is durable."""
    if not isinstance(sink, WritesPieces) or sink_traits(sink).keeps_offset:
        await sink.write(batch)
        return
    async with aclosing(sink.write_pieces(batch)) as offsets:
        async for offset in offsets:
            if offset != batch.next_offset:
                await save(offset)


class Sink(typing.Protocol):
    """Where change batches go. One feed uses one sink. Calls never overlap, except that
    :meth:`Prepares.prepare` may run while the batch before it is being written.

    A sink that requires something of its feed has an attribute or property ``traits``, which is a
    :class:`SinkTraits`; a sink without it requires nothing.
    """

    async def open(self, feed: str) -> Offset | None:
        """Get ready to write for the feed of that name.

        A sink that stores progress together with the data returns the offset to resume from;
        any other returns None, and the feed's offset store decides.
        """

    async def write(self, batch: ChangeBatch) -> None:
        """Write a batch; return only when it is durable. A sink that stores its progress with the
        data may return earlier, as long as :meth:`open` never returns an offset beyond what is.

        Called with empty batches too, which only carry an offset. Raises :class:`TransientError`
        for an error that may pass, :class:`SinkRejected` for a permanent one; in either case the
        next call, if any, has the same batch again.
        """

    async def aclose(self) -> None:
        """Release everything; what was written stays."""


@typing.runtime_checkable
class Announces(typing.Protocol):
    """A sink that takes notices too. Other sinks get none."""

    async def announce(self, notice: Notice) -> None:
        """Write a notice between the batches; return only when it is as durable as they are.

        Raises the errors of :meth:`Sink.write`. A notice may come again, with the same id and
        bytes; a sink that stores progress with the data stores ``notice.next_offset`` with it.
        """


@typing.runtime_checkable
class ListsFaults(typing.Protocol):
    """A sink that says what the errors of its target mean, for the public suite of tests."""

    @property
    def faults(self) -> FaultTable:
        """Return what the codes of the target's errors mean."""


@typing.runtime_checkable
class Looks(typing.Protocol):
    """A sink that can check, without opening it, whether it could be opened."""

    async def look(self, feed: str) -> Offset | None:
        """Return what :meth:`Sink.open` would return, or raise its error, as far as that is visible
        without changing anything, and without disturbing a daemon that runs the feed."""


@typing.runtime_checkable
class ChecksColumns(typing.Protocol):
    """A sink whose target can't hold columns of every type."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise :class:`SinkRejected` for a column that the target can't hold, without looking at
        the target. ``schema`` has the data columns as batches have them. It is called with the
        table's present columns by `tailer check` and when a feed starts, and before the first batch
        of each version that has others."""


@typing.runtime_checkable
class Rehearses(typing.Protocol):
    """A sink that can try what a start does first, and leave nothing behind."""

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """Raise the error of a start: a folder that is not there or full, rights that are missing,
        a table that the target does not take. ``schema`` has the data columns as batches have
        them. For `tailer check`, beside a daemon that may run the feed."""


@typing.runtime_checkable
class KeepsProgress(typing.Protocol):
    """A sink that stores progress with the data, and whose progress can be overwritten."""

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the progress of a feed that is not running; None removes it.

        Does nothing if the sink's options leave the progress to the feed's offset store.
        """


@typing.runtime_checkable
class KeepsCopy(KeepsProgress, typing.Protocol):
    """A sink that stores progress, and whose target may need every change from the beginning on."""

    @property
    def lacks_beginning(self) -> bool:
        """Return whether :meth:`Sink.open` has just begun a target that needs all changes."""


@typing.runtime_checkable
class KnowsDelivery(typing.Protocol):
    """A sink whose records others read by rules that a change of its options may break."""

    def delivery(
        self, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form of the records under the sink's options, a JSON object that the feed
        saves with its offset; empty if the sink itself saves it, with the progress.

        ``kept`` is the form of the records before, None if there were none, and ``at`` where the
        feed continues. Raises :class:`ConfigError` if the two differ and the options do not accept
        it. Called before :meth:`Sink.open`, where a ``kept`` says that the target has been written
        to, and again after it, when the sink may add what it knows of its target by then.
        """


def delivery_of(
    sink: object, feed: str, kept: Mapping[str, Any] | None, at: Offset | None
) -> Mapping[str, Any]:
    """Return the form of a sink's records; empty if the sink does not report it."""
    return sink.delivery(feed, kept or None, at) if isinstance(sink, KnowsDelivery) else {}


@typing.runtime_checkable
class Prepares(typing.Protocol):
    """A sink that can start work on a batch ahead of its write, for example encode it."""

    def prepare(self, batch: ChangeBatch) -> object:
        """Start work on a batch, and return it: it travels with the batch, as
        :attr:`ChangeBatch.prepared`, to the :meth:`Sink.write` that follows, if one does; None if
        there is nothing to keep. Called once for each batch when it has been read, in order, mostly
        while the previous one is being written.

        Neither waits nor raises: errors are raised by the write. A write may also come with a part
        of the batch, or without a call of this, and then has nothing that was prepared.
        """


@typing.runtime_checkable
class Reopens(typing.Protocol):
    """A sink that writes to files which other programs may rotate."""

    async def reopen(self) -> None:
        """Close files that were renamed or removed, and open those that the paths name now.

        Called when the operator says that files were rotated, also while another call runs, and
        before :meth:`Sink.open` and after :meth:`Sink.aclose`. Does not raise: errors are raised by
        the next write.
        """


class MirrorCopy(typing.Protocol):
    """A copy of a table, as it is at one moment. All methods block.

    ``offset`` is where its feed continues, None before the first write; ``key`` are the columns
    that identify a row.
    """

    offset: Offset | None
    key: tuple[str, ...]

    def as_held(self, column: pa.Array) -> pa.Array:
        """Return a column of the table in the form of :meth:`rows`; equal values become equal."""

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of the table's schema, in bounded memory."""


@typing.runtime_checkable
class ReadsMirror(typing.Protocol):
    """A sink that keeps a copy of the table and can read it back, for `tailer verify`."""

    def read_mirror(self, feed: str) -> AbstractContextManager[MirrorCopy]:
        """Provide the copy, without disturbing a daemon that writes it, as far as the target has
        that. Blocking; raises the errors of :meth:`Sink.open`."""


class SilentNotices:
    """For sinks whose target has no place for notices: they are ignored."""

    async def announce(self, notice: Notice) -> None:
        """See :class:`Announces`."""


async def announce(sink: object, notice: Notice) -> None:
    """Send a notice to a sink, if it takes any."""
    if isinstance(sink, Announces):
        await sink.announce(notice)


async def reopen(sink: object) -> None:
    """Make a sink reopen its files, if it has any."""
    if isinstance(sink, Reopens):
        await sink.reopen()


def sink_traits(sink: object) -> SinkTraits:
    """Return what a sink requires of its feed. Raises :class:`ConfigError` for traits of another
    class."""
    traits = getattr(sink, "traits", SinkTraits())
    if not isinstance(traits, SinkTraits):
        raise ConfigError(
            f"the sink {type(sink).__name__} has traits of the class {type(traits).__name__}; "
            "make them a tailer.sink.SinkTraits"
        )
    return traits


class SinkFactory(typing.Protocol):
    """The object that an entry point of the group names: usually the sink's class. It may declare
    its options: see :class:`DeclaresSettings`."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> Sink:
        """Create the sink of one configuration table, without its ``type``.

        ``folder`` is what relative paths are relative to. Raises :class:`ConfigError` naming the
        key that is missing, unknown or of the wrong kind.
        """


@typing.runtime_checkable
class DeclaresSettings(typing.Protocol):
    """A factory that declares its sink's options.

    They are then checked before :meth:`SinkFactory.from_options` gets them, with the same errors
    as all options ("did you mean ...?"), and complete: options that are not given have their
    defaults.
    """

    settings: Mapping[str, Setting]


@typing.runtime_checkable
class ListsSettings(typing.Protocol):
    """A factory that lists its sink's options and checks them itself, because they depend on each
    other: tables of settings by the option that chooses them, "" for those of the sink."""

    listed_settings: Mapping[str, Mapping[str, Setting]]


def listed_settings(factory: SinkFactory) -> Mapping[str, Mapping[str, Setting]]:
    """Return the tables of a sink's options, as of :class:`ListsSettings`; none if the factory does
    not declare them."""
    if isinstance(factory, ListsSettings):
        return factory.listed_settings
    return {"": factory.settings} if isinstance(factory, DeclaresSettings) else {}


def installed_sinks() -> Mapping[str, EntryPoint]:
    """Return the sinks by type."""
    return installed_points(GROUP)


def load_sink(kind: str) -> SinkFactory:
    """Return the sink of that type. Raises :class:`ConfigError`, listing the available types."""
    if kind not in installed_points(GROUP):
        installed_points.cache_clear()  # it may have been installed since
    sinks = installed_points(GROUP)
    if kind not in sinks:
        names = ", ".join(sorted(sinks)) or "none"
        raise ConfigError(
            f"there is no sink of type {kind!r}{meant(kind, sinks)}; installed are: {names}"
        )
    factory: SinkFactory = load_point(sinks[kind], f"the sink {kind!r}")
    _check_names(kind, factory)
    return factory


#: What a sink may have beside the methods of every sink.
_ABILITIES = (
    Announces, ChecksColumns, DeclaresSettings, KeepsCopy, KeepsProgress, KnowsDelivery,
    ListsFaults, ListsSettings, Looks, Prepares, ReadsMirror, Rehearses, Reopens, WritesPieces,
)  # fmt: skip
_OPTIONAL = {"traits"} | {
    name for ability in _ABILITIES for name in {**vars(ability), **ability.__annotations__}
    if not name.startswith("_")
}  # fmt: skip


def _check_names(kind: str, factory: SinkFactory) -> None:
    """Raise :class:`ConfigError` for a name that is nearly that of an ability which the sink lacks:
    it would never be used, and the sink would silently not have the ability."""
    names = {name for name in dir(factory) if not name.startswith("_")}
    for name in sorted(names - _OPTIONAL):
        close = closest(name, sorted(_OPTIONAL - names), 0.85)
        if close is not None:
            raise ConfigError(
                f"the sink {kind!r} has {name!r}: did you mean {close!r}? A name of its "
                "own begins with _"
            )


def make_sink(kind: str, options: Mapping[str, Any], folder: Path) -> Sink:
    """Create the sink of that type with these options; see :meth:`SinkFactory.from_options`."""
    factory = load_sink(kind)
    if isinstance(factory, DeclaresSettings):
        table = SettingTable(f"sink {kind!r}", factory.settings, renames=True)
        options = table.take(options)
    return factory.from_options(options, folder)
