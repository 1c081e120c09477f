"""Versions whose schema is not the query's: refused by name, or read. No Spark is started here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.testing.table import TableBuilder, delta_schema

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OTHER = pa.schema([("code", pa.string()), ("price", pa.float64())])
PART = pa.schema([("id", pa.int64())])

Row = dict[str, Any]


class Table(TableBuilder):
    """A table that can be overwritten."""

    def __init__(self, folder: Path, schema: pa.Schema, *rows: Row) -> None:
        """Each row is a version."""
        super().__init__(folder, schema)
        self.create()
        self.files = [self.add([row]) for row in rows]
        for file in self.files:
            self.commit(file)

    def overwrite(self, schema: pa.Schema, *rows: Row) -> None:
        """Replace all rows and the schema, in one version."""
        self.schema = schema
        gone = [self.remove(file) for file in self.files]
        self.commit(self.metadata(), *gone, self.add(list(rows)))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Versions 1 and 2 add a row each."""
    return Table(tmp_path / "t", SCHEMA, *({"id": i, "name": f"n{i}"} for i in (1, 2)))


_READERS: list[LimitedStreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    while _READERS:
        _READERS.pop().stop()


def batch(table: TableBuilder, **options: Any) -> list[Row]:
    given = {name: str(value) for name, value in options.items()}
    source = TailerSource({"path": str(table.folder), **given})
    reader = source.reader(source.schema())
    return [
        row
        for task in reader.partitions()
        for rows in reader.read(task)
        for row in rows.to_pylist()  # type: ignore[union-attr]
    ]


def run(table: TableBuilder, start: dict[str, Any], **options: Any) -> tuple[list[Row], Any]:
    """What a run with Trigger.AvailableNow gives, from a place on, and the place where it ends; the
    error, if there is one, instead of the place."""
    given = {name: str(value) for name, value in options.items()}
    source = TailerSource({"path": str(table.folder), "startingVersion": "0", **given})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LimitedStreamReader)
    _READERS.append(reader)
    found: list[Row] = []
    try:
        reader.prepareForTriggerAvailableNow()
        start = start or reader.initialOffset()
        while (end := reader.latestOffset(start, ReadMaxFiles(1000))) != start:
            for task in reader.partitions(start, end):
                for rows in reader.read(task):
                    found += rows.to_pylist()
            start = end
    except TailerSourceError as e:
        return found, str(e)
    return found, start


def values(rows: list[Row]) -> list[tuple[str, list[Any]]]:
    return [
        (row["_change_type"], [v for name, v in row.items() if not name.startswith("_")])
        for row in sorted(rows, key=lambda r: (r["_commit_version"], r["_change_type"]))
    ]


def test_versions_before_an_overwritten_schema_are_refused_and_can_still_be_read(
    table: Table,
) -> None:
    _, place = run(table, {}, endingVersion=1)
    table.overwrite(OTHER, {"code": "x", "price": 1.5})
    rows, told = run(table, place)
    assert rows == []
    assert "version 2: the version has none of the query's columns, but id, name" in told
    assert "run the query once with endingVersion 2 and Trigger.AvailableNow" in told
    rows, place = run(table, place, endingVersion=2)
    assert values(rows) == [("insert", [2, "n2"])]
    rows, told = run(table, place)
    assert rows == []
    assert "version 3: the rows removed by this version have none of the query's" in told
    assert "start a new query with a new checkpoint" in told
    rows, place = run(table, place, onSchemaChange="cast")
    assert values(rows) == [("delete", [None, None])] * 2 + [("insert", ["x", 1.5])]


def test_a_batch_refuses_a_range_over_a_schema_of_which_nothing_is_left(
    table: Table,
) -> None:
    table.overwrite(OTHER, {"code": "x", "price": 1.5})
    with pytest.raises(TailerSourceError, match=r"\[schema\] .*version 1: .* read up to endingVe"):
        batch(table, startingVersion=0)
    assert len(batch(table, startingVersion=0, endingVersion=2)) == 2
    with pytest.raises(TailerSourceError, match="the rows removed by this version have none"):
        batch(table, startingVersion=3)
    assert len(batch(table, startingVersion=3, onSchemaChange="cast")) == 3
    with pytest.raises(TailerSourceError, match="none of the query's columns"):
        batch(table, startingVersion=0, columns="code")


def test_a_stream_refuses_a_version_with_a_dropped_column_and_a_batch_gives_what_is_left(
    table: Table,
) -> None:
    table.overwrite(PART, {"id": 3})
    rows, told = run(table, {})
    assert rows == []
    assert "version 1: the version has columns that the query lacks (name)" in told
    wanted = [("insert", [1]), ("insert", [2]), ("delete", [1]), ("delete", [2]), ("insert", [3])]
    for found in (
        run(table, {}, onSchemaChange="cast")[0],
        run(table, {}, columns="id")[0],
        batch(table, startingVersion=0),
    ):
        assert values(found) == wanted
    before, place = run(table, {}, endingVersion=2)
    after, _ = run(table, place)
    assert values(before) == [("insert", [1, "n1"]), ("insert", [2, "n2"])]
    assert values(after) == wanted[2:], "no query has both schemas of the version that changes it"


