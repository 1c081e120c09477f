"""The columns of a table as fields of an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tailer.errors import TargetRefused

#: What an index of ours has: a value that its field can't hold, as a date beyond its range or NaN,
#: is kept in the document, and not found by a search; no row is refused for it.
SETTINGS = {"index.mapping.ignore_malformed": True, "index.mapping.depth.limit": 200}
_FIELDS_LEAST = 1000
#: Names that mean something else in a document.
_TAKEN = (
    "_id", "_index", "_source", "_routing", "_type", "_version", "_seq_no", "_primary_term",
    "_ignored", "_ignored_source", "_field_names", "_nested_path", "_doc_count", "_size", "_tier",
    "_feature", "_data_stream_timestamp", "_index_mode",
)  # fmt: skip
#: Kept, and not searched: any JSON may stand there.
_KEPT = {"type": "object", "enabled": False}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 1024}}}


def map_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return the field of each column."""
    return {field.name: _map_type(field.type) for field in schema}


def _map_type(data_type: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(data_type):
        members = {f.name: _map_type(f.type) for f in data_type.fields}
        return {"type": "object", "properties": members}
    if types.is_list(data_type):
        return _map_type(data_type.value_type)
    for fits, name in (
        (types.is_boolean, "boolean"), (types.is_integer, "long"), (types.is_floating, "double"),
        (types.is_decimal, "double"), (types.is_temporal, "date"), (types.is_binary, "binary"),
    ):  # fmt: skip
        if fits(data_type):
            return {"type": name}
    return dict(_TEXT if types.is_string(data_type) else _KEPT)


def make_index(schema: pa.Schema, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an index for a schema."""
    fields = map_schema(schema)
    most = max(_FIELDS_LEAST, 2 * sum(1 for _ in _walk_names(schema)) + 100)
    return {
        "settings": {**SETTINGS, "index.mapping.total_fields.limit": most},
        "mappings": {"dynamic": False, "_meta": meta, "properties": fields},
    }


def check_names(schema: pa.Schema) -> None:
    """Raise :class:`TargetRefused` for a name that a document can't have."""
    for name in _walk_names(schema):
        why = None
        if not name.strip():
            why = "is blank"
        elif "." in name:
            why = "has a dot, which means a field within another one"
        elif name in _TAKEN and name in schema.names:
            why = "means something else in a document"
        if why:
            raise TargetRefused(
                f"the column name {name!r} {why}; give it another with the feed's option 'select'"
            )


def _walk_names(parent: pa.Schema | pa.DataType) -> Iterator[str]:
    """Yield the names of the fields that are mapped, at any depth."""
    if isinstance(parent, pa.DataType) and pa.types.is_list(parent):
        yield from _walk_names(parent.value_type)
    elif isinstance(parent, pa.Schema) or pa.types.is_struct(parent):
        for i in range(len(parent) if isinstance(parent, pa.Schema) else parent.num_fields):
            yield parent.field(i).name
            yield from _walk_names(parent.field(i).type)
