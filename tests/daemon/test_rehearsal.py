"""`tailer check` tries what a start does first, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.sql_targets import SQL_SINKS, sql_target

Capture = pytest.CaptureFixture[str]
FILES = {
    "jsonl": 'type = "jsonl"\npath = "{}/out.jsonl"',
    "files": 'type = "files"\npath = "{}/out"',
    "delta": 'type = "delta"\npath = "{}/copy"\nkey = ["id"]',
    "duckdb": 'type = "duckdb"\npath = "{}/lake.duckdb"\nkey = ["id"]',
    "sqlite": 'type = "sqlite"\npath = "{}/lake.db"\nkey = ["id"]',
}


def configured(folder: Path, sink: str, columns: int = 0, state: str = "state") -> Path:
    """A table of so many columns more, and a configuration that follows it."""
    names = ["id", *(f"c{i}" for i in range(columns))]
    schema = pa.schema([(name, pa.int64()) for name in names])
    table = TableBuilder(folder / "orders", schema, cdf=True)
    table.create()
    table.insert([{"id": 1}])
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\nstate = "{state}"\n[feeds.orders]\ntable = "orders"\n'
        f'from = "snapshot"\n[feeds.orders.sink]\n{sink}\n'
    )
    return config


@pytest.mark.parametrize("kind", FILES)
def test_a_check_of_files_leaves_nothing(kind: str, tmp_path: Path, capsys: Capture) -> None:
    config = configured(tmp_path, FILES[kind].format("new/folder"))
    before = sorted(tmp_path.rglob("*"))
    assert main(["check", str(config)]) == 0, capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_that_can_t_be_made_is_named(kind: str, tmp_path: Path, capsys: Capture) -> None:
    config = configured(tmp_path, FILES[kind].format("tailer.toml"))
    assert main(["check", str(config)]) == 1
    said = capsys.readouterr().out
    assert "tailer.toml/" in said
    assert "Not a directory" in said


def test_a_state_that_can_t_be_written_is_named(tmp_path: Path, capsys: Capture) -> None:
    config = configured(tmp_path, FILES["jsonl"].format("."), state="/proc/1/state")
    assert main(["check", str(config)]) == 2
    assert "daemon.state: /proc/1/state can't be written" in capsys.readouterr().err


def test_a_file_of_another_kind_is_named(tmp_path: Path, capsys: Capture) -> None:
    config = configured(tmp_path, FILES["duckdb"].format("."))
    (tmp_path / "lake.duckdb").write_bytes(b"PAR1" * 10)
    assert main(["check", str(config)]) == 1
    assert "lake.duckdb is not a DuckDB file; name another path" in capsys.readouterr().out


@pytest.mark.parametrize("kind", SQL_SINKS)
def test_a_table_that_fits_is_not_left_there(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = sql_target(kind, tmp_path, request)
    for mode in ({"key": ["id"]}, {"mode": "log"}):
        config = configured(tmp_path / str(len(mode)) / next(iter(mode)), target.toml(**mode))
        assert main(["check", str(config)]) == 0, capsys.readouterr().out
    if kind in ("postgres", "mysql"):
        asked = f"FROM information_schema.tables WHERE table_schema = '{target.prefix[:-1]}'"
        assert target.query(f"SELECT count(*) {asked}") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "columns"), [("mysql", 1100), ("postgres", 1601), ("sqlite", 2001)]
)
def test_a_table_with_too_many_columns_is_named(
    kind: str, columns: int, tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = sql_target(kind, tmp_path, request)
    config = configured(tmp_path, target.toml(key=["id"]), columns)
    assert main(["check", str(config)]) == 1
    assert "columns" in capsys.readouterr().out


def test_a_schema_that_is_not_there_is_named(
    tmp_path: Path, postgres: Any, capsys: Capture
) -> None:
    sink = f'type = "postgres"\ndsn = "{postgres.dsn()}"\nschema = "nowhere"\nkey = ["id"]'
    assert main(["check", str(configured(tmp_path, sink))]) == 1
    assert 'schema "nowhere" does not exist' in capsys.readouterr().out


def test_rights_that_are_missing_are_named(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = sql_target("postgres", tmp_path, request)
    server = request.getfixturevalue("postgres")
    server.query("CREATE ROLE reader LOGIN PASSWORD 'x'")
    server.query(f"GRANT USAGE ON SCHEMA {target.prefix[:-1]} TO reader")
    try:
        sink = target.toml(key=["id"], dsn=server.dsn(user="reader", password="x"))
        assert main(["check", str(configured(tmp_path, sink))]) == 1
        assert "permission denied for schema" in capsys.readouterr().out
    finally:
        server.query("DROP OWNED BY reader")
        server.query("DROP ROLE reader")


def test_rights_that_are_missing_in_mysql_are_named(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = sql_target("mysql", tmp_path, request)
    server = request.getfixturevalue("mysql")
    database = target.prefix[:-1]
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE TEMPORARY TABLES"
    server.query("CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
    server.query(f"GRANT {rights} ON {database}.* TO reader@'127.0.0.1'")
    try:
        url = target.options["url"].replace("mysql://", "")
        sink = target.toml(key=["id"], url=f"mysql://reader:x@{url.partition('@')[2]}")
        assert main(["check", str(configured(tmp_path, sink))]) == 1
        assert "the user may not make tables; grant CREATE" in capsys.readouterr().out
        server.query(f"GRANT CREATE ON {database}.* TO reader@'127.0.0.1'")
        server.query(f"REVOKE CREATE TEMPORARY TABLES ON {database}.* FROM reader@'127.0.0.1'")
        server.query("GRANT CREATE TEMPORARY TABLES ON *.* TO reader@'127.0.0.1'")
        assert main(["check", str(tmp_path / "tailer.toml")]) == 0, "also where it is the last one"
    finally:
        server.query("DROP USER reader@'127.0.0.1'")
