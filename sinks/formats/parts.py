"""What the formats have in common: keys, headers, tombstones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import json_values
from tailer.changes import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, check_key
from tailer.errors import CorruptRow
from tailer.sink.encoder import Encoder, Header, Records

T = TypeVar("T")

#: The number of the way in which keys become bytes. Raise it with every change of a key's bytes: it
#: is saved with a feed's progress, and a feed that has written under another one stops and says so.
KEY_ENCODING = 1
#: The headers that identify an event.
_IDS = ("_event_id", "ce_id")
#: Debezium's own names.
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


def as_binary(text: pa.StringArray) -> pa.BinaryArray:
    """Return the same bytes, as binary."""
    return text.cast(pa.binary())


def encode_naming_corrupt_file(encode: Callable[[ChangeBatch], T], batch: ChangeBatch) -> T:
    """Encode a batch; a :class:`CorruptRow` (an invalid variant) names its version and file."""
    try:
        return encode(batch)
    except CorruptRow as e:
        if batch.span:  # which of the files it is shows when each is encoded alone
            for part in batch.by_file():
                encode_naming_corrupt_file(encode, part)
        raise e.at(version=batch.version, path=batch.file.path if batch.file else None) from None


class BatchEncoder(Encoder):
    """A format of this package, made with the ``options`` of :mod:`sinks.formats.load`. It encodes
    batches with rows: one without any has no records, and what can't be written is named with its
    file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.key_columns = tuple(options["key"])
        self.tombstones: bool = options.get("tombstones", False)
        self.name: str = options.get("name", "")
        self.table: str = options.get("table", "")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> BatchEncoder:
        return cls(options)

    def encode(self, batch: ChangeBatch) -> Records:
        if not batch.num_rows:
            return Records(None, pa.array([], pa.binary()), (), batch.timestamp_ms)
        return encode_naming_corrupt_file(self._encode_rows, batch)

    @abstractmethod
    def _encode_rows(self, batch: ChangeBatch) -> Records:
        """Encode a batch with rows."""


def commit_ms(batch: ChangeBatch) -> int | pa.Int64Array:
    """Return the time of the rows' commits, in milliseconds since 1970: one for all rows, or, if
    they differ, one for each."""
    if not batch.span:
        return batch.timestamp_ms
    return batch.by_part(lambda part: part.file.timestamp_ms)


def data_columns(batch: ChangeBatch) -> pa.StructArray:
    """Return the data columns of a batch, without the three metadata columns, as a struct array."""
    rows = batch.rows
    columns, fields = rows.columns, list(rows.schema)
    count = len(fields) - len(METADATA_FIELDS)
    if not count:
        return pa.array([{}], pa.struct([])).take(pa.repeat(pa.scalar(0), rows.num_rows))
    return pa.StructArray.from_arrays(columns[:count], fields=fields[:count])


def key_array(batch: ChangeBatch, names: tuple[str, ...], rows: pa.StructArray) -> pa.StructArray:
    """Return the key columns of ``rows`` (a batch's data columns) as a separate struct array.

    Raises :class:`TableError` for a column that the version does not have.
    """
    there = {name: i for i, name in enumerate(rows.type.names)}
    check_key(names, there, batch.version)
    columns = rows.flatten()
    found = [there[name] for name in names]
    fields = [rows.type.field(i) for i in found]
    return pa.StructArray.from_arrays([columns[i] for i in found], fields=fields)


def required_columns(batch: ChangeBatch) -> frozenset[str]:
    """Return the columns that the table declares as NOT NULL: Arrow's fields are all nullable."""
    return frozenset(field.name for field in batch.state.schema.fields if not field.nullable)


def json_keys(keys: pa.StructArray) -> pa.BinaryArray:
    """Return keys as JSON objects of the key columns."""
    return as_binary(json_values(keys))


