"""The format `protobuf`: its records read by Google's library, and its schemas in registries."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pytest

from sinks.formats.binary_parts import varint_bytes
from sinks.formats.load import load_encoder
from sinks.formats.protobuf_schema import Field, find_clash
from sinks.formats.protobuf_text import parse_schema
from sinks.formats.protobuf_values import message_parts
from sinks.formats.registry import RegistryClient
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, SinkRejected, TargetRefused, TransientError
from tailer.sink.encoder import Encoder, Records
from tailer.testing.batches import change_batch
from tests.hostile.lies import lies_of
from tests.property.test_protobuf import as_read
from tests.sinks.formats import ROWS, SCHEMA, MemoryRegistry, all_types
from tests.support.link import running_link
from tests.support.protobuf import read_message
from tests.support.registry import Gateway, Registry
from tests.support.source import ROOT

Column = tuple[str, pa.DataType]
ID, TEXT = ("id", pa.int64()), ("v", pa.string())
real = pytest.mark.needs("registry")


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


def test_what_another_process_registers_meanwhile_comes_first() -> None:
    class Raced(MemoryRegistry):
        def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
            if not self.schemas:
                super().register(subject, schema.replace("= 1;", "= 9;"), kind=kind)
            return super().register(subject, schema, kind=kind)

    registry = Raced()
    first = encode_all(registry, [[ID, TEXT]])
    assert len(registry.schemas) == 2
    assert first[0][1][0][1:5] == (1).to_bytes(4, "big")
    assert encode_all(registry, [[ID, TEXT]]) == first


def test_a_schema_of_your_own_is_used_if_it_has_the_columns() -> None:
    registry = MemoryRegistry()
    own = """// ours
        syntax = "proto3"; package feed.orders;
        import "google/protobuf/timestamp.proto"; option java_package = "x;{}";
        message Value { optional string extra = 1 [deprecated = true]; /* ; */
          optional int64 id = 30;
          optional string _change_type = 4; optional int64 _commit_version = 5;
          .google.protobuf.Timestamp _commit_timestamp = 6; .feed.orders.L l = 7; }
        message L { repeated E element = 1; message E { optional string value = 3; } }"""
    registry.register("orders-value", own, kind="PROTOBUF")
    columns = [ID, ("l", pa.list_(pa.string()))]
    ((_, (value,)),) = encode_all(registry, [columns])
    assert len(registry.schemas) == 1
    found = read(registry, value)
    assert (found["id"], found["l"], found["extra"]) == (7, ["x", None], None)
    ((_, (value,)),) = encode_all(registry, [[*columns, TEXT]])
    assert read(registry, value)["v"] == "x"
    assert "L l = 7;\n  optional string v = 31; }\n" in registry.schemas[-1][1]


HEAD = 'syntax = "proto3"; package feed.orders; '


@pytest.mark.parametrize(
    "schema",
    [
        'syntax = "proto2"; package feed.orders; message Value { optional int64 id = 1; }',
        "package feed.orders; message Value { optional int64 id = 1; }",
        HEAD + "message Value { required int64 id = 1; }",
        HEAD + "message Value { optional int64 id = 010; }",
        HEAD + "message Value { optional int64 id = 0x10; }",
        HEAD + "message Value { optional group G = 2 { optional int32 id = 1; } }",
        HEAD + "message Value { reserved 1 to 07; }",
        HEAD + "message Value { optional string a = 1",
        HEAD + "message Value { optional string a = 1 }",
        HEAD + "enum A { B = 0; }",
        HEAD + "message Value " + "{ message A " * 3000 + "{}" + "}" * 3000,
        '{"type":"record","name":"V","fields":[]}',
        "",
    ],
)
def test_what_a_feed_can_t_extend_is_refused_by_name(schema: str) -> None:
    registry = MemoryRegistry()
    registry.register("orders-value", schema)
    kind = "AVRO" if schema.startswith("{") else "PROTOBUF"
    said = rf"^version 1 \({kind}\) of subject 'orders-value' is not one that a feed can"
    with pytest.raises(SinkRejected, match=said):
        encode_all(registry, [[ID]])
    assert len(registry.schemas) == 1


UPSERT = {"envelope": "upsert", "key": ["id"]}
OTHERS = """
  reserved 3, 10 to 11; reserved "old", 'older'; option deprecated = true;;
  enum Kind { NONE = 0; }
  oneof either { string x = 12; Kind y = 13; }
  map<string, feed.orders.Spare> labels = 14 [deprecated = true];
  string plain = 2; repeated Kind kinds = 4; Value parent = 15; google.protobuf.Any any = 16;
