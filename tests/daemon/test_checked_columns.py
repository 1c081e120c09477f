"""`tailer check` names the columns that a sink's target can't hold, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder

Capture = pytest.CaptureFixture[str]
CONFIG = """
[daemon]
http = ""
[feeds.orders]
table = "orders"
select = {columns}
[feeds.orders.sink]
{sink}
"""
SINKS = {
    "files": ('type = "files"\npath = "out"', "a struct without fields, which Parquet can't hold"),
    "delta": (
        'type = "delta"\npath = "out"\nkey = ["id"]',
        "a struct without fields, which this table can't hold",
    ),
    "duckdb": (
        'type = "duckdb"\npath = "out.duckdb"\nkey = ["id"]',
        "a struct without fields, which DuckDB can't hold",
    ),
    "mysql": (
        'type = "mysql"\nurl = "mysql://writer:x@127.0.0.1:9/shop"\nkey = ["id"]',
        "the type decimal128(38, 35), of which MySQL holds 30 decimals",
    ),
}


@pytest.mark.parametrize("sink", sorted(SINKS))
def test_a_column_that_does_not_fit_is_named(sink: str, tmp_path: Path, capsys: Capture) -> None:
    kind = pa.decimal128(38, 35) if sink == "mysql" else pa.struct([])
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("what", kind)])
    TableBuilder(tmp_path / "orders", schema, cdf=True).create()
    options, why = SINKS[sink]
    config = tmp_path / "tailer.toml"
    config.write_text(CONFIG.format(columns='["id", "name", "what"]', sink=options))
    assert main(["check", str(config)]) == 1
    assert f"orders: the column 'what' has {why}; exclude it" in capsys.readouterr().out
    assert not list(tmp_path.glob("out*"))
    config.write_text(CONFIG.format(columns='["id", "name"]', sink=options))
    main(["check", str(config)])
    assert "'what'" not in capsys.readouterr().out
