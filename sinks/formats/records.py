"""The encoder contract: from a batch of changes to the records of a message broker.

An encoder turns a :class:`ChangeBatch` into arrays of keys, values and headers, by columns; the
sink that uses it sends them. Its only state is its configuration and, for Avro, the schema ids from
a registry: the same batch gives the same bytes on every run.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, replace

import pyarrow as pa

from tailer.changes import ChangeBatch
from tailer.native.rowbytes import JoinedText
from tailer.sink import OwnNames

__all__ = ["Encoder", "Header", "Records", "Registry"]

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


class Encoder(typing.Protocol):
    """One format with its options. Pure and synchronous: it runs in a worker thread."""

    #: Whether it needs an update as one row with ``ChangeBatch.before``: a trait of the sink.
    paired: bool
    #: The columns of a record's key; empty means that records have no key.
    key_columns: tuple[str, ...]
    #: The names that it gives to fields of its own beside the columns: a trait of the sink.
    own: OwnNames

    def encode(self, batch: ChangeBatch) -> Records:
        """Encode a batch.

        Raises :class:`TableError` naming the version if a key column is missing or a value can't be
        written, :class:`SinkRejected` if a schema registry refuses the schema and
        :class:`TransientError` if it does not answer.
        """


class Registry(typing.Protocol):
    """A schema registry, as an encoder uses it."""

    def register(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema (its JSON text) under a subject, registering a new one.

        Raises :class:`SinkRejected` if the registry refuses the schema as incompatible,
        :class:`TransientError` if it does not answer.
        """
