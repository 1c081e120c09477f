from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.actions import Metadata, Protocol
from tailer.delta.snapshot import TableState
from tailer.share_server.hints import parse_hints, parse_json_hint, parse_sql_hint
from tailer.share_server.predicates import FileFacts
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
    return TableState.of(Protocol(1, 2), metadata)


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


def may_match(text: str, of: FileFacts) -> bool:
    node = parse_sql_hint(text)
    assert node is not None, "not understood"
    return of.may(node).true


IDS = facts({"id": 10}, {"id": 20}, {"id": 0})


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("id = 9", False), ("id = 10", True), ("id = 20", True), ("id = 21", False),
        ("id < 10", False), ("id < 11", True), ("id <= 9", False), ("id <= 10", True),
        ("id > 20", False), ("id > 19", True), ("id >= 21", False), ("id >= 20", True),
        ("id <> 15", True), ("15 < id", True), ("21 <= id", False), ("9 >= ID", False),
        ("id = 9 OR id = 15", True), ("id = 9 AND id = 15", False), ("NOT id >= 10", False),
        ("NOT (id = 9)", True), ("id IN (1, 2)", False), ("id IN (1, 12)", True),
        ("id IS NULL", False), ("id IS NOT NULL", True), ("id < 10.5", True), ("id < 9.5", False),
        ("region = 'us'", False), ("region = 'eu'", True), ("region <> 'eu'", False),
        ("region IS NULL", False), ("`id` = 9", False), ("REGION > 'et' AND id = 12", True),
    ],
)  # fmt: skip
def test_files_that_cannot_match_are_left_out(text: str, *, may: bool) -> None:
    assert may_match(text, IDS) is may


@pytest.mark.parametrize(
    "text",
    [
        "", "id", "id =", "id = 'x'", "id LIKE 'a%'", "upper(name) = 'A'", "id + 1 = 2", "((id = 9",
        "id = 9 extra", "name = 'it''s'", r"name = 'a\'b'", 'name = "quoted"', "unknown = 1",
        "id <=> 9", "id = NULL", "name = 5", "id = id", "region = 5", "name = DATE '2020-01-01'",
        "day = TIMESTAMP '2020-01-01 00:00:00'", "at > '2020-01-01 00:00:00'", "1 = 2",
        "(" * 500 + "id = 9" + ")" * 500,
    ],
)  # fmt: skip
def test_what_is_not_understood_filters_nothing(text: str) -> None:
    node = parse_sql_hint(text)
    assert node is None or IDS.may(node).true


def test_a_day_that_python_does_not_have_filters_nothing() -> None:
    action = {"path": "f", "partitionValues": {"day": "+12020-02-29"}}
    assert may_match("day = DATE '2020-01-01'", FileFacts(state(("day",)), action))


def test_a_bound_that_may_be_cut_is_a_prefix() -> None:
    cut = "z" * 32
    of = facts({"name": "a" * 32}, {"name": cut})
    assert may_match(f"name = '{cut}zzz'", of)
    assert may_match(f"name > '{cut}'", of)
    assert may_match(f"name >= '{cut}y'", of)
    assert not may_match("name = '~'", of)
    assert not may_match("name < 'a'", of)


def test_a_timestamp_bound_may_be_cut_by_a_millisecond() -> None:
    of = facts({"at": "2020-01-01T00:00:00.000Z"}, {"at": "2020-01-01T00:00:01.000Z"})
    assert may_match("at > '2020-01-01T00:00:01.0005Z'", of)
    assert not may_match("at > '2020-01-01T00:00:01.002Z'", of)
    assert may_match("at > '2020-01-01T01:00:00+01:00'", of)


def test_nan_is_greater_than_every_bound() -> None:
    of = facts({"price": 1.0}, {"price": 2.0})
    assert may_match("price > 100", of)
    assert may_match("NOT price < 100", of)
    assert not may_match("price < 1", of)
    assert not may_match("price = 3", of)


def test_decimals_that_writers_round_prove_nothing() -> None:
    bounds = {"wide": 1.25, "amount": 1.25}
    of = facts(bounds, bounds)
    assert not may_match("amount = 2.50", of)
    assert may_match("wide = 2.50", of)


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
    assert may_match("id IS NULL", of) is is_null
    assert may_match("id IS NOT NULL", of) is is_not_null
    assert may_match("id = 1", of) is compares
    assert may_match("NOT id = 1", of) is compares


