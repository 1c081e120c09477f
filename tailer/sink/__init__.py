"""The sink contract, and the look-up of sinks by name.

Built-in and third-party sinks are found the same way: by an entry point in the group
``tailer.sinks`` whose name is the sink's ``type`` in the configuration.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import ConfigError, meant
from tailer.plugins.contract import Contract
from tailer.plugins.entry_points import installed_points, load_point
from tailer.settings import Setting, SettingTable, own_prefix
from tailer.sink.faults import FaultTable
from tailer.sink.own_names import NO_NAMES, OWN_PREFIX, OwnNames, fold_case

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import pyarrow as pa

    from tailer.sink.encoder import Records

__all__ = [
    "GROUP",
    "OWN_PREFIX",
    "FaultTable",
    "MirrorCopy",
    "MirrorRepair",
    "OwnNames",
    "Sink",
    "SinkTraits",
    "fold_case",
    "installed_sinks",
    "load_sink",
    "make_sink",
    "own_prefix",
    "write_and_save",
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
    begins, begins with a snapshot. ``keeps_versions``: it has the rows of each version, and
    :meth:`Sink.set_offset` takes it back to the version before. ``repaired_beside``: a copy is read
    and repaired (:meth:`Sink.repair_mirror`) while its feed writes, and neither disturbs the other.
    """

    paired: bool = False
    key_columns: tuple[str, ...] = ()
    row_ids: bool = False
    exclusive: str | None = None
    spans: bool = False
    own: OwnNames = NO_NAMES
    keeps_offset: bool = False
    copies: bool = False
    keeps_versions: bool = False
    repaired_beside: bool = False


class MirrorCopy(typing.Protocol):
    """A copy of a table, as it is at one moment. All methods block.

    ``offset`` is where its feed continues, None before the first write; ``key`` are the columns
    that identify a row. :meth:`rows` yields those of the version ``at``, which is None for the one
    that it has, and another one only of a sink that keeps versions.
    """

    offset: Offset | None
    key: tuple[str, ...]
    at: int | None

    def as_held(self, name: str, column: pa.Array) -> pa.Array:
        """Return the table's column ``name`` in the form of :meth:`rows`; equal values become
        equal."""

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of the table's schema, in bounded memory."""


class MirrorRepair(typing.Protocol):
    """A copy of a table whose rows are set right beside the feed that writes it. All methods block.

    Each write is one transaction, which leaves ``offset`` as it is. It raises
    :class:`TransientError` or :class:`ConfigError`, with nothing written, if the feed has written
    since.
    """

    @property
    def offset(self) -> Offset | None:
        """Where the feed continues."""

    def reload(self) -> bool:
        """Look at ``offset`` again; return whether the feed has written since."""

    def replace(self, batch: ChangeBatch) -> None:
        """Make the batch's rows, all inserts, the only ones that the copy has of their keys."""

    def remove(self, keys: pa.Table) -> None:
        """Remove the rows of these keys, which are in the form of :meth:`MirrorCopy.rows`."""


