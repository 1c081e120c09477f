"""Columns put together row by row, compiled and by Arrow."""

from __future__ import annotations

import json
from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.formats.json import json_objects, json_values
from tailer.native.rowbytes import Column, Text, has_escapes, join_parts

pytestmark = pytest.mark.usefixtures("way")

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters='"\\'), max_size=12)


def part_of(kind: str, values: list[str | None]) -> Column:
    """A part over these values, from the middle of a longer array."""
    if kind == "constant":
        return "=größe="
    whole = pa.array(["before", *values, "behind"], pa.string())
    if kind == "raw":
        return pc.fill_null(whole, "").slice(1, len(values))
    return Text(whole.slice(1, len(values)), quoted=kind == "quoted")


def expected(kind: str, value: str | None) -> str:
    if kind == "constant":
        return "=größe="
    if kind == "raw":
        return value or ""
    if value is None:
        return "null"
    return f'"{value}"' if kind == "quoted" else value


@given(st.data(), st.integers(0, 40))
def test_rows_are_their_parts_one_behind_the_other(data: st.DataObject, rows: int) -> None:
    kinds = data.draw(
        st.lists(st.sampled_from(["constant", "raw", "text", "quoted"]), min_size=1, max_size=6)
    )
    values = st.lists(st.none() | TEXTS, min_size=rows, max_size=rows)
    given_values = [data.draw(values) for _ in kinds]
    parts = [part_of(kind, own) for kind, own in zip(kinds, given_values, strict=True)]
    found = join_parts(parts, rows)
    found.validate(full=True)
    assert found.null_count == 0
    assert found.to_pylist() == [
        "".join(expected(kind, own[row]) for kind, own in zip(kinds, given_values, strict=True))
        for row in range(rows)
    ]


_DAYS = st.integers(-719_162, 2_932_896) | st.sampled_from([-719_162, -1, 0, 59, 2_932_896])
_MICROS = st.builds(lambda day, time: day * 86_400_000_000 + time, _DAYS,
                    st.integers(0, 86_399_999_999))  # fmt: skip


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    whole = st.integers(-most, most) | st.integers(-200, 200) | st.sampled_from([most, -most])
    return whole.map(lambda number: Decimal(number).scaleb(-scale, Context(prec=40)))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
        (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-1100, 1100)),
        (pa.date32(), _DAYS),
        (pa.timestamp("us"), _MICROS),
        (pa.timestamp("us", "UTC"), _MICROS),
        *(
            (pa.decimal128(precision, scale), _decimals(precision, scale))
            for precision, scale in ((9, 0), (18, 2), (19, 6), (38, 0), (38, 6), (9, 7), (38, 38))
        ),
    ],
)
@given(data=st.data())
def test_numbers_and_times_are_the_same_text_as_values_of_their_own(
    kind: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    given_values = data.draw(st.lists(st.none() | values, max_size=30))
    if pa.types.is_temporal(kind):
        width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        whole = pa.array([None, *given_values, None], width).cast(kind)
    else:
        whole = pa.array([None, *given_values, None], kind)
    array = whole.slice(1, len(given_values))
    texts = json_values(array).to_pylist()  # each value as it is inside a list or a struct
    assert json_objects(["x"], [array]).to_pylist() == [f'{{"x":{text}}}' for text in texts]


@given(st.text(max_size=40) | st.text(max_size=9000, alphabet="ab\x1f\x7f é"))
def test_what_json_must_escape_is_found(text: str) -> None:
    plain = json.dumps(text, ensure_ascii=False)[1:-1] == text
    assert has_escapes(pa.py_buffer(text.encode())) is not plain


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 9999])
@pytest.mark.parametrize("byte", [b'"', b"\\", b"\0", b"\x1f"])
def test_one_byte_among_many_is_found(at: int, byte: bytes) -> None:
    text = bytearray(b"x" * 10_000)
    assert not has_escapes(pa.py_buffer(bytes(text)))
    text[at : at + 1] = byte
    assert has_escapes(pa.py_buffer(bytes(text)))
