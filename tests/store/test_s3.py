"""What the S3 store holds beyond the suite of all stores."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tailer.changes import Offset
from tailer.cli import main
from tailer.errors import ConfigError, TableError, TransientError
from tailer.follow import FollowOptions, follow
from tailer.log import DeltaLog
from tailer.store import open_store
from tailer.store.s3 import S3Store, SharedClients
from tailer.store.s3_errors import Unfit
from tailer.store.s3_listing import parse_page
from tailer.store.s3_options import S3Options, parse_s3_address
from tailer.store.s3_reader import RangedReader
from tailer.store.traffic import StoreMetrics, Traffic
from tailer.testing.table import TableBuilder
from tests.s3.fixture import REGION, Bucket, S3Server
from tests.s3.front import Fault, run_front
from tests.s3.objects import Objects
from tests.s3.tables import deliver, upload

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
SCHEMA = pa.schema([("id", pa.int64())])
MIB = 1024 * 1024


class Counted(Traffic):
    """Counts requests by operation."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.received = 0
        self.retries = 0

    def request(self, operation: str, status: str, received: int) -> None:  # noqa: ARG002
        self.requests[operation] += 1
        self.received += received

    def retry(self, operation: str) -> None:  # noqa: ARG002
        self.retries += 1


def store_of(bucket: Bucket, key: str = "orders", traffic: Traffic | None = None) -> S3Store:
    return S3Store(bucket.address(key), bucket.options, traffic)


# Addresses and options


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
async def test_every_scheme_is_the_same_table(scheme: str) -> None:
    store = open_store(f"{scheme}://lake/a/b c/", {"anonymous": True})
    assert store.root == "s3://lake/a/b c"


@pytest.mark.parametrize("address", ["s3://", "s3:///key", "http://host/key", "/a/b"])
async def test_what_is_no_address_of_a_bucket_is_none(address: str) -> None:
    assert parse_s3_address(address) is None
    with pytest.raises(ConfigError, match="s3://bucket/key"):
        S3Store(address, {})


async def test_options_may_be_text_and_are_checked() -> None:
    options = S3Options.from_options(
        {"path_style": "true", "anonymous": "no", "max_concurrency": "7", "read_timeout_s": "1.5"}
    )
    assert options == S3Options(path_style=True, max_concurrency=7, read_timeout_s=1.5)
    assert S3Options.from_options({"read_timeout_s": 3}).read_timeout_s == 3.0
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"endpoint": "x"}, "endpoint is not an option of the S3 store; known are anonymous,"),
        ({"anonymous": "perhaps"}, "anonymous is 'perhaps', and must be a bool"),
        ({"max_concurrency": True}, "max_concurrency is True, and must be a int"),
        ({"max_concurrency": 0}, "max_concurrency is 0, and must be at least 1"),
        ({"region": 5}, "region is 5, and must be a str"),
        ({"endpoint_url": "localhost:9000"}, "must be http://host or https://host"),
    ]
    for wrong, sentence in mistakes:
        with pytest.raises(ConfigError, match=sentence):
            S3Options.from_options(wrong)


async def test_a_local_table_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="takes no option 'region'"):
        open_store("/tmp/orders", {"region": REGION})  # noqa: S108


# Locations


async def test_a_log_may_name_files_of_another_bucket(
    bucket: Bucket, s3_server: S3Server, tmp_path: Path
) -> None:
    """As a shallow clone's does, and by whichever scheme its writer spoke."""
    other = s3_server.bucket(f"{bucket.name}-other")
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    for scheme, number in (("s3", 1), ("s3a", 2), ("s3n", 3)):
        add = table.add([{"id": number}])
        name = add["add"]["path"]
        async with Objects(other) as objects:
            await objects.put(f"lake/größe {name}", (table.folder / name).read_bytes())
        add["add"]["path"] = f"{scheme}://{other.name}/lake/gr%C3%B6%C3%9Fe%20{name}"
        (table.folder / name).unlink()
        table.commit(add)
    await upload(table.folder, bucket, "orders")
    async with aclosing(store_of(bucket)) as store:
        found = await deliver(store, Offset(1), 3)
    assert [row["id"] for row in found.events.values()] == [1, 2, 3]


async def test_a_location_on_another_kind_of_store_is_refused_by_name(bucket: Bucket) -> None:
    async with aclosing(store_of(bucket)) as store:
        for location in ("/local/part.parquet", "abfss://box/part.parquet"):
            with pytest.raises(TableError, match=rf"{location}.*another store"):
                await store.open(location, 10)


# What a user gets wrong


