"""From a batch of changes to records in partitions: encoding, routing, and records too large.

Batches are written in pieces, which another thread encodes: see :mod:`sinks.shared.encode_ahead`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.records import Encoder, Records
from sinks.kafka.client.driver import Driver, Packed, send_records
from sinks.kafka.client.partitioner import partitions_of_keys
from sinks.kafka.client.record_batch import record_sizes
from sinks.kafka.cluster import Topic
from sinks.shared.encode_ahead import Pieces, slices
from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused

__all__ = ["TopicWriter", "single_record"]

#: The number of bytes of rows that are encoded at a time.
_PIECE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Ready:
    """Records as they are sent, each with its partition, or None: those go to all in turn.
    ``count`` is how many there are, without tombstones."""

    count: int
    packed: list[tuple[int | None, Packed]]


@dataclass(frozen=True, slots=True)
class _TooLarge:
    """A piece of a batch, its records, and a mask of those that are too large."""

    piece: ChangeBatch
    records: Records
    large: pa.BooleanArray


def single_record(key: bytes | None, value: bytes, timestamp_ms: int) -> Records:
    """Return one record without headers."""
    keys = None if key is None else pa.array([key], pa.binary())
    return Records(keys, pa.array([value], pa.binary()), (), timestamp_ms)


class TopicWriter:
    """Sends the records of batches to one topic, and a note about each record that is too large to
    another topic, if there is one."""

    def __init__(
        self,
        driver: Driver,
        encoder: Encoder,
        topic: Topic,
        threads: ThreadPoolExecutor,
        park: str = "",
    ) -> None:
        self.driver = driver
        self._threads = threads
        self.encoder = encoder
        self.topic = topic
        self.park = park
        self.parked = 0
        self._turn = -1

    def begin(self, batch: ChangeBatch) -> Pieces[list[_Ready | _TooLarge]]:
        """Start to encode a batch."""
        pieces = slices(batch, batch.num_rows or 1, _PIECE_BYTES)
        return Pieces(pieces, self._encode, self._threads)

    def write(
        self, batch: ChangeBatch, pieces: Pieces[list[_Ready | _TooLarge]] | None = None
    ) -> int:
        """Send a batch's records; return how many there were, without tombstones. ``pieces`` is the
        result of :meth:`begin` for the batch, if that was called.

        Raises :class:`SinkRejected` for a record that is larger than the topic allows.
        """
        sent = 0
        for encoded in self.begin(batch) if pieces is None else pieces:
            for found in encoded:
                ready = found if isinstance(found, _Ready) else self._fitting(found)
                for partition, packed in ready.packed:
                    chosen = self._in_turn() if partition is None else partition
                    self.driver.send(self.topic.name, chosen, packed)
                sent += ready.count
        return sent

    def _encode(self, batch: ChangeBatch) -> list[_Ready | _TooLarge]:
        """Return a piece's records, packed unless one is too large."""
        records = self.encoder.encode(batch)
        if not records.num_records:
            return []
        large = self._too_large(records)  # by what they may take at most
        if large is not None:
            records = records.whole()
            large = self._too_large(records)
        if large is None:
            return [self._packed(records)]
        if batch.run:  # what is said of a large record names its version and file
            return [encoded for part in batch.by_file() for encoded in self._encode(part)]
        if records.num_records < batch.num_rows and batch.num_rows > 1:
            # One record for many rows: fewer rows make a smaller one.
            middle = batch.num_rows // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_rows)
            return [encoded for half in halves for encoded in self._encode(half)]
        return [_TooLarge(batch, records, large)]

    def _too_large(self, records: Records) -> pa.BooleanArray | None:
        found = pc.greater(record_sizes(records), self.topic.max_message_bytes)
        return found if pc.any(found).as_py() else None

    def _packed(self, records: Records) -> _Ready:
        if not records.num_records:
            return _Ready(0, [])
        count, pack = self.topic.partitions, self.driver.pack
        packed: list[tuple[int | None, Packed]]
        places = records.partitions
        if places is None and records.keys is not None and count > 1:
            places = partitions_of_keys(records.keys, count)
        if places is None:
            packed = [(None, each) for each in pack(records)]
        else:
            packed = []
            for number in pc.unique(places).to_pylist():
                chosen = pc.indices_nonzero(pc.equal(places, number)).cast(pa.int64())
                packed += [(number, each) for each in pack(records, chosen)]
        return _Ready(records.num_records - records.num_tombstones, packed)

    def _in_turn(self) -> int:
        """Return the partition of the next batch of records without a key."""
        self._turn = (self._turn + 1) % self.topic.partitions
        return self._turn

    def _fitting(self, found: _TooLarge) -> _Ready:
        """Send a note about each record that is too large, and return the others."""
        records, large, batch = found.records, found.large, found.piece
        sizes = record_sizes(records).filter(large).to_pylist()
        left_out = records.take(pc.indices_nonzero(large))
        notes = [
            _note(left_out, i, size, batch, self.topic.max_message_bytes)
            for i, size in enumerate(sizes)
        ]
        if not self.park:
            note = notes[0]
            raise RowsRefused(
                f"an event of version {batch.version} is too large for the topic "
                f"{self.topic.name}: about {note['size']} bytes, of {note['max']} at most "
                f"(event {note['event_id']}, file {note['file']}); raise the topic's "
                "max.message.bytes, or set on_oversize = 'park'"
            )
        values = [json.dumps(note, separators=(",", ":")).encode() for note in notes]
        parked = replace(left_out, values=pa.array(values, pa.binary()), partitions=None)
        send_records(self.driver, self.park, 0, parked)
        self.parked += len(values)
        return self._packed(records.take(pc.indices_nonzero(pc.invert(large))))


def _note(records: Records, i: int, size: int, batch: ChangeBatch, most: int) -> dict[str, object]:
    """Return what is known of an event that is too large, instead of its value."""
    headers = {
        name: value[i].as_py()
        for name, value in records.whole_headers()
        if not isinstance(value, bytes)
    }
    event_id = headers.get("_event_id")
    return {
        "reason": "too large",
        "version": batch.version,
        "file": batch.file.path if batch.file else None,
        "event_id": event_id.decode() if isinstance(event_id, bytes) else event_id,
        "size": size,
        "max": most,
    }
