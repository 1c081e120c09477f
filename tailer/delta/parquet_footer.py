"""What the footer of a Parquet file says, as the crate in ``native/`` or pyarrow reads it.

pyarrow tells of whole row groups only: its ``RowGroupMetaData.column()`` must never be called,
because it throws, for an encrypted column and for some damaged ones, out of a function that must
not throw, which ends the whole process and all feeds in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from tailer.delta.arrow_views import plain_type
from tailer.errors import UnsupportedTable

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["Footer", "LeafPath", "RowGroup", "footer_size", "of_crate", "of_pyarrow", "too_large"]

#: The names from a top-level column down to one that has values itself.
LeafPath: TypeAlias = tuple[str, ...]

#: pyarrow takes up to 25 times the bytes of a footer, and 1.7 kB for each column.
_BYTES_MAX = 64 * 1024 * 1024
_END = b"PAR1"


class RowGroup(Struct, frozen=True):
    """A row group: its rows, and its bytes without compression.

    ``chunks`` are the numbers of its columns (:class:`~tailer.delta.row_groups.Chunk`), in the
    order of the schema's leaves. None is a column that is encrypted, that lies in another file, or
    whose numbers can't be right; instead of all of them, that nothing is known of columns.
    """

    rows: int
    bytes: int
    chunks: Sequence[tuple[int, ...] | None] | None


class Footer(Struct, frozen=True):
    """A file's schema and row groups.

    ``key_values`` are what the writer noted. ``has_texts_alone``: all columns of bytes are declared
    as texts. ``size`` is that of the footer itself, in bytes.
    """

    rows: int
    size: int
    schema: pa.Schema
    groups: list[RowGroup]
    leaves: list[LeafPath]
    key_values: dict[bytes, bytes]
    has_texts_alone: bool


def footer_size(source: pa.NativeFile) -> int:
    """Return how long the footer says that it is; 0 if that can't be, or the file is not Parquet
    with a footer that is plain. Raises :class:`UnsupportedTable` for one that takes too much
    memory."""
    end = max(0, int(source.size()) - 8)
    last = bytes(source.read_at(8, end))
    size = int.from_bytes(last[:4], "little")
    if _BYTES_MAX < size <= end:
        raise too_large(f"{size} bytes, of {_BYTES_MAX} at most")
    return size if size <= end and last[4:] == _END else 0


def too_large(what: str) -> UnsupportedTable:
    """Return the refusal of a footer."""
    return UnsupportedTable(
        f"the Parquet file has a footer of {what}",
        hint="rewrite it as several files, or with larger row groups, or skip this version",
    )


def of_crate(columns: Any, own_size: int) -> Footer:
    """Return the footer, of so many bytes, of what the crate has open: its ``Columns``."""
    return Footer(
        rows=columns.num_rows,
        size=own_size,
        schema=columns.schema(),
        groups=[RowGroup(rows, size, chunks) for rows, size, chunks in columns.groups()],
        leaves=[tuple(path) for path in columns.paths()],
        key_values={k.encode(): v.encode() for k, v in columns.key_values() if v is not None},
        has_texts_alone=columns.has_texts_alone,
    )


def of_pyarrow(file: pq.ParquetFile) -> Footer:
    """Return the footer of what pyarrow has open, with a schema without views."""
    meta, schema = file.metadata, file.schema_arrow
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    leaves = [meta.schema.column(number) for number in range(meta.num_columns)]
    return Footer(
        rows=int(meta.num_rows),
        size=int(meta.serialized_size),
        schema=pa.schema([field.with_type(plain_type(field.type)) for field in schema]),
        groups=[RowGroup(int(g.num_rows), int(g.total_byte_size), None) for g in groups],
        leaves=[tuple(leaf.path.split(".")) for leaf in leaves],
        key_values=meta.metadata or {},
        has_texts_alone=all(
            leaf.physical_type != "BYTE_ARRAY" or leaf.converted_type == "UTF8" for leaf in leaves
        ),
    )