async def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    async with aclosing(S3Store("s3://no-such-bucket/orders", bucket.options)) as store:
        with pytest.raises(TableError, match=r"s3://no-such-bucket.*the bucket does not exist"):
            await DeltaLog(store).latest_version()


async def test_wrong_credentials_are_said_without_being_told(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    async with aclosing(store_of(bucket)) as store:
        with pytest.raises(TableError, match=r"SignatureDoesNotMatch.*secret key") as e:
            await store.read("x")
        with pytest.raises(TableError, match=r"denied to head.*check the credentials"):
            await store.stat("x")  # such an answer has no body to tell more
    assert "not-the-secret" not in str(e.value)


async def test_no_credentials_are_a_mistake_of_configuration(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    async with aclosing(store_of(bucket)) as store:
        with pytest.raises(ConfigError, match="no credentials for S3: set AWS_ACCESS_KEY_ID"):
            await store.read("x")


async def test_region_endpoint_and_credentials_come_from_a_profile(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"[profile lake]\nregion = {REGION}\nendpoint_url = {bucket.url}\n"
        f"aws_access_key_id = {os.environ['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {os.environ['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    async with aclosing(S3Store(bucket.address("orders"), {"profile": "lake"})) as store:
        assert (await store.read("x"))[0] == b"found"
    async with aclosing(S3Store(bucket.address("orders"), {"profile": "none"})) as store:
        with pytest.raises(ConfigError, match=r"\(none\) could not be found"):
            await store.read("x")


async def test_a_server_that_is_not_there_may_come_back(bucket: Bucket) -> None:
    options = {**bucket.options, "endpoint_url": "http://127.0.0.1:1", "max_attempts": 2}
    async with aclosing(S3Store("s3://bucket/orders", options)) as store:
        with pytest.raises(TransientError, match=r"s3://bucket/orders/x: get failed"):
            await store.read("x")


async def test_an_anonymous_request_is_not_signed(bucket: Bucket) -> None:
    options = {**bucket.options, "anonymous": True}
    async with aclosing(S3Store(bucket.address("orders"), options)) as store:
        with pytest.raises(TableError, match="access denied to get"):
            await store.read("x")


async def test_whoever_pays_says_so(bucket: Bucket) -> None:
    with run_front(bucket) as front:
        options = {**front.bucket.options, "requester_pays": True}
        async with aclosing(S3Store(bucket.address("orders"), options)) as store:
            with pytest.raises(FileNotFoundError):
                await store.stat("x")
        assert front.last_headers["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in front.last_headers["Authorization"], "it is signed, too"


async def test_a_bucket_of_another_region_is_found_there(bucket: Bucket) -> None:
    """The first answer tells the region; the server signs in no other."""
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    options = {**bucket.options, "region": "us-west-2"}
    async with aclosing(S3Store(bucket.address("orders"), options)) as store:
        assert (await store.read("x"))[0] == b"found"


# Requests


async def test_an_idle_poll_is_one_request(bucket: Bucket, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    await upload(table.folder, bucket, "orders")
    counted = Counted()
    options = FollowOptions(poll_min_s=0.002, poll_max_s=0.002)
    async with aclosing(store_of(bucket, traffic=counted)) as store:
        commits = follow(DeltaLog(store), Offset(0), options=options)
        async with aclosing(commits):
            await anext(commits)
            waiting = asyncio.ensure_future(anext(commits))
            while counted.requests["get"] < 10:  # noqa: ASYNC110 - nothing else tells
                await anyio.sleep(0.01)
            before = counted.requests.copy()
            while counted.requests["get"] < 40:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert (counted.requests - before).keys() == {"get"}
            assert before["list"] <= 3, "to see how far the log goes, and that it has no gap"
            before = counted.requests.copy()
            add = table.add([{"id": 1}])
            table.commit(add)
            await upload(table.folder, bucket, "orders")
            assert (await waiting).version == 1
            assert (counted.requests - before).keys() <= {"get", "head"}
            assert counted.requests["head"] - before["head"] <= 1, "the witness's"


async def test_stores_of_one_process_share_their_connections(bucket: Bucket) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(aclosing(store_of(bucket))) for _ in range(20)]
        for store in stores:
            await store.read("x")
        (client,) = {id(store._client): store._client for store in stores}.values()
        assert client is not None
        assert client._http is not None
        assert len(client._http.connector._conns) == 1  # type: ignore[union-attr]
        await stores[0].aclose()
        assert client._http is not None, "the others use it"
        assert (await stores[1].read("x"))[0] == b"found"
        http = client._http
    assert http.closed
    assert SharedClients._all[asyncio.get_running_loop()] == {}


async def test_no_more_requests_at_a_time_than_allowed(bucket: Bucket) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    with run_front(bucket) as front:
        options = {**front.bucket.options, "max_concurrency": 3, "table_concurrency": 2}
        stores = [S3Store(bucket.address("orders"), options) for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for store in stores * 10:
                tasks.start_soon(store.read, "x")
        for store in stores:
            await store.aclose()
        assert 1 < front.at_a_time_max <= 3


async def test_requests_bytes_and_retries_are_counted(bucket: Bucket) -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"12345")
    with run_front(bucket) as front:
        async with aclosing(store_of(front.bucket, traffic=metrics)) as store:
            await store.read("x")
            front.fail(Fault("500", "head", 1))
            await store.stat("x")
            assert [s.name async for s in store.list("")] == []
    text = generate_latest(registry).decode()
    for line in (
        'tailer_store_requests_total{operation="get",status="206"} 1.0',
        'tailer_store_requests_total{operation="head",status="500"} 1.0',
        'tailer_store_requests_total{operation="head",status="200"} 1.0',
        'tailer_store_requests_total{operation="list",status="200"} 1.0',
        'tailer_store_retries_total{operation="head"} 1.0',
    ):
        assert line in text
    assert registry.get_sample_value("tailer_store_bytes_total") >= 5  # type: ignore[operator]


# Data files


async def read_parquet(store: S3Store, columns: list[str] | None = None) -> pa.Table:
    """As the decoder does it: in a thread, a buffer at a time."""

    def read(source: pa.NativeFile) -> pa.Table:
        with source, pq.ParquetFile(source, pre_buffer=False, buffer_size=256 * 1024) as parquet:
            batches = list(parquet.iter_batches(8192, columns=columns))
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
    [(600_000, 3, 200_000, 20), (100_000, 40, 50_000, 60), (1000, 1, 1000, 1)],
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
    size = len(data)
    assert counted.received < size * 0.5


async def test_what_is_kept_of_a_file_is_bounded(bucket: Bucket) -> None:
    """Forty columns side by side need more than they are given, and are read all the same."""
    table = numbers(200_000, 40)
    async with Objects(bucket) as objects:
        await objects.put("orders/part.parquet", parquet_bytes(table, 200_000))
    options = {**bucket.options, "read_ahead_bytes_max": 4 * MIB}
    async with aclosing(S3Store(bucket.address("orders"), options)) as store:
        assert (await read_parquet(store)).equals(table)


async def test_windows_are_dropped_before_there_are_too_many() -> None:
    data = bytes(range(256)) * (64 * 1024)

    async def fetch(start: int, end: int) -> bytes:
        return data[start:end]

    reader = RangedReader(fetch, asyncio.get_running_loop(), len(data), data[-10:], 4 * MIB)

    def read_all(step: int) -> None:
        for at in range(0, len(data), step):
            reader.seek(at)
            assert reader.read(1000) == data[at : at + 1000]
            assert sum(len(window.data) for window in reader._windows) <= 4 * MIB

    await anyio.to_thread.run_sync(read_all, 3 * MIB)
    await anyio.to_thread.run_sync(read_all, 100_000)
    assert reader.seek(0, 2) == len(data)
    assert reader.read(5) == b""


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


# Listings


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html/>",
        b"<ListBucketResult><Contents><Key>a",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        b"<Error><Code>SlowDown</Code></Error>",
    ],
)
async def test_what_is_no_listing_is_not_taken_for_an_empty_one(body: bytes) -> None:
    with pytest.raises(Unfit):
        parse_page(body)


async def test_a_listing_tells_whole_seconds_and_plain_keys() -> None:
    body = b"""<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
      <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
      <NextContinuationToken>more</NextContinuationToken>
      <Contents><Key>a+b%2B%C3%BC/x</Key><Size>7</Size><ETag>"e"</ETag>
      <LastModified>2026-01-31T10:20:30.987Z</LastModified></Contents></ListBucketResult>"""
    page = parse_page(body)
    assert page.following == "more"
    (found,) = page.objects
    assert (found.key, found.size, found.etag) == ("a b+ü/x", 7, '"e"')
    assert found.mtime_ms == 1_769_854_830_000


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
    arguments = ["--starting-version", "1", "--with-ids"] if command == "read" else []
    assert main([command, table, *arguments, "--output", str(output), *options]) == 0
    with pa.OSFile(str(output)) as file:
        return pa.ipc.open_file(file).read_all()


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
