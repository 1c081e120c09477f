"""The format `upsert`: whoever keeps the last record of each key has the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.load import load_encoder
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError
from tailer.sink.encoder import Encoder, Records
from tailer.testing.batches import change_batch
from tests.sinks.formats import SCHEMA, MemoryRegistry, all_types

SMALL = pa.schema([("id", pa.int64()), ("v", pa.string())])


def upserts(**options: Any) -> Encoder:
    return load_encoder("upsert", {"key": ["id"], "name": "feed", "topic": "t", **options})


def avro(registry: MemoryRegistry) -> Encoder:
    options = {"key": ["id"], "envelope": "upsert", "name": "feed", "topic": "t", "table": "o"}
    return load_encoder("avro", options, registry)


def records_of(records: Records) -> list[tuple[bytes, bytes | None]]:
    assert records.keys is not None
    return list(zip(records.keys.to_pylist(), records.whole_values().to_pylist(), strict=True))


def test_the_bytes_of_each_kind() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b", "_change_type": "delete"},
        {"id": 3, "v": 'c"', "_change_type": "update_preimage"},
        {"id": 4, "v": None, "_change_type": "update_postimage"},
    ]
    batch = change_batch(SMALL, rows)
    records = upserts().encode(batch)
    assert records_of(records) == [
        (b'{"id":1}', b'{"id":1,"v":"a"}'),
        (b'{"id":2}', None),
        (b'{"id":3}', None),
        (b'{"id":4}', b'{"id":4,"v":null}'),
    ]
    (ids,) = [value for name, value in records.whole_headers() if name == "_event_id"]
    assert not isinstance(ids, bytes)
    assert ids.to_pylist() == batch.event_ids().to_pylist()


def test_every_type_is_written_as_in_rows() -> None:
    batch = all_types(paired=True)
    plain = load_encoder("rows", {"name": "feed", "topic": "t"}).encode(batch)
    expected = [json.loads(value) for value in plain.whole_values().to_pylist()]
    for (_, value), row in zip(records_of(upserts().encode(batch)), expected, strict=True):
        if row["_change_type"] == "delete":
            assert value is None
        else:
            assert value is not None
            assert json.loads(value) == {name: row[name] for name in SCHEMA.names}


def test_avro_has_records_of_the_columns() -> None:
    registry = MemoryRegistry()
    batch = all_types(paired=True)
    records = avro(registry).encode(batch)
    schemas = {subject: json.loads(schema) for subject, schema in registry.schemas}
    assert len(schemas["t-value"]["fields"]) == len(SCHEMA.names)
    values = [value for _, value in records_of(records)]
    assert [value is None for value in values] == [False, True, False]
    parsed = fastavro.parse_schema(schemas["t-value"])
    ids = []
    for value in filter(None, values):
        row: Any = fastavro.schemaless_reader(pa.BufferReader(value[5:]), parsed, None)
        ids.append(row["id"])
    assert ids == [
        each["id"] for each in batch.rows.to_pylist() if each["_change_type"] != "delete"
    ]


@pytest.mark.parametrize(("format_", "options"), [("upsert", {}), ("avro", {"envelope": "upsert"})])
def test_it_needs_a_key(format_: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="upserts need a key"):
        load_encoder(format_, options, MemoryRegistry())


def test_tombstones_are_its_own() -> None:
    with pytest.raises(ConfigError, match="tombstones"):
        upserts(tombstones=True)
    with pytest.raises(ConfigError, match="leave 'tombstones' out"):
        load_encoder(
            "avro", {"envelope": "upsert", "key": ["id"], "tombstones": True}, MemoryRegistry()
        )


Table = dict[int, str]
_KEYS = st.integers(0, 5)


@st.composite
def versions(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Versions of a table with one row a key: what comes and what leaves, in any order, also a key
    that one row leaves and another one gets. An update that keeps its key is one row, as a feed
    pairs it."""
    table: Table = {}
    found = []
    for _ in range(draw(st.integers(1, 4))):
        new: Table = draw(st.dictionaries(_KEYS, st.sampled_from("abc"), max_size=6))
        rows: list[dict[str, Any]] = []
        for key in sorted({*table, *new}):
            was, now = table.get(key), new.get(key)
            if was is not None and now is not None and draw(st.booleans()):
                rows.append({"id": key, "v": now, "_change_type": "update_postimage"})
                continue
            kinds = draw(st.sampled_from(["insert delete", "update_postimage update_preimage"]))
            comes, leaves = kinds.split()
            rows += [{"id": key, "v": was, "_change_type": leaves}] if was is not None else []
            rows += [{"id": key, "v": now, "_change_type": comes}] if now is not None else []
        found.append(draw(st.permutations(rows)))
        table = new
    return found


def batches(history: list[list[dict[str, Any]]]) -> Iterator[tuple[ChangeBatch, Table]]:
    table: Table = {}
    for version, rows in enumerate(history, 1):
        if rows:
            yield change_batch(SMALL, rows, version=version), table
        leaving = [row for row in rows if row["_change_type"] in ("delete", "update_preimage")]
        for row in leaving:
            table.pop(row["id"], None)
        for row in rows:
            if row not in leaving:
                table[row["id"]] = row["v"]


@given(versions())
def test_the_last_record_of_each_key_is_the_table(history: list[list[dict[str, Any]]]) -> None:
    kept: dict[bytes, bytes | None] = {}
    table: Table = {}
    for batch, table in batches(history):  # noqa: B007 - the table after the last one
        kept |= dict(records_of(upserts().encode(batch)))
    found = [json.loads(value) for value in kept.values() if value is not None]
    assert {row["id"]: row["v"] for row in found} == table
