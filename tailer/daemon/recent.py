"""What a feed did in the last hour, kept in memory: figures, states, orders and its last events.

Everything is bounded: a feed takes some 20 KiB, and at most :data:`ROWS_BYTES_MAX` more for its
last rows, which are kept only where a token protects them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from tailer.changes import ChangeBatch
from tailer.feed.progress import FeedProgress

#: Seconds between two samples, and how many are kept: one hour.
SAMPLE_S = 30.0
_SAMPLES_MAX = 120
_STATES_MAX = 50
_ORDERS_MAX = 20
#: How many of the last rows are kept, and in how many bytes.
ROWS_MAX = 20
ROWS_BYTES_MAX = 32 * 1024
#: The most characters of a value that is shown.
_TEXT_CHARACTERS = 200


class _Sample(NamedTuple):
    time_s: float
    lag_versions: int
    lag_seconds: float
    lag_bytes: int
    events_per_s: float


class _State(NamedTuple):
    time_s: float
    state: str
    error: str | None


class _Order(NamedTuple):
    time_s: float
    order: str
    outcome: str


@dataclass(slots=True)
class LastRows:
    """The last rows that a sink has taken, as it got them: masked columns are masked here too."""

    rows: pa.RecordBatch | None = None

    def keep_rows(self, batch: ChangeBatch) -> None:
        """Keep the last rows of a batch that was delivered, in memory of their own."""
        count = min(ROWS_MAX, batch.num_rows)
        while count:
            last = batch.rows.slice(batch.num_rows - count)
            if last.nbytes <= ROWS_BYTES_MAX:
                # A slice would keep the memory of the whole batch.
                self.rows = last.take(pa.array(range(count), pa.int32()))
                return
            count //= 2
        if batch.num_rows:
            self.rows = None  # the last row is too large to be kept, and older ones would mislead

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows, the newest first; long texts are cut."""
        if self.rows is None:
            return []
        return [_shorten_value(row) for row in reversed(self.rows.to_pylist())]


class RecentPast:
    """A feed's last hour. Times are in epoch seconds, from the progress's clock."""

    def __init__(self, progress: FeedProgress) -> None:
        self._progress = progress
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_MAX)
        self._states: deque[_State] = deque(maxlen=_STATES_MAX)
        self._orders: deque[_Order] = deque(maxlen=_ORDERS_MAX)
        self._counted = (progress.clock(), progress.events_delivered)

    def add_sample(self) -> None:
        """Add the present figures."""
        progress, now = self._progress, self._progress.clock()
        since, events = self._counted
        seconds = now - since
        rate = (progress.events_delivered - events) / seconds if seconds > 0 else 0.0
        self._counted = now, progress.events_delivered
        self._samples.append(
            _Sample(
                round(now, 1),
                progress.lag_versions(),
                round(progress.lag_seconds(), 1),
                progress.lag_bytes(),
                round(rate, 1),
            )
        )

    def note_state(self, error: str | None) -> None:
        """Note the feed's state, if it is another one than at the last look."""
        state = self._progress.state
        last = self._states[-1] if self._states else None
        if last is None or last.state != state:
            self._states.append(_State(round(self._progress.clock(), 1), state, error))
        elif error is not None and last.error != error:
            self._states[-1] = last._replace(error=error)

    def note_order(self, order: str, outcome: str) -> None:
        """Note an order, and whether it was done or refused."""
        self._orders.append(_Order(round(self._progress.clock(), 1), order, outcome))

    def to_json(self) -> dict[str, Any]:
        """Return ``samples`` and ``states``, oldest first, and ``orders``, newest first."""
        return {
            "samples": [sample._asdict() for sample in self._samples],
            "states": [state._asdict() for state in self._states],
            "orders": [order._asdict() for order in reversed(self._orders)],
        }


def _shorten_value(value: Any) -> Any:
    """Return a value as JSON has it, cut to what a page shows."""
    if isinstance(value, dict):
        return {str(key)[:_TEXT_CHARACTERS]: _shorten_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten_value(one) for one in value[:ROWS_MAX]]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)  # what JavaScript's numbers hold
    if isinstance(value, bytes):
        return value[: _TEXT_CHARACTERS // 2].hex()
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}…"
