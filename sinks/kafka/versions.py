"""Which version of the table a topic has begun with, and the markers of its beginning and end.

A version begins with its first record and ends when the feed continues after it: with its last
batch, which may have no rows left (filtered, or images that an earlier row carries), or with a
notice that leads away from it. A version that has begun is part of the feed's progress, so that a
version which a restart cuts in two has one beginning and one end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from tailer.changes import ChangeBatch, Offset

__all__ = ["Begun", "ended_apart", "is_last_batch"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A version, or a snapshot of one, of which ``events`` records are in ``topic``."""

    id: str
    version: int
    snapshot: bool
    timestamp_ms: int
    topic: str
    events: int = 0

    @classmethod
    def by(cls, batch: ChangeBatch, topic: str) -> Self:
        """Return the version whose first records are a batch's."""
        name = f"{batch.offset.table_id}:{batch.version}"
        snapshot = batch.offset.snapshot
        name += ":snapshot" if snapshot else ""
        return cls(name, batch.version, snapshot, batch.timestamp_ms, topic)

    def is_at(self, offset: Offset | None) -> bool:
        """Return whether an offset lies within this version."""
        if offset is None:
            return False
        return (self.version, self.snapshot) == (offset.version, offset.snapshot)

    def plus(self, events: int, batch: ChangeBatch, topic: str) -> Begun:
        """Return the same version with a batch's records added."""
        return replace(
            self, events=self.events + events, timestamp_ms=batch.timestamp_ms, topic=topic
        )

    def marker(self, status: str) -> dict[str, Any]:
        """Return the marker ``BEGIN`` or ``END``, in the shape of Debezium's transaction
        metadata."""
        events = self.events if status == "END" else None
        counts = [{"data_collection": self.topic, "event_count": events}]
        return {
            "status": status,
            "id": self.id,
            "ts_ms": self.timestamp_ms,
            "event_count": events,
            "data_collections": None if events is None else counts,
        }

    def to_json(self) -> dict[str, Any]:
        """Return its part of the progress record, which stores ``events`` elsewhere."""
        return {
            "id": self.id,
            "version": self.version,
            "snapshot": self.snapshot,
            "timestamp_ms": self.timestamp_ms,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any] | None, events: int) -> Self | None:
        """Parse the part of a progress record. Raises ``KeyError`` and ``TypeError`` for an invalid
        version."""
        return None if document is None else cls(**document, events=events)

    @classmethod
    def before_it_was_kept(cls, offset: Offset | None, events: int, topic: str) -> Self | None:
        """Return the version that has begun according to a progress record of an earlier release,
        which has only the number of events in the offset's version."""
        if offset is None or not offset.index:
            return None
        name = f"{offset.table_id}:{offset.version}"
        name += ":snapshot" if offset.snapshot else ""
        floor = offset.timestamp_floor_ms or 0
        return cls(name, offset.version, offset.snapshot, floor, topic, events)


def is_last_batch(batch: ChangeBatch, at: Offset | None) -> bool:
    """Return whether a batch with rows ends its version, or the last of its versions; ``at`` is the
    feed's offset before it.

    A snapshot that is taken while the stream continues does not move the offset; a notice marks
    the end of its last batch.
    """
    then, last = batch.next_offset, batch.parts()[-1].offset
    if batch.offset.snapshot and at is not None and then.position == at.position:
        return False
    return (then.version, then.snapshot) != (last.version, batch.offset.snapshot)


def ended_apart(batch: ChangeBatch) -> list[ChangeBatch]:
    """Return a batch as the versions that it ends, and the last one if it does not end it, so that
    the records of that one can be counted."""
    last = batch.parts()[-1].offset
    if batch.version == last.version or is_last_batch(batch, None):
        return [batch]
    first = batch.rows_before(replace(last, index=0))
    return [batch.slice(0, first), batch.slice(first, batch.num_rows)]
