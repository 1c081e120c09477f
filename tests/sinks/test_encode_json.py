"""Arrow as JSON lines: what each type becomes, and that every line is JSON."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sinks.formats.json import json_lines, json_values

pytestmark = pytest.mark.usefixtures("way")


def texts(values: list[Any], data_type: pa.DataType) -> list[str]:
    found: list[str] = json_values(pa.array(values, data_type)).to_pylist()
    return found


def lines(**columns: pa.Array) -> list[str]:
    return bytes(json_lines(list(columns), list(columns.values()))).decode().splitlines()


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (-128, pa.int8(), "-128"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (True, pa.bool_(), "true"),
        (False, pa.bool_(), "false"),
        (0.1, pa.float64(), "0.1"),
        (-0.0, pa.float64(), "-0"),
        (1e300, pa.float64(), "1e+300"),
        (5e-324, pa.float64(), "5e-324"),
        (float("nan"), pa.float64(), '"NaN"'),
        (float("inf"), pa.float32(), '"Infinity"'),
        (float("-inf"), pa.float64(), '"-Infinity"'),
        (Decimal("1.50"), pa.decimal128(10, 2), "1.50"),
        (Decimal("-12345678901234567890.123456789012345678"), pa.decimal128(38, 18),
         "-12345678901234567890.123456789012345678"),
        (b"\x00\xff", pa.binary(), '"AP8="'),
        (b"", pa.large_binary(), '""'),
        ("x", pa.large_string(), '"x"'),
        (dt.date(1969, 12, 31), pa.date32(), '"1969-12-31"'),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), pa.timestamp("us", "UTC"),
         '"2024-01-02T03:04:05.000006Z"'),
        (dt.datetime(1, 1, 1), pa.timestamp("us"), '"0001-01-01T00:00:00.000000"'),  # noqa: DTZ001
        ([1, None], pa.list_(pa.int32()), "[1,null]"),
        ([], pa.list_(pa.int32()), "[]"),
        ({"a": 1, "b": None}, pa.struct([("a", pa.int8()), ("b", pa.string())]),
         '{"a":1,"b":null}'),
        ({}, pa.struct([]), "{}"),
        ([("k", 1), ("l", None)], pa.map_(pa.string(), pa.int8()), '{"k":1,"l":null}'),
        ([(1, "x")], pa.map_(pa.int64(), pa.string()), '{"1":"x"}'),
        ([(True, 1)], pa.map_(pa.bool_(), pa.int8()), '{"true":1}'),
        ([(float("nan"), 1), (0.5, 2)], pa.map_(pa.float64(), pa.int8()), '{"NaN":1,"0.5":2}'),
        ([(dt.date(2024, 1, 2), 1)], pa.map_(pa.date32(), pa.int8()), '{"2024-01-02":1}'),
        ([(b"\x00", 1)], pa.map_(pa.binary(), pa.int8()), '{"AA==":1}'),
        ([("", 1)], pa.map_(pa.string(), pa.int8()), '{"":1}'),
        ([({"a": 1}, 2)], pa.map_(pa.struct([("a", pa.int8())]), pa.int8()),
         '[{"key":{"a":1},"value":2}]'),
        ([], pa.map_(pa.string(), pa.int8()), "{}"),
    ],
)  # fmt: skip
def test_each_type_has_one_way_to_be_written(
    value: Any, data_type: pa.DataType, expected: str
) -> None:
    assert texts([value, None], data_type) == [expected, "null"]
    json.loads(expected)


def test_nothing_but_nulls_is_null() -> None:
    assert texts([None, None], pa.null()) == ["null", "null"]


@pytest.mark.parametrize("exponent", [1, 7, 10, 20, 38])
def test_small_decimals_are_json_numbers_with_all_their_digits(exponent: int) -> None:
    value = Decimal(1).scaleb(-exponent)
    for number in (value, -value, value * 0, value * 9):
        (text,) = texts([number], pa.decimal128(38, exponent))
        assert json.loads(text, parse_float=Decimal, parse_int=Decimal) == number


@pytest.mark.parametrize(
    "text",
    [*map(chr, range(0x20)), '"', "\\", '\\"', "\\n", "\\u0000", "\x7f", "ü", "\u2028", "😀",
     "a\\", '"' * 5, "\\" * 5, '\n"\\\x00', "</script>", ""],
    ids=repr,
)  # fmt: skip
def test_every_character_survives(text: str) -> None:
    (encoded,) = texts([text], pa.string())
    assert json.loads(encoded) == text
    assert len(encoded.splitlines()) == 1 or "\u2028" in text or "\x7f" in text
    ((key, value),) = json.loads(
        texts([[(text, text)]], pa.map_(pa.string(), pa.string()))[0]
    ).items()
    assert (key, value) == (text, text)


def not_unicode(*values: bytes | None) -> pa.Array:
    """A string array with these bytes, as a Parquet file may hold them."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_string_that_is_not_utf_8_is_still_a_line_of_json(start: int) -> None:
    strings = not_unicode(b"x", None, b'a\xff"\xc3', "ü".encode()).slice(start)
    expected = ["x", None, 'a\ufffd"\ufffd', "ü"][start:]
    keys = pa.MapArray.from_arrays([0, 1], not_unicode(b"\xff"), pa.array([1]))
    assert [json.loads(line)["s"] for line in lines(s=strings)] == expected
    assert lines(m=keys) == ['{"m":{"\ufffd":1}}']


