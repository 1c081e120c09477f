"""Columns put together row by row, compiled and by Arrow."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.rowbytes import Column, Text, has_escapes, join

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
    found = join(parts, rows)
    found.validate(full=True)
    assert found.null_count == 0
    assert found.to_pylist() == [
        "".join(expected(kind, own[row]) for kind, own in zip(kinds, given_values, strict=True))
        for row in range(rows)
    ]


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
