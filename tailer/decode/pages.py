"""Flat Parquet columns, decoded into Arrow arrays by ``_pages.c``.

All columns of a batch are decoded in one call, without the interpreter's lock; a column that needs
more of its bytes, more room for texts, or a page of another codec, gets it and is called again.
Whatever is unusual is :class:`Odd`.

"Parquet format: Data Pages, Encodings, Compression".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailer.delta.row_groups import Chunk, native

__all__ = [
    "CODE",
    "CODECS",
    "COPY4",
    "COPY8",
    "DECIMAL4",
    "DECIMAL8",
    "DECIMAL_FIXED",
    "ENCODINGS",
    "LENGTHS",
    "TEXT",
    "Column",
    "Flat",
    "Odd",
    "native",
    "run",
]

#: Forms of values, as ``_pages.c`` numbers them: copied, widened to decimals, texts, or numbers of
#: texts in the dictionary; and the bytes of a value in the file, and of Arrow's.
COPY4, COPY8, DECIMAL4, DECIMAL8, DECIMAL_FIXED, TEXT, CODE = range(7)
LENGTHS = {COPY4: 4, COPY8: 8, DECIMAL4: 4, DECIMAL8: 8}
_SIZES = {COPY4: 4, COPY8: 8, DECIMAL4: 16, DECIMAL8: 16, DECIMAL_FIXED: 16, CODE: 4}
#: The numbers of parquet.thrift: codecs, with pyarrow's names; encodings, as a mask. Other codecs
#: do not tell how long a page is when it is unpacked; nor does pyarrow.
CODECS = {0: None, 1: "snappy", 6: "zstd"}
_PLAIN, _PLAIN_DICTIONARY, _RLE, _BIT_PACKED, _RLE_DICTIONARY = 0, 2, 3, 4, 8
ENCODINGS = sum(1 << e for e in (_PLAIN, _PLAIN_DICTIONARY, _RLE, _BIT_PACKED, _RLE_DICTIONARY))
#: What a column needs to go on, as ``_pages.c`` numbers it; all else is another reader.
_NOTHING, _BYTES, _ROOM, _UNPACKED = range(4)

#: Room for a batch's texts that the footer alone asks for; more is made when there are so many.
_TEXTS_BYTES_MAX = 32 * 1024 * 1024
#: Most bytes of a batch's texts; Arrow's offsets have 31 bits.
_ROOM_MAX = 2**31 - 2**20


class Odd(Exception):
    """Something is not as it is expected here. It may well be sound."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A column that may be decoded here: its number among the footer's leaves, the number of its
    physical type, the form of its values and, where the form does not say it, their length in the
    file, in bytes."""

    number: int
    physical: int
    form: int
    length: int
    is_nullable: bool
    type: pa.DataType


class Column:
    """The values of a column chunk, some rows at a time.

    Its bytes are read ``buffer_bytes`` at a time if no page is larger. With ``checksums``, a page
    that does not fit its checksum is odd. A column is asked for rows by :meth:`begin`, or for their
    size by :meth:`measure`; then comes :func:`run`.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        flat: Flat,
        chunk: Chunk,
        buffer_bytes: int,
        *,
        checksums: bool,
    ) -> None:
        self.is_text = flat.form == TEXT
        self._stream = source.get_stream(chunk.start, chunk.size)
        self._buffer_bytes = buffer_bytes
        self._flat = flat
        self._codec = chunk.codec
        self.native = native.Column(
            flat.form,
            flat.length,
            flat.is_nullable,
            chunk.codec,
            chunk.values,
            chunk.size,
            checksums,
        )
        self._room_max = 0
        self._text_bytes = chunk.unpacked // chunk.values + 1  # of a row, by what came before
        self._first_bytes = self._text_bytes  # by which the number of rows was chosen
        self._texts: pa.Array | None = None  # of the dictionary
        self._validity: pa.Buffer | None = None
        self._offsets: pa.Buffer | None = None
        self._out: pa.Buffer | None = None

    def begin(self, rows: int, bytes_max: int = _TEXTS_BYTES_MAX) -> None:
        """Make room for the next rows. Of texts that are much larger than those before, only those
        come that fit into ``bytes_max`` and twice the room that was expected at first."""
        flat, is_text = self._flat, self.is_text
        self._validity = pa.allocate_buffer((rows + 7) // 8) if flat.is_nullable else None
        self._offsets = pa.allocate_buffer(4 * (rows + 1)) if is_text else None
        if is_text:
            self._room_max = min(2 * rows * self._first_bytes + bytes_max, _ROOM_MAX)
            size = min(rows * self._text_bytes, _TEXTS_BYTES_MAX, self._room_max) + 16
        else:
            size = rows * _SIZES[flat.form]
        self._out = pa.allocate_buffer(size, resizable=True)
        self.native.begin(rows, self._validity, self._offsets, self._out)

    def measure(self, rows: int) -> None:
        """Find out how large the next texts are, up to so many; :meth:`text_bytes` tells it."""
        self.native.begin(rows, None, None, None)

    def text_bytes(self) -> int:
        """Return the bytes of a text, on the average, of those that were measured."""
        _, _, used, _, rows, _ = self.native.state()
        measured = int(used) // max(1, int(rows))
        self._text_bytes = self._first_bytes = max(self._text_bytes, measured + 1)
        return measured

    def goes_on(self) -> bool:
        """Return whether the rows are still not there, after giving what is needed."""
        need, size, _, _, _, done = self.native.state()
        if need == _NOTHING:
            return False
        if need == _BYTES:
            with self.native.window(max(size, self._buffer_bytes)) as window:
                self.native.filled(self._stream.readinto(window))
        elif need == _ROOM:
            assert self._out is not None
            room = self._out.size
            if done and room >= self._room_max:
                self.native.cut()
                return False
            more = room + room // 2 + 1024
            self._out.resize(min(more, self._room_max) if done else more)
            self.native.grow(self._out)
        elif need == _UNPACKED:
            page = self.native.packed()
            if _unpacked_size(page) != size:
                raise Odd
            codec = pa.Codec(CODECS[self._codec])
            self.native.give(codec.decompress(page, size, asbytes=False))
        else:
            raise Odd
        return True

    def array(self) -> pa.Array:
        """Return the rows, which are there: those that were asked for, or fewer large texts."""
        _, _, used, nulls, rows, _ = self.native.state()
        buffers = [self._validity if nulls else None, self._out]
        if self._offsets is not None and self._out is not None:
            self._text_bytes = max(self._text_bytes * 3 // 4, used // rows + 1)
            self._out.resize(used, shrink_to_fit=False)
            buffers.insert(1, self._offsets)
        self._validity = self._offsets = self._out = None
        if self._flat.form != CODE:
            return pa.Array.from_buffers(self._flat.type, rows, buffers, nulls)
        codes = pa.Array.from_buffers(pa.int32(), rows, buffers, nulls)
        return pa.DictionaryArray.from_arrays(codes, self._dictionary(), safe=False)

    def _dictionary(self) -> pa.Array:
        """Return the dictionary's texts."""
        if self._texts is None:
            texts, ends = self.native.dictionary() or (b"", bytes(4))
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
            self._texts = pa.Array.from_buffers(pa.string(), len(ends) // 4 - 1, buffers)
        return self._texts


def run(columns: Sequence[Column]) -> None:
    """Go on with columns until each has what it was asked for."""
    while columns:
        native.run(tuple(column.native for column in columns))
        columns = [column for column in columns if column.goes_on()]


def _unpacked_size(page: bytes) -> int:
    """Return how long a page of zstd is when unpacked, by its own words; -1 if it has none."""
    start = page[:18]
    if start[:4] != b"\x28\xb5\x2f\xfd" or len(start) < 5:  # RFC 8878, "Zstandard Frames"
        return -1
    flag, single = start[4] >> 6, start[4] & 0x20
    at = 5 + (not single) + (0, 1, 2, 4)[start[4] & 3]
    width = (1 if single else 0, 2, 4, 8)[flag]
    size = int.from_bytes(start[at : at + width], "little") + (256 if width == 2 else 0)
    return size if width and at + width <= len(start) else -1
