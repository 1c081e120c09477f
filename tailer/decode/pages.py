"""Pages of flat Parquet columns, decoded into Arrow arrays by ``_pages.c``.

A column is read a buffer at a time, and its values are decoded where they are needed: no page is in
memory twice, and of their values there is one copy. Whatever is unusual is :class:`Odd`.

"Parquet format: Data Pages, Encodings, Compression".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailer.compiled import loaded

__all__ = [
    "CODECS",
    "COPY4",
    "COPY8",
    "DECIMAL4",
    "DECIMAL8",
    "DECIMAL_FIXED",
    "ENCODINGS",
    "LENGTHS",
    "TEXT",
    "Chunk",
    "Column",
    "Flat",
    "Odd",
    "native",
]

#: The version of ``_pages.c`` that this file needs.
_INTERFACE = 1

native: Any = loaded("_pages", _INTERFACE)

#: Forms of values, as ``_pages.c`` numbers them: copied, widened to decimals, or texts; and the
#: bytes of a value in the file, and of Arrow's.
COPY4, COPY8, DECIMAL4, DECIMAL8, DECIMAL_FIXED, TEXT = range(6)
LENGTHS = {COPY4: 4, COPY8: 8, DECIMAL4: 4, DECIMAL8: 8}
_SIZES = {COPY4: 4, COPY8: 8, DECIMAL4: 16, DECIMAL8: 16, DECIMAL_FIXED: 16}
#: The numbers of parquet.thrift: codecs, with pyarrow's names; encodings, as a mask; kinds of
#: pages. Other codecs do not tell how long a page is when it is unpacked; nor does pyarrow.
CODECS = {0: None, 1: "snappy", 6: "zstd"}
_PLAIN, _PLAIN_DICTIONARY, _RLE, _BIT_PACKED, _RLE_DICTIONARY = 0, 2, 3, 4, 8
ENCODINGS = sum(1 << e for e in (_PLAIN, _PLAIN_DICTIONARY, _RLE, _BIT_PACKED, _RLE_DICTIONARY))
_DICTIONARY_PAGE, _DATA_PAGE_V2 = 2, 3

#: What is read of a column at once, if no page is larger.
_BUFFER_BYTES = 256 * 1024
#: A larger page is odd: damage may claim any size.
_PAGE_BYTES_MAX = 64 * 1024 * 1024
#: Room for a batch's texts that the footer alone asks for; more is made when there are so many.
_TEXTS_BYTES_MAX = 32 * 1024 * 1024


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


class Chunk:
    """The bytes of a column chunk, of which a buffer is in memory."""

    def __init__(self, source: pa.NativeFile, start: int, end: int, codec: str | None) -> None:
        self._source = source
        self._at = start
        self._end = end
        self._codec = None if codec is None else pa.Codec(codec)
        self._buffer = pa.py_buffer(b"")
        self._buffer_at = start

    def page(self) -> tuple[Any, pa.Buffer]:
        """Return the next page's header, and its bytes as they are stored."""
        header = native.header(self._read(1))
        if header is None:  # it may be cut by the buffer's end
            header = native.header(self._read(_BUFFER_BYTES))
        if header is None or max(header[2], header[3]) > _PAGE_BYTES_MAX:
            raise Odd
        size, stored = header[0], header[3]
        page = self._read(size + stored).slice(size, stored)
        self._at += size + stored
        return header, page

    def unpacked(self, page: pa.Buffer, size: int) -> pa.Buffer:
        """Return the decompressed bytes, which must be of this size."""
        if not size:
            return page.slice(0, 0)
        codec = self._codec
        if size != (page.size if codec is None else _unpacked_size(codec.name, page)):
            raise Odd
        return page if codec is None else codec.decompress(page, size, asbytes=False)

    def _read(self, size: int) -> pa.Buffer:
        """Return the bytes from here on that are in the buffer, at least of this size if there are
        so many."""
        offset = self._at - self._buffer_at
        rest = self._end - self._at
        if self._buffer.size - offset < min(size, rest):
            wanted = min(max(size, _BUFFER_BYTES), rest)
            self._buffer, offset = pa.py_buffer(self._source.read_at(wanted, self._at)), 0
            self._buffer_at = self._at
        return self._buffer.slice(offset)


def _unpacked_size(codec: str, page: pa.Buffer) -> int:
    """Return how long a page is when it is unpacked, by its own words; -1 if it has none."""
    start: bytes = page.slice(0, min(18, page.size)).to_pybytes()
    if codec == "snappy":  # "Preamble": a number of groups of seven bits
        size = 0
        for at, byte in enumerate(start[:5]):
            size |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                return size
        return -1
    if start[:4] != b"\x28\xb5\x2f\xfd" or len(start) < 5:  # RFC 8878, "Zstandard Frames"
        return -1
    flag, single = start[4] >> 6, start[4] & 0x20
    at = 5 + (not single) + (0, 1, 2, 4)[start[4] & 3]
    width = (1 if single else 0, 2, 4, 8)[flag]
    size = int.from_bytes(start[at : at + width], "little") + (256 if width == 2 else 0)
    return size if width and at + width <= len(start) else -1


