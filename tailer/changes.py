"""The names that every stage shares: Offset, ChangeFile, ChangeBatch, Notice.

An :class:`Offset` names *the next change to read*, never the last one read. A
:class:`ChangeFile` is one data file's work order; a :class:`ChangeBatch` is rows on their way to a
sink, with the offset that they begin at and the one to save once they are written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Literal, Self

import pyarrow as pa
from pyroaring import BitMap64

from tailer.delta.actions import DeletionVectorDescriptor, StringMap
from tailer.delta.arrow_types import is_arrow_variant
from tailer.delta.snapshot import TableState
from tailer.delta.statistics import Bounds
from tailer.delta.variant import variant_json
from tailer.errors import OffsetError, TableError
from tailer.rowbytes import Column, join

__all__ = [
    "CHANGE_TYPE",
    "CHANGE_TYPES",
    "COMING_KINDS",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "COUNTING",
    "LEAVING_KINDS",
    "METADATA_FIELDS",
    "ChangeBatch",
    "ChangeFile",
    "ChangeType",
    "Notice",
    "NoticeKind",
    "Offset",
    "Origin",
    "Rows",
    "check_key",
    "counting_id",
    "is_arrow_variant",
    "variant_json",
]

ChangeType = Literal["insert", "update_preimage", "update_postimage", "delete"]
#: How a change was found: from cdc files, from whole files, by row ids, by cancel-out; or not a
#: change at all but a row of the initial snapshot.
Origin = Literal["cdf", "files", "row_ids", "cancel_out", "snapshot"]

#: What a feed sends to its sink besides changes.
NoticeKind = Literal[
    "schema_change", "data_loss", "skipped_version", "snapshot_begin", "snapshot_end", "heartbeat"
]

CHANGE_TYPES: tuple[ChangeType, ...] = ("insert", "update_preimage", "update_postimage", "delete")
#: The change types of rows that leave, and of rows that come.
LEAVING_KINDS: tuple[ChangeType, ...] = ("delete", "update_preimage")
COMING_KINDS: tuple[ChangeType, ...] = ("insert", "update_postimage")
CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"

#: The three columns after the data columns ("Reader Requirements for AddCDCFile").
METADATA_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
)

#: How changes are counted within a version. Counting 1 trusted statistics, kept the rows of a cdc
#: file in their writer's order, and counted rows of files that a remove did not find, or that
#: an add found already there.
COUNTING = 2

#: The last letter of an event id, so that one row's two images have different ids.
_LETTERS = pa.array(["i", "b", "a", "d"])
_KINDS = pa.array(CHANGE_TYPES)


def check_key(key: Iterable[str], columns: Collection[str], version: int | None = None) -> None:
    """Raise :class:`TableError` for a key column that is not one of a version's columns."""
    for name in key:
        if name not in columns:
            raise TableError(
                f"the key column {name!r} does not exist in this version",
                version=version,
                hint=f"its columns are {', '.join(columns)}; name another in the option 'key'",
            )


