"""What copies have in common whose rows are JSON: their columns, and reading them back.

A row stays what it was written with, whatever becomes of the table's columns later. A new column is
null in it, and a dropped one is left over. What it can't follow is refused: a column of another
name, or of another type, whose values would be written in another way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from tailer.changes import ChangeBatch
from tailer.errors import TargetRefused

_NULL = "null"
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def add_columns(
    batch: ChangeBatch, schema: pa.Schema, had: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the columns that rows have been written with, after those of ``schema``: by name, the
    name in the table's files and the form of the values. Raises :class:`TargetRefused` for a
    column that rows which are there have under another name, or in another form."""
    physical = {field.name: batch.state.physical_name(field) for field in batch.state.schema}
    names = {at: name for name, (at, _) in had.items()}
    found = dict(had)
    for field in schema:
        name, at, form = field.name, physical.get(field.name, field.name), _find_form(field.type)
        before, held = had.get(name, (at, form))
        mapped = at != name and held != form
        if before != at or names.get(at, name) != name or mapped or not _extends(held, form):
            raise TargetRefused(
                f"{where}: version {batch.version} has renamed, replaced or changed the column "
                f"{name!r}, which rows that are there can't follow; `tailer offsets reset` creates "
                "the copy again"
            )
        found[name] = [at, form]
    return found


def _find_form(data_type: pa.DataType) -> Any:
    """Return how a type's values are written, as JSON."""
    types = pa.types
    if types.is_integer(data_type):
        return "integer"
    if types.is_struct(data_type):
        return {f.name: _find_form(f.type) for f in data_type.fields}
    if types.is_list(data_type):
        return [_find_form(data_type.value_type)]
    return str(data_type)


def _extends(old: Any, new: Any) -> bool:
    """Return whether values of an old form are values of a new one, without some members. One that
    is gone may have another name now."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _extends(old[name], new[name]) for name in old)
    if isinstance(old, list) and isinstance(new, list):
        return _extends(old[0], new[0])
    return bool(old == new)


def find_column(rows: list[dict[str, msgspec.Raw]], field: pa.Field) -> pa.StringArray:
    """Return a column of rows as JSON, as :func:`sinks.formats.json.json_values` writes it."""
    texts = (_complete(row.get(field.name), field.type) for row in rows)
    return pa.array(list(texts), pa.string())


def _complete(raw: msgspec.Raw | None, data_type: pa.DataType) -> str:
    """Return a value with the members of its type, and no others."""
    if raw is None:
        return _NULL
    begin = bytes(raw)[:1]
    if pa.types.is_struct(data_type) and begin == b"{":
        members = _decode_object(raw)
        parts = (
            f"{json.dumps(f.name)}:{_complete(members.get(f.name), f.type)}"
            for f in data_type.fields
        )
        return f"{{{','.join(parts)}}}"
    if pa.types.is_list(data_type) and pa.types.is_nested(data_type.value_type) and begin == b"[":
        return f"[{','.join(_complete(each, data_type.value_type) for each in _decode_list(raw))}]"
    return str(raw, "utf-8")
