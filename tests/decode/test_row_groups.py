"""Footers that are damaged, or that contradict themselves or the log: refused by name, and no file
ends the process."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tailer.decode.tracking import read_tracked_rows
from tailer.decode.vectors import ALL_ROWS
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups, find_chunk
from tailer.errors import CorruptLog
from tests.decode.test_rows import decoded, numbers, order, parquet, values
from tests.support import thrift
from tests.support.components import require_crate
from tests.support.damaged_footers import (
    I64,
    ROWS,
    SCHEMA,
    Fields,
    changes,
    groups,
    in_metadata,
    put,
    whole,
    with_footer,
    zigzag,
)
from tests.support.extent import examples, sampled
from tests.support.feeds import refusal

FLIPS = examples(1500)


class PlainKeys(pe.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """A key service that hides nothing."""

    def __init__(self, _: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return base64.b64encode(key_bytes)


def encrypted(columns: list[str]) -> bytes:
    """A sound file with encrypted columns under a plain footer."""
    how = pe.EncryptionConfiguration(
        footer_key="k", column_keys={"k": columns}, plaintext_footer=True
    )
    factory = pe.CryptoFactory(PlainKeys)
    keys = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    return whole(1000, encryption_properties=keys)


@sampled
@pytest.mark.parametrize("native", ["1", "0"])
def test_no_column_of_a_footer_ends_the_process(tmp_path: Path, native: str) -> None:
    """Each kind of damaged column metadata, and flipped bits, in a process of its own: pyarrow
    throws out of a function that must not throw when it is asked for some of them."""
    (tmp_path / "one encrypted.parquet").write_bytes(encrypted(["s"]))
    (tmp_path / "all encrypted.parquet").write_bytes(encrypted(["id", "s"]))
    program = [sys.executable, "-m", "tests.support.damaged_footers", str(tmp_path), "7"]
    done = subprocess.run(
        [*program, str(FLIPS)],
        env={**os.environ, "TAILER_NATIVE": native},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"ended by {lines[-1]!r}: {done.stderr[-300:]}"
    assert len(lines) == 2 + 2 * len(changes()) + FLIPS
    assert {lines[0], lines[1]} == {
        "one encrypted: UnsupportedTable", "all encrypted: UnsupportedTable",
    }  # fmt: skip
    right = re.compile(rf".*: ({ROWS} rows|200000 rows|[A-Z]\w+)$")
    assert [line for line in lines if not right.match(line)] == [], "rows are lost or invented"


def in_groups(number: int, value: int) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        put(groups(fields)[-1], number, I64, zigzag(value))

    return change


def twice(fields: Fields) -> None:
    """Name the first row group twice, and count it twice."""
    found = thrift.value(fields, thrift.ROW_GROUPS)[1]
    found[1] = found[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_groups(3, 900), "its footer says that it has 2000 rows, and its row groups have 1900"),
        (lambda f: put(f, 3, I64, zigzag(1900)), "its footer says that it has 1900 rows"),
        (in_metadata(5, I64, zigzag(1100)), "row group 0 has 1000 rows, and its column 'id' 1100"),
        (twice, "the values of the column 'id' in row group 1 are those of an earlier row group"),
    ],
    ids=["rows of a group", "rows of the file", "values of a column", "a group twice"],
)
def test_a_footer_that_contradicts_itself_is_refused(
    change: Callable[[Fields], None], said: str
) -> None:
    require_crate()
    message = refusal(lambda: decoded(with_footer(numbers(2000, 1000), change)), CorruptLog)
    assert message.startswith("version 5, a.parquet: the data file contradicts itself or the log: ")
    assert said in message
    assert "skip this version" in message


def test_a_group_and_the_file_that_hide_rows_are_refused() -> None:
    """The pages have more rows than the row group and the file say."""
    require_crate()

    def change(fields: Fields) -> None:
        put(fields, 3, I64, zigzag(900))
        put(groups(fields)[0], 3, I64, zigzag(900))

    message = refusal(lambda: decoded(with_footer(numbers(1000, 1000), change)), CorruptLog)
    assert "row group 0 has 900 rows, and its column 'id' 1000 values" in message


@pytest.mark.parametrize("logged", [0, 999, 1001])
def test_a_footer_that_contradicts_the_log_is_refused(logged: int) -> None:
    data = numbers(1000)
    message = refusal(lambda: decoded(data, order(num_records=logged)), CorruptLog)
    assert f"the log says that it has {logged} rows (numRecords), and its footer 1000" in message
    assert values(decoded(data, order(num_records=1000))) == list(range(1000))


def test_row_ids_are_not_taken_from_a_file_that_contradicts_itself() -> None:
    data = pa.BufferReader(with_footer(numbers(2000, 1000), in_groups(3, 900)))
    file = order(base_row_id=0, default_row_commit_version=1)
    with pytest.raises(CorruptLog, match="row groups have 1900"):
        list(read_tracked_rows(data, file, ALL_ROWS))


def test_nested_columns_have_other_numbers_of_values() -> None:
    kind = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64()))])
    data = parquet([{"id": i, "l": [i] * (i % 4)} for i in range(1000)], kind)
    assert values(decoded(data)) == list(range(1000))


@pytest.mark.parametrize("options", [
    {}, {"use_dictionary": False, "compression": "zstd"}, {"row_group_size": 100},
    {"version": "1.0", "data_page_version": "2.0"},
])  # fmt: skip
def test_the_numbers_are_those_that_pyarrow_finds(options: dict[str, Any]) -> None:
    require_crate()
    data = whole(1000, **options)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    source = pa.BufferReader(data)
    row_groups = RowGroups(ParquetColumns(source), source)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found = row_groups[number]
        assert found is not None
        assert (found.rows, found.bytes) == (group.num_rows, group.total_byte_size)
        for leaf in range(len(SCHEMA)):
            chunk, column = find_chunk(found, leaf), group.column(leaf)
            assert chunk is not None
            assert (chunk.values, chunk.unpacked, chunk.size, chunk.start) == (
                column.num_values, column.total_uncompressed_size, column.total_compressed_size,
                column.dictionary_page_offset or column.data_page_offset,
            )  # fmt: skip
