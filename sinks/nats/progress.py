"""What the bucket says of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailer.changes import Offset


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What the bucket says of a stream: its feed, the last process that claimed it, the offset, the
    stream's last sequence number there, when the stream was made; and of a copy that has begun, the
    columns of its rows, and how many there are at least."""

    feed: str
    epoch: int
    offset: Offset | None
    sequence: int
    made: str | None = None
    columns: Mapping[str, Any] | None = None
    rows: int = 0

    def to_bytes(self) -> bytes:
        """Return the value of the entry."""
        offset = None if self.offset is None else self.offset.to_json()
        document = {"feed": self.feed, "epoch": self.epoch, "sequence": self.sequence}
        more = {} if self.columns is None else {"columns": self.columns, "rows": self.rows}
        return json.dumps({**document, "offset": offset, "made": self.made, **more}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> StreamProgress:
        """Parse the value of the entry. Raises ``ValueError``, KeyError, TypeError or
        :class:`OffsetError`."""
        found = json.loads(value)
        offset = found["offset"]
        at = None if offset is None else Offset.from_json(offset)
        made, columns, rows = found.get("made"), found.get("columns"), found.get("rows", 0)
        return cls(found["feed"], found["epoch"], at, found["sequence"], made, columns, rows)
