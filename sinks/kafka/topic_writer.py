"""From a batch of changes to records in partitions: encoding, routing, and records too large.

Batches are written in pieces, which another thread encodes: see :mod:`sinks.encode_ahead`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from sinks.encode_ahead import Pieces, slices
from sinks.formats.records import Encoder, Records
from sinks.kafka.cluster import Topic
from sinks.kafka.driver import Driver
from sinks.kafka.partitioner import partitions_of_keys
from sinks.kafka.record_batch import record_sizes
from tailer.changes import ChangeBatch
from tailer.errors import SinkRejected

__all__ = ["TopicWriter", "single_record"]

#: The number of bytes of rows that are encoded at a time.
_PIECE_BYTES = 2 * 1024 * 1024

#: A piece of a batch, its records, and a mask of those that are too large, or None.
_Encoded = tuple[ChangeBatch, Records, pa.BooleanArray | None]


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
        batch_bytes: int,
        park: str = "",
    ) -> None:
        self.driver = driver
        self._threads = threads
        self.encoder = encoder
        self.topic = topic
        self.batch_bytes = batch_bytes
        self.park = park
        self.parked = 0
        self._turn = 0

    def begin(self, batch: ChangeBatch) -> Pieces[list[_Encoded]]:
        """Start to encode a batch."""
        pieces = slices(batch, batch.num_rows or 1, _PIECE_BYTES)
        return Pieces(pieces, self._encode, self._threads)

    def write(self, batch: ChangeBatch, pieces: Pieces[list[_Encoded]] | None = None) -> int:
        """Send a batch's records; return how many there were, without tombstones. ``pieces`` is the
        result of :meth:`begin` for the batch, if that was called.

        Raises :class:`SinkRejected` for a record that is larger than the topic allows.
        """
        sent = 0
        for encoded in self.begin(batch) if pieces is None else pieces:
            for piece, records, too_large in encoded:
                fitting = records
                if too_large is not None:
                    fitting = self._without(records, too_large, piece)
                if fitting.num_records:
                    self._send(fitting)
                sent += fitting.num_records - int(fitting.values.null_count)
        return sent

    def _encode(self, batch: ChangeBatch) -> list[_Encoded]:
        """Return a piece's records, and which of them are too large, if any are."""
        records = self.encoder.encode(batch)
        if not records.num_records:
            return []
        too_large = pc.greater(record_sizes(records), self.topic.max_message_bytes)
        if not pc.any(too_large).as_py():
            return [(batch, records, None)]
        if batch.run:  # what is said of a large record names its version and file
            return [encoded for part in batch.by_file() for encoded in self._encode(part)]
        if records.num_records < batch.num_rows and batch.num_rows > 1:
            # One record for many rows: fewer rows make a smaller one.
            middle = batch.num_rows // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_rows)
            return [encoded for half in halves for encoded in self._encode(half)]
        return [(batch, records, too_large)]

    def _send(self, records: Records) -> None:
        count = self.topic.partitions
        if records.partitions is not None:
            places = records.partitions
        elif count == 1:
            return self.driver.send(self.topic.name, 0, records)
        elif records.keys is not None:
            places = partitions_of_keys(records.keys, count)
        else:
            places = self._in_turn(records, count)
        if records.keys is None and records.partitions is None:
            self._send_runs(records, places)
            return None
        for partition in pc.unique(places).to_pylist():
            chosen = pc.indices_nonzero(pc.equal(places, partition)).cast(pa.int64())
            self.driver.send(self.topic.name, partition, records, chosen)
        return None

    def _send_runs(self, records: Records, places: pa.Int32Array) -> None:
        """Send records that seldom change their partition: each run as it lies in memory."""
        runs = pc.run_end_encode(places)
        at = 0
        for end, partition in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            self.driver.send(self.topic.name, partition, _cut(records, at, end - at))
            at = end

    def _in_turn(self, records: Records, count: int) -> pa.Int32Array:
        """Assign partitions to records without a key: a full batch for each partition in turn."""
        ends = pc.cumulative_sum(record_sizes(records))
        turns = pc.divide(ends, pa.scalar(self.batch_bytes, pa.int64()))
        turns = pc.add(turns, pa.scalar(self._turn, pa.int64()))
        self._turn = (turns[-1].as_py() + 1) % count
        whole = pc.multiply(pc.divide(turns, pa.scalar(count, pa.int64())), count)
        return pc.subtract(turns, whole).cast(pa.int32())

    def _without(self, records: Records, large: pa.BooleanArray, batch: ChangeBatch) -> Records:
        sizes = record_sizes(records).filter(large).to_pylist()
        left_out = records.take(pc.indices_nonzero(large))
        notes = [
            _note(left_out, i, size, batch, self.topic.max_message_bytes)
            for i, size in enumerate(sizes)
        ]
        if not self.park:
            note = notes[0]
            raise SinkRejected(
                f"an event of version {batch.version} is too large for the topic "
                f"{self.topic.name}: about {note['size']} bytes, of {note['max']} at most "
                f"(event {note['event_id']}, file {note['file']}); raise the topic's "
                "max.message.bytes, or set on_oversize = 'park'"
            )
        values = [json.dumps(note, separators=(",", ":")).encode() for note in notes]
        parked = replace(left_out, values=pa.array(values, pa.binary()), partitions=None)
        self.driver.send(self.park, 0, parked)
        self.parked += len(values)
        return records.take(pc.indices_nonzero(pc.invert(large)))


def _note(records: Records, i: int, size: int, batch: ChangeBatch, most: int) -> dict[str, object]:
    """Return what is known of an event that is too large, instead of its value."""
    headers = {
        name: value[i].as_py() for name, value in records.headers if not isinstance(value, bytes)
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


def _cut(records: Records, at: int, count: int) -> Records:
    headers = tuple(
        (name, value if isinstance(value, bytes) else value.slice(at, count))
        for name, value in records.headers
    )
    values, times = records.values.slice(at, count), records.timestamp_ms
    if not isinstance(times, int):
        times = times.slice(at, count)
    return replace(records, values=values, headers=headers, timestamp_ms=times)
