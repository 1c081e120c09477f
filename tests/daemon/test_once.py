"""`tailer run --once`: all feeds to their newest versions, an end, a summary, a status."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tailer.testing.table import TableBuilder
from tests.support.pages import blocks
from tests.support.programs import run_tailer, started, whole_lines

#: A sink of each kind: lines, files of their own, a database with the offset in it, a table.
SINKS = {
    "jsonl": 'type = "jsonl"\npath = "{name}.jsonl"',
    "files": 'type = "files"\npath = "{name}-files"',
    "sqlite": 'type = "sqlite"\npath = "{name}.db"\nkey = ["id"]',
    "delta": 'type = "delta"\npath = "{name}-delta"\nkey = ["id"]',
}


class Tables:
    """Tables in a folder, each with a feed of one configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "tailer.toml"
        self.config.write_text('[daemon]\nhttp = ""\n')

    def add(self, name: str, sink: str = "jsonl", start: str = "earliest") -> TableBuilder:
        table = TableBuilder(self.folder / name, pa.schema([("id", pa.int64())]), cdf=True)
        table.create()
        table.insert([{"id": 1}, {"id": 2}])
        self.follow(name, sink, start)
        return table

    def follow(self, name: str, sink: str = "jsonl", start: str = "earliest") -> None:
        text = f'[feeds.{name}]\ntable = "{name}"\nfrom = "{start}"\n[feeds.{name}.sink]\n'
        with self.config.open("a") as file:
            file.write(text + SINKS[sink].format(name=name) + "\n")

    def run(self, *more: str, status: int = 0) -> dict[str, dict[str, Any]]:
        """Run once; return what is said of each feed, by name, without its seconds."""
        done = run_tailer("run", "--once", "--json", self.config, *more)
        assert done.returncode == status, done.stderr
        said = [json.loads(line) for line in done.stdout.splitlines()]
        assert all(each.pop("seconds") >= 0 for each in said)
        return {each.pop("feed"): each for each in said}

    def ids(self, name: str) -> list[int]:
        return [json.loads(line)["id"] for line in whole_lines(self.folder / f"{name}.jsonl")]


NOTHING = {"from": None, "to": None, "rows": 0, "error": None}


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


@pytest.mark.parametrize("sink", SINKS)
def test_runs_deliver_what_is_new_and_then_nothing(tables: Tables, sink: str) -> None:
    table = tables.add("orders", sink)
    assert tables.run()["orders"] == {"from": 0, "to": 1, "rows": 2, "error": None}
    assert tables.run()["orders"] == NOTHING
    table.insert([{"id": 3}])
    assert tables.run()["orders"] == {"from": 2, "to": 2, "rows": 1, "error": None}


def test_people_get_a_line_for_each_feed(tables: Tables) -> None:
    tables.add("orders")
    first, second = (run_tailer("run", "--once", tables.config).stdout for _ in range(2))
    assert first.startswith("orders: versions 0 to 1, 2 rows in ")
    assert second == "orders: nothing is new\n"


def test_a_version_ends_it(tables: Tables) -> None:
    tables.add("orders").insert([{"id": 3}])
    assert tables.run("--until", "1")["orders"]["to"] == 1
    assert tables.ids("orders") == [1, 2]
    assert tables.run("--until", "now")["orders"] == {"from": 2, "to": 2, "rows": 1, "error": None}


def test_a_start_behind_the_end_is_refused_before_anything_is_saved(tables: Tables) -> None:
    tables.add("orders", start="snapshot")
    assert "starts at version 1" in tables.run("--until", "0", status=2)["orders"]["error"]
    assert tables.run()["orders"] == {"from": 1, "to": 1, "rows": 2, "error": None}


def test_the_start_latest_is_kept_for_the_next_run(tables: Tables) -> None:
    table = tables.add("orders", start="latest")
    assert tables.run()["orders"] == NOTHING
    table.insert([{"id": 3}])
    tables.run()
    assert tables.ids("orders") == [3]


def test_the_status_says_whether_some_or_all_have_failed(tables: Tables) -> None:
    tables.follow("nowhere")
    assert tables.run(status=1)["nowhere"]["error"]
    tables.add("orders")
    said = tables.run(status=3)
    assert said["nowhere"]["error"]
    assert said["orders"] == {"from": 0, "to": 1, "rows": 2, "error": None}


