"""The format `json_schema`: each value is what its schema says, by another library's validator."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.load import load_encoder
from tailer.errors import ConfigError
from tailer.sink.encoder import Encoder
from tailer.testing.batches import change_batch
from tests.sinks.formats import MemoryRegistry, all_types
from tests.sinks.test_upsert import SMALL

ENVELOPES = ["rows", "debezium", "upsert"]


def encoder(registry: MemoryRegistry, envelope: str, **options: Any) -> Encoder:
    common = {"key": ["id"], "name": "feed", "topic": "orders", "table": "orders"}
    return load_encoder("json_schema", {**common, "envelope": envelope, **options}, registry)


def checked(registry: MemoryRegistry, framed: bytes) -> Any:
    """The document of a record, which its schema allows."""
    assert framed[0] == 0
    _, schema = registry.schemas[int.from_bytes(framed[1:5], "big") - 1]
    document = json.loads(framed[5:])
    validator = jsonschema_rs.validator_for(json.loads(schema), validate_formats=True)
    assert not [str(error) for error in validator.iter_errors(document)]
    return document


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_every_type_is_what_its_schema_says(envelope: str) -> None:
    registry = MemoryRegistry()
    batch = all_types(paired=envelope != "rows")
    records = encoder(registry, envelope).encode(batch)
    own = {"key": ["id"], "name": "feed", "topic": "orders"}
    plain = load_encoder(envelope, {**own, **({} if envelope == "upsert" else {"table": "orders"})})
    expected = plain.encode(batch).whole()
    assert records.keys is not None
    assert expected.keys is not None
    for framed, value in zip(
        [*records.whole_values().to_pylist(), *records.keys.to_pylist()],
        [*expected.whole_values().to_pylist(), *expected.keys.to_pylist()],
        strict=True,
    ):
        assert (framed is None) == (value is None)
        if framed is not None:
            assert checked(registry, framed) == json.loads(value)
    assert [subject for subject, _ in registry.schemas] == ["orders-value", "orders-key"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=5), min_size=1, max_size=4)
)
def test_columns_may_have_any_names(row: dict[str, str]) -> None:
    schema = pa.schema([(name, pa.string()) for name in row])
    for envelope in ENVELOPES:
        registry = MemoryRegistry()
        made = encoder(registry, envelope, key=list(row)[:1])
        for framed in made.encode(change_batch(schema, [row])).whole_values().to_pylist():
            checked(registry, framed)


def test_a_wrong_value_is_found() -> None:
    registry = MemoryRegistry()
    (framed,) = encoder(registry, "upsert").encode(
        change_batch(SMALL, [{"id": 1, "v": "a"}])
    ).whole_values().to_pylist()  # fmt: skip
    for wrong in (b'{"id":"1","v":"a"}', b'{"id":1,"v":"a","w":1}', b"null"):
        with pytest.raises(AssertionError):
            checked(registry, framed[:5] + wrong)


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("record", ["feed.orders.Value", "feed.orders.Key"]),
        ("topic_record", ["orders-feed.orders.Value", "orders-feed.orders.Key"]),
    ],
)
def test_subjects_are_named_by_the_strategy(strategy: str, subjects: list[str]) -> None:
    registry = MemoryRegistry()
    encoder(registry, "rows", subject_name_strategy=strategy).encode(all_types())
    assert [subject for subject, _ in registry.schemas] == subjects


def test_tombstones_follow_deletes() -> None:
    records = encoder(MemoryRegistry(), "rows", tombstones=True).encode(all_types())
    assert [value is None for value in records.whole_values().to_pylist()] == [
        False, False, True, False, False,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="leave 'tombstones' out"):
        encoder(MemoryRegistry(), "upsert", tombstones=True)
