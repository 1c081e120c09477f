"""How hostile files are made from good ones: damaged bytes, and well-formed files that lie.

Every function takes a random generator and changes nothing but what it returns.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import thrift

# Stands in a document for what json.dumps can't write; replaced in the text.
_RAW = {
    "@deep@": "[" * 50_000 + "]" * 50_000,
    "@open@": '{"a":' * 20_000,
    "@digits@": "9" * 6_000,
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@float@": "1e400",
    "@surrogate@": '"\\ud800"',
    "@nul@": '"\\u0000"',
}

_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    0.5, "", "x", "x" * 100_000, [], {}, [None], [[]], {"": None}, [{"a": 1}], {"a": {"b": []}},
    "../../../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "file:/", "file:", "s3://b/k",
    "%2e%2e/%2e%2e/x", "%00", "%ff", "%", "..", ".", "/", "//", "_delta_log", "a" * 5_000,
    "_delta_log/00000000000000000000.json", "/dev/null", "/dev/zero", "/proc/self/mem", "~", "\n",
    "abfss://c@a/x", "http://127.0.0.1:1/x", "C:\\x", "part=1/../x", "\u202e", "decimal(99,99)",
    *_RAW,
]  # fmt: skip

_TYPES: list[Any] = [
    "void", "null", "variant", "decimal(38,38)", "decimal(0,0)", "decimal(999999999,1)", "char(5)",
    "varchar(99999999999)", "interval", "timestamp_ntz", "binary", "byte", "date", "boolean",
    {"type": "array", "elementType": "long"}, {"type": "map", "keyType": "x", "valueType": "y"},
    {"type": "struct", "fields": []}, {"type": "struct"}, {"type": []}, {"type": {"type": "long"}},
    {"type": "udt", "sqlType": "long"},
]  # fmt: skip


def hostile_bytes(rng: random.Random, data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """The bytes with damage between two positions."""
    end = len(data) if end is None else end
    out = bytearray(data)
    at = rng.randrange(start, end) if end > start else start
    length = min(rng.choice([1, 2, 4, 8, 64, 1000]), end - at)
    match rng.randrange(8):
        case 0 | 1 | 2:
            for _ in range(rng.choice([1, 1, 1, 2, 8])):
                if end > start:
                    out[rng.randrange(start, end)] ^= 1 << rng.randrange(8)
        case 3:
            out[at : at + length] = rng.randbytes(length)
        case 4:
            out[at : at + length] = rng.choice([b"\x00", b"\xff", b"\x7f"]) * length
        case 5:
            size = rng.choice([4, 8])
            number = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1]).to_bytes(8, "little")
            out[at : at + min(size, end - at)] = number[: min(size, end - at)]
        case 6:
            del out[at : at + length]
        case 7:
            out[at:at] = out[at : at + length]
    if (start, end) == (0, len(data)) and rng.random() < 0.15:
        del out[rng.randrange(len(out) + 1) :]
    return bytes(out)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a document, the containers too."""
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def _hostile_document(rng: random.Random, document: Any, values: list[Any]) -> None:
    """Change one place of a document, in place."""
    places = list(_places(document))
    if not places:
        return
    container, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[rng.choice(["", "add", "path", "x" * 1000, "size", str(key).upper()])] = (
                container.pop(key)
            )
        case 2:
            other, name = rng.choice(places)
            container[key] = copy.deepcopy(other[name])
        case 3 if isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] += rng.choice([1, -1, 2**31, 2**62, -(2**62)])
        case _:
            container[key] = copy.deepcopy(rng.choice(values))


def _hostile_schema(rng: random.Random, text: str) -> str:
    """A schemaString that is none, or another, or one nested very deeply."""
    document = json.loads(text)
    if rng.random() < 0.3:
        depth = rng.choice([50, 98, 101, 200, 5_000])
        if depth == 5_000:
            return '{"type":"array","elementType":' * depth + '"long"' + "}" * depth
        deep: Any = "long"
        for _ in range(depth):
            kind = rng.randrange(3)
            field = {"name": "a", "type": deep, "nullable": True, "metadata": {}}
            deep = (
                {"type": "array", "elementType": deep, "containsNull": True},
                {"type": "map", "keyType": "string", "valueType": deep, "valueContainsNull": True},
                {"type": "struct", "fields": [field]},
            )[kind]
        rng.choice(document["fields"])["type"] = deep
    else:
        for _ in range(rng.choice([1, 1, 2, 4])):
            _hostile_document(rng, document, [*_VALUES, *_TYPES, *_TYPES])
    return json.dumps(document)


