"""What the compiled part is given must fit its buffers: all else is refused, never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.native import rowbytes
from tailer.native.rowbytes import OPTIONAL, RAW, SIZED, array_part
from tests.support.components import require
from tests.support.sanitizers import watch


@pytest.fixture(scope="module")
def native() -> Any:
    require("tailer.native._rowbytes, which needs a C compiler,", rowbytes.native is not None)
    return rowbytes.native


def ints(*numbers: int) -> pa.Buffer:
    return pa.array(numbers, pa.int32()).buffers()[1].slice(0, 4 * len(numbers))


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ((RAW, ints(0, 3), b"abc", None, 0, None), 2),
        ((RAW, ints(0, 3), b"abc", None, 1, None), 1),
        ((RAW, ints(0, 4), b"abc", None, 0, None), 1),
        ((RAW, ints(0, 3, 1, 3), b"abc", None, 0, None), 3),
        ((RAW, ints(-1, 3), b"abc", None, 0, None), 1),
        ((RAW, ints(*range(10)), b"abcdefghi", b"\xff", 0, None), 9),
        ((RAW, ints(0, 3), b"abc", None, -1, None), 1),
        # Numbers whose products and sums are too large for the machine.
        ((RAW, ints(0, 3), b"abc", None, 2**62 - 1, None), 1),
        ((RAW, ints(0, 3), b"abc", None, 2**63 - 1, None), 1),
        ((RAW, ints(0, 3), b"abc", None, 2**63 - 2, None), 2),
        ((RAW, ints(0, 3), b"abc", None, 0, None), 2**60 - 2),
        ((RAW, ints(0, 3), b"abc", None, 2**63 - 2**59, None), 2**59),
        ((RAW, None, b"abc", None, 0, None), 0),
        ((RAW, memoryview(b"x" + bytes(8))[1:], b"abc", None, 0, None), 1),
        ((0, ints(0, 3), b"abc", None, 0, None), 1),
        ((12, ints(0, 3), b"abc", None, 0, None), 1),
    ],
)
def test_an_array_beyond_its_buffers_is_refused(
    native: Any, part: tuple[object, ...], rows: int
) -> None:
    for call in (native.join, native.murmur2):
        with pytest.raises(ValueError, match=r"beyond its buffers|no such kind"):
            call([part], rows)


INT32, INT64, DECIMAL, DATE, MICROS = 7, 8, 9, 10, 11


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ((INT32, None, bytes(7), None, 0, None), 2),
        ((INT64, None, bytes(16), None, 1, None), 2),
        ((INT64, None, bytes(16), None, -1, None), 1),
        ((INT64, None, bytes(16), None, 2**63 - 1, None), 1),
        ((INT64, None, bytes(8 * 9), b"\xff", 0, None), 9),
        ((INT64, None, None, None, 0, None), 1),
        ((DECIMAL, None, bytes(31), None, 0, b"\2"), 2),
        ((DECIMAL, None, bytes(16), None, 0, b"\7"), 1),
        ((DECIMAL, None, bytes(16), None, 0, b"\xff"), 1),
        ((DECIMAL, None, bytes(16), None, 0, None), 1),
        ((DATE, None, (2_932_897).to_bytes(4, "little"), None, 0, b'"'), 1),
        ((DATE, None, (-719_163).to_bytes(4, "little", signed=True), None, 0, b'"'), 1),
        ((MICROS, None, (2**63 - 1).to_bytes(8, "little"), None, 0, b'"'), 1),
        ((MICROS, None, (-(2**63)).to_bytes(8, "little", signed=True), None, 0, b'"'), 1),
        ((6, None, bytes(8), None, 0, None), 1),
        ((12, None, bytes(8), None, 0, None), 1),
    ],
)
def test_numbers_beyond_their_buffer_or_without_a_text_are_refused(
    native: Any, part: tuple[object, ...], rows: int
) -> None:
    with pytest.raises(ValueError, match=r"beyond its buffers|no such kind"):
        native.join([part], rows)


def test_what_is_no_part_is_refused(native: Any) -> None:
    part = array_part(pa.array([b"a", b"b"]), SIZED)
    for wrong in ("text", None, (1, 2)):
        with pytest.raises((TypeError, SystemError, ValueError)):
            native.join([wrong], 1)
    with pytest.raises((TypeError, SystemError)):
        native.join(part, 1)
    with pytest.raises(ValueError, match="one array of keys"):
        native.murmur2([part], 2)
    with pytest.raises(ValueError, match="negative"):
        native.join([b"constant"], -1)
    for places in ([2], [-1], [0, 1, 7]):
        buffer = pa.array(places, pa.int64()).buffers()[1].slice(0, 8 * len(places))
        with pytest.raises(IndexError, match="beyond the rows"):
            native.records([part], 2, None, buffer, 10, 1000, 61, None)
    with pytest.raises(ValueError, match="no such room"):
        native.records([part], 2, None, None, 10, 1000, -1, None)
    with pytest.raises(ZeroDivisionError):
        native.records([part], 2, None, None, 10, 1000, 61, lambda: 1 // 0)
    with pytest.raises(ValueError, match="fewer times than rows"):
        native.records([part], 2, pa.py_buffer(bytes(8)), None, 10, 1000, 61, None)
    with pytest.raises(ValueError, match="not aligned"):
        native.records([part], 2, memoryview(bytes(17))[1:], None, 10, 1000, 61, None)


def test_a_group_has_its_size_before_it(native: Any) -> None:
    texts = [b"", b"a", b"x" * 62, b"x" * 63, b"x" * 8_190, b"x" * 9_000]
    part = array_part(pa.array(texts, pa.binary()), RAW)
    sized = array_part(pa.array([b"<" + text for text in texts], pa.binary()), SIZED)
    for before, after in (([], []), ([b"head"], [b"tail"]), ([7], [[b"", b"another"]])):
        ends, data = native.join([*before, [b"<", part], *after], len(texts))
        assert native.join([*before, sized, *after], len(texts)) == (ends, data)
    assert native.join([[]], 2)[1] == b"\0\0"


def test_a_group_within_a_group_or_with_headers_is_refused(native: Any) -> None:
    part = array_part(pa.array([b"a", None]), OPTIONAL, b"head")
    for wrong in (part, 3):
        with pytest.raises(ValueError, match="no such kind of part in a group"):
            native.join([[wrong]], 2)
    with pytest.raises((TypeError, SystemError)):
        native.join([[[b"a"]]], 1)


def test_a_spare_buffer_is_used_unless_somebody_looks_at_it(native: Any) -> None:
    part = array_part(pa.array([b"a" * 1000, b"b" * 3000, b"c"]), SIZED)
    wanted = native.records([part], 3, None, None, 10, 2000, 61, None)
    assert [number for _, number in wanted] == [1, 1, 1]
    spares = [bytearray(b"\xff" * size) for size in (0, 10, 100_000)]
    given = iter(spares)
    found = native.records([part], 3, None, None, 10, 2000, 61, lambda: next(given))
    assert found == wanted
    assert all(buffer is spare for (buffer, _), spare in zip(found, spares, strict=True))
    spare = bytearray(b"\xff" * 100)
    with memoryview(spare):
        assert native.records([part], 3, None, None, 10, 2000, 61, lambda: spare) == wanted
    assert spare == b"\xff" * 100
    assert native.records([part], 3, None, None, 10, 2000, 61, lambda: None) == wanted


def test_more_than_two_gigabytes_are_refused(native: Any) -> None:
    text = b"x" * 2**20
    with pytest.raises(OverflowError, match="2 GiB"):
        native.join([text] * 4, 600)


@pytest.mark.parametrize("rows", [2**60, 2**61 - 1, 2**62 - 1, 2**63 - 1])
def test_more_rows_than_can_be_numbered_are_refused(native: Any, rows: int) -> None:
    with pytest.raises(OverflowError, match="too many rows"):
        native.join([b""], rows)
    with pytest.raises(OverflowError, match="too many rows"):
        native.records([b""], rows, None, None, 1, 10, 61, None)
    for always in (-1, 2**31, 2**63 - 1):
        with pytest.raises(ValueError, match="no such number of headers"):
            native.join([always], 1)
    with pytest.raises(ValueError, match="no such room"):
        native.records([b"a"], 1, None, None, 1, 10, 2**63 - 1, None)


@pytest.mark.slow
def test_nothing_that_is_given_is_read_or_added_up_beyond_its_bounds(tmp_path: Path) -> None:
    watch("tailer/native/_rowbytes.c", "rowbytes_fuzz", tmp_path)
