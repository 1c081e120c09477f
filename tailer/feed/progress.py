"""How far a feed has come: its offset, state, lag and counts.

Pure state: the feed's parts update it; control flow, a status and Prometheus
(:mod:`tailer.daemon.metrics`) read it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from threading import Lock
from typing import Literal, get_args

import pyarrow.compute as pc
from msgspec import Struct

from tailer.changes import CHANGE_TYPE, ChangeBatch, Notice, Offset
from tailer.delta.changed_rows import count_changed_rows
from tailer.delta.commit import Commit
from tailer.errors import TailerError, TransientError

#: ``blocked`` is a feed that waits for its operator, ``paused`` one that an order has paused.
FeedState = Literal[
    "starting", "snapshot", "following", "standby", "paused", "blocked", "retrying", "failed",
    "stopped",
]  # fmt: skip
STATES: tuple[FeedState, ...] = get_args(FeedState)

_LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_WRITE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class SlowSink(TransientError):
    """A call of the sink has not come back for long; it may still."""


class Total(Struct):
    """A number that only grows; ``since_s`` is when counting began, in epoch seconds."""

    since_s: float
    value: float = 0.0


class Distribution:
    """How many values lie below each bound, their number and their sum."""

    def __init__(self, bounds: tuple[float, ...], since_s: float) -> None:
        self.bounds = (*bounds, math.inf)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0
        self.since_s = since_s

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, this many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class SnapshotProgress(Struct):
    """How far a snapshot is: its ``files`` and their ``bytes``, of these those that are read or
    passed over, and the ``rows`` delivered."""

    files: int
    bytes: int
    files_read: int = 0
    bytes_read: int = 0
    rows: int = 0
    #: When its first rows were delivered, and what was read then: the rest begins there.
    since_s: float | None = None
    since_bytes: int = 0

    def count_rows(self, rows: int, now_s: float) -> None:
        """Count rows that are delivered."""
        self.rows += rows
        if self.since_s is None:
            self.since_s, self.since_bytes = now_s, self.bytes_read

    def find_share(self) -> float:
        """Return the part that is read, from 0 to 1."""
        return min(1.0, self.bytes_read / self.bytes) if self.bytes else 1.0

    def estimate_seconds_left(self, now_s: float) -> float | None:
        """Return how long the rest takes at the pace so far; None if there is none yet."""
        read = self.bytes_read - self.since_bytes
        if self.bytes_read >= self.bytes:
            return 0.0
        if self.since_s is None or read <= 0:
            return None
        return (self.bytes - self.bytes_read) * (now_s - self.since_s) / read


class Observer:
    """Gets what reading finds out; this one ignores it. ``feed`` is whose reading it is, if it is a
    feed's."""

    feed = ""

    def note_newest(self, version: int) -> None:
        """Note the table's newest version."""

    def count_noops(self, rows: int) -> None:
        """Note that this number of rows was rewritten as updates with equal values, and dropped."""

    def note_commit(self, commit: Commit) -> None:
        """Note that this commit's files are read next."""

    def count_fetched(self, files: int, size: int) -> None:
        """Note that this many files of this size in bytes were read to their ends."""

    def begin_snapshot(self, files: int, size: int) -> None:
        """Note that a snapshot of this many files, of this size in bytes, is read next."""

    def count_snapshot_file(self, size: int) -> None:
        """Note that the snapshot's next file, of this size, is read or passed over."""

    def begin_comparison(self) -> None:
        """Note that the rows of a comparison are read next, from the beginning."""

    def count_compared(self, rows: int) -> None:
        """Note that this many rows of a comparison were read. Called from worker threads."""

    def note_loss(self, notice: Notice) -> None:
        """Note that something is lost for good, and is skipped."""

    def count_replaced_texts(self, texts: int) -> None:
        """Note that this many texts were not UTF-8, and were made so. Called from worker
        threads."""

    def count_read_bytes(self, count: int) -> None:
        """Note this many bytes read from data and cdc files. Called from worker threads."""