class Column:
    """The values of a column chunk, some rows at a time."""

    def __init__(self, chunk: Chunk, flat: Flat, rows: int, unpacked: int) -> None:
        self.number = flat.number
        self.work = unpacked
        self._chunk = chunk
        self._flat = flat
        self._left = rows  # which no page has given yet
        self._in_page = 0
        self._state = bytearray(native.STATE_SIZE)
        self._levels: pa.Buffer | None = None
        self._values = pa.py_buffer(b"")
        self._dictionary: tuple[bytes, bytes] | None = None
        self._coded: tuple[bytes | None, bytes | None] = None, None  # of this page
        self._text_bytes = unpacked // rows + 1  # of a row, by what came before

    def take(self, rows: int) -> pa.Array:
        """Decode the next rows."""
        flat = self._flat
        is_text = flat.form == TEXT
        validity = pa.allocate_buffer((rows + 7) // 8) if flat.is_nullable else bytearray()
        offsets = pa.allocate_buffer(4 * (rows + 1)) if is_text else bytearray()
        if is_text:
            size = min(rows * self._text_bytes, _TEXTS_BYTES_MAX) + 16
        else:
            size = rows * _SIZES[flat.form]
        out = pa.allocate_buffer(size, resizable=True)
        done = used = 0
        while done < rows:
            if not self._in_page:
                self._next_page()
            values, ends = self._coded
            count, used, self._in_page = native.take(
                self._state, flat.form, flat.length, self._levels, self._values, values,
                validity, offsets, out, ends, rows, done, used,
            )  # fmt: skip
            if count < 0:
                raise Odd
            done += count
            if done < rows and self._in_page:
                out.resize(out.size + out.size // 2 + 1024)
        nulls = self._nulls() if flat.is_nullable else 0
        buffers = [validity if nulls else None, out]
        if is_text:
            self._text_bytes = max(self._text_bytes * 3 // 4, used // rows + 1)
            out.resize(used, shrink_to_fit=False)
            buffers.insert(1, offsets)
        return pa.Array.from_buffers(flat.type, rows, buffers, nulls)

    def _nulls(self) -> int:
        """Return the number of nulls since the last call."""
        return int(native.nulls(self._state))

    def _next_page(self) -> None:
        while self._left:
            header, page = self._chunk.page()
            if header[1] != _DICTIONARY_PAGE:
                return self._begin(header, page)
            _, _, unpacked, _, count, encoding, *_ = header
            if self._dictionary is not None or encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise Odd
            found = self._chunk.unpacked(page, unpacked)
            flat = self._flat
            self._dictionary = native.dictionary(flat.form, flat.length, found, count)
            if self._dictionary is None:
                raise Odd
        raise Odd

    def _begin(self, header: Any, page: pa.Buffer) -> None:
        """Begin a page of values."""
        _, kind, unpacked, _, rows, encoding, levels, levels_size, is_packed = header
        is_coded = encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
        if not (is_coded or encoding == _PLAIN) or rows > self._left:
            raise Odd
        self._coded = None, None
        if is_coded:
            if self._dictionary is None:
                raise Odd
            self._coded = self._dictionary
        if kind == _DATA_PAGE_V2:
            self._levels, page = page.slice(0, levels_size), page.slice(levels_size)
            unpacked -= levels_size
            if unpacked < 0 or (levels_size and not self._flat.is_nullable):
                raise Odd
            self._values = self._chunk.unpacked(page, unpacked) if is_packed else page
        else:
            self._values = self._chunk.unpacked(page, unpacked)
            if self._flat.is_nullable:
                self._levels, self._values = _split(self._values)
                if levels != _RLE:
                    raise Odd
        if not self._flat.is_nullable:
            self._levels = None
        width = -1
        if is_coded:  # a page of nulls alone may have no width
            width = self._values[0] if self._values.size else 0
        if width > 32:
            raise Odd
        native.begin(self._state, rows, width)
        self._left -= rows
        self._in_page = rows


def _split(values: pa.Buffer) -> tuple[pa.Buffer, pa.Buffer]:
    """Return the levels and the values of a first-version page."""
    size = int.from_bytes(values.slice(0, 4), "little")
    if values.size < 4 + size:
        raise Odd
    return values.slice(4, size), values.slice(4 + size)
