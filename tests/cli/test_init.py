"""`tailer init`: a configuration file for a table, which says what it has and is checked."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.cli.init import find_likely_key, format_configuration
from tailer.cli.main import main
from tailer.delta.types import StructType
from tailer.sink import installed_sinks
from tailer.testing.table import TableBuilder
from tests.support.feeds import state
from tests.support.programs import run_tailer

SCHEMA = pa.schema([("order_id", pa.int64()), ("item", pa.string())])
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableBuilder:
    """A table ``orders`` with two rows, in the working folder."""
    monkeypatch.chdir(tmp_path)
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"order_id": 1, "item": "figs"}, {"order_id": 2, "item": "pears"}])
    return table


def test_the_file_is_written_with_the_key_and_checked(table: TableBuilder, capsys: Capture) -> None:
    assert main(["init", "orders", "--sink", "duckdb"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"orders: ok, {table.folder} (id {table.table_id}) to duckdb, from ")
    assert said.err == "tailer.toml is written\n"
    written = tomllib.loads(Path("tailer.toml").read_text())
    assert written["feeds"]["orders"] == {
        "table": "orders",
        "from": "snapshot",
        "sink": {"type": "duckdb", "path": "orders.duckdb", "key": ["order_id"]},
    }


def test_without_a_sink_and_a_terminal_it_is_json_lines(table: TableBuilder) -> None:
    done = run_tailer("init", table.folder, "--output", "made.toml", cwd=table.folder.parent)
    assert done.returncode == 0, done.stderr
    feed = tomllib.loads(Path("made.toml").read_text())["feeds"]["orders"]
    assert (feed["sink"]["type"], feed["sink"]["path"]) == ("jsonl", "orders.jsonl")
    assert "key" not in feed


def test_without_a_change_data_feed_updates_are_paired_by_the_key() -> None:
    made = state(SCHEMA)
    text = format_configuration("orders", "/orders", made, "files", {"path": "events"}, {})
    assert tomllib.loads(text)["feeds"]["orders"]["key"] == ["order_id"]


def test_on_a_terminal_the_sink_and_its_options_are_asked(table: TableBuilder) -> None:
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "tailer", "init", str(table.folder)]
    with subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end) as process:
        os.close(its_end)
        os.write(terminal, b"sqlite\nmine.db\n")
        said = b""
        with suppress(OSError):  # how a terminal says that its program has ended
            while more := os.read(terminal, 4096):
                said += more
    os.close(terminal)
    assert process.returncode == 0, said
    assert b"sink (clickhouse, delta, duckdb, " in said
    assert b"path, a string [orders.db]: " in said
    sink = tomllib.loads(Path("tailer.toml").read_text())["feeds"]["orders"]["sink"]
    assert sink == {"type": "sqlite", "path": "mine.db", "key": ["order_id"]}


@pytest.mark.usefixtures("table")
def test_a_file_that_is_there_stays_as_it_is(capsys: Capture) -> None:
    Path("tailer.toml").write_text("# mine\n")
    assert main(["init", "orders", "--sink", "jsonl"]) == 2
    assert "tailer.toml is there already" in capsys.readouterr().err
    assert Path("tailer.toml").read_text() == "# mine\n"


@pytest.mark.usefixtures("table")
def test_a_wrong_sink_or_table_writes_no_file(capsys: Capture) -> None:
    assert main(["init", "orders", "--sink", "jsnl"]) == 2
    assert "did you mean 'jsonl'" in capsys.readouterr().err
    assert main(["init", "nothing", "--sink", "jsonl"]) == 1
    assert not Path("tailer.toml").exists()


def test_a_table_elsewhere_is_found_from_the_file_s_folder(
    table: TableBuilder, capsys: Capture
) -> None:
    (table.folder.parent / "made").mkdir()
    assert main(["init", "orders", "--sink", "jsonl", "--output", "made/tailer.toml"]) == 0
    assert f"ok, {table.folder} " in capsys.readouterr().out


@pytest.mark.parametrize("kind", sorted(installed_sinks()))
def test_every_line_for_every_sink_is_toml_and_shows_the_default(kind: str) -> None:
    text = format_configuration("orders", "/data/orders", state(SCHEMA), kind, {}, {})
    shown = re.sub(r"^#(\w+ = .+)$", r"\1", text, flags=re.MULTILINE)
    assert tomllib.loads(shown)["feeds"]["orders"]["sink"]["type"] == kind
    assert tomllib.loads(text)["daemon"] == {"http": "127.0.0.1:9464", "state": "state"}


def test_an_identity_column_is_the_key() -> None:
    made = state(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    id_, number = made.schema.fields
    number = structs.replace(number, metadata={"delta.identity.start": 1})
    found = find_likely_key(structs.replace(made, schema=StructType((id_, number))), "orders")
    assert found == ("n", "an identity column")


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        (("id", "order_id"), "id"),
        (("item", "Order_ID"), "Order_ID"),
        (("item", "orders_id"), "orders_id"),
        (("item", "customer_id"), None),
    ],
)
def test_a_key_is_found_by_its_name(columns: tuple[str, ...], key: str | None) -> None:
    made = state(pa.schema([(name, pa.int64()) for name in columns]))
    found = find_likely_key(made, "orders")
    assert (found and found[0]) == key


def test_options_of_the_store_are_kept(tmp_path: Path) -> None:
    store = {"endpoint_url": "http://127.0.0.1:9000"}
    text = format_configuration("t", str(tmp_path), state(SCHEMA), "jsonl", {"path": "-"}, store)
    assert tomllib.loads(text)["feeds"]["t"]["store"] == store
