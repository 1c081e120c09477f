"""The comparison's engine, on values that a careless fingerprint takes for equal."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import combinations
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies

from tailer.compare.engine import DiffOptions, Engine
from tailer.compare.stream import COMING, LEAVING, REF_FIELDS, RowStream
from tailer.compare.unmatched import find_unmatched as without_partner

_MULTIPLIER, _WORD = 0xD6E8FEB86659FD93, 2**64


def stream(data_type: pa.DataType, left: list[Any], came: list[Any]) -> RowStream:
    """Rows of one column, the first of each side at position 0."""
    schema = pa.schema([*REF_FIELDS, pa.field("c0", data_type)])
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.array([side] * len(values), pa.int8()),
                pa.array(range(len(values)), pa.int64()),
                pa.array(values, data_type),
            ],
            schema=schema,
        )
        for side, values in ((LEAVING, left), (COMING, came))
    ]
    return RowStream(schema, iter(batches))


def find_unmatched(data_type: pa.DataType, left: list[Any], came: list[Any]) -> tuple[Any, Any]:
    with Engine(DiffOptions()) as engine:
        found = without_partner(engine, lambda: stream(data_type, left, came))
    return list(found.leaving), list(found.coming)


def engine_hash(sql: str) -> int:
    return int(duckdb.execute(f"SELECT hash({sql})").fetchall()[0][0])


def integer_of_hash(hashed: int) -> int:
    """The 64-bit integer whose hash this is: the engine's mixing, taken back."""
    inverse = pow(_MULTIPLIER, -1, _WORD)
    for _ in range(2):
        hashed = (hashed ^ (hashed >> 32)) * inverse % _WORD
    hashed ^= hashed >> 32
    return hashed - _WORD if hashed >= _WORD // 2 else hashed


NOTHING = pa.struct([])


@pytest.mark.parametrize(
    ("data_type", "whole", "null"),
    [
        (NOTHING, {}, None),
        (pa.list_(NOTHING), [{}], [None]),
        (pa.struct([("s", NOTHING)]), {"s": {}}, {"s": None}),
        (pa.map_(pa.string(), NOTHING), [("a", {})], [("a", None)]),
    ],
)
def test_structs_without_fields_are_compared_by_being_there(
    data_type: pa.DataType, whole: Any, null: Any
) -> None:
    assert find_unmatched(data_type, [whole, null, whole], [null, whole]) == ([0], [])
    assert find_unmatched(data_type, [whole], [null, null]) == ([0], [0, 1])


