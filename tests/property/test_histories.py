"""Whatever was done to a table, its feed says it: exactly, and with no event too many.

After each step of a history the feed is applied to the table before, and gives the table after;
derived changes are the fewest that values and row ids allow; snapshots hold the table's rows.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.histories import Tally, play
from tests.property.operations import FEATURES, OPERATIONS, Setting

STEPS_MIN = 15

# A feature that can't be turned on later is there from the start, and none can be turned off so.
AT_FIRST = frozenset(FEATURES) - {"type_widening"}
seeds = st.integers(0, 2**32 - 1)
steps = st.tuples(st.sampled_from(list(OPERATIONS)), seeds)


#: A history each second, on a quiet machine.
HISTORIES = max(15, int(os.environ.get("TAILER_TORTURE_ROUNDS", "15")))


@st.composite
def sets_of_features(draw: st.DrawFn) -> frozenset[str]:
    chosen = draw(st.sets(st.sampled_from(sorted(AT_FIRST - {"name_mapping", "id_mapping"}))))
    mapping = draw(st.sampled_from([set(), {"name_mapping"}, {"id_mapping"}]))
    return frozenset(chosen | mapping)


@pytest.mark.slow
@pytest.mark.timeout(900 + 10 * HISTORIES)
def test_the_feed_of_any_history_gives_every_version_from_the_one_before() -> None:
    tally = Tally()

    @settings(max_examples=HISTORIES)
    @given(
        st.builds(Setting, sets_of_features(), seeds),
        st.lists(steps, min_size=STEPS_MIN, max_size=STEPS_MIN + 2),
    )
    def any_history(setting: Setting, operations: list[tuple[str, int]]) -> None:
        play(setting, operations, tally)

    any_history()
    print(tally)
    assert tally.histories >= HISTORIES
    assert tally.steps >= STEPS_MIN * tally.histories
    # That no way of finding changes was left out, and that there were changes to find.
    assert {"cdf", "files", "cancel_out", "row_ids"} <= tally.origins.keys()
    assert tally.events > tally.steps


def test_a_restore_that_removes_column_mapping_moves_no_row() -> None:
    """Its files keep the physical names, which are the restored schema's names."""
    tally = Tally()
    appends = [("append", 0)] * 12
    history = [*appends, ("append_and_compact", 0), ("rename_column", 0), ("restore", 1)]
    play(Setting(frozenset(), 0), history, tally)
    assert tally.steps == len(history)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_pair_of_operation_and_feature_is_left_out() -> None:
    tally = Tally()
    for number, feature in enumerate(FEATURES):
        rng = random.Random(number)
        names = list(OPERATIONS)
        rng.shuffle(names)
        others = AT_FIRST - {"name_mapping", "id_mapping", feature}
        chosen = {feature} & AT_FIRST | set(rng.sample(sorted(others), 2))
        history = [(name, rng.randrange(2**32)) for name in names]
        play(Setting(frozenset(chosen), number), history, tally, keep=feature)
    missing = {(name, f) for name in OPERATIONS for f in FEATURES if not tally.pairs[name, f]}
    print(tally)
    assert missing == set()
