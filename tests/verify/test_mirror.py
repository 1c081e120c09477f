"""`tailer verify CONFIG FEED`: a copy is the table, or its keys are named that are not."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.conformance.sink import TYPES, VALUES
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer, started
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target
from tests.support.waiting import eventually

SCHEMA = pa.schema([("id", pa.int64()), *TYPES])
#: Without the character NUL, which PostgreSQL refuses.
FULL = {**VALUES, "string": "größe \n ''", "map": [("a", 1), ("", None)]}
NULLS = dict.fromkeys(VALUES)


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
