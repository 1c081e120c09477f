"""Variants as bytes: every type as JSON, one form for equal values, and no trust in any byte."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.variant import DEPTH_MAX, variant_json
from tailer.delta.variant_builder import VariantBuilder, canonicalize_variant
from tailer.errors import CorruptRow
from tests.support.feeds import refusal
from tests.support.variants import Float, Nanos, as_json, encoded, parsed

EMPTY = b"\x01\x00\x00"
LEAP_DAY = dt.datetime(2024, 2, 29, 23, 59, 59, 7, dt.UTC)

SCALARS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (-128, "-128"),
    (300, "300"),
    (-70000, "-70000"),
    (2**63 - 1, "9223372036854775807"),
    (-(2**63), "-9223372036854775808"),
    (Decimal("1.50"), "1.50"),
    (Decimal("-0.001"), "-0.001"),
    (Decimal("12345678901.5"), "12345678901.5"),
    (Decimal("-12345678901234567890.123456789012345678"),
     "-12345678901234567890.123456789012345678"),
    (Decimal(10**37), "1" + "0" * 37),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (1e300, "1e+300"),
    (float("nan"), '"NaN"'),
    (float("inf"), '"Infinity"'),
    (Float(float("-inf")), '"-Infinity"'),
    (Float(0.1), "0.1"),
    (Float(16777216.0), "16777216.0"),
    (Float(3.4028234663852886e38), "3.4028235e+38"),
    (Float(1e-45), "1e-45"),
    ("", '""'),
    ('größe "\\\n', '"größe \\"\\\\\\n"'),
    ("x" * 64, '"' + "x" * 64 + '"'),
    (b"\x00\xff", '"AP8="'),
    (dt.date(1969, 12, 31), '"1969-12-31"'),
    (LEAP_DAY, '"2024-02-29T23:59:59.000007Z"'),
    (dt.datetime(1, 1, 1), '"0001-01-01T00:00:00.000000"'),  # noqa: DTZ001
    (dt.time(1, 2, 3, 4), '"01:02:03.000004"'),
    (Nanos(-1, zoned=True), '"1969-12-31T23:59:59.999999999Z"'),
    (Nanos(1, zoned=False), '"1970-01-01T00:00:00.000000001"'),
    (uuid.UUID(int=255), '"00000000-0000-0000-0000-0000000000ff"'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), SCALARS, ids=[text[:30] for _, text in SCALARS])
def test_each_primitive_type_has_its_text(value: Any, text: str) -> None:
    assert variant_json(*encoded(value)) == text
    assert json.loads(variant_json(*encoded({"k": [value]}))) == {"k": [json.loads(text)]}


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (2**31 - 1, "5881580-07-11"),
        (-(2**31), "-5877641-06-23"),
        (-719162, "0001-01-01"),
        (-719163, "0000-12-31"),
        (-719529, "-0001-12-31"),
        (2932896, "9999-12-31"),
    ],
)
def test_a_date_may_lie_in_a_year_that_python_has_not(days: int, text: str) -> None:
    assert variant_json(bytes([11 << 2]) + struct.pack("<i", days), EMPTY) == f'"{text}"'


def test_objects_keep_the_order_of_their_keys_and_of_nothing_else() -> None:
    value = {"b": 1, "a": {"": []}, "ä": [{}, None]}
    assert variant_json(*encoded(value)) == '{"a":{"":[]},"b":1,"ä":[{},null]}'


def test_what_is_not_utf_8_is_replaced() -> None:
    assert variant_json(b"\x05\xff", EMPTY) == '"�"'


def test_deep_nesting_is_read_up_to_the_limit() -> None:
    deep = b"\x0c\x01"
    for _ in range(DEPTH_MAX):
        deep = array_of(deep)
    assert variant_json(deep, EMPTY) == "[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX
    assert canonicalize_variant(deep, EMPTY)[0]
    assert "deeper than" in refusal(lambda: variant_json(array_of(deep), EMPTY), CorruptRow)


def array_of(element: bytes, times: int = 1) -> bytes:
    """An array whose elements are all the same bytes, not only equal ones."""
    offsets = [0] * times + [len(element)]
    lists = b"".join(n.to_bytes(4, "little") for n in offsets)
    return bytes([3 << 2 | 3, times]) + lists + element


def test_a_value_that_shares_its_parts_is_refused_and_not_unfolded() -> None:
    bomb = b"\x0c\x01"
    for _ in range(200):
        bomb = array_of(bomb, 2)
    assert "overlap" in refusal(lambda: variant_json(bomb, EMPTY), CorruptRow)
    assert "overlap" in refusal(lambda: canonicalize_variant(bomb, EMPTY), CorruptRow)
    text = array_of(bytes([16 << 2]) + (10**6).to_bytes(4, "little") + b"x" * 10**6, 250)
    assert "overlap" in refusal(lambda: variant_json(text, EMPTY), CorruptRow)


def test_a_long_key_in_many_objects_does_not_become_a_longer_text_than_anyone_can_hold() -> None:
    key = "k" * 2_000_000
    value, metadata = encoded([{key: 1}] * 100)
    assert "characters as JSON" in refusal(lambda: variant_json(value, metadata), CorruptRow)


NAMES = b"\x01\x02\x00\x01\x02ab"


@pytest.mark.parametrize(
    ("value", "metadata", "words"),
    [
        (b"", EMPTY, "ends too early"),
        (b"\x00", b"", "ends too early"),
        (b"\x00", b"\x02\x00\x00", "version is 2"),
        (b"\x0c", EMPTY, "ends too early"),
        (b"\x54\x00", EMPTY, "primitive type 21"),
        (b"\x09x", EMPTY, "ends too early"),
        (b"\x40\xff\xff\xff\xffx", EMPTY, "ends too early"),
        (b"\x13\xff\xff\xff\xff", EMPTY, "ends too early"),  # an array of four billion
        (b"\x03\x01\x09\x00", EMPTY, "ends too early"),
        (b"\x02\x01\x02\x00\x01\x00", NAMES, "not in its dictionary"),
        (b"\x02\x02\x00\x00\x00\x01\x02\x00\x00", NAMES, "key twice"),
        (b"\x02\x02\x00\x01\x00\x01\x02\x00\x00", b"\x01\x02\x00\x01\x02aa"[:5], "dictionary"),
        (b"\x02\x02\x00\x01\x00\x01\x02\x00\x00", b"\x01\x02\x00\x01\x02aa", "dictionary ends|key"),
        (b"\x02\x01\x00\x00\x01\x00", b"\x01\x01\x05\x01ab", "dictionary ends"),
        (b"\x20\x27\x01\x00\x00\x00", EMPTY, "38 digits"),
        (b"\x28\x00" + b"\xff" * 15 + b"\x7f", EMPTY, "38 digits"),
        (b"\x44" + struct.pack("<q", 86_400_000_000), EMPTY, "within a day"),
    ],
)
def test_bytes_that_are_no_variant_are_refused(value: bytes, metadata: bytes, words: str) -> None:
    message = refusal(lambda: variant_json(value, metadata), CorruptRow)
    assert any(word in message for word in words.split("|"))


def test_a_time_and_a_decimal_out_of_range_are_no_crash_when_compared() -> None:
    canonicalize_variant(b"\x44" + struct.pack("<q", -1), EMPTY)
    with pytest.raises(CorruptRow):
        canonicalize_variant(b"\x20\x27\x01\x00\x00\x00", EMPTY)


TIMES = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.decimals(-(10**20), 10**20, places=9)
    | st.floats()
    | st.floats(width=32).map(Float)
    | st.text(max_size=80)
    | st.binary(max_size=8)
    | st.dates()
    | TIMES
    | TIMES.map(lambda time: time.replace(tzinfo=dt.UTC))
    | st.times()
    | st.uuids()
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats()
KEYS = st.text(max_size=5)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any value made of these leaves."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=12,
    )


@given(trees(PLAIN | st.decimals(-(10**20), 10**20, places=9)), st.randoms(use_true_random=False))
def test_any_value_in_any_encoding_is_itself_as_json(value: Any, random: Random) -> None:
    assert parsed(variant_json(*encoded(value, random))) == as_json(value)


@given(trees(LEAVES), st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_all_encodings_of_a_value_have_one_canonical_form(
    value: Any, one: Random, other: Random
) -> None:
    first, second = encoded(value, one), encoded(value, other)
    canonical = canonicalize_variant(*first)
    assert canonical == canonicalize_variant(*second) == canonicalize_variant(*canonical)


@given(trees(PLAIN), trees(PLAIN))
def test_different_values_have_different_canonical_forms(one: Any, other: Any) -> None:
    same = canonicalize_variant(*encoded(one)) == canonicalize_variant(*encoded(other))
    assert same == (repr_of(one) == repr_of(other))


def repr_of(value: Any) -> str:
    """A text that is the same for values that a variant holds to be the same."""
    if isinstance(value, dict):
        return f"object {sorted((key, repr_of(v)) for key, v in value.items())}"
    if isinstance(value, list):
        return f"array {[repr_of(v) for v in value]}"
    return repr(value + 0.0 if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, Decimal("1.00"), True),
        (Decimal("0.5"), Decimal("0.50"), True),
        (Decimal(2**63), Decimal(2**63), True),
        (0, Decimal("0.000"), True),
        (1, 1.0, False),
        (1.5, Float(1.5), False),
        (0.0, -0.0, True),
        (Float(0.0), Float(-0.0), True),
        (float("nan"), struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0], True),
        (LEAP_DAY, LEAP_DAY.replace(tzinfo=None), False),
        (Nanos(1000, zoned=True), dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC), True),
        (Nanos(1001, zoned=True), dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC), False),
        ("1", 1, False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": None}, {}, False),
    ],
)
def test_what_is_equal(one: Any, other: Any, equal: bool) -> None:  # noqa: FBT001
    same = canonicalize_variant(*encoded([one])) == canonicalize_variant(*encoded([other]))
    assert same is equal


def test_a_canonical_variant_has_only_the_keys_it_needs_sorted_and_says_so() -> None:
    value, metadata = canonicalize_variant(*encoded({"b": 1, "a": 300}, Random(1)))
    assert metadata == b"\x11\x02\x00\x01\x02ab"
    assert value == b"\x02\x02\x00\x01\x00\x03\x05\x10\x2c\x01\x0c\x01"


@given(trees(LEAVES), st.data())
def test_damaged_bytes_give_json_or_are_refused(value: Any, data: st.DataObject) -> None:
    parts = [bytearray(part) for part in encoded(value)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from([p for p in parts if p]))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 1)) and data.draw(st.integers(0, len(parts[0])))
    answers_or_refuses(bytes(parts[0][: -cut or None]), bytes(parts[1]))


@given(st.binary(max_size=60), st.binary(max_size=20).map(lambda data: b"\x01" + data))
def test_any_bytes_give_json_or_are_refused(value: bytes, metadata: bytes) -> None:
    answers_or_refuses(value, metadata)


def answers_or_refuses(value: bytes, metadata: bytes) -> None:
    try:
        text = variant_json(value, metadata)
    except CorruptRow:
        return
    json.loads(text)
    builder = VariantBuilder()
    builder.copy(value, metadata)
    assert variant_json(*canonicalize_variant(*builder.build_variant()))


def test_a_copy_has_its_fields_and_the_names_of_its_keys_in_order() -> None:
    big = {f"key {i:04}": list(range(i % 300)) for i in range(400)}
    builder = VariantBuilder()
    builder.copy(*encoded(dict(reversed(big.items()))))
    assert builder.build_variant() == encoded(big)
