"""What long reads show: bytes on a terminal, nothing elsewhere. And what reports and shells get."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli import progress
from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.components import require

Capture = pytest.CaptureFixture[str]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": number} for number in range(1000)])
    return table


@pytest.mark.parametrize(
    ("command", "drawn"),
    [
        ("read {table} --from 0 --output {out}", r"versions 0 to 1: [\d.]+[kM]?B"),
        ("snapshot {table} --output {out}", r"version 1: *0%.*/[\d.]+k"),
        ("verify {table}", r"versions 0 to 1: [\d.]+[kM]?B"),
        ("tail {table} --from snapshot --to 1", r"version 1: [\d.]+[kM]?B"),
    ],
)
def test_a_read_is_drawn_on_a_terminal_and_removed(
    command: str,
    drawn: str,
    table: TableBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(progress, "_DELAY_S", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    words = command.format(table=table.folder, out=tmp_path / "out.arrow").split()
    assert main(words) == 0
    assert re.search(drawn, terminal.getvalue())
    assert terminal.getvalue().endswith("\r")  # the line is empty again


def test_nothing_is_drawn_elsewhere_and_nothing_loaded_for_it(
    table: TableBuilder, tmp_path: Path
) -> None:
    program = (
        "import sys; from tailer.cli.main import main; status = main(sys.argv[1:]);"
        "assert 'tqdm' not in sys.modules and 'shtab' not in sys.modules; sys.exit(status)"
    )
    words = ["snapshot", str(table.folder), "--output", str(tmp_path / "out.arrow")]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_shell_completes_commands_and_options(capsys: Capture, tmp_path: Path) -> None:
    require("bash", shutil.which("bash") is not None)
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "tailer.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        typed = " ".join(words)
        ask = (
            f"source {script}; COMP_WORDS=({typed} ''); COMP_CWORD={len(words)}; "
            f"COMP_WORDS[{len(words)}]='{'--' if len(words) > 1 else 'sn'}'; "
            '_shtab_tailer; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("tailer") == ["snapshot"]
    assert {"--output", "--to"} <= {*completed("tailer", "snapshot")}


def test_a_report_has_the_versions_of_all_that_is_used(capsys: Capture) -> None:
    assert main(["version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert main(["version", "--verbose"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == line
    facts = dict(each.split(" ", 1) for each in rest)
    assert facts["pyarrow"] == pa.__version__
    assert facts["decoder"] in ("compiled", "pyarrow")
    assert facts["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert facts["system"].endswith(("-linux-gnu", "-linux-musl", " darwin"))
    assert {"duckdb", "kafka-python", "psycopg"} <= {*facts}
    assert not {"pytest", "mkdocs-material", "pipx"} & {*facts}


def test_check_and_offsets_answer_in_json(table: TableBuilder, capsys: Capture) -> None:
    config = table.folder.parent / "tailer.toml"
    assert main(["init", str(table.folder), "--sink", "jsonl", "--output", str(config)]) == 0
    capsys.readouterr()
    assert main(["check", str(config), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["feed"], facts["ok"], facts["sink"]) == ("t", True, "jsonl")
    assert (facts["version"], facts["start"], facts["table_id"]) == (1, "snapshot", table.table_id)
    assert main(["offsets", "set", str(config), "t", "--from", "1"]) == 0
    capsys.readouterr()
    assert main(["offsets", "show", str(config), "t", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["feed"], shown["offset"]["version"], shown["orders"]) == ("t", 1, {})
    shutil.rmtree(table.folder)
    assert main(["check", str(config), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["feed"], facts["ok"]) == ("t", False)
    assert "no Delta table" in facts["error"]
