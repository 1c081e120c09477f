"""What a feed tells about itself."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from tailer.changes import Offset
from tailer.daemon.metrics import _FAMILIES, MetricFamilies
from tailer.errors import DataLoss, TransientError
from tailer.feed.progress import STATES, FeedProgress
from tailer.store.traffic import StoreMetrics
from tailer.testing.batches import change_batch, empty_batch
from tests.support.source import ROOT

SCHEMA = pa.schema([("id", pa.int64())])
STAMP_S = 1_767_225_600.0  # the batches' commit timestamp


class Clock:
    def __init__(self) -> None:
        self.now = STAMP_S + 2

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def progress(registry: CollectorRegistry, clock: Clock) -> FeedProgress:
    progress = FeedProgress("orders", clock)
    MetricFamilies(registry).watch_feed(progress)
    return progress


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"feed": "orders", **labels})


def test_events_are_counted_by_change_type(
    registry: CollectorRegistry, progress: FeedProgress
) -> None:
    rows = [
        {"id": i, "_change_type": kind} for i, kind in enumerate(("insert", "insert", "delete"))
    ]
    batch = change_batch(SCHEMA, rows, last=True)
    progress.note_start(batch.offset)
    progress.note_saved_batch(batch)
    name = "tailer_events_total"
    assert value(registry, name, change_type="insert", origin="cdf") == 2
    assert value(registry, name, change_type="delete", origin="cdf") == 1
    assert value(registry, name, change_type="update_preimage", origin="cdf") is None
    found = {
        kind: value(registry, "tailer_event_bytes_total", change_type=kind, origin="cdf") or 0.0
        for kind in ("insert", "delete")
    }
    assert found == {"insert": batch.rows.nbytes * 2 / 3, "delete": batch.rows.nbytes / 3}
    assert progress.events_delivered == 3


def test_a_version_counts_when_its_last_batch_is_delivered(
    registry: CollectorRegistry, progress: FeedProgress
) -> None:
    first = change_batch(SCHEMA, [{"id": 1}])
    last = change_batch(SCHEMA, [{"id": 2}], index=1, last=True)
    progress.note_start(first.offset)
    progress.note_saved_batch(first)
    assert value(registry, "tailer_versions_total") in (None, 0)
    assert value(registry, "tailer_offset_version") == 1
    progress.note_saved_batch(last)
    progress.note_saved_batch(empty_batch(SCHEMA, version=2))
    assert value(registry, "tailer_versions_total") == progress.versions_delivered == 2
    assert value(registry, "tailer_offset_version") == 3


def test_latency_is_from_the_commit_to_its_delivery(
    registry: CollectorRegistry, progress: FeedProgress
) -> None:
    progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}], last=True))
    assert value(registry, "tailer_commit_to_delivery_seconds_count") == 1
    assert value(registry, "tailer_commit_to_delivery_seconds_sum") == 2.0


def test_a_commit_of_the_future_has_no_negative_latency(
    registry: CollectorRegistry, progress: FeedProgress, clock: Clock
) -> None:
    clock.now = STAMP_S - 60
    progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}], last=True))
    assert value(registry, "tailer_commit_to_delivery_seconds_sum") == 0.0


def test_lag_is_what_is_not_delivered_whole(
    registry: CollectorRegistry, progress: FeedProgress, clock: Clock
) -> None:
    def lag() -> tuple[float | None, float | None]:
        return value(registry, "tailer_lag_versions"), value(registry, "tailer_lag_seconds")

    assert lag() == (0, 0)
    progress.note_start(Offset(1))
    progress.note_newest(3)
    first = change_batch(SCHEMA, [{"id": 1}], last=True)
    progress.note_read_item(first)
    assert lag() == (3, 2.0)
    clock.now += 5
    assert lag() == (3, 7.0)
    progress.note_saved_batch(first)
    assert lag() == (2, 7.0)
    for version in (2, 3):
        progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}], version=version, last=True))
    clock.now += 1000
    assert lag() == (0, 0.0), "a table that rests makes no lag"
    progress.note_newest(4)
    assert lag() == (1, 0.0), "nor is the new version as old as the last one that was delivered"
    fourth = change_batch(SCHEMA, [{"id": 1}], version=4, last=True)
    progress.note_read_item(structs.replace(fourth, timestamp_ms=round((clock.now - 3) * 1000)))
    assert lag() == (1, 3.0)


def test_errors_are_counted_by_family(registry: CollectorRegistry, progress: FeedProgress) -> None:
    progress.note_failure(TransientError("reset"))
    progress.note_failure(TransientError("reset"))
    progress.note_failure(DataLoss("gone"))
    assert value(registry, "tailer_errors_total", family="transient") == 2
    assert value(registry, "tailer_errors_total", family="data_loss") == 1


def test_ready_is_started_and_not_failing(progress: FeedProgress) -> None:
    seen = [progress.ready]
    steps: list[Callable[[], None]] = [
        lambda: progress.note_start(Offset(1)),
        lambda: progress.note_failure(TransientError("reset")),
        lambda: progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}], last=True)),
    ]
    for step in steps:
        step()
        seen.append(progress.ready)
    assert seen == [False, True, False, True]


def test_a_feed_that_nobody_watches_counts_for_itself(clock: Clock) -> None:
    progress = FeedProgress("tail", clock)
    progress.note_start(Offset(1))
    progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}, {"id": 2}], last=True))
    progress.note_failure(TransientError("reset"))
    assert (progress.events_delivered, progress.versions_delivered) == (2, 1)


def test_two_feeds_share_their_families(registry: CollectorRegistry, clock: Clock) -> None:
    families = MetricFamilies(registry)
    for feed, count in (("a", 1), ("b", 2)):
        rows = [{"id": i} for i in range(count)]
        families.watch_feed(progress := FeedProgress(feed, clock))
        progress.note_saved_batch(change_batch(SCHEMA, rows, last=True))
    name, labels = "tailer_events_total", {"change_type": "insert", "origin": "cdf"}
    assert registry.get_sample_value(name, {"feed": "a", **labels}) == 1
    assert registry.get_sample_value(name, {"feed": "b", **labels}) == 2


def test_every_metric_is_documented_and_every_documented_one_exists(
    registry: CollectorRegistry,
) -> None:
    MetricFamilies(registry)
    StoreMetrics(registry)
    made = {
        f"`{family.name}{'_total' if family.type == 'counter' else ''}`": family.type
        for family in registry.collect()
    }
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "metrics.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert {row[0]: row[1] for row in rows} == made
    labels = {f"`{family}`" for _, _, names, _ in _FAMILIES.values() for family in names}
    assert labels <= {label for row in rows for label in row[2].split(", ")}


def test_a_feed_that_is_forgotten_leaves_no_series(
    registry: CollectorRegistry, clock: Clock
) -> None:
    families = MetricFamilies(registry)
    for feed in ("orders", "kept"):
        families.watch_feed(progress := FeedProgress(feed, clock))
        progress.note_start(Offset(1))
        progress.note_saved_batch(change_batch(SCHEMA, [{"id": 1}], last=True))
        progress.note_failure(TransientError("reset"))
    families.forget_feed("orders")
    feeds = {s.labels["feed"] for family in registry.collect() for s in family.samples}
    assert feeds == {"kept"}
    families.forget_feed("orders")


def test_the_state_is_one_of_them(registry: CollectorRegistry, progress: FeedProgress) -> None:
    for state in STATES:
        progress.state = state
        assert [s for s in STATES if value(registry, "tailer_feed_state", state=s)] == [state]
