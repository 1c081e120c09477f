"""From a batch of changes to records in partitions: encoding, routing, and records too large.

Batches are written in pieces, which another thread encodes: see :mod:`sinks.shared.encode_ahead`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from kafka.partitioner.default import murmur2

from sinks.kafka.client.kafka_python import KafkaPythonDriver, Packed
from sinks.kafka.client.record_batch import measure_records
from sinks.kafka.cluster import Topic
from sinks.shared.encode_ahead import Pieces, slice_batch
from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused
from tailer.native import rowbytes
from tailer.sink.encoder import Encoder, Records

#: The number of bytes of rows that are encoded at a time.
_PIECE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Ready:
    """Records as they are sent, each with its partition, or None: those go to all in turn."""

    packed: list[tuple[int | None, Packed]]


@dataclass(frozen=True, slots=True)
class _TooLarge:
    """A piece of a batch, its records, and a mask of those that are too large."""

    piece: ChangeBatch
    records: Records
    large: pa.BooleanArray


#: A batch whose records are being encoded, piece by piece.
EncodedRows: TypeAlias = "Pieces[list[_Ready | _TooLarge]]"


def make_record(key: bytes | None, value: bytes, timestamp_ms: int) -> Records:
    """Return one record without headers."""
    keys = None if key is None else pa.array([key], pa.binary())
    return Records(keys, pa.array([value], pa.binary()), (), timestamp_ms)


class TopicWriter:
    """Sends the records of batches to one topic."""

    def __init__(
        self,
        driver: KafkaPythonDriver,
        encoder: Encoder,
        topic: Topic,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.driver = driver
        self._threads = threads
        self.encoder = encoder
        self.topic = topic
        self._turn = -1

    def encode(self, batch: ChangeBatch) -> EncodedRows:
        """Start to encode a batch."""
        pieces = slice_batch(batch, batch.num_rows or 1, _PIECE_BYTES)
        return Pieces(pieces, self._encode_piece, self._threads)

    def write(self, encoded: EncodedRows) -> None:
        """Send a batch's records. Raises :class:`RowsRefused` for a record that is larger than the
        topic allows."""
        for piece in encoded:
            for found in piece:
                if isinstance(found, _TooLarge):
                    raise self._make_refusal(found)
                for partition, packed in found.packed:
                    chosen = self._take_next_partition() if partition is None else partition
                    self.driver.send(self.topic.name, chosen, packed)

    def _encode_piece(self, batch: ChangeBatch) -> list[_Ready | _TooLarge]:
        """Return a piece's records, packed unless one is too large."""
        records = self.encoder.encode(batch)
        if not records.num_records:
            return []
        large = self._find_too_large(records)  # by what they may take at most
        if large is not None:
            records = records.whole()
            large = self._find_too_large(records)
        if large is None:
            return [self._pack_records(records)]
        if batch.span:  # the error of a large record names its version and file
            return [encoded for part in batch.by_file() for encoded in self._encode_piece(part)]
        if records.num_records < batch.num_rows and batch.num_rows > 1:
            # One record for many rows: fewer rows make a smaller one.
            middle = batch.num_rows // 2
            halves = batch.slice(0, middle), batch.slice(middle, batch.num_rows)
            return [encoded for half in halves for encoded in self._encode_piece(half)]
        return [_TooLarge(batch, records, large)]

    def _find_too_large(self, records: Records) -> pa.BooleanArray | None:
        found = pc.greater(measure_records(records), self.topic.max_message_bytes)
        return found if pc.any(found).as_py() else None

    def _pack_records(self, records: Records) -> _Ready:
        if not records.num_records:
            return _Ready([])
        count, pack = self.topic.partitions, self.driver.pack_records
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
        return _Ready(packed)

    def _take_next_partition(self) -> int:
        """Return the partition of the next batch of records without a key."""
        self._turn = (self._turn + 1) % self.topic.partitions
        return self._turn

    def _make_refusal(self, found: _TooLarge) -> RowsRefused:
        """Return the error of the first record that is too large."""
        records, batch = found.records, found.piece
        place = pc.indices_nonzero(found.large)[0].as_py()
        size = measure_records(records)[place].as_py()
        ids = dict(records.whole_headers()).get("_event_id")
        event = (
            "" if ids is None or isinstance(ids, bytes) else f"event {_format_text(ids[place])}, "
        )
        file = batch.file.path if batch.file else None
        return RowsRefused(
            f"an event of version {batch.version} is too large for the topic {self.topic.name}: "
            f"about {size} bytes, of {self.topic.max_message_bytes} at most ({event}file {file}); "
            "raise the topic's max.message.bytes, or set on_reject = 'park'"
        )


def _format_text(value: pa.Scalar) -> str:
    text = value.as_py()
    return text.decode() if isinstance(text, bytes) else str(text)


def partitions_of_keys(keys: pa.BinaryArray, count: int) -> pa.Int32Array:
    """Return the partition (int32, below ``count``) of each key; a null key counts as empty.

    The same key goes to the same partition as from Java's and kafka-python's own producers, as long
    as the topic keeps its number of partitions: murmur2 of the key, without its sign, modulo that
    number.
    """
    hashes = pc.bit_wise_and(hash_by_murmur2(keys), pa.scalar(0x7FFFFFFF, pa.uint32()))
    positive = hashes.cast(pa.int32())
    divisor = pa.scalar(count, pa.int32())
    return pc.subtract(positive, pc.multiply(pc.divide(positive, divisor), divisor))


def hash_by_murmur2(keys: pa.BinaryArray) -> pa.UInt32Array:
    """Return Kafka's murmur2 of each key (uint32); a null key counts as an empty one."""
    if rowbytes.native is None:
        hashed = [murmur2(key or b"") & 0xFFFFFFFF for key in keys.to_pylist()]
        return pa.array(hashed, pa.uint32())
    hashes = rowbytes.native.murmur2([rowbytes.array_part(keys, rowbytes.RAW)], len(keys))
    return pa.Array.from_buffers(pa.uint32(), len(keys), [None, pa.py_buffer(hashes)])
