"""`tailer verify CONFIG FEED` of a mirror in a Delta table."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa

from tailer.testing.conformance.sink import TYPES, VALUES
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer, started
from tests.support.waiting import eventually

SCHEMA = pa.schema([("key", pa.decimal128(38, 0)), ("name", pa.string()), *TYPES])
#: Its own key is beyond what a floating-point number tells apart.
KEYS = [Decimal(10**37 + i) for i in range(4)]


def test_a_copy_is_compared_with_its_table(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "snapshot"\n'
        '[feeds.orders.sink]\ntype = "delta"\npath = "copy"\nkey = ["key", "name"]\n'
    )
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.commit(table.add([{"key": key, "name": "a", **VALUES} for key in KEYS]))

    def verified() -> tuple[int, str]:
        done = run_tailer("verify", str(config), "orders")
        return done.returncode, done.stdout + done.stderr

    assert "the mirror of the feed 'orders' is at its beginning" in verified()[1]
    with started("run", str(config)) as program:
        eventually(lambda: verified()[0] == 0, why=lambda: f"{verified()} {program}")
        table.commit(table.add([{"key": KEYS[0], "name": "b", **dict.fromkeys(VALUES)}]))
        eventually(lambda: "version 2" in verified()[1], why=lambda: f"{verified()} {program}")
        assert program.stop() == 0
    assert verified() == (0, "version 2, 5 rows in the mirror: exact\n")

    copy = deltalake.DeltaTable(tmp_path / "copy")
    copy.delete("name = 'b'")
    copy.update({"string": "'another'"})
    status, said = verified()
    assert status == 1
    assert said.startswith("version 2, 4 rows in the mirror: 5 rows missing, 4 rows too many\n")
    assert f'{{"key": "{KEYS[0]}", "name": "b"}} is missing' in said
    assert f'{{"key": "{KEYS[1]}", "name": "a"}} differs' in said
