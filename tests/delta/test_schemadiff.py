"""What changed between two schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailer.delta.schema import parse_schema
from tailer.delta.schemadiff import compare_schemas, format_type
from tailer.delta.types import StructType


def schema(*fields: tuple[Any, ...]) -> StructType:
    """Fields are (name, type[, nullable[, id]])."""
    made = []
    for name, kind, *more in fields:
        metadata = {"delta.columnMapping.id": more[1]} if len(more) > 1 else {}
        nullable = more[0] if more else True
        made.append({"name": name, "type": kind, "nullable": nullable, "metadata": metadata})
    return parse_schema(json.dumps({"type": "struct", "fields": made}))


def struct(**fields: str) -> dict[str, Any]:
    made = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields.items()]
    return {"type": "struct", "fields": made}


def found(old: StructType, new: StructType) -> dict[str, list[object]]:
    return {k: v for k, v in compare_schemas(old, new).to_json().items() if v}


def test_equal_schemas_differ_in_nothing() -> None:
    one = schema(("a", "long"), ("b", struct(x="string")))
    assert not compare_schemas(one, one)
    assert not compare_schemas(one, schema(("b", struct(x="string")), ("a", "long"))), "order"


def test_without_ids_a_renamed_column_went_and_came() -> None:
    assert found(schema(("a", "long")), schema(("b", "long"))) == {"added": ["b"], "dropped": ["a"]}


def test_with_ids_it_was_renamed() -> None:
    old, new = schema(("a", "long", True, 1)), schema(("b", "long", True, 1))
    assert found(old, new) == {"renamed": [["a", "b"]]}
    again = schema(("a", "long", True, 2))
    assert found(old, again) == {"added": ["a"], "dropped": ["a"]}, "dropped and made anew"


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("byte", "long", "widened"),
        ("integer", "double", "widened"),
        ("long", "double", "changed"),
        ("long", "integer", "changed"),
        ("float", "double", "widened"),
        ("date", "timestamp_ntz", "widened"),
        ("date", "timestamp", "changed"),
        ("decimal(5,2)", "decimal(7,4)", "widened"),
        ("decimal(5,2)", "decimal(6,4)", "changed"),
        ("integer", "decimal(10,0)", "widened"),
        ("integer", "decimal(10,1)", "changed"),
        ("long", "decimal(20,0)", "widened"),
        ("string", "long", "changed"),
    ],
)
def test_a_type_that_holds_all_old_values_is_wider(old: str, new: str, kind: str) -> None:
    assert found(schema(("a", old)), schema(("a", new))) == {kind: [["a", old, new]]}


def test_nested_columns_go_by_their_path() -> None:
    array = {"type": "array", "elementType": struct(x="integer"), "containsNull": True}
    wider = {"type": "array", "elementType": struct(x="long", y="string"), "containsNull": True}
    old = schema(("a", array), ("s", struct(p="date")))
    new = schema(("a", wider), ("s", struct()))
    assert found(old, new) == {
        "added": ["a.element.y"],
        "dropped": ["s.p"],
        "widened": [["a.element.x", "integer", "long"]],
    }


def test_a_column_that_may_be_null_now_has_changed() -> None:
    assert found(schema(("a", "long", False)), schema(("a", "long", True))) == {
        "changed": [["a", "long not null", "long"]]
    }


def test_types_are_named_as_sql_does() -> None:
    tags = {"type": "map", "keyType": "string", "valueType": struct(x="long"),
            "valueContainsNull": True}  # fmt: skip
    (field,) = schema(("a", tags))
    assert format_type(field.type) == "map<string,struct<x:long>>"
