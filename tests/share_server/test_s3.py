"""A table on S3, shared like any other: a real S3 server behind ours."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.store.s3.presign import Presigner
from tailer.testing.table import TableBuilder
from tests.s3.fixture import SECRET, Bucket
from tests.s3.objects import Objects
from tests.share_server.serving import ask, place, served


async def uploaded(bucket: Bucket, folder: Path) -> tuple[str, bytes]:
    """TOML of the store's options, and the bytes of the one data file."""
    table = TableBuilder(folder / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    files = [path for path in table.folder.rglob("*") if path.is_file()]
    async with Objects(bucket) as objects:
        for path in files:
            await objects.put(f"lake/{path.relative_to(table.folder)}", path.read_bytes())
    options = "\n".join(f"{k} = {json.dumps(v)}" for k, v in bucket.options.items())
    data = next(path for path in files if path.suffix == ".parquet").read_bytes()
    return options, data


@pytest.mark.anyio
async def test_files_on_s3_are_given_out_by_urls_of_s3(bucket: Bucket, tmp_path: Path) -> None:
    options, data = await uploaded(bucket, tmp_path)
    share = "url_ttl_s = 600"
    tables = {"s.x.t": bucket.address("lake")}
    with served(tmp_path, tables, share=share, store=options) as server:
        url = server.query("s.x.t").lines[2]["file"]["url"]
        assert url.startswith(f"{bucket.url}/{bucket.name}/lake/")
        assert SECRET not in url
        assert ask(url).body == data
        part = ask(url, headers={"Range": "bytes=4-7"})
        assert (part.status, part.body) == (206, data[4:8])
        for old, new in ((".parquet", ".parquet2"), ("Expires=600", "Expires=6000")):
            assert old in url
            assert ask(url.replace(old, new)).status == 403
        changes = server.get(f"{place('s.x.t')}/changes?startingVersion=0").lines
        assert [next(iter(line)) for line in changes] == ["protocol", "metaData", "add"]
        assert ask(changes[2]["add"]["url"]).body == data


@pytest.mark.anyio
async def test_files_on_s3_pass_through_where_clients_cannot_reach_it(
    bucket: Bucket, tmp_path: Path
) -> None:
    options, data = await uploaded(bucket, tmp_path)
    with served(
        tmp_path, {"s.x.t": bucket.address("lake")}, store=options, table="proxy = true"
    ) as server:
        url = server.query("s.x.t").lines[2]["file"]["url"]
        assert url.startswith(server.url)
        assert server.get(url).body == data
        part = server.get(url, headers={"Range": "bytes=4-7"})
        assert (part.status, part.body) == (206, data[4:8])


def test_a_presigned_url_is_the_one_that_the_signature_s_text_gives() -> None:
    # The example of "Authenticating Requests: Using Query Parameters" in the S3 API's reference.
    signer = Presigner(
        base="https://examplebucket.s3.amazonaws.com",
        region="us-east-1",
        access_key="AKIAIOSFODNN7EXAMPLE",
        secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        token=None,
        at=dt.datetime(2013, 5, 24, tzinfo=dt.UTC),
        ttl_s=86_400,
    )
    assert signer.url("test.txt").endswith(
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    assert "wJalr" not in repr(signer)
