"""The commands of docs/s3.md, as they stand there, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.testing.table import TableBuilder
from tests.s3.fixture import REGION, S3Server
from tests.s3.tables import upload
from tests.support.pages import blocks
from tests.support.programs import run_tailer

LAST = 4


@pytest.mark.usefixtures("s3_account")
def test_the_commands_of_the_page_do_what_it_says(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "source", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    for number in range(1, LAST + 1):
        table.insert([{"id": number}])
    anyio.run(upload, table.folder, s3_server.bucket("lake"), "orders")
    tail, read, elsewhere = next(iter(blocks("docs/s3.md", ""))).commands
    here = [word.replace("http://127.0.0.1:9000", s3_server.url) for word in elsewhere]
    assert here != elsewhere
    follow = run_tailer(*here, "--from", "earliest", "--to", str(LAST))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    for done in (follow, run_tailer(*tail, "--to", str(LAST))):
        assert (done.returncode, done.stderr) == (0, "")
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3, 4]
    assert run_tailer(*read, cwd=tmp_path).returncode == 0
    assert pq.read_table(tmp_path / "changes.parquet")["id"].to_pylist() == [3, 4]
