"""Where a feed is: the next change to read."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, Self

from msgspec import Struct, structs

from tailer.errors import OffsetError

__all__ = ["Offset", "counting_id"]

#: How changes are counted within a version; another number for another way.
_COUNTING = 2


def counting_id(*named: Any) -> str:
    """Return an id of what determines how the changes of a version are counted: 12 hex digits."""
    return blake2b(json.dumps([_COUNTING, *named]).encode(), digest_size=6).hexdigest()


class Offset(Struct, frozen=True):
    """The next change to read: the ``index``-th change (from 0) of ``version``.

    With ``snapshot``, the ``index``-th row of the initial snapshot of ``version``.
    ``timestamp_floor_ms`` is the timestamp of the version before, which keeps timestamps of later
    versions the same even after the log before them was cleaned up. ``counted_by`` names the
    options by which the changes within the version were counted: under others, the index means
    another change. ``commit_id`` is that of the version before
    (:meth:`tailer.delta.commit.Commit.read_id`), by which a table is noticed that was put back from
    an older copy and went on from there; None where no commit was read.

    ``delivered_files`` are left out, because a query of Spark delivered them before the feed took
    over from it: the first ones of the version, in the order of its log, or of its snapshot, by
    modification time and path. The index counts the changes of the others.

    Two offsets are equal if all of this is equal; ``position`` is their order.
    """

    version: int
    index: int = 0
    snapshot: bool = False
    table_id: str | None = None
    timestamp_floor_ms: int | None = None
    counted_by: str | None = None
    delivered_files: int = 0
    commit_id: str | None = None

    FORMAT = 1

    @property
    def position(self) -> tuple[int, int]:
        """Return version and index, which order the offsets of a feed."""
        return self.version, self.index

    @property
    def is_begun(self) -> bool:
        """Return whether changes of the version itself were delivered."""
        return self.index > 0 or self.delivered_files > 0

    def next_version(self, timestamp_ms: int, commit_id: str | None = None) -> Offset:
        """Return the start of the version after this one, whose commit had that timestamp."""
        return Offset(self.version + 1, 0, False, self.table_id, timestamp_ms, None, 0, commit_id)

    def advanced_by(self, changes: int, counted_by: str) -> Offset:
        """Return the offset after that number of changes of the same version."""
        # structs.replace takes longer.
        index, floor_ms = self.index + changes, self.timestamp_floor_ms
        return Offset(
            self.version, index, self.snapshot, self.table_id, floor_ms, counted_by,
            self.delivered_files, self.commit_id,
        )  # fmt: skip

    def resumable_with(self, counted_by: str) -> Offset:
        """Return the offset to resume from by these options: within a version whose changes were
        counted by others, the version's start."""
        if self.index and self.counted_by not in (None, counted_by):
            return structs.replace(self, index=0, counted_by=None)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the offset as a JSON object; the order of its keys never changes."""
        document = {
            "format": self.FORMAT,
            "table_id": self.table_id,
            "version": self.version,
            "index": self.index,
            "snapshot": self.snapshot,
            "timestamp_floor_ms": self.timestamp_floor_ms,
        }
        if self.delivered_files:
            document["delivered_files"] = self.delivered_files
        if self.commit_id is not None:
            document["commit"] = self.commit_id
        return document if self.counted_by is None else {**document, "plan": self.counted_by}

    def __str__(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return the offset in a JSON object. Raises :class:`OffsetError` if it holds none."""
        if not isinstance(document, dict) or document.get("format") != cls.FORMAT:
            found = document.get("format") if isinstance(document, dict) else None
            raise OffsetError(
                f"the offset has format {found!r}, and only {cls.FORMAT} is known here",
                hint="it is damaged, or a newer delta-tailer wrote it",
            )
        version, index = document.get("version"), document.get("index")
        table_id, floor = document.get("table_id"), document.get("timestamp_floor_ms")
        snapshot, counted_by = document.get("snapshot"), document.get("plan")
        delivered_files, commit_id = document.get("delivered_files", 0), document.get("commit")
        if (
            isinstance(version, int)
            and isinstance(index, int)
            and isinstance(delivered_files, int)
            and not any(isinstance(n, bool) for n in (version, index, delivered_files))
            and min(version, index, delivered_files) >= 0
            and isinstance(snapshot, bool)
            and isinstance(table_id, str | None)
            and isinstance(floor, int | None)
            and isinstance(counted_by, str | None)
            and isinstance(commit_id, str | None)
        ):
            return cls(
                version, index, snapshot, table_id, floor, counted_by, delivered_files, commit_id
            )
        raise OffsetError("the offset is damaged: a field is missing or of the wrong kind")
