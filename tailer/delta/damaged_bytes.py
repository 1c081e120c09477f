"""Which errors of pyarrow show that the bytes of a Parquet file are wrong.

A library that can't read a file proves nothing about the file: it may be too old for it, or have a
limit or a bug. Only messages that name broken bytes therefore count as damage.
"""

from __future__ import annotations

import re

import pyarrow as pa

#: The errors of pyarrow for a damaged file, or for something that it does not support.
UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)

#: pyarrow's messages about bytes that can't be right, in all supported versions.
_BROKEN_BYTES = (
    r"(?i)corrupt|damaged|malformed|truncated|magic bytes|no more data"
    # Of a whole page alone: its values end so, too, where pyarrow can't decode their kind.
    r"|unexpected end(?! of stream(?!: page))"
    r"|couldn't deserialize thrift(?!.*exceeded)|decompress|gzipcodec failed|brotli|lz4"
    r"|crc checksum|page header|flatbuffers message|continuation token|dictionary bounds"
    r"|spanned by list offsets|child array|smaller than the size|file size is|invalid byte_array"
    r"|do not match num_values|expected to read|must be before data page|too small for levels"
    r"|histogram size mismatch|columnmetadata type|invalid column metadata|invalid utf"
    r"|invalid base64|invalid number of indices|reading schema message|output buffer size"
)


def shows_damage(e: Exception) -> bool:
    """Return whether this error, raised while a file was read, shows that its bytes are wrong."""
    if isinstance(e, UnicodeDecodeError):  # a name in the footer
        return True
    of_bytes = isinstance(e, pa.ArrowInvalid | OSError)
    return of_bytes and re.search(_BROKEN_BYTES, str(e)) is not None


def library_reason(e: Exception) -> str:
    """Return the first line of the library's message in brackets.

    Add the library's name if the library is at fault.
    """
    reason = next(iter(str(e).splitlines()), "no reason given")
    return f"({reason})" if shows_damage(e) else f"(pyarrow {pa.__version__}: {reason})"
