"""Tables for the tests of the format `protobuf`, and what they become."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sinks.formats.load import load_encoder
from tailer.changes import ChangeBatch
from tailer.sink.encoder import Encoder, Records
from tailer.testing.batches import change_batch
from tests.property.test_protobuf import as_read
from tests.sinks.formats import SCHEMA, MemoryRegistry
from tests.support.protobuf import read_message

Column = tuple[str, pa.DataType]
ID, TEXT = ("id", pa.int64()), ("v", pa.string())


def encoder(registry: Any, **options: Any) -> Encoder:
    common = {"name": "feed", "topic": "orders", "table": "orders"}
    return load_encoder("protobuf", {**common, **options}, registry)


def read(registry: MemoryRegistry, value: bytes) -> dict[str, Any]:
    """A value in the wire format, read with the schema that its id names."""
    assert (value[0], value[5]) == (0, 0)
    _, schema = registry.schemas[int.from_bytes(value[1:5], "big") - 1]
    return read_message(schema, value[6:])


def values(records: Records) -> list[Any]:
    return list(records.whole_values().to_pylist())


def expected(row: dict[str, Any]) -> dict[str, Any]:
    found = {field.name: as_read(row[field.name], field.type) for field in SCHEMA}
    return {**found, "variant": None if row["variant"] is None else "5"}


def same(found: dict[str, Any], other: dict[str, Any]) -> bool:
    return repr(found) == repr(other)  # NaN is itself there


def batch_of(*columns: Column) -> ChangeBatch:
    samples: dict[pa.DataType, Any] = {
        pa.string(): "x", pa.decimal128(9, 2): Decimal("1.50"), pa.decimal128(12, 4): Decimal(2),
        pa.float32(): 1.5, pa.float64(): 1.5, pa.date32(): dt.date(2024, 1, 31), pa.bool_(): True,
    }  # fmt: skip

    def sample(kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return {field.name: sample(field.type) for field in kind}
        if pa.types.is_list(kind):
            return [sample(kind.value_type), None]
        if pa.types.is_map(kind):
            return [("k", sample(kind.item_type))]
        if pa.types.is_timestamp(kind):
            return dt.datetime(2024, 1, 31, tzinfo=dt.UTC if kind.tz else None)
        return samples.get(kind, 7)

    row = {name: sample(kind) for name, kind in columns}
    return change_batch(pa.schema(columns), [row])


def struct(*members: Column) -> pa.DataType:
    return pa.struct(list(members))


#: Tables as they change, which every registry must take under BACKWARD.
HISTORIES: dict[str, list[list[Column]]] = {
    "added at the end": [[ID], [ID, TEXT]],
    "added in the middle": [[ID, TEXT], [ID, ("n", pa.int32()), TEXT], [("a", pa.bool_()), ID]],
    "dropped": [[ID, TEXT, ("n", pa.int32())], [ID, ("n", pa.int32())]],
    "dropped and added again": [[ID, TEXT], [ID], [ID, TEXT], [ID, ("w", pa.bool_()), TEXT]],
    "renamed": [[ID, TEXT], [ID, ("w", pa.string())], [ID, ("w", pa.string()), ("x", pa.int8())]],
    "integers widened": [[("v", kind())] for kind in (pa.int8, pa.int16, pa.int32, pa.int64)],
    "floats widened": [[("v", pa.float32())], [("v", pa.float64())]],
    "decimals widened": [[("v", pa.decimal128(9, 2))], [("v", pa.decimal128(12, 4))]],
    "nested": [
        [ID, ("s", struct(("a", pa.int32()), ("b", pa.string())))],
        [ID, ("s", struct(("c", pa.bool_()), ("a", pa.int64())))],
        [ID, ("s", struct(("a", pa.int64()), ("d", pa.list_(pa.string()))))],
        [ID],
    ],
    "in arrays and maps": [
        [("l", pa.list_(struct(ID))), ("m", pa.map_(pa.string(), pa.int32()))],
        [("m", pa.map_(pa.string(), pa.int64())), ("l", pa.list_(struct(TEXT, ID)))],
    ],
}  # fmt: skip


def encode_all(registry: Any, tables: list[list[Column]], **options: Any) -> list[Any]:
    """The keys and values of each table's row, by a process that has seen none before."""
    made = encoder(registry, **options)
    found = []
    for columns in tables:
        records = made.encode(batch_of(*columns))
        found.append((records.keys, values(records)))
    return found


def assert_has(found: Any, wanted: Any) -> None:
    """A struct may have members besides, of other versions, that are null."""
    if isinstance(wanted, dict):
        assert all(found[name] is None for name in found.keys() - wanted)
        for name, value in wanted.items():
            assert_has(found[name], value)
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_has(one, other)
    else:
        assert found == wanted


HEAD = 'syntax = "proto3"; package feed.orders; '
UPSERT = {"envelope": "upsert", "key": ["id"]}
OTHERS = """
  reserved 3, 10 to 11; reserved "old", 'older'; option deprecated = true;;
  enum Kind { NONE = 0; }
  oneof either { string x = 12; Kind y = 13; }
  map<string, feed.orders.Spare> labels = 14 [deprecated = true];
  string plain = 2; repeated Kind kinds = 4; Value parent = 15; google.protobuf.Any any = 16;
"""
