"""The format `protobuf`: its records read by Google's library."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

from sinks.formats.binary_parts import varint_bytes
from sinks.formats.load import load_encoder
from sinks.formats.protobuf_schema import Field
from sinks.formats.protobuf_values import message_parts
from tailer.errors import ConfigError, SinkRejected
from tests.property.test_protobuf import as_read
from tests.sinks.formats import ROWS, MemoryRegistry, all_types
from tests.sinks.protobuf_tables import (
    HISTORIES,
    ID,
    TEXT,
    Column,
    assert_has,
    batch_of,
    encode_all,
    encoder,
    expected,
    read,
    same,
    struct,
    values,
)
from tests.support.protobuf import read_message
from tests.support.source import ROOT


def test_rows_are_read_back_by_another_library() -> None:
    registry = MemoryRegistry()
    records = encoder(registry, key=["id", "money"]).encode(all_types())
    for value, row in zip(values(records), ROWS, strict=True):
        found = read(registry, value)
        assert found.pop("_commit_version") == 7
        assert found.pop("_commit_timestamp") == 1_767_225_600_000_000
        assert found.pop("_change_type")
        assert same(found, expected(row))
    assert records.keys is not None
    assert [read(registry, key) for key in records.keys.to_pylist()] == [
        {"id": row["id"], "money": expected(row)["money"]} for row in ROWS
    ]
    assert [subject for subject, _ in registry.schemas] == ["orders-key", "orders-value"]
    assert dict(records.whole_headers())["_schema_id"] == b"2"


def test_envelopes_say_what_those_of_json_say() -> None:
    for snapshot in (False, True):
        registry, batch = MemoryRegistry(), all_types(paired=not snapshot, snapshot=snapshot)
        records = encoder(registry, envelope="debezium").encode(batch)
        plain = load_encoder("debezium", {"name": "feed", "table": "orders"}).encode(batch)
        for value, text in zip(values(records), values(plain), strict=True):
            event, other = read(registry, value), json.loads(text)
            for image in ("before", "after"):
                if other[image] is None:
                    assert event[image] is None
                else:
                    (row,) = [row for row in ROWS if row["id"] == other[image]["id"]]
                    assert same(event[image], expected(row))
            for part in ("source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"):
                assert event[part] == other[part], part


def test_upserts_are_rows_and_tombstones() -> None:
    registry = MemoryRegistry()
    made = encoder(registry, envelope="upsert", key=["id"])
    records = made.encode(all_types(paired=True))
    rows = [None if value is None else read(registry, value) for value in values(records)]
    assert rows[1] is None
    assert same(rows[0] or {}, expected(ROWS[0]))
    assert same(rows[2] or {}, expected(ROWS[3]))
    with pytest.raises(ConfigError, match="upserts need a key"):
        encoder(registry, envelope="upsert")


def test_tombstones_follow_deletes() -> None:
    records = encoder(MemoryRegistry(), key=["id"], tombstones=True).encode(all_types())
    assert [value is None for value in values(records)] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("topic", ["orders-key", "orders-value"]),
        ("record", ["feed.orders.Key", "feed.orders.{}"]),
        ("topic_record", ["orders-feed.orders.Key", "orders-feed.orders.{}"]),
    ],
)
@pytest.mark.parametrize("envelope", ["rows", "debezium", "upsert"])
def test_subjects_are_named_by_the_strategy(
    strategy: str, subjects: list[str], envelope: str
) -> None:
    registry = MemoryRegistry()
    options = {"subject_name_strategy": strategy, "envelope": envelope, "key": ["id"]}
    encoder(registry, **options).encode(all_types(paired=envelope != "rows"))
    message = "Envelope" if envelope == "debezium" else "Value"
    found = [subject for subject, _ in registry.schemas]
    assert found == [subject.format(message) for subject in subjects]


@pytest.mark.parametrize("envelope", ["rows", "debezium"])
@pytest.mark.parametrize("name", HISTORIES)
def test_a_replay_has_the_same_ids_and_bytes(name: str, envelope: str) -> None:
    registry, tables = MemoryRegistry(), HISTORIES[name]
    first = encode_all(registry, tables, envelope=envelope)
    known = list(registry.schemas)
    assert encode_all(registry, tables, envelope=envelope) == first, "another process"
    for i, columns in enumerate(tables):
        assert encode_all(registry, [columns], envelope=envelope) == [first[i]], "one batch of it"
    assert registry.schemas == known, "it registers nothing"
    for columns, (_, (value,)) in zip(tables, first, strict=True):
        event = read(registry, value)
        found = event["after"] if envelope == "debezium" else event
        row = batch_of(*columns).rows.to_pylist()[0]
        for column, kind in columns:
            assert_has(found[column], as_read(row[column], kind))


def test_a_value_is_read_alike_with_every_later_schema() -> None:
    for tables in HISTORIES.values():
        registry = MemoryRegistry()
        found = encode_all(registry, tables)
        _, newest = registry.schemas[-1]
        for columns, (_, (value,)) in zip(tables, found, strict=True):
            row = read_message(newest, value[6:])
            own = read(registry, value)
            for name, _ in columns:
                assert_has(row[name], own[name])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("a b", pa.int64()), ("a-b", pa.int64())], "'a b' and 'a-b'"),
        ([("userId", pa.int64()), ("user_id", pa.int64())], "'userId' and 'user_id'"),
        ([("-change_type", pa.int64())], "'-change_type' and '_change_type'"),
        ([("s", struct(("x y", pa.int8()), ("x_y", pa.int8())))], r"'s\.x y' and 's\.x_y'"),
    ],
)
def test_columns_that_protobuf_can_t_tell_apart_are_named(columns: list[Column], said: str) -> None:
    with pytest.raises(SinkRejected, match=said):
        encode_all(MemoryRegistry(), [columns])


def test_a_name_of_an_earlier_version_is_kept_apart_too() -> None:
    registry = MemoryRegistry()
    with pytest.raises(SinkRejected, match="'userId' and 'user_id', of this or an earlier schema"):
        encode_all(registry, [[("userId", pa.int64())], [("user_id", pa.int64())]])


def test_other_names_become_those_of_protobuf() -> None:
    registry = MemoryRegistry()
    columns = [("a b", pa.int64()), ("1", pa.int64()), ("message", pa.int64()), ("ü", struct(ID))]
    ((_, (value,)),) = encode_all(registry, [columns])
    found = read(registry, value)
    assert {n: found[n] for n in ("a_b", "_1", "message", "_")} == {
        "a_b": 7, "_1": 7, "message": 7, "_": {"id": 7},
    }  # fmt: skip


def test_messages_of_the_same_name_are_not_one() -> None:
    """A column in a column, and one whose name is both of theirs."""
    first = [ID, ("a", struct(("b", struct(ID)))), ("a_0_b", struct(("y", pa.int64())))]
    second = [*first[:2], ("a_0_b", struct(("y", pa.int64()), ("z", pa.int64())))]
    registry = MemoryRegistry()
    _, (_, (value,)) = encode_all(registry, [first, second])
    assert read(registry, value)["a_0_b"] == {"y": 7, "z": 7}


def test_a_column_without_a_field_is_never_left_out() -> None:
    columns = [("a", pa.array([1])), ("void", pa.nulls(1))]
    assert message_parts({"a": Field("int64", number=1)}, columns) == [b"\x08", b"\x01"]
    with pytest.raises(KeyError, match="b"):
        message_parts({"a": Field("int64", number=1)}, [("b", pa.array([1]))])


def test_the_page_shows_a_schema_as_it_is() -> None:
    registry = MemoryRegistry()
    columns = [ID, ("price", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC"))]
    batch = batch_of(*columns, ("tags", pa.list_(pa.string())))
    encoder(registry, envelope="upsert", key=["id"]).encode(batch)
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert f"```\n{registry.schemas[-1][1]}```\n" in page


def test_the_bytes_of_a_row() -> None:
    """The wire format, by hand: a number's tag, and values behind it."""
    columns = [ID, TEXT, ("d", pa.date32()), ("l", pa.list_(pa.string()))]
    batch = batch_of(*columns)
    (value,) = values(encoder(MemoryRegistry(), envelope="upsert", key=["id"]).encode(batch))
    days = varint_bytes(2 * (dt.date(2024, 1, 31) - dt.date(1970, 1, 1)).days)
    assert value == b"".join(
        [
            b"\x00\x00\x00\x00\x02\x00",
            b"\x08\x07",
            b"\x12\x01x",
            b"\x18" + days,
            b"\x22\x07" + b"\x0a\x03\x0a\x01x" + b"\x0a\x00",
        ]
    )
