"""What operators do, and what happens to them: full disks, one target twice, a check beside it."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from sinks.jsonl import JsonlSink
from tailer.cli.main import main
from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble_feed
from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.programs import run_tailer, started, whole_lines

SCHEMA = pa.schema([("id", pa.int64())])


def make_table(folder: Path, *rows: int) -> TableBuilder:
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    for row in rows:
        table.insert([{"id": row}])
    return table


def configure(folder: Path, daemon: str = "", **outputs: str) -> Path:
    """Feeds by name, each of the table of that name, with the file that it writes."""
    feeds = "".join(
        f'[feeds.{name}]\ntable = "{name}"\nfrom = "earliest"\nretry_max_s = 0.3\n'
        f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "{output}"\n'
        for name, output in outputs.items()
    )
    path = folder / "tailer.toml"
    path.write_text(f'[daemon]\nhttp = ""\n{daemon}{feeds}')
    return path


def ids(file: Path) -> list[int]:
    return [json.loads(line)["id"] for line in whole_lines(file)]


def test_a_full_disk_under_the_offsets_repeats_one_batch_and_no_more(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 0)
    config, port = configure(tmp_path, orders="out.jsonl"), free_port()
    config.write_text(config.read_text().replace('http = ""', f'http = "127.0.0.1:{port}"'))

    def retries() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=150) as answer:
            found = re.search(r'tailer_retries_total{feed="orders"} (\d+)', answer.read().decode())
        return int(found[1]) if found else 0

    with started("run", config) as program:
        offset = tmp_path / "state" / "orders.offset.json"

        def saved() -> int:
            return int(json.loads(offset.read_text())["offset"]["version"])

        program.wait_for(lambda: offset.exists() and saved() >= 2)
        full = offset.with_suffix(".tmp")
        full.symlink_to("/dev/full")
        table.insert([{"id": 1}])
        program.wait_for(lambda: 1 in ids(tmp_path / "out.jsonl"))
        program.wait_for(lambda: retries() > 3)
        assert ids(tmp_path / "out.jsonl") == [0, 1], "nothing is written that can't be recorded"
        told = [line for line in program.errors if "tries again:" in line]
        assert len(told) == 1, "once, however often it is tried"
        assert "the offset can't be saved" in told[0]
        full.unlink()
        program.wait_for(lambda: saved() >= 3)
        assert ids(tmp_path / "out.jsonl") == [0, 1, 1]
        assert program.stop() == 0


def test_a_check_leaves_a_running_daemon_alone(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 0)
    config = configure(tmp_path, orders="out.jsonl")
    with started("run", config) as program:
        program.wait_until(lambda: any(" following " in e for e in program.errors))
        program.wait_for((tmp_path / "state" / "orders.offset.json").exists)
        torn = tmp_path / "out.jsonl"
        done = run_tailer("check", config)
        assert done.returncode == 0, done.stderr
        assert "(saved offset)" in done.stdout
        table.insert([{"id": 1}])
        program.wait_for(lambda: torn.read_text().count("\n") >= 2)
        assert program.stop() == 0
    assert ids(torn) == [0, 1]
    done = run_tailer("check", config)
    assert (done.returncode, "(saved offset)" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("other", ["./out.jsonl", "sub/../out.jsonl", "symbolic", "hard"])
@pytest.mark.parametrize("command", ["run", "check"])
def test_two_feeds_with_one_file_are_a_mistake(
    tmp_path: Path, command: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"
    file.touch()
    (tmp_path / "symbolic").symlink_to(file)
    config = configure(tmp_path, orders="out.jsonl", others=other)
    target = str(file)
    if other == "hard":
        (tmp_path / "hard").hardlink_to(file)
        target = f"the file of several names with inode {file.stat().st_ino} on "
    assert main([command, str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"feeds.others.sink writes to {target}" in line
    assert "as feeds.orders.sink does; each must have its own" in line
    assert f"(out.jsonl and {other} are one file)" in line


def test_two_daemons_with_one_file_do_not_cut_each_other(tmp_path: Path) -> None:
    make_table(tmp_path / "orders", 0, 1)
    make_table(tmp_path / "others", 2, 3)
    one = configure(tmp_path, orders="out.jsonl").rename(tmp_path / "one.toml")
    two = configure(tmp_path, 'state = "other"\n', others="out.jsonl")
    out = tmp_path / "out.jsonl"
    with started("run", one) as first:
        first.wait_for(lambda: out.exists() and out.read_text().count("\n") >= 2)
        with started("run", two) as second:
            second.wait_until(lambda: any(" following " in e for e in second.errors))
            second.wait_a_moment(0.5)
            assert ids(out) == [0, 1]
            assert first.stop() == 0
            second.wait_for(lambda: out.read_text().count("\n") >= 4)
            assert second.stop() == 0
    assert ids(out) == [0, 1, 2, 3], "when the first has gone the second goes on by itself"


def test_a_pattern_s_tables_with_one_file_are_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path, lake="out.jsonl")
    config.write_text(config.read_text().replace('table = "lake"', 'table = "lake/*/"'))
    assert main(["check", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "feeds.lake.sink writes all tables of the pattern to" in line
    assert "put {table} into it" in line


def test_refused_rows_are_kept_in_a_file_for_the_daemon_s_user_alone(tmp_path: Path) -> None:
    make_table(tmp_path / "orders", 0)
    (tmp_path / "tailer.toml").write_text(
        '[daemon]\n[feeds.orders]\ntable = "orders"\non_reject = "park"\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    config = load_config(tmp_path / "tailer.toml")
    park = assemble_feed(config, config.feeds["orders"]).park
    assert isinstance(park, JsonlSink)
    assert park.private
    assert park.path == tmp_path / "state" / "orders.parked.jsonl"


def test_a_state_folder_that_every_user_may_write_to_is_said(tmp_path: Path) -> None:
    make_table(tmp_path / "orders", 0)
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with started("run", configure(tmp_path, orders="out.jsonl")) as program:
        program.wait_until(lambda: any("chmod 700 it" in line for line in program.errors))
        assert program.stop() == 0


MIRROR = 'type = "sqlite"\nkey = ["id"]\npath = "copy.sqlite"\n'


def mirror(folder: Path, start: str = "") -> Path:
    path = folder / "tailer.toml"
    path.write_text(
        f'[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\n{start}'
        f"[feeds.orders.sink]\n{MIRROR}"
    )
    return path


def test_a_mirror_starts_with_the_rows_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table(tmp_path / "orders", 1, 2)
    config = mirror(tmp_path)
    assert main(["check", str(config)]) == 0
    assert "from version 2, index 0 (snapshot)" in capsys.readouterr().out
    with started("run", config) as program:
        offset = tmp_path / "state" / "orders.offset.json"
        program.wait_for(lambda: offset.exists() and '"version": 3' in offset.read_text())
        table.insert([{"id": 3}])
        program.wait_for(lambda: '"version": 4' in offset.read_text())
        assert program.stop() == 0
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as database:
        assert sorted(database.execute("SELECT id FROM orders")) == [(1,), (2,), (3,)]


def test_a_mirror_that_would_lack_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_table(tmp_path / "orders", 1)
    for line, said in (
        ('from = "latest"\n', "feeds.orders.from is 'latest', but a mirror needs the rows"),
        ('operations = ["insert"]\n', "feeds.orders.operations is given, but a mirror needs all"),
    ):
        config = mirror(tmp_path, line)
        for command in ("check", "run"):
            assert main([command, str(config)]) == 2
            assert said in capsys.readouterr().err
