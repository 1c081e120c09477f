"""The crate alone: damaged files, footers, pages, and what it reads of a file."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.parquet_columns import ParquetColumns
from tailer.native.parquet import native
from tests.support import thrift
from tests.support.components import require_crate
from tests.support.extent import examples, sampled
from tests.support.parquet_fuzz import WRONG, damaged, whole_files
from tests.support.source import ROOT


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require_crate()


@sampled
def test_what_pyarrow_refuses_is_refused() -> None:
    """Of damaged files, in a process of its own, which nothing may end."""
    files = examples(4 * int(os.environ.get("TAILER_TORTURE_ROUNDS", "500")))
    program = [sys.executable, "-m", "tests.support.parquet_fuzz", str(files)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for wrong in WRONG:
        assert wrong not in done.stdout, done.stdout
    assert "equal" in done.stdout
    assert not done.stderr, "a panic is an exception"


def test_what_is_no_footer_is_refused() -> None:
    """By an exception, whatever is in it."""
    for content in (b"", b"\x00" * 100, b"\xff" * 100):
        with pytest.raises(ValueError, match=r"."):
            native.Columns(None, content, [])


def pages_of(start: bytes) -> list[tuple[int, ...]]:
    """Kind, bytes unpacked and stored, those of the header, and values of the pages that begin
    so."""
    pages, at = [], 0
    with suppress(IndexError, OverflowError, TypeError, ValueError):
        while at < len(start):
            header, end = thrift.read_struct(start, at, 0)
            numbers = [thrift.signed(thrift.value(header, number)) for number in (1, 2, 3)]
            values = 0
            for number, wire, fields in header:
                if number in (5, 7, 8) and wire == thrift.STRUCT:
                    of_integers = [f[2] for f in fields if f[0] == 1 and f[1] in (4, 5, 6)]
                    values = thrift.signed(of_integers[-1]) if of_integers else values
            if min(*numbers, values) < 0:
                break
            pages.append((*numbers, end - at, values))
            at = end + numbers[2]
    return pages


@sampled
def test_pages_are_those_that_their_headers_tell() -> None:
    dice = random.Random(1)
    whole, several = whole_files(), 0
    for _ in range(examples(2000)):
        data = damaged(dice, dice.choice(whole))
        start = data[dice.choice([4, dice.randrange(len(data))]) :] if data else b""
        pages = native.page_sizes(start)
        assert pages == pages_of(start)[: len(pages)]  # the first that is odd ends them
        several += len(pages) > 1
    assert several > examples(100)


def longest(texts: bytes) -> int:
    """The size of the longest of texts that lie behind their sizes."""
    at = most = 0
    while at + 4 <= len(texts):
        size = int.from_bytes(texts[at : at + 4], "little")
        at += 4 + size
        if at <= len(texts):
            most = max(most, size)
    return most


def test_the_longest_text_is_found() -> None:
    dice = random.Random(2)
    for _ in range(500):
        texts = [dice.randbytes(dice.randrange(20)) for _ in range(dice.randrange(5))]
        data = b"".join(len(t).to_bytes(4, "little") + t for t in texts)
        data += dice.randbytes(dice.randrange(7))
        assert native.longest(data) == longest(data)


class _Noted(pa.PythonFile):  # type: ignore[misc]  # it has no types
    """A file in memory that notes what the crate reads of it."""

    def __init__(self, file: io.BytesIO, mode: str) -> None:  # noqa: ARG002 - pyarrow takes it
        self.reads: list[tuple[int, int]] = []

    def read_at(self, nbytes: int, offset: int) -> Any:
        self.reads.append((offset, offset + nbytes))
        return super().read_at(nbytes, offset)


@pytest.mark.parametrize("page_bytes", [1000, 100_000, 700_000, 3_000_000])
def test_no_byte_of_a_column_is_read_twice(page_bytes: int) -> None:
    """A file on a server drops what was read, and would fetch it again."""
    dice, count = random.Random(1), 600_000
    rows = pa.table(
        {
            name: pa.Array.from_buffers(
                pa.int64(), count, [None, pa.py_buffer(dice.randbytes(8 * count))]
            )
            for name in "abc"
        }
    )
    data = io.BytesIO()
    pq.write_table(rows, data, data_page_size=page_bytes, use_dictionary=False, compression="none")
    source = _Noted(data, mode="r")
    parquet = ParquetColumns(source)
    footer_start = len(data.getvalue()) - 8 - parquet.footer.size
    found = list(parquet.read_rows(50_000, 0, rows.column_names, threads=True))
    assert pa.Table.from_batches(found).equals(rows)
    reads = sorted(read for read in source.reads if read[0] < footer_start)
    assert len(reads) > 3
    assert all(end <= start for (_, end), (start, _) in pairwise(reads))
