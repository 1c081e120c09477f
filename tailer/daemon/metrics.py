"""The feeds' progress as Prometheus metrics.

Nothing is registered at import: the registry is an argument. The names follow Prometheus' rules:
base units, ``_total`` for counters. docs/metrics.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tailer.feed.progress import STATES, FeedProgress

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
#: Family by the name of its figure: kind, name, further labels, help text.
_FAMILIES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "events": ("counter", "tailer_events", ("change_type", "origin"), "Change events delivered."),
    "bytes": (
        "counter", "tailer_event_bytes", ("change_type", "origin"),
        "Bytes of delivered events, in Arrow format; a batch's bytes are divided by rows.",
    ),
    "versions": ("counter", "tailer_versions", (), "Table versions delivered whole."),
    "notices": ("counter", "tailer_notices", ("kind",), "Notices sent to the sink."),
    "noops": (
        "counter", "tailer_noop_updates", (), "Updates dropped because both images are equal.",
    ),
    "errors": (
        "counter", "tailer_errors", ("family",), "Errors by the family that says who must act.",
    ),
    "retries": ("counter", "tailer_retries", (), "Starts from the saved offset after an error."),
    "data_loss": (
        "counter", "tailer_data_loss", ("unit",),
        "Losses skipped by on_data_loss: versions, and files of versions that were read.",
    ),
    "parked": ("counter", "tailer_parked_events", (), "Events refused by the sink and parked."),
    "replaced": (
        "counter", "tailer_replaced_texts", (),
        "Texts that were not valid UTF-8 and now contain U+FFFD.",
    ),
    "files": ("counter", "tailer_files_read", (), "Data and change files read completely."),
    "read_bytes": (
        "counter", "tailer_read_bytes", (), "Stored bytes read of data and cdc files.",
    ),
    "version": ("gauge", "tailer_offset_version", (), "The version of the saved offset."),
    "lag_versions": (
        "gauge", "tailer_lag_versions", (), "Versions of the table not delivered yet.",
    ),
    "lag_seconds": (
        "gauge", "tailer_lag_seconds", (),
        "Age of the version being delivered; 0 when all are delivered.",
    ),
    "lag_bytes": ("gauge", "tailer_lag_bytes", (), "Total size of the unread file actions."),
    "lag_rows": (
        "gauge", "tailer_lag_rows", (),
        "Rows that the unread versions change; absent while one of them does not say.",
    ),
    "snapshot_share": (
        "gauge", "tailer_snapshot_share", (),
        "Part of the snapshot that is read, by bytes, from 0 to 1; only while one is read.",
    ),
    "snapshot_left": (
        "gauge", "tailer_snapshot_left_seconds", (),
        "Time that the rest of the snapshot takes at its pace so far.",
    ),
    "parked_rows": ("gauge", "tailer_parked_rows", (), "Rows in the file of parked rows."),
    "parked_bytes": ("gauge", "tailer_parked_bytes", (), "Size of the file of parked rows."),
    "parked_limit": (
        "gauge", "tailer_parked_limit_bytes", (),
        "Size of the file of parked rows at which the feed stops.",
    ),
    "time_to_loss": (
        "gauge", "tailer_time_to_data_loss_seconds", ("cause",),
        "Time until log cleanup (log) or VACUUM (data) may remove unread data; +Inf: none.",
    ),
    "queue": (
        "gauge", "tailer_queue_batches", (),
        "Batches and notices read and not yet written, two at most.",
    ),
    "targets": (
        "gauge", "tailer_routed_targets", (),
        "Topics or streams that got rows by their columns since the start; only where they do.",
    ),
    "state": ("gauge", "tailer_feed_state", ("state",), "1 for the feed's current state, else 0."),
    "lease": ("gauge", "tailer_lease_held", (), "1 while this process owns the feed's offset."),
    "latency": (
        "histogram", "tailer_commit_to_delivery_seconds", (),
        "Time from a version's commit timestamp to its delivery.",
    ),
    "write_seconds": (
        "histogram", "tailer_sink_write_seconds", (), "Time that the sink took to write a batch.",
    ),
}  # fmt: skip


class MetricFamilies(Collector):
    """The metric families of one registry, which read the feeds' progress when they are collected;
    every feed is one label value in them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._feeds: dict[str, FeedProgress] = {}
        registry.register(self)

    def watch_feed(self, progress: FeedProgress) -> None:
        """Show a feed's progress from now on."""
        self._feeds[progress.feed] = progress

    def forget_feed(self, feed: str) -> None:
        """Drop the series of a feed that no longer exists."""
        self._feeds.pop(feed, None)

    def collect(self) -> Iterable[Any]:
        """Yield all families with their present samples, for the registry."""
        made = {
            figure: _KINDS[kind](name, text, labels=["feed", *labels])
            for figure, (kind, name, labels, text) in _FAMILIES.items()
        }
        for progress in list(self._feeds.values()):
            for figure, *labels, value in _list_gauges(progress):
                made[figure].add_metric([progress.feed, *labels], value)
            for (figure, *labels), total in list(progress.totals.items()):
                made[figure].add_metric([progress.feed, *labels], total.value, total.since_s)
            for figure, found in list(progress.distributions.items()):
                bounds = map(floatToGoString, found.bounds)
                buckets = [*zip(bounds, accumulate(found.counts), strict=True)]
                made[figure].add_metric([progress.feed], buckets, found.sum)
                name = f"{made[figure].name}_created"
                made[figure].add_sample(name, {"feed": progress.feed}, found.since_s)
        return made.values()


def _list_gauges(progress: FeedProgress) -> Iterator[tuple[Any, ...]]:
    """Yield the present figures: name, labels, value."""
    if progress.known_offset is not None:
        yield "version", progress.known_offset.version
    yield "lag_versions", progress.lag_versions()
    yield "lag_seconds", progress.lag_seconds()
    yield "lag_bytes", progress.lag_bytes()
    rows = progress.lag_rows()
    if rows is not None:
        yield "lag_rows", rows
    snapshot = progress.describe_snapshot()
    if snapshot is not None:
        yield "snapshot_share", snapshot["share"]
        if snapshot["seconds_left"] is not None:
            yield "snapshot_left", snapshot["seconds_left"]
    if (parked := progress.parked) is not None:
        yield "parked_rows", parked["rows"]
        yield "parked_bytes", parked["bytes"]
        yield "parked_limit", parked["bytes_max"]
    for cause in progress.deadlines:
        yield "time_to_loss", cause, progress.seconds_to_loss(cause)
    yield "queue", progress.queued
    if progress.targets:
        yield "targets", progress.targets
    for state in STATES:
        yield "state", state, progress.state == state
    yield "lease", progress.lease_held
