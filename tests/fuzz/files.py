"""The bytes of data files and of deletion vectors. What was written once is not written again."""

from __future__ import annotations

import io
import random
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

__all__ = ["form", "inline_vector", "parquet_bytes", "vector_data", "vector_file", "vector_name"]

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_BYTES_MAX = 50_000
_written: dict[Any, bytes] = {}


def parquet_bytes(
    fields: Sequence[pa.Field], rows: Sequence[Mapping[str, Any]], form: Mapping[str, Any]
) -> bytes:
    """A Parquet file of these columns, the rows by the fields' names; ``form`` has options of
    pyarrow's writer, and ``texts``: the Arrow type of texts."""
    key = f"{fields} {rows} {form} {[f.metadata for f in fields]}"
    found = _written.get(key)
    if found is None:
        if len(_written) > _BYTES_MAX:
            _written.clear()
        found = _written[key] = _parquet_bytes(fields, rows, dict(form))
    return found


def _parquet_bytes(
    fields: Sequence[pa.Field], rows: Sequence[Mapping[str, Any]], form: dict[str, Any]
) -> bytes:
    texts = form.pop("texts")
    given = [f.with_type(texts) if pa.types.is_string(f.type) else f for f in fields]
    arrays = [pa.array([row.get(f.name) for row in rows], f.type) for f in fields]
    arrays = [a.cast(f.type) for a, f in zip(arrays, given, strict=True)]
    out = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=pa.schema(given)), out, **form)
    return out.getvalue()


def form(rng: random.Random, *, plain: bool) -> dict[str, Any]:
    """Draw how a Parquet file is written."""
    if plain:
        return {"texts": pa.string(), "compression": "none"}
    return {
        "texts": rng.choice([pa.string(), pa.string(), pa.large_string(),
                             pa.dictionary(pa.int32(), pa.string())]),
        "compression": rng.choice(["none", "snappy", "gzip", "zstd"]),
        "row_group_size": rng.choice([2, 100, 100]),
        "use_dictionary": rng.random() < 0.5,
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "write_statistics": rng.random() < 0.5,
        "store_schema": rng.random() < 0.5,
        "use_deprecated_int96_timestamps": rng.random() < 0.3,
        "use_compliant_nested_type": rng.random() < 0.8,
        "store_decimal_as_integer": rng.random() < 0.4,
        "version": rng.choice(["1.0", "2.4", "2.6"]),
    }  # fmt: skip


@cache
def vector_data(rows: frozenset[int], *, run: bool) -> bytes:
    """Magic and bitmap of a deletion vector."""
    bitmap = BitMap64(sorted(rows))
    if run:
        bitmap.run_optimize()
    return struct.pack("<i", 1681511377) + bytes(bitmap.serialize())


def z85(data: bytes) -> str:
    """The Z85 text of some bytes, padded with zeros to a multiple of four."""
    values = (v for (v,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)))
    return "".join(_Z85[v // 85**power % 85] for v in values for power in (4, 3, 2, 1, 0))


def inline_vector(rows: frozenset[int], *, run: bool) -> dict[str, Any]:
    """The descriptor of an inline deletion vector."""
    data = vector_data(rows, run=run)
    size = {"sizeInBytes": len(data), "cardinality": len(rows)}
    return {"storageType": "i", "pathOrInlineDv": z85(data), **size}


def vector_file(several: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """A file of deletion vectors, and the offset of each."""
    stored, offsets = b"\x01", []
    for data in several:
        offsets.append(len(stored))
        stored += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return stored, offsets


def vector_name(name: uuid.UUID, prefix: str) -> tuple[str, str]:
    """The path of a deletion vector's file, and the text for it in the log."""
    folder = f"{prefix}/" if prefix else ""
    return f"{folder}deletion_vector_{name}.bin", prefix + z85(name.bytes)
