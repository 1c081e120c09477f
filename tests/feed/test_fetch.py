"""From a change file to bytes: what is missing or damaged is named, never passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64())])
FEATURES = {
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "changeDataFeed"],
}


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 adds three rows, version 2 deletes one of them by a deletion vector."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create(table.protocol(3, 7, **FEATURES))
    add = table.add([{"id": 1}, {"id": 2}, {"id": 3}])
    table.commit(add)
    table.commit(*table.delete_rows(add, [1]))
    return table


def refused(table: TableBuilder, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which `tailer read` of the whole table ends; nothing is left behind."""
    output = table.folder.parent / "out.jsonl"
    command = ["read", str(table.folder), "--from", "0", "--output", str(output)]
    assert main([*command, *arguments]) == 1
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith(f"tailer: {table.folder}, version ")
    assert [f.name for f in table.folder.parent.iterdir()] == [table.folder.name]
    return line


def test_a_missing_data_file_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = table.folder.glob("part-*")
    file.unlink()
    assert f"version 1, {file.name}: the data file is gone" in refused(table, capsys)


def test_a_missing_cdc_file_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    cdc = table.cdc([{"id": 3, "_change_type": "delete"}])
    table.commit(cdc)
    (table.folder / cdc["cdc"]["path"]).unlink()
    line = refused(table, capsys)
    assert f"version 3, {cdc['cdc']['path']}: the cdc file is gone" in line


def test_a_missing_deletion_vector_file_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = table.folder.glob("deletion_vector_*")
    file.unlink()
    assert f"version 2, {file.name}: the deletion vector file is gone" in refused(table, capsys)


def _flip(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_flip, "checksum (CRC-32) does not fit"),
        (lambda data: data[:-3], "cut short: "),
        (lambda data: data[:4] + b"\x00" + data[5:], "says it has 0 bytes"),
        (lambda _: b"", "cut short: 0 of"),
    ],
)
def test_a_corrupt_deletion_vector_is_named(
    table: TableBuilder,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[bytes], bytes],
    sentence: str,
) -> None:
    (file,) = table.folder.glob("deletion_vector_*")
    file.write_bytes(damage(file.read_bytes()))
    line = refused(table, capsys)
    assert f"version 2, {file.name}: " in line
    assert sentence in line


def test_a_deletion_vector_beyond_the_file_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    add = table.add([{"id": 7}])
    table.commit(add)
    table.commit(*table.delete_rows(add, [5]))
    assert f"version 4, {add['add']['path']}: the deletion vector names row 5" in refused(
        table, capsys
    )


@pytest.mark.parametrize("left", [0, 3, 100])
def test_a_data_file_that_was_cut_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str], left: int
) -> None:
    (file,) = table.folder.glob("part-*")
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:left])
    sentence = (
        f"the data file has {left} bytes, and the log says {size}: it was truncated or replaced"
    )
    assert f"version 1, {file.name}: {sentence}" in refused(table, capsys)


@pytest.mark.parametrize("size", [-1, 0, 11, 2**62, "733", 1.5, None, True])
def test_a_size_that_is_none_is_the_writers_mistake(
    table: TableBuilder, capsys: pytest.CaptureFixture[str], size: Any
) -> None:
    add = table.add([{"id": 7}])
    table.commit({"add": {**add["add"], "size": size}})
    said = refused(table, capsys)
    assert "version 3" in said
    assert "its writer" in said
    assert "backup" not in said


def test_a_whole_file_of_another_size_is_not_delivered(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = table.folder.glob("part-*")
    other = table.add([{"id": i} for i in range(1000)])["add"]["path"]
    size = file.stat().st_size
    (table.folder / other).replace(file)
    assert f"bytes, and the log says {size}: it was truncated or replaced" in refused(table, capsys)


def test_a_file_in_another_store_is_named(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    table.commit({"add": {**table.add([{"id": 1}])["add"], "path": "s3a://bucket/part.parquet"}})
    line = refused(table, capsys)
    assert "version 3, s3://bucket/part.parquet: " in line
    assert "different store" in line


@pytest.mark.parametrize("storage", ["u", "p", "i"])
def test_every_way_to_store_a_deletion_vector_is_read(
    table: TableBuilder, capsys: pytest.CaptureFixture[str], storage: str
) -> None:
    add = table.add([{"id": i} for i in range(5)])
    table.commit(add)
    table.commit(*table.delete_rows(add, [0, 3], storage))
    arguments = ["--from", "4", "--output", "-"]
    assert main(["read", str(table.folder), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ['{"id":0', '"_change_type":"delete"'],
        ['{"id":3', '"_change_type":"delete"'],
    ]
