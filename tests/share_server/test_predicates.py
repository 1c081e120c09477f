from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.actions import Metadata, Protocol
from tailer.delta.predicates import FileFacts
from tailer.delta.snapshot import TableState
from tailer.share_server.hints import parse_hints, parse_json_hint
from tailer.testing.table import delta_schema

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(30, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("region", pa.string()),
    ]
)


def state(partitions: tuple[str, ...] = ("region",)) -> TableState:
    metadata = Metadata("t", delta_schema(SCHEMA), partitions, {})
    return TableState.from_actions(Protocol(1, 2), metadata)


def facts(
    low: Any = None, high: Any = None, nulls: Any = None, records: int = 10, **more: Any
) -> FileFacts:
    stats = {
        "numRecords": records,
        "minValues": low or {},
        "maxValues": high or {},
        "nullCount": nulls or {},
    }
    action = {"path": "f", "partitionValues": {"region": "eu"}, "stats": json.dumps(stats)}
    return FileFacts(state(), action | more)


OPS = {"=": "equal", "<": "lessThan", "<=": "lessThanOrEqual", ">": "greaterThan",
       ">=": "greaterThanOrEqual"}  # fmt: skip
TYPES = {"id": "long", "small": "int", "price": "double", "at": "timestamp", "day": "date"}


def compare(name: str, sign: str, value: str, value_type: str = "") -> dict[str, Any]:
    kind = value_type or TYPES.get(name.lower(), "string")
    column = {"op": "column", "name": name, "valueType": kind}
    literal = {"op": "literal", "value": value, "valueType": kind}
    return {"op": OPS[sign], "children": [column, literal]}


def null_check(name: str) -> dict[str, Any]:
    column = {"op": "column", "name": name, "valueType": TYPES.get(name.lower(), "string")}
    return {"op": "isNull", "children": [column]}


def of_children(op: str, *children: Any) -> dict[str, Any]:
    return {"op": op, "children": list(children)}


def may_match(tree: Any, of: FileFacts) -> bool:
    node = parse_json_hint(tree)
    assert node is not None, "not understood"
    return of.evaluate(node).true


IDS = facts({"id": 10}, {"id": 20}, {"id": 0})


@pytest.mark.parametrize(
    ("name", "sign", "value", "may"),
    [
        ("id", "=", "9", False), ("id", "=", "10", True), ("id", "=", "20", True),
        ("id", "=", "21", False), ("id", "<", "10", False), ("id", "<", "11", True),
        ("id", "<=", "9", False), ("id", "<=", "10", True), ("id", ">", "20", False),
        ("id", ">", "19", True), ("ID", ">=", "21", False), ("id", ">=", "20", True),
        ("region", "=", "us", False), ("REGION", "=", "eu", True), ("region", ">", "et", True),
    ],
)  # fmt: skip
def test_files_that_cannot_match_are_left_out(
    name: str, sign: str, value: str, *, may: bool
) -> None:
    assert may_match(compare(name, sign, value), IDS) is may
    assert may_match(compare(name, sign, value, "date"), IDS), "a type that the column has not"


def test_a_literal_may_come_first() -> None:
    tree = compare("id", ">", "9")
    tree["children"].reverse()  # 9 > id
    assert not may_match(tree, IDS)


def test_a_day_that_python_does_not_have_filters_nothing() -> None:
    action = {"path": "f", "partitionValues": {"day": "+12020-02-29"}}
    assert may_match(compare("day", "=", "2020-01-01"), FileFacts(state(("day",)), action))


def test_a_bound_that_may_be_cut_is_a_prefix() -> None:
    cut = "z" * 32
    of = facts({"name": "a" * 32}, {"name": cut})
    assert may_match(compare("name", "=", f"{cut}zzz"), of)
    assert may_match(compare("name", ">", cut), of)
    assert may_match(compare("name", ">=", f"{cut}y"), of)
    assert not may_match(compare("name", "=", "~"), of)
    assert not may_match(compare("name", "<", "a"), of)


def test_a_timestamp_bound_may_be_cut_by_a_millisecond() -> None:
    of = facts({"at": "2020-01-01T00:00:00.000Z"}, {"at": "2020-01-01T00:00:01.000Z"})
    assert may_match(compare("at", ">", "2020-01-01T00:00:01.0005Z"), of)
    assert not may_match(compare("at", ">", "2020-01-01T00:00:01.002Z"), of)
    assert may_match(compare("at", ">", "2020-01-01T01:00:00+01:00"), of)


def test_nan_is_greater_than_every_bound() -> None:
    of = facts({"price": 1.0}, {"price": 2.0})
    assert may_match(compare("price", ">", "100"), of)
    assert may_match(of_children("not", compare("price", "<", "100")), of)
    assert not may_match(compare("price", "<", "1"), of)
    assert not may_match(compare("price", "=", "3"), of)


