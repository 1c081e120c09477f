"""A short soak, so that it works when somebody has hours; its judge sees what grows."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from xml.dom.minidom import parseString

import pytest

from tests.soak.__main__ import report, soak
from tests.soak.feeds import MIX, sinks_of
from tests.soak.sampling import Sample
from tests.soak.verdict import BOUNDS, judge, picture


def samples(**slopes: float) -> list[Sample]:
    """Four flat hours with some noise; ``slopes`` are what a measure grows an hour."""
    chance = random.Random(1)
    times = [n / 180 for n in range(720)]
    return [
        {
            "hours": at,
            **{n: 300 * chance.uniform(0.99, 1.01) + slopes.get(n, 0.0) * at for n in BOUNDS},
        }
        for at in times
    ]


@pytest.mark.parametrize("name", BOUNDS)
def test_what_grows_is_seen_and_noise_is_not(name: str) -> None:
    assert all(one.flat for one in judge(samples()))
    allowed = next(one.allowed for one in judge(samples()) if one.name == name)
    grown = {one.name for one in judge(samples(**{name: allowed})) if not one.flat}
    assert grown == {name}


def test_what_has_filled_in_the_first_half_is_flat() -> None:
    filled = samples()
    for sample in filled[: len(filled) // 2]:
        sample["rss_mib"] *= 0.5
    filled[-1]["rss_mib"] *= 3  # one high sample is no growth
    assert all(one.flat for one in judge(filled))


def test_the_picture_has_a_line_for_each_measure() -> None:
    lines = parseString(picture(samples(), "a < b")).getElementsByTagName("polyline")  # noqa: S318
    assert len(lines) == 9
    assert all(line.getAttribute("points").count(",") == 720 for line in lines)


def test_the_sinks_are_mixed() -> None:
    assert Counter(sinks_of(200, kafka=True)) == {sink: 10 * n for sink, n in MIX.items()}
    assert set(sinks_of(7, kafka=True)) == set(MIX)
    assert "kafka" not in sinks_of(200, kafka=False)


@pytest.mark.slow
def test_a_short_soak_does_all_and_ends_exact(tmp_path: Path) -> None:
    wrong = soak(tmp_path, 12, 20, rate=4, every_s=2, seed=3, kafka=False, pace=0.02)
    assert wrong == []
    report(tmp_path)
    done = json.loads((tmp_path / "done.json").read_text())
    works = ("look", "rotate", "remove_old", "lose_targets", "pause", "change_guests", "commits")
    assert all(done[work] for work in works), done
    taken = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(taken) > 2
    assert [name for name in BOUNDS if taken[-1][name] <= 0 and name != "lag_s"] == []