@pytest.mark.parametrize("stats", ["", "{", "[]", '{"minValues": 3}', '{"minValues":{"id":"x"}}'])
def test_statistics_that_cannot_be_read_prove_nothing(stats: str) -> None:
    of = FileFacts(state(), {"path": "f", "partitionValues": {"region": "eu"}, "stats": stats})
    assert may_match("id = 5", of)


def test_a_partition_value_that_the_action_lacks_proves_nothing() -> None:
    assert may_match("region = 'us'", FileFacts(state(), {"path": "f", "partitionValues": {}}))


def test_a_null_partition_matches_no_comparison() -> None:
    of = FileFacts(state(), {"path": "f", "partitionValues": {"region": None}})
    assert not may_match("region = 'eu'", of)
    assert not may_match("NOT region = 'eu'", of)
    assert may_match("region IS NULL", of)


def leaf(op: str, **fields: str) -> dict[str, Any]:
    return {"op": op, **fields}


def compare(op: str, name: str, value: str, value_type: str) -> dict[str, Any]:
    column = leaf("column", name=name, valueType=value_type)
    return {"op": op, "children": [column, leaf("literal", value=value, valueType=value_type)]}


@pytest.mark.parametrize(
    ("tree", "may"),
    [
        (compare("equal", "id", "9", "long"), False),
        (compare("equal", "id", "12", "long"), True),
        (compare("lessThan", "id", "10", "long"), False),
        (compare("greaterThanOrEqual", "id", "20", "long"), True),
        (compare("equal", "region", "us", "string"), False),
        (compare("equal", "id", "9", "int"), True),  # the column would have to be cast: narrower
        (compare("equal", "region", "9", "int"), True),
        ({"op": "not", "children": [compare("equal", "region", "eu", "string")]}, False),
        ({"op": "isNull", "children": [leaf("column", name="id", valueType="long")]}, False),
        (
            {"op": "and", "children": [compare("equal", "id", "12", "long"),
                                       compare("equal", "region", "us", "string")]},
            False,
        ),
        (
            {"op": "or", "children": [compare("equal", "id", "12", "long"),
                                      compare("equal", "region", "us", "string")]},
            True,
        ),
    ],
)  # fmt: skip
def test_json_predicates(tree: dict[str, Any], *, may: bool) -> None:
    for form in (tree, json.dumps(tree)):
        node = parse_json_hint(form)
        assert node is not None
        assert IDS.may(node).true is may


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.sampled_from(["equal", "and", "not", "isNull", "column", "literal", "long", "id"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["op", "children", "name", "value", "valueType"]), inner, max_size=5
    ),
)  # fmt: skip


@given(JSON, st.lists(JSON | st.text(max_size=30), max_size=3))
def test_no_hint_is_an_error(tree: Any, sql: list[Any]) -> None:
    nodes, _ = parse_hints(sql, tree).of({"id", "long"})
    for node in nodes:
        IDS.may(node)


COLUMNS = st.sampled_from(["id", "small", "ID"])
NUMBERS = st.sampled_from(["-9", "-2", "0", "3", "7.5", "9"])
COMPARISONS = st.builds(
    "{} {} {}".format, COLUMNS, st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]),
    NUMBERS,
)  # fmt: skip
LEAVES = (
    COMPARISONS
    | st.builds("{} IS NULL".format, COLUMNS)
    | st.builds("{} {} (-2, 3, {})".format, COLUMNS, st.sampled_from(["IN", "NOT IN"]), NUMBERS)
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=6,
)


def value_of(node: Any, row: dict[str, Any]) -> bool | None:
    """What a predicate is for one row: SQL's three values, by the book."""
    name = type(node).__name__
    if name == "IsNull":
        return bool(row[node.column.lower()] is None)
    if name == "Comparison":
        value = row[node.column.lower()]
        if value is None:
            return None
        one, others = value, [Decimal(literal.text) for literal in node.literals]
        other = others[0]
        holds = {
            "in": one in others,
            "=": one == other, "<>": one != other, "<": one < other, "<=": one <= other,
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
    text: str, rows: list[dict[str, int | None]]
) -> None:
    node = parse_sql_hint(text)
    assert node is not None
    present = {c: [r[c] for r in rows if r[c] is not None] for c in ("id", "small")}
    low = {c: min(v) for c, v in present.items() if v}  # type: ignore[type-var]  # None is left out
    high = {c: max(v) for c, v in present.items() if v}  # type: ignore[type-var]  # None is left out
    nulls = {c: len(rows) - len(v) for c, v in present.items()}
    may = facts(low, high, nulls, len(rows)).may(node)
    found = {value_of(node, row) for row in rows}
    assert may.true or True not in found
    assert may.false or False not in found
    assert may.null or None not in found
