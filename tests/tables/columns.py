"""The schema changes of a :class:`~tests.tables.writer.TableWriter`, which rewrite no file.

"Column Mapping" and "Type Widening": what a reader must then find in files that know nothing of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tailer.testing.table import delta_schema
from tests.tables.model import Column, TableVersion, columns_of
from tests.tables.transaction import Draft

_MAX_ID = "delta.columnMapping.maxColumnId"


class SchemaChanges:
    """The part of a writer that changes columns. Paths go from a top-level column down through
    structs. Raises ValueError for a column that is not there or may not be changed so."""

    present: TableVersion
    rng: random.Random
    field_ids: Iterator[int]

    # Of the writer itself.
    _draft: Callable[..., Draft]
    _commit: Callable[[Draft], TableVersion]
    unique: Callable[[], str]

    def add_column(self, name: str, data_type: pa.DataType, *within: str) -> TableVersion:
        """Add a column at the end, or a field at the end of a struct; null in all rows."""
        (column,) = self._new_columns(pa.schema([(name, data_type)]))
        columns = self.present.columns
        if not within:
            return self._altered("ADD COLUMNS", (*columns, column))
        changed = _replaced(columns, within, lambda c: (replace(c, type=(*c.fields, column)),))
        return self._altered("ADD COLUMNS", changed)

    def rename_column(self, new: str, *path: str) -> TableVersion:
        """Give a column or field another name. Needs column mapping."""
        self._need_mapping()
        changed = _replaced(self.present.columns, path, lambda c: (replace(c, name=new),))
        return self._altered("RENAME COLUMN", changed)

    def drop_column(self, *path: str) -> TableVersion:
        """Drop a column or field, in the schema alone. Needs column mapping."""
        self._need_mapping()
        by = self.present.partition_by
        if any(c.physical in by for c in self.present.columns if (c.name,) == path):
            raise ValueError("a partition column can't be dropped")
        return self._altered("DROP COLUMNS", _replaced(self.present.columns, path, lambda _: ()))

    def widen_column(self, wider: pa.DataType, *path: str) -> TableVersion:
        """Give a column or field a wider type; turns type widening on first, in one commit."""

        def widened(column: Column) -> tuple[Column]:
            change = (_log_type(column.type), _log_type(wider))
            return (replace(column, type=wider, widened=(*column.widened, change)),)

        features = self.present.features | {"typeWidening"}
        if pa.types.is_timestamp(wider) and wider.tz is None:
            features |= {"timestampNtz"}
        properties = {**self.present.properties, "delta.enableTypeWidening": "true"}
        return self._altered(
            "CHANGE COLUMN",
            _replaced(self.present.columns, path, widened),
            features=features,
            properties=properties,
        )

    def _altered(self, operation: str, columns: tuple[Column, ...], **fields: Any) -> TableVersion:
        tracking = self.present.on("delta.enableRowTracking")
        if self.present.mapping != "none":
            properties = fields.get("properties", self.present.properties)
            fields["properties"] = {**properties, **self._max_id(columns)}
        draft = self._draft(operation, columns=columns, preserved=tracking, **fields)
        return self._commit(draft)

    def _need_mapping(self) -> None:
        if self.present.mapping == "none":
            raise ValueError("columns are renamed and dropped under column mapping only")

    def _evolve(self, draft: Draft, schema: pa.Schema | None) -> None:
        """Put the present columns and new ones into a draft."""
        new = self._new_columns(pa.schema([]) if schema is None else schema)
        draft.columns = (*self.present.columns, *new)
        if new and self.present.mapping != "none":
            draft.properties = {**self.present.properties, **self._max_id(draft.columns)}

    def _new_columns(self, schema: pa.Schema) -> tuple[Column, ...]:
        columns = columns_of(schema)
        if self.present.mapping == "none":
            return columns
        return tuple(self._mapped(c, fresh=True) for c in columns)

    def _mapped(self, column: Column, *, fresh: bool) -> Column:
        """The column with an id; ``fresh`` gives it a physical name that was never used, too."""
        return replace(
            column,
            physical=f"col-{self.unique()}" if fresh else column.physical,
            field_id=next(self.field_ids),
            type=tuple(self._mapped(f, fresh=fresh) for f in column.fields) or column.type,
        )

    def _max_id(self, columns: Sequence[Column]) -> dict[str, str]:
        """The property with the highest id that was ever given."""
        before = int(self.present.properties.get(_MAX_ID, 0))
        return {_MAX_ID: str(max([before, *_ids(columns)]))}


def _ids(columns: Sequence[Column]) -> Iterator[int]:
    for column in columns:
        yield column.field_id or 0
        yield from _ids(column.fields)


def _replaced(
    columns: Sequence[Column],
    path: Sequence[str],
    change: Callable[[Column], tuple[Column, ...]],
) -> tuple[Column, ...]:
    """The columns with the one at the path replaced by what ``change`` makes of it."""
    found: list[Column] = []
    for column in columns:
        if column.name != path[0]:
            found.append(column)
        elif len(path) == 1:
            found += change(column)
        else:
            found.append(replace(column, type=_replaced(column.fields, path[1:], change)))
    if found == list(columns):
        raise ValueError(f"there is no column {'.'.join(path)} to change")
    return tuple(found)


def _log_type(data_type: pa.DataType) -> str:
    """The name of a primitive type in the log."""
    (field,) = json.loads(delta_schema(pa.schema([("x", data_type)])))["fields"]
    return str(field["type"])
