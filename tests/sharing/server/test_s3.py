"""A table on S3, shared like any other: a real S3 server behind ours."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.objects import Objects
from tests.sharing.server.serving import place, served


@pytest.mark.anyio
async def test_a_table_on_s3_is_shared(bucket: Bucket, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    files = [path for path in table.folder.rglob("*") if path.is_file()]
    async with Objects(bucket) as objects:
        for path in files:
            await objects.put(f"lake/{path.relative_to(table.folder)}", path.read_bytes())
    options = "\n".join(f"{k} = {json.dumps(v)}" for k, v in bucket.options.items())
    with served(tmp_path, {"s.x.t": bucket.address("lake")}, store=options) as server:
        (line,) = server.query("s.x.t").lines[2:]
        data = next(path for path in files if path.suffix == ".parquet").read_bytes()
        assert server.get(line["file"]["url"]).body == data
        part = server.get(line["file"]["url"], headers={"Range": "bytes=4-7"})
        assert (part.status, part.body) == (206, data[4:8])
        changes = server.get(f"{place('s.x.t')}/changes?startingVersion=0").lines
        assert [next(iter(line)) for line in changes] == ["protocol", "metaData", "add"]
