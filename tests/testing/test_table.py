"""The table builder: what it writes is a Delta table to other readers too."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder, delta_schema, z85_encode
from tests.support.faulty import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = pa.schema(
    {
        "long": pa.int64(),
        "string": pa.string(),
        "decimal": pa.decimal128(10, 2),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "list": pa.list_(pa.int32()),
        "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct({"a": pa.bool_(), "b": pa.binary()}),
        "part": pa.string(),
    }
)
ROW: dict[str, Any] = {
    "long": 1,
    "string": "größe",
    "decimal": Decimal("1.25"),
    "date": dt.date(2026, 1, 31),
    "timestamp": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
    "list": [1, None],
    "map": [("a", 1)],
    "struct": {"a": True, "b": b"\x00"},
}


def test_deltalake_reads_what_was_written(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, TYPES, partition_by=["part"])
    table.create()
    table.insert([ROW], partition={"part": "a b/ü"}, path="part=x/1.parquet")
    table.insert([ROW, ROW], partition={"part": None})
    gone = table.add([ROW], partition={"part": "gone"})
    table.commit(gone)
    table.commit(table.remove(gone))
    for _ in ("from commits", "from the checkpoint"):
        read = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
        rows = read.select(TYPES.names).to_pylist()
        assert sorted(rows, key=lambda row: row["part"] or "") == [
            {**ROW, "part": None},
            {**ROW, "part": None},
            {**ROW, "part": "a b/ü"},
        ]
        table.checkpoint()


@pytest.mark.parametrize("storage", ["u", "p", "i"])
def test_spark_reads_its_deletion_vectors_and_cdc_files(
    spark: SparkSession, tmp_path: Path, storage: str
) -> None:
    table = TableBuilder(tmp_path, pa.schema([("id", pa.int64())]), cdf=True)
    features = {
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "changeDataFeed"],
    }
    table.create(table.protocol(3, 7, **features))
    add = table.add([{"id": i} for i in range(10)])
    table.commit(add)
    deleted = [{"id": i, "_change_type": "delete"} for i in (2, 7)]
    table.commit(*table.delete_rows(add, [2, 7], storage), table.cdc(deleted))
    table.checkpoint()
    rows = spark.read.format("delta").load(str(tmp_path)).collect()
    assert sorted(row["id"] for row in rows) == [0, 1, 3, 4, 5, 6, 8, 9]
    changes = spark.read.format("delta").option("readChangeFeed", "true")
    found = changes.option("startingVersion", 2).load(str(tmp_path)).collect()
    assert sorted((row["id"], row["_change_type"]) for row in found) == [
        (2, "delete"),
        (7, "delete"),
    ]


def test_a_commit_is_never_overwritten(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, pa.schema([("id", pa.int64())]))
    table.create()
    before = table.commit_path(0).read_bytes()
    with pytest.raises(FileExistsError):
        table.commit(table.add([{"id": 1}]), version=0)
    assert table.commit_path(0).read_bytes() == before
    assert [f.name for f in table.log.iterdir()] == [table.commit_path(0).name]


def test_a_field_s_delta_metadata_goes_into_the_schema() -> None:
    field = pa.field("a", pa.int64(), metadata={"delta.columnMapping.id": "3", "other": "x"})
    assert '"metadata": {"delta.columnMapping.id": 3}' in delta_schema(pa.schema([field]))
    with pytest.raises(ValueError, match="no type for"):
        delta_schema(pa.schema([("a", pa.float16())]))


def test_z85_is_that_of_its_specification() -> None:
    assert z85_encode(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])) == "HelloWorld"


def test_a_script_fails_the_calls_that_it_names() -> None:
    script = Script({"read": [None, OSError("second")]})
    script("read", "a")
    with pytest.raises(OSError, match="second"):
        script("read", "b")
    script("read", "c")
    script("write")
    assert script.calls == [("read", "a"), ("read", "b"), ("read", "c"), ("write", "")]
