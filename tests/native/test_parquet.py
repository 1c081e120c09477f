"""The crate beside what stands in for it: damaged files, footers and pages."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta import footer, row_groups
from tailer.delta.parquet_columns import ParquetColumns, footer_bytes
from tailer.native.parquet import native
from tests.support.components import require
from tests.support.parquet_fuzz import damaged, whole_files
from tests.support.source import ROOT


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require("tailer.native._parquet, which `make native` builds,", native is not None)


def test_damaged_files_have_pyarrows_rows_or_none() -> None:
    """In a process of its own, which nothing may end."""
    files = 2 * int(os.environ.get("TAILER_TORTURE_ROUNDS", "500"))
    program = [sys.executable, "-m", "tests.support.parquet_fuzz", str(files)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "differ" not in done.stdout, done.stdout
    assert "equal" in done.stdout
    assert not done.stderr, "a panic is an exception"


def test_a_panic_is_an_exception() -> None:
    """Arrow's names are UTF-8, which those of a damaged footer may not be."""
    name = b"\xff".decode("utf-8", "surrogateescape")
    with pytest.raises((ValueError, UnicodeError)):
        native.Columns(None, b"", pa.schema([(name, pa.int32())]))
    for content in (b"", b"\x00" * 100, b"\xff" * 100):
        with pytest.raises(ValueError, match=r"."):
            native.Columns(None, content, pa.schema([]))


def test_row_groups_are_those_of_the_other_way() -> None:
    for data in whole_files():
        thrift = footer_bytes(pa.BufferReader(data), 2**20)
        assert thrift is not None
        assert native.groups(thrift) == footer.group_numbers(thrift)


def test_pages_are_those_of_the_other_way() -> None:
    dice = random.Random(1)
    whole, several = whole_files(), 0
    for _ in range(2000):
        data = damaged(dice, dice.choice(whole))
        start = data[dice.choice([4, dice.randrange(len(data))]) :] if data else b""
        pages = native.page_sizes(start)
        assert pages == footer.page_sizes(start)
        several += len(pages) > 1
    assert several > 100


def test_the_longest_text_is_that_of_the_other_way() -> None:
    dice = random.Random(2)
    for _ in range(500):
        texts = [dice.randbytes(dice.randrange(20)) for _ in range(dice.randrange(5))]
        data = b"".join(len(t).to_bytes(4, "little") + t for t in texts)
        data += dice.randbytes(dice.randrange(7))
        assert native.longest(data) == row_groups._longest(data)


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
    footer_start = len(data.getvalue()) - 8 - parquet.metadata.serialized_size
    found = list(parquet.rows(50_000, 0, rows.column_names, threads=True))
    assert pa.Table.from_batches(found).equals(rows)
    reads = sorted(read for read in source.reads if read[0] < footer_start)
    assert len(reads) > 3
    assert all(end <= start for (_, end), (start, _) in pairwise(reads))
