"""Wrong commands: what was meant, before anything is read or written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.testing.table import TableBuilder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}])
    table.insert([{"id": 2}])
    return table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tial"], "there is no command 'tial' (did you mean 'tail'?)"),
        (["tail", "T", "-f"], "unrecognized arguments: -f (`tailer tail` follows without it)"),
        (
            ["tail", "T", "--froom", "1"],
            "arguments: --froom 1 (did you mean '--from'?)",
        ),
        (
            ["tail", "T", "--from", "2026-01-31", "12:00:00"],
            "put a time into quotes, as in '2026-01-31 12:00:00'",
        ),
    ],
)
def test_a_wrong_command_says_what_was_meant(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    if arguments[0] == "tail":
        assert printed.startswith("usage: tailer tail "), "the usage of the command"


def test_help_is_a_command_too(capsys: Capture) -> None:
    for arguments, usage in (
        (["help"], "usage: tailer "),
        (["help", "tail"], "usage: tailer tail"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(usage)


def test_a_folder_of_the_output_is_not_made(table: TableBuilder, capsys: Capture) -> None:
    output = table.folder.parent / "nowhere" / "x.parquet"
    arguments = ["read", str(table.folder), "--from", "0", "--output", str(output)]
    assert main(arguments) == 2
    assert f"make the folder {output.parent}" in capsys.readouterr().err
    assert not output.parent.exists()


@pytest.mark.parametrize("command", ["read", "tail"])
def test_a_key_that_is_no_column_is_refused_before_any_event(
    table: TableBuilder, command: str, capsys: Capture
) -> None:
    more = ["--from", "0", "--output", "-"] if command == "read" else ["--from", "0", "--to", "2"]
    assert main([command, str(table.folder), *more, "--key", "idd"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "has no column 'idd' (did you mean 'id'?); it has id" in printed.err
