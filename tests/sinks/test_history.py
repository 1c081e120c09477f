"""Mode `history`: a row for each version of a key, proved at each version by what the table was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import deltalake
import duckdb
import pyarrow as pa
import pytest
from msgspec import structs

from sinks.shared.history import HistoryMerge, HistoryNames, fold_history
from tailer.changes import ChangeBatch, Offset
from tailer.cli.main import main
from tailer.errors import SinkRejected, TailerError
from tailer.sink import make_sink
from tailer.testing.batches import change_batch, change_span
from tests.sinks.test_duckdb import mapped
from tests.sinks.test_mirror import KEY, SCHEMA, Key, version_of
from tests.support.copies import Copy, make_copy_of
from tests.support.extent import rest_slow
from tests.support.programs import started
from tests.support.sinks import write
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target

Capture = pytest.CaptureFixture[str]
#: The key, the value, and the versions of its begin and its end.
Row = tuple[Any, ...]
NAMES = HistoryNames.with_prefix("_")
KEYS = list(KEY)
#: The time of the first commit.
BEGUN_MS = 1_700_000_000_000


def fold(batch: ChangeBatch) -> HistoryMerge:
    rows = batch.rows.select(SCHEMA.names)
    for name, column in NAMES.build_columns(batch).items():
        rows = rows.append_column(name, column)
    return fold_history(batch, rows, KEY, NAMES)


def model(versions: list[list[dict[str, Any]]]) -> set[Row]:
    """The rows of the history of a table that had these changes, from version 1 on."""
    rows: set[Row] = set()
    current: dict[Key, tuple[int, int]] = {}
    for version, events in enumerate(versions, 1):
        leaving = [e for e in events if e["_change_type"] in ("delete", "update_preimage")]
        for event in leaving:
            key = (event["a"], event["b"])
            rows.add((*key, *current.pop(key), version))
        for event in events:
            if event not in leaving:
                current[event["a"], event["b"]] = (event["value"], version)
    return rows | {(*key, value, begun, None) for key, (value, begun) in current.items()}


def make_versions(chance: random.Random, count: int) -> list[list[dict[str, Any]]]:
    table: dict[Key, int] = {}
    found: list[list[dict[str, Any]]] = []
    while len(found) < count:
        found += [events] if (events := version_of(table, chance)) else []
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_has_all_that_was(seed: int) -> None:
    chance = random.Random(seed)
    found: set[Row] = set()
    versions = make_versions(chance, 12)
    run = change_span(SCHEMA, [[events] for events in versions])
    base = run.version - 1
    ends = [part.first for part in run.parts()[1:]] + [run.num_rows]
    first = 0
    for end in ends:
        if end == run.num_rows or chance.random() < 0.3:
            merge = fold(run.slice(first, end))
            before = sum(row[4] is None for row in found)
            for row in merge.ended.to_pylist():
                key = (row["a"], row["b"])
                (open_row,) = (r for r in found if r[:2] == key and r[4] is None)
                found.remove(open_row)
                found.add((*open_row[:4], row["_to_version"]))
            for row in merge.absent.to_pylist():
                assert not [r for r in found if r[:2] == (row["a"], row["b"]) and r[4] is None]
            for row in merge.rows.to_pylist():
                found.add(
                    (row["a"], row["b"], row["value"], row["_from_version"], row["_to_version"])
                )
                assert (row["_valid_to"] is None) == (row["_to_version"] is None)
            assert sum(row[4] is None for row in found) - before == merge.growth
            first = end
    shifted = {
        (a, b, value, begun - base, None if ended is None else ended - base)
        for a, b, value, begun, ended in found
    }
    assert shifted == model(versions)


def test_a_key_that_comes_twice_is_refused() -> None:
    with pytest.raises(SinkRejected, match=r"two rows with the key .* come"):
        fold(change_batch(SCHEMA, [{"a": 1, "b": "x", "value": n} for n in range(2)]))


def make_history(
    folder: Path, target: SqlTarget, schema: pa.Schema = SCHEMA, key: list[str] = KEYS
) -> Copy:
    copy = make_copy_of(folder, target.toml(mode="history", key=key), schema)
    copy.table.create(timestamp_ms=BEGUN_MS)
    return copy


class Lake:
    """A history, and the table behind it: one file has all its rows."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.rows: dict[Key, int] = {}
        self.files: list[dict[str, Any]] = []

    def commit(self, *events: dict[str, Any]) -> None:
        """Commit a version with these changes."""
        for event in events:
            if event["_change_type"] in ("delete", "update_preimage"):
                del self.rows[event["a"], event["b"]]
        for event in events:
            if event["_change_type"] in ("insert", "update_postimage"):
                self.rows[event["a"], event["b"]] = event["value"]
        table = self.copy.table
        rows = [{"a": a, "b": b, "value": value} for (a, b), value in self.rows.items()]
        removed = [table.remove(file) for file in self.files]
        self.files = [table.add(rows)] if rows else []
        # Commits of one millisecond have other times where a read begins between them.
        at_ms = BEGUN_MS + 1000 * (table.version + 1)
        table.commit(*removed, *self.files, table.cdc(list(events)), timestamp_ms=at_ms)


