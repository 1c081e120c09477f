"""The way of each batch as an OpenTelemetry trace: read, write, save the offset. Loaded only where
traces are asked for, because OpenTelemetry is optional, and slow to load."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.feed.progress import FeedProgress


@cache
def _make_tracer() -> Any:
    """Return the process's tracer. Its own thread sends the spans, the last ones at the exit."""
    name = os.environ.get("OTEL_SERVICE_NAME", "delta-tailer")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("tailer")


class TracedProgress(FeedProgress):
    """Notes when a batch is read, written and saved, and sends its spans once it is."""

    def __init__(self, feed: str, clock: Callable[[], float]) -> None:
        super().__init__(feed, clock)
        self._tracer = _make_tracer()
        self._forget_batches()

    def _forget_batches(self) -> None:
        self._read_ends: deque[int] = deque()  # of the batches read and not yet saved
        self._read_from = self._write_from = self._write_end = time.time_ns()
        self._rows = 0

    def note_start(self, offset: Offset) -> None:
        super().note_start(offset)
        self._forget_batches()

    def note_read_item(self, item: ChangeBatch | Notice) -> None:
        super().note_read_item(item)
        if isinstance(item, ChangeBatch):
            self._read_ends.append(time.time_ns())

    def note_write_time(self, seconds: float) -> None:
        super().note_write_time(seconds)
        self._write_end = time.time_ns()
        self._write_from = self._write_end - int(seconds * 1e9)

    def note_saved_batch(self, batch: ChangeBatch, *, whole: bool = True) -> None:
        super().note_saved_batch(batch, whole=whole)
        self._rows += batch.num_rows
        if whole and self._read_ends:
            self._send_spans(batch)
            # The next batch is read from the moment that this one was taken.
            self._read_from, self._rows = self._write_from, 0

    def _send_spans(self, batch: ChangeBatch) -> None:
        read_end, saved = self._read_ends.popleft(), time.time_ns()
        # Waiting for a commit is not reading. The commit's time is of another clock.
        read_from = min(max(self._read_from, batch.timestamp_ms * 1_000_000), read_end)
        about = {
            "tailer.feed": self.feed,
            "tailer.version": batch.version,
            "tailer.next_version": batch.next_offset.version,
            "tailer.rows": self._rows,
        }
        root = self._tracer.start_span("batch", start_time=read_from, attributes=about)
        for name, begin, end in (
            ("read", read_from, read_end),
            ("write", self._write_from, self._write_end),
            ("save offset", self._write_end, saved),
        ):
            span = self._tracer.start_span(
                name, set_span_in_context(root), start_time=begin, attributes=about
            )
            span.end(end)
        root.end(saved)
