"""Any legal log: what is read of it is what a naive reader says, which shares no code with ours.

A history that disagrees is shrunk and printed; its line in DISAGREED makes it a test.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import deltalake
import pytest

from tests.fuzz.grammar import FEATURES, ODDITIES, STEPS, History, draw, write
from tests.fuzz.judge import Tally, disagreement, inline_threads
from tests.fuzz.reference import Reference, key
from tests.fuzz.shrink import report, shrunk
from tests.support.extent import WHOLE, examples, sampled

#: All take about fifteen seconds of processor time.
SEEDS = range(200)

#: Histories that once disagreed.
DISAGREED = [
    # A part, and a sidecar, without a column of adds: "any missing column" is null.
    "3062 |  | delete:556809 clean:0 |",
    "3029 | v2 | append:5 remove:445647 clean:0 |",
]

#: Faults of a reader: what to put in place of what, and the first seed that is tried.
FAULTS: dict[str, tuple[str, Any, int]] = {
    "no_action_is_moot": (
        "tailer.plan.live_files._Keys.apply_commit",
        lambda *_: frozenset(),
        1001,
    ),
    "vectors_of_one_file_are_one": (
        "tailer.delta.actions.DeletionVectorDescriptor.unique_id",
        property(lambda vector: vector.path_or_inline_dv),
        1026,
    ),
    "paths_are_not_decoded": ("tailer.delta.snapshot.parse_location", lambda path: path, 1018),
    "removed_domains_stay": (
        "tailer.delta.snapshot.Reconciliation.domains",
        property(lambda found: dict(found._domains)),
        1036,
    ),
    "lean_removes_are_whole": ("tailer.plan.rules._is_incomplete", lambda *_: False, 1006),
    "a_property_counts_without_its_feature": (
        "tailer.delta.snapshot.cdf_enabled",
        lambda _, metadata: "delta.enableChangeDataFeed" in metadata.configuration,
        1169,
    ),
    "row_ids_are_those_of_places": (
        "tailer.decode.tracking.find_row_id_column",
        lambda *_: None,
        3084,
    ),
}

#: What deltalake reads without Spark's newer features.
KNOWN_TO_DELTALAKE = {"cdf", "partitions", "tracking", "times", "legacy"}


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    with inline_threads():
        yield


@sampled
def test_what_is_read_of_any_history_is_what_a_naive_reader_says() -> None:
    tally = Tally()
    for history in map(draw, SEEDS[: examples(len(SEEDS))]):
        if disagreement(history, tally):
            shorter = shrunk(history, disagreement)
            pytest.fail(report(shorter, str(disagreement(shorter))))
    # That no way of finding changes was left out; one of them is rare.
    assert {"cdf", "files", "cancel_out"} | ({"row_ids"} if WHOLE else set()) <= tally.keys()
    assert tally["events"] > tally["versions"] > examples(len(SEEDS))


@pytest.mark.parametrize("line", DISAGREED)
def test_a_history_that_disagreed_agrees(line: str) -> None:
    assert disagreement(History.parse(line)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_shrunk_and_told_in_twenty_lines(name: str) -> None:
    target, fault, seed = FAULTS[name]
    with mock.patch(target, fault):
        history = next(h for h in map(draw, range(seed, seed + 2000)) if disagreement(h))
        shorter = shrunk(history, disagreement)
        told = report(shorter, str(disagreement(shorter)))
    assert len(shorter.steps) <= len(history.steps)
    assert len(shorter.without) > len(history.without)
    assert len(told.splitlines()) <= 20
    line = re.search(r'^ +"(.*)",$', told, re.MULTILINE)
    assert line is not None
    assert History.parse(line[1]) == shorter
    assert disagreement(shorter) is None


def test_a_seed_gives_the_same_files_and_no_step_or_feature_is_left_out() -> None:
    seen: Counter[str] = Counter()
    for history in map(draw, SEEDS):
        assert History.parse(str(history)) == history
        table = write(history)
        if history.seed < 50:
            assert table.dressed == write(history).dressed
        seen.update([*history.features, *(name for name, _ in history.steps)])
        seen.update(set(ODDITIES) - {*history.without})
        seen.update(kind for actions in table.actions for action in actions for kind in action)
    assert seen.keys() >= {*FEATURES, *STEPS, *ODDITIES}
    assert seen.keys() >= {"add", "remove", "cdc", "metaData", "protocol", "txn", "domainMetadata"}


def test_deltalake_reads_what_the_naive_reader_says(tmp_path: Path) -> None:
    """Another judge, of the naive reader. It takes a path as it is spelled for a file's key, wants
    all digits of a decimal partition value, and no half of a surrogate pair in unknown keys."""
    agreed = 0
    for history in map(draw, range(60)):
        table = write(
            replace(
                history,
                features=tuple(f for f in history.features if f in KNOWN_TO_DELTALAKE),
                without=(*history.without, "paths", "unknown"),
            )
        )
        if "vacuumProtocolCheck" in table.state.features:
            continue
        folder = tmp_path / str(history.seed)
        for path, (data, _) in table.dressed.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        try:
            rows = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
        except deltalake.exceptions.DeltaError as e:
            if "Failed to parse value" in str(e):
                continue
            raise
        reference = Reference(table.plain)
        wanted = reference.rows(table.version)
        for row in wanted:
            row.pop("", None)
        state = reference.states[-1]
        assert Counter(key(state.physical_row(r)) for r in rows) == Counter(map(key, wanted))
        agreed += 1
    assert agreed > 30
