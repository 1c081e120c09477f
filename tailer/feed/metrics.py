"""What a feed tells about itself, as Prometheus metrics.

Nothing is registered at import: the registry is an argument. The names follow Prometheus' rules:
base units, ``_total`` for counters. docs/metrics.md lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.delta.commit import Commit
from tailer.errors import TailerError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["STATES", "FeedMetrics", "FeedState", "MetricFamilies", "Observer"]

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_WRITE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)

FeedState = Literal[
    "starting", "snapshot", "following", "standby", "paused", "retrying", "failed", "stopped"
]
STATES: tuple[FeedState, ...] = (
    "starting", "snapshot", "following", "standby", "paused", "retrying", "failed", "stopped"
)  # fmt: skip

#: Family by attribute: kind, name, further labels, what it says.
_FAMILIES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "events": ("counter", "tailer_events", ("change_type", "origin"), "Change events delivered."),
    "bytes": (
        "counter", "tailer_event_bytes", ("change_type", "origin"),
        "Bytes of delivered events, as Arrow; a batch's bytes are shared out by rows.",
    ),
    "versions": ("counter", "tailer_versions", (), "Table versions delivered whole."),
    "notices": ("counter", "tailer_notices", ("kind",), "Notices given to the sink."),
    "noops": (
        "counter", "tailer_noop_updates", (), "Updates dropped because both images are equal.",
    ),
    "errors": (
        "counter", "tailer_errors", ("family",), "Errors by the family that says who must act.",
    ),
    "retries": ("counter", "tailer_retries", (), "Starts from the saved offset after an error."),
    "data_loss": (
        "counter", "tailer_data_loss", ("unit",),
        "What on_data_loss passed over: versions, and files of versions that were read.",
    ),
    "parked": ("counter", "tailer_parked_events", (), "Events refused by the sink and parked."),
    "files": ("counter", "tailer_files_read", (), "Data and change files read to their end."),
    "read_bytes": (
        "counter", "tailer_read_bytes", (), "Bytes of data and cdc files read, as they are stored.",
    ),
    "version": ("gauge", "tailer_offset_version", (), "The version of the saved offset."),
    "lag_versions": (
        "gauge", "tailer_lag_versions", (), "Versions of the table that are not delivered yet.",
    ),
    "lag_seconds": (
        "gauge", "tailer_lag_seconds", (),
        "Age of the version in hand; 0 when all versions are delivered.",
    ),
    "lag_bytes": ("gauge", "tailer_lag_bytes", (), "Sizes of the unread file actions."),
    "time_to_loss": (
        "gauge", "tailer_time_to_data_loss_seconds", ("cause",),
        "Until log cleanup (log) or VACUUM (data) may remove what is unread; +Inf: nothing is.",
    ),
    "queue": (
        "gauge", "tailer_queue_batches", (), "Batches read and not yet written, two at most.",
    ),
    "state": ("gauge", "tailer_feed_state", ("state",), "1 for the state that the feed is in."),
    "lease": ("gauge", "tailer_lease_held", (), "1 while this process owns the feed's offset."),
    "latency": (
        "histogram", "tailer_commit_to_delivery_seconds", (),
        "From a version's commit timestamp to its delivery.",
    ),
    "write_seconds": (
        "histogram", "tailer_sink_write_seconds", (), "How long the sink took to write a batch.",
    ),
}  # fmt: skip


class MetricFamilies:
    """The metric families of one registry; every feed is one label value in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram  # `tail` has none

        buckets = {"latency": _LATENCY_BUCKETS_S, "write_seconds": _WRITE_BUCKETS_S}
        kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        self._made: dict[str, Any] = {}
        for attribute, (kind, name, labels, text) in _FAMILIES.items():
            more = {"buckets": buckets[attribute]} if attribute in buckets else {}
            self._made[attribute] = kinds[kind](
                name, text, ["feed", *labels], registry=registry, **more
            )

    def __getattr__(self, name: str) -> Any:
        """The family of that attribute, as ``_FAMILIES`` lists them."""
        try:
            return self.__dict__["_made"][name]
        except KeyError:
            raise AttributeError(name) from None

    def forget(self, feed: str) -> None:
        """Drop the series of a feed that is no more."""
        for family in self._made.values():
            family.remove_by_labels({"feed": feed})