"""


@pytest.mark.parametrize("more", [*OTHERS.replace("to 11;", "to 11;;").split("\n"), OTHERS])
def test_what_no_column_has_may_be_there_and_stays(more: str) -> None:
    registry = MemoryRegistry()
    own = f"""// ours
        syntax = 'proto3'; import "google/protobuf/any.proto"; package feed.orders;
        option (x).y = {{ a: "}}" b {{ c: 1; }} }};
        message Value {{ optional int64 id = 9; {more} L l = 7; // the last
          message L {{ repeated E element = 1; message E {{ optional string value = 3; }}
          }} }}
        message Spare {{ optional int64 q = 1; }}"""
    registry.register("orders-value", own, kind="PROTOBUF")
    columns = [ID, ("l", pa.list_(pa.string()))]
    ((_, (value,)),) = encode_all(registry, [columns], **UPSERT)
    assert value[1:5] == (1).to_bytes(4, "big")
    with_more = [*columns, TEXT, ("at", pa.timestamp("us", "UTC")), ("s", struct(ID))]
    ((_, (value,)),) = encode_all(registry, [with_more], **UPSERT)
    text = registry.schemas[-1][1]
    last = next(n for n in (16, 13, 4, 14, 2, 9) if f" = {n};" in own or f" = {n} " in own)
    last = {16: 17, 13: 14, 14: 15}.get(last, 12 if "10 to 11" in more else 10)
    assert f"optional string v = {last};" in text
    assert f"google.protobuf.Timestamp at = {last + 1};" in text
    rest = iter(text)
    assert all(letter in rest for letter in own), "in this order"


def test_reserved_and_last_numbers_are_never_given() -> None:
    for body, columns, said in (
        ("reserved 2 to max;", [TEXT], "can't have the number 536870912 .* last one is taken"),
        ("optional bool b = 536870911;", [TEXT], "can't have the number 536870912"),
        ('reserved "v";', [TEXT], "'v' can't have the number 2 .*, which reserves it"),
        ("string v = 2;", [TEXT], "'v' is string, and plain string in an earlier schema"),
        ("oneof o { string v = 2; }", [TEXT], "'v' is string, and plain string in an"),
        ("optional string v_x = 2;", [("vX", pa.string())], "'v_x' and 'vX'"),
    ):
        registry = MemoryRegistry()
        registry.register(
            "orders-value", HEAD + f"message Value {{ optional int64 id = 1; {body} }}"
        )
        with pytest.raises(SinkRejected, match=said):
            encode_all(registry, [[ID, *columns]], **UPSERT)
        assert [subject for subject, _ in registry.schemas] == ["orders-value", "orders-key"]


def test_types_are_found_where_protobuf_finds_them() -> None:
    for name in (".feed.orders.E", ".feed.orders.Value.E", "E", "Value.E", "feed.orders.E"):
        registry = MemoryRegistry()
        own = f"""message Value {{ message E {{ optional string a = 3; }} optional int64 id = 1;
            {name} e = 2; }} message E {{ optional string a = 7; }}"""
        registry.register("orders-value", HEAD + own)
        ((_, (value,)),) = encode_all(registry, [[ID, ("e", struct(("a", pa.string())))]], **UPSERT)
        assert len(registry.schemas) == 2
        assert read(registry, value) == {"id": 7, "e": {"a": "x"}}


def test_messages_that_many_have_are_read_once() -> None:
    for make in ("M{} a = 1; M{} b = 2;", "M{} a = 1; M{} id = 2;"):
        messages = [f"message M{i} {{ {make.format(i + 1, i + 1)} }}" for i in range(40)]
        text = HEAD + "\n".join([*messages, "message M40 { optional string x = 1; }"])
        old, new = parse_schema(text), parse_schema(text)
        assert old is not None
        assert new is not None
        assert not find_clash(old.fields, new.fields)


def test_a_message_of_two_columns_gets_the_fields_of_both() -> None:
    registry = MemoryRegistry()
    own = "message Value { optional int64 id = 1; A a = 2; A b = 3; }"
    registry.register("orders-value", f"{HEAD}{own} message A {{ optional int64 id = 1; }}")
    columns = [ID, ("a", struct(ID, TEXT)), ("b", struct(ID, ("w", pa.bool_()), TEXT))]
    ((_, (value,)),) = encode_all(registry, [columns], **UPSERT)
    a = {"id": 7, "v": "x", "w": None}
    assert read(registry, value) == {"id": 7, "a": a, "b": {**a, "w": True}}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), "'v' is map, and array in an"),
        (pa.map_(pa.string(), pa.int64()), struct(ID), "'v' is struct, and map in an"),
        (struct(ID), pa.list_(pa.int64()), "'v' is array, and struct in an"),
        (pa.date32(), pa.timestamp("us"), "'v' is sfixed64, and sint32 in an"),
        (struct(TEXT), struct(("v", pa.bool_())), "'v.v' is bool, and string in an"),
        (pa.bool_(), pa.int64(), "'v' is int64, and bool in an"),
    ],
)
def test_a_column_of_another_kind_is_refused_before_it_is_registered(
    old: pa.DataType, new: pa.DataType, said: str
) -> None:
    registry = MemoryRegistry()
    encode_all(registry, [[ID, ("v", old)]])
    for tables in ([[ID, ("v", new)]], [[ID], [ID, ("v", new)]]):
        with pytest.raises(SinkRejected, match=said):
            encode_all(registry, tables)
        assert len(registry.schemas) == 1


def test_numbers_go_on_when_a_message_was_another_for_a_while() -> None:
    registry = MemoryRegistry()
    columns = [ID, ("a", pa.int64()), TEXT]
    encode_all(registry, [columns], **UPSERT)
    encode_all(registry, [columns], envelope="debezium", key=["id"])
    encode_all(registry, [[ID, TEXT, ("w", pa.bool_())]], **UPSERT)
    assert "v = 3;\n  optional bool w = 4;" in registry.schemas[-1][1]


def test_a_field_that_a_version_of_your_own_left_out_has_its_number_again() -> None:
    registry = MemoryRegistry()
    encode_all(registry, [[ID, ("a", pa.int64()), TEXT]], **UPSERT)
    registry.register("orders-value", HEAD + "message Value { optional int64 id = 1; }")
    encode_all(registry, [[ID, TEXT, ("w", pa.bool_())]], **UPSERT)
    assert "id = 1;\n  optional string v = 3;\n  optional bool w = 4;" in registry.schemas[-1][1]


RACED = [ID, ("b", pa.int64())]


class Raced(MemoryRegistry):
    """Another process registers a schema before that of :data:`RACED`."""

    raced = refuses = False

    def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
        if " b =" in schema and not self.raced:
            self.raced = True
            encode_all(self, [[ID, ("a", pa.int64())]], **UPSERT)
            if self.refuses:
                raise TargetRefused("it is incompatible")
        return super().register(subject, schema, kind=kind)


def test_two_that_register_at_once_never_use_one_number_twice() -> None:
    """Another process registers between the look at the versions and the schema."""
    registry = Raced()
    encode_all(registry, [[ID]], **UPSERT)
    made = encoder(registry, **UPSERT)
    said = r"version 4 .* contradicts version 3 \(the number 2 is a and b\)"
    with pytest.raises(TransientError, match=said):
        made.encode(batch_of(*RACED))
    (value,) = values(made.encode(batch_of(*RACED)))
    assert read(registry, value) == {"id": 7, "a": None, "b": 7}
    assert encode_all(registry, [RACED], **UPSERT)[0][1] == [value]
    assert len(registry.schemas) == 5


def test_a_schema_that_is_refused_as_another_was_faster_is_tried_again() -> None:
    registry = Raced()
    encode_all(registry, [[ID]], **UPSERT)
    registry.refuses = True
    made = encoder(registry, **UPSERT)
    with pytest.raises(TransientError, match="another process registered a schema of subject"):
        made.encode(batch_of(*RACED))
    (value,) = values(made.encode(batch_of(*RACED)))
    assert read(registry, value) == {"id": 7, "a": None, "b": 7}
    assert len(registry.schemas) == 4


def test_versions_that_contradict_each_other_are_named_if_nothing_else_helps() -> None:
    class Strict(MemoryRegistry):
        def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
            if len(self.schemas) == 3:
                raise TargetRefused("it is incompatible")
            return super().register(subject, schema, kind=kind)

    registry = Strict()
    encode_all(registry, [[ID, TEXT]], **UPSERT)
    registry.register("orders-value", registry.schemas[-1][1].replace(" v ", " w "))
    said = r"^it is incompatible; version 3 of subject 'orders-value' contradicts version 2 "
    with pytest.raises(SinkRejected, match=said):
        encode_all(registry, [[ID, ("w", pa.string())]], **UPSERT)


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


# The real registry


def fresh() -> str:
    return f"orders/{uuid4().hex[:8]} ü"


def backward(registry: Registry) -> RegistryClient:
    status, _ = registry.call("PUT", "/config", '{"compatibility":"BACKWARD"}')
    assert status == 200
    return RegistryClient(registry.url)


def schema_of(registry: Registry, value: bytes) -> str:
    status, answer = registry.call("GET", f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")
    assert status == 200
    return str(json.loads(answer)["schema"])


@pytest.mark.java
@real
@pytest.mark.parametrize("name", HISTORIES)
def test_a_registry_takes_every_table_s_history(registry: Registry, name: str) -> None:
    client, topic, tables = backward(registry), fresh(), HISTORIES[name]
    options = {"topic": topic, "key": [tables[0][0][0]]} if name != "renamed" else {"topic": topic}
    kept = [columns for columns in tables if not options.get("key") or tables[0][0] in columns]
    first = encode_all(client, kept, **options)
    assert encode_all(RegistryClient(registry.url), kept, **options) == first
    looking = RegistryClient(registry.url, auto_register=False)
    assert encode_all(looking, kept, **options) == first
    for columns, (_, (value,)) in zip(kept, first, strict=True):
        found = read_message(schema_of(registry, value), value[6:])
        assert all(found[column] is not None for column, _ in columns)
    path = f"/subjects/{quote(topic + '-value', safe='')}/versions"
    assert len(json.loads(registry.call("GET", path)[1])) <= len(tables)


@pytest.mark.java
@real
@pytest.mark.parametrize("envelope", ["rows", "debezium", "upsert"])
def test_every_type_has_a_schema_that_a_registry_takes(registry: Registry, envelope: str) -> None:
    options = {"topic": fresh(), "key": ["id", "date"], "envelope": envelope, "table": "1 t"}
    batch = all_types(paired=envelope != "rows")
    records = encoder(backward(registry), **options).encode(batch)
    value = values(records)[0]
    assert read_message(schema_of(registry, value), value[6:])


@pytest.mark.java
@real
@pytest.mark.parametrize(
    "other", [pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), struct(ID)], ids=str
)
def test_a_column_of_another_type_is_refused_by_name(
    registry: Registry, other: pa.DataType
) -> None:
    made = encoder(backward(registry), topic=fresh())
    made.encode(batch_of(ID, ("v", pa.int64())))
    for _ in range(2):
        with pytest.raises(SinkRejected, match=r"'v' is .*, and int64 in an earlier"):
            made.encode(batch_of(ID, ("v", other)))
    assert made.encode(batch_of(ID)).num_records == 1


@pytest.mark.java
@real
def test_a_registry_takes_your_own_schema_with_more_columns(registry: Registry) -> None:
    client, topic = backward(registry), fresh()
    own = f"""// ours
        syntax = "proto3"; package feed.orders; import "google/protobuf/any.proto";
        message Value {{ {OTHERS} optional int64 id = 9; L l = 7;
          message L {{ repeated E element = 1; message E {{ optional string value = 3; }} }} }}
        message Spare {{ optional int64 q = 1; }}"""
    assert client.register(f"{topic}-value", own, kind="PROTOBUF")
    columns = [ID, ("l", pa.list_(struct(("value", pa.string())))), TEXT, ("s", struct(ID))]
    with pytest.raises(SinkRejected, match=r"'l\.element\.value' is struct, and string"):
        encode_all(client, [columns], topic=topic, **UPSERT)
    columns[1] = ("l", pa.list_(pa.string()))
    ((_, (value,)),) = encode_all(client, [columns], topic=topic, **UPSERT)
    assert " v = 17;" in schema_of(registry, value)
    assert client.list_versions(f"{topic}-value") == [1, 2]


@pytest.mark.java
@real
def test_a_date_does_not_become_a_time_unseen(registry: Registry) -> None:
    made = encoder(backward(registry), topic=fresh())
    made.encode(batch_of(("v", pa.date32())))
    with pytest.raises(SinkRejected, match="'v' is sfixed64, and sint32 in an earlier"):
        made.encode(batch_of(("v", pa.timestamp("us"))))


@pytest.mark.java
@real
def test_without_auto_register_nothing_is_registered(registry: Registry) -> None:
    client, topic = RegistryClient(registry.url, auto_register=False), fresh()
    for _ in range(2):
        with pytest.raises(SinkRejected, match="auto_register is off; register it first"):
            encode_all(client, [[ID]], topic=topic)


@pytest.mark.java
@real
def test_versions_that_nobody_shows_are_waited_for(registry: Registry) -> None:
    with Gateway(registry, "Bearer t") as gateway:  # it lets no GET pass
        client = RegistryClient(gateway.url, "Bearer t")
        with pytest.raises(TransientError, match=r"schema registry at .* answers with status 501"):
            encode_all(client, [[ID]], topic=fresh())


@pytest.mark.java
@real
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("silence", r"does not answer \(no whole answer in 1 s\)"),
        ("half an answer", r"does not answer \(it ended the connection\)"),
        ("chunks without end", "too large an answer"),
        ("403 with a page", "status 403, without a registry's message; .*, its credentials"),
        ("an id of 2^40", "status 200, without an id"),
    ],
)
def test_what_no_registry_answers_may_heal(registry: Registry, lie: str, said: str) -> None:
    topic = fresh()
    first = encode_all(backward(registry), [[ID]], topic=topic)
    with running_link(registry.port) as link:
        url = registry.url.replace(str(registry.port), str(link.port))
        client = RegistryClient(url, timeout_s=1 if "no whole answer" in said else 100)
        link.answer_by(lies_of("registry")[lie])
        with pytest.raises(TransientError, match=said):
            client.list_versions(f"{topic}-value")
        with pytest.raises(TransientError, match=said):
            client.read_version(f"{topic}-value", 1)
        with pytest.raises(TransientError, match=said):
            encode_all(client, [[ID]], topic=topic)
        link.heal()
        assert encode_all(client, [[ID]], topic=topic) == first


@pytest.mark.java
@real
@pytest.mark.parametrize("error", [40401, 40402])
def test_a_version_that_is_gone_is_looked_for_again(registry: Registry, error: int) -> None:
    client, topic = backward(registry), fresh()
    encode_all(client, [[ID]], topic=topic)
    gone = f"{topic}-value" if error == 40402 else fresh()
    with pytest.raises(TransientError, match=r"lists version 99 of '.*' without it"):
        client.read_version(gone, 99)
    assert client.list_versions(fresh()) == []


@pytest.mark.java
@real
@pytest.mark.parametrize(
    ("part", "answer", "said"),
    [
        ("/versions/1", {"subject": "another"}, "version 1 of 'another' for version 1 of"),
        ("/versions/1", {"version": 2}, "answers with version 2 of"),
        ("/versions/1", {"id": 987_654_321}, "the id 987654321, under which it has no schema"),
        ("/versions/1", {"schema": "message A { }"}, "under which it has another schema"),
        ("/versions/1", {"schemaType": "AVRO"}, "under which it has another schema"),
        ("/versions/1", {"id": 0}, "status 200, without an id"),
        ("/schemas/ids/", {"schema": "message A { }"}, "under which it has another schema"),
    ],
)
def test_a_version_is_believed_if_its_id_has_it(
    registry: Registry, part: str, answer: dict[str, Any], said: str
) -> None:
    """Behind a proxy that answers with others for a while; nothing of that is kept."""
    topic = fresh()
    first = encode_all(backward(registry), [[ID]], topic=topic)
    lies = dict(answer)

    class Proxied(RegistryClient):
        def _ask_registry(self, method: str, path: str, body: Any = None) -> Any:
            found = super()._ask_registry(method, path, body)
            if part in path:
                found.document.update(lies)
            return found

    made = encoder(Proxied(registry.url), topic=topic)
    for _ in range(2):
        with pytest.raises(TransientError, match=said):
            made.encode(batch_of(ID))
    lies.clear()
    assert values(made.encode(batch_of(ID))) == first[0][1]


@pytest.mark.java
@real
def test_a_subject_of_another_kind_is_said_so(registry: Registry) -> None:
    client, topic = backward(registry), fresh()
    assert client.register(f"{topic}-value", '"string"')
    with pytest.raises(SinkRejected, match=r"^version 1 \(AVRO\) of subject .* can extend"):
        encode_all(client, [[ID]], topic=topic)
