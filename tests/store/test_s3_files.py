"""Data files and whole tables on S3: few requests, and the same rows."""

from __future__ import annotations

import os
import tarfile
from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.cli.main import main
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import TransientError
from tailer.storage import open_store
from tailer.store import Store
from tests.s3.fixture import Bucket, S3Server
from tests.s3.objects import Objects
from tests.s3.tables import Counted, store_of, upload

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
MIB = 1024 * 1024


# Data files


async def read_parquet(store: Store, columns: list[str] | None = None) -> pa.Table:
    """As the decoder does it: in a thread, a buffer at a time."""

    def read(source: pa.NativeFile) -> pa.Table:
        with source:
            parquet = ParquetColumns(source, buffer_bytes=256 * 1024)
            names = columns or parquet.schema.names
            groups = range(parquet.num_row_groups)
            RowGroups(parquet, source).announce(names, groups)
            batches = list(parquet.read_batches(8192, groups, names, threads=True))
            return pa.Table.from_batches(batches)

    return await anyio.to_thread.run_sync(read, await store.open("part.parquet", None))


def numbers(rows: int, columns: int) -> pa.Table:
    return pa.table({f"c{i}": pa.array(range(i, rows + i), pa.int64()) for i in range(columns)})


def parquet_bytes(table: pa.Table, group_rows: int) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=group_rows, use_dictionary=False, compression="none")
    data: bytes = out.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize(
    ("rows", "columns", "group_rows", "requests_max"),
    [(600_000, 3, 200_000, 20), (100_000, 40, 50_000, 60), (1000, 1, 1000, 2)],
)
async def test_a_file_is_read_with_few_requests_and_once(
    bucket: Bucket, rows: int, columns: int, group_rows: int, requests_max: int
) -> None:
    table = numbers(rows, columns)
    data = parquet_bytes(table, group_rows)
    async with Objects(bucket) as objects:
        await objects.put("orders/part.parquet", data)
    counted = Counted()
    async with aclosing(store_of(bucket, traffic=counted)) as store:
        assert (await read_parquet(store)).equals(table)
    assert counted.requests.total() <= requests_max
    size = len(data)
    assert counted.received <= size * 1.01 + 64 * 1024


async def test_columns_that_are_not_asked_for_are_mostly_left_alone(bucket: Bucket) -> None:
    table = numbers(1_000_000, 6)
    data = parquet_bytes(table, 1_000_000)
    async with Objects(bucket) as objects:
        await objects.put("orders/part.parquet", data)
    counted = Counted()
    async with aclosing(store_of(bucket, traffic=counted)) as store:
        assert (await read_parquet(store, ["c2"])).equals(table.select(["c2"]))
    # A sixth is asked for, of one piece. How far the reader is ahead of it depends on the moment;
    # it is two windows at most.
    assert counted.received < len(data) * 0.6


async def test_what_is_kept_of_a_file_is_bounded(bucket: Bucket) -> None:
    """Forty columns side by side need more than they are given, and are read all the same."""
    table = numbers(200_000, 40)
    async with Objects(bucket) as objects:
        await objects.put("orders/part.parquet", parquet_bytes(table, 200_000))
    options = {**bucket.options, "memory_bytes_max": 16 * MIB}
    async with aclosing(open_store(bucket.address("orders"), options)) as store:
        assert (await read_parquet(store)).equals(table)


async def test_a_file_that_is_replaced_while_it_is_open_is_an_error(bucket: Bucket) -> None:
    async with Objects(bucket) as objects, aclosing(store_of(bucket)) as store:
        await objects.put("orders/x", b"a" * MIB)
        with await store.open("x", None) as source:
            await objects.put("orders/x", b"b" * MIB)
            with pytest.raises(TransientError, match="was replaced while it was read"):
                await anyio.to_thread.run_sync(source.read_at, 10, 0)


async def test_a_read_on_the_event_loop_is_refused_and_not_a_deadlock(bucket: Bucket) -> None:
    async with Objects(bucket) as objects, aclosing(store_of(bucket)) as store:
        await objects.put("orders/x", b"a" * MIB)
        with await store.open("x", None) as source, pytest.raises(RuntimeError, match="threads"):
            source.read_at(10, 0)


# Whole tables


def unpack(name: str, folder: Path) -> Path:
    """A golden table, its files' times cut to the whole seconds that S3 has."""
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="tar")
    for file in (folder / name / "table").rglob("*"):
        seconds = int(file.stat().st_mtime)
        os.utime(file, (seconds, seconds))
    return folder / name / "table"


def read_rows(command: str, table: str, output: Path, *options: str) -> pa.Table:
    arguments = ["--from", "1", "--with-ids"] if command == "read" else []
    assert main([command, table, *arguments, "--output", str(output), *options]) == 0
    with pa.OSFile(str(output)) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.mark.slow  # as tests/clouds/test_copies.py, which has all golden tables
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("read", "cdf_partition_strings"),
        ("read", "cdf_dv_large_file"),
        ("read", "cdf_times_backwards"),
        ("read", "mapping_name_cdf"),
        ("snapshot", "multi_part_checkpoint"),
        ("read", "plain_dv"),
        ("read", "random_prefixes"),
        ("read", "rowtracking_dv"),
        ("snapshot", "v2_checkpoint_parquet"),
    ],
)
def test_a_table_of_spark_s_is_read_from_s3_as_from_the_disk(
    bucket: Bucket, s3_server: S3Server, tmp_path: Path, command: str, name: str
) -> None:
    local = unpack(name, tmp_path)
    anyio.run(upload, local, bucket, "lake/orders")
    remote = s3_server.folder / bucket.name / "lake/orders"
    for file in local.rglob("*"):
        if file.is_file():
            seconds = int(file.stat().st_mtime)
            os.utime(remote / file.relative_to(local), (seconds, seconds))
    address = bucket.address("lake/orders")
    options = [f"--store-option={key}={value}" for key, value in bucket.options.items()]
    found = read_rows(command, address, tmp_path / "s3.arrow", *options)
    expected = read_rows(command, str(local), tmp_path / "local.arrow")
    assert expected.num_rows > 0
    assert found.equals(expected)
