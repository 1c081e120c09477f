"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer import __version__
from tailer.cli.main import main
from tailer.testing.table import TableBuilder
from tests.support.programs import run_tailer, started

SCHEMA = pa.schema([("id", pa.int64())])
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 inserts two rows, 2 a third; one minute apart, from 2026-01-01 on."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create(timestamp_ms=1_767_225_600_000)
    for version, ids in ((1, (1, 2)), (2, (3,))):
        add = table.add([{"id": i} for i in ids])
        info = {"commitInfo": {"operation": "WRITE"}}
        table.commit(info, add, timestamp_ms=1_767_225_600_000 + version * 60_000)
    return table


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def ids_of(text: str) -> list[int]:
    return [event["id"] for event in events_of(text)]


def refusal(capsys: Capture, status: int, *arguments: object) -> str:
    """Run a command that ends with one sentence on stderr and nothing on stdout."""
    assert main([str(a) for a in arguments]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("tailer: ")
    return line


# tail


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [1, 2, 3]),
        ("snapshot", [1, 2, 3]),
        ("0", [1, 2, 3]),
        ("2", [3]),
        ("2026-01-01T00:01:30Z", [3]),
        ("2026-01-01T00:01:00Z", [1, 2, 3]),
        ("2026-01-01", [1, 2, 3]),
    ],
)
def test_tail_starts_where_it_is_told(
    table: TableBuilder, capsys: Capture, start: str, expected: list[int]
) -> None:
    assert main(["tail", str(table.folder), "--from", start, "--to", "2"]) == 0
    assert sorted(ids_of(capsys.readouterr().out)) == expected


def test_tail_from_a_snapshot_goes_on_with_the_changes(table: TableBuilder) -> None:
    with started("tail", table.folder, "--from", "snapshot") as program:
        assert sorted(e["id"] for e in program.wait_for_events(3)) == [1, 2, 3]
        table.insert([{"id": 4}])
        assert program.wait_for_events(4)[-1]["id"] == 4
        assert program.stop() == 0
    assert [e["_commit_version"] for e in program.events] == [2, 2, 2, 3]


