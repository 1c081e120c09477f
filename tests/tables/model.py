"""What a table holds, version by version, in memory: the other side of what is written to disk.

A :class:`TableVersion` knows its columns, its properties and, of each logical file, all rows by
position. It is made by :class:`tests.tables.writer.TableWriter` from what its operations mean
and never read back from the disk, so a reader can be held against it.

Rows are kept by *physical* names, as files keep them: a rename leaves them alone, and a column
that was dropped and added again is another one. :func:`row_key` makes rows comparable.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tailer.testing.actions import (
    Action,
    add_action,
    metadata_action,
    remove_action,
)
from tests.support.builders import features_protocol

#: The name of a top-level column or of a field nested in structs, from the top down.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A column, or a field of a struct. ``type`` is an Arrow type, or a struct's fields.

    ``field_id`` and ``physical`` are those of column mapping; without it the physical name is the
    name. ``widened`` lists the types that it had, in the log's words: (from, to).
    """

    name: str
    type: Any
    physical: str
    field_id: int | None = None
    widened: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> tuple[Column, ...]:
        """A struct's fields; none for any other type."""
        return self.type if isinstance(self.type, tuple) else ()


def columns_of(schema: pa.Schema | pa.StructType) -> tuple[Column, ...]:
    """The columns of an Arrow schema, without column mapping."""
    return tuple(
        Column(f.name, columns_of(f.type) if pa.types.is_struct(f.type) else f.type, f.name)
        for f in schema
    )


def arrow_fields(columns: Sequence[Column], *, mapped: bool) -> list[pa.Field]:
    """The columns as Arrow fields by their logical names, with what the log says of them as
    ``delta.*`` metadata."""
    found = []
    for c in columns:
        metadata = {}
        if mapped:
            metadata["delta.columnMapping.id"] = json.dumps(c.field_id)
            metadata["delta.columnMapping.physicalName"] = json.dumps(c.physical)
        if c.widened:
            changes = [{"fromType": old, "toType": new} for old, new in c.widened]
            metadata["delta.typeChanges"] = json.dumps(changes)
        nested = pa.struct(arrow_fields(c.fields, mapped=mapped)) if c.fields else c.type
        found.append(pa.field(c.name, nested, metadata=metadata or None))
    return found


def stored_schema(columns: Sequence[Column]) -> list[pa.Field]:
    """The columns as the fields of a data file: by physical names, with their ids."""
    return [
        pa.field(
            c.physical,
            pa.struct(stored_schema(c.fields)) if c.fields else c.type,
            metadata=None if c.field_id is None else {"PARQUET:field_id": str(c.field_id)},
        )
        for c in columns
    ]


def _value(value: Any, column: Column, name: Callable[[Column], str]) -> Any:
    """A value as the column's type has it now; ``name`` says by what name a struct's fields go."""
    if value is None:
        return None
    if column.fields:
        return {name(f): _value(value.get(f.physical), f, name) for f in column.fields}
    if pa.types.is_timestamp(column.type) and not isinstance(value, dt.datetime):
        zone = dt.UTC if column.type.tz else None
        return dt.datetime(value.year, value.month, value.day, tzinfo=zone)
    if pa.types.is_date(column.type) and isinstance(value, dt.datetime):
        # Only a RESTORE takes a widening back, and it leaves no value that needs the wider type.
        return value.date() if value.time() == dt.time() else value
    return value


