"""The commands of the sinks' pages, run as they stand there, while the daemon runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.postgres import PASSWORD, Postgres
from tests.support.programs import run_tailer, started
from tests.support.source import ROOT
from tests.support.waiting import eventually

Edit = Callable[[str], str]


def on(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """What puts this server's names in the place of those of the page."""
    # What the page leaves to libpq's environment.
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(server.port))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGUSER", "tester")
    schema = server.schema()

    def edit(text: str) -> str:
        text = text.replace("host=db.example.org user=tailer dbname=lake", "dbname=postgres")
        return text.replace("public", schema).replace("psql lake", "psql postgres")

    return edit


@pytest.mark.parametrize("sink", ["delta", "duckdb", "files", "postgres", "sqlite"])
def test_the_page_s_commands_do_what_it_says(
    sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page = (ROOT / "docs" / "sinks" / f"{sink}.md").read_text(encoding="utf-8")
    edit: Edit = str
    if sink == "postgres":
        edit = on(request.getfixturevalue("postgres"), monkeypatch)
    (config,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lines = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    commands = [shlex.split(edit(line), comments=True) for line in lines]
    monkeypatch.chdir(tmp_path)
    Path("tailer.toml").write_text(edit(config))
    schema = pa.schema([("order_id", pa.int64()), ("country", pa.string())])
    table = TableBuilder(tmp_path / "orders", schema, cdf=True)
    table.create()
    table.commit(table.add([{"order_id": 4711, "country": "DE"}]))
    (check,) = (command for command in commands if command[:2] == ["tailer", "check"])
    (run,) = (command for command in commands if command[:2] == ["tailer", "run"])
    done = run_tailer(*check[1:])
    assert done.returncode == 0, done.stderr
    with started(*run[1:]) as program:

        def output(command: list[str]) -> str:
            # A database's file may be locked just then.
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout

        def verified(command: list[str]) -> bool:
            return run_tailer(*command).returncode == 0

        readers: list[list[str]] = []
        for name, *rest in (c for c in commands if c not in (check, run)):
            if name == "tailer":
                assert rest[0] == "verify"
                eventually(partial(verified, rest), why=lambda: program)
            elif name != "pip":
                readers.append([sys.executable if name == "python" else name, *rest])
                eventually(lambda: "DE" in output(readers[-1]), why=lambda: program)
        assert "4711" in output(readers[0])
        table.commit(table.add([{"order_id": 815, "country": "FR"}]))
        eventually(lambda: "815" in output(readers[0]), why=lambda: program)
        assert program.stop() == 0
