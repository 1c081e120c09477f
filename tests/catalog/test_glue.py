"""Tables that AWS Glue names, against moto's Glue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tailer.daemon.discovery import discover_tables
from tailer.errors import ConfigError, TableError, TailerError, TransientError
from tailer.storage import open_store
from tests.catalog.glue import SPARK, Database
from tests.catalog.reading import ids, newest_version, read_table
from tests.s3.fixture import ACCOUNT as S3_ACCOUNT
from tests.s3.fixture import S3Server
from tests.s3.tables import upload
from tests.sharing.shared import orders
from tests.support.aws import REGION
from tests.support.programs import run_tailer
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "unity-catalog.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.anyio

ATHENA = {"Parameters": {"table_type": "DELTA"}}


async def said_of(address: str, kind: type[TailerError] = TableError) -> str:
    with pytest.raises(kind) as caught:
        await newest_version(address)
    return str(caught.value)


@pytest.mark.parametrize(
    ("location", "path", "parameters"),
    [
        ("file://{}", None, SPARK),
        ("file://{}/", None, ATHENA),
        ("s3://lake/orders-__PLACEHOLDER__", "file://{}", SPARK),
        ("file://{}/_symlink_format_manifest", None, {"Parameters": {"classification": "delta"}}),
    ],
)
async def test_a_table_is_where_glue_says(
    database: Database, tmp_path: Path, location: str, path: str | None, parameters: Any
) -> None:
    orders(tmp_path / "orders", 3)
    folder = f"{tmp_path}/orders"
    address = database.table(
        "orders", location.format(folder), parameters, path and path.format(folder)
    )
    assert ids(await read_table(address, 1, 2)) == [1, 2]
    store = open_store(address)
    assert await store.access() == f"at {folder}, by AWS Glue"
    await store.aclose()


async def test_a_table_on_s3_is_read_with_the_same_account(
    database: Database, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in S3_ACCOUNT.items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.bucket("glue")
    orders(tmp_path / "orders", 3)
    await upload(tmp_path / "orders", bucket, "lake/orders")
    address = database.table("orders", "s3://glue/lake/orders")
    assert ids(await read_table(address, 1, 2, **bucket.options)) == [1, 2]


async def test_the_commands_take_the_address(database: Database, tmp_path: Path) -> None:
    orders(tmp_path / "orders", 3)
    address = database.table("orders", f"file://{tmp_path}/orders")
    (line,) = re.findall(r"^tailer .*glue.*$", PAGE, re.MULTILINE)
    command = line.removeprefix("tailer ").replace("glue://sales.orders", address).split()
    done = run_tailer(*command, "--to", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2


async def test_patterns_find_the_delta_tables(database: Database) -> None:
    for name in ("a1", "a2", "b1"):
        database.table(name, f"file:///lake/{name}")
    database.table("parquet", "file:///lake/parquet", {"Parameters": {"table_type": "ICEBERG"}})
    found = await discover_tables(f"glue://{database.name}.a*", {})
    assert found.tables == {
        "1": f"glue://{database.name}.a1", "2": f"glue://{database.name}.a2",
    }  # fmt: skip
    end = database.name.removeprefix("sales_")
    every = await discover_tables(f"glue://*_{end}.*", {})
    assert sorted(every.tables) == ["sales/a1", "sales/a2", "sales/b1"]


def linked(database: Database, name: str, target: Any) -> str:
    """A resource link to a table; its address."""
    table = {"Name": name, "TargetTable": target}
    database.glue.create_table(DatabaseName=database.name, TableInput=table)
    return f"glue://{database.name}.{name}"


async def test_resource_links_are_followed(database: Database, tmp_path: Path) -> None:
    """moto says of a link what was said when it was made, as AWS does without rights on its
    target."""
    orders(tmp_path / "orders", 3)
    database.table("orders", f"file://{tmp_path}/orders")
    database.table("parquet", "s3://x/y", {"Parameters": {"table_type": "ICEBERG"}})
    place = {"CatalogId": "123456789012", "DatabaseName": database.name}
    by_table = linked(database, "link", {**place, "Name": "orders", "Region": REGION})
    linked(database, "other", {**place, "Name": "parquet"})
    glue, other = database.glue, f"{database.name}_link"
    glue.create_database(DatabaseInput={"Name": other, "TargetDatabase": place})
    for address in (by_table, f"glue://{other}.orders", f"glue://{other}.link"):
        assert ids(await read_table(address, 1, 2)) == [1, 2]
    assert sorted((await discover_tables(f"glue://{database.name}.*", {})).tables) == [
        "link",
        "orders",
    ]
    assert sorted((await discover_tables(f"glue://{other}.*", {})).tables) == ["link", "orders"]
    assert "its format is ICEBERG" in await said_of(f"glue://{other}.other")
    assert "has no such table" in await said_of(f"glue://{other}.nope")


async def test_resource_links_that_lead_nowhere_are_one_sentence(database: Database) -> None:
    place = {"CatalogId": "123456789012", "DatabaseName": database.name}
    round_ = linked(database, "a", {**place, "Name": "b"})
    linked(database, "b", {**place, "Name": "a"})
    itself = linked(database, "self", {**place, "Name": "self"})
    for address in (round_, itself):
        assert "to another resource link; link to the table itself" in await said_of(address)
    for target, said in (
        ({**place, "Name": "gone"}, "has no such table"),
        ({**place, "DatabaseName": "nowhere", "Name": "x"}, "has no such table"),
        ({"CatalogId": "1"}, "a resource link without a target"),
        ({}, "its format is unknown"),
    ):
        name = f"t{len(str(target))}"
        assert said in await said_of(linked(database, name, target)), target
    glue, ring = database.glue, f"{database.name}_ring"
    itself_too = {"CatalogId": "123456789012", "DatabaseName": ring}
    glue.create_database(DatabaseInput={"Name": ring, "TargetDatabase": itself_too})
    assert "has no such table" in await said_of(f"glue://{ring}.x")
    assert (await discover_tables(f"glue://{ring}.*", {})).tables == {}


async def test_bad_input_is_one_sentence(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no such table" in await said_of(f"glue://{database.name}.nope")
    assert "has no such table" in await said_of("glue://no_database.nope")
    for address in ("glue://orders", "glue://a.b.c", "glue://"):
        assert "glue://database.table" in await said_of(address, ConfigError)
    iceberg = database.table("iceberg", "s3://x/y", {"Parameters": {"table_type": "ICEBERG"}})
    assert "its format is ICEBERG, and only Delta is read" in await said_of(iceberg)
    elsewhere = database.table("elsewhere", "hdfs://x/y")
    assert f"{elsewhere} is at hdfs://x/y: no store for" in await said_of(elsewhere, ConfigError)
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert "AWS Glue can't be reached" in await said_of(iceberg, TransientError)


async def test_a_table_that_its_catalog_manages_is_not_read_by_glue(
    database: Database, tmp_path: Path
) -> None:
    builder = orders(tmp_path / "orders", 1)
    features = {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged"]}
    builder.commit(builder.protocol(3, 7, **features))
    address = database.table("orders", f"file://{tmp_path}/orders")
    with pytest.raises(TableError, match="'catalogManaged'"):
        await read_table(address, 1, 1)
