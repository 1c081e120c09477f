"""What a feed did in the last hour, and what to do about an error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailer import errors
from tailer.changes import ChangeBatch
from tailer.daemon.recent import ROWS_BYTES_MAX, ROWS_MAX, LastRows, RecentPast
from tailer.daemon.remedies import find_remedy
from tailer.errors import ConfigError, CorruptLog, TailerError, TransientError
from tailer.feed.policy import FeedPaused
from tailer.feed.progress import FeedProgress
from tailer.testing.batches import change_batch


def batch_of(values: dict[str, Any]) -> ChangeBatch:
    """Return one batch of inserts of these columns."""
    rows = pa.RecordBatch.from_pydict(values)
    return change_batch(rows.schema, rows.to_pylist())


def test_an_hour_is_kept_and_no_more() -> None:
    now = 1000.0
    progress = FeedProgress("orders", lambda: now)
    past = RecentPast(progress)
    for i in range(500):
        now += 30.0
        progress.events_delivered += 60
        past.add_sample()
        progress.state = "retrying" if i % 2 else "following"
        past.note_state("away" if i % 2 else None)
        past.note_order(f"pause {i}", "done")
    told = past.to_json()
    assert [len(told[what]) for what in ("samples", "states", "orders")] == [120, 50, 20]
    assert {sample["events_per_s"] for sample in told["samples"]} == {2.0}
    assert told["samples"][-1]["time_s"] - told["samples"][0]["time_s"] == 119 * 30
    assert told["orders"][0]["order"] == "pause 499", "the newest comes first"
    assert told["states"][-1] == {"time_s": now, "state": "retrying", "error": "away"}


def test_a_state_that_stays_is_one_line_with_its_newest_reason() -> None:
    progress = FeedProgress("orders", lambda: 5.0)
    past = RecentPast(progress)
    progress.state = "retrying"
    for error in (None, "refused", "refused", "timed out"):
        past.note_state(error)
    expected = [{"time_s": 5.0, "state": "retrying", "error": "timed out"}]
    assert past.to_json()["states"] == expected


def test_the_last_rows_are_few_and_have_memory_of_their_own() -> None:
    last = LastRows()
    assert last.to_json() == []
    last.keep_rows(batch_of({"id": list(range(10_000))}))
    assert last.rows is not None
    assert last.rows.get_total_buffer_size() <= ROWS_BYTES_MAX
    assert [row["id"] for row in last.to_json()] == list(range(9_999, 9_999 - ROWS_MAX, -1))
    # An empty batch delivers nothing; rows that are too large hide those before them.
    last.keep_rows(batch_of({"id": pa.array([], pa.int64())}))
    assert len(last.to_json()) == ROWS_MAX
    last.keep_rows(batch_of({"id": ["x" * 20_000, "y" * 20_000]}))
    assert [row["id"][0] for row in last.to_json()] == ["y"]
    last.keep_rows(batch_of({"id": ["x" * 40_000]}))
    assert last.to_json() == []


def test_every_value_is_shown_as_json_that_a_browser_reads() -> None:
    last = LastRows()
    values = {
        "nan": [float("nan")],
        "large": [2**60],
        "text": ["é" * 500],
        "bytes": [b"\x00\xff"],
        "time": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "decimal": [Decimal("1.50")],
        "nested": [{"a": [1, None, float("inf")]}],
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "none": pa.array([None], pa.string()),
    }
    last.keep_rows(batch_of(values))
    (row,) = last.to_json()
    json.dumps(row, allow_nan=False)
    assert row["nan"] == "nan"
    assert row["large"] == str(2**60)
    assert len(row["text"]) == 201
    assert row["bytes"] == "00ff"
    assert row["decimal"] == "1.50"
    assert row["nested"] == {"a": [1, None, "inf"]}
    assert row["none"] is None


def families() -> set[str]:
    found = {getattr(errors, name) for name in errors.__all__}
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, TailerError)]
    return {kind.family for kind in kinds} | {FeedPaused.family}


@pytest.mark.parametrize("family", sorted(families()))
def test_every_family_of_errors_has_a_remedy(family: str) -> None:
    error = TailerError("it failed")
    error.family = family
    remedy = find_remedy(error)
    assert remedy is not None
    assert remedy.text.endswith((".", "`."))
    assert ("bug" in remedy.text) == (family == "internal")


def test_a_remedy_names_the_order_and_the_version() -> None:
    assert find_remedy(None) is None
    told = find_remedy(CorruptLog("the file ends early", version=7))
    assert told is not None
    assert (told.order, told.version) == ("start", 7)
    orders = [find_remedy(e) for e in (TransientError("x"), FeedPaused("x", 3), ConfigError("x"))]
    assert [remedy and remedy.order for remedy in orders] == [None, "resume", "reload"]
