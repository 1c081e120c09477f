"""The names that every stage shares: Offset, ChangeFile, ChangeBatch, Notice.

An :class:`Offset` names *the next change to read*, never the last one read. A
:class:`ChangeFile` says which rows of one data file are changes; a :class:`ChangeBatch` is rows on
their way to a sink, with the offset that they begin at and the one to save once they are written.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs
from pyroaring import BitMap64

from tailer.delta.actions import DeletionVectorDescriptor, StringMap
from tailer.delta.arrow_types import is_arrow_variant
from tailer.delta.snapshot import TableState
from tailer.delta.statistics import Bounds
from tailer.delta.variant import variant_json
from tailer.errors import TableError
from tailer.native.rowbytes import Column, JoinedText, whole_numbers
from tailer.native.values import make_texts
from tailer.offset import Offset, counting_id

__all__ = [
    "CHANGE_TYPE",
    "CHANGE_TYPES",
    "COMING_KINDS",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "LEAVING_KINDS",
    "METADATA_FIELDS",
    "ChangeBatch",
    "ChangeFile",
    "ChangeType",
    "DecodedRows",
    "Notice",
    "NoticeKind",
    "Offset",
    "Origin",
    "Part",
    "check_key",
    "concat_batches",
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

#: The last letter of an event id, so that one row's two images have different ids.
_LETTERS = make_texts(["i", "b", "a", "d"])
_KINDS = make_texts(CHANGE_TYPES)


def check_key(key: Iterable[str], columns: Collection[str], version: int | None = None) -> None:
    """Raise :class:`TableError` for a key column that is not one of a version's columns."""
    for name in key:
        if name not in columns:
            raise TableError(
                f"the key column {name!r} does not exist in this version",
                version=version,
                hint=f"its columns are {', '.join(columns)}; name another in the option 'key'",
            )


class DecodedRows(Struct, frozen=True):
    """Some rows of one file, or of several small ones: ``batch`` with the metadata columns,
    ``positions`` in their files.

    ``row_ids`` are their stable ids, if they were requested and the version has them. ``utf8``: all
    texts are known to be UTF-8.
    """

    batch: pa.RecordBatch
    positions: pa.Int64Array
    row_ids: pa.Int64Array | None = None
    utf8: bool = False

    def slice(self, first: int, count: int | None = None) -> DecodedRows:
        """Return ``count`` rows from row ``first`` on, or all from there on."""
        ids = None if self.row_ids is None else self.row_ids.slice(first, count)
        batch, positions = self.batch.slice(first, count), self.positions.slice(first, count)
        return DecodedRows(batch, positions, ids, self.utf8)

    def filter(self, mask: pa.BooleanArray) -> DecodedRows:
        """Return the rows among the first ``len(mask)`` for which the mask is true."""
        count = len(mask)
        ids = None if self.row_ids is None else self.row_ids.slice(0, count).filter(mask)
        batch = self.batch.slice(0, count).filter(mask)
        return DecodedRows(batch, self.positions.slice(0, count).filter(mask), ids, self.utf8)