class FeedProgress(Observer):
    """One feed's progress. ``clock`` gives the time of day in epoch seconds.

    ``totals`` counts by name and labels. ``deadlines`` maps the cause (log, data) and the version
    to the epoch seconds after which unread data of that version may be removed; ``sizes`` maps a
    version to the bytes of its file actions, ``rows`` to the rows that it changes, None if unknown.
    ``offset`` is that of the feed as it runs here,
    ``saved`` the one that was looked up while it did not. ``parked`` is what
    :meth:`~tailer.feed.parked_file.ParkedFile.measure` said last, None without such a file.
    """

    def __init__(self, feed: str, clock: Callable[[], float]) -> None:
        self.feed = feed
        self.clock = clock
        self.versions_delivered = 0
        self.events_delivered = 0
        self.offset: Offset | None = None
        self.saved: Offset | None = None
        self.error: TailerError | None = None
        self.state: FeedState = "starting"
        self.lease_held = False
        self.queued = 0
        #: How many targets have got rows by their columns.
        self.targets = 0
        self.newest_known: int | None = None
        self.sizes: dict[int, int] = {}
        self.rows: dict[int, int | None] = {}
        self.deadlines: dict[str, dict[int, float]] = {"log": {}, "data": {}}
        self.parked: dict[str, int] | None = None
        self.totals: dict[tuple[str, ...], Total] = {}
        self.distributions: dict[str, Distribution] = {}
        #: The snapshots that are being read and written: the last one is read.
        self.snapshots: list[SnapshotProgress] = []
        #: Called with each batch that was delivered.
        self.on_rows: Callable[[ChangeBatch], None] | None = None
        self._counting = Lock()
        self._fetched_bytes = self._passed_bytes = 0
        self._reading_timestamp_ms: int | None = None
        self._unread_since_s: float | None = None

    def _add_to_total(self, name: str, *labels: str, by: float = 1) -> None:
        with self._counting:
            total = self.totals.get((name, *labels))
            if total is None:
                total = self.totals[(name, *labels)] = Total(self.clock())
            total.value += by

    def _observe_value(
        self, name: str, bounds: tuple[float, ...], value: float, times: int = 1
    ) -> None:
        if name not in self.distributions:
            self.distributions[name] = Distribution(bounds, self.clock())
        self.distributions[name].observe(value, times)

    # Called by the reading side

    def note_newest(self, version: int) -> None:
        """See :class:`Observer`. A feed that failed has recovered if nothing is unread."""
        self.newest_known = version
        if self.state == "retrying" and self.offset is not None and not self.lag_versions():
            self._clear_failure(self.offset)

    def count_noops(self, rows: int) -> None:
        self._add_to_total("noops", by=rows)

    def note_commit(self, commit: Commit) -> None:
        self.sizes[commit.version] = commit.header.file_bytes
        if commit.header.files is not None:  # of a large one they would be parsed once more
            self.rows[commit.version] = count_changed_rows(commit)

    def count_fetched(self, files: int, size: int) -> None:
        self._fetched_bytes += size
        self._add_to_total("files", by=files)

    def begin_snapshot(self, files: int, size: int) -> None:
        self.snapshots.append(SnapshotProgress(files, size))

    def count_snapshot_file(self, size: int) -> None:
        if self.snapshots:
            self.snapshots[-1].files_read += 1
            self.snapshots[-1].bytes_read += size

    def begin_comparison(self) -> None:
        self.snapshots.clear()  # one that is compared is read more than once

    def count_compared(self, rows: int) -> None:
        if self.snapshots:
            self.snapshots[-1].count_rows(rows, self.clock())

    def note_loss(self, notice: Notice) -> None:
        versions = notice.next_offset.version - notice.offset.version
        if versions:
            self._add_to_total("data_loss", "version", by=versions)
        else:
            self._add_to_total("data_loss", "file", by=len(notice.details["files"]))

    def count_replaced_texts(self, texts: int) -> None:
        self._add_to_total("replaced", by=texts)

    def count_read_bytes(self, count: int) -> None:
        self._add_to_total("read_bytes", by=count)

    # Called by the writing side

    def note_start(self, offset: Offset) -> None:
        """Note that the feed starts, or starts again, at an offset.

        After a failure it stays ``retrying``, with its error, until it has delivered something or
        finds that nothing is unread: a sink that is away would seem well at each try.
        """
        self.offset, self._reading_timestamp_ms = offset, None
        self.saved = self._unread_since_s = None
        self.snapshots.clear()
        self.queued = self._fetched_bytes = self._passed_bytes = 0
        if self.state != "retrying":
            self._clear_failure(offset)

    def note_read_item(self, item: ChangeBatch | Notice) -> None:
        """Note that a batch or notice is ready to be written."""
        self.queued += 1
        if isinstance(item, ChangeBatch):
            self._reading_timestamp_ms = item.timestamp_ms

    def note_write_time(self, seconds: float) -> None:
        """Note how many seconds the sink took to write a batch."""
        self._observe_value("write_seconds", _WRITE_BOUNDS_S, seconds)

    def count_parked_rows(self, rows: int) -> None:
        """Note that the sink refused this many rows, and that they are parked."""
        self._add_to_total("parked", by=rows)

    def note_saved_notice(self, notice: Notice) -> None:
        """Note that a notice is written, and its offset saved."""
        if notice.kind != "heartbeat":
            self.queued = max(0, self.queued - 1)
            whole = notice.kind == "snapshot_end"
            del self.snapshots[:whole]
            self._move_offset(notice.next_offset, notice.timestamp_ms, whole=whole)
        self._add_to_total("notices", notice.kind)

    def note_saved_batch(self, batch: ChangeBatch, *, whole: bool = True) -> None:
        """Note that a batch is written, and its offset saved; or, unless ``whole``, one of its
        pieces, after which others come."""
        self.queued = max(0, self.queued - whole)
        self.events_delivered += batch.num_rows
        if batch.num_rows:
            self._count_events(batch)
            if self.snapshots and batch.offset.snapshot:
                self.snapshots[0].count_rows(batch.num_rows, self.clock())
            if self.on_rows is not None:
                self.on_rows(batch)
        if self.offset is None:
            self.offset = batch.offset
        self._move_offset(batch.next_offset, batch.timestamp_ms, whole=True)

    def _count_events(self, batch: ChangeBatch) -> None:
        origins = {part.file.origin for part in batch.parts()}
        per_row = batch.rows.nbytes / batch.num_rows
        kinds = batch.rows.column(CHANGE_TYPE)
        for origin in origins:
            mine = kinds
            if len(origins) > 1:
                mine = kinds.filter(pc.equal(batch.by_part(lambda part: part.file.origin), origin))
            for entry in pc.value_counts(mine).to_pylist():
                self._add_to_total("events", entry["values"], origin, by=entry["counts"])
                self._add_to_total("bytes", entry["values"], origin, by=entry["counts"] * per_row)

    def _move_offset(self, offset: Offset, timestamp_ms: int, *, whole: bool) -> None:
        before, self.offset, self.error = self.offset, offset, None
        self.saved = self._unread_since_s = None
        if not self.lag_versions():  # a version that comes later is not as old as this one
            self._reading_timestamp_ms = None
        self._passed_bytes = self._fetched_bytes  # and no more: what is read may not be written
        if self.state in ("snapshot", "retrying"):
            self._clear_failure(offset)
        if before is None or offset.version <= before.version:
            return
        left = {v: size for v, size in self.sizes.items() if v >= offset.version}
        gone = sum(self.sizes.values()) - sum(left.values())
        self.sizes, self._fetched_bytes = left, max(0, self._fetched_bytes - gone)
        self._passed_bytes = self._fetched_bytes
        self.rows = {v: rows for v, rows in self.rows.items() if v >= offset.version}
        for cause, by_version in self.deadlines.items():
            kept = {v: time for v, time in by_version.items() if v >= offset.version}
            self.deadlines[cause] = kept
        if whole:
            versions = offset.version - before.version
            self.versions_delivered += versions
            self._add_to_total("versions", by=versions)
            latency_s = max(0.0, self.clock() - timestamp_ms / 1000)
            self._observe_value("latency", _LATENCY_BOUNDS_S, latency_s, versions)

    def note_failure(self, error: TailerError) -> None:
        """Note that the feed failed; it is tried again or it ends."""
        self.error = error
        self._add_to_total("errors", error.family)

    def note_retry(self, error: TailerError) -> None:
        """Note that the feed failed temporarily; it starts again from its saved offset."""
        self.note_failure(error)
        self.state = "retrying"
        self._add_to_total("retries")

    def _clear_failure(self, offset: Offset) -> None:
        self.error = None
        self.state = "snapshot" if offset.snapshot else "following"

    def note_slow_sink(self, error: TailerError) -> None:
        """Note that the sink has not returned from a call for long."""
        self.error, self.state = error, "retrying"

    def note_sink_return(self, state: FeedState) -> None:
        """Note that the sink came back from a call, which began in that state."""
        if isinstance(self.error, SlowSink):
            self.error, self.state = None, state

    # Called by those who look at the table and the offset without running the feed

    def note_saved_offset(self, offset: Offset | None) -> None:
        """Note the saved offset of a feed that does not run here, or has not begun; None if it
        has none any more."""
        self.saved = offset
        if offset is None:
            self.offset = None

    def note_unread(
        self,
        since_s: float | None,
        sizes: dict[int, int],
        rows: dict[int, int | None],
        deadlines: dict[str, dict[int, float]],
    ) -> None:
        """Note what is not delivered: when it began, and ``sizes``, ``rows`` and ``deadlines``."""
        self._unread_since_s = since_s
        self.sizes |= sizes
        self.rows |= rows
        self.deadlines |= deadlines

    # Values computed from these

    @property
    def ready(self) -> bool:
        """Return whether the feed has an offset, and has not failed since its last delivery."""
        return self.offset is not None and self.error is None

    @property
    def known_offset(self) -> Offset | None:
        """Return the offset, also of a feed that does not run; None if it is not known."""
        return self.saved or self.offset

    def lag_versions(self) -> int:
        """Return how many versions of the table are not completely delivered."""
        if self.known_offset is None or self.newest_known is None:
            return 0
        return max(0, self.newest_known + 1 - self.known_offset.version)

    def lag_seconds(self) -> float:
        """Return the seconds since the commit of the current version; 0 if all are delivered."""
        since_s = self._unread_since_s
        if self._reading_timestamp_ms is not None:
            since_s = self._reading_timestamp_ms / 1000
        if since_s is None or not self.lag_versions():
            return 0.0
        return max(0.0, self.clock() - since_s)

    def lag_bytes(self) -> int:
        """Return the size of the file actions of the undelivered versions, as far as known."""
        if self.known_offset is None or not self.sizes:
            return 0
        unread = sum(size for v, size in self.sizes.items() if v >= self.known_offset.version)
        return max(0, unread - (self._passed_bytes if unread else 0))

    def lag_rows(self) -> int | None:
        """Return how many rows the undelivered versions change, as their log entries say; None if
        one of them does not say, was not looked at yet, or is read as a snapshot."""
        at, versions = self.known_offset, self.lag_versions()
        if at is None or self.newest_known is None:
            return None
        if not versions:
            return 0
        if at.snapshot or versions > len(self.rows):
            return None
        total = 0
        for version in range(at.version, at.version + versions):
            rows = self.rows.get(version)
            if rows is None:
                return None
            total += rows
        return max(0, total - at.index)

    def describe_snapshot(self) -> dict[str, float | None] | None:
        """Return how far the snapshot is that is being read, for the status; None: there is none.
        The share is from 0 to 1."""
        if not self.snapshots:
            return None
        found = self.snapshots[0]
        left = found.estimate_seconds_left(self.clock())
        return {
            "files": found.files,
            "files_read": min(found.files, found.files_read),
            "bytes": found.bytes,
            "bytes_read": min(found.bytes, found.bytes_read),
            "rows": found.rows,
            "share": round(found.find_share(), 4),
            "seconds_left": None if left is None else round(left, 1),
        }

    def seconds_to_loss(self, cause: str | None = None) -> float:
        """Return the seconds until unread data may be removed; infinite if nothing is unread."""
        causes = self.deadlines if cause is None else (cause,)
        found = [t for c in causes for t in self.deadlines[c].values()]
        return min(found) - self.clock() if found else math.inf