def test_no_bar_is_printed_among_the_rows() -> None:
    """DuckDB prints one where the program is no file, as in a worker of the tests."""
    program = (
        "from tailer.compare.engine import DiffOptions, Engine\n"
        "with Engine(DiffOptions()) as engine:\n"
        "    setting = \"SELECT current_setting('enable_progress_bar')\"\n"
        "    print(engine._connection.execute(setting).fetchone()[0])"
    )
    started = [sys.executable, "-c", program]
    told = subprocess.run(started, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_the_integer_with_the_hash_of_null_is_not_null() -> None:
    alike = integer_of_hash(engine_hash("NULL::BIGINT"))
    assert engine_hash(f"({alike})::BIGINT") == engine_hash("NULL::BIGINT")
    assert find_unmatched(pa.int64(), [alike], [None]) == ([0], [0])
    assert find_unmatched(pa.int64(), [1, None], [None, 1]) == ([], [])


def test_wide_decimals_with_their_halves_swapped_are_two_values() -> None:
    assert engine_hash("18446744073709551616::HUGEINT") == engine_hash("1::HUGEINT")
    wide = pa.decimal128(38, 0)
    assert find_unmatched(wide, [Decimal(2**64)], [Decimal(1)]) == ([0], [0])
    assert find_unmatched(wide, [Decimal(2**64)], [Decimal(2**64)]) == ([], [])


@pytest.mark.parametrize(
    ("data_type", "one", "other"),
    [
        (pa.list_(pa.string()), [""], [None]),
        (pa.list_(pa.string()), [None], None),
        (pa.struct([("a", pa.string())]), {"a": None}, None),
        (pa.string(), "", None),
        (pa.binary(), b"fingerp~", b""),
        (pa.bool_(), False, None),
        (pa.date32(), 0, None),
    ],
    ids=str,
)
def test_what_is_almost_nothing_is_not_nothing(
    data_type: pa.DataType, one: object, other: object
) -> None:
    assert find_unmatched(data_type, [one], [other]) == ([0], [0])
    assert find_unmatched(data_type, [one, other], [other, one]) == ([], [])


def test_a_stream_that_is_closed_ends_what_it_comes_from() -> None:
    schema, ended = pa.schema(REF_FIELDS), []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.RecordBatch.from_arrays([pa.array([0], pa.int8()), [0]], schema=schema)
        finally:
            ended.append(True)

    stream = RowStream(schema, batches())
    stream.open_reader().read_next_batch()
    assert not ended
    stream.close()
    assert ended


@pytest.mark.parametrize("lies", ["alone", "as a key", "as a value", "deeper"])
def test_texts_that_are_not_utf_8_are_compared_by_their_bytes(lies: str) -> None:
    texts = pa.array([b"\xffA", b"\xff\x00", b"ok", b"\xc3 and more than is kept in line"])
    texts, numbers, ends = texts.view(pa.string()), pa.array([1, 2, 3, 4]), pa.array([*range(5)])
    by_value = pa.MapArray.from_arrays(ends.cast(pa.int32()), numbers, texts)
    column = {
        "alone": texts,
        "as a key": pa.MapArray.from_arrays(ends.cast(pa.int32()), texts, numbers),
        "as a value": by_value,
        "deeper": pa.StructArray.from_arrays([texts, by_value], names=["t", "m"]),
    }[lies]
    schema = pa.schema([*REF_FIELDS, pa.field("c0", column.type)])

    def rows(sides: tuple[int, int], first: int) -> RowStream:
        parts = [(sides[0], column), (sides[1], column.slice(first))]
        arrays = (
            [pa.repeat(pa.scalar(s, pa.int8()), len(c)), pa.arange(0, len(c)), c] for s, c in parts
        )
        return RowStream(schema, (pa.RecordBatch.from_arrays(a, schema=schema) for a in arrays))

    with Engine(DiffOptions()) as engine:
        assert list(without_partner(engine, lambda: rows((LEAVING, COMING), 2)).leaving) == [0, 1]
    with Engine(DiffOptions()) as engine:
        missing, surplus, examples = engine.find_unbalanced(lambda: rows((1, -1), 3), 5)
    assert examples is not None
    assert (missing, surplus, examples.num_rows) == (0, 3, 3)


def test_of_many_equal_rows_the_lowest_of_the_larger_side_stay() -> None:
    assert find_unmatched(pa.int64(), [7, 7, 7, 8], [8, 7]) == ([0, 1], [])
    assert find_unmatched(pa.string(), ["a"], ["a", "a", "b"]) == ([], [0, 2])


def test_more_columns_than_there_are_bits_are_compared_all_the_same() -> None:
    alike = integer_of_hash(engine_hash("NULL::BIGINT"))
    columns = [pa.field(f"c{i}", pa.int64()) for i in range(70)]
    schema = pa.schema([*REF_FIELDS, *columns])

    def rows() -> RowStream:
        values: list[list[int | None]] = [[i, i] for i in range(69)]
        last: list[int | None] = [None, alike]
        arrays = [pa.array([LEAVING, COMING], pa.int8()), pa.array([0, 0], pa.int64())]
        arrays += [pa.array(column, pa.int64()) for column in [*values, last]]
        return RowStream(schema, iter([pa.RecordBatch.from_arrays(arrays, schema=schema)]))

    with Engine(DiffOptions()) as engine:
        found = without_partner(engine, rows)
    assert (list(found.leaving), list(found.coming)) == ([0], [0])


def test_two_thousand_columns_are_proved_in_little_memory() -> None:
    names = [f"c{i}" for i in range(2000)]
    types = [pa.string() if i % 2 else pa.int64() for i in range(2000)]
    schema = pa.schema([*REF_FIELDS, *zip(names, types, strict=True)])

    def signed(last: str) -> RowStream:
        numbers, texts = pa.array([1, None]), pa.array(["a", "b"])
        values = [texts if pa.types.is_string(t) else numbers for t in types]
        plus = [pa.array([1, 1], pa.int8()), pa.array([0, 1]), *values]
        minus = [pa.array([-1, -1], pa.int8()), *plus[1:-1], pa.array(["a", last])]
        batches = [pa.RecordBatch.from_arrays(rows, schema=schema) for rows in (plus, minus)]
        return RowStream(schema, iter(batches))

    with Engine(DiffOptions(memory_bytes_max=256 * 1024 * 1024)) as engine:
        assert engine.find_unbalanced(lambda: signed("b"), 5)[:2] == (0, 0)
    with Engine(DiffOptions(memory_bytes_max=256 * 1024 * 1024)) as engine:
        missing, surplus, examples = engine.find_unbalanced(lambda: signed("c"), 5)
    assert (missing, surplus) == (1, 1)
    assert examples is not None
    assert sorted(examples["surplus"].to_pylist()) == [-1, 1]
    assert examples["c1"].to_pylist() == ["b", "b"]


@pytest.mark.parametrize(
    "within",
    [
        lambda rows: rows,
        lambda rows: pa.array([[row] for row in rows.to_pylist()], pa.list_(rows.type)),
        lambda rows: pa.array(
            [[("k", r)] for r in rows.to_pylist()], pa.map_(pa.utf8(), rows.type)
        ),
        lambda rows: pa.StructArray.from_arrays([rows], names=["outer"]),
    ],
    ids=["struct", "list", "map", "deeper"],
)
def test_rows_from_the_middle_of_an_array_are_those_that_are_meant(within: Any) -> None:
    deep = pa.array([{"a": {"b": number}} for number in range(8)])

    def rows() -> RowStream:
        values = within(deep).slice(4)
        schema = pa.schema([*REF_FIELDS, pa.field("c0", values.type)])
        refs = pa.array(range(4), pa.int64())
        sides = ((LEAVING, values), (COMING, within(deep.slice(5))))
        batches = [
            [pa.repeat(pa.scalar(side, pa.int8()), len(some)), refs[: len(some)], some]
            for side, some in sides
        ]
        return RowStream(
            schema, (pa.RecordBatch.from_arrays(arrays, schema=schema) for arrays in batches)
        )

    with Engine(DiffOptions()) as engine:
        found = without_partner(engine, rows)
    assert (list(found.leaving), list(found.coming)) == ([0], [])


PAIRS = pa.schema(
    [*REF_FIELDS, ("c0", pa.int64()), ("c1", pa.string()), ("c2", pa.decimal128(30, 2))]
)


def signed(left: list[tuple[Any, ...]], came: list[tuple[Any, ...]]) -> RowStream:
    """Rows of three columns, a wide decimal among them, with -1 and 1 as their sides."""
    sides = [-1] * len(left) + [1] * len(came)
    columns = [sides, range(len(sides)), *zip(*left, *came, strict=True)]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, PAIRS, strict=True)]
    return RowStream(PAIRS, iter([pa.RecordBatch.from_arrays(arrays, schema=PAIRS)]))