class ChangeFile(Struct, frozen=True):
    """One data file: which of its rows are changes, of what kind, in which schema.

    ``path`` is as in the log, ``location`` decoded (relative to the table, or absolute).
    ``change_type`` None: the file is a cdc file and gives it row by row; then ``kinds`` may
    restrict the kinds. Rows: those in ``only`` (all, if None) that are not in ``without``.
    ``state`` is the state whose schema and partitioning the file was written with; ``stats`` its
    statistics as in the log. For derived
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
    partition_values: StringMap
    change_type: ChangeType | None
    origin: Origin
    size: int | None = None
    kinds: tuple[ChangeType, ...] | None = None
    only: DeletionVectorDescriptor | None = None
    without: DeletionVectorDescriptor | None = None
    num_records: int | None = None
    bounds: tuple[Bounds, ...] = ()
    stats: str | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    rows: BitMap64 | None = None
    updated: BitMap64 | None = None
    kept: tuple[DecodedRows, ...] | None = None

    def __hash__(self) -> int:
        """Return the hash of what names the file, so that a sink may keep something by file."""
        return hash((self.table_id, self.version, self.path))

    def __repr__(self) -> str:
        """Return what names the file, without rows or values of the table."""
        return f"ChangeFile({self.path!r}, version={self.version}, origin={self.origin!r})"

    def logged_rows(self) -> int | None:
        """Return how many changes the file has according to the log; None if it does not say. This
        is a hint, but it is exact where changes were derived."""
        if self.rows is not None:
            return len(self.rows)
        if self.change_type is None or self.only is not None or self.num_records is None:
            return None
        return self.num_records - (self.without.cardinality if self.without else 0)

    def event_prefix(self) -> str:
        """Return the part of an event id that all rows of this file share: 32 hex digits."""
        text = "\x00".join((self.table_id, str(self.version), self.path))
        return blake2b(text.encode(), digest_size=16).hexdigest()


class Part(Struct, frozen=True):
    """The rows of a batch that come from one file: those from row ``first`` of the batch on.
    ``offset`` is that of the first of them, or of one before it that is not published."""

    first: int
    file: ChangeFile
    offset: Offset


class ChangeBatch(Struct, frozen=True):
    """Rows of one file in one version, or of a span of small files and versions, in order.

    ``rows`` has the data columns in ``state``'s schema, then the three metadata columns;
    ``positions`` (int64) the rows' positions in their files. Both are empty in a batch that only
    moves the offset past versions without changes. ``offset`` is that of the first row,
    ``next_offset`` the one to save when the batch is written; ``timestamp_ms`` is the commit's of
    the version of the last row. ``row_ids`` are the rows' stable ids ("Row Tracking"), if they were
    requested; None if the version has none, or if it is read from cdc files, which do not contain
    them.

    ``span`` has the parts of a batch with rows of several files; ``file`` is then None. All of it
    are versions of one schema. Only a sink that says so gets spans
    (:class:`tailer.sink.SinkTraits`); :meth:`parts` fits every batch.

    ``indices`` (int64) are the rows' places in their versions, where rows between them are missing:
    changes of other kinds than those that are published (:meth:`of_kinds`), or preimages.

    Where a feed pairs updates (:mod:`tailer.feed.pairing`), ``before`` (struct of the data columns)
    has each update's preimage beside its postimage, null in every other row; such a preimage is
    then not a separate row. An image without a partner stays a separate row. So do the two images
    of an update that changes the key; if the writer records that they belong together, each has the
    other one in ``partner`` (struct of the data columns, null in every other row).

    ``id_kinds`` are the change types by which the rows have their ids, where others are delivered:
    an update that leaves what is published is a delete. ``refused`` says why the only row of a
    batch can't be delivered: an expression can't be computed for it.

    ``counted_by`` says how the changes are counted, in offsets within the version. ``prepared`` is
    what the sink has begun to make of this very batch: see :meth:`tailer.sink.Sink.prepare`.
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
    span: tuple[Part, ...] = ()
    prepared: object = None
    id_kinds: pa.StringArray | None = None
    refused: TableError | None = None

    @property
    def version(self) -> int:
        """Return the version of the first row."""
        return self.offset.version

    @property
    def num_rows(self) -> int:
        """Return how many change events the batch has."""
        return int(self.rows.num_rows)

    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the batch, one for each file; none if it has no rows."""
        if self.span or self.file is None or not self.num_rows:
            return self.span
        return (Part(0, self.file, self.offset),)

    def by_part(self, value: Callable[[Part], Any]) -> Any:
        """Return a value that each part has: itself if all parts have the same one, else an array
        with one for each row. The batch has rows."""
        found = [value(part) for part in self.parts()]
        if all(one == found[0] for one in found):
            return found[0]
        ends = pa.array(self._find_ends(), pa.int32())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(found)))

    def by_file(self) -> Iterator[ChangeBatch]:
        """Yield the same rows, those of each file as a batch."""
        if not self.span:
            yield self
            return
        for part, end in zip(self.span, self._find_ends(), strict=True):
            yield self.slice(part.first, end)

    def _find_ends(self) -> list[int]:
        """Return where each part ends."""
        return [*(part.first for part in self.span[1:]), self.num_rows]

    def row_indices(self) -> pa.Int64Array:
        """Return each row's place in its version, from 0 (int64): what the offset's index
        counts."""
        if self.indices is not None:
            return self.indices
        if not self.span:
            first = self.offset.index
            return pa.arange(first, first + self.num_rows)
        begun = self.by_part(lambda part: part.first - part.offset.index)
        return pc.subtract(pa.arange(0, self.num_rows), begun).cast(pa.int64())

    def rows_before(self, offset: Offset) -> int:
        """Return how many rows, the first ones, lie before an offset."""
        whole = [part for part in self.parts() if part.offset.position < offset.position]
        if not whole:
            return 0
        after = self.span[len(whole) :]
        end = after[0].first if after else self.num_rows
        last = whole[-1]
        if last.offset.version < offset.version:
            return end
        here = self.row_indices().slice(last.first, end - last.first)
        return last.first + (pc.sum(pc.less(here, offset.index)).as_py() or 0)

    def slice(self, first: int, end: int) -> ChangeBatch:
        """Return the rows ``first`` to ``end`` (exclusive) as a separate batch."""
        end = min(end, self.num_rows)
        arrays = {
            name: value.slice(first, end - first)
            for name in self.__struct_fields__
            if isinstance(value := getattr(self, name), pa.Array | pa.RecordBatch)
        }
        last = end == self.num_rows
        cut = {
            **arrays,
            "offset": self._offset_at(first),
            "next_offset": self.next_offset if last else self._offset_at(end),
            "prepared": None,
        }
        if self.span:
            cut |= self._slice_span(first, end)
            if last:
                cut["timestamp_ms"] = self.timestamp_ms
        return structs.replace(self, **cut)

    def _offset_at(self, row: int) -> Offset:
        if not row:
            return self.offset
        if row == self.num_rows:
            return self.next_offset
        part = self._part_of(row)
        offset = self.offset if part is None else part.offset
        if part is not None and (self.indices is None or row == part.first):
            index = offset.index + row - part.first
        else:
            index = self.row_indices()[row].as_py()
        if not index:
            return offset if part is None else structs.replace(offset, index=0)
        counted_by = self.counted_by or self.next_offset.counted_by
        return structs.replace(offset, index=index, counted_by=counted_by)

    def _part_of(self, row: int) -> Part | None:
        """Return the part of a span that has a row."""
        at = bisect_right(self.span, row, key=lambda part: part.first)
        return self.span[at - 1] if at else None

    def _slice_span(self, first: int, end: int) -> dict[str, Any]:
        """Return the parts of the rows ``first`` to ``end`` of a span, as fields of a batch."""
        begun = bisect_right(self.span, first, key=lambda part: part.first) - 1
        parts = [part for part in self.span[begun:] if part.first < end] if first < end else []
        timestamp_ms = parts[-1].file.timestamp_ms if parts else self.timestamp_ms
        if len(parts) < 2:
            file = parts[0].file if parts else None
            return {"span": (), "file": file, "timestamp_ms": timestamp_ms}
        head = Part(0, parts[0].file, self._offset_at(first))
        rest = (structs.replace(part, first=part.first - first) for part in parts[1:])
        return {"span": (head, *rest), "timestamp_ms": timestamp_ms}

    def of_kinds(self, kinds: pa.StringArray) -> ChangeBatch:
        """Return the rows with these change types: see :meth:`kept`."""
        return self.kept(pc.is_in(self.rows.column(CHANGE_TYPE), value_set=kinds))

    def kept(self, wanted: pa.BooleanArray) -> ChangeBatch:
        """Return some of the rows, each at its place in its version. The offset to save stays what
        it is."""
        if wanted.true_count == self.num_rows:
            return self
        arrays = {name: value.filter(wanted) for name, value in self._row_arrays().items()}
        if not wanted.true_count:
            return structs.replace(self, **arrays, span=(), file=None)
        parts, first = [], 0
        for part, end in zip(self.parts(), self._find_ends(), strict=True):
            count = wanted.slice(part.first, end - part.first).true_count
            if count:
                parts.append(structs.replace(part, first=first))
                first += count
        return self._with_rows(arrays, parts)

    def groups(self, codes: pa.Int32Array) -> Iterator[ChangeBatch]:
        """Yield the rows of each group, as :meth:`kept` gives them: those with the code 0, then
        those with 1, and so on. ``codes`` has no nulls, and no number is left out."""
        order = pc.sort_indices(codes)  # rows of one code stay in their order
        parts = self.parts()
        places = {part.first: number for number, part in enumerate(parts)}
        numbers = self.by_part(lambda part: places[part.first])
        several = isinstance(numbers, pa.Array)
        arrays = {name: value.take(order) for name, value in self._row_arrays().items()}
        numbers, at = numbers.take(order) if several else numbers, 0
        for count in pc.value_counts(codes.take(order)).field("counts").to_pylist():
            taken = {name: value.slice(at, count) for name, value in arrays.items()}
            if several:
                runs = pc.run_end_encode(numbers.slice(at, count))
                firsts = [0, *runs.run_ends.to_pylist()]
                found = [
                    structs.replace(parts[number], first=first)
                    for number, first in zip(runs.values.to_pylist(), firsts, strict=False)
                ]
            else:
                found = [structs.replace(parts[0], first=0)]
            yield self._with_rows(taken, found)
            at += count

    def _row_arrays(self) -> dict[str, Any]:
        """Return the fields with something for each row; each row's place in its version is one of
        them."""
        found = {
            name: value
            for name in self.__struct_fields__
            if isinstance(value := getattr(self, name), pa.Array | pa.RecordBatch)
        }
        return {**found, "indices": self.row_indices()}

    def _with_rows(self, arrays: Mapping[str, Any], parts: Sequence[Part]) -> ChangeBatch:
        """Return the batch with some of its rows, which come from these parts."""
        return structs.replace(
            self,
            **arrays,
            file=parts[0].file if len(parts) == 1 else None,
            timestamp_ms=parts[-1].file.timestamp_ms,
            offset=parts[0].offset,
            span=tuple(parts) if len(parts) > 1 else (),
        )

    def event_ids(self) -> pa.StringArray:
        """Return one id per row: the same on every run, machine and way of reading the same log
        files.

        Computed from table id, version, file, position in the file and kind of change.
        """
        if not self.num_rows or not self.parts():
            return pa.array([], pa.string())
        return self.joined_event_ids().array()

    def joined_event_ids(self) -> JoinedText:
        """Return the ids, not put together yet. The batch has rows."""
        prefixes = self.by_part(lambda part: f"{part.file.event_prefix()}-")
        parts: list[Column] = [prefixes, whole_numbers(self.positions)]
        if self.offset.snapshot:
            return JoinedText([*parts, "-s"], self.num_rows)
        kinds = self.rows.column(CHANGE_TYPE) if self.id_kinds is None else self.id_kinds
        letters = _LETTERS.take(pc.index_in(kinds, _KINDS))
        return JoinedText([*parts, "-", letters], self.num_rows)


def concat_batches(batches: Sequence[ChangeBatch]) -> ChangeBatch:
    """Return consecutive batches of one schema, with rows, as one. Updates are not paired."""
    if len(batches) == 1:
        return batches[0]
    parts, at = [], 0
    for batch in batches:
        parts += [structs.replace(part, first=at + part.first) for part in batch.parts()]
        at += batch.num_rows
    ids = [batch.row_ids for batch in batches]
    last = batches[-1]
    return structs.replace(
        batches[0],
        rows=pa.concat_batches([batch.rows for batch in batches]),
        positions=pa.concat_arrays([batch.positions for batch in batches]),
        file=None,
        timestamp_ms=last.timestamp_ms,
        next_offset=last.next_offset,
        row_ids=None if any(one is None for one in ids) else pa.concat_arrays(ids),
        span=tuple(parts),
    )


class Notice(Struct, frozen=True):
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
    details: dict[str, Any]

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
