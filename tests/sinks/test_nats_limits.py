"""A NATS server that says nonsense of what it takes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import TransientError
from tailer.sink import make_sink

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", [0, -1, 1023, 2**31, 10**30, "1048576", 1e6, [1]])
async def test_nonsense_is_a_passing_fault_and_refuses_no_row(tmp_path: Path, limit: Any) -> None:
    info = {"server_id": "x", "version": "2.10.0", "headers": True, "max_payload": limit}

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(lie, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = {"servers": [f"nats://127.0.0.1:{port}"], "timeout_s": 5}
        sink = make_sink("nats", options, tmp_path)
        with pytest.raises(TransientError, match="which is no limit of events"):
            await sink.open("orders")
        await sink.aclose()
