"""Deletion vectors: from the bytes of a file or of the log to a set of row positions.

"Deletion Vector Format" and "Deletion Vector File Storage Format". Everything that the format
lets us check is checked, as a wrong bitmap is a wrong row: version byte, size, CRC-32, magic,
bucket keys, cardinality.

The protocol text's own inline example is in an older, big-endian layout (magic 1681511376) that
no known writer produces in tables; it is read too, since its magic tells it apart for certain.
"""

from __future__ import annotations

import array
import struct
import zlib

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyroaring import BitMap, BitMap64

from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import z85_decode
from tailer.errors import CorruptLog
from tailer.native.values import make_integers

MAGIC = 1681511377
MAGIC_BIG_ENDIAN = 1681511376
FILE_VERSION = 1
_INT_MAX = _KEY_MAX = 2**31 - 1


def find_stored_range(dv: DeletionVectorDescriptor) -> tuple[int, int]:
    """Return (offset, length) in bytes of the part of a deletion vector's file to read.

    From the size field to the end of the checksum; for the first one of a file, from the file's
    version byte. Raises :class:`CorruptLog` for an invalid descriptor.
    """
    offset = 1 if dv.offset is None else dv.offset
    if not (1 <= offset <= _INT_MAX and 12 <= dv.size_in_bytes <= _INT_MAX):
        raise CorruptLog("the deletion vector's offset or size is invalid")
    return (0, dv.size_in_bytes + 9) if offset == 1 else (offset, dv.size_in_bytes + 8)


def parse_dv_file(stored: bytes, dv: DeletionVectorDescriptor) -> BitMap64:
    """Parse the rows in one deletion vector of a file; ``stored`` is the part that
    :func:`find_stored_range` names.

    Raises :class:`CorruptLog` if size, checksum, magic or cardinality do not match.
    """
    offset, length = find_stored_range(dv)
    if len(stored) != length:
        raise CorruptLog(f"the deletion vector file is cut short: {len(stored)} of {length} bytes")
    if offset == 0:
        if stored[0] != FILE_VERSION:
            raise CorruptLog(f"the deletion vector file is of version {stored[0]}, not 1")
        stored = stored[1:]
    (size,) = struct.unpack_from(">i", stored)
    if size != dv.size_in_bytes:
        raise CorruptLog(
            f"the deletion vector says it has {size} bytes, its log entry {dv.size_in_bytes}"
        )
    data = stored[4:-4]
    (checksum,) = struct.unpack_from(">I", stored, len(stored) - 4)
    if zlib.crc32(data) != checksum:
        raise CorruptLog("the deletion vector's checksum (CRC-32) does not fit its bytes")
    return _parse_bitmap(data, dv)


def parse_inline_dv(dv: DeletionVectorDescriptor) -> BitMap64:
    """Parse the rows in an inline deletion vector. Raises :class:`CorruptLog` as the other does."""
    data = z85_decode(dv.path_or_inline_dv)
    # base85 works in groups of four bytes, so up to three bytes of padding may follow.
    if not 0 <= len(data) - dv.size_in_bytes < 4:
        raise CorruptLog(
            f"the inline deletion vector has {len(data)} bytes, its size says {dv.size_in_bytes}"
        )
    return _parse_bitmap(data[: dv.size_in_bytes], dv)


def _parse_bitmap(data: bytes, dv: DeletionVectorDescriptor) -> BitMap64:
    if len(data) < 8:
        raise CorruptLog("the deletion vector is too short to be one")
    (magic,) = struct.unpack_from("<i", data)
    try:
        if magic == MAGIC:
            bitmap = _parse_portable(data[4:])
        elif struct.unpack_from(">i", data)[0] == MAGIC_BIG_ENDIAN:
            bitmap = _parse_big_endian(data[4:])
        else:
            raise CorruptLog(f"the deletion vector's magic number is {magic}, not {MAGIC}")
    except (ValueError, struct.error, OverflowError, MemoryError) as e:
        raise CorruptLog(f"the deletion vector's bitmap can't be read ({e})") from None
    if len(bitmap) != dv.cardinality:
        raise CorruptLog(
            f"the deletion vector has {len(bitmap)} rows, its log entry says {dv.cardinality}"
        )
    if len(bitmap) and bitmap.max() >> 32 > _KEY_MAX:
        raise CorruptLog("the deletion vector has a bucket key beyond 2^31")
    return bitmap


