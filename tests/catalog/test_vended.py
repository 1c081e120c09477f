"""Credentials that a catalog vends for tables on S3: used, renewed, refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import TableError, TransientError
from tailer.log.table import TableLog
from tailer.secrets import hide_secrets
from tailer.storage import open_store
from tailer.store.vended import VendedCredential, Vendor
from tests.catalog.reading import ids, read_table
from tests.catalog.server import CatalogServer
from tests.clouds.servers import ACCOUNT, S3_ACCESS, S3_SECRET, SERVERS, CloudServer, sas_token
from tests.s3.fixture import ACCESS, REGION, SECRET, Bucket, S3Server
from tests.s3.tables import upload
from tests.sharing.shared import orders

pytestmark = pytest.mark.anyio

ADDRESS = "uc://main.sales.orders"
KEYS = {"s3.access-key-id": ACCESS, "s3.secret-access-key": SECRET}


@pytest.fixture
async def bucket(
    server: CatalogServer, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """A table in a bucket, which nobody but the catalog has the keys to."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    made = s3_server.bucket("catalog")
    orders(tmp_path / "orders", 4)
    await upload(tmp_path / "orders", made, "lake/orders")
    server.table("orders", "s3://catalog/lake/orders")
    return made


def vends(server: CatalogServer, **more: Any) -> None:
    """Have the catalog vend the account's keys."""

    def vend() -> list[dict[str, Any]]:
        one = {"prefix": "s3://catalog/lake/orders", "operation": "READ", "config": KEYS,
               "expiration-time-ms": int((time.time() + 3600) * 1000)}  # fmt: skip
        return [one | more]

    server.vended["main.sales.orders"] = vend


def options(bucket: Bucket) -> dict[str, str]:
    return {"endpoint_url": bucket.url, "region": REGION}


async def test_a_table_on_s3_is_read_with_what_the_catalog_vends(
    server: CatalogServer, bucket: Bucket
) -> None:
    vends(server)
    assert ids(await read_table(ADDRESS, 1, 3, **options(bucket))) == [1, 2, 3]
    assert server.seen("/credentials") == 1
    assert SECRET not in hide_secrets(f"the key {SECRET} in a message")


async def test_keys_that_are_about_to_end_are_renewed(
    server: CatalogServer, bucket: Bucket
) -> None:
    vends(server, **{"expiration-time-ms": int(time.time() * 1000) - 1})  # over at once
    store = open_store(ADDRESS, options(bucket))
    await TableLog(store).latest_version()
    asked = server.seen("/credentials")
    assert asked > 1
    vends(server)
    await TableLog(store).latest_version()
    assert server.seen("/credentials") == asked + 1
    await TableLog(store).latest_version()
    assert server.seen("/credentials") == asked + 1
    await store.aclose()


@pytest.mark.parametrize(
    ("credential", "said"),
    [
        ({"config": {"azure.sas-token": "sig=abc"}}, "vends azure.sas-token for it, and s3://"),
        ({"config": {}}, "vends nothing for it"),
        ({"prefix": "s3://catalog/lake/other"}, "vends a credential for s3://catalog/lake/other,"),
        ({"prefix": "s3://catalog/lake/ord"}, "vends a credential for s3://catalog/lake/ord,"),
    ],
)
async def test_a_credential_for_another_place_or_cloud_is_said(
    server: CatalogServer, bucket: Bucket, credential: dict[str, Any], said: str
) -> None:
    vends(server, **credential)
    with pytest.raises(TableError) as caught:
        await read_table(ADDRESS, 1, 3, **options(bucket))
    assert said in str(caught.value)
    assert "sig=abc" not in str(caught.value)


async def test_keys_that_the_storage_refuses_are_said(
    server: CatalogServer, bucket: Bucket
) -> None:
    vends(server, config={**KEYS, "s3.secret-access-key": "another-secret"})
    with pytest.raises(TableError, match=r"s3://catalog.*access denied to"):
        await read_table(ADDRESS, 1, 3, **options(bucket))


