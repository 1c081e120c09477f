"""A table of ClickHouse a test."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.clickhouse.sink import ClickHouseSink
from tailer.sink import Sink, make_sink
from tests.support.clickhouse import ClickHouse


@pytest.fixture
def options(clickhouse: ClickHouse) -> dict[str, Any]:
    return {"url": clickhouse.url, "table": f"t{uuid.uuid4().hex}", "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> ClickHouseSink:
    sink = make_sink("clickhouse", {"database": "lake", **options, **more}, Path())
    assert isinstance(sink, ClickHouseSink)
    return sink


@pytest.fixture(autouse=True)
def lake(clickhouse: ClickHouse) -> None:
    clickhouse.query("CREATE DATABASE IF NOT EXISTS lake")


def log_of(options: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in options.items() if name != "key"}, "mode": "log"}


def held(
    server: ClickHouse, options: dict[str, Any], *, ours: bool = False
) -> list[dict[str, Any]]:
    """The rows of a copy, as a reader sees them."""
    columns = "*" if ours else "* EXCEPT (_version, _is_deleted)"
    return server.rows(f"SELECT {columns} FROM lake.{options['table']} FINAL ORDER BY ALL")


def names_of(server: ClickHouse, options: dict[str, Any]) -> dict[int, str]:
    return {row["id"]: row["name"] for row in held(server, options)}


def read_back(sink: Sink, schema: pa.Schema) -> pa.Table:
    with sink.read_mirror("orders") as copy:
        empty = pa.schema(
            [(f.name, copy.as_held(f.name, pa.array([], f.type)).type) for f in schema]
        )
        return pa.Table.from_batches(list(copy.rows(schema)), empty).sort_by("id")
