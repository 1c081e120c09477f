"""Tables that their operator has made (``create = false``), otherwise than the sink would have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused, TargetRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.copies import Copy, make_copy_of
from tests.support.sinks import NAMED, named, write
from tests.support.sql_targets import SqlTarget, sql_target

pytestmark = pytest.mark.anyio

_TEXTS = pa.schema([("id", pa.string()), ("name", pa.string())])
#: MySQL compares as the sink's own relation has it.
_CASELESS = {
    "duckdb": "COLLATE NOCASE",
    "sqlite": "COLLATE NOCASE",
    "postgres": "COLLATE {prefix}caseless",
}


def _make_caseless(target: SqlTarget) -> str:
    """Make the table with a key that takes two texts for one; return its name."""
    if target.kind == "postgres":
        target.query(
            f"CREATE COLLATION {target.prefix}caseless "
            "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    collation = _CASELESS[target.kind].format(prefix=target.prefix)
    target.query(f"CREATE TABLE {target.prefix}orders (id varchar {collation}, name varchar)")
    return f"{target.prefix}orders"


def _make_keyed(
    kind: str, column: str, folder: Path, request: pytest.FixtureRequest
) -> tuple[SqlTarget, str]:
    """Make the table with a column ``name`` of this type; return its target and its name there."""
    target = sql_target(kind, folder, request)
    name = f"{target.prefix}orders"
    target.query(f"CREATE TABLE {name} (id varchar(9) PRIMARY KEY, name {column})")
    return target, name


def _changes(kind: str, version: int, *keys: str) -> ChangeBatch:
    found = [{"id": key, "name": key, "_change_type": kind} for key in keys]
    return change_batch(_TEXTS, found, last=True, version=version)


def _new(target: SqlTarget, folder: Path) -> Sink:
    options = {**target.options, "key": ["id"], "create": False, "evolve": False}
    return make_sink(target.kind, {**options, "table": "orders"}, folder)


def _make_copy(target: SqlTarget, folder: Path, schema: pa.Schema) -> Copy:
    options = target.toml(key=["id"], table="orders", create=False, evolve=False)
    return make_copy_of(folder, options, schema)


@pytest.mark.parametrize("kind", _CASELESS)
async def test_a_key_that_takes_two_values_for_one_loses_no_row(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = sql_target(kind, tmp_path, request)
    name = _make_caseless(target)
    await write(_new(target, tmp_path), _changes("insert", 0, "a", "A"))
    with pytest.raises(TargetRefused, match="1 keys that leave would remove 2 rows"):
        await write(_new(target, tmp_path), _changes("delete", 1, "a"))
    assert len(target.query(f"SELECT id FROM {name}")) == 2


@pytest.mark.parametrize("kind", _CASELESS)
def test_a_repair_of_a_key_that_takes_two_values_for_one_loses_no_row(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    target = sql_target(kind, tmp_path, request)
    name = _make_caseless(target)
    copy = _make_copy(target, tmp_path, _TEXTS)
    copy.table.create()
    copy.table.insert([{"id": key, "name": key} for key in ("a", "A", "b")])
    copy.deliver(1)
    for damage in (f"UPDATE {name} SET name = 'x'", f"DELETE FROM {name}"):
        target.query(f"{damage} WHERE name = 'a'")
        assert copy.verify("--repair") == 1
        assert "would lose the row {'id': 'A'}" in capsys.readouterr().err
        assert target.query(f"SELECT name FROM {name} WHERE name = 'A'") == [("A",)]


async def test_rows_that_a_trigger_keeps_are_not_lacking(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = sql_target("postgres", tmp_path, request)
    table = f"{target.prefix}orders"
    target.query(f"CREATE TABLE {table} (id varchar, name varchar)")
    target.query(
        f"CREATE FUNCTION {target.prefix}keep() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NULL; END'"
    )
    target.query(
        f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE "
        f"FUNCTION {target.prefix}keep()"
    )
    await write(_new(target, tmp_path), _changes("insert", 0, "a"))
    with pytest.raises(TargetRefused, match=r"would remove 0 rows: .* or a trigger interferes"):
        await write(_new(target, tmp_path), _changes("delete", 1, "a"))


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
async def test_an_engine_without_transactions_is_refused(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Half of a batch that is refused would stay in such a table."""
    target = sql_target("mysql", tmp_path, request)
    table = f"{target.prefix}orders"
    target.query(f"CREATE TABLE {table} (id varchar(9) PRIMARY KEY, name text) ENGINE = InnoDB")
    target.query(f"ALTER TABLE {table} MODIFY name varchar(9), ENGINE = {engine}")
    said = "the engine {} of the table 'orders' has no transactions; run: ALTER TABLE `orders` ENG"
    with pytest.raises(TargetRefused, match=said.format(engine)):
        await _new(target, tmp_path).open("orders")


