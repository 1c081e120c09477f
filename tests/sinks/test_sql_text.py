"""The text of nested values in SQL databases: two texts are one exactly if their values are."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinks.sql.text import ValueRefused, canonical_json, check_nul, json_text
from tests.support.extent import examples

TYPE = pa.struct(
    {
        "n": pa.decimal128(38, 6),
        "d": pa.float64(),
        "t": pa.string(),
        "m": pa.map_(pa.string(), pa.list_(pa.int64())),
        "s": pa.list_(pa.struct({"x": pa.int64(), "": pa.bool_()})),
    }
)
NUMBERS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-6"))
TEXTS = st.text(st.sampled_from('ab\\"\0u0{}'), max_size=6)
VALUES = st.fixed_dictionaries(
    {
        "n": st.none() | NUMBERS | st.sampled_from([Decimal(0), Decimal(-1)]),
        "d": st.none() | st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0]),
        "t": st.none() | TEXTS,
        "m": st.none() | st.dictionaries(
            st.sampled_from("abc"), st.none() | st.lists(st.none() | st.integers(0, 2), max_size=2)
        ),
        "s": st.none() | st.lists(
            st.none() | st.fixed_dictionaries(
                {"x": st.none() | st.integers(0, 1), "": st.none() | st.booleans()}
            ), max_size=2,
        ),
    }
)  # fmt: skip


def arrow_value(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "m": None if value["m"] is None else list(value["m"].items())}


def canonical(value: dict[str, Any]) -> str:
    array = pa.array([arrow_value(value)], TYPE)
    (found,) = canonical_json(json_text(array), TYPE).to_pylist()
    return str(found)


@settings(max_examples=examples(300))
@given(VALUES, st.data())
def test_equal_values_share_a_text_and_no_others_do(value: dict[str, Any], data: Any) -> None:
    changed = data.draw(st.sampled_from(sorted(value)))
    other = {**value, changed: data.draw(VALUES)[changed]}
    assert (canonical(value) == canonical(other)) == (value == other)  # and -0.0 is 0


def test_a_number_of_any_size_is_compared_whole() -> None:
    long = pa.array(['{"n":1e999999999}', '{"n":1e999999998}', '{"n":-0e-7}', '{"n":0.0}'])
    found = canonical_json(long, pa.struct({"n": pa.float64()})).to_pylist()
    assert len(set(found)) == 3
    assert found[2] == found[3]


@given(st.lists(VALUES, min_size=1, max_size=4))
@example([{"n": None, "d": None, "t": "\\u0000", "m": None, "s": None}])
@example([{"n": None, "d": None, "t": "\\\0", "m": None, "s": None}])
def test_the_character_nul_is_found_within_values_and_only_there(
    values: list[dict[str, Any]],
) -> None:
    array = pa.array([arrow_value(value) for value in values], TYPE)
    first = next((i for i, v in enumerate(values) if "\0" in (v["t"] or "")), None)
    if first is None:
        check_nul(array, "PostgreSQL")
        return
    with pytest.raises(ValueRefused, match="the character NUL") as refused:
        check_nul(array, "PostgreSQL")
    assert refused.value.row == first
    check_nul(array.slice(0, first), "PostgreSQL")
