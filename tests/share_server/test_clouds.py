"""A table on Azure's or Google's storage, shared like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tailer.testing.table import TableBuilder
from tests.clouds.servers import KEY, S3_SECRET, Container, sas_token
from tests.share_server.serving import ask, place, served


@cache
def _google_account() -> dict[str, str]:
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    fields = {"client_email": "feed@project.example", "private_key_id": "1"}
    return {"type": "service_account", "private_key": key.decode(), **fields}


async def uploaded(container: Container, folder: Path) -> tuple[Container, str, bytes]:
    """The container with an account that can sign, TOML of its options, and the bytes of the one
    data file."""
    table = TableBuilder(folder / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    await container.upload(table.folder, "lake")
    if container.cloud == "gcs":
        account = folder / "account.json"
        account.write_text(json.dumps({**_google_account(), "gcs_base_url": container.url}))
        container = replace(
            container, more={"anonymous": False, "service_account_file": str(account)}
        )
    options = "\n".join(f"{k} = {json.dumps(v)}" for k, v in container.options.items())
    (data,) = table.folder.glob("*.parquet")
    return container, options, data.read_bytes()


@pytest.mark.anyio
async def test_files_are_given_out_by_urls_of_their_store(
    container: Container, tmp_path: Path
) -> None:
    container, options, data = await uploaded(container, tmp_path)
    tables = {"s.x.t": container.address("lake")}
    with served(tmp_path, tables, share="url_ttl_s = 600", store=options) as server:
        url = server.query("s.x.t").lines[2]["file"]["url"]
        assert url.startswith(f"{container.url}/{container.name}/lake/")
        assert KEY not in url
        assert S3_SECRET not in url
        assert ask(url).body == data
        part = ask(url, headers={"Range": "bytes=4-7"})
        assert (part.status, part.body) == (206, data[4:8])
        if container.cloud != "gcs":  # whose server takes any signature for a good one
            rights = ("sp=r", "sp=w") if container.cloud == "azure" else ("s=600", "s=6000")
            for old, new in ((".parquet", ".parquet2"), rights):
                assert old in url
                assert ask(url.replace(old, new)).status == 403
        else:
            assert "X-Goog-Algorithm=GOOG4-RSA-SHA256" in url
            assert "X-Goog-Expires=600" in url
        changes = server.get(f"{place('s.x.t')}/changes?startingVersion=0").lines
        assert ask(changes[2]["add"]["url"]).body == data


@pytest.mark.anyio
async def test_files_pass_through_where_no_key_is_known(
    container: Container, tmp_path: Path
) -> None:
    """As of an account that only signs by asking somebody, once for each file; on S3, where clients
    can't reach it."""
    _, _, data = await uploaded(container, tmp_path)
    options = container.options
    if container.cloud == "azure":
        del options["account_key"]
        options["sas_token"] = sas_token()
    store = "\n".join(f"{k} = {json.dumps(v)}" for k, v in options.items())
    table = "proxy = true" if container.cloud == "s3" else ""
    tables = {"s.x.t": container.address("lake")}
    with served(tmp_path, tables, store=store, table=table) as server:
        url = server.query("s.x.t").lines[2]["file"]["url"]
        assert url.startswith(server.url)
        assert server.get(url).body == data
