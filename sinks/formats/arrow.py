"""The format ``arrow``: for bulk, one record holds many rows as an Arrow IPC stream.

Each value is a whole stream (schema, one batch, end), so every record can be read by itself. The
columns are those of the format ``rows``, with ``_event_id`` last if ids are requested. Records have
no keys, because each holds rows with many keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from sinks.formats.parts import as_binary, commit_ms, no_records
from sinks.formats.records import Records
from tailer.changes import ChangeBatch
from tailer.sink import OWN_PREFIX, OwnNames

__all__ = ["ArrowEncoder"]

_EVENT_ID = "_event_id"


class ArrowEncoder:
    """Arrow IPC streams of at most ``record_bytes_max``, unless a single row is larger. See
    :mod:`sinks.formats.records`."""

    paired = False
    key_columns: tuple[str, ...] = ()

    def __init__(
        self, *, ids: bool = False, own_prefix: str = OWN_PREFIX, record_bytes_max: int = 900_000
    ) -> None:
        self.ids = ids
        self.own = OwnNames.of(*[_EVENT_ID] * ids, prefix=own_prefix)
        self.record_bytes_max = record_bytes_max

    def encode(self, batch: ChangeBatch) -> Records:
        """Encode a batch, see :class:`sinks.formats.records.Encoder`. No record has rows of two
        files.

        Headers: ``_commit_version``, and of each record's rows ``_first_index``, ``_rows`` and, of
        the first, ``_event_id``.
        """
        if not batch.num_rows:
            return no_records(batch)
        rows, ids = batch.rows, batch.event_ids()
        if self.ids:
            rows = rows.append_column(self.own.names[0], ids)
        bounds = [*(part.first for part in batch.parts()), rows.num_rows]
        streams = [
            each for first, last in pairwise(bounds) for each in self._streams(rows, first, last)
        ]
        firsts, texts = zip(*streams, strict=True)
        counts = [end - first for first, end in pairwise((*firsts, rows.num_rows))]
        headers = (
            (_EVENT_ID, ids),
            ("_commit_version", batch.by_part(lambda part: str(part.offset.version).encode())),
            ("_first_index", batch.row_indices().cast(pa.string())),
        )
        of_rows = Records(None, as_binary(ids), headers, commit_ms(batch))
        of_firsts = of_rows.take(pa.array(firsts, pa.int64()))
        more = (
            ("_rows", pa.array(counts).cast(pa.string())),
            ("content-type", b"application/vnd.apache.arrow.stream"),
        )
        values = pa.array(texts, pa.binary())
        return replace(of_firsts, values=values, headers=(*of_firsts.headers, *more))

    def _streams(self, rows: pa.RecordBatch, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield first row and bytes of each record, for the rows first..last-1."""
        value = _stream(rows.slice(first, last - first))
        if len(value) <= self.record_bytes_max or last - first == 1:
            yield first, value
            return
        parts = min(last - first, -(-len(value) // self.record_bytes_max))
        for part in range(parts):
            start = first + (last - first) * part // parts
            end = first + (last - first) * (part + 1) // parts
            yield from self._streams(rows, start, end)


def _stream(rows: pa.RecordBatch) -> bytes:
    # A copy: Arrow also writes bytes that lie behind the rows in memory, up to a multiple of 64.
    rows = rows.take(pa.arange(0, rows.num_rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
