"""`tailer verify CONFIG FEED`: a copy is the table, or its keys are named that are not."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble_feed
from tailer.errors import TargetRefused
from tailer.feed.run import run_feed
from tailer.testing.conformance.sink import TYPES, VALUES
from tailer.testing.table import TableBuilder
from tests.support.copies import Copy, make_copy_of
from tests.support.extent import rest_slow
from tests.support.programs import run_tailer, started
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target
from tests.support.waiting import eventually

Capture = pytest.CaptureFixture[str]
SCHEMA = pa.schema([("id", pa.int64()), *TYPES])
#: Without the character NUL, which PostgreSQL refuses.
FULL = {**VALUES, "string": "größe \n ''", "map": [("a", 1), ("", None)]}
NULLS = dict.fromkeys(VALUES)


#: Programs take long to start: one server is quick.
AS_PROGRAMS = pytest.mark.parametrize("target", rest_slow(SQL_SINKS, "postgres"), indirect=True)


@pytest.fixture(params=SQL_SINKS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTarget:
    return sql_target(request.param, tmp_path, request)


def copied(folder: Path, target: SqlTarget, start: str) -> tuple[Path, TableBuilder]:
    """A configuration that keeps a copy by key, and its table without rows."""
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "{start}"\n'
        f"[feeds.orders.sink]\n{target.toml(key=['id'])}\n"
    )
    table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
    table.create()
    return config, table


@AS_PROGRAMS
def test_a_copy_is_compared_with_its_table(tmp_path: Path, target: SqlTarget) -> None:
    config, table = copied(tmp_path, target, "snapshot")
    table.commit(table.add([{"id": 1, **FULL}, {"id": 2, **NULLS}, {"id": 3, **FULL}]))

    def verified() -> tuple[int, str]:
        done = run_tailer("verify", str(config), "orders")
        return done.returncode, done.stdout + done.stderr

    status, said = verified()
    assert status == 1
    assert re.search("at its beginning|does not exist|unable to open", said)
    with started("run", str(config)) as program:
        eventually(lambda: verified()[0] == 0, why=lambda: f"{verified()} {program}")
        table.commit(table.add([{"id": 4, **FULL}, {"id": 5, **FULL}]))
        eventually(lambda: "version 2" in verified()[1], why=lambda: f"{verified()} {program}")
        assert program.stop() == 0
    assert verified() == (0, "version 2, 5 rows in the mirror: exact\n")

    orders = f"{target.prefix}orders"
    target.query(f"DELETE FROM {orders} WHERE id = 1")
    target.query(f"UPDATE {orders} SET string = '' WHERE id = 2")
    target.query(f"UPDATE {orders} SET id = 7 WHERE id = 3")
    status, said = verified()
    assert status == 1
    assert said.splitlines() == [
        "version 2, 4 rows in the mirror: 3 rows missing, 2 rows too many",
        '  {"id": 1} is missing',
        '  {"id": 2} differs',
        '  {"id": 3} is missing',
        '  {"id": 7} is not in the table',
    ]


def test_a_copy_is_read_again_where_a_read_was_cut_off(tmp_path: Path, target: SqlTarget) -> None:
    """As a comparison does whose memory was short."""
    config, table = copied(tmp_path, target, "snapshot")
    count = 40_000
    table.commit(table.add([{"id": i, "string": f"{i:01000d}"} for i in range(count)]))
    loaded = load_config(config)
    anyio.run(lambda: run_feed(replace(assemble_feed(loaded, loaded.feeds["orders"]), last=1)))
    sink = assemble_feed(loaded, loaded.feeds["orders"]).sink
    schema = pa.schema([SCHEMA.field(name) for name in ("id", "string")])
    with sink.read_mirror("orders") as copy:
        for _ in range(2):
            batches: Any = copy.rows(schema)
            assert next(batches).num_rows
            batches.close()
        assert sum(batch.num_rows for batch in copy.rows(schema)) == count


def test_a_column_that_the_copy_lacks_is_named(tmp_path: Path, target: SqlTarget) -> None:
    """To SQLite, a name in double quotes that it does not know is a text."""
    copy = make_copy_of(tmp_path, target.toml(key=["id"]), SCHEMA)
    copy.table.create()
    copy.table.insert([{"id": 1, "string": "string"}])
    copy.deliver(1)
    for key, column in ((2, "string"), (3, "id")):
        target.query(f"ALTER TABLE {target.prefix}orders RENAME COLUMN {column} TO {column}2")
        with pytest.raises(TargetRefused, match=f"olumn.*{column}"):
            list_rows(copy)
        copy.table.insert([{"id": key, "string": "string"}])
        with pytest.raises(TargetRefused, match=f"olumn.*{column}"):
            copy.deliver(key)
        target.query(f"ALTER TABLE {target.prefix}orders RENAME COLUMN {column}2 TO {column}")
    copy.deliver(3)
    assert copy.verify() == 0


def list_rows(copy: Copy) -> list[pa.RecordBatch]:
    with copy.make_sink().read_mirror("orders") as mirror:
        return list(mirror.rows(SCHEMA))


#: How a struct's decimal loses its last digit, and a map an entry that is null.
LAST_DIGIT = {
    "sqlite": "s = replace(s, '345678}', '345679}')",
    "mysql": "s = replace(s, '345678}', '345679}')",
    "postgres": "s = replace(s::text, '345678}', '345679}')::jsonb",
    "duckdb": "s = {'a': s.a, 'n': s.n + 1}",
}
NULL_ENTRY = {
    "sqlite": "m = json_remove(m, '$.z')",
    "mysql": "m = JSON_REMOVE(m, '$.z')",
    "postgres": "m = m - 'z'",
    "duckdb": "m = MAP {'k': 1::BIGINT}",
}
NESTED = pa.schema(
    {
        "id": pa.int64(),
        "zero": pa.float64(),
        "s": pa.struct([("a", pa.float64()), ("n", pa.decimal128(38, 0))]),
        "m": pa.map_(pa.string(), pa.int64()),
        "l": pa.list_(pa.float32()),
    }
)


async def copy_of(folder: Path, target: SqlTarget, schema: pa.Schema, rows: list[Any]) -> Path:
    """The configuration of a copy by ``id`` that has all rows of a table."""
    config = folder / "tailer.toml"
    config.write_text(
        '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "snapshot"\n'
        f'on_reject = "park"\n[feeds.orders.sink]\n{target.toml(key=["id"])}\n'
    )
    table = TableBuilder(folder / "orders", schema, cdf=True)
    table.create()
    table.insert(rows)
    loaded = load_config(config)
    await run_feed(replace(assemble_feed(loaded, loaded.feeds["orders"]), last=1))
    return config


@pytest.mark.parametrize("change", [LAST_DIGIT, NULL_ENTRY], ids=["digit", "entry"])
def test_a_change_within_a_value_is_found_and_nothing_else(
    tmp_path: Path, target: SqlTarget, capsys: Capture, change: dict[str, str]
) -> None:
    nested = {"m": [("k", 1), ("z", None)], "l": [-0.0, 0.1]}
    digits = Decimal(12345678901234567890123456789012345678)
    rows = [
        {"id": 1, "zero": -0.0, "s": {"a": -0.0, "n": Decimal(1)}, **nested},
        {"id": 2, "zero": 0.0, "s": {"a": None, "n": digits}, **nested},
    ]
    config = anyio.run(lambda: copy_of(tmp_path, target, NESTED, rows))
    verify = ["verify", str(config), "orders"]
    assert main(verify) == 0, capsys.readouterr()
    target.query(f"UPDATE {target.prefix}orders SET {change[target.kind]} WHERE id = 2")
    assert main(verify) == 1
    assert '{"id": 2} differs' in capsys.readouterr().out


def test_a_row_that_the_copy_can_not_hold_is_missing(
    tmp_path: Path, target: SqlTarget, capsys: Capture
) -> None:
    """It was parked; `verify` compares it with nothing."""
    refused: dict[str, tuple[pa.DataType, Any]] = {
        "sqlite": (pa.float64(), math.nan),
        "mysql": (pa.float64(), math.inf),
        "postgres": (pa.list_(pa.string()), ["a\0b"]),
    }
    if target.kind not in refused:
        return  # DuckDB holds all of them
    data_type, value = refused[target.kind]
    schema = pa.schema([("id", pa.int64()), ("v", data_type)])
    rows = [{"id": 1, "v": None}, {"id": 2, "v": value}]
    config = anyio.run(lambda: copy_of(tmp_path, target, schema, rows))
    assert main(["verify", str(config), "orders"]) == 1
    assert '{"id": 2} is missing' in capsys.readouterr().out


@AS_PROGRAMS
def test_a_copy_that_is_gone_is_not_begun_in_the_middle(tmp_path: Path, target: SqlTarget) -> None:
    config, table = copied(tmp_path, target, "earliest")
    table.insert([{"id": 1, **NULLS}])

    def is_exact() -> bool:
        return run_tailer("verify", str(config), "orders").returncode == 0

    def run() -> None:
        with started("run", str(config)) as program:
            eventually(is_exact, why=lambda: program)
            assert program.stop() == 0

    run()
    for name in ("orders", "_delta_tailer"):
        target.query(f"DROP TABLE {target.prefix}{name}")
    table.insert([{"id": 2, **NULLS}])
    for _ in range(2):  # also when a supervisor has started it again
        done = run_tailer("run", str(config))
        assert done.returncode == 1
        assert "what the feed has written is not there" in done.stderr
        assert "`tailer offsets reset`" in done.stderr
    assert run_tailer("offsets", "reset", str(config), "orders").returncode == 0
    run()


def test_what_keeps_no_copy_is_named(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[feeds.orders]\ntable = "orders"\n[feeds.orders.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    done = run_tailer("verify", str(config), "orders")
    assert done.returncode == 2
    assert "the sink of the feed 'orders' keeps no copy" in done.stderr
    done = run_tailer("verify", str(config), "other")
    assert "has no feed 'other'; it has orders" in done.stderr
