"""Hive-style folders: ``country={country}/day={_commit_date}``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import COMMIT_TIMESTAMP
from tailer.errors import TargetRefused

FORM = "folders `name={column}`, with `/` between them"
_SEGMENT = re.compile(r"([^/{}=.][^/{}=]*)=\{([^{}]+)\}")
_TIMES = {"_commit_date": "%Y-%m-%d", "_commit_hour": "%H"}
#: What Hive writes for null, and for an empty text, which no folder can have as its name.
_NULL = "__HIVE_DEFAULT_PARTITION__"


class Folders:
    """A template of folders. Raises ``ValueError`` if it is not of the form :data:`FORM`.

    Besides the columns of the rows it may name ``_commit_date`` and ``_commit_hour``, in UTC.
    """

    def __init__(self, template: str) -> None:
        found = [_SEGMENT.fullmatch(part) for part in template.split("/")] if template else []
        if None in found:
            raise ValueError(template)
        self.template = template
        self._segments = [(match[1], match[2]) for match in found if match]

    def split_rows(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each folder, in their order, with the folder's name ("" without a
        template). Raises :class:`SinkRejected` for a column that the rows lack."""
        if not self._segments:
            yield "", rows
            return
        parts = [_format_folders(rows, name, column) for name, column in self._segments]
        folders = pc.binary_join_element_wise(*parts, "/").dictionary_encode()
        names = folders.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], rows
            return
        rows = rows.take(pc.array_sort_indices(folders.indices))  # a stable sort
        counts = {
            row["values"]: row["counts"] for row in folders.indices.value_counts().to_pylist()
        }
        first = 0
        for number, name in enumerate(names):
            yield name, rows.slice(first, counts[number])
            first += counts[number]


def _format_folders(rows: pa.RecordBatch, name: str, column: str) -> pa.StringArray:
    if column in _TIMES and column not in rows.schema.names:
        texts = pc.strftime(rows.column(COMMIT_TIMESTAMP), format=_TIMES[column])
    elif column in rows.schema.names:
        texts = _cast_to_text(rows.column(column), column)
    else:
        listed = ", ".join(rows.schema.names)
        raise TargetRefused(
            f"the column {column!r} of the option 'folders' is not among the columns: {listed}"
        )
    encoded = pc.fill_null(texts, "").dictionary_encode()
    named = [f"{name}={quote(text, safe='') or _NULL}" for text in encoded.dictionary.to_pylist()]
    return pa.array(named, pa.string()).take(encoded.indices)


def _cast_to_text(values: pa.Array, column: str) -> pa.StringArray:
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise TargetRefused(
            f"the column {column!r} of the option 'folders' is of type {values.type}, which "
            "can't name a folder; choose another one"
        )
    return values.cast(pa.string())