class Observer:
    """Is told what reading learns on its way; this one does nothing with it."""

    def newest(self, version: int) -> None:
        """The table's newest version is this one."""

    def noops(self, rows: int) -> None:
        """So many rows were rewritten as updates with equal values, and dropped."""

    def planned(self, commit: Commit) -> None:
        """This commit's files are read next."""

    def fetched(self, size: int) -> None:
        """A file of this size in bytes was read to its end."""

    def lost(self, notice: Notice) -> None:
        """Something is gone for good, and is passed over."""

    def read_bytes(self, count: int) -> None:
        """So many bytes of data and cdc files were read. Called from worker threads."""


class FeedMetrics(Observer):
    """One feed's figures. ``clock`` gives the time of day in epoch seconds.

    Without ``families`` it only counts for itself, which is what `tail` and `read` need.
    ``deadlines`` maps the cause (log, data) to the epoch seconds, by version, from which on what is
    unread of that version may be removed; ``sizes`` a version to the bytes of its file actions.
    ``on_retry`` is told each error that may heal.
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
        self.state: FeedState = "starting"
        self.sizes: dict[int, int] = {}
        self.deadlines: dict[str, dict[int, float]] = {"log": {}, "data": {}}
        self.on_retry: Callable[[TailerError], None] = lambda _: None
        self._newest = -1
        self._queued = 0
        self._fetched_bytes = 0
        self._reading_timestamp_ms: int | None = None
        self._labels: dict[tuple[str, ...], Any] = {}
        if families is not None:
            families.lag_seconds.labels(feed).set_function(self.lag_seconds)
            families.lag_versions.labels(feed).set_function(self.lag_versions)
            families.lag_bytes.labels(feed).set_function(self.lag_bytes)
            families.queue.labels(feed).set_function(lambda: float(self._queued))
            for cause in self.deadlines:
                families.time_to_loss.labels(feed, cause).set_function(
                    lambda cause=cause: self.seconds_to_loss(cause)
                )
            self.lease(held=False)
            self.is_in("starting")

    def _of(self, family: str, *labels: str) -> Any:
        """The series of this feed; looked up once, for labels cost more than counting."""
        found = self._labels.get((family, *labels))
        if found is None:
            found = getattr(self.families, family).labels(self.feed, *labels)
            self._labels[(family, *labels)] = found
        return found

    def is_in(self, state: FeedState) -> None:
        """The feed is in this state from now on."""
        self.state = state
        if self.families is not None:
            for name in STATES:
                self._of("state", name).set(name == state)

    def lease(self, *, held: bool) -> None:
        """This process owns the feed, or does not."""
        if self.families is not None:
            self._of("lease").set(held)

    def started(self, offset: Offset) -> None:
        """The feed begins, or begins again, at an offset."""
        self.offset, self.error, self._reading_timestamp_ms = offset, None, None
        self._queued = self._fetched_bytes = 0
        self.is_in("snapshot" if offset.snapshot else "following")
        if self.families is not None:
            self._of("version").set(offset.version)

    def read(self, item: ChangeBatch | Notice) -> None:
        """A batch or notice is ready to be written."""
        self._queued += 1
        if isinstance(item, ChangeBatch):
            self._reading_timestamp_ms = item.timestamp_ms

    def newest(self, version: int) -> None:
        """The table's newest version is this one."""
        self._newest = version

    @property
    def newest_known(self) -> int | None:
        """The table's newest version, as far as reading has learnt it; None if it has not."""
        return None if self._newest < 0 else self._newest

    def noops(self, rows: int) -> None:
        """So many rows were rewritten as updates with equal values, and dropped."""
        if self.families is not None:
            self._of("noops").inc(rows)

    def planned(self, commit: Commit) -> None:
        """This commit's files are read next."""
        self.sizes[commit.version] = commit.header.file_bytes
        self._fetched_bytes = 0

    def fetched(self, size: int) -> None:
        """A file of this size in bytes was read to its end."""
        self._fetched_bytes += size
        if self.families is not None:
            self._of("files").inc()

    def lost(self, notice: Notice) -> None:
        """Something is gone for good, and is passed over."""
        if self.families is None:
            return
        versions = notice.next_offset.version - notice.offset.version
        if versions:
            self._of("data_loss", "version").inc(versions)
        else:
            self._of("data_loss", "file").inc(len(notice.details["files"]))

    def written(self, seconds: float) -> None:
        """The sink took so long to write a batch."""
        if self.families is not None:
            self._of("write_seconds").observe(seconds)

    def parked(self, rows: int, error: Exception) -> None:  # noqa: ARG002  # a subclass may tell it
        """So many rows were refused by the sink, and are parked."""
        if self.families is not None:
            self._of("parked").inc(rows)

    def announced(self, notice: Notice) -> None:
        """A notice is written, and its offset saved."""
        if notice.kind != "heartbeat":
            self._queued = max(0, self._queued - 1)
            whole = notice.kind == "snapshot_end"
            self._moved(notice.next_offset, notice.timestamp_ms, whole=whole)
        if self.families is not None:
            self._of("notices", notice.kind).inc()

    def read_bytes(self, count: int) -> None:
        """So many bytes of data and cdc files were read. Called from worker threads."""
        if self.families is not None:
            self._of("read_bytes").inc(count)

    def delivered(self, batch: ChangeBatch) -> None:
        """A batch is written and its offset saved."""
        self._queued = max(0, self._queued - 1)
        self.events_delivered += batch.num_rows
        if self.families is not None and batch.file is not None and batch.num_rows:
            self._count(batch, batch.file.origin)
        if self.offset is None:
            self.offset = batch.offset
        self._moved(batch.next_offset, batch.timestamp_ms, whole=True)

    def _count(self, batch: ChangeBatch, origin: str) -> None:
        import pyarrow.compute as pc  # only where there is a registry

        per_row = batch.rows.nbytes / batch.num_rows
        for entry in pc.value_counts(batch.rows.column("_change_type")).to_pylist():
            self._of("events", entry["values"], origin).inc(entry["counts"])
            self._of("bytes", entry["values"], origin).inc(entry["counts"] * per_row)

    def _moved(self, offset: Offset, timestamp_ms: int, *, whole: bool) -> None:
        before, self.offset, self.error = self.offset, offset, None
        if self.state in ("snapshot", "retrying") and not offset.snapshot:
            self.is_in("following")
        if before is None or offset.version <= before.version:
            return
        self.versions_delivered += whole
        for version in [v for v in self.sizes if v < offset.version]:
            del self.sizes[version]
        for deadlines in self.deadlines.values():
            for version in [v for v in deadlines if v < offset.version]:
                del deadlines[version]
        if self.families is not None:
            self._of("version").set(offset.version)
            if not whole:
                return
            self._of("versions").inc()
            latency = max(0.0, self.clock() - timestamp_ms / 1000)
            self._of("latency").observe(latency)

    def failed(self, error: TailerError) -> None:
        """The feed failed; it is tried again or it ends."""
        self.error = error
        if self.families is not None:
            self._of("errors", error.family).inc()

    def retried(self, error: TailerError) -> None:
        """The feed failed in a way that may heal, and will start again from its saved offset."""
        self.failed(error)
        self.is_in("retrying")
        self.on_retry(error)
        if self.families is not None:
            self._of("retries").inc()

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

    def lag_bytes(self) -> float:
        """Sizes of the file actions of the versions that are not delivered, as far as known."""
        if self.offset is None or not self.sizes:
            return 0.0
        unread = sum(size for v, size in self.sizes.items() if v >= self.offset.version)
        return float(max(0, unread - (self._fetched_bytes if unread else 0)))

    def seconds_to_loss(self, cause: str | None = None) -> float:
        """Seconds until something unread may be removed; infinite if nothing is unread."""
        causes = self.deadlines if cause is None else (cause,)
        found = [t for c in causes for t in self.deadlines[c].values()]
        return min(found) - self.clock() if found else math.inf