ROW = strategies.tuples(
    strategies.sampled_from([None, 0, 1, integer_of_hash(engine_hash("NULL"))]),
    strategies.sampled_from([None, "", "a", "b"]),
    strategies.sampled_from([None, Decimal("0.00"), Decimal("1.00"), Decimal(2**70)]),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(DiffOptions()) as engine:
        yield engine


@given(strategies.lists(ROW, min_size=1, max_size=6), strategies.data())
def test_sums_of_hashes_say_whether_rows_balance(
    engine: Engine, left: list[tuple[Any, ...]], data: Any
) -> None:
    came = data.draw(strategies.permutations(left))
    if data.draw(strategies.booleans()):  # one column of one row is another's
        at, column = data.draw(strategies.integers(0, len(came) - 1)), data.draw(ROW)
        which = data.draw(strategies.integers(0, 2))
        came[at] = (*came[at][:which], column[which], *came[at][which + 1 :])
    assert engine.is_balanced(signed(left, came)) == (Counter(left) == Counter(came))


def test_rows_that_swapped_a_value_do_not_balance(engine: Engine) -> None:
    """The hash of a row is made of those of its values: sums of it must not undo that."""
    for a, b in combinations(range(12), 2):
        left = [(a, "x", Decimal(a)), (b, "y", Decimal(b))]
        came = [(a, "y", Decimal(a)), (b, "x", Decimal(b))]
        assert engine.is_balanced(signed(left, came)) is False


def test_nested_columns_are_left_to_groups(engine: Engine) -> None:
    assert engine.is_balanced(stream(pa.list_(pa.int64()), [[1]], [[1]])) is None


def test_rows_that_do_not_fit_into_memory_are_compared_in_shares() -> None:
    schema = pa.schema([*REF_FIELDS, ("c0", pa.int64()), ("c1", pa.string())])
    count, passes = 200_000, 0

    def signed() -> RowStream:
        nonlocal passes
        passes += 1
        ids, text = pa.arange(0, count), pa.repeat("the same", count)
        changed = pc.if_else(pc.equal(pc.bit_wise_and(ids, 7), 7), "changed", text)
        rows = [
            [pa.repeat(pa.scalar(side, pa.int8()), count), ids, ids, texts]
            for side, texts in ((1, changed), (-1, text))
        ]
        return RowStream(schema, (pa.RecordBatch.from_arrays(r, schema=schema) for r in rows))

    with Engine(DiffOptions(memory_bytes_max=20_000_000)) as engine:
        missing, surplus, examples = engine.find_unbalanced(signed, 4)
        held = engine.query_table("SELECT count(DISTINCT c0) FROM unbalanced").column(0)[0].as_py()
    assert passes > 2
    assert (missing, surplus, held) == (count // 8, count // 8, count // 8)
    assert examples is not None
    assert examples["c0"].to_pylist() == [7, 7, 15, 15]
