"""Hostile tables in a daemon with limited memory: their feeds end with a clear sentence, or deliver
their rows, and the feed beside them goes on. ``python -m tests.hostile.trial`` tries one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.data_files import DATA_FILES
from tests.hostile.logs import HEAVY_LOGS, LOGS
from tests.hostile.trial import RESIDENT_MIB_MAX, try_attacks
from tests.support.components import require_crate

pytestmark = pytest.mark.timeout(900)


def check(folder: Path, attacks: Mapping[str, Attack]) -> None:
    """Run the attacks in one daemon; tell of all that went otherwise than they say."""
    outcome = try_attacks(folder, attacks)
    wrong = []
    for name, attack in attacks.items():
        said, rows = outcome.said.get(name), outcome.rows[name]
        if attack.rows is not None:
            if said is not None or rows != attack.rows:
                wrong.append(f"{name}: {rows} rows, {said}")
        elif said is None or not any(words in said for words in attack.refused):
            wrong.append(f"{name}: {rows} rows, {said}")
        elif "unexpected" in said or str(folder) not in said or "version" not in said:
            wrong.append(f"{name}: without its place: {said}")
    assert not wrong, "\n".join(wrong)
    assert outcome.peak_mib <= RESIDENT_MIB_MAX


@pytest.mark.slow
def test_data_files_take_no_more_memory_than_the_configuration_says(tmp_path: Path) -> None:
    require_crate()
    check(tmp_path, DATA_FILES)


def test_logs_are_read_or_refused_within_the_same_memory(tmp_path: Path) -> None:
    check(tmp_path, LOGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY_LOGS)
def test_large_logs_are_read_or_refused_within_the_same_memory(tmp_path: Path, name: str) -> None:
    check(tmp_path, {name: HEAVY_LOGS[name]})
