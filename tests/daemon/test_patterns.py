"""A real daemon that follows the tables of a pattern, and names those that it does not follow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.ordered import Setting
from tests.support.programs import run_tailer


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_tables_of_a_pattern_come_and_go(setting: Setting) -> None:
    setting.table("lake/one")
    setting.feed("lake", "discover_s = 0.1", table="lake/*/", output="lake-{table}.jsonl")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("lake-one") == [0, 1, 2])
        setting.table("lake/two", 2)
        program.wait_for(lambda: setting.ids("lake-two") == [0, 1])
        assert setting.status("lake/two")["state"] == "following"
        assert setting.order("lake/two", "pause")[0] == 202
        shutil.rmtree(setting.folder / "lake" / "one")
        program.wait_for(
            lambda: (
                [f["name"] for f in setting.ask("GET", "/api/v1/feeds")[1]["feeds"]] == ["lake/two"]
            ),
        )
        assert program.stop() == 0
    done = run_tailer("offsets", "show", setting.config, "lake/two")
    assert json.loads(done.stdout)["version"] == 2
    done = run_tailer("check", setting.config)
    assert done.stdout.startswith("lake/two: ok, "), done.stdout + done.stderr


def test_tables_that_are_not_followed_are_named(setting: Setting) -> None:
    """One with a name that leads elsewhere; and two with one name, unless one of them runs."""
    setting.table("lake/a1-b2")
    setting.feed("lake", "discover_s = 0.1", table="lake/a*b*/", output="out/{table}.jsonl")

    def named(folder: str, errors: list[str]) -> bool:
        return any(f"/lake/{folder} is not followed: " in line for line in errors)

    def following() -> list[str]:
        return [f["name"] for f in setting.ask("GET", "/api/v1/feeds")[1]["feeds"]]

    with setting.program() as program:
        program.wait_for(lambda: setting.ids("out/1--2") == [0, 1, 2])
        setting.table("lake/a1b-2", 1)
        setting.table("lake/a..b", 1)
        setting.table("lake/ab", 1)
        program.wait_for(lambda: named("a1b-2", program.errors))
        assert not named("a1-b2", program.errors)
        program.wait_for(lambda: following() == ["lake/-", "lake/..-", "lake/1--2"])
        assert program.stop() == 0
    with setting.program() as program:
        program.wait_for(lambda: all(named(f, program.errors) for f in ("a1b-2", "a1-b2")))
        program.wait_for(lambda: following() == ["lake/-", "lake/..-"])
        shutil.rmtree(setting.folder / "lake" / "a1b-2")
        program.wait_for(lambda: "lake/1--2" in following())
        assert program.stop() == 0
    assert setting.ids("out/1--2") == [0, 1, 2], "and it goes on where it was"


def test_names_of_folders_are_escaped_in_what_is_printed(setting: Setting) -> None:
    """By a check, and by the last words of a daemon."""
    name = "lake/a\u202eb\x1b[2J"
    (setting.folder / name / "_delta_log").mkdir(parents=True)
    setting.table("lake/one\u202e", 1)
    setting.feed("lake", table="lake/*/", output="out/{table}.jsonl")
    done = run_tailer("check", setting.config)
    assert "lake/one\\u202e: ok, " in done.stdout
    assert "a\\u202eb\\x1b[2J is not followed: " in done.stdout
    setting.feeds.clear()
    setting.feed('"f\\u202eg"', table="none", output="f.jsonl")
    ended = run_tailer("run", setting.config)
    assert "tailer: feed f\\u202eg: " in ended.stderr
    for text in (done.stdout, done.stderr, ended.stderr):
        assert text.replace("\n", "").isprintable()


def test_a_check_names_the_tables_that_are_not_followed(setting: Setting) -> None:
    setting.table("lake/t_..", 1)
    setting.table("lake/t_one", 1)
    setting.feed("lake", table="lake/t_*/", output="out/{table}/events.jsonl")
    done = run_tailer("check", setting.config)
    assert done.returncode == 1
    assert "/lake/t_.. is not followed: '..', the match of the pattern, can't be" in done.stdout
    assert "lake/one: ok, " in done.stdout
