"""The JSON lines sink, and what else than a file its path may name."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected, TransientError
from tailer.sink import make_sink
from tailer.testing.batches import change_batch

pytestmark = pytest.mark.anyio


async def test_a_device_takes_lines_and_a_pipe_is_refused(tmp_path: Path) -> None:
    batch = change_batch(pa.schema([("id", pa.int64())]), [{"id": 1}])
    nothing = make_sink("jsonl", {"path": "/dev/null"}, tmp_path)
    await nothing.open("orders")
    await nothing.write(batch)
    await nothing.aclose()
    full = make_sink("jsonl", {"path": "/dev/full"}, tmp_path)
    await full.open("orders")
    with pytest.raises(TransientError, match=r"No space left on device\); make room there"):
        await full.write(batch)
    await full.aclose()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SinkRejected, match="is a pipe, which keeps nothing"):
        await make_sink("jsonl", {"path": "pipe"}, tmp_path).open("orders")


async def test_a_private_file_is_so_after_a_rotation_too(tmp_path: Path) -> None:
    batch = change_batch(pa.schema([("id", pa.int64())]), [{"id": 1}])
    sink = make_sink("jsonl", {"path": "new/file", "private": True}, tmp_path)
    file = tmp_path / "new" / "file"
    before = os.umask(0)
    try:
        await sink.open("orders")
        await sink.write(batch)
        file.rename(file.with_name("file.1"))
        await sink.write(batch)
        await sink.aclose()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (file, file.with_name("file.1"))} == {
        0o600
    }
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_what_a_terminal_obeys_is_an_escape_on_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x9b2J \u202e \u2066 \u200f \u061c \u2028 \x1b \x07"
    rows = [{"s": hostile}, {"s": "größe, 表"}]
    sink = make_sink("jsonl", {"path": "-"}, tmp_path)
    await sink.open("orders")
    await sink.write(change_batch(pa.schema([("s", pa.string())]), rows))
    await sink.aclose()
    written = capsys.readouterr().out
    assert [json.loads(line)["s"] for line in written.split("\n")[:-1]] == [r["s"] for r in rows]
    assert "größe, 表" in written
    assert written.replace("\n", "").isprintable()