class Sink(Contract, ABC):
    """Where change batches go. One feed uses one sink. Calls never overlap, except that
    :meth:`prepare` may run while the batch before it is being written, and :meth:`reopen` at any
    time.

    The abstract methods are every sink's; each other member is something that a sink may have, and
    its default is what a sink without it does.
    """

    #: The options. They are checked before :meth:`from_options`, with the same errors as all
    #: options ("did you mean ...?"), and complete: options that are not given have their defaults.
    settings: Mapping[str, Setting] = MappingProxyType({})
    #: What the sink requires of its feed.
    traits: SinkTraits = SinkTraits()
    #: What the codes of the target's errors mean, for the public suite of tests.
    faults: FaultTable = FaultTable()
    #: Whether :meth:`open` has just begun a target that needs all changes from the beginning on.
    lacks_beginning: bool = False

    @property
    def targets(self) -> int:
        """How many targets have got rows by their columns, where the sink limits their number."""
        return 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> Sink:
        """Create the sink of one configuration table, without its ``type``.

        ``folder`` is what relative paths are relative to. Raises :class:`ConfigError` naming the
        key that is missing, unknown or of the wrong kind.
        """
        return cls(**options)

    @classmethod
    def format_settings(cls, format: str) -> Mapping[str, Setting]:  # noqa: A002
        """Return the further options that a value of the option ``format`` brings, if the sink has
        that option."""
        return {}

    @classmethod
    def _format_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the sink's options that are its format's."""
        return {name: options[name] for name in cls.format_settings(options["format"])}

    @classmethod
    def listed_settings(cls) -> Mapping[str, Mapping[str, Setting]]:
        """Return all options, for people: tables by the option that chooses them, "" for those of
        the sink."""
        return {"": cls.settings}

    @abstractmethod
    async def open(self, feed: str) -> Offset | None:
        """Get ready to write for the feed of that name.

        A sink that stores progress together with the data returns the offset to resume from;
        any other returns None, and the feed's offset store decides.
        """

    @abstractmethod
    async def write(self, batch: ChangeBatch) -> None:
        """Write a batch; return only when it is durable. A sink that stores its progress with the
        data may return earlier, as long as :meth:`open` never returns an offset beyond what is.

        Called with empty batches too, which only carry an offset. Raises :class:`TransientError`
        for an error that may pass, :class:`SinkRejected` for a permanent one; in either case the
        next call, if any, has the same batch again.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything; what was written stays."""

    def prepare(self, batch: ChangeBatch) -> object:
        """Start work on a batch, for example encode it, and return it: it travels with the batch,
        as :attr:`ChangeBatch.prepared`, to the :meth:`write` that follows, if one does; None if
        there is nothing to keep. Called once for each batch when it has been read, in order, mostly
        while the previous one is being written.

        Neither waits nor raises: errors are raised by the write. A write may also come with a part
        of the batch, or without a call of this, and then has nothing that was prepared.
        """

    async def write_refused(self, row: ChangeBatch, refusal: Mapping[str, Any]) -> None:
        """Write a row that the feed's own sink has refused, as :meth:`write` does. ``refusal`` is a
        JSON object: the ``reason``, when it was ``at``, and the row's ``file``, ``position``,
        ``offset`` and event ``id``. A sink that has no place for that writes the row alone."""
        await self.write(row)

    async def write_pieces(self, batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
        """Write a batch as :meth:`write` does, in pieces of which each is durable before the next
        one; yield the offset after each piece, and after what is durable of one that fails.

        The feed of a sink that keeps no offset saves its own after each piece, so that a crash
        repeats one of them, and not the batch.
        """
        await self.write(batch)
        yield batch.next_offset

    async def announce(self, notice: Notice) -> None:
        """Write a notice between the batches; return only when it is as durable as they are.

        Raises the errors of :meth:`write`. A notice may come again, with the same id and bytes; a
        sink that stores progress with the data stores ``notice.next_offset`` with it.
        """

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise :class:`SinkRejected` for a column that the target can't hold, without looking at
        the target. ``schema`` has the data columns as batches have them. It is called with the
        table's present columns by `tailer check` and when a feed starts, and before the first batch
        of each version that has others."""

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        """Yield what a batch with rows would become, without asking or changing the target: the
        name of each target, and its records. A sink that sends no records raises
        NotImplementedError."""
        raise NotImplementedError

    async def look(self, feed: str) -> Offset | None:
        """Return what :meth:`open` would return, or raise its error, as far as that is visible
        without changing anything, and without disturbing a daemon that runs the feed. A sink that
        can't raises NotImplementedError."""
        raise NotImplementedError

    async def rehearse(self, feed: str, schema: pa.Schema) -> None:
        """Try what a start does first, and leave nothing behind. Raise the error of a start: a
        folder that is missing or full, rights that are missing, a table that the target does not
        take. ``schema`` has the data columns as batches have them. For `tailer check`, beside a
        daemon that may run the feed."""

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """Overwrite the progress that the target keeps of a feed that is not running; None removes
        it. Does nothing if the feed's offset store keeps the progress."""

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form of the records under the sink's options, a JSON object that the feed
        saves with its offset; empty if the sink itself saves it, with the progress, or if nobody
        reads the records by rules that a change of the options may break.

        ``saved`` is the form of the records before, None if there were none, and ``at`` where the
        feed continues. Raises :class:`ConfigError` if the two differ and the options do not accept
        it. Called before :meth:`open` (a ``saved`` then says that the target has been written to),
        and again after it, when the sink may add what it knows of its target by then.
        """
        return {}

    async def reopen(self) -> None:
        """Close files that were renamed or removed, and open those that the paths name now.

        Called when the operator says that files were rotated, also while another call runs, and
        before :meth:`open` and after :meth:`aclose`. Does not raise: errors are raised by the next
        write.
        """

    def read_mirror(self, feed: str) -> AbstractContextManager[MirrorCopy]:
        """Provide the copy of the table for `tailer verify`, without disturbing a daemon that
        writes it, as far as the target has that. Blocking; raises the errors of :meth:`open`."""
        raise ConfigError(
            f"the sink of the feed {feed!r} keeps no copy that can be read back; "
            "`tailer verify TABLE` proves its events"
        )

    def repair_mirror(self, feed: str) -> AbstractContextManager[MirrorRepair]:
        """Provide the copy of the table for `tailer verify --repair`, without keeping out a daemon
        that writes it. Blocking; raises the errors of :meth:`open`."""
        raise ConfigError(
            f"the sink of the feed {feed!r} has no copy that can be repaired; `tailer offsets "
            "reset` creates it again"
        )


async def write_and_save(
    sink: Sink, batch: ChangeBatch, save: Callable[[Offset], Awaitable[None]]
) -> None:
    """Write a batch to a sink, and ``save`` the offsets within it before which all is durable."""
    if sink.traits.keeps_offset:
        await sink.write(batch)
        return
    async with aclosing(sink.write_pieces(batch)) as offsets:
        async for offset in offsets:
            if offset != batch.next_offset:
                await save(offset)


def installed_sinks() -> Mapping[str, EntryPoint]:
    """Return the sinks by type."""
    return installed_points(GROUP)


def load_sink(kind: str) -> type[Sink]:
    """Return the class of the sinks of that type. Raises :class:`ConfigError`, listing the
    available types."""
    if kind not in installed_points(GROUP):
        installed_points.cache_clear()  # it may have been installed since
    sinks = installed_points(GROUP)
    if kind not in sinks:
        names = ", ".join(sorted(sinks)) or "none"
        raise ConfigError(
            f"there is no sink of type {kind!r}{meant(kind, sinks)}; installed are: {names}"
        )
    sink = load_point(sinks[kind], f"the sink {kind!r}")
    if not (isinstance(sink, type) and issubclass(sink, Sink)):
        raise ConfigError(f"the sink {kind!r} is no class below tailer.sink.Sink")
    return sink


def make_sink(kind: str, options: Mapping[str, Any], folder: Path) -> Sink:
    """Create the sink of that type with these options; see :meth:`Sink.from_options`."""
    sink = load_sink(kind)
    table = SettingTable(f"sink {kind!r}", sink.settings)
    if "format" in sink.settings:
        more = sink.format_settings(table.value("format", options))
        table = structs.replace(table, settings={**more, **sink.settings})
    return sink.from_options(table.take(options), folder)