def counting_id(*named: Any, counting: int = COUNTING) -> str:
    """Return an id of what determines how the changes of a version are counted: 12 hex digits."""
    # Counting 1 had no number: offsets saved under it are recognized by their ids.
    text = json.dumps(named if counting == 1 else [counting, *named])
    return blake2b(text.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Offset:
    """The next change to read: the ``index``-th change (from 0) of ``version``.

    With ``snapshot``, the ``index``-th row of the initial snapshot of ``version``.
    ``timestamp_floor_ms`` is the timestamp of the version before, which keeps timestamps of later
    versions the same even after the log before them was cleaned up. ``counted_by`` names the
    options by which the changes within the version were counted: under others, the index means
    another change.

    Two offsets are equal if all of this is equal; ``position`` is their order.
    """

    version: int
    index: int = 0
    snapshot: bool = False
    table_id: str | None = None
    timestamp_floor_ms: int | None = None
    counted_by: str | None = None

    FORMAT = 1

    @property
    def position(self) -> tuple[int, int]:
        """Return version and index, which order the offsets of a feed."""
        return self.version, self.index

    def next_version(self, timestamp_ms: int) -> Offset:
        """Return the start of the version after this one, whose commit had that timestamp."""
        return replace(
            self,
            version=self.version + 1,
            index=0,
            snapshot=False,
            timestamp_floor_ms=timestamp_ms,
            counted_by=None,
        )

    def under(self, *ways: str) -> Offset:
        """Return the offset to resume from if changes are counted in one of these ways; within a
        version whose changes were counted in another way, the version's start."""
        if self.index and self.counted_by is not None and self.counted_by not in ways:
            return replace(self, index=0, counted_by=None)
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
        if (
            isinstance(version, int)
            and isinstance(index, int)
            and not isinstance(version, bool)
            and not isinstance(index, bool)
            and min(version, index) >= 0
            and isinstance(snapshot, bool)
            and isinstance(table_id, str | None)
            and isinstance(floor, int | None)
            and isinstance(counted_by, str | None)
        ):
            return cls(version, index, snapshot, table_id, floor, counted_by)
        raise OffsetError("the offset is damaged: a field is missing or of the wrong kind")


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one file: ``batch`` with the metadata columns, ``positions`` in the file.

    ``row_ids`` are their stable ids, if they were requested and the version has them.
    """

    batch: pa.RecordBatch
    positions: pa.Int64Array
    row_ids: pa.Int64Array | None = None

    def slice(self, first: int) -> Rows:
        """Return all rows but the first ``first``."""
        ids = None if self.row_ids is None else self.row_ids.slice(first)
        return Rows(self.batch.slice(first), self.positions.slice(first), ids)

    def filter(self, mask: pa.BooleanArray) -> Rows:
        """Return the rows among the first ``len(mask)`` for which the mask is true."""
        count = len(mask)
        ids = None if self.row_ids is None else self.row_ids.slice(0, count).filter(mask)
        batch = self.batch.slice(0, count).filter(mask)
        return Rows(batch, self.positions.slice(0, count).filter(mask), ids)


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """One data file's work order: which of its rows are changes, of what kind, in which schema.

    ``path`` is as in the log, ``location`` decoded (relative to the table, or absolute).
    ``change_type`` None: the file is a cdc file and gives it row by row; then ``kinds`` may
    restrict the kinds. Rows: those in ``only`` (all, if None) that are not in ``without``.
    ``state`` is the state whose schema and partitioning the file was written with. For derived
    changes, ``rows`` are the positions that changed, which replace ``only`` and ``without``, and
    ``updated`` those among them that are an update's image; ``kept`` are these rows themselves, if
    finding them has decoded them already.
    """

    path: str
    location: str
    version: int
    timestamp_ms: int
    table_id: str
    state: TableState
    partition_values: StringMap = field(hash=False)
    change_type: ChangeType | None
    origin: Origin
    size: int | None = None
    kinds: tuple[ChangeType, ...] | None = None
    only: DeletionVectorDescriptor | None = None
    without: DeletionVectorDescriptor | None = None
    num_records: int | None = None
    bounds: tuple[Bounds, ...] = ()
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    rows: BitMap64 | None = field(default=None, hash=False)
    updated: BitMap64 | None = field(default=None, hash=False)
    kept: tuple[Rows, ...] | None = field(default=None, compare=False, repr=False)

    def event_prefix(self) -> str:
        """Return the part of an event id that all rows of this file share: 32 hex digits."""
        text = "\x00".join((self.table_id, str(self.version), self.path))
        return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Rows of one file in one version, in order.

    ``rows`` has the data columns in ``state``'s schema, then the three metadata columns;
    ``positions`` (int64) the rows' positions in the file. Both are empty in a batch that only moves
    the offset past a version without changes. ``offset`` is that of the first row, ``next_offset``
    the one to save when the batch is written. ``row_ids`` are the rows' stable ids ("Row
    Tracking"), if they were requested; None if the version has none, or if it is read from cdc
    files, which do not contain them.

    Where a feed pairs updates (:mod:`tailer.feed.pairing`), ``before`` (struct of the data columns)
    has each update's preimage beside its postimage, null in every other row; such a preimage is
    then not a separate row, and ``indices`` (int64) are the rows' places in the version. An image
    without a partner stays a separate row. So do the two images of an update that changes the key;
    if the writer records that they belong together, each has the other one in ``partner`` (struct
    of the data columns, null in every other row).

    ``counted_by`` says how the changes are counted, in offsets within the version.
    """

    rows: pa.RecordBatch
    positions: pa.Int64Array
    state: TableState
    file: ChangeFile | None
    timestamp_ms: int
    offset: Offset
    next_offset: Offset
    row_ids: pa.Int64Array | None = None
    before: pa.StructArray | None = None
    indices: pa.Int64Array | None = None
    counted_by: str | None = None
    partner: pa.StructArray | None = None

    @property
    def version(self) -> int:
        """Return the version that the rows belong to."""
        return self.offset.version

    @property
    def num_rows(self) -> int:
        """Return how many change events the batch has."""
        return int(self.rows.num_rows)

    def row_indices(self) -> pa.Int64Array:
        """Return each row's place in its version, from 0 (int64): what the offset's index
        counts."""
        if self.indices is not None:
            return self.indices
        first = self.offset.index
        return pa.arange(first, first + self.num_rows)

    def slice(self, first: int, end: int) -> ChangeBatch:
        """Return the rows ``first`` to ``end`` (exclusive) as a separate batch."""
        arrays = {
            f.name: value.slice(first, end - first)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), pa.Array | pa.RecordBatch)
        }

        def at(row: int) -> Offset:
            # Where images were paired, rows have explicit places; else they are counted.
            index = self.row_indices()[row].as_py()
            return replace(
                self.offset, index=index, counted_by=self.counted_by or self.next_offset.counted_by
            )

        return replace(
            self,
            **arrays,
            offset=at(first) if first else self.offset,
            next_offset=self.next_offset if end >= self.num_rows else at(end),
        )

    def event_ids(self) -> pa.StringArray:
        """Return one id per row: the same on every run, machine and way of reading the same log
        files.

        Computed from table id, version, file, position in the file and kind of change.
        """
        if self.file is None or self.num_rows == 0:
            return pa.array([], pa.string())
        parts: list[Column] = [f"{self.file.event_prefix()}-", self.positions.cast(pa.string())]
        if self.offset.snapshot:
            return join([*parts, "-s"], self.num_rows)
        import pyarrow.compute as pc

        letters = _LETTERS.take(pc.index_in(self.rows.column(CHANGE_TYPE), _KINDS))
        return join([*parts, "-", letters], self.num_rows)


@dataclass(frozen=True, slots=True)
class Notice:
    """A record about the feed itself, in its place between the changes.

    ``details`` is JSON and depends on the kind. Only a heartbeat contains a clock's time, so a
    replay gives the same bytes. ``timestamp_ms`` is the commit's, a heartbeat's the time of day.
    ``next_offset`` is the one to save once the notice is written; it often equals ``offset``.
    """

    kind: NoticeKind
    version: int
    timestamp_ms: int
    offset: Offset
    next_offset: Offset
    details: dict[str, Any] = field(hash=False)

    def notice_id(self) -> str:
        """Return 32 hex digits, the same on every run, from table id, version, kind and details."""
        details = json.dumps(self.details, sort_keys=True)
        text = "\x00".join((self.offset.table_id or "", str(self.version), self.kind, details))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the notice as a JSON object; the order of its keys never changes."""
        return {
            "_notice": self.kind,
            "_notice_id": self.notice_id(),
            "table_id": self.offset.table_id,
            "version": self.version,
            "timestamp_ms": self.timestamp_ms,
            "details": self.details,
        }
