"""A bucket of NATS a test."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

from tailer.sink import Sink, make_sink
from tests.support.brokers import Nats
from tests.support.message_targets import nats_entries
from tests.support.sinks import NAMED


@pytest.fixture
def bucket() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def options(nats_server: Nats, bucket: str) -> dict[str, Any]:
    return {"servers": [nats_server.url()], "mode": "mirror", "bucket": bucket, "key": ["id"]}


@pytest.fixture
async def client(nats_server: Nats) -> AsyncIterator[Any]:
    connection = await nats.connect(nats_server.url())
    yield connection.jetstream()
    await connection.close()


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("nats", {**options, **more}, Path())


def found(server: Nats, bucket: str) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in nats_entries(server, bucket).items()}


def names(server: Nats, bucket: str) -> dict[str, str]:
    return {key: row["name"] for key, row in found(server, bucket).items()}


def read_ids(sink: Sink) -> list[str]:
    with sink.read_mirror("orders") as copy:
        return sorted(key for batch in copy.rows(NAMED) for key in batch["id"].to_pylist())
