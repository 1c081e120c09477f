"""Two rounds, so that they work when somebody has hours; their judge sees what it is there for."""

from __future__ import annotations

import json
import socket
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.link import running_link
from tests.support.source import ROOT
from tests.torture.events import Record, proven
from tests.torture.faults import FAULTS
from tests.torture.places import local_place
from tests.torture.recipe import FORMATS, SINKS, STORES, WRITERS, Recipe
from tests.torture.round import plain, run_round
from tests.torture.servers import Servers
from tests.torture.summary import DIMENSIONS, Summary, merged
from tests.torture.targets import TARGETS

INSERT = {"id": 1, "name": "a", "_change_type": "insert", "_commit_version": 1, "_event_id": "e1"}
DELETE = {**INSERT, "_change_type": "delete", "_commit_version": 2, "_event_id": "e2"}


def left(*events: dict[str, Any], exactly_once: bool = False) -> list[dict[str, Any]]:
    """What these events leave, as the judge sees it."""
    records = [Record(json.dumps(event).encode()) for event in events]
    return proven(records, lambda row: row, exactly_once=exactly_once).rows


def test_the_judge_sees_what_was_lost_doubled_or_changed() -> None:
    assert left(INSERT) == [{"id": 1, "name": "a"}]
    assert left(INSERT, INSERT, DELETE) == [], "what is repeated to the byte counts once"
    with pytest.raises(AssertionError, match="is there twice"):
        left(INSERT, INSERT, exactly_once=True)
    again = {**INSERT, "_event_id": "e3"}
    with pytest.raises(AssertionError, match="came and was there"):
        left(INSERT, again)
    with pytest.raises(AssertionError, match="left and was not there"):
        left(DELETE)
    with pytest.raises(AssertionError, match="left as another row"):
        left(INSERT, {**DELETE, "name": "b"})
    with pytest.raises(AssertionError, match="came again and was another"):
        left(INSERT, {**INSERT, "name": "b"})
    with pytest.raises(AssertionError, match="out of order"):
        left(DELETE, INSERT)
    assert plain([{"id": 1, "x": None, "_own": 2}]) == plain([{"id": 1}])
    assert plain([{"id": 1, "x": 0}]) != plain([{"id": 1}])


def test_each_partition_has_its_order() -> None:
    one, two = (json.dumps(event).encode() for event in (INSERT, {**DELETE, "id": 2}))
    coming = json.dumps({**INSERT, "id": 2, "_event_id": "e0", "_commit_version": 0}).encode()
    records = [Record(coming, place=1), Record(two, place=1), Record(one, place=0)]
    assert proven(records, lambda row: row, exactly_once=True).rows == [{"id": 1, "name": "a"}]


def drawn(seed: int, **among: Any) -> Recipe:
    return Recipe.drawn(seed, FAULTS, **among)


def test_a_seed_is_a_round_and_all_kinds_are_drawn() -> None:
    rounds = [drawn(seed) for seed in range(500)]
    assert rounds == [drawn(seed) for seed in range(500)]
    faults = Counter(fault for recipe in rounds for fault in recipe.faults)
    assert set(faults) == set(FAULTS)
    assert {recipe.store for recipe in rounds} == set(STORES)
    assert {recipe.writer for recipe in rounds} == {*WRITERS, "catalog"}
    pairs = {(recipe.sink, recipe.format) for recipe in rounds}
    assert pairs == {(sink, each) for sink in SINKS for each in FORMATS[sink]}
    for recipe in rounds[:50]:
        only = {"stores": [recipe.store], "sinks": [recipe.sink]}
        only |= {"writers": [recipe.writer]} if recipe.writer in WRITERS else {}
        assert drawn(recipe.seed, **only) == recipe, "the line that repeats a round repeats it"


def test_every_sink_is_drawn_and_has_a_target() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(TARGETS) == set(SINKS) == set(ours["project"]["entry-points"]["tailer.sinks"])


def test_a_summary_counts_by_everything_and_can_be_added(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    summary = Summary(7, {"nats": "missing"}, file, ["--rounds", "2"])
    traits = {"store": ["s3"], "sink": ["jsonl"], "fault": ["kill", "kill", "clock"]}
    summary.add(7, traits, {"versions": 3, "rows": 5, "events": 9})
    summary.add(8, traits, {}, {"seed": 8, "error": "lost"})
    record = json.loads(file.read_text())
    assert (record["rounds"], record["failed"], record["seeds"]) == (2, 1, [7, 8])
    assert (record["versions"], record["rows"], record["events"]) == (3, 5, 9)
    assert set(record["by"]) == set(DIMENSIONS)
    assert record["by"]["fault"]["kill"] == {"rounds": 2, "failed": 1, "times": 4}
    both = merged([record, record])
    assert (both["rounds"], both["failed"], both["events"]) == (4, 2, 18)
    assert both["by"]["fault"]["clock"] == {"rounds": 4, "failed": 2, "times": 4}
    assert both["missing"] == {"nats": "missing"}


def test_a_link_cuts_holds_and_loses_answers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        running_link(server.getsockname()[1]) as link,
        ExitStack() as sockets,
    ):

        def connected() -> tuple[socket.socket, socket.socket]:
            here = socket.create_connection(("127.0.0.1", link.port), timeout=30)
            there, _ = server.accept()
            there.settimeout(30)
            return sockets.enter_context(here), sockets.enter_context(there)

        here, there = connected()
        here.sendall(b"ask")
        assert there.recv(9) == b"ask"
        link.disturb("lose answers")
        here.sendall(b"again")
        assert there.recv(9) == b"again"
        there.sendall(b"answer")
        with pytest.raises(ConnectionResetError):
            here.recv(9)
        link.disturb("hold")
        here, there = connected()
        here.sendall(b"late")
        there.settimeout(0.2)
        with pytest.raises(TimeoutError):
            there.recv(9)
        link.heal()
        there.settimeout(30)
        assert there.recv(9) == b"late"
        link.disturb("cut")
        with pytest.raises(ConnectionResetError):
            here.recv(9)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["jsonl", "sqlite"])
def test_a_round_is_exact(sink: str, servers: Servers, tmp_path: Path) -> None:
    among = {"stores": ["local"], "sinks": [sink], "writers": ["deltalake"]}
    recipe = Recipe.drawn(11, ("kill", "two daemons", "terminate"), **among)
    outcome = run_round(recipe, local_place(tmp_path), tmp_path, servers)
    assert outcome.versions > 1
    assert outcome.faults == recipe.faults
