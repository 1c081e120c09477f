"""Topics in Debezium's envelope, read by Flink SQL. The recipe is docs/flink.md."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import deliver, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.kafka.test_connect import changed_table
from tests.support.flink import query
from tests.support.pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.needs("flink"), pytest.mark.timeout(300)]

TYPES = {
    "id": "BIGINT", "name": "STRING", "price": "DECIMAL(20, 3)", "weight": "DOUBLE",
    "small": "SMALLINT", "open": "BOOLEAN", "day": "DATE", "at": "TIMESTAMP_LTZ(6)",
    "wall": "TIMESTAMP(6)", "photo": "BYTES", "note": "STRING",
}  # fmt: skip


def as_flink_shows(value: Any) -> str | None:
    """A value as the text that Flink has of it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case bytes():
            return value.hex()
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat() + ("" if value.tzinfo is None else "Z")
        case _:
            return str(value)


def found_by_flink(
    kafka: Broker, folder: Path, topic: str, types: dict[str, str], number: int = 0
) -> Counter[tuple[str | None, ...]]:
    """The rows of one of the page's tables, which ends with the topic and has these columns."""
    recipe = blocks("docs/flink.md", "sql")[number].text
    columns = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    for old, new in (
        (re.search(r"\(\n {2}id .*?(?=\n {2}PRIMARY)", recipe, re.DOTALL), f"({columns},"),
        ("'topic' = 'orders'", f"'topic' = '{topic}', 'scan.bounded.mode' = 'latest-offset'"),
        ("localhost:9092", kafka.bootstrap),
    ):
        found = old if isinstance(old, str) else old and old[0]
        assert found
        assert found in recipe
        recipe = recipe.replace(found, new)
    return query(folder, recipe, "SELECT * FROM orders")


@pytest.mark.parametrize("more", [{"key": ["id"], "tombstones": True}, {}], ids=["key", "no key"])
def test_its_table_is_the_snapshot(kafka: Broker, tmp_path: Path, more: dict[str, Any]) -> None:
    table, topic = changed_table(tmp_path), fresh()
    anyio.run(deliver, table, made(kafka.bootstrap, topic, format="debezium", **more))
    rows = snapshot_rows(table)
    assert len(rows) == 7
    wanted = Counter(tuple(as_flink_shows(row[name]) for name in TYPES) for row in rows)
    assert found_by_flink(kafka, tmp_path, topic, TYPES) == wanted


def test_its_table_of_upserts_is_the_snapshot(kafka: Broker, tmp_path: Path) -> None:
    table, topic = changed_table(tmp_path), fresh()
    anyio.run(deliver, table, made(kafka.bootstrap, topic, format="upsert", key=["id"]))
    rows = snapshot_rows(table)
    wanted = Counter(tuple(as_flink_shows(row[name]) for name in TYPES) for row in rows)
    assert found_by_flink(kafka, tmp_path, topic, TYPES, 1) == wanted


def test_nested_values(kafka: Broker, tmp_path: Path) -> None:
    kinds = {
        "id": (pa.int64(), "BIGINT"),
        "texts": (pa.list_(pa.string()), "ARRAY<STRING>"),
        "place": (pa.struct([("x", pa.int64())]), "ROW<x BIGINT>"),
        "counts": (pa.map_(pa.string(), pa.int64()), "MAP<STRING, BIGINT>"),
    }
    schema = pa.schema([(name, arrow) for name, (arrow, _) in kinds.items()])
    table, topic = TableBuilder(tmp_path / "orders", schema, cdf=True), fresh()
    table.create()
    table.insert([{"id": 1, "texts": ["a", None], "place": {"x": 2}, "counts": [("k", 3)]}])
    anyio.run(deliver, table, made(kafka.bootstrap, topic, format="debezium", key=["id"]))
    found = found_by_flink(kafka, tmp_path, topic, {name: sql for name, (_, sql) in kinds.items()})
    assert found == Counter([("1", "[a, null]", "+I[2]", "{k=3}")])
