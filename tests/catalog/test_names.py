"""What a name stands for, and the sentence for each way in which it stands for nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailer.errors import ConfigError, TableError, TailerError, TransientError
from tailer.secrets import hide_secrets
from tailer.storage import open_store
from tailer.testing.table import TableBuilder
from tests.catalog.reading import ids, newest_version, read_table
from tests.catalog.server import CLIENT, TOKEN, CatalogServer
from tests.catalog.writer import ManagedTable
from tests.sharing.shared import orders

pytestmark = pytest.mark.anyio

ADDRESS = "uc://main.sales.orders"


@pytest.fixture
def builder(server: CatalogServer, tmp_path: Path) -> TableBuilder:
    """A table of three versions by path, registered in the catalog."""
    made = orders(tmp_path / "orders", 3)
    server.table("orders", f"file://{tmp_path}/orders")
    return made


async def said_of(address: str, kind: type[TailerError] = TableError, **options: str) -> str:
    """The one sentence about an address."""
    with pytest.raises(kind) as caught:
        await newest_version(address, **options)
    return str(caught.value)


@pytest.mark.usefixtures("builder")
async def test_a_table_by_path_is_read_by_its_name(server: CatalogServer, tmp_path: Path) -> None:
    by_path = await read_table(str(tmp_path / "orders"), 1, 2)
    assert await read_table(ADDRESS, 1, 2) == by_path
    assert ids(by_path) == [1, 2]
    assert server.seen("credentials") == 0  # a folder of this machine needs none


@pytest.mark.usefixtures("builder")
@pytest.mark.parametrize(
    ("address", "missing"),
    [
        ("uc://nope.sales.orders", "no catalog nope"),
        ("uc://main.nope.orders", "no schema main.nope"),
        ("uc://main.sales.nope", "no table main.sales.nope"),
    ],
)
async def test_the_part_of_a_name_that_is_missing_is_named(address: str, missing: str) -> None:
    said = await said_of(address)
    assert missing in said
    assert "check the name, and that the owner of the token may see it" in said


@pytest.mark.parametrize(
    ("address", "missing"),
    [
        ("uc://nope.sales.orders", "no catalog nope"),
        ("uc://main.nope.orders", "no schema main.nope"),
        ("uc://main.names.nope", "no table main.names.nope"),
    ],
)
async def test_so_it_is_by_a_server_of_other_authors(
    real_server: str, address: str, missing: str
) -> None:
    table = ManagedTable(real_server, TOKEN, schema="names")
    for path, body in (
        ("/catalogs", {"name": "main"}),
        ("/schemas", {"name": "names", "catalog_name": "main"}),
    ):
        assert table.call("POST", path, body)[0] in (200, 409)
    assert f"the catalog at {real_server} has {missing}; check the name" in await said_of(address)


@pytest.mark.parametrize("address", ["uc://orders", "uc://sales.orders", "uc://a.b.c.d", "uc://"])
async def test_an_address_of_another_shape_is_refused(address: str) -> None:
    assert "uc://catalog.schema.table" in await said_of(address, ConfigError)


async def test_a_catalog_without_an_endpoint_is_refused() -> None:
    said = await said_of(ADDRESS, ConfigError)
    assert "[catalogs.main]" in said
    assert "DATABRICKS_HOST" in said


@pytest.mark.usefixtures("builder")
async def test_a_missing_grant_is_named(server: CatalogServer) -> None:
    server.forbidden.add("orders")
    said = await said_of(ADDRESS)
    assert "no SELECT on orders" in said
    assert "grant the owner of the token USE CATALOG, USE SCHEMA and SELECT on" in said


@pytest.mark.usefixtures("builder")
async def test_a_token_that_has_expired_is_said_and_not_shown(server: CatalogServer) -> None:
    store = open_store(ADDRESS)
    assert (await store.stat("_delta_log/00000000000000000000.json")).size
    await store.aclose()
    server.tokens.clear()
    said = await said_of(ADDRESS, ConfigError)
    assert "expired" in said
    assert TOKEN not in said
    assert TOKEN not in hide_secrets(f"a message with {TOKEN}")


@pytest.mark.usefixtures("builder")
async def test_an_oauth_client_buys_its_tokens_and_new_ones_when_they_end(
    server: CatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABRICKS_TOKEN")
    options = {"client_id": CLIENT[0], "client_secret": CLIENT[1]}
    assert await newest_version(ADDRESS, **options) == 2
    assert server.seen("/oidc/v1/token") == 1
    store = open_store(ADDRESS, options)
    await store.stat("_delta_log/00000000000000000000.json")
    server.tokens.clear()  # they have ended, and a new one is good
    assert await newest_version(ADDRESS, **options) == 2
    await store.aclose()
    wrong = await said_of(ADDRESS, ConfigError, client_id=CLIENT[0], client_secret="no-secret-1")
    assert "refused the client 'feed-client'" in wrong
    assert "no-secret-1" not in wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "a", "client_id": "b", "client_secret": "c"}, "exclude each other"),
        ({"client_id": "b"}, "go together"),
        ({"token": "a\r\nX-Header: b"}, "must be a string"),
        ({"endpoint": "ftp://host"}, "http://host or https://host"),
    ],
)
async def test_wrong_options_are_refused(
    server: CatalogServer, options: dict[str, str], said: str
) -> None:
    given = {"endpoint": server.endpoint, **options}
    assert said in await said_of(ADDRESS, ConfigError, **given)


@pytest.mark.usefixtures("builder")
async def test_an_option_that_no_store_of_the_table_has_is_refused() -> None:
    said = await said_of(ADDRESS, ConfigError, zone="x")
    assert "uc://main.sales.orders is at file://" in said
    assert "zone" in said


async def test_a_location_without_a_store_is_named(server: CatalogServer) -> None:
    server.table("orders", "hdfs://lake/orders")
    said = await said_of(ADDRESS, ConfigError)
    assert "uc://main.sales.orders is at hdfs://lake/orders: no store for" in said


async def test_a_view_and_a_table_of_another_format_are_refused(server: CatalogServer) -> None:
    entry = server.table("orders", "file:///nowhere")
    entry.form = "CSV"
    assert "the catalog says that it is no Delta table" in await said_of(ADDRESS)


@pytest.mark.usefixtures("builder")
async def test_a_server_without_the_delta_api_is_refused(server: CatalogServer) -> None:
    server.has_delta_api = False
    assert "no Delta API" in await said_of(ADDRESS)


@pytest.mark.usefixtures("builder")
async def test_a_catalog_that_stays_away_is_an_error_that_heals(server: CatalogServer) -> None:
    server.away = None
    said = await said_of(ADDRESS, TransientError)
    assert f"the catalog at {server.endpoint}" in said
    assert "503" in said
    server.away = 1
    assert await newest_version(ADDRESS) == 2


async def test_a_table_that_was_made_anew_elsewhere_is_noticed(
    server: CatalogServer, builder: TableBuilder, tmp_path: Path
) -> None:
    clock = [time.monotonic()]
    store = open_store(ADDRESS)
    store._clock = lambda: clock[0]  # type: ignore[attr-defined]
    first = await store.stat("_delta_log/00000000000000000002.json")
    assert first.size == builder.commit_path(2).stat().st_size
    orders(tmp_path / "moved", 1)
    server.table("orders", f"file://{tmp_path}/moved")
    assert (await store.stat("_delta_log/00000000000000000002.json")).tag == first.tag
    clock[0] += 60
    with pytest.raises(FileNotFoundError):
        await store.stat("_delta_log/00000000000000000002.json")
    await store.aclose()
