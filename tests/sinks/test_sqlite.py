"""The SQLite sink beyond the public suites: its file, and what it refuses."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.sinks import write

pytestmark = pytest.mark.anyio


def new(folder: Path, **options: Any) -> Sink:
    return make_sink("sqlite", {"path": "lake.sqlite", "key": ["id"], **options}, folder)


def one(data_type: pa.DataType, value: Any, version: int = 1, key: int = 1) -> ChangeBatch:
    schema = pa.schema([("id", pa.int64()), ("value", data_type)])
    return change_batch(schema, [{"id": key, "value": value}], version=version, last=True)


async def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SinkRejected, match="version 1: the column 'value' has nan, which SQLite"):
        await write(new(tmp_path), one(pa.float64(), float("nan")))
    with pytest.raises(SinkRejected, match="the column 'value' has a time beyond the years"):
        await write(new(tmp_path), one(pa.date32(), 2**30))
    await write(new(tmp_path), one(pa.float64(), float("inf")))


async def test_a_type_changes_only_where_its_values_stay(tmp_path: Path) -> None:
    await write(new(tmp_path), one(pa.decimal128(5, 1), Decimal("1.5")))
    with pytest.raises(SinkRejected, match=r"'value' was of type decimal128\(5, 1\) and is now"):
        await write(new(tmp_path), one(pa.decimal128(7, 3), Decimal("1.5"), version=2, key=2))
    await write(new(tmp_path, table="other"), one(pa.int32(), 1))
    await write(new(tmp_path, table="other"), one(pa.int64(), 2**40, version=2, key=2))


async def test_a_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    sink = new(tmp_path)
    assert await sink.look("orders") is None
    await write(sink, one(pa.int64(), 1))
    await sink.open("orders")
    with closing(sqlite3.connect(tmp_path / "lake.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await sink.look("orders") == one(pa.int64(), 1).next_offset
        await sink.aclose()
        with pytest.raises(TransientError, match="database is locked"):
            await sink.open("orders")
    await write(sink, one(pa.int64(), 2, version=2, key=2))


async def test_a_target_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "lake.sqlite")) as file:
        file.execute("CREATE TABLE orders (id)")
    with pytest.raises(SinkRejected, match="has a table 'orders' that no feed has made"):
        await new(tmp_path).open("orders")
    (tmp_path / "text.sqlite").write_text("some text" * 1000)
    with pytest.raises(SinkRejected, match="file is not a database"):
        await new(tmp_path, path="text.sqlite").open("orders")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SinkRejected, match="unable to open database file"):
        await new(tmp_path, path="folder").open("orders")
    with pytest.raises(ConfigError, match=r"'keys' of sink 'sqlite' is not known .did you mean"):
        new(tmp_path, keys=["id"])
