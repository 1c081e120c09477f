"""Tables that their operator has made (``create = false``), otherwise than the sink would have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import TargetRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.copies import make_copy_of
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


def _changes(kind: str, version: int, *keys: str) -> ChangeBatch:
    found = [{"id": key, "name": key, "_change_type": kind} for key in keys]
    return change_batch(_TEXTS, found, last=True, version=version)


def _new(target: SqlTarget, folder: Path) -> Sink:
    options = {**target.options, "key": ["id"], "create": False, "evolve": False}
    return make_sink(target.kind, {**options, "table": "orders"}, folder)


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
    options = {"key": ["id"], "table": "orders", "create": False, "evolve": False}
    copy = make_copy_of(tmp_path, target.toml(**options).replace("False", "false"), _TEXTS)
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
