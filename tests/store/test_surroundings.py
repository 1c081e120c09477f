"""Where no Delta table is: what is there, and what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.cli.main import main
from tailer.errors import ConfigError, TableError
from tailer.log.table import TableLog
from tailer.storage import open_store
from tailer.store import Store
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.tables import store_of, upload

pytestmark = pytest.mark.anyio
Make = Callable[[Path], object]


def put(*names: str) -> Make:
    """Make files below the lake."""

    def make(lake: Path) -> None:
        for name in names:
            (lake / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".parquet"):
                pq.write_table(pa.table({"id": [1]}), lake / name)
            else:
                (lake / name).write_text("{}")

    return make


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with two tables in it."""
    for name in ("customers", "orders"):
        table = TableBuilder(tmp_path / "lake" / name, pa.schema([("id", pa.int64())]))
        table.create()
        table.insert([{"id": 1}])
    return tmp_path / "lake"


ORDERS = "the table LAKE/orders; type LAKE/orders"
PARQUET = "it is a folder of Parquet files without a _delta_log"
CONVERT = f"{PARQUET}; only Delta tables are read; in Spark, CONVERT TO DELTA parquet.`LAKE/p`"
CONFIG = "a configuration; type `tailer run LAKE/c.toml`, or `tailer verify LAKE/c.toml FEED`"
PROFILE = "type LAKE/o.share#share.schema.table; `tailer shares LAKE/o.share` lists"
CATALOG = "a table of a catalog, type its location, which `DESCRIBE DETAIL main.sales.orders` says"
MISTAKES: list[tuple[Make, str, str]] = [
    (put(), "ordrs", "there is no ordrs in LAKE; did you mean LAKE/orders?"),
    (put(), "Orders", "there is no Orders in LAKE; did you mean LAKE/orders?"),
    (put(), "nowhere/at/all", "there is no nowhere in LAKE; LAKE has customers, orders"),
    (put(), "", "tables in it: customers, orders; type one of them, such as LAKE/customers"),
    (put(), "..", "it is a folder with tables in it: lake/customers, lake/orders; type one"),
    (put(), "orders/_delta_log", f"it is the log of {ORDERS}"),
    (put(), "orders/_delta_log/00000000000000000001.json", f"it lies in {ORDERS}"),
    (put("orders/day=1/part.parquet"), "orders/day=1", f"it lies in {ORDERS}"),
    (put("orders/day=1/part.parquet"), "orders/day=1/part.parquet", f"it lies in {ORDERS}"),
    (put("p/a.parquet"), "p", CONVERT),
    (put("p/y=1/m=2/a.parquet"), "p", PARQUET),
    (put("p/a.parquet"), "p/a.parquet", "it is one Parquet file; type the folder of a Delta table"),
    (put("i/metadata/v1.metadata.json"), "i", "it is a table of Apache Iceberg"),
    (put("i/metadata/version-hint.text"), "i", "it is a table of Apache Iceberg; only Delta"),
    (put("h/.hoodie/hoodie.properties"), "h", "it is a table of Apache Hudi; only"),
    (put("c.toml"), "c.toml", CONFIG),
    (put("o.share"), "o.share", PROFILE),
    (put("notes.txt"), "notes.txt", "it is a file; type the folder of a Delta table"),
    (put("e/a.csv", "e/b.csv"), "e", "the folder has a.csv, b.csv, and no _delta_log; type"),
    (put("l/_delta_log/.tmp"), "l", "has no commit, and no checkpoint: it has .tmp; the table"),
    (put(), "main.sales.orders", CATALOG),
    (lambda lake: (lake / "old").symlink_to("gone"), "old", "there is no old in LAKE; LAKE has"),
    (put("open.share"), "oqen.share", "did you mean LAKE/open.share?"),
    (put(), "orders/../order", "there is no order in LAKE; did you mean LAKE/orders?"),
]


