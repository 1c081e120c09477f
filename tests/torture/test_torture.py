"""Two rounds, so that they work when somebody has hours; their judge sees what it is there for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.torture.places import local_place
from tests.torture.recipe import FAULTS, SINKS, STORES, Recipe
from tests.torture.round import run_round
from tests.torture.targets import plain, target_of

INSERT = {"id": 1, "name": "a", "_change_type": "insert", "_commit_version": 1, "_event_id": "e1"}
DELETE = {**INSERT, "_change_type": "delete", "_commit_version": 2, "_event_id": "e2"}


def left(folder: Path, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """What these events leave, as the judge of JSON lines sees it."""
    (folder / "out.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return target_of("jsonl", folder).rows()


def test_the_judge_sees_what_was_lost_doubled_or_changed(tmp_path: Path) -> None:
    assert left(tmp_path, INSERT) == [{"id": 1, "name": "a"}]
    assert left(tmp_path, INSERT, INSERT, DELETE) == [], "what is repeated to the byte counts once"
    again = {**INSERT, "_event_id": "e3"}
    with pytest.raises(AssertionError, match="came and was there"):
        left(tmp_path, INSERT, again)
    with pytest.raises(AssertionError, match="left and was not there"):
        left(tmp_path, DELETE)
    with pytest.raises(AssertionError, match="left as another row"):
        left(tmp_path, INSERT, {**DELETE, "name": "b"})
    with pytest.raises(AssertionError, match="came again and was another"):
        left(tmp_path, INSERT, {**INSERT, "name": "b"})
    with pytest.raises(AssertionError, match="out of order"):
        left(tmp_path, DELETE, INSERT)
    assert plain([{"id": 1, "x": None, "_own": 2}]) == plain([{"id": 1}])
    assert plain([{"id": 1, "x": 0}]) != plain([{"id": 1}])


def test_a_seed_is_a_round_and_all_kinds_are_drawn() -> None:
    drawn = [Recipe.drawn(seed) for seed in range(300)]
    assert drawn == [Recipe.drawn(seed) for seed in range(300)]
    faults = Counter(fault for recipe in drawn for fault in recipe.faults)
    assert set(faults) == set(FAULTS)
    assert {recipe.store for recipe in drawn} == set(STORES)
    assert {recipe.sink for recipe in drawn} == set(SINKS)
    assert not any("network" in r.faults for r in drawn if r.store == "local")
    alone = Recipe.drawn(7, ["s3"])
    assert (alone.sink, alone.cdf) == (drawn[7].sink, drawn[7].cdf)


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["jsonl", "sqlite"])
def test_a_round_is_exact(sink: str, tmp_path: Path) -> None:
    recipe = Recipe(11, "local", sink, sink == "jsonl", False, ("kill", "two daemons", "terminate"))
    outcome = run_round(recipe, local_place(tmp_path), tmp_path)
    assert outcome.versions > 1
    assert outcome.seen == recipe.faults