def test_a_column_of_another_type_is_no_damage(table: Table) -> None:
    table.overwrite(pa.schema([("id", pa.int64()), ("name", pa.int64())]), {"id": 3, "name": 4})
    told = r"\[schema\] .*version 1: .* columns of other types than the query \(name is string"
    for options in ({}, {"onSchemaChange": "cast"}):
        with pytest.raises(TailerSourceError, match=told):
            batch(table, startingVersion=0, **options)
        assert "name is string and not long" in run(table, {}, **options)[1]
    assert len(batch(table, startingVersion=0, columns="id")) == 5


def test_fields_of_a_struct_count_as_columns_do(tmp_path: Path) -> None:
    def schema(*names: str) -> pa.Schema:
        inner = pa.struct([(name, pa.int64()) for name in names])
        return pa.schema([("id", pa.int64()), ("inner", pa.list_(inner))])

    table = Table(tmp_path / "t", schema("a", "b"), {"id": 1, "inner": [{"a": 1, "b": 2}]})
    table.overwrite(schema("a"), {"id": 2, "inner": [{"a": 3}]})
    assert "columns that the query lacks (inner.b)" in run(table, {})[1]


def test_a_wider_type_and_a_new_column_are_no_reason_to_refuse(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", pa.schema([("id", pa.int32())]), {"id": 1})
    table.overwrite(pa.schema([("id", pa.int64()), ("more", pa.int32())]), {"id": 2, "more": 3})
    rows, _ = run(table, {})
    assert values(rows) == [("insert", [1, None]), ("delete", [1, None]), ("insert", [2, 3])]


def test_a_version_without_rows_is_no_reason_to_refuse(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", SCHEMA)
    table.overwrite(OTHER, {"code": "x", "price": 1.5})
    assert values(run(table, {})[0]) == values(batch(table, startingVersion=0))
    assert len(batch(table, startingVersion=0)) == 1


def test_columns_are_followed_through_a_mapping(tmp_path: Path) -> None:
    """A renamed column is the query's; a dropped one is not, though another has its name again."""
    files = pa.schema([("col-1", pa.int64()), ("col-2", pa.string())])

    def called(*names: tuple[str, str]) -> str:
        return delta_schema(
            pa.schema(
                pa.field(
                    name, pa.int64() if inside == "col-1" else pa.string(),
                    metadata={"delta.columnMapping.physicalName": json.dumps(inside),
                              "delta.columnMapping.id": inside[-1]},
                )
                for name, inside in names
            )
        )  # fmt: skip

    on = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    table = TableBuilder(tmp_path / "t", files, properties=on)
    told = called(("id", "col-1"), ("name", "col-2"))
    table.commit(table.protocol(2, 5), table.metadata(schemaString=told))
    table.insert([{"col-1": 1, "col-2": "n1"}])
    renamed = called(("id", "col-1"), ("called", "col-2"))
    table.commit(table.metadata(schemaString=renamed))
    table.insert([{"col-1": 2, "col-2": "n2"}])
    rows, place = run(table, {})
    assert values(rows) == [("insert", [1, "n1"]), ("insert", [2, "n2"])]
    table.insert([{"col-1": 3, "col-2": "n3"}])
    dropped = called(("id", "col-1"), ("called", "col-3"))
    table.commit(table.metadata(schemaString=dropped))
    rows, refused = run(table, place)
    assert rows == []
    assert "version 4: the version has columns that the query lacks (called)" in refused
    rows, place = run(table, place, endingVersion=4)
    assert values(rows) == [("insert", [3, "n3"])]
    table.schema = pa.schema([("col-1", pa.int64()), ("col-3", pa.string())])
    table.insert([{"col-1": 4, "col-3": "n4"}])
    assert values(run(table, place)[0]) == [("insert", [4, "n4"])]


def test_a_batch_that_was_begun_is_refused_when_it_comes_again(table: Table) -> None:
    source = TailerSource({"path": str(table.folder), "startingVersion": "0"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LimitedStreamReader)
    _READERS.append(reader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    table.overwrite(OTHER, {"code": "x", "price": 1.5})
    source = TailerSource({"path": str(table.folder), "startingVersion": "0"})
    again = source.streamReader(source.schema())
    assert isinstance(again, LimitedStreamReader)
    _READERS.append(again)
    with pytest.raises(TailerSourceError, match="none of the query's columns"):
        again.partitions(start, end)
