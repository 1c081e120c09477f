"""What the tests of formats share: one batch with every Delta type, and a registry in memory."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from msgspec import structs

from tailer.changes import ChangeBatch
from tailer.delta.arrow_types import VARIANT
from tailer.testing.batches import change_batch

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(38, 18)),
        ("money", pa.decimal128(9, 2)),
        ("variant", VARIANT),
        ("array", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64()))))),
        ("struct", pa.struct([("a b", pa.int32()), ("inner", pa.struct([("c", pa.string())]))])),
        ("map", pa.map_(pa.string(), pa.decimal128(9, 2))),
        ("dates", pa.map_(pa.date32(), pa.list_(pa.field("element", pa.string())))),
    ]
)

_VARIANT = {"value": b"\x0c\x05", "metadata": b"\x01\x00\x00"}  # the number 5
_NULLS: dict[str, Any] = dict.fromkeys(SCHEMA.names)

ROWS: list[dict[str, Any]] = [
    {
        "id": 2**63 - 1,
        "byte": -128,
        "short": 32767,
        "integer": -(2**31),
        "float": 1.5,
        "double": 0.1,
        "boolean": True,
        "string": 'ü"\\\n\x00😀',
        "binary": b"\x00\xff\x10",
        "date": dt.date(1969, 12, 31),
        "timestamp": dt.datetime(1901, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC),
        "timestamp_ntz": dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
        "decimal": Decimal("-12345678901234567890.123456789012345678"),
        "money": Decimal("9999999.99"),
        "variant": _VARIANT,
        "array": [[1, None], [], None],
        "struct": {"a b": 7, "inner": {"c": "x"}},
        "map": [("k", Decimal("1.50")), ("l", None)],
        "dates": [(dt.date(2024, 1, 1), ["y", None])],
    },
    {**_NULLS, "id": 1},
    {
        **_NULLS,
        "id": -(2**63),
        "float": math.inf,
        "double": math.nan,
        "string": "",
        "binary": b"",
        "decimal": Decimal("0.000000000000000001"),
        "money": Decimal("-0.01"),
        "array": [],
        "struct": {"a b": None, "inner": None},
        "map": [],
        "dates": [],
    },
    {
        **_NULLS,
        "id": 64,
        "double": -math.inf,
        "boolean": False,
        "struct": {"a b": -1, "inner": {"c": None}},
    },
]  # fmt: skip

#: Formats with options, by the name that their golden bytes are kept under.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("rows", {"ids": True}),
    "debezium": ("debezium", {}),
    "debezium_schema": ("debezium", {"schema": True}),
    "cloudevents": ("cloudevents", {}),
    "avro": ("avro", {}),
    "avro_debezium": ("avro", {"envelope": "debezium"}),
    "protobuf": ("protobuf", {}),
    "protobuf_debezium": ("protobuf", {"envelope": "debezium"}),
}


def all_types(*, paired: bool = False, snapshot: bool = False) -> ChangeBatch:
    """Four rows of every type: insert, delete, and an update's images.

    ``paired``: the last one has its preimage beside it, which is no row then.
    """
    kinds = ["insert", "delete", "update_preimage", "update_postimage"]
    if snapshot:
        kinds = ["insert"] * 4
    rows = [{**row, "_change_type": kind} for row, kind in zip(ROWS, kinds, strict=True)]
    batch = change_batch(SCHEMA, rows, version=7, index=3)
    if snapshot:
        return structs.replace(batch, offset=structs.replace(batch.offset, snapshot=True))
    if not paired:
        return batch
    kept = pa.array([0, 1, 3])
    image = pa.array([None, None, ROWS[2]], pa.struct(list(SCHEMA)))
    return structs.replace(
        batch,
        rows=batch.rows.take(kept),
        positions=batch.positions.take(kept),
        indices=batch.row_indices().take(kept),
        before=image,
    )


class MemoryRegistry:
    """Schema ids in the order of registration, from 1."""

    def __init__(self) -> None:
        self.schemas: list[tuple[str, str]] = []
        self.asked: list[str] = []

    def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
        assert kind in ("AVRO", "JSON", "PROTOBUF")
        self.asked.append(subject)
        known = (subject, schema)
        if known not in self.schemas:
            self.schemas.append(known)
        return self.schemas.index(known) + 1

    def list_versions(self, subject: str) -> list[int]:
        return [i + 1 for i, (known, _) in enumerate(self.schemas) if known == subject]

    def read_version(self, subject: str, version: int) -> tuple[int, str, str]:
        known, schema = self.schemas[version - 1]
        assert known == subject
        return version, schema, "AVRO" if schema.startswith("{") else "PROTOBUF"
