"""A table that Spark wrote, copied to Azure's and Google's storage: it takes no more requests than
on S3."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from tailer.changes import Offset
from tailer.storage import open_store
from tests.clouds.copies import unpacked
from tests.clouds.servers import Container
from tests.s3.fixture import Bucket
from tests.s3.tables import Collected, Counted, deliver, store_of, upload
from tests.support.source import ROOT

pytestmark = pytest.mark.anyio


async def test_a_version_takes_as_many_requests_as_on_s3(
    container: Container, bucket: Bucket, tmp_path: Path
) -> None:
    original = unpacked(ROOT / "tests" / "golden" / "data" / "cdf_dv.tar.gz", tmp_path)
    await container.upload(original.table, "orders")
    await upload(original.table, bucket, "orders")
    here, on_s3 = Counted(), Counted()
    found: list[Collected] = []
    remote = open_store(container.address("orders"), container.options, here)
    for store in (remote, store_of(bucket, "orders", on_s3)):
        async with aclosing(store):
            found.append(await deliver(store, Offset(0), original.last))
    assert found[0].events.keys() == found[1].events.keys()
    assert here.requests["get"] <= on_s3.requests["get"] + 1
    assert here.requests["head"] <= on_s3.requests["head"] + 1
    assert here.requests.keys() <= on_s3.requests.keys()
    assert here.received <= on_s3.received * 1.1