def hostile_actions(rng: random.Random, data: bytes) -> bytes:
    """The actions of a JSON file of the log, some of them others now, or lying."""
    lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    metadata = [a["metaData"] for a in lines if "metaData" in a]
    match rng.randrange(10):
        case 0:
            lines.insert(rng.randrange(len(lines) + 1), copy.deepcopy(rng.choice(lines)))
        case 1:
            del lines[rng.randrange(len(lines))]
        case 2 | 3 if metadata and isinstance(metadata[0].get("schemaString"), str):
            metadata[0]["schemaString"] = _hostile_schema(rng, metadata[0]["schemaString"])
        case 4 if metadata:
            key = rng.choice(["delta.columnMapping.mode", "delta.enableInCommitTimestamps",
                              "delta.inCommitTimestampEnablementVersion",
                              "delta.enableRowTracking", "delta.enableChangeDataFeed"])  # fmt: skip
            metadata[0]["configuration"][key] = rng.choice(
                ["name", "id", "true", "-1", "x", "9" * 40]
            )
        case 5:
            action = rng.choice(lines)
            (kind,) = list(action)[:1] or ("add",)
            kinds = ["add", "remove", "cdc", "metaData", "protocol", "txn", "sidecar", "commitInfo",
                     "checkpointMetadata", "domainMetadata", "unknown"]  # fmt: skip
            action[rng.choice(kinds)] = action.pop(kind, {})
        case _:
            for _ in range(rng.choice([1, 1, 2, 5])):
                _hostile_document(rng, lines, _VALUES)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for mark, raw in _RAW.items():
        text = text.replace(json.dumps(mark), raw)
    if rng.random() < 0.05 and text.count('"path"') == 1:
        text = text.replace('"path"', '"path": "elsewhere", "path"')
    return text.encode("utf-8", "surrogatepass")


def page_bodies(data: bytes) -> list[tuple[int, int]]:
    """(start, end) of all pages of a Parquet file without their headers: what a checksum covers."""
    found = []
    metadata = pq.read_metadata(pa.BufferReader(data))
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            at = chunk.dictionary_page_offset or chunk.data_page_offset
            end = at + chunk.total_compressed_size
            while at < end:
                header, at = thrift.read_struct(data, at, 0)
                size = thrift.signed(thrift.value(header, 3))
                assert thrift.value(header, 4) is not None, "the page has no checksum"
                found.append((at, at + size))
                at += size
    return [(start, end) for start, end in found if end > start]


def _numbers(wire: int, value: Any, owner: list[Any]) -> Iterator[list[Any]]:
    """All [holder, index] of numbers and texts in a Thrift struct."""
    if wire == thrift.STRUCT:
        for field in value:
            yield from _numbers(field[1], field[2], [field, 2])
    elif wire in (thrift.LIST, thrift.SET):
        for i, item in enumerate(value[1]):
            yield from _numbers(value[0], item, [value[1], i])
    elif wire in (thrift.I16, thrift.I32, thrift.I64, thrift.BINARY):
        yield owner


def hostile_footer(rng: random.Random, data: bytes) -> bytes:
    """A Parquet file whose footer is well-formed and says what is not so."""
    size = int.from_bytes(data[-8:-4], "little")
    fields, _ = thrift.read_struct(data[-8 - size : -8], 0, 0)
    places = list(_numbers(thrift.STRUCT, fields, []))
    for _ in range(rng.choice([1, 1, 2, 4])):
        holder, index = rng.choice(places)
        value = holder[index]
        if isinstance(value, bytes):
            holder[index] = rng.choice([b"", value[:-1], value * 2, b"\xff\xfe", b"x" * 10_000])
        else:
            holder[index] = rng.choice(
                [0, 1, 2, 3, value + 2, value - 2 if value > 1 else 5, value ^ 1, value << 8,
                 2**32 - 2, 2**32, 2**40, 2**62, 2**64 - 1]
            )  # fmt: skip
    out = bytearray()
    thrift.write(out, thrift.STRUCT, fields)
    return data[: -8 - size] + bytes(out) + len(out).to_bytes(4, "little") + b"PAR1"


def retyped_parquet(rng: random.Random, data: bytes) -> bytes | None:
    """A Parquet file of actions with other values and the types that they bring; None if Arrow has
    no type for them."""
    rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    for _ in range(rng.choice([1, 1, 2, 3])):
        _hostile_document(rng, rows, [v for v in _VALUES if v not in list(_RAW)])
    rows = [row if isinstance(row, dict) else {} for row in rows]
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.Table.from_pylist(rows), sink)
    except (pa.ArrowException, TypeError, OverflowError, AttributeError, ValueError):
        return None
    return bytes(sink.getvalue())


def hostile_vector(rng: random.Random, data: bytes) -> bytes:
    """A deletion vector file whose checksum fits a bitmap that is damaged."""
    size = int.from_bytes(data[1:5], "big")
    bitmap = bytearray(hostile_bytes(rng, data[5 : 5 + size], 0, size))
    if rng.random() < 0.8:
        bitmap[:4] = data[5:9]
    if rng.random() < 0.5 and len(bitmap) != size:
        bitmap = (bitmap + bytes(size))[:size]
    if rng.random() < 0.1:
        bitmap[4:12] = struct.pack("<Q", rng.choice([0, 2, 2**32 - 1, 2**32, 2**63]))
    stored = struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
    return data[:1] + stored + data[9 + size :]
