"""Tables that Spark wrote, copied to Azure's and Google's storage: they are read and followed there
as on the local disk, and with no more requests than on S3."""

from __future__ import annotations

import tarfile
from contextlib import aclosing
from pathlib import Path

import pytest

from tailer.changes import Offset
from tailer.storage import open_store
from tests.clouds.servers import Container
from tests.s3.fixture import Bucket
from tests.s3.tables import Collected, Counted, deliver, store_of, upload
from tests.support.source import ROOT

pytestmark = pytest.mark.anyio

#: Deletion vectors, partitions with odd names, mapped columns, a feed of large files, checkpoints.
CASES = {
    "cdf_dv": 0,
    "cdf_partition_strings": 0,
    "mapping_name_cdf": 0,
    "cdf_large_cdc_file": 0,
    "random_prefixes": 0,
}


def unpacked(case: str, folder: Path) -> Path:
    with tarfile.open(ROOT / "tests" / "golden" / "data" / f"{case}.tar.gz") as archive:
        archive.extractall(folder, filter="tar")
    return folder / case / "table"


def last_version(table: Path) -> int:
    return max(int(file.stem) for file in (table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("case", CASES)
async def test_a_table_is_the_same_wherever_it_lies(
    container: Container, tmp_path: Path, case: str
) -> None:
    table = unpacked(case, tmp_path)
    last = last_version(table)
    await container.upload(table, "lake/a table")
    local = await deliver(open_store(str(table)), Offset(CASES[case]), last)
    store = open_store(container.address("lake/a table"), container.options)
    async with aclosing(store):
        remote = await deliver(store, Offset(CASES[case]), last)
    assert local.events
    assert list(remote.events) == list(local.events), "the same ids, in the same order"
    times = {"_commit_timestamp"}  # without in-commit times, a copy has those of its own files
    for event_id, event in local.events.items():
        copied = remote.events[event_id]
        assert event.keys() == copied.keys()
        assert {k: v for k, v in event.items() if k not in times} == {
            k: v for k, v in copied.items() if k not in times
        }


async def test_a_version_takes_as_many_requests_as_on_s3(
    container: Container, bucket: Bucket, tmp_path: Path
) -> None:
    table = unpacked("cdf_dv", tmp_path)
    last = last_version(table)
    await container.upload(table, "orders")
    await upload(table, bucket, "orders")
    here, on_s3 = Counted(), Counted()
    found: list[Collected] = []
    remote = open_store(container.address("orders"), container.options, here)
    for store in (remote, store_of(bucket, "orders", on_s3)):
        async with aclosing(store):
            found.append(await deliver(store, Offset(0), last))
    assert found[0].events.keys() == found[1].events.keys()
    assert here.requests["get"] <= on_s3.requests["get"] + 1
    assert here.requests["head"] <= on_s3.requests["head"] + 1
    assert here.requests.keys() <= on_s3.requests.keys()
    assert here.received <= on_s3.received * 1.1
