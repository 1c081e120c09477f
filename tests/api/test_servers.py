"""A table on a server that is gone, or stands still: one sentence, and then the rows."""

from __future__ import annotations

import pytest

import tailer
from tailer.errors import TransientError
from tailer.testing.table import TableBuilder
from tests.api.conftest import SCHEMA, insert
from tests.s3.fixture import Bucket, S3Server
from tests.support.components import free_port


@pytest.fixture
def table(bucket: Bucket) -> str:
    """The address of a table with ten rows."""
    assert bucket.folder is not None
    table = TableBuilder(bucket.folder / "orders", SCHEMA, cdf=True)
    table.create()
    insert(table, 0)
    return bucket.address("orders")


def refused(table: str, bucket: Bucket, options: dict[str, str]) -> None:
    """Neither a read nor a cursor goes on without the server."""
    for use in (
        lambda: tailer.read(table, storage_options=options).read_all(),
        tailer.Cursor(bucket.address("state/orders"), storage_options=options).__enter__,
    ):
        with pytest.raises(TransientError) as raised:
            use()
        assert "\n" not in str(raised.value)


def test_a_server_that_is_gone(table: str, bucket: Bucket) -> None:
    options = {**bucket.deltalake, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    refused(table, bucket, options)


@pytest.mark.slow
def test_a_server_that_stands_still_for_a_while(
    table: str, bucket: Bucket, s3_server: S3Server
) -> None:
    options = bucket.deltalake
    followed = tailer.tail(table, start=1, end=1, storage_options=options)
    with s3_server.still():
        refused(table, bucket, options)
    with tailer.Cursor(bucket.address("state/orders"), storage_options=options) as cursor:
        assert tailer.read(table, after=cursor, storage_options=options).read_all().num_rows == 10
    assert sum(map(len, followed)) == 10
