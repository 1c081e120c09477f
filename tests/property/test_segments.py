"""The cheapest way to a version is found wherever there is one at all."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.segment import (
    LogFile,
    LogKind,
    LogSegment,
    find_segments,
    format_commit_name,
    parse_log_file,
)
from tailer.errors import DataLoss

VERSIONS = 7


def named(name: str) -> LogFile:
    found = parse_log_file(name, 1, 0)
    assert found is not None
    return found


versions = st.integers(0, VERSIONS)
commits = st.sets(versions).map(lambda vs: [named(format_commit_name(v)) for v in vs])
spans = st.sets(st.tuples(versions, versions).filter(lambda s: s[0] < s[1]), max_size=4)
compactions = spans.map(lambda ss: [named(f"{a:020d}.{b:020d}.compacted.json") for a, b in ss])
checkpoints = st.sets(versions, max_size=2).map(
    lambda vs: [named(f"{v:020d}.checkpoint.parquet") for v in vs]
)
logs = st.tuples(commits, compactions, checkpoints).map(lambda parts: [f for p in parts for f in p])


def brute_force(files: list[LogFile], first: int, last: int) -> int | None:
    """The least number of files that hold each of first..last exactly once; None if there is no
    such choice."""
    deltas = [f for f in files if f.kind in (LogKind.COMMIT, LogKind.COMPACTED)]
    wanted = list(range(first, last + 1))
    for count in range(len(deltas) + 1):
        for chosen in combinations(deltas, count):
            held = sorted(v for f in chosen for v in range(f.version, f.last_version + 1))
            if held == wanted:
                return count
    return None


def found(files: list[LogFile], version: int) -> list[LogSegment]:
    result = []
    try:
        for segment in find_segments(files, version):
            result.append(segment)  # noqa: PERF402 - what came before the error counts
    except DataLoss:
        return result
    raise AssertionError("segments() ends with an error")


@given(logs, versions, st.randoms(use_true_random=False))
def test_segments_are_those_of_brute_force_whatever_the_order_of_the_listing(
    files: list[LogFile], version: int, source: object
) -> None:
    source.shuffle(files)  # type: ignore[attr-defined]  # a random.Random
    starts = sorted(
        {f.version for f in files if f.kind is LogKind.CLASSIC_CHECKPOINT}, reverse=True
    )
    expected = [
        (start, count)
        for start in (*(s for s in starts if s <= version), None)
        if (count := brute_force(files, 0 if start is None else start + 1, version)) is not None
    ]
    result = found(files, version)
    assert [
        (s.checkpoint.version if s.checkpoint else None, len(s.deltas)) for s in result
    ] == expected
    for segment in result:
        first = segment.checkpoint.version + 1 if segment.checkpoint else 0
        held = [v for f in segment.deltas for v in range(f.version, f.last_version + 1)]
        assert held == list(range(first, version + 1)), "each version once, oldest first"


@given(logs, versions)
def test_the_gap_that_is_named_is_one(files: list[LogFile], version: int) -> None:
    if found(files, version):
        return
    with pytest.raises(DataLoss) as refused:
        next(find_segments(files, version))
    assert refused.value.path is not None
    missing = int(refused.value.path.removesuffix(".json"))
    assert missing <= version
    assert format_commit_name(missing) not in {f.name for f in files}
