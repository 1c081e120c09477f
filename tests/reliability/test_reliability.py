"""The page of what was seen is made from data that can be believed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.hostile.lies import MAY_STOP
from tests.reliability import tables
from tests.reliability.tables import HISTORIES, KILLS, SECTIONS, read, with_seen
from tests.support.outcomes import record
from tests.support.source import ROOT

LINE = {"component": "sqlite", "by": "a test", "seed": 7, "kills": 3, "versions": 20, "rows": 90,
        "lost": 0, "doubled": 0, "commit": "12345678", "at": "2026-01-31"}  # fmt: skip


def test_nothing_was_lost_or_doubled_and_each_run_can_be_repeated() -> None:
    for line in read()["seen"]:
        assert line["component"] in KILLS.keys() | HISTORIES.keys()
        broken = [line.get(name, 0) for name in ("lost", "doubled", "changed", "broken")]
        assert not any(broken), line
        assert {"seed", "by", "commit", "at"} <= line.keys()
        file, _, test = line["by"].partition("::")
        if test:
            name = test.partition("[")[0]
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), line["by"]


def test_no_peer_stopped_a_feed_but_by_what_its_configuration_says() -> None:
    for line in read()["lies"]:
        assert line["outcome"] in ("again", "taken", "stops"), line
        if line["outcome"] == "taken":
            assert line["peer"] == "http", line  # whose status alone counts
        if line["outcome"] == "stops":
            assert line["lie"] in MAY_STOP.get(line["peer"], MAY_STOP["any"]), line


def test_each_find_names_the_commit_that_mended_it() -> None:
    if not (ROOT / ".git").exists() or _git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this checkout has no history")
    for find in read()["found"]:
        assert _git("cat-file", "-t", find["commit"]) == "commit", find


def _git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def test_newer_lines_replace_a_components_older_ones() -> None:
    other = {**LINE, "component": "delta"}
    newer = [{**LINE, "seed": 8}, {**LINE, "seed": 9}]
    assert with_seen([LINE, other], newer) == [other, *newer]
    with pytest.raises(AssertionError, match="no table has"):
        with_seen([], [{**LINE, "component": "strange"}])


def test_a_table_adds_the_lines_of_a_component(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = tmp_path / "data.json"
    monkeypatch.setattr(tables, "DATA", data)
    data.write_text(json.dumps({"seen": [LINE, {**LINE, "seed": 8, "rows": 1000}]}))
    assert SECTIONS["kills"]()[2:] == [
        "| sqlite | P1, P5, P6 | 6 | 40 | 1,090 |  | 0 | 0 | 7 (12345678), 8 (12345678) |"
    ]


def test_what_a_test_has_seen_becomes_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen.jsonl"
    monkeypatch.delenv("TAILER_TORTURE_RESULTS", raising=False)
    record("sqlite", "a test", kills=1)
    monkeypatch.setenv("TAILER_TORTURE_RESULTS", str(seen))
    record("sqlite", "a test", kills=2)
    (line,) = map(json.loads, seen.read_text().splitlines())
    assert (line["component"], line["kills"]) == ("sqlite", 2)
    assert with_seen([], [line]) == [line]