def logical_row(values: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """A stored row by the columns' logical names; null where the row has no such column."""
    return {c.name: _value(values.get(c.physical), c, lambda f: f.name) for c in columns}


def _stored(value: Any, column: Column) -> Any:
    if value is not None and column.fields:
        return {f.physical: _stored(value.get(f.name), f) for f in column.fields}
    return value


def physical_row(values: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """A row by logical names as it is stored: by physical names."""
    return {c.physical: _stored(values.get(c.name), c) for c in columns}


def row_key(values: Mapping[str, Any], columns: Sequence[Column]) -> tuple[Any, ...]:
    """A stored row as these columns show it, such that equal rows are equal: NaN equals NaN,
    -0.0 equals 0.0, and maps have no order."""
    return tuple(_key(_value(values.get(c.physical), c, lambda f: f.name)) for c in columns)


def event_key(row: Mapping[str, Any], columns: Sequence[Column]) -> tuple[Any, ...]:
    """As :func:`row_key`, of a row by logical names: one that was read."""
    return tuple(_key(row[c.name]) for c in columns)


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return ("struct", *(_key(v) for v in value.values()))
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return ("map", frozenset((_key(k), _key(v)) for k, v in value))
        return ("list", *(_key(v) for v in value))
    return value


@dataclass(frozen=True)
class Row:
    """A row of a file: its values by physical names, and its materialised row id and row commit
    version, where it has them ("Row Tracking")."""

    values: Mapping[str, Any] = field(hash=False)
    row_id: int | None = None
    commit_version: int | None = None


@dataclass(frozen=True)
class Change:
    """One change as a cdc file has it; ``values`` by physical names."""

    kind: str
    values: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class DataFile:
    """A logical file: a data file with the positions that its deletion vector deletes.

    ``path`` is decoded; ``partition_values`` are by physical names, as the log spells them.
    """

    path: str
    partition_values: Mapping[str, str | None] = field(hash=False)
    size: int
    rows: tuple[Row, ...]
    deleted: frozenset[int] = frozenset()
    vector: Mapping[str, Any] | None = field(default=None, hash=False)
    base_row_id: int | None = None
    default_row_commit_version: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key of the logical file: path, and deletion vector."""
        return self.path, json.dumps(self.vector)

    def live(self) -> Iterator[tuple[int, Row]]:
        """Position and row of all that is not deleted."""
        return ((i, row) for i, row in enumerate(self.rows) if i not in self.deleted)

    def tracked(self, position: int) -> Row:
        """The row with its stable row id and row commit version, as a copy of it has to keep
        them; with neither where the file has no base row id."""
        row = self.rows[position]
        if self.base_row_id is None:
            return replace(row, row_id=None, commit_version=None)
        row_id = self.base_row_id + position if row.row_id is None else row.row_id
        version = row.commit_version
        default = self.default_row_commit_version if version is None else version
        return replace(row, row_id=row_id, commit_version=default)

    def add(self, *, data_change: bool = True) -> Action:
        """The add action of the file."""
        stats = {"numRecords": len(self.rows), "tightBounds": self.vector is None}
        more: dict[str, Any] = {"dataChange": data_change, "stats": json.dumps(stats)}
        if self.vector is not None:
            more["deletionVector"] = dict(self.vector)
        if self.base_row_id is not None:
            more["baseRowId"] = self.base_row_id
            more["defaultRowCommitVersion"] = self.default_row_commit_version
        return add_action(self.path, self.size, len(self.rows), self.partition_values, **more)

    def remove(self, *, data_change: bool = True, lean: bool = False) -> Action:
        """The remove action of the file; ``lean`` says no more than the protocol requires."""
        return remove_action(self.add(), lean=lean, dataChange=data_change)


@dataclass(frozen=True)
class TableVersion:
    """A table at one version, and how its commit came to it.

    ``partition_by`` has physical names, ``files`` the logical files by path, ``tombstones`` the
    remove actions by key. Of the commit: ``cdc`` are the changes in its cdc files (None: it has
    none), ``still`` the paths whose actions have dataChange=false, ``preserved`` whether it says
    that stable row ids were kept.
    """

    version: int
    table_id: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str] = field(hash=False)
    features: frozenset[str]
    files: Mapping[str, DataFile] = field(hash=False)
    tombstones: Mapping[tuple[str, str], Action] = field(hash=False)
    high_water_mark: int = -1
    timestamp_ms: int = 0
    operation: str = ""
    cdc: tuple[Change, ...] | None = None
    still: frozenset[str] = frozenset()
    preserved: bool = False

    def on(self, name: str) -> bool:
        """Whether a property is true."""
        return self.properties.get(name) == "true"

    @property
    def mapping(self) -> str:
        """The column mapping mode."""
        return self.properties.get("delta.columnMapping.mode", "none")

    def live(self) -> Iterator[tuple[tuple[str, int], Row]]:
        """All rows of the table, each with its file and position, and its stable row id and row
        commit version, if it has them."""
        for path, file in self.files.items():
            for position, _ in file.live():
                yield (path, position), file.tracked(position)

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows by logical names."""
        return [logical_row(row.values, self.columns) for _, row in self.live()]

    def multiset(self, columns: Sequence[Column] | None = None) -> Counter[tuple[Any, ...]]:
        """The rows as :func:`row_key` has them, each with its count; ``columns`` show them as
        another version does, with null for what this one does not have."""
        mine = self.columns
        shown = mine if columns is None else columns
        return Counter(row_key(visible(row.values, mine), shown) for _, row in self.live())

    def protocol(self) -> Action:
        """The protocol action: legacy versions where they say the same, else features."""
        if self.features in _LEGACY:
            reader, writer = _LEGACY[self.features]
            return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
        return features_protocol(self.features)

    def metadata(self) -> Action:
        """The metaData action."""
        fields = arrow_fields(self.columns, mapped=self.mapping != "none")
        names = {c.physical: c.name for c in self.columns}
        by = [names[p] for p in self.partition_by]
        return metadata_action(self.table_id, pa.schema(fields), by, self.properties)

    def domain(self) -> Action | None:
        """The domainMetadata action of row tracking; None where no row id was ever given."""
        if self.high_water_mark < 0:
            return None
        text = json.dumps({"rowIdHighWaterMark": self.high_water_mark})
        domain = {"domain": "delta.rowTracking", "configuration": text, "removed": False}
        return {"domainMetadata": domain}


def visible(values: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """A stored row without what these columns don't show (any more)."""
    return {c.physical: _value(values.get(c.physical), c, lambda f: f.physical) for c in columns}


BASE_FEATURES = frozenset({"appendOnly", "invariants"})
#: What a legacy protocol version implies stays named when the table goes over to features.
CDF_FEATURES = BASE_FEATURES | {"changeDataFeed", "checkConstraints", "generatedColumns"}
_LEGACY: dict[frozenset[str], tuple[int, int]] = {
    BASE_FEATURES: (1, 2),
    CDF_FEATURES: (1, 4),
    CDF_FEATURES | {"columnMapping"}: (2, 5),
}