def test_tail_follows_from_latest_on_and_in_a_changing_schema(table: TableBuilder) -> None:
    with started("tail", table.folder) as program:
        # When it started can't be seen, so commit until something comes through.
        while not program.lines:
            table.insert([{"id": 10}])
            program.wait_a_moment()
        table.schema = pa.schema([*SCHEMA, ("country", pa.string())])
        table.commit(table.metadata(), table.add([{"id": 11, "country": "DE"}]))
        # More than one of the rows above may still be on its way.
        program.wait_until(lambda: "country" in "".join(program.lines))
        events = program.events
        assert program.stop() == 0
    assert {e["_commit_version"] for e in events}.isdisjoint({0, 1, 2})
    assert [e["id"] for e in events if "country" in e] == [11]
    assert [e["country"] for e in events if "country" in e] == ["DE"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_ends_cleanly_on_a_signal(table: TableBuilder, number: signal.Signals) -> None:
    with started("tail", table.folder, "--from", "earliest") as program:
        program.wait_for_events(3)
        assert program.stop(number) == 0
    assert program.errors == []


@pytest.mark.parametrize("more", [True, False])
def test_tail_ends_quietly_when_its_reader_has_gone(table: TableBuilder, *, more: bool) -> None:
    """Also when there is nothing more to write."""
    command = [sys.executable, "-m", "tailer", "tail", str(table.folder), "--from", "earliest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()  # as `head -n 1` does
        if more:
            table.insert([{"id": 4}])
        assert process.wait(150) == 1
        assert process.stderr.read() == b""


def test_tail_goes_on_when_a_torn_commit_is_finished(table: TableBuilder) -> None:
    whole = json.dumps(table.add([{"id": 4}])) + "\n"
    with started("tail", table.folder, "--from", "2") as program:
        program.wait_for_events(1)
        table.commit_path(3).write_text(whole[:40])
        program.wait_a_moment()
        table.commit_path(3).write_text(whole)
        assert program.wait_for_events(2)[-1]["id"] == 4
        assert program.stop() == 0


def test_an_event_has_the_columns_then_what_happened(table: TableBuilder, capsys: Capture) -> None:
    assert main(["tail", str(table.folder), "--from", "2", "--to", "2"]) == 0
    assert capsys.readouterr().out == (
        '{"id":3,"_change_type":"insert","_commit_version":2,'
        '"_commit_timestamp":"2026-01-01T00:02:00.000000Z"}\n'
    )


def test_tail_writes_ids_and_columns_when_asked(table: TableBuilder, capsys: Capture) -> None:
    arguments = ["tail", str(table.folder), "--from", "2", "--to", "2", "--with-ids"]
    assert main([*arguments, "--select", "id"]) == 0
    (event,) = events_of(capsys.readouterr().out)
    assert re.fullmatch(r"[0-9a-f]{32}-0-i", event["_event_id"])
    assert "'x'" in refusal(capsys, 2, *arguments, "--select", "x")


# read, snapshot, history


def test_read_takes_times_as_well_as_versions(table: TableBuilder, capsys: Capture) -> None:
    for start, end, expected in (
        (["--from", "1"], ["--to", "1"], [1, 2]),
        (["--from", "2026-01-01T00:00:30Z"], [], [1, 2, 3]),
        (["--from", "2026-01-01"], ["--to", "1"], [1, 2]),
        (["--from", "0"], ["--to", "2026-01-01T00:01:59"], [1, 2]),
        (["--starting-timestamp", "2026-01-01"], ["--ending-version", "1"], [1, 2]),
        (["--starting-version", "0"], ["--ending-timestamp", "2026-01-01T00:01:59"], [1, 2]),
        (["--starting-version", "2"], ["--ending-timestamp", "2027-01-01"], [3]),
    ):  # fmt: skip
        assert main(["read", str(table.folder), *start, *end, "--output", "-"]) == 0
        assert ids_of(capsys.readouterr().out) == expected


def test_a_snapshot_is_described_or_written(
    table: TableBuilder, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["snapshot", str(table.folder)]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["version"], described["files"], described["rows"]) == (2, 2, 3)
    assert described["table_id"] == table.table_id
    assert described["change_data_feed"] is True
    for at, expected in (
        (["--to", "1"], [1, 2]),
        (["--version", "1"], [1, 2]),
        (["--to", "2026-01-01T00:01:59Z"], [1, 2]),
        ([], [1, 2, 3]),
    ):
        output = tmp_path / "rows.jsonl"
        assert main(["snapshot", str(table.folder), *at, "--output", str(output)]) == 0
        assert sorted(ids_of(output.read_text())) == expected
    table.commit(table.add([{"id": 4}], stats=None))
    assert main(["snapshot", str(table.folder)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] is None, "a file does not tell"


def test_the_history_is_newest_first(table: TableBuilder, capsys: Capture) -> None:
    assert main(["history", str(table.folder), "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["2", "2026-01-01T00:02:00.000+00:00", "WRITE"],
        ["1", "2026-01-01T00:01:00.000+00:00", "WRITE"],
    ]
    assert main(["history", str(table.folder), "--json"]) == 0
    assert [e["version"] for e in events_of(capsys.readouterr().out)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("operation", "shown"),
    [
        ("null", "+0"),
        ('["a", 1]', '["a", 1]'),
        ('{"a": null}', '{"a": null}'),
        ("3.5", "3.5"),
        ("true", "true"),
        (r'"\ud800 half"', r"\ud800 half"),
        (r'"\u001b[31mred\n9 forged"', r"\x1b[31mred\n9 forged"),
        (f'"{"x" * 500}"', "x" * 133 + "[... 301 characters ...]" + "x" * 66),
    ],
)
def test_the_history_shows_whatever_a_writer_has_put_there(
    table: TableBuilder, capsys: Capture, operation: str, shown: str
) -> None:
    others = ", ".join(
        f'"{name}": {operation}'
        for name in ("operationParameters", "userMetadata", "engineInfo", "tags", "txnId")
    )
    path = table.commit_path(table.commit())
    path.write_text(f'{{"commitInfo": {{"operation": {operation}, {others}}}}}\n')
    assert main(["history", str(table.folder), "--limit", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split(maxsplit=2)[2].startswith(shown)
    assert main(["history", str(table.folder), "--limit", "1", "--json"]) == 0
    (entry,) = events_of(capsys.readouterr().out)
    assert entry["engineInfo"] == json.loads(operation)
    assert main(["snapshot", str(table.folder), "--version", "3"]) == 0


def test_a_commits_time_in_the_history_is_not_its_writers_clock(
    table: TableBuilder, capsys: Capture
) -> None:
    told = {"operation": "WRITE", "timestamp": 5, "version": 77}
    table.commit({"commitInfo": told}, timestamp_ms=1_767_225_780_000)
    assert main(["history", str(table.folder), "--json", "--limit", "1"]) == 0
    (entry,) = events_of(capsys.readouterr().out)
    assert entry == {
        "operation": "WRITE", "version": 3, "timestamp": "2026-01-01T00:03:00.000+00:00"
    }  # fmt: skip


def test_a_column_that_has_the_name_of_a_changes_is_refused_or_left_out(
    tmp_path: Path, capsys: Capture
) -> None:
    fields = [("id", pa.int64()), ("_change_type", pa.string())]
    table = TableBuilder(tmp_path / "orders", pa.schema(fields))
    table.create()
    table.commit(table.add([{"id": 1, "_change_type": "mine"}]))
    read = ("read", table.folder, "--from", "0", "--output", "-")
    for command in (read, ("verify", table.folder), ("tail", table.folder, "--from", "0")):
        message = refusal(capsys, 1, *command)
        assert f"{table.folder}, version 0: the table has a column '_change_type'" in message
    assert main([str(a) for a in (*read, "--select", "id")]) == 0
    (event,) = events_of(capsys.readouterr().out)
    assert (event["id"], event["_change_type"]) == (1, "insert")


# What the user gets wrong: status 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "2", "--to", "1", "--output", "-"],
        ["--from", "0", "--output", "out.csv"],
        ["--from", "0", "--output", "-", "--select", "none"],
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    table: TableBuilder, capsys: Capture, arguments: list[str]
) -> None:
    refusal(capsys, 2, "read", table.folder, *arguments)


@pytest.mark.parametrize("arguments", [["read"], ["fly"], ["tail", "x", "--form", "latest"]])
def test_an_unknown_argument_is_a_usage_error(capsys: Capture, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tailer" in capsys.readouterr().err


def test_no_command_shows_the_commands(capsys: Capture) -> None:
    assert main([]) == 2
    assert "tail " in capsys.readouterr().err


def test_the_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    # Behind it stands what was not compiled, where no cargo is.
    assert capsys.readouterr().out.split()[:2] == ["delta-tailer", __version__]


# What the table refuses: status 1


@pytest.mark.parametrize("command", ["tail", "history", "snapshot", "read"])
def test_no_table_is_one_sentence(tmp_path: Path, capsys: Capture, command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "log" / "_delta_log").mkdir(parents=True)
    more = ["--from", "0", "--output", "-"] if command == "read" else []
    for name in ("nowhere", "empty", "file", "log"):
        line = refusal(capsys, 1, command, tmp_path / name, *more)
        assert line.startswith(f"tailer: {tmp_path / name}: no Delta table there")


def gap(table: TableBuilder) -> str:
    table.commit(version=4)
    return r", version 3, 0+3\.json: the commit is missing, though version 4 exists"


def broken_line(table: TableBuilder) -> str:
    table.commit_path(3).write_text('{"add": {"path": 1}}\n')
    return r", version 3, 0+3\.json: line 1: path of the add action: expected `str`, got `int`"


def missing_data_file(table: TableBuilder) -> str:
    add = table.add([{"id": 4}])
    table.commit(add)
    (table.folder / add["add"]["path"]).unlink()
    return rf", version 3, {add['add']['path']}: the data file is gone"


def missing_cdc_file(table: TableBuilder) -> str:
    cdc = table.cdc([{"id": 1, "_change_type": "delete"}])
    table.commit(cdc)
    (table.folder / cdc["cdc"]["path"]).unlink()
    return rf", version 3, {cdc['cdc']['path']}: the cdc file is gone"


def unknown_feature(table: TableBuilder) -> str:
    features = {"readerFeatures": ["quantumRows"], "writerFeatures": ["quantumRows"]}
    table.commit(table.protocol(3, 7, **features))
    return r", version 3, 0+3\.json: .* feature 'quantumRows', which is not known"


def reader_version(table: TableBuilder) -> str:
    table.commit(table.protocol(99, 7))
    return r", version 3, 0+3\.json: .* protocol version 99"


def other_table(table: TableBuilder) -> str:
    table.commit(table.metadata(id="another-id"))
    return rf", version 3: the table was replaced .* {table.table_id} and is another-id"


def unknown_change_type(table: TableBuilder) -> str:
    cdc = table.cdc([{"id": 1, "_change_type": "merge"}])
    table.commit(cdc)
    return rf", version 3, {cdc['cdc']['path']}: .* change type 'merge'"


@pytest.mark.parametrize(
    "damage",
    [
        gap,
        broken_line,
        missing_data_file,
        missing_cdc_file,
        unknown_feature,
        reader_version,
        other_table,
        unknown_change_type,
    ],
)
def test_a_table_that_can_t_be_followed_further_is_one_sentence_and_nothing_is_lost(
    table: TableBuilder, capsys: Capture, damage: Callable[[TableBuilder], str]
) -> None:
    sentence = damage(table)
    assert main(["tail", str(table.folder), "--from", "earliest"]) == 1
    printed = capsys.readouterr()
    assert ids_of(printed.out) == [1, 2, 3], "what was before the damage"
    (line,) = printed.err.splitlines()
    assert re.match(f"tailer: {re.escape(str(table.folder))}{sentence}", line), line


def test_a_start_beyond_the_end_or_cleaned_away_is_one_sentence(
    table: TableBuilder, capsys: Capture
) -> None:
    read = ["read", table.folder, "--output", "-", "--from"]
    assert "the starting version is 9, and the newest is 2" in refusal(capsys, 1, *read, "9")
    assert "the ending version is 7" in refusal(capsys, 1, *read, "1", "--to", "7")
    tail = ["tail", table.folder, "--from"]
    assert "the start is version 9, and the newest is 2" in refusal(capsys, 1, *tail, "9")
    assert "no version is at or after" in refusal(capsys, 1, *tail, "2026-02-01")
    assert "there is no version 9" in refusal(capsys, 1, "snapshot", table.folder, "--version", "9")
    table.checkpoint(2)
    table.commit_path(0).unlink()
    assert "version 0 can't be built" in refusal(capsys, 1, *read, "1")
    assert "version 1 can't be built" in refusal(
        capsys, 1, "snapshot", table.folder, "--version", "1"
    )


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_tailer("--debug", "history", tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "Traceback" not in run_tailer("history", tmp_path).stderr


def test_a_read_that_is_interrupted_leaves_no_output(table: TableBuilder, tmp_path: Path) -> None:
    torn = table.commit_path(3)
    torn.write_text('{"add"')  # it waits here
    output = tmp_path / "out.arrow"
    with started("read", table.folder, "--from", "0", "--output", output) as program:
        program.wait_a_moment(2.0)
        assert program.stop(signal.SIGINT) != 0
    assert not output.exists()
    assert list(tmp_path.glob(".*.tmp")) == []


def test_a_snapshot_that_is_interrupted_leaves_no_output(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "large", pa.schema([("id", pa.int64())]))
    table.create()
    add = table.add([{"id": 0}], path="large.parquet")
    file = table.folder / "large.parquet"
    count = 30_000_000  # which takes much longer than to look once
    pq.write_table(pa.table({"id": pa.repeat(pa.scalar(7), count)}), file)
    add["add"]["size"] = file.stat().st_size
    add["add"]["stats"] = json.dumps({"numRecords": count})
    table.commit(add)
    output = tmp_path / "out.jsonl"
    with started("snapshot", table.folder, "--output", output) as program:
        program.wait_for(lambda: list(tmp_path.glob(".out.*.tmp")))
        assert program.stop(signal.SIGINT) == 1
    assert not output.exists()
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("history TABLE --limit -1", "argument --limit: '-1' is not a whole number, 0 or greater"),
        ("snapshot TABLE --to -1", "argument --to: '-1' is not a version or a time, such as 12"),
        ("read TABLE --from yesterday --output -", "argument --from: 'yesterday' is not a version"),
        ("read TABLE --from -1 --output -", "argument --from: '-1' is not a version or a time"),
        ("read TABLE --from 9223372036854775808 --output -", "is not a version or a time"),
        ("verify TABLE --from x", "argument --from: 'x' is not"),
        ("spark CONFIG --driver-bytes-max -1", "'-1' is not a whole number, 0 or greater"),
        ("spark CONFIG --partition-bytes-max 1", "'1' is not a whole number, 1048576 or greater"),
        ("tail TABLE --writer-timezone Mars", "'Mars' is not an IANA time zone name"),
        ("tail TABLE --from 2 --to 1", "the range ends at version 1, before it starts at 2"),
        ("tail TABLE --to 1", "the range ends at version 1, before it starts at 3"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    table: TableBuilder, capsys: Capture, arguments: str, said: str
) -> None:
    try:
        status = main([a if a != "TABLE" else str(table.folder) for a in arguments.split()])
    except SystemExit as e:
        status = int(str(e))
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


# A table in another place


def test_a_table_is_named_by_uri_and_by_relative_path(
    table: TableBuilder, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = table.folder.with_name("a b%20c")
    shutil.move(table.folder, moved)
    monkeypatch.chdir(moved.parent)
    for name in (moved.as_uri(), moved.name, f"./{moved.name}/"):
        assert main(["tail", name, "--from", "2", "--to", "2"]) == 0
        assert ids_of(capsys.readouterr().out) == [3]


def test_an_unknown_store_is_a_usage_error(capsys: Capture) -> None:
    assert "ftp" in refusal(capsys, 2, "tail", "ftp://host/table")
