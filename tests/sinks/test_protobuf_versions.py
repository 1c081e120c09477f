"""The versions of a Protobuf schema: which rows are written by, and how they are extended."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sinks.formats.protobuf_schema import find_clash
from sinks.formats.protobuf_text import parse_schema
from tailer.errors import SinkRejected, TargetRefused, TransientError
from tests.sinks.formats import MemoryRegistry
from tests.sinks.protobuf_tables import (
    HEAD,
    ID,
    OTHERS,
    TEXT,
    UPSERT,
    batch_of,
    encode_all,
    encoder,
    read,
    struct,
    values,
)


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
