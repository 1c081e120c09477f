"""What a feed tells about itself, as Prometheus metrics.

Nothing is registered at import: the registry is an argument. The names follow Prometheus' rules:
base units, ``_total`` for counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["FeedMetrics", "MetricFamilies", "Observer"]

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)


class MetricFamilies:
    """The metric families of one registry; every feed is one label value in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram  # `tail` has none

        feed = ["feed"]
        self.events = Counter(
            "tailer_events", "Change events delivered.", ["feed", "change_type", "origin"],
            registry=registry,
        )  # fmt: skip
        self.bytes = Counter(
            "tailer_event_bytes", "Bytes of delivered events, as Arrow.", feed, registry=registry
        )
        self.versions = Counter(
            "tailer_versions", "Table versions delivered whole.", feed, registry=registry
        )
        self.version = Gauge(
            "tailer_offset_version", "The version of the saved offset.", feed, registry=registry
        )
        self.lag_versions = Gauge(
            "tailer_lag_versions",
            "Versions of the table that are not delivered yet.",
            feed,
            registry=registry,
        )
        self.lag_seconds = Gauge(
            "tailer_lag_seconds",
            "Age of the version in hand; 0 when all versions are delivered.",
            feed,
            registry=registry,
        )
        self.noops = Counter(
            "tailer_noop_updates", "Updates dropped because both images are equal.", feed,
            registry=registry,
        )  # fmt: skip
        self.read_bytes = Counter(
            "tailer_read_bytes", "Bytes of data and cdc files read, as they are stored.", feed,
            registry=registry,
        )  # fmt: skip
        self.errors = Counter(
            "tailer_errors", "Errors by the family that says who must act.", ["feed", "family"],
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            "tailer_commit_to_delivery_seconds",
            "From a version's commit timestamp to its delivery.",
            feed,
            registry=registry,
            buckets=_LATENCY_BUCKETS_S,
        )


class Observer:
    """Is told what reading learns on its way; this one does nothing with it."""

    def newest(self, version: int) -> None:
        """The table's newest version is this one."""

    def noops(self, rows: int) -> None:
        """So many rows were rewritten as updates with equal values, and dropped."""

    def read_bytes(self, count: int) -> None:
        """So many bytes of data and cdc files were read. Called from worker threads."""


class FeedMetrics(Observer):
    """One feed's figures. ``clock`` gives the time of day in epoch seconds.

    Without ``families`` it only counts for itself, which is what `tail` and `read` need.
    """

    def __init__(
        self, feed: str, clock: Callable[[], float], families: MetricFamilies | None = None
    ) -> None:
        self.feed = feed
        self.clock = clock
        self.families = families
        self.versions_delivered = 0
        self.events_delivered = 0
        self.offset: Offset | None = None
        self.error: TailerError | None = None
        self._newest = -1
        self._reading_timestamp_ms: int | None = None
        if families is not None:
            families.lag_seconds.labels(feed).set_function(self.lag_seconds)
            families.lag_versions.labels(feed).set_function(self.lag_versions)

    def started(self, offset: Offset) -> None:
        """The feed begins, or begins again, at an offset."""
        self.offset, self.error, self._reading_timestamp_ms = offset, None, None
        if self.families is not None:
            self.families.version.labels(self.feed).set(offset.version)

    def read(self, batch: ChangeBatch) -> None:
        """A batch is decoded and waits to be written."""
        self._reading_timestamp_ms = batch.timestamp_ms

    def newest(self, version: int) -> None:
        """The table's newest version is this one."""
        self._newest = version

    def noops(self, rows: int) -> None:
        """So many rows were rewritten as updates with equal values, and dropped."""
        if self.families is not None:
            self.families.noops.labels(self.feed).inc(rows)

    def read_bytes(self, count: int) -> None:
        """So many bytes of data and cdc files were read. Called from worker threads."""
        if self.families is not None:
            self.families.read_bytes.labels(self.feed).inc(count)

    def delivered(self, batch: ChangeBatch) -> None:
        """A batch is written and its offset saved."""
        self.offset, self.error = batch.next_offset, None
        self.events_delivered += batch.num_rows
        whole = batch.next_offset.version > batch.version
        self.versions_delivered += whole
        if self.families is not None:
            self._count(batch, whole=whole)

    def _count(self, batch: ChangeBatch, *, whole: bool) -> None:
        import pyarrow.compute as pc  # only where there is a registry

        families = self.families
        if families is None:
            return
        if batch.file is not None:
            for entry in pc.value_counts(batch.rows.column("_change_type")).to_pylist():
                labels = (self.feed, entry["values"], batch.file.origin)
                families.events.labels(*labels).inc(entry["counts"])
            families.bytes.labels(self.feed).inc(batch.rows.nbytes)
        if whole:
            families.versions.labels(self.feed).inc()
            families.version.labels(self.feed).set(batch.next_offset.version)
            latency = max(0.0, self.clock() - batch.timestamp_ms / 1000)
            families.latency.labels(self.feed).observe(latency)

    def failed(self, error: TailerError) -> None:
        """The feed failed; it is tried again or it ends."""
        self.error = error
        if self.families is not None:
            self.families.errors.labels(self.feed, error.family).inc()

    @property
    def ready(self) -> bool:
        """Whether the feed has an offset, and has not failed since its last delivery."""
        return self.offset is not None and self.error is None

    def lag_versions(self) -> float:
        """How many versions of the table are not delivered whole."""
        if self.offset is None:
            return 0.0
        return float(max(0, self._newest + 1 - self.offset.version))

    def lag_seconds(self) -> float:
        """Seconds since the commit of the version in hand; 0 if all versions are delivered."""
        if self._reading_timestamp_ms is None or not self.lag_versions():
            return 0.0
        return max(0.0, self.clock() - self._reading_timestamp_ms / 1000)