def test_what_was_delivered_before_a_failure_is_said(tables: Tables) -> None:
    table = tables.add("orders")
    table.commit(version=3)
    said = tables.run(status=1)["orders"]
    assert "the commit is missing" in said.pop("error")
    assert said == {"from": 0, "to": 1, "rows": 2}


def test_a_feed_that_another_process_runs_is_given_up(tables: Tables) -> None:
    tables.add("orders")
    tables.run()
    with (tables.folder / "state" / "orders.offset.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = tables.run("--give-up-after", "0.3", status=1)["orders"]
    assert "holds the offset of feed 'orders'" in said["error"]


def test_temporary_errors_are_given_up(tables: Tables) -> None:
    tables.add("orders")
    tables.run()
    # As a table looks that is not mounted.
    (tables.folder / "orders" / "_delta_log").rename(tables.folder / "away")
    (tables.folder / "orders" / "_delta_log").mkdir()
    said = tables.run("--give-up-after", "0.5", status=1)["orders"]
    assert "it was tried for 0.5 s" in said["error"]


def test_a_signal_ends_it_behind_a_batch(tables: Tables) -> None:
    tables.add("orders")
    tables.run()
    with (tables.folder / "state" / "orders.offset.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with started("run", "--once", "--json", tables.config) as program:
            program.wait_until(lambda: any("standby" in line for line in program.errors))
            assert program.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert program.events[0]["error"] == "interrupted before its end"


@pytest.mark.parametrize("option", [["--json"], ["--until", "3"], ["--give-up-after", "3"]])
def test_the_options_of_a_run_that_ends_are_for_it_alone(tables: Tables, option: list[str]) -> None:
    tables.add("orders")
    done = run_tailer("run", tables.config, *option)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{option[0]} is for a run that ends; add --once" in done.stderr


# The page's recipes


def as_shown(command: str, tables: Tables) -> str:
    """A recipe's command, in the test's folder and with the test's own program."""
    places = ("/srv/feeds", "/etc/tailer")
    for place in places:
        command = command.replace(place, str(tables.folder))
    return command.replace("/opt/tailer/bin/tailer", "tailer")


def by_shell(command: str, tables: Tables) -> str:
    bin_folder = tables.folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "tailer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tailer "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    shown = as_shown(command, tables)
    return subprocess.check_output(["sh", "-ec", shown], text=True, env=environment)


def recipe(name: str) -> str:
    """The command of a recipe of the page."""
    if name == "cron":
        (line,) = blocks("docs/once.md", "sh")[1].lines
        return line.split(None, 5)[5]
    if name == "systemd":
        (line,) = (x for x in blocks("docs/once.md", "ini")[0].lines if x.startswith("ExecStart="))
        return line.partition("=")[2]
    if name == "kubernetes":
        job = yaml.safe_load(blocks("docs/once.md", "yaml")[0].text)
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        return " ".join(["tailer", *pod["containers"][0]["args"]])
    tree = ast.parse(blocks("docs/once.md", "python")[0].text)
    (command,) = (
        k.value for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "bash_command"
    )
    return str(ast.literal_eval(command))


@pytest.mark.parametrize("name", ["cron", "systemd", "kubernetes", "airflow"])
def test_the_command_of_a_recipe_runs(tables: Tables, name: str) -> None:
    if name == "cron" and shutil.which("flock") is None:
        pytest.skip("flock is not installed")
    tables.add("orders")
    by_shell(recipe(name), tables)
    assert tables.ids("orders") == [1, 2]


def test_the_handler_for_lambda_returns_or_raises(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.add("orders")
    monkeypatch.chdir(tables.folder)
    names: dict[str, Any] = {}
    exec(blocks("docs/once.md", "python")[1].text, names)  # noqa: S102  # the page's own block
    (said,) = names["handler"]({}, None)
    assert (said["feed"], said["rows"]) == ("orders", 2)
    tables.follow("nowhere")
    with pytest.raises(RuntimeError, match="nowhere"):
        names["handler"]({}, None)