def event(kind: str, a: int, value: int) -> dict[str, Any]:
    return {"a": a, "b": "x", "value": value, "_change_type": kind}


def read_history(target: SqlTarget) -> list[Row]:
    return sorted(
        target.query(
            'SELECT "a", "b", "value", "_from_version", "_to_version", "_valid_from", "_valid_to" '
            f"FROM {target.prefix}orders"
        ),
        key=str,
    )


@pytest.fixture(params=[*SQL_SINKS, "delta"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTarget:
    if request.param != "delta":
        return sql_target(request.param, tmp_path, request)

    def query(statement: str) -> list[tuple[Any, ...]]:
        table = deltalake.DeltaTable(tmp_path / "copy")
        if statement.startswith("DELETE"):
            table.delete(statement.partition(" WHERE ")[2])
            return []
        orders = table.to_pyarrow_table()  # noqa: F841  # of the statement
        return duckdb.execute(statement).fetchall()

    return SqlTarget("delta", {"path": "copy"}, query)


@pytest.mark.parametrize("seed", rest_slow(range(4), 0))
def test_each_version_is_there_and_comes_again_after_a_rewind(
    target: SqlTarget, tmp_path: Path, seed: int, capsys: Capture
) -> None:
    chance = random.Random(seed)
    copy = make_history(tmp_path, target)
    copy.deliver(0)
    lake, versions = Lake(copy), make_versions(chance, 15)
    for version, events in enumerate(versions, 1):
        lake.commit(*events)
        if chance.random() < 0.4:
            copy.deliver(version)
    copy.deliver(15)
    whole = read_history(target)
    assert {row[:5] for row in whole} == model(versions)
    assert all((row[4] is None) == (row[6] is None) for row in whole)
    assert copy.verify("--from", "0", "--to", "15") == 0, capsys.readouterr()
    back = chance.randrange(1, 15)
    assert copy.rewind(str(back)) == 0, capsys.readouterr()
    assert {row[:5] for row in read_history(target)} == model(versions[:back])
    assert copy.verify() == 0, capsys.readouterr()
    copy.deliver(15)
    assert read_history(target) == whole
    assert copy.verify("--from", "0", "--to", "15") == 0, capsys.readouterr()


def test_a_change_of_somebody_else_is_found(
    target: SqlTarget, tmp_path: Path, capsys: Capture
) -> None:
    copy = make_history(tmp_path, target)
    lake = Lake(copy)
    lake.commit(event("insert", 1, 1), event("insert", 2, 2))
    copy.deliver(1)
    name = f"{target.prefix}orders"
    target.query(f'DELETE FROM {name} WHERE "a" = 2')
    assert copy.verify() == 1
    assert '{"a": 2, "b": "x"} is missing' in capsys.readouterr().out
    lake.commit(event("delete", 2, 2))
    with pytest.raises(TailerError, match="creates the history again"):
        copy.deliver(2)
    assert copy.verify("--repair") == 1
    assert "only a mirror is repaired" in capsys.readouterr().err


def test_a_column_that_was_added_is_null_before(
    target: SqlTarget, tmp_path: Path, capsys: Capture
) -> None:
    copy = make_history(tmp_path, target)
    lake = Lake(copy)
    lake.commit(event("insert", 1, 1))
    copy.deliver(1)
    table = copy.table
    table.schema = pa.schema([*SCHEMA, ("more", pa.string())])
    table.commit(table.metadata())
    images = [
        {"a": 1, "b": "x", "value": 1, "_change_type": "update_preimage"},
        {"a": 1, "b": "x", "value": 2, "more": "m", "_change_type": "update_postimage"},
    ]
    table.commit(
        *(table.remove(add) for add in lake.files),
        table.add([{"a": 1, "b": "x", "value": 2, "more": "m"}]),
        table.cdc(images),
    )
    copy.deliver(3)
    rows = target.query(f'SELECT "value", "more" FROM {target.prefix}orders')
    assert sorted(rows) == [(1, None), (2, "m")]
    assert copy.verify("--from", "1", "--to", "3") == 0, capsys.readouterr()
    table.schema = SCHEMA
    table.commit(table.metadata())
    copy.deliver(4)
    assert copy.verify("--from", "3", "--to", "4") == 2
    assert "the column 'more' of version 3 was dropped" in capsys.readouterr().err
    assert copy.verify("--from", "4", "--to", "9") == 2
    assert "has not passed version" in capsys.readouterr().err


def test_rows_that_are_read_again_take_the_place_of_what_was(
    target: SqlTarget, tmp_path: Path
) -> None:
    """As those of a resnapshot: what is current ends, and once at each version."""
    options = {**target.options, "mode": "history", "key": ["a"]}
    sink = make_sink(target.kind, options, tmp_path)
    schema = pa.schema([("a", pa.int64()), ("value", pa.int64())])

    def rows_of(version: int, value: int) -> ChangeBatch:
        batch = change_batch(schema, [{"a": 1, "value": value}], version=version, last=True)
        at = structs.replace(batch.offset, snapshot=version > 1)
        return structs.replace(batch, offset=at)

    for version, value in ((1, 5), (3, 6), (3, 7)):
        anyio.run(write, sink, rows_of(version, value))
    found = target.query(
        f'SELECT "value", "_from_version", "_to_version" FROM {target.prefix}orders'
    )
    assert sorted(found) == [(5, 1, 3), (7, 3, None)]


def test_the_options_are_checked_together(tmp_path: Path, capsys: Capture) -> None:
    target = SqlTarget("sqlite", {"path": "copy.sqlite"}, lambda _: [])
    copy = make_copy_of(tmp_path, target.toml(key=["id"]), pa.schema([("id", pa.int64())]))
    copy.table.create()
    copy.deliver(0)
    assert copy.verify("--from", "0", "--to", "0") == 2
    assert "a mirror has one version" in capsys.readouterr().err
    text = copy.config.read_text()
    copy.config.write_text(
        text.replace("[feeds.orders.sink]", "[feeds.orders.sink]\nmode='history'")
    )
    assert copy.verify("--from", "0") == 2
    assert "--from VERSION --to VERSION" in capsys.readouterr().err
    with pytest.raises(TailerError, match="is a mirror and not a history"):
        copy.deliver(0)


def test_a_column_of_the_table_with_a_name_of_ours_is_refused(tmp_path: Path) -> None:
    target = SqlTarget("sqlite", {"path": "copy.sqlite"}, lambda _: [])
    schema = pa.schema([("id", pa.int64()), ("_valid_to", pa.string())])
    copy = make_history(tmp_path, target, schema, ["id"])
    copy.table.insert([{"id": 1, "_valid_to": "x"}])
    with pytest.raises(TailerError, match="own_prefix"):
        copy.deliver(1)


@pytest.mark.parametrize("seed", rest_slow(range(6), 0))
def test_a_feed_that_is_killed_has_the_same_history(
    tmp_path: Path, request: pytest.FixtureRequest, seed: int, capsys: Capture
) -> None:
    chance = random.Random(seed)
    target = sql_target("postgres", tmp_path, request)
    copy = make_history(tmp_path, target)
    copy.deliver(0)
    lake, versions = Lake(copy), make_versions(chance, 120)
    for events in versions:
        lake.commit(*events)
    for _ in range(4):
        with started("run", "--once", str(copy.config)) as program:
            try:
                program.process.wait(timeout=chance.uniform(0.4, 1.5))
            except Exception:  # noqa: BLE001  # it still runs
                program.process.kill()
    assert main(["run", "--once", str(copy.config)]) == 0, capsys.readouterr()
    assert {row[:5] for row in read_history(target)} == model(versions)


def test_an_offset_in_the_middle_of_a_version_is_refused(target: SqlTarget, tmp_path: Path) -> None:
    copy = make_history(tmp_path, target)
    lake = Lake(copy)
    lake.commit(event("insert", 1, 1))
    lake.commit(event("insert", 2, 1))
    copy.deliver(2)
    sink = copy.make_sink()
    middle = Offset(1, index=1, table_id=copy.table.table_id)
    with pytest.raises(TailerError, match="goes back to the end of a version"):
        anyio.run(sink.set_offset, "orders", middle)


def test_a_key_that_a_first_snapshot_has_twice_is_refused(
    target: SqlTarget, tmp_path: Path
) -> None:
    copy = make_copy_of(tmp_path, target.toml(mode="history", key=["a"]), SCHEMA)
    copy.table.create()
    for _ in range(2):
        copy.table.insert([{"a": 1, "b": "x", "value": 1}])
    with pytest.raises(TailerError, match="do not identify a row"):
        copy.deliver(2)


def test_a_history_by_row_id_tells_equal_rows_apart(target: SqlTarget, tmp_path: Path) -> None:
    sink = make_sink(target.kind, {**target.options, "mode": "history"}, tmp_path)
    schema = pa.schema([("value", pa.int64())])

    def changes(version: int, *rows: tuple[str, int, int]) -> ChangeBatch:
        found = [{"value": value, "_change_type": kind} for kind, value, _ in rows]
        batch = change_batch(schema, found, version=version, last=True)
        return structs.replace(batch, row_ids=pa.array([row_id for _, _, row_id in rows]))

    first = changes(1, *(("insert", 5, row_id) for row_id in range(3)))
    images = (("update_preimage", 5, 1), ("update_postimage", 6, 1))
    anyio.run(write, sink, first, changes(2, *images, ("delete", 5, 2)))
    found = target.query(
        f'SELECT "_row_id", "value", "_from_version", "_to_version" FROM {target.prefix}orders'
    )
    assert sorted(found, key=str) == [(0, 5, 1, None), (1, 5, 1, 2), (1, 6, 2, None), (2, 5, 1, 2)]


def test_the_names_of_its_columns_stay(target: SqlTarget, tmp_path: Path, capsys: Capture) -> None:
    """Another prefix would be other columns, and what has ended would be current."""
    copy = make_history(tmp_path, target)
    lake = Lake(copy)
    lake.commit(event("insert", 1, 1))
    copy.deliver(1)
    copy.config.write_text(f'{copy.config.read_text()}own_prefix = "my_"\n')
    lake.commit(event("insert", 2, 1))
    with pytest.raises(TailerError, match="set the option 'own_prefix' back"):
        copy.deliver(2)
    assert copy.verify() == 1
    assert "set the option 'own_prefix' back" in capsys.readouterr().err
    assert main(["check", str(copy.config)]) != 0


def test_a_column_that_was_once_called_like_ours(target: SqlTarget, tmp_path: Path) -> None:
    """By its name in the files, which a new name does not change."""
    sink = make_sink(target.kind, {**target.options, "mode": "history", "key": ["a"]}, tmp_path)
    schema = pa.schema([("a", pa.int64()), ("ends", pa.int64())])
    wider = pa.schema([*schema, ("more", pa.int64())])

    def batch_of(columns: pa.Schema, version: int) -> ChangeBatch:
        row = {"a": version, "ends": 7} | dict.fromkeys(columns.names[2:], 1)
        batch = change_batch(columns, [row], version=version, last=True)
        return mapped(batch, **{name: name for name in columns.names} | {"ends": "_valid_to"})

    anyio.run(write, sink, batch_of(schema, 1), batch_of(wider, 2))
    found = target.query(f'SELECT "a", "ends", "_to_version" FROM {target.prefix}orders')
    assert sorted(found) == [(1, 7, None), (2, 7, None)]


def test_it_does_not_go_back_before_its_beginning(
    target: SqlTarget, tmp_path: Path, capsys: Capture
) -> None:
    copy = make_history(tmp_path, target)
    lake = Lake(copy)
    for n in range(1, 4):
        lake.commit(event("insert", n, 1))
    copy.deliver(3)
    assert copy.rewind("2") == 1
    assert "can't go back to version 2" in capsys.readouterr().err
    assert main(["offsets", "set", str(copy.config), "orders", "--from", "snapshot"]) == 1
    assert "has one snapshot" in capsys.readouterr().err
    assert copy.verify() == 0
    copy.table.commit(copy.table.metadata())
    copy.deliver(4)
    assert copy.rewind("3") == 0, "without a row to forget"
    offset = anyio.run(copy.make_sink().look, "orders")
    assert offset is not None
    assert offset.version == 4


def test_it_does_not_go_back_to_columns_that_it_has_lost(
    target: SqlTarget, tmp_path: Path, capsys: Capture
) -> None:
    copy = make_history(tmp_path, target)
    copy.deliver(0)
    lake, table = Lake(copy), copy.table
    lake.commit(event("insert", 1, 1))
    lake.commit(event("insert", 2, 1))
    table.schema = pa.schema([*SCHEMA, ("more", pa.int64())])
    table.commit(table.metadata())
    copy.deliver(3)
    assert copy.rewind("1") == 0, "a column that came later is none of it"
    copy.deliver(3)
    table.schema = SCHEMA.remove(2)
    table.commit(table.metadata())
    copy.deliver(4)
    assert copy.rewind("2") == 2
    assert "the column 'value' of version 2 was dropped or changed" in capsys.readouterr().err
    assert copy.verify() == 0


def test_lost_versions_stop_it(target: SqlTarget, tmp_path: Path) -> None:
    """A second snapshot would make rows current twice."""
    copy = make_history(tmp_path, target)
    copy.config.write_text(
        copy.config.read_text().replace("from =", 'on_data_loss = "snapshot"\nfrom =')
    )
    lake = Lake(copy)
    lake.commit(event("insert", 1, 1))
    copy.deliver(1)
    lake.commit(event("insert", 2, 1))
    lake.commit(event("insert", 3, 1))
    copy.table.checkpoint(3)
    for version in range(3):
        (copy.table.folder / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(TailerError, match="has one snapshot"):
        copy.deliver(3)