def event_headers(batch: ChangeBatch) -> tuple[Header, ...]:
    """Return every record's headers: ``_event_id``, ``_change_type``, ``_commit_version`` and
    ``_origin``; ``_row_id`` if rows have one, and ``_snapshot`` on the rows of the initial
    snapshot."""
    headers: list[Header] = [
        ("_event_id", batch.joined_event_ids()),
        ("_change_type", batch.rows.column(CHANGE_TYPE)),
        ("_commit_version", batch.by_part(lambda part: str(part.offset.version).encode())),
        ("_origin", batch.by_part(lambda part: part.file.origin.encode())),
    ]
    row_ids = batch.row_ids
    if row_ids is not None:
        headers.append(("_row_id", row_ids.cast(pa.string())))
    if batch.offset.snapshot:
        headers.append(("_snapshot", b"true"))
    return tuple(headers)


def key_change_headers(
    batch: ChangeBatch,
    names: tuple[str, ...],
    keys: pa.BinaryArray | None,
    gone: pa.BooleanArray,
    encoded: Callable[[pa.StructArray], pa.BinaryArray],
) -> tuple[Header, ...]:
    """Return Debezium's headers for the delete and the create that replace a change of the key:
    the new key on the delete, the old key on the create, in the form of the records' own keys.

    ``keys`` are the records' keys and ``gone`` marks the deletes; ``encoded`` makes keys of key
    columns.
    """
    if batch.partner is None or keys is None:
        return ()
    others = encoded(key_array(batch, names, batch.partner))
    changed = pc.and_(batch.partner.is_valid(), pc.not_equal(others, keys))
    nothing = pa.scalar(None, pa.binary())
    headers = []
    for name, side in ((_NEW_KEY, gone), (_OLD_KEY, pc.invert(gone))):
        values = pc.if_else(pc.and_(changed, side), others, nothing)
        if values.null_count < len(values):
            headers.append((name, values))
    return tuple(headers)


def table_name(batch: ChangeBatch, given: str) -> str:
    """Return the table's name in events: as configured, else as in its metadata, else its id."""
    return given or batch.state.metadata.name or batch.state.table_id


def find_deletes(batch: ChangeBatch) -> pa.BooleanArray:
    """Return for each row whether it is a delete's."""
    return pc.equal(batch.rows.column(CHANGE_TYPE), "delete")


def repeat_where(mask: pa.BooleanArray) -> pa.Int64Array:
    """Return the numbers 0 to n-1, in order, with those twice where ``mask`` is true."""
    count = len(mask)
    twice = pa.arange(0, count).filter(mask)
    # Two sorted runs become one: the second of a number comes right after the first.
    every = pa.concat_arrays([pa.arange(0, count), twice])
    return every.take(pc.sort_indices(every))


def with_tombstones(records: Records, deleted: pa.BooleanArray) -> Records:
    """Return the records, with a tombstone after each one for which ``deleted`` (boolean) is true.

    A tombstone has the key and the headers of its delete, but a separate event id: the delete's
    with ``-t`` appended.
    """
    if not pc.any(deleted).as_py():
        return records
    order = repeat_where(deleted)
    again = pc.equal(order, _shift_by_one(order))
    taken = records.take(order)
    values = pc.if_else(again, pa.scalar(None, pa.binary()), taken.values)
    headers = [
        (name, _mark_tombstones(value, again) if name in _IDS else value)
        for name, value in taken.headers
    ]
    return replace(taken, values=values, headers=tuple(headers))


def _mark_tombstones(ids: pa.StringArray, tombstones: pa.BooleanArray) -> pa.StringArray:
    marked = pc.binary_join_element_wise(ids, pa.scalar("-t"), pa.scalar(""))
    return pc.if_else(tombstones, marked, ids)


def _shift_by_one(order: pa.Int64Array) -> pa.Int64Array:
    """Return each number's predecessor; -1 for the first."""
    return pa.concat_arrays([pa.array([-1], pa.int64()), order.slice(0, len(order) - 1)])
