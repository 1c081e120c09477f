"""Which partition a record goes to: Kafka's default for keyed records, computed by columns.

The same key goes to the same partition as from Java's and kafka-python's own producers, as long as
the topic keeps its number of partitions: murmur2 of the key, without its sign, modulo that number.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from tailer.native import rowbytes
from tailer.native.rowbytes import RAW, array_part

_SEED, _M = 0x9747B28C, 0x5BD1E995
_WORD = 4
#: With fewer keys of one length than this, plain integers are faster than arrays.
_FEW = 16


def partitions_of_keys(keys: pa.BinaryArray, count: int) -> pa.Int32Array:
    """Return the partition (int32, below ``count``) of each key; a null key counts as empty."""
    hashes = pc.bit_wise_and(hash_by_murmur2(keys), pa.scalar(0x7FFFFFFF, pa.uint32()))
    positive = hashes.cast(pa.int32())
    divisor = pa.scalar(count, pa.int32())
    return pc.subtract(positive, pc.multiply(pc.divide(positive, divisor), divisor))


def hash_by_murmur2(keys: pa.BinaryArray) -> pa.UInt32Array:
    """Return Kafka's murmur2 of each key (uint32); a null key counts as an empty one."""
    if rowbytes.native is not None:
        hashes = rowbytes.native.murmur2([array_part(keys, RAW)], len(keys))
        return pa.Array.from_buffers(pa.uint32(), len(keys), [None, pa.py_buffer(hashes)])
    keys = pc.fill_null(keys, b"") if keys.null_count else keys
    lengths = pc.binary_length(keys)
    found = pc.unique(lengths).to_pylist()
    if len(found) == 1:
        return _hash_keys_of_one_length(keys, found[0])
    # Keys of one length are words of a matrix; the hashes then go back to their keys' places.
    places = [pc.indices_nonzero(pc.equal(lengths, length)) for length in found]
    parts = [
        _hash_keys_of_one_length(keys.take(place), length)
        for place, length in zip(places, found, strict=True)
    ]
    if not parts:
        return pa.array([], pa.uint32())
    return pa.concat_arrays(parts).take(pc.sort_indices(pa.concat_arrays(places)))


def _hash_keys_of_one_length(keys: pa.BinaryArray, length: int) -> pa.UInt32Array:
    if len(keys) < _FEW:
        return pa.array([_hash_one_key(key) for key in keys.to_pylist()], pa.uint32())
    m = _make_word(_M)
    h: pa.Array | pa.Scalar = _make_word(_SEED ^ length)
    words, tail = divmod(length, _WORD)
    columns = _split_into_words(keys, length)
    for column in columns[:words]:
        k = pc.multiply(column, m)
        k = pc.multiply(_fold_bits(k, 24), m)
        h = pc.bit_wise_xor(pc.multiply(h, m), k)
    if tail:
        h = pc.multiply(pc.bit_wise_xor(h, columns[words]), m)
    h = _fold_bits(pc.multiply(_fold_bits(h, 13), m), 15)
    return h if isinstance(h, pa.Array) else pa.repeat(h, len(keys))


def _split_into_words(keys: pa.BinaryArray, length: int) -> list[pa.UInt32Array]:
    """Return the keys' 32-bit little-endian words, as one array per place, the last one padded with
    zeros."""
    padding = -length % _WORD
    padded = pc.binary_join_element_wise(keys, pa.scalar(b"\0" * padding), pa.scalar(b""))
    per_key = (length + padding) // _WORD
    data = padded.buffers()[2]
    if not per_key:
        return []
    words = pa.Array.from_buffers(pa.uint32(), len(keys) * per_key, [None, data])
    if per_key == 1:
        return [words]
    matrix = pa.FixedSizeListArray.from_arrays(words, per_key)
    return [pc.list_element(matrix, place) for place in range(per_key)]


def _fold_bits(h: pa.Array | pa.Scalar, bits: int) -> pa.Array | pa.Scalar:
    return pc.bit_wise_xor(h, pc.shift_right(h, _make_word(bits)))


def _make_word(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint32())


def _hash_one_key(key: bytes) -> int:
    """Return one key's hash, computed with integers."""
    mask = 0xFFFFFFFF
    h = _SEED ^ len(key)
    words, tail = divmod(len(key), _WORD)
    for k in struct.unpack_from(f"<{words}I", key):
        k = k * _M & mask  # noqa: PLW2901  # as the algorithm is written everywhere
        k = (k ^ k >> 24) * _M & mask  # noqa: PLW2901
        h = h * _M & mask ^ k
    if tail:
        h = (h ^ int.from_bytes(key[words * _WORD :], "little")) * _M & mask
    h = (h ^ h >> 13) * _M & mask
    return h ^ h >> 15