async def test_a_table_that_keeps_its_history_gets_no_other_columns(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """That would not pass by itself."""
    target = sql_target("mysql", tmp_path, request)
    options = {**target.options, "key": ["id"], "table": "orders"}
    await write(make_sink(target.kind, options, tmp_path), named())
    target.query(f"ALTER TABLE {target.prefix}orders ADD SYSTEM VERSIONING")
    wider = pa.schema([*NAMED, ("more", pa.int32())])
    batch = change_batch(wider, [{"id": 2}], last=True, version=2)
    with pytest.raises(TargetRefused, match="system_versioning_alter_history"):
        await write(make_sink(target.kind, options, tmp_path), batch)


_DAY = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001
#: Columns that round, cut or pad without an error, for a type and a value of it.
_NARROW: list[tuple[str, str, pa.DataType, Any]] = [
    ("postgres", "real", pa.float64(), 0.1),
    ("postgres", "numeric(5,1)", pa.decimal128(10, 2), Decimal("1.25")),
    ("postgres", "numeric(10,2)", pa.float64(), 0.125),
    ("postgres", "timestamp(0)", pa.timestamp("us"), _DAY),
    ("postgres", "char(5)", pa.string(), "abc"),
    ("postgres", "integer", pa.string(), "007"),
    ("mysql", "FLOAT", pa.float64(), 0.1),
    ("mysql", "DECIMAL(5,1)", pa.decimal128(10, 2), Decimal("1.25")),
    ("mysql", "DATETIME", pa.timestamp("us"), _DAY),
    ("mysql", "CHAR(5)", pa.string(), "a "),
    ("mysql", "DOUBLE", pa.int64(), 2**53 + 1),
    ("mysql", "BINARY(5)", pa.binary(), b"a"),
    ("duckdb", "FLOAT", pa.float64(), 0.1),
    ("duckdb", "DECIMAL(5,1)", pa.decimal128(10, 2), Decimal("1.25")),
    ("duckdb", "TIMESTAMP_S", pa.timestamp("us"), _DAY),
    ("duckdb", "DOUBLE", pa.int64(), 2**53 + 1),
    ("sqlite", "NUMERIC", pa.string(), "007"),
    ("sqlite", "REAL", pa.int64(), 2**53 + 1),
    ("sqlite", "NUMERIC", pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789")),
]


@pytest.mark.parametrize(("kind", "column", "data_type", "value"), _NARROW)
async def test_a_column_that_keeps_other_values_is_refused(
    kind: str, column: str, data_type: pa.DataType, value: Any, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    target, name = _make_keyed(kind, column, tmp_path, request)
    schema = pa.schema([("id", pa.string()), ("name", data_type)])
    batch = change_batch(schema, [{"id": "a", "name": value}], last=True, version=0)
    with pytest.raises(TargetRefused, match="the column 'name' of the table 'orders' can't keep"):
        await write(_new(target, tmp_path), batch)
    assert target.query(f"SELECT id FROM {name}") == []


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
async def test_blanks_that_do_not_fit_are_not_cut_off(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target, name = _make_keyed(kind, "varchar(5)", tmp_path, request)
    await write(_new(target, tmp_path), _changes("insert", 0, "abcde"))
    with pytest.raises(RowsRefused, match=r"'name' has a value of 6 characters, and .* holds 5"):
        await write(_new(target, tmp_path), _changes("insert", 1, "abcd  "))
    assert target.query(f"SELECT name FROM {name}") == [("abcde",)]


#: Columns that are not what the sink would make, and keep all that they take.
_WIDE: list[tuple[str, str, pa.DataType, Any]] = [
    ("postgres", "numeric", pa.decimal128(10, 2), Decimal("1.25")),
    ("postgres", "varchar(1)", pa.string(), "a"),
    ("postgres", "integer", pa.int64(), 7),
    ("postgres", "json", pa.list_(pa.int64()), [7]),
    ("mysql", "VARCHAR(1)", pa.string(), "a"),
    ("mysql", "INT", pa.int64(), 7),
    ("mysql", "DECIMAL(12,4)", pa.decimal128(10, 2), Decimal("1.25")),
    ("duckdb", "INTEGER", pa.int64(), 7),
    ("duckdb", "VARCHAR(1)", pa.string(), "a"),
    ("sqlite", "NUMERIC", pa.decimal128(10, 2), Decimal("1.25")),
    ("sqlite", "VARCHAR(1)", pa.string(), "a"),
]


@pytest.mark.parametrize(("kind", "column", "data_type", "value"), _WIDE)
def test_a_column_of_another_type_that_keeps_values_is_taken(
    kind: str, column: str, data_type: pa.DataType, value: Any, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    target, _ = _make_keyed(kind, column, tmp_path, request)
    schema = pa.schema([("id", pa.string()), ("name", data_type)])
    copy = _make_copy(target, tmp_path, schema)
    copy.table.create()
    copy.table.insert([{"id": "a", "name": value}])
    copy.deliver(1)
    assert copy.verify() == 0
