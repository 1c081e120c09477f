"""What the footer of a Parquet file says, as the crate in ``native/`` or pyarrow reads it.

pyarrow tells of whole row groups only: its ``RowGroupMetaData.column()`` must never be called,
because it throws, for an encrypted column and for some damaged ones, out of a function that must
not throw, which ends the whole process and all feeds in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from msgspec import Struct

from tailer.delta.arrow_views import plain_type
from tailer.errors import UnsupportedTable

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: The names from a top-level column down to one that has values itself.
LeafPath: TypeAlias = tuple[str, ...]

#: pyarrow takes up to 25 times the bytes of a footer, and 1.7 kB for each column.
_BYTES_MAX = 64 * 1024 * 1024
_END = b"PAR1"
#: Numbers of parquet.thrift: a physical type, and the fields on the way to how many values a column
#: chunk has. And where that is in a chunk of the crate's.
_INT96 = 3
_ROW_GROUPS, _COLUMNS, _METADATA, _NUM_VALUES = 4, 1, 3, 5
_VALUES = 3
_DOUBLE = 7


class RowGroup(Struct, frozen=True):
    """A row group: its rows, and its bytes without compression.

    ``chunks`` are the numbers of its columns (:class:`~tailer.delta.row_groups.Chunk`), in the
    order of the schema's leaves. None is a column that is encrypted or that lies in another file;
    instead of all of them, that only the ``values`` of columns are known: how many each has.
    """

    rows: int
    bytes: int
    chunks: Sequence[tuple[int, ...] | None] | None
    values: Sequence[int | None]


class Footer(Struct, frozen=True):
    """A file's schema and row groups.

    ``key_values`` are what the writer noted. ``has_texts_alone``: all columns of bytes are declared
    as texts. ``old_timestamps``: the top-level columns with an INT96. ``size`` is that of the
    footer itself, in bytes.
    """

    rows: int
    size: int
    schema: pa.Schema
    groups: list[RowGroup]
    leaves: list[LeafPath]
    key_values: dict[bytes, bytes]
    has_texts_alone: bool
    old_timestamps: frozenset[str]


def read_footer_size(source: pa.NativeFile) -> int:
    """Return how long the footer says that it is; 0 if that can't be, or the file is not Parquet
    with a footer that is plain. Raises :class:`UnsupportedTable` for one that takes too much
    memory."""
    end = max(0, int(source.size()) - 8)
    last = bytes(source.read_at(8, end))
    size = int.from_bytes(last[:4], "little")
    if _BYTES_MAX < size <= end:
        raise make_size_error(f"{size} bytes, of {_BYTES_MAX} at most")
    return size if size <= end and last[4:] == _END else 0


def make_size_error(what: str) -> UnsupportedTable:
    """Return the refusal of a footer."""
    return UnsupportedTable(
        f"the Parquet file has a footer of {what}",
        hint="rewrite it as several files, or with larger row groups, or skip this version",
    )


def build_from_crate(columns: Any, own_size: int) -> Footer:
    """Return the footer of what the crate has open, its ``Columns``; ``own_size`` in bytes."""
    leaves = [tuple(path) for path in columns.paths()]
    groups = [
        RowGroup(rows, size, chunks, [chunk and chunk[_VALUES] for chunk in chunks])
        for rows, size, chunks in columns.groups()
    ]
    known = [chunk for group in groups for chunk in zip(leaves, group.chunks or (), strict=True)]
    return Footer(
        rows=columns.num_rows,
        size=own_size,
        schema=columns.schema(),
        groups=groups,
        leaves=leaves,
        key_values={k.encode(): v.encode() for k, v in columns.key_values() if v is not None},
        has_texts_alone=columns.has_texts_alone,
        old_timestamps=frozenset(leaf[0] for leaf, chunk in known if chunk and chunk[0] == _INT96),
    )


def build_from_pyarrow(file: pq.ParquetFile, footer: bytes) -> Footer:
    """Return the footer of what pyarrow has open, with a schema without views."""
    meta, schema = file.metadata, file.schema_arrow
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    values = _read_chunk_values(footer)
    if [len(each) for each in values] != [meta.num_columns] * len(groups):
        values = [[None] * meta.num_columns for _ in groups]
    leaves = [meta.schema.column(number) for number in range(meta.num_columns)]
    return Footer(
        rows=int(meta.num_rows),
        size=int(meta.serialized_size),
        schema=pa.schema([field.with_type(plain_type(field.type)) for field in schema]),
        groups=[
            RowGroup(int(g.num_rows), int(g.total_byte_size), None, values[number])
            for number, g in enumerate(groups)
        ],
        leaves=[tuple(leaf.path.split(".")) for leaf in leaves],
        key_values=meta.metadata or {},
        has_texts_alone=all(
            leaf.physical_type != "BYTE_ARRAY" or leaf.converted_type == "UTF8" for leaf in leaves
        ),
        old_timestamps=frozenset(
            leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"
        ),
    )


def _read_chunk_values(footer: bytes) -> list[list[int | None]]:
    """Return how many values the column chunks of each row group have; nothing of a footer whose
    fields have other types. pyarrow gives them in a way that may end the process."""
    with suppress(AttributeError, IndexError, RecursionError, TypeError):
        return [
            [chunk.get(_METADATA, {}).get(_NUM_VALUES) for chunk in group.get(_COLUMNS, [])]
            for group in _Thrift(footer).read_struct().get(_ROW_GROUPS, [])
        ]
    return []


class _Thrift:
    """Structs of Thrift's compact protocol, as dicts of their fields; texts are passed over."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read_struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_signed()
            fields[number] = self._read_value(head & 15)
        return fields

    def _read_value(self, wire: int, *, is_item: bool = False) -> Any:
        match wire:
            case 1 | 2:
                return self._read_byte() if is_item else None
            case 3:
                return self._read_byte()
            case 4 | 5 | 6:
                return self._read_signed()
            case 7 | 8:
                size = 8 if wire == _DOUBLE else self._read_number()
                self._at += size
                return None
            case 9 | 10:
                head = self._read_byte()
                size = head >> 4 if head >> 4 < 15 else self._read_number()
                return [self._read_value(head & 15, is_item=True) for _ in range(size)]
        return self.read_struct()

    def _read_byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _read_number(self) -> int:
        value = shift = 0
        while (byte := self._read_byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _read_signed(self) -> int:
        value = self._read_number()
        return value >> 1 ^ -(value & 1)
