"""The encoder contract: from a batch of changes to the records of a message broker.

An encoder turns a :class:`ChangeBatch` into arrays of keys, values and headers, by columns; the
sink that uses it sends them. Its only state is its configuration and, for some, the schemas that a
registry has: the same batch gives the same bytes on every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tailer.changes import ChangeBatch
from tailer.native.rowbytes import JoinedText
from tailer.plugins.contract import Contract
from tailer.settings import Setting
from tailer.sink.own_names import NO_NAMES, OwnNames

__all__ = ["GROUP", "Encoder", "Header", "Records"]

#: The group of entry points in which further formats are found.
GROUP = "tailer.formats"

#: A record header: its name, and one value for all records (bytes) or one for each (strings that
#: are not put together yet, or a string or binary array; null where that record does not have the
#: header).
Header = tuple[str, pa.Array | JoinedText | bytes]


@dataclass(frozen=True, slots=True)
class Records:
    """The records to send for one batch, in order. All arrays have the same length.

    ``keys`` (binary, or None: no record has a key) and ``values`` (binary; null is a tombstone)
    are in their wire form, and so is every header. Values and headers may be strings that are not
    put together yet; :meth:`whole` does it. ``timestamp_ms`` is the commit's time: one for all
    records, or one for each (int64). ``partitions`` (int32), if given, overrides the sink's
    partitioner.

    There may be more records than rows in the batch (tombstones; an update that changes the key);
    none for an empty batch.
    """

    keys: pa.BinaryArray | None
    values: pa.BinaryArray | JoinedText
    headers: tuple[Header, ...]
    timestamp_ms: int | pa.Int64Array
    partitions: pa.Int32Array | None = None

    @property
    def num_records(self) -> int:
        """Return how many records there are."""
        return len(self.values)

    def whole_values(self) -> pa.BinaryArray:
        """Return the values, put together."""
        values = self.values
        return values.array().cast(pa.binary()) if isinstance(values, JoinedText) else values

    def whole_headers(self) -> tuple[tuple[str, pa.Array | bytes], ...]:
        """Return the headers, put together."""
        return tuple(
            (name, value.array() if isinstance(value, JoinedText) else value)
            for name, value in self.headers
        )

    def whole(self) -> Records:
        """Return the same records, with all their strings put together."""
        return replace(self, values=self.whole_values(), headers=self.whole_headers())

    def slice(self, first: int, count: int) -> Records:
        """Return ``count`` records from ``first`` on."""
        times, partitions = self.timestamp_ms, self.partitions
        return Records(
            None if self.keys is None else self.keys.slice(first, count),
            self.values.slice(first, count),
            tuple(
                (name, value if isinstance(value, bytes) else value.slice(first, count))
                for name, value in self.headers
            ),
            times if isinstance(times, int) else times.slice(first, count),
            None if partitions is None else partitions.slice(first, count),
        )

    def take(self, places: pa.Array) -> Records:
        """Return the records at these places (integers), in their order."""
        times = self.timestamp_ms
        return Records(
            None if self.keys is None else self.keys.take(places),
            self.whole_values().take(places),
            tuple(
                (name, value if isinstance(value, bytes) else value.take(places))
                for name, value in self.whole_headers()
            ),
            times if isinstance(times, int) else times.take(places),
            None if self.partitions is None else self.partitions.take(places),
        )


class Encoder(Contract, ABC):
    """One format with its options. Pure and synchronous: it runs in a worker thread.

    A package adds one by an entry point in the group ``tailer.formats``, which names the class.
    """

    #: The options of the format, which a sink takes beside its own. The sink adds ``name``, the
    #: feed's, and ``topic``.
    settings: Mapping[str, Setting] = MappingProxyType({})
    #: Whether each value is a line of text: sinks of lines and of messages take no other format.
    is_text: bool = False
    #: Whether it needs an update as one row with ``ChangeBatch.before``: a trait of the sink.
    paired: bool = False
    #: Whether the records have the rows' order. Within a version it may else be another one.
    keeps_order: bool = True
    #: The columns of a record's key; empty means that records have no key.
    key_columns: tuple[str, ...] = ()
    #: The names that it gives to fields of its own beside the columns: a trait of the sink.
    own: OwnNames = NO_NAMES

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Encoder:  # noqa: ARG003
        """Return the encoder with these options, which are checked and complete."""
        return cls()

    @abstractmethod
    def encode(self, batch: ChangeBatch) -> Records:
        """Encode a batch: the same one to the same bytes, on every run.

        Raises :class:`TableError` naming the version if a key column is missing or a value can't be
        written, :class:`SinkRejected` if a schema registry refuses the schema and
        :class:`TransientError` if it does not answer.
        """
