"""`tailer check` tries what a start does first, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.sink import make_sink
from tailer.testing.batches import change_batch, table_state
from tailer.testing.table import TableBuilder
from tests.sinks.test_key_types import KEYS
from tests.support.sinks import write
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target

Capture = pytest.CaptureFixture[str]
FILES = {
    "jsonl": 'type = "jsonl"\npath = "{}/out.jsonl"',
    "files": 'type = "files"\npath = "{}/out"',
    "delta": 'type = "delta"\npath = "{}/copy"\nkey = ["id"]',
    "duckdb": 'type = "duckdb"\npath = "{}/lake.duckdb"\nkey = ["id"]',
    "sqlite": 'type = "sqlite"\npath = "{}/lake.db"\nkey = ["id"]',
}


def configured(
    folder: Path, sink: str, columns: int = 0, state: str = "state",
    more: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> Path:  # fmt: skip
    """A table of so many columns more, and a configuration that follows it."""
    names = ["id", *(f"c{i}" for i in range(columns))]
    schema = pa.schema([*((name, pa.int64()) for name in names), *more.items()])
    table = TableBuilder(folder / "orders", schema, cdf=True, table_id=table_state(schema).table_id)
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


LOW = "low@'127.0.0.1'"
RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES"
#: An account with the rights that the docs list; and what undoes this, and what is below.
ACCOUNT = {
    "mysql": [f"CREATE USER {LOW} IDENTIFIED BY 'x'", f"GRANT {RIGHTS} ON {{0}}.* TO {LOW}"],
    "postgres": ["CREATE ROLE low LOGIN PASSWORD 'x'", "GRANT CREATE, USAGE ON SCHEMA {0} TO low"],
}
AFTERWARDS = {
    "mysql": ["SET GLOBAL read_only = 0", f"DROP USER {LOW}"],
    "postgres": [
        "DROP EVENT TRIGGER IF EXISTS no", "DROP OWNED BY low", "DROP ROLE low",
        "GRANT TEMPORARY ON DATABASE postgres TO PUBLIC",
    ],
}  # fmt: skip
#: What only a later statement of a feed meets: what makes it so, and what is said of it.
REVOKES = [(f"REVOKE {right} ON {{0}}.* FROM {LOW}", f"{right} command denied")
           for right in ("CREATE", "INSERT", "UPDATE", "DELETE", "ALTER")]  # fmt: skip
TEMPORARY = "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC", "create temporary tables"
READ_ONLY = "ALTER ROLE low SET default_transaction_read_only = on", "in a read-only transaction"
NO_DDL = """
    CREATE FUNCTION {0}.no() RETURNS event_trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE 'no changes of tables here'; END $$;
    CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
        EXECUTE FUNCTION {0}.no()
"""
NEW = [
    *(("mysql", *revoke) for revoke in REVOKES),
    ("mysql", f"REVOKE CREATE TEMPORARY TABLES ON {{0}}.* FROM {LOW}", "Access denied"),
    ("mysql", "SET GLOBAL read_only = 1", "the --read-only option"),
    ("postgres", "REVOKE CREATE ON SCHEMA {0} FROM low", "permission denied for schema"),
    ("postgres", *TEMPORARY),
    ("postgres", *READ_ONLY),
    ("postgres", NO_DDL, "no changes of tables here"),
]
THERE = [
    *(("mysql", *revoke) for revoke in REVOKES[1:]),
    ("postgres", *TEMPORARY),
    ("postgres", *READ_ONLY),
    ("postgres", "REVOKE DELETE ON {0}.orders FROM low", "permission denied for table orders"),
    ("postgres", "REVOKE INSERT ON {0}.orders FROM low", "permission denied for table orders"),
    ("postgres", "REVOKE UPDATE ON {0}._delta_tailer FROM low", "for table _delta_tailer"),
    ("postgres", ("ALTER TABLE {0}.orders FORCE ROW LEVEL SECURITY, ENABLE ROW LEVEL SECURITY; "
                 "CREATE POLICY seen ON {0}.orders USING (true)"), "row-level security"),
    ("postgres", "ALTER TABLE {0}.orders OWNER TO tester; GRANT ALL ON {0}.orders TO low",
     "only its owner may change its columns"),
]  # fmt: skip


@contextmanager
def limited(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[SqlTarget]:
    """A target for an account that has only the rights that the docs list."""
    target, server = sql_target(kind, folder, request), request.getfixturevalue(kind)
    place = target.prefix[:-1]
    if kind == "mysql":
        options = {"url": f"mysql://low:x@127.0.0.1:{server.port}/{place}"}
    else:
        options = {"dsn": server.dsn(user="low", password="x")}
    try:
        for statement in ACCOUNT[kind]:
            server.query(statement.format(place))
        yield replace(target, options=target.options | options)
    finally:
        for statement in AFTERWARDS[kind]:
            server.query(statement)


def make(target: SqlTarget, folder: Path) -> None:
    """A copy with a row."""
    row = change_batch(pa.schema({"id": pa.int64()}), [{"id": 1}], version=0, last=True)
    sink = make_sink(target.kind, {**target.options, "key": ["id"]}, folder)
    anyio.run(lambda: write(sink, row))


def content(target: SqlTarget) -> list[tuple[Any, ...]]:
    """The tables of a target, and what is in the claims."""
    named = f"information_schema.tables WHERE table_schema = '{target.prefix[:-1]}'"
    names = target.query(f"SELECT table_name FROM {named} ORDER BY 1")
    return names + (target.query(f"SELECT * FROM {target.prefix}_delta_tailer") if names else [])


@pytest.mark.parametrize(
    ("there", "kind", "statement", "said"),
    [*((False, *one) for one in NEW), *((True, *one) for one in THERE)],
)
def test_what_refuses_a_later_statement_is_told_by_a_check(
    *, there: bool, kind: str, statement: str, said: str,
    tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture,
) -> None:  # fmt: skip
    with limited(kind, tmp_path, request) as target:
        config = configured(tmp_path / "t", target.toml(key=["id"]))
        if there:
            make(target, tmp_path)
        before = content(target)
        assert main(["check", str(config)]) == 0, capsys.readouterr().out
        target.query(statement.format(target.prefix[:-1]))
        assert main(["check", str(config)]) == 1
        assert said in capsys.readouterr().out
        assert content(target) == before


@pytest.mark.parametrize(
    ("kind", "revoke", "more"),
    [
        ("mysql", REVOKES[0][0], {}),
        ("mysql", REVOKES[4][0], {"evolve": False}),
        ("postgres", "REVOKE CREATE ON SCHEMA {0} FROM low", {}),
        ("postgres", THERE[-1][1], {"evolve": False}),
    ],
)
def test_a_check_of_a_table_that_is_there_asks_for_no_right_that_is_not_needed(
    kind: str,
    revoke: str,
    more: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: Capture,
) -> None:
    with limited(kind, tmp_path, request) as target:
        make(target, tmp_path)
        target.query(revoke.format(target.prefix[:-1]))
        config = configured(tmp_path / "t", target.toml(key=["id"], **more))
        assert main(["check", str(config)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", SQL_SINKS)
def test_keys_of_all_types_are_rehearsed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    target = sql_target(kind, tmp_path, request)
    columns = {name: data_type for name, (data_type, _) in KEYS.items()}
    columns |= {"v": pa.list_(pa.struct({"x": pa.float64()}))}
    for number, key in enumerate([[name] for name in KEYS] + [[*KEYS]]):
        config = configured(tmp_path / str(number), target.toml(key=key), more=columns)
        assert main(["check", str(config)]) == 0, capsys.readouterr().out
