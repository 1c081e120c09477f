"""Rows as the text of INSERT statements, made by columns: no Python object per row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sinks.formats.json import view_text
from sinks.sql.text import hex_text, is_json, json_text
from tailer.native.rowbytes import Column, Text, join_parts, make_number

#: About this number of bytes of rows are in one statement, and at most this number of rows.
_BYTES, _ROWS_MAX = 2 * 1024**2, 10_000


def format_insertions(head: bytes, rows: pa.Table, packet_bytes: int) -> Iterator[bytes]:
    """Yield statements that begin with ``head`` and insert the rows, in order.

    A single row that the server does not take (``packet_bytes``) is a statement too.
    """
    room = min(_BYTES, packet_bytes // 4)
    for batch in rows.to_batches(_ROWS_MAX):
        yield from _format_batch(head, batch, room)


def _format_batch(head: bytes, batch: pa.RecordBatch, room: int) -> Iterator[bytes]:
    if batch.num_rows > 1 and batch.nbytes > room:
        middle = batch.num_rows // 2
        yield from _format_batch(head, batch.slice(0, middle), room)
        yield from _format_batch(head, batch.slice(middle), room)
        return
    parts: list[Column] = []
    for i, column in enumerate(batch.columns):
        parts += ["," if i else "(", _format_literals(column)]
    text = join_parts([*parts, "),"], batch.num_rows)
    yield head + memoryview(view_text(text))[:-1]  # without the last comma


def _format_literals(column: pa.Array) -> Column:
    """Return values as literals, null as ``null``."""
    types, kind = pa.types, column.type
    if is_json(kind):
        return Text(_escape_text(json_text(column)), quoted=True)
    if types.is_string(kind):
        return Text(_escape_text(column), quoted=True)
    if types.is_binary(kind):
        text = hex_text(column, "x'")
        closed = pc.binary_join_element_wise(
            text, pa.scalar("'", text.type), pa.scalar("", text.type)
        )
        return Text(closed.cast(pa.string()))
    if types.is_timestamp(kind):
        plain = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
        return Text(plain.cast(pa.string()), quoted=True)
    if types.is_date(kind):
        return Text(column.cast(pa.string()), quoted=True)
    if types.is_boolean(kind):
        return Text(column.cast(pa.int8()).cast(pa.string()))
    if types.is_float32(kind):  # the same number, and not the shortest text of it
        column = column.cast(pa.float64())
    return make_number(column) or Text(column.cast(pa.string()))


def _escape_text(text: pa.StringArray) -> pa.StringArray:
    """Escape what ends a literal in double quotes."""
    for plain in ("\\", '"'):
        text = pc.replace_substring(text, plain, "\\" + plain)
    return text
