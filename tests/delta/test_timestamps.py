"""A commit's time: its own where in-commit timestamps hold, its file's before that."""

from __future__ import annotations

import pytest

from tailer.delta.actions import CommitInfo, Protocol
from tailer.delta.timestamps import (
    find_commit_timestamp,
    find_enablement,
    first_at_or_after,
    last_at_or_before,
)
from tailer.errors import CorruptLog
from tests.support.feeds import metadata, refusal

WRITER_7 = Protocol(1, 7, None, frozenset({"inCommitTimestamp"}))
ON = {"delta__enableInCommitTimestamps": "true"}


def info(timestamp: object = None) -> CommitInfo:
    return CommitInfo({"inCommitTimestamp": timestamp})


def test_in_commit_timestamps_are_off_without_feature_or_property() -> None:
    assert find_enablement(WRITER_7, metadata()) is None
    assert find_enablement(Protocol(1, 4), metadata(**ON)) is None


def test_without_the_enablement_properties_they_hold_from_the_start() -> None:
    assert find_enablement(WRITER_7, metadata(**ON)) == (0, None)


def test_the_enablement_properties_say_from_when_they_hold() -> None:
    late = metadata(
        **ON,
        delta__inCommitTimestampEnablementVersion="5",
        delta__inCommitTimestampEnablementTimestamp="1700000000000",
    )
    assert find_enablement(WRITER_7, late) == (5, 1_700_000_000_000)


@pytest.mark.parametrize("text", ["five", "1.0", "9" * 5000])
def test_enablement_properties_that_are_no_numbers_are_refused(text: str) -> None:
    odd = metadata(**ON, delta__inCommitTimestampEnablementVersion=text)
    with pytest.raises(CorruptLog):
        find_enablement(WRITER_7, odd)


def test_from_the_enablement_version_on_the_commit_says_its_own_time() -> None:
    assert find_commit_timestamp(5, 99, 80, info(70), (5, 60)) == 70
    assert find_commit_timestamp(4, 99, 80, info(70), (5, 60)) == 99
    assert find_commit_timestamp(5, 99, 80, info(70), None) == 99


@pytest.mark.parametrize("commit_info", [None, info(), info("70"), info(70.0)])
def test_a_missing_in_commit_timestamp_is_an_error_from_the_enablement_on(
    commit_info: CommitInfo | None,
) -> None:
    message = refusal(lambda: find_commit_timestamp(5, 99, 80, commit_info, (5, 60)), CorruptLog)
    assert "version 5" in message
    assert "inCommitTimestamp" in message
    assert find_commit_timestamp(4, 99, 80, commit_info, (5, 60)) == 99


@pytest.mark.parametrize("timestamp", [2**63 - 1, 10**30, -(2**62), 253_402_300_800_000])
def test_an_in_commit_timestamp_beyond_all_calendars_is_refused(timestamp: int) -> None:
    assert "not a time" in refusal(
        lambda: find_commit_timestamp(5, 99, 80, info(timestamp), (0, None)), CorruptLog
    )


@pytest.mark.parametrize(
    ("mtime", "floor", "expected"), [(99, None, 99), (99, 98, 99), (99, 99, 100), (50, 99, 100)]
)
def test_file_times_are_raised_so_that_time_never_stands_still(
    mtime: int, floor: int | None, expected: int
) -> None:
    assert find_commit_timestamp(3, mtime, floor, None, None) == expected


@pytest.mark.parametrize(
    ("time", "after", "before"),
    [(9, 2, None), (10, 2, 2), (11, 3, 2), (20, 3, 3), (25, 4, 3), (30, 4, 4), (31, None, 4)],
)
def test_the_search_includes_a_version_at_the_very_time(
    time: int, after: int | None, before: int | None
) -> None:
    commits = [(2, 10), (3, 20), (4, 30)]
    assert first_at_or_after(commits, time) == after
    assert last_at_or_before(commits, time) == before


def test_the_search_in_no_commits_finds_none() -> None:
    assert first_at_or_after([], 5) is None
    assert last_at_or_before([], 5) is None