def _parse_portable(data: bytes) -> BitMap64:
    (buckets,) = struct.unpack_from("<Q", data)
    if buckets * 12 > len(data):  # a key and the smallest bitmap take 12 bytes at least
        raise ValueError(f"{buckets} buckets in {len(data)} bytes")
    return BitMap64.deserialize(data)


def _parse_big_endian(data: bytes) -> BitMap64:
    """Parse the older layout: a count of 32-bit bitmaps, each with its size, in order of keys."""
    (count,) = struct.unpack_from(">i", data)
    if not 0 <= count <= len(data) // 4:
        raise ValueError(f"{count} bitmaps in {len(data)} bytes")
    # Only the frame differs: the bitmaps themselves are the same, so they get a new frame.
    buckets, at = [], 4
    for key in range(count):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise ValueError("a bitmap is longer than its bytes")
        bucket = data[at + 4 : at + 4 + size]
        if BitMap.deserialize(bucket):
            buckets.append(struct.pack("<I", key) + bucket)
        at += 4 + size
    return BitMap64.deserialize(struct.pack("<Q", len(buckets)) + b"".join(buckets))


class RowSelection(Struct, frozen=True):
    """The selected rows of a file: those in ``only`` (None: all) that are not in ``without``.

    A worked example of the pair rule ("the difference of the DVs, both ways"). A file of rows
    0..5 is removed with DV {1, 2} and added with DV {2, 3}: row 3 was deleted, so the deletes are
    ``only={2, 3}, without={1, 2}`` = {3}; row 1 came back, so the inserts are
    ``only={1, 2}, without={2, 3}`` = {1}.
    """

    only: BitMap64 | None
    without: BitMap64 | None

    @classmethod
    def from_sets(cls, only: BitMap64 | None, without: BitMap64 | None) -> RowSelection:
        """Return the selection with at most one of the two sets left."""
        if only is not None and without is not None:
            return cls(only - without, None)
        return cls(only, without or None)

    def count(self, first: int, last: int) -> int:
        """Return how many rows of the positions first..last-1 are selected."""
        if self.only is not None:
            return int(self.only.range_cardinality(first, last))
        dropped = self.without.range_cardinality(first, last) if self.without else 0
        return last - first - int(dropped)

    def within(self, first: int, last: int) -> RowSelection:
        """Return the selected rows among the positions first..last-1."""
        rows = BitMap64(range(first, last))
        return RowSelection.from_sets(rows if self.only is None else self.only & rows, self.without)

    def find_ranges(self, first: int, last: int, gap: int, most: int) -> list[tuple[int, int]]:
        """Return where the selected rows among first..last-1 lie: a few ranges without the large
        gaps, of about ``gap`` rows or more."""
        if self.only is None and not self.without:
            return [(first, last)] if first < last else []
        found: list[tuple[int, int]] = []
        for at in range(first, last, gap):
            stop = min(at + gap, last)
            if self.count(at, stop):
                begin = found.pop()[0] if found and found[-1][1] == at else at
                found.append((begin, stop))
        return found if len(found) <= most else self.find_ranges(first, last, 2 * gap, most)

    def end(self) -> int:
        """Return one more than the highest position that is named."""
        named = self.only if self.only is not None else self.without
        return int(named.max()) + 1 if named else 0

    def find_indices(self, first: int, last: int) -> pa.Int64Array | None:
        """Return the selected positions among first..last-1, less ``first``; None if all are."""
        if self.count(first, last) == last - first:
            return None
        within = BitMap64(range(first, last))
        selected = (
            within - (self.without or BitMap64()) if self.only is None else self.only & within
        )
        return _int64_array(selected, first)


def positions_within(rows: BitMap64, first: int, last: int) -> pa.Int64Array:
    """Return the positions among first..last-1."""
    return _int64_array(rows & BitMap64(range(first, last)), 0)


def list_positions(rows: BitMap64) -> pa.Int64Array:
    """Return all members, in order."""
    return _int64_array(rows, 0)


def build_bitmap(positions: pa.Int64Array) -> BitMap64:
    """Return the set of these numbers; none is null or negative."""
    members = array.array("Q")
    start = positions.offset * 8
    members.frombytes(positions.buffers()[1].slice(start, len(positions) * 8))
    return BitMap64(members)


def _int64_array(rows: BitMap64, base: int) -> pa.Int64Array:
    """Return the members less ``base``, without a Python object for each."""
    members = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.to_array())])
    return pc.subtract(members, make_integers([base], pa.int64())[0])


ALL_ROWS = RowSelection(None, None)
