"""Deletion vectors: the examples that are published, every check that the format allows, rows."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

import pytest
from pyroaring import BitMap, BitMap64

from tailer.decode.vectors import (
    ALL_ROWS,
    RowSelection,
    find_stored_range,
    parse_dv_file,
    parse_inline_dv,
)
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.errors import CorruptLog, TableError
from tailer.testing.table import deletion_vector_bytes, z85_encode
from tests.support.feeds import refusal

ROWS = [3, 4, 7, 11, 18, 29]
GOOD = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
BIG_ENDIAN = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"


def described(
    data: bytes, cardinality: int, *, size: int | None = None, offset: int | None = 1
) -> DeletionVectorDescriptor:
    size = len(data) if size is None else size
    return DeletionVectorDescriptor("u", "x", size, cardinality, offset)


def stored(data: bytes, *, version: bytes = b"\x01") -> bytes:
    """A file of one vector, from its version byte on."""
    return version + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def from_file(rows: Sequence[int]) -> bytes:
    return stored(deletion_vector_bytes(rows))


def inline(text: str, size: int, cardinality: int) -> list[int]:
    return list(parse_inline_dv(DeletionVectorDescriptor("i", text, size, cardinality)))


def inline_data(data: bytes, cardinality: int) -> list[int]:
    return inline(z85_encode(data), len(data), cardinality)


def test_the_published_inline_vector_has_its_rows() -> None:
    assert inline(GOOD, 44, 6) == ROWS


def test_an_inline_vector_that_a_kernel_based_writer_padded_is_read() -> None:
    assert inline("^Bg9^0rr910000000000iXQKl0rr91000005c8Xg##093", 34, 1) == [3]


def test_the_protocol_texts_own_example_in_the_older_big_endian_layout_is_read_too() -> None:
    assert inline(BIG_ENDIAN, 40, 6) == ROWS


def test_big_endian_vectors_of_several_buckets_are_read() -> None:
    buckets = [BitMap([1, 5]), BitMap(), BitMap([7])]
    data = struct.pack(">ii", 1681511376, len(buckets))
    for bucket in buckets:
        data += struct.pack(">i", len(bucket.serialize())) + bucket.serialize()
    assert inline_data(data, 3) == [1, 5, 2 * 2**32 + 7]


def test_a_big_endian_run_of_four_billion_rows_needs_no_memory_of_that_size() -> None:
    bucket = BitMap()
    bucket.add_range(0, 2**32)
    bucket.run_optimize()
    data = struct.pack(">iii", 1681511376, 1, len(bucket.serialize())) + bucket.serialize()
    descriptor = DeletionVectorDescriptor("i", z85_encode(data), len(data), 2**32)
    assert len(parse_inline_dv(descriptor)) == 2**32


def test_a_vector_of_a_file_has_its_rows() -> None:
    data = deletion_vector_bytes(ROWS)
    assert list(parse_dv_file(stored(data), described(data, 6))) == ROWS
    later = stored(data)[1:]
    assert list(parse_dv_file(later, described(data, 6, offset=77))) == ROWS


def test_what_must_be_read_of_a_file_is_from_size_to_checksum() -> None:
    assert find_stored_range(described(b"", 0, size=40, offset=77)) == (77, 48)
    assert find_stored_range(described(b"", 0, size=40, offset=1)) == (0, 49), (
        "with the version byte"
    )
    assert find_stored_range(described(b"", 0, size=40, offset=None)) == (0, 49)


@pytest.mark.parametrize(
    ("size", "offset"),
    [(40, 0), (40, -5), (40, 2**31), (0, 1), (11, 1), (-1, 1), (2**31, 1), (2**62, 9)],
)
def test_an_offset_or_size_that_no_file_has_is_refused(size: int, offset: int) -> None:
    with pytest.raises(CorruptLog, match="offset or size"):
        find_stored_range(described(b"", 0, size=size, offset=offset))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_file_of_another_format_version_is_refused(version: int) -> None:
    data = deletion_vector_bytes(ROWS)
    message = refusal(
        lambda: parse_dv_file(stored(data, version=bytes([version])), described(data, 6)),
        CorruptLog,
    )
    assert f"version {version}" in message


@pytest.mark.parametrize("change", [-1, 1, -200])
def test_a_file_that_is_cut_short_or_too_long_is_refused(change: int) -> None:
    data = deletion_vector_bytes(range(0, 1000, 3))
    content = stored(data)[: change or None] if change < 0 else stored(data) + b"x"
    assert "cut short" in refusal(lambda: parse_dv_file(content, described(data, 334)), CorruptLog)


def test_a_size_that_is_not_the_logs_is_refused() -> None:
    data = deletion_vector_bytes(ROWS)
    content = bytearray(stored(data))
    content[4] ^= 1
    message = refusal(lambda: parse_dv_file(bytes(content), described(data, 6)), CorruptLog)
    assert f"its log entry {len(data)}" in message


def test_every_flipped_bit_of_a_file_is_noticed() -> None:
    data = deletion_vector_bytes(ROWS)
    whole = stored(data)
    for bit in range(len(whole) * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            parse_dv_file(bytes(content), described(data, 6))


def test_a_checksum_that_does_not_fit_is_named() -> None:
    data = deletion_vector_bytes(ROWS)
    content = stored(data)[:-1] + b"\x00"
    assert "CRC-32" in refusal(lambda: parse_dv_file(content, described(data, 6)), CorruptLog)


@pytest.mark.parametrize("magic", [0, 1681511376, 1681511378, -1])
def test_another_magic_number_is_refused(magic: int) -> None:
    data = struct.pack("<i", magic) + deletion_vector_bytes(ROWS)[4:]
    message = refusal(lambda: inline_data(data, 6), CorruptLog)
    assert f"magic number is {magic}" in message


@pytest.mark.parametrize("cardinality", [0, 5, 7, -1, 2**62])
def test_a_cardinality_that_is_not_the_logs_is_refused(cardinality: int) -> None:
    message = refusal(lambda: inline(GOOD, 44, cardinality), CorruptLog)
    assert f"has 6 rows, its log entry says {cardinality}" in message


@pytest.mark.parametrize("key", [2**31, 2**32 - 1])
def test_a_bucket_key_of_2_to_the_31_or_more_is_refused(key: int) -> None:
    data = deletion_vector_bytes([1, key << 32])
    assert "2^31" in refusal(lambda: inline_data(data, 2), CorruptLog)
    largest = (2**31 - 1) << 32
    assert inline_data(deletion_vector_bytes([largest]), 1) == [largest]


@pytest.mark.parametrize("size", [43, 40, 45, 0, -1, 48])
def test_an_inline_vector_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(CorruptLog):
        inline(GOOD, size, 6)


@pytest.mark.parametrize("text", ["", "^Bg9^", GOOD[:-1], GOOD[:-5], GOOD[:-1] + "~"])
def test_an_inline_vector_that_is_cut_or_no_base85_is_refused(text: str) -> None:
    with pytest.raises(CorruptLog):
        inline(text, 44, 6)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**64 - 1) + bytes(100),
        struct.pack("<Q", 5) + bytes(100),
        struct.pack("<QI", 1, 0) + b"\xff" * 60,
    ],
)
@pytest.mark.parametrize("magic", [struct.pack("<i", 1681511377), struct.pack(">i", 1681511376)])
def test_a_bitmap_of_garbage_is_refused(magic: bytes, body: bytes) -> None:
    with pytest.raises(CorruptLog):
        inline_data(magic + body, 1)


def test_bit_flips_behind_a_valid_checksum_are_refused_or_other_rows_but_never_crash() -> None:
    source, refused = random.Random(11), 0
    data = deletion_vector_bytes([*range(0, 9000, 2), *range(70_000, 72_000), 2**33])
    for _ in range(500):
        content = bytearray(data)
        for _ in range(source.randint(1, 3)):
            content[source.randrange(60)] ^= 1 << source.randrange(8)
        try:
            parse_dv_file(stored(bytes(content)), described(data, 6501))
        except TableError:
            refused += 1
    assert refused > 450


def test_an_empty_vector_deletes_nothing() -> None:
    data = deletion_vector_bytes([])
    assert not parse_dv_file(stored(data), described(data, 0))


def selected(selection: RowSelection, first: int, last: int) -> list[int]:
    indices = selection.find_indices(first, last)
    offsets = range(last - first) if indices is None else indices.to_pylist()
    return [first + i for i in offsets]


def test_the_pair_rule_gives_what_was_deleted_and_what_came_back() -> None:
    old, new = BitMap64([1, 2]), BitMap64([2, 3])
    assert selected(RowSelection.from_sets(new, old), 0, 6) == [3]
    assert selected(RowSelection.from_sets(old, new), 0, 6) == [1]


def test_without_vectors_all_rows_are_meant() -> None:
    assert ALL_ROWS.find_indices(0, 5) is None
    assert ALL_ROWS.count(3, 5) == 2
    assert ALL_ROWS.end() == 0


def test_an_empty_choice_is_no_row_and_not_every_row() -> None:
    nothing = RowSelection.from_sets(BitMap64(), None)
    assert selected(nothing, 0, 5) == []
    assert nothing.count(0, 5) == 0
    assert selected(RowSelection.from_sets(BitMap64([1]), BitMap64([1])), 0, 5) == []
    assert selected(RowSelection.from_sets(None, BitMap64()), 0, 5) == [0, 1, 2, 3, 4]


def test_a_window_sees_its_own_rows_also_beyond_32_bits() -> None:
    base = 2**32 - 2
    selection = RowSelection.from_sets(BitMap64([0, base, base + 3, 2**40]), None)
    assert selected(selection, base, base + 4) == [base, base + 3]
    assert selection.count(base, base + 4) == 2
    assert selection.end() == 2**40 + 1
    dropped = RowSelection.from_sets(None, BitMap64([base + 1]))
    assert selected(dropped, base, base + 3) == [base, base + 2]
