"""`tailer verify CONFIG FEED --repair` of copies whose rows, keys or columns are odd."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.copies import make_copy_of
from tests.support.pages import blocks

Capture = pytest.CaptureFixture[str]
NUMBERS = pa.schema([("id", pa.int64()), ("n", pa.int64())])
SQLITE = 'type = "sqlite"\npath = "copy.sqlite"\nkey = ["id"]'
DELTA = 'type = "delta"\npath = "copy"\nkey = ["id"]'


def test_a_copy_by_row_id_is_repaired(tmp_path: Path, capsys: Capture) -> None:
    """The only thing that tells equal rows apart."""
    feed = 'from = "snapshot"\nchange_source = "derived"'
    options = 'type = "sqlite"\npath = "copy.sqlite"'
    copy = make_copy_of(tmp_path, options, NUMBERS, feed, cdf=False)
    table = copy.table
    first = table.add([{"id": 1, "n": 0}] * 4)
    first["add"] |= {"baseRowId": 0, "defaultRowCommitVersion": 0}
    domain = {
        "domainMetadata": {
            "domain": "delta.rowTracking",
            "configuration": '{"rowIdHighWaterMark": 3}',
            "removed": False,
        }
    }
    table.properties = {"delta.enableRowTracking": "true"}
    table.commit(
        table.protocol(1, 7, writerFeatures=["rowTracking", "domainMetadata"]),
        table.metadata(),
        domain,
        first,
    )
    copy.deliver(0)
    with closing(sqlite3.connect(tmp_path / "copy.sqlite", isolation_level=None)) as lite:
        lite.execute("DELETE FROM orders WHERE _row_id = 1")
        lite.execute("UPDATE orders SET _row_id = 9 WHERE _row_id = 2")
    assert copy.verify("--repair") == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "repaired: 2 rows written, 1 keys removed" in said


def test_a_key_that_a_delta_copy_has_twice_is_there_once(tmp_path: Path, capsys: Capture) -> None:
    """Nothing holds a Delta table to its key."""
    copy = make_copy_of(tmp_path, DELTA, NUMBERS)
    table = copy.table
    table.create()
    table.insert([{"id": n, "n": 0} for n in range(3)])
    copy.deliver(1)
    again = pa.table({"id": [1, 2, 2], "n": [0, 7, 8]}, schema=NUMBERS)
    deltalake.write_deltalake(tmp_path / "copy", again, mode="append")
    assert copy.verify("--repair") == 0, capsys.readouterr()
    rows = deltalake.DeltaTable(tmp_path / "copy").to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [0, 1, 2]


def test_the_commands_of_the_page_repair_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "tailer.toml").write_text(
        '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "snapshot"\n'
        '[feeds.orders.sink]\ntype = "sqlite"\npath = "copy.sqlite"\nkey = ["id"]\n'
    )
    TableBuilder(tmp_path / "orders", NUMBERS, cdf=True).create()
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--once", "tailer.toml"]) == 0
    with closing(sqlite3.connect("copy.sqlite", isolation_level=None)) as lite:
        lite.execute("INSERT INTO orders VALUES (1, 2)")
    words = {"verify", "rewind"}
    commands = [
        command
        for block in blocks("docs/operations.md", "sh")
        for command in block.commands
        if words & set(command)
    ]
    back = commands.pop()
    statuses = [main(command) for command in commands]
    assert statuses == [1, 1, 0], capsys.readouterr()
    assert main([word if word != "120" else "0" for word in back]) == 0, capsys.readouterr()


def test_a_row_that_the_copy_can_not_hold_stands_in_the_way_of_no_other(
    tmp_path: Path, capsys: Capture
) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.float64())])
    feed = 'from = "snapshot"\non_reject = "park"'
    copy = make_copy_of(tmp_path, SQLITE, schema, feed, cdf=False)
    table = copy.table
    table.create()
    table.insert([{"id": n, "n": math.nan if n == 50 else float(n)} for n in range(100)])
    copy.deliver(1)
    with closing(sqlite3.connect(tmp_path / "copy.sqlite", isolation_level=None)) as lite:
        lite.execute("UPDATE orders SET n = -1")
    assert copy.verify("--repair") == 1
    said = capsys.readouterr()
    assert "99 rows in the mirror: 1 rows missing, 0 rows too many" in said.out
    assert "1 rows can't be repaired: version 1: the column 'n' has nan" in said.err


def test_a_row_without_a_key_is_named_and_all_others_are_repaired(
    tmp_path: Path, capsys: Capture
) -> None:
    copy = make_copy_of(tmp_path, DELTA, NUMBERS)
    table = copy.table
    table.create()
    table.insert([{"id": n, "n": 0} for n in range(3)])
    copy.deliver(1)
    more = pa.table({"id": [None, 9], "n": [0, 7]}, schema=NUMBERS)
    deltalake.write_deltalake(tmp_path / "copy", more, mode="append")
    assert copy.verify("--repair") == 1
    assert capsys.readouterr().out.endswith(
        "repaired: 0 rows written, 1 keys removed, in 1 transactions\n"
        "version 1, 4 rows in the mirror: 0 rows missing, 1 rows too many\n"
        '  {"id": null} is not in the table\n'
    )


def test_a_wide_copy_is_repaired(tmp_path: Path, capsys: Capture) -> None:
    """Rows of very many columns are compared by their hashes; their keys are kept."""
    schema = pa.schema([*((f"n{i}", pa.int64()) for i in range(300)), ("id", pa.int64())])
    copy = make_copy_of(tmp_path, SQLITE, schema)
    table = copy.table
    table.create()
    table.insert([{"id": n, **{f"n{i}": n for i in range(300)}} for n in range(5)])
    copy.deliver(1)
    with closing(sqlite3.connect(tmp_path / "copy.sqlite", isolation_level=None)) as lite:
        lite.execute("UPDATE orders SET n299 = 77 WHERE id = 3")
    assert copy.verify("--repair") == 0, capsys.readouterr()
    assert "repaired: 1 rows written, 0 keys removed" in capsys.readouterr().out
