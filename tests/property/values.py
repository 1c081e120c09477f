"""The columns and values of the tables in random histories: few values, so that rows are equal."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.tables.model import Column

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int8()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("e", pa.decimal128(4, 1)),
        ("day", pa.date32()),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("t", pa.struct([("x", pa.int16()), ("y", pa.string())])),
        ("p", pa.string()),
        ("q", pa.int16()),
    ]
)

#: To what a type may be widened, step by step ("Type Widening").
WIDER = {
    pa.int8(): [pa.int16(), pa.int32()],
    pa.int16(): [pa.int32(), pa.float64()],
    pa.int32(): [pa.int64(), pa.decimal128(12, 1)],
    pa.int64(): [pa.decimal128(20, 0)],
    pa.float32(): [pa.float64()],
    pa.date32(): [pa.timestamp("us")],
    pa.decimal128(4, 1): [pa.decimal128(8, 3)],
    pa.decimal128(8, 3): [pa.decimal128(20, 3)],
}


def value_of(data_type: Any, rng: random.Random) -> Any:
    types = pa.types
    if types.is_integer(data_type):
        return rng.choice([None, 0, 1, 1, 2, -1])
    if types.is_floating(data_type):
        return rng.choice([None, 0.0, -0.0, float("nan"), 1.5])
    if types.is_decimal(data_type):
        return rng.choice([None, Decimal(0), Decimal(1), Decimal(-7)])
    if types.is_date(data_type):
        return rng.choice([None, dt.date(1969, 12, 31), dt.date(2026, 1, 31)])
    if types.is_timestamp(data_type):
        return rng.choice([None, dt.datetime(1969, 12, 31), dt.datetime(2026, 1, 31, 1, 2, 3, 4)])  # noqa: DTZ001 - the type has no zone
    if types.is_map(data_type):
        pairs: list[tuple[str, int | None]] = [("a", 1), ("b", None)]
        return rng.choice([None, [], pairs[:1], pairs, pairs[::-1]])
    return rng.choice([None, "a", "b", "ü \n%/"])


def row_of(columns: tuple[Column, ...], rng: random.Random) -> dict[str, Any]:
    return {
        c.name: (rng.choice([None, row_of(c.fields, rng), row_of(c.fields, rng)]) if c.fields
                 else value_of(c.type, rng))
        for c in columns
    }  # fmt: skip
