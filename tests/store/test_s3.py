"""What the S3 store holds beyond the suite of all stores."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import obstore
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tailer.changes import Offset
from tailer.errors import ConfigError, TableError, TransientError
from tailer.log.follow import FollowOptions, follow_commits
from tailer.log.table import TableLog
from tailer.sink import make_sink
from tailer.storage import open_offset_store, open_store
from tailer.store.objects.place import s3_place
from tailer.store.s3.options import S3Options
from tailer.store.traffic import StoreMetrics
from tailer.testing.table import TableBuilder
from tests.s3.fixture import REGION, Bucket, S3Server
from tests.s3.front import run_front
from tests.s3.objects import Objects
from tests.s3.tables import Counted, deliver, store_of, upload
from tests.support.programs import run_tailer
from tests.support.registry import make_certificate
from tests.support.sinks import named, write
from tests.support.source import ROOT
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64())])


# Addresses and options


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
async def test_every_scheme_is_the_same_table(scheme: str) -> None:
    store = open_store(f"{scheme}://lake/a/b c/", {"anonymous": True})
    assert store.root == "s3://lake/a/b c"


@pytest.mark.parametrize("address", ["s3://", "s3:///key", "S3A://"])
async def test_an_address_without_a_bucket_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="names no bucket: s3://bucket/key does"):
        open_store(address, {})
    assert s3_place("http://host/key") is None


async def test_options_may_be_text_and_are_checked() -> None:
    options = S3Options.from_options(
        {"path_style": "true", "anonymous": "no", "requests_max": "7", "memory_bytes_max": "1m"}
    )
    assert options == S3Options(path_style=True, requests_max=7, memory_bytes_max=1024**2)
    mistakes: list[tuple[dict[str, Any], str]] = [
        (
            {"endpoint": "x"},
            r"option 'endpoint' of the S3 store is not known \(here it is 'endpoint_url'\)",
        ),
        (
            {"anonymous": "perhaps"},
            "'anonymous' of the S3 store is 'perhaps', and must be true or false",
        ),
        ({"requests_max": True}, "is True, and must be a whole number of requests"),
        ({"requests_max": 0}, "is 0, and must be a whole number of requests, greater than 0"),
        ({"region": 5}, "'region' of the S3 store is 5, and must be a string"),
        ({"endpoint_url": "localhost:9000"}, "must be http://host or https://host"),
        ({"endpoint_url": "http://[::1"}, "must be http://host or https://host"),
        ({"aws_ca_bundle": "x"}, r"'aws_ca_bundle' of the S3 store is not known \(here it is 'ca_"),
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
    address = bucket.address("orders")
    for also in (f"s3a://{other.name}/lake", f"s3://nobody,s3://{other.name}"):
        async with aclosing(open_store(address, {**bucket.options, "also": also})) as store:
            found = await deliver(store, Offset(1), 3)
        assert [row["id"] for row in found.events.values()] == [1, 2, 3]
    for folders in ([], [f"s3://{other.name}/lak"], [f"s3://{bucket.name}"]):
        async with aclosing(open_store(address, {**bucket.options, "also": folders})) as store:
            with pytest.raises(TableError, match=r"outside the table's folder.*as `also` of"):
                await deliver(store, Offset(1), 3)


@pytest.mark.parametrize("key", ["orders/../secret", "ordersecret", "secret/orders/x"])
async def test_a_key_beside_the_table_s_is_refused(bucket: Bucket, key: str) -> None:
    async with aclosing(store_of(bucket)) as store:
        with pytest.raises(TableError, match="outside the table's folder"):
            await store.stat(f"s3://{bucket.name}/{key}")


async def test_a_location_on_another_kind_of_store_is_refused_by_name(bucket: Bucket) -> None:
    async with aclosing(store_of(bucket)) as store:
        for location in ("/local/part.parquet", "abfss://box/part.parquet"):
            with pytest.raises(TableError, match=rf"{location}.*different store"):
                await store.open(location, 10)


# What a user gets wrong


async def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    async with aclosing(open_store("s3://no-such-bucket/orders", bucket.options)) as store:
        with pytest.raises(TableError, match=r"s3://no-such-bucket.*its bucket does not exist"):
            await TableLog(store).latest_version()


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
    async with aclosing(open_store(bucket.address("orders"), {"profile": "lake"})) as store:
        assert (await store.read("x"))[0] == b"found"
    with pytest.raises(ConfigError, match=r"\(none\) could not be found"):
        open_store(bucket.address("orders"), {"profile": "none"})


async def test_a_server_that_is_not_there_may_come_back(bucket: Bucket) -> None:
    options = {**bucket.options, "endpoint_url": "http://127.0.0.1:1"}
    async with aclosing(open_store("s3://bucket/orders", options)) as store:
        with pytest.raises(
            TransientError,
            match=r"s3://bucket/orders/x: get failed .*check endpoint_url",
        ):
            await store.read("x")


async def test_a_certificate_is_trusted_by_its_authority_alone(
    bucket: Bucket, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    with run_front(bucket, tls) as front:
        async with aclosing(store_of(front.bucket)) as store:
            with pytest.raises(TableError, match=r"certificate is not trusted.*as ca_file, or in"):
                await store.read("x")
        options = {**front.bucket.options, "ca_file": str(certificate)}
        async with aclosing(open_store(bucket.address("orders"), options)) as store:
            assert (await store.read("x"))[0] == b"found"
    with pytest.raises(ConfigError, match="can't be used as it is configured"):
        open_store("s3://b/x", {"ca_file": str(tmp_path / "none")})


async def test_an_anonymous_request_is_not_signed(bucket: Bucket) -> None:
    options = {**bucket.options, "anonymous": True}
    async with aclosing(open_store(bucket.address("orders"), options)) as store:
        with pytest.raises(TableError, match="access denied to get"):
            await store.read("x")


async def test_whoever_pays_says_so(bucket: Bucket) -> None:
    with run_front(bucket) as front:
        options = {**front.bucket.options, "requester_pays": True}
        async with aclosing(open_store(bucket.address("orders"), options)) as store:
            with pytest.raises(FileNotFoundError):
                await store.stat("x")
        assert front.last_headers["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in front.last_headers["Authorization"], "it is signed, too"


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({"server_side_encryption": "AES256"}, {"": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:of:a/key",
             "sse_bucket_key_enabled": True},
            {"": "aws:kms", "-aws-kms-key-id": "arn:of:a/key", "-bucket-key-enabled": "true"},
        ),
        ({}, {}),
    ],
)  # fmt: skip
async def test_all_that_is_written_says_how_it_is_encrypted(
    bucket: Bucket, tmp_path: Path, options: dict[str, Any], headers: dict[str, str]
) -> None:
    """Accounts may deny a PUT without these headers."""
    name = "x-amz-server-side-encryption"
    expected = {f"{name}{end}": value for end, value in headers.items()}
    assert obstore.store.S3Store("b", config=options).config.keys() >= options.keys()  # type: ignore[arg-type]  # of any names
    with run_front(bucket) as front:
        given = {**front.bucket.options, **options}
        offsets = open_offset_store(bucket.address("state"), "orders", given, lease_s=60)
        await offsets.acquire()
        await offsets.save(Offset(3))
        await offsets.release()
        saved = len(front.written)
        sink = make_sink("files", {"path": bucket.address("out"), "store": given}, tmp_path)
        await write(sink, named())
        assert 2 < saved < len(front.written)
        for put in front.written:
            assert {k.lower(): v for k, v in put.items() if k.lower().startswith(name)} == expected
            assert all(header in put["Authorization"] for header in expected), "signed, too"
        async with aclosing(open_store(bucket.address("state"), given)) as store:
            with pytest.raises(FileNotFoundError):
                await store.stat("x")
        assert name not in front.last_headers


@pytest.mark.parametrize("more", [{"sse_kms_key_id": "k"}, {"sse_bucket_key_enabled": True}])
@pytest.mark.parametrize("kind", [{}, {"server_side_encryption": "AES256"}])
def test_a_key_of_kms_is_named_with_kms(kind: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'need server_side_encryption = "aws:kms"'):
        S3Options.from_options({**kind, **more})


async def test_a_bucket_of_another_region_is_found_there(bucket: Bucket) -> None:
    """The first answer tells the region; the server signs in no other."""
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    options = {**bucket.options, "region": "us-west-2"}
    async with aclosing(open_store(bucket.address("orders"), options)) as store:
        assert (await store.read("x"))[0] == b"found"


# Requests


async def test_no_more_rights_are_needed_than_the_docs_say(bucket: Bucket, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    table.insert([{"id": 1}])
    table.checkpoint()
    table.insert([{"id": 2}])
    await upload(table.folder, bucket, "orders")
    with run_front(bucket) as front:
        offsets = open_offset_store(
            bucket.address("state"), "orders", front.bucket.options, lease_s=60
        )
        async with aclosing(store_of(front.bucket)) as store:
            await deliver(store, Offset(1, snapshot=True), 2, offsets=offsets)
            await store.stat("_delta_log/00000000000000000000.json")
        assert front.requests.keys() == {"get", "head", "list", "put"}
    (policy,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "s3.md").read_text(), re.DOTALL)
    actions = {a for statement in json.loads(policy)["Statement"] for a in statement["Action"]}
    assert actions == {"s3:GetObject", "s3:ListBucket", "s3:PutObject"}


def test_a_table_is_followed_with_the_environment_alone(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    table.insert([{"id": 1}, {"id": 2}])
    anyio.run(upload, table.folder, bucket, "orders")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("PYTHONWARNINGS", "default::ResourceWarning")
    address = bucket.address("orders")
    ended = run_tailer("tail", address, "--from", "earliest", "--to", "1")
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [1, 2]
    assert (ended.returncode, ended.stderr) == (0, ""), "nothing is left open"
    ended = run_tailer("read", address, "--from", "1", "--output", "-")
    assert len(ended.stdout.splitlines()) == 2, ended.stderr
    ended = run_tailer("history", address, "--store-option", "area=x")
    assert ended.returncode == 2
    assert "option 'area' of the S3 store is not known" in ended.stderr
    ended = run_tailer("history", address, "--store-option", "region")
    assert (ended.returncode, "must be KEY=VALUE" in ended.stderr) == (2, True)


async def test_an_idle_poll_is_one_request(bucket: Bucket, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    await upload(table.folder, bucket, "orders")
    counted = Counted()
    options = FollowOptions(poll_min_s=0.002, poll_max_s=0.002)
    async with aclosing(store_of(bucket, traffic=counted)) as store:
        commits = follow_commits(TableLog(store), Offset(0), options=options)
        async with aclosing(commits):
            await anext(commits)
            waiting = asyncio.ensure_future(anext(commits))
            await eventually_async(lambda: counted.requests["get"] >= 10, why="it polls")
            before = counted.requests.copy()
            await eventually_async(lambda: counted.requests["get"] >= 40, why="it polls")
            assert (counted.requests - before).keys() == {"get"}
            assert before["list"] <= 3, "to see how far the log goes, and that it has no gap"
            before = counted.requests.copy()
            add = table.add([{"id": 1}])
            table.commit(add)
            await upload(table.folder, bucket, "orders")
            assert (await waiting).version == 1
            assert (counted.requests - before).keys() <= {"get", "head"}
            assert counted.requests["head"] - before["head"] <= 1, "the witness's"


async def test_no_more_requests_at_a_time_than_allowed(bucket: Bucket) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    with run_front(bucket) as front:
        options = {**front.bucket.options, "requests_max": 3}
        stores = [open_store(bucket.address("orders"), options) for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for store in stores * 10:
                tasks.start_soon(store.read, "x")
        for store in stores:
            await store.aclose()
        assert 1 < front.at_a_time_max <= 3


async def test_requests_and_bytes_are_counted(bucket: Bucket) -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"12345")
    async with aclosing(store_of(bucket, traffic=metrics)) as store:
        await store.read("x")
        await store.stat("x")
        assert [s.name async for s in store.list("")] == ["x"]
    text = generate_latest(registry).decode()
    for line in (
        'tailer_store_requests_total{operation="get",status="200"} 1.0',
        'tailer_store_requests_total{operation="head",status="200"} 1.0',
        'tailer_store_requests_total{operation="list",status="200"} 1.0',
    ):
        assert line in text
    assert registry.get_sample_value("tailer_store_bytes_total") >= 5  # type: ignore[operator]