@pytest.mark.parametrize(("make", "typed", "said"), MISTAKES)
async def test_what_is_there_is_said(lake: Path, make: Make, typed: str, said: str) -> None:
    make(lake)
    place = lake / typed if typed != ".." else lake.parent
    with pytest.raises(TableError) as caught:
        await TableLog(open_store(str(place))).latest_version()
    sentence = str(caught.value).replace(str(lake), "LAKE")
    assert sentence.startswith(str(place).replace(str(lake), "LAKE") + ": no Delta table there: ")
    assert said in sentence


async def test_an_empty_folder_and_dbfs_are_said(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the folder has nothing in it, and no _delta_log"):
        await TableLog(open_store(str(tmp_path))).latest_version()
    with pytest.raises(TableError, match="there is no dbfs in /; Databricks mounts it on its"):
        await TableLog(open_store("/dbfs/mnt/lake/orders")).latest_version()


async def test_a_folder_that_may_not_be_listed_changes_nothing(lake: Path) -> None:
    class Closed(LocalStore):
        async def entries(self, address: str) -> None:
            raise PermissionError(address)

    from tailer.store.surroundings import make_no_table_error

    assert "that this user may read it" in str(await make_no_table_error(Closed(str(lake))))


ADDRESSES = [
    ("dbfs:/mnt/lake", "there type /dbfs/mnt/lake, elsewhere the storage's own address"),
    ("dbfs:///mnt/lake", "there type /dbfs/mnt/lake,"),
    ("s3:/lake/x", "lacks a slash; type s3://lake/x"),
    ("S3A:/lake/x", "lacks a slash; type s3a://lake/x"),
    ("gs:/lake/x", "lacks a slash; type gs://lake/x"),
    ("s3:lake/x", "lacks a slash; type s3://lake/x"),
    ("C:\\lake\\orders", "is a path of Windows, .* such as /mnt/c/lake/orders"),
    ("d:/lake", "is a path of Windows, .* such as /mnt/d/lake"),
    ("\\\\srv\\x", "is a share of Windows' network; mount it"),
    ("delta.`/lake/x`", "is SQL's way to name a path; type /lake/x$"),
    ("'/lake/x'", "has quotes of its own; type /lake/x$"),
    (" /lake/x", "has blanks around it; type /lake/x$"),
    ("~nobody-of-that-name/x", "home folder that is not known"),
    ("", "the table's address is empty"),
    ("a\0b", "has a NUL"),
]


@pytest.mark.parametrize(("address", "said"), ADDRESSES)
def test_an_address_of_another_system_is_answered_with_ours(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(address)


def test_a_folder_of_that_very_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("main.sales.orders", "s3:", "C:\\lake"):
        table = TableBuilder(tmp_path / name, pa.schema([("id", pa.int64())]))
        table.create()
        assert main(["history", name]) == 0, capsys.readouterr().err


async def test_what_is_there_on_s3_is_said(bucket: Bucket, lake: Path) -> None:
    await upload(lake / "orders", bucket, "lake/orders")
    await upload(lake / "orders", bucket, "far/lake/orders")
    put("h/.hoodie/hoodie.properties")(lake)
    await upload(lake / "h", bucket, "lake/h")

    async def said(key: str) -> str:
        store: Store = store_of(bucket, key)
        try:
            with pytest.raises(TableError) as caught:
                await TableLog(store).latest_version()
        finally:
            await store.aclose()
        return str(caught.value).replace(f"s3://{bucket.name}", "s3://b")

    place = "s3://b/lake/orders"
    assert f"there is no ordrs in s3://b/lake; did you mean {place}?" in await said("lake/ordrs")
    assert f"it is the log of the table {place}; type {place}" in await said(
        "lake/orders/_delta_log"
    )
    assert f"it lies in the table {place}" in await said("lake/orders/day=1")
    assert f"tables in it: orders; type one of them, such as {place}" in await said("lake")
    assert "tables in it: lake/orders; type" in await said("far")
    assert "there is no nowhere in s3://b; s3://b has far, lake" in await said("nowhere/x")
    assert "it is a table of Apache Hudi" in await said("lake/h")