@pytest.mark.parametrize(
    ("nulls", "is_null", "is_not_null", "compares"),
    [
        (0, False, True, True),
        (10, True, False, False),
        (4, True, True, True),
        (None, True, True, True),
    ],
)
def test_a_null_count_proves_something_at_its_ends_alone(
    nulls: int | None, *, is_null: bool, is_not_null: bool, compares: bool
) -> None:
    of = facts(nulls={"id": nulls})
    assert may_match(null_check("id"), of) is is_null
    assert may_match(of_children("not", null_check("id")), of) is is_not_null
    assert may_match(compare("id", "=", "1"), of) is compares
    assert may_match(of_children("not", compare("id", "=", "1")), of) is compares


@pytest.mark.parametrize("stats", ["", "{", "[]", '{"minValues": 3}', '{"minValues":{"id":"x"}}'])
def test_statistics_that_cannot_be_read_prove_nothing(stats: str) -> None:
    of = FileFacts(state(), {"path": "f", "partitionValues": {"region": "eu"}, "stats": stats})
    assert may_match(compare("id", "=", "5"), of)


def test_a_partition_value_that_the_action_lacks_proves_nothing() -> None:
    assert may_match(
        compare("region", "=", "us"), FileFacts(state(), {"path": "f", "partitionValues": {}})
    )


def test_a_null_partition_matches_no_comparison() -> None:
    of = FileFacts(state(), {"path": "f", "partitionValues": {"region": None}})
    assert not may_match(compare("region", "=", "eu"), of)
    assert not may_match(of_children("not", compare("region", "=", "eu")), of)
    assert may_match(null_check("region"), of)


@pytest.mark.parametrize(
    ("tree", "may"),
    [
        (compare("id", "=", "9", "int"), True),  # the column would have to be cast: narrower
        (compare("region", "=", "9", "int"), True),
        (of_children("not", compare("region", "=", "eu")), False),
        (null_check("id"), False),
        (of_children("and", compare("id", "=", "12"), compare("region", "=", "us")), False),
        (of_children("or", compare("id", "=", "12"), compare("region", "=", "us")), True),
    ],
)
def test_json_predicates(tree: dict[str, Any], *, may: bool) -> None:
    for form in (tree, json.dumps(tree)):
        assert may_match(form, IDS) is may


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.sampled_from(["equal", "and", "not", "isNull", "column", "literal", "long", "id"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["op", "children", "name", "value", "valueType"]), inner, max_size=5
    ),
)  # fmt: skip


@given(JSON, JSON)
def test_no_hint_is_an_error(tree: Any, sql: Any) -> None:
    hints = parse_hints(sql, tree).for_columns({"id", "long"})
    if hints.tree is not None:
        IDS.evaluate(hints.tree)


COLUMNS = st.sampled_from(["id", "small", "ID"])
NUMBERS = st.integers(-9, 9).map(str)
LEAVES = st.builds(compare, COLUMNS, st.sampled_from(list(OPS)), NUMBERS) | st.builds(
    null_check, COLUMNS
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(of_children, st.sampled_from(["and", "or"]), inner, inner)
        | st.builds(of_children, st.just("not"), inner)
    ),
    max_leaves=6,
)


def value_of(node: Any, row: dict[str, Any]) -> bool | None:
    """What a predicate is for one row: SQL's three values, by the book."""
    name = type(node).__name__
    if name == "IsNull":
        return bool(row[node.column.lower()] is None)
    if name == "ColumnComparison":
        value = row[node.column.lower()]
        if value is None:
            return None
        one, other = value, int(node.literals[0].text)
        holds = {
            "=": one == other, "<": one < other, "<=": one <= other,
            ">": one > other, ">=": one >= other,
        }  # fmt: skip
        return bool(holds[node.op])
    if name == "Not":
        inner = value_of(node.child, row)
        return None if inner is None else not inner
    each = [value_of(child, row) for child in node.children]
    decisive = name == "Or"
    if decisive in each:
        return decisive
    return None if None in each else not decisive


@given(
    EXPRESSIONS,
    st.lists(
        st.fixed_dictionaries(
            {c: st.none() | st.integers(-9, 9) for c in ("id", "small")}
        ),
        min_size=1, max_size=5,
    ),
)  # fmt: skip
def test_no_file_with_a_row_that_matches_is_left_out(
    tree: dict[str, Any], rows: list[dict[str, int | None]]
) -> None:
    node = parse_json_hint(tree)
    assert node is not None
    present = {c: [r[c] for r in rows if r[c] is not None] for c in ("id", "small")}
    low = {c: min(v) for c, v in present.items() if v}  # type: ignore[type-var]  # None is left out
    high = {c: max(v) for c, v in present.items() if v}  # type: ignore[type-var]  # None is left out
    nulls = {c: len(rows) - len(v) for c, v in present.items()}
    may = facts(low, high, nulls, len(rows)).evaluate(node)
    found = {value_of(node, row) for row in rows}
    assert may.true or True not in found
    assert may.false or False not in found
    assert may.null or None not in found