def test_a_line_is_an_object_of_its_columns_in_their_order() -> None:
    found = lines(b=pa.array([1, None]), a=pa.array(["x", "y\nz"]))
    assert found == ['{"b":1,"a":"x"}', '{"b":null,"a":"y\\nz"}']


def test_names_of_columns_and_fields_are_escaped() -> None:
    name = 'a"b\\c\nd.ü'
    struct = pa.array([{name: 1}], pa.struct([(name, pa.int64())]))
    (line,) = lines(**{name: struct})
    assert json.loads(line) == {name: {name: 1}}


def test_no_rows_are_no_bytes() -> None:
    assert bytes(json_lines(["a"], [pa.array([], pa.int64())])) == b""


def test_each_line_ends_with_a_newline_and_the_buffer_has_nothing_else() -> None:
    assert bytes(json_lines(["a"], [pa.array([1, 2])])) == b'{"a":1}\n{"a":2}\n'


NESTED = pa.array(
    [[{"k": [("a", 1)]}], None, [], [None, {"k": None}], [{"k": []}, {"k": [("b", None)]}]],
    pa.list_(pa.struct([("k", pa.map_(pa.string(), pa.int64()))])),
)
NESTED_TEXTS = [
    '[{"k":{"a":1}}]', "null", "[]", '[null,{"k":null}]', '[{"k":{}},{"k":{"b":null}}]',
]  # fmt: skip


@pytest.mark.parametrize("start", range(5))
@pytest.mark.parametrize("stop", range(5))
def test_slices_are_written_as_what_they_show(start: int, stop: int) -> None:
    found = json_values(NESTED.slice(start, max(0, stop - start))).to_pylist()
    assert found == NESTED_TEXTS[start : max(start, stop)]


def test_a_struct_that_is_null_hides_what_lies_beneath() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 2])], names=["a"], mask=pa.array([False, True])
    )
    assert json_values(hidden).to_pylist() == ['{"a":1}', "null"]


def test_a_list_that_is_null_hides_what_lies_beneath() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([False, True])
    )
    assert json_values(hidden).to_pylist() == ["[1]", "null"]


def test_binary_of_any_length_is_padded_base64() -> None:
    values = [bytes(range(n)) for n in range(8)]
    found = [base64.b64decode(json.loads(t), validate=True) for t in texts(values, pa.binary())]
    assert found == values


def test_a_decimals_and_a_longs_digits_are_never_those_of_a_float() -> None:
    (line,) = lines(n=pa.array([2**53 + 1]), d=pa.array([Decimal("0.1000000000000000001")]))
    assert line == '{"n":9007199254740993,"d":0.1000000000000000001}'


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (2**63 - 1, pa.timestamp("us", "UTC"), '"+294247-01-10T04:00:54.775807Z"'),
        (-(2**63), pa.timestamp("us"), '"-290308-12-21T19:59:05.224192"'),
        (253_402_300_800_000_000, pa.timestamp("us"), '"+10000-01-01T00:00:00.000000"'),
        (253_402_300_799_999_999, pa.timestamp("us"), '"9999-12-31T23:59:59.999999"'),
        (-62_135_596_800_000_001, pa.timestamp("us"), '"0000-12-31T23:59:59.999999"'),
        (2**31 - 1, pa.date32(), '"+5881580-07-11"'),
        (-(2**31), pa.date32(), '"-5877641-06-23"'),
        (-719_163, pa.date32(), '"0000-12-31"'),
    ],
)
def test_days_beyond_four_digits_are_written_exactly(
    value: int, kind: pa.DataType, text: str
) -> None:
    number = pa.array([value, 0, None], pa.int32() if pa.types.is_date32(kind) else pa.int64())
    far, near, null = json_values(number.cast(kind)).to_pylist()
    assert far == text
    assert near.startswith('"1970-01-01')
    assert null == "null"