async def test_of_several_credentials_the_narrowest_counts_until_it_is_forgotten() -> None:
    asked = []

    async def fetch() -> Sequence[VendedCredential]:
        asked.append(1)
        return [
            VendedCredential(prefix, {"key": prefix}, 2000.0)
            for prefix in ("s3://b", "s3://b/lake/orders", "s3://b/lake")
        ]

    now = [1000.0]
    vendor = Vendor("uc://a.b.c", "s3://b/lake/orders", fetch, lambda: now[0])
    assert await vendor.values("key") == {"key": "s3://b/lake/orders"}
    now[0] = 1699.0
    await vendor.values("key")
    assert len(asked) == 1
    now[0] = 1701.0  # 300 s before its end
    await vendor.values("key")
    assert len(asked) == 2
    vendor.forget()
    await vendor.values("key")
    assert len(asked) == 3


async def test_a_sas_of_the_catalog_reads_a_table_on_azure(
    server: CatalogServer, azurite: CloudServer, tmp_path: Path
) -> None:
    container = azurite.container()
    orders(tmp_path / "orders", 4)
    await container.upload(tmp_path / "orders", "orders")
    address = container.address("orders")
    server.table("orders", address)
    vends(server, prefix=address, config={"azure.sas-token": sas_token()})
    where = {"account_name": ACCOUNT, "endpoint_url": container.url}
    assert ids(await read_table(ADDRESS, 1, 3, **where)) == [1, 2, 3]
    assert server.seen("/credentials") == 1
    vends(server, prefix=address, config=KEYS)
    with pytest.raises(TableError, match=r"vends s3\.access-key-id, .* needs azure\.sas-token"):
        await read_table(ADDRESS, 1, 3, **where)


async def test_a_token_of_the_catalog_reads_a_table_on_google(
    server: CatalogServer, gcs_server: CloudServer, tmp_path: Path
) -> None:
    container = gcs_server.container()
    orders(tmp_path / "orders", 4)
    await container.upload(tmp_path / "orders", "orders")
    address = container.address("orders")
    server.table("orders", address)
    vends(server, prefix=address, config={"gcs.oauth-token": "a-token"})
    assert ids(await read_table(ADDRESS, 1, 3, endpoint_url=container.url)) == [1, 2, 3]
    assert server.seen("/credentials") == 1


@pytest.mark.parametrize("cloud", SERVERS)
async def test_a_renewal_that_is_refused_is_said_by_the_catalogs_sentence(
    server: CatalogServer, cloud: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    container = request.getfixturevalue(cloud).container()
    orders(tmp_path / "orders", 4)
    await container.upload(tmp_path / "orders", "orders")
    address = container.address("orders")
    server.table("orders", address)
    vended = {
        "azurite": {"azure.sas-token": sas_token()},
        "gcs_server": {"gcs.oauth-token": "a-token"},
        "s3_server": {"s3.access-key-id": S3_ACCESS, "s3.secret-access-key": S3_SECRET},
    }[cloud]
    over = int(time.time() * 1000) - 1  # at once: each request asks for another
    vends(server, prefix=address, config=vended, **{"expiration-time-ms": over})
    named = ("account_name", "region", "endpoint_url")
    where = {name: value for name, value in container.options.items() if name in named}
    store = open_store(ADDRESS, where)
    assert await TableLog(store).latest_version() == 3
    server.forbidden.add("orders")
    with pytest.raises(TableError, match="grant the owner of the token USE CATALOG") as refused:
        await store.stat("_delta_log/00000000000000000000.json")
    assert "\n" not in str(refused.value)
    server.forbidden.clear()
    server.away = None
    with pytest.raises(TransientError, match=r"the catalog at .* answered 503"):
        await store.stat("_delta_log/00000000000000000000.json")
    server.away = 0
    assert (await store.stat("_delta_log/00000000000000000000.json")).size
    await store.aclose()
