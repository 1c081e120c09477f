"""The log's files by name, and which of them make a version's snapshot."""

from __future__ import annotations

import pytest

from tailer.delta.segment import (
    LogFile,
    LogKind,
    LogSegment,
    find_commits,
    find_segments,
    format_commit_name,
    parse_log_file,
)
from tailer.errors import DataLoss
from tests.support.feeds import refusal

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def named(name: str, size: int = 1) -> LogFile:
    found = parse_log_file(name, size, 0)
    assert found is not None
    return found


def commit(version: int) -> LogFile:
    return named(format_commit_name(version))


def compacted(first: int, last: int) -> LogFile:
    return named(f"{first:020d}.{last:020d}.compacted.json")


def checkpoint(version: int, size: int = 1) -> LogFile:
    return named(f"{version:020d}.checkpoint.parquet", size)


def part(version: int, number: int, parts: int) -> LogFile:
    return named(f"{version:020d}.checkpoint.{number:010d}.{parts:010d}.parquet")


def first_segment(version: int, *files: LogFile) -> LogSegment:
    return next(find_segments(files, version))


def names(segment: LogSegment) -> list[str]:
    """In short: `c4` for a checkpoint, `2` for a commit, `3-5` for a compaction."""
    kept = [f"c{segment.checkpoint.version}"] if segment.checkpoint else []
    spans = {True: "{0.version}", False: "{0.version}-{0.last_version}"}
    return kept + [spans[f.kind is LogKind.COMMIT].format(f) for f in segment.deltas]


@pytest.mark.parametrize(
    ("name", "kind", "version", "last"),
    [
        ("00000000000000000007.json", LogKind.COMMIT, 7, 7),
        ("00000000000000000007.crc", LogKind.CHECKSUM, 7, 7),
        ("00000000000000000007.checkpoint.parquet", LogKind.CLASSIC_CHECKPOINT, 7, 7),
        (f"00000000000000000007.checkpoint.{UUID}.json", LogKind.UUID_CHECKPOINT, 7, 7),
        (f"00000000000000000007.checkpoint.{UUID}.parquet", LogKind.UUID_CHECKPOINT, 7, 7),
        ("00000000000000000007.checkpoint.0000000002.0000000003.parquet",
         LogKind.MULTI_PART_CHECKPOINT, 7, 7),
        ("00000000000000000004.00000000000000000006.compacted.json", LogKind.COMPACTED, 4, 6),
    ],
)  # fmt: skip
def test_each_file_is_known_by_its_name(name: str, kind: LogKind, version: int, last: int) -> None:
    file = named(name)
    assert (file.kind, file.version, file.last_version) == (kind, version, last)


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint",
        "7.json",
        "00000000000000000007.json.tmp",
        ".00000000000000000007.json.crc",
        f"00000000000000000007.{UUID}.json",
        "00000000000000000007.checkpoint.json",
        "00000000000000000007.checkpoint.abc.parquet",
        "00000000000000000007.checkpoint.0000000000.0000000003.parquet",
        "00000000000000000007.checkpoint.0000000004.0000000003.parquet",
        "00000000000000000006.00000000000000000004.compacted.json",
        "00000000000000000006.00000000000000000006.compacted.json",
        "99999999999999999999.json",
        "\u0660" * 20 + ".json",
        "\uff10" * 19 + "7.crc",
        "0000000000000000000\u0967.checkpoint.parquet",
    ],
)
def test_other_names_are_no_files_of_the_log(name: str) -> None:
    assert parse_log_file(name, 1, 0) is None


def test_a_part_knows_its_number() -> None:
    file = part(7, 2, 3)
    assert (file.part, file.parts) == (2, 3)


def test_commits_are_sorted_whatever_the_listing_says() -> None:
    files = [commit(10), compacted(0, 9), commit(2), checkpoint(2), commit(9)]
    assert list(find_commits(files)) == [2, 9, 10]


def test_a_snapshot_without_checkpoint_is_all_commits() -> None:
    assert names(first_segment(2, commit(2), commit(0), commit(1), commit(3))) == ["0", "1", "2"]


def test_the_newest_checkpoint_at_or_below_the_version_is_taken() -> None:
    files = [*map(commit, range(9)), checkpoint(2), checkpoint(5), checkpoint(8)]
    assert names(first_segment(7, *files)) == ["c5", "6", "7"]
    assert names(first_segment(5, *files)) == ["c5"]
    assert names(first_segment(1, *files)) == ["0", "1"]


def test_older_checkpoints_are_there_for_when_a_newer_one_is_damaged() -> None:
    files = [*map(commit, range(6)), checkpoint(2), checkpoint(4)]
    found = find_segments(files, 5)
    assert [names(next(found)) for _ in range(3)] == [
        ["c4", "5"],
        ["c2", "3", "4", "5"],
        ["0", "1", "2", "3", "4", "5"],
    ]
    with pytest.raises(DataLoss):
        next(found)


def test_a_multi_part_checkpoint_counts_only_when_it_is_whole() -> None:
    files = [*map(commit, range(4)), part(3, 3, 3), part(3, 1, 3)]
    assert names(first_segment(3, *files)) == ["0", "1", "2", "3"]
    whole = first_segment(3, *files, part(3, 2, 3))
    assert whole.checkpoint is not None
    assert [f.part for f in whole.checkpoint.files] == [1, 2, 3]


def test_parts_of_two_attempts_do_not_mix() -> None:
    files = [*map(commit, range(4)), part(3, 1, 2), part(3, 2, 3), part(3, 3, 3)]
    assert names(first_segment(3, *files)) == ["0", "1", "2", "3"]


def test_an_empty_checkpoint_file_is_none() -> None:
    files = [*map(commit, range(3)), checkpoint(2, size=0)]
    assert names(first_segment(2, *files)) == ["0", "1", "2"]


def test_of_several_checkpoints_of_one_version_the_v2_one_comes_first() -> None:
    v2 = named(f"{2:020d}.checkpoint.{UUID}.parquet")
    found = find_segments([checkpoint(2), part(2, 1, 1), v2], 2)
    kinds = [s.checkpoint.files[0].kind for s in (next(found), next(found)) if s.checkpoint]
    assert kinds == [LogKind.UUID_CHECKPOINT, LogKind.CLASSIC_CHECKPOINT]


def test_a_compaction_stands_in_for_the_commits_it_holds_even_if_they_are_gone() -> None:
    files = [commit(0), compacted(1, 4), commit(5)]
    assert names(first_segment(5, *files)) == ["0", "1-4", "5"]
    assert names(first_segment(5, *files, *map(commit, range(1, 5)))) == ["0", "1-4", "5"]


def test_a_compaction_that_reaches_over_either_end_is_not_used() -> None:
    files = [*map(commit, range(8)), checkpoint(2), compacted(1, 4), compacted(4, 7)]
    assert names(first_segment(6, *files)) == ["c2", "3", "4", "5", "6"]


def test_a_shorter_compaction_is_taken_where_the_longer_one_leads_to_a_gap() -> None:
    files = [commit(0), commit(1), compacted(1, 3), compacted(2, 5)]
    assert names(first_segment(5, *files)) == ["0", "1", "2-5"]


def test_the_fewest_files_are_taken() -> None:
    files = [*map(commit, range(10)), compacted(0, 3), compacted(2, 9), compacted(0, 1)]
    assert names(first_segment(9, *files)) == ["0-1", "2-9"]


@pytest.mark.parametrize(
    ("files", "version", "missing"),
    [
        ([commit(1), commit(2)], 2, 0),
        ([commit(0), commit(2)], 2, 1),
        ([checkpoint(3), commit(5)], 5, 4),
        ([checkpoint(3), commit(4), commit(6), commit(0)], 6, 5),
        ([compacted(0, 3)], 2, 0),
        ([], 0, 0),
        ([commit(0)], 2**62, 1),
    ],
)
def test_a_gap_is_named(files: list[LogFile], version: int, missing: int) -> None:
    message = refusal(lambda: first_segment(version, *files), DataLoss)
    assert f"version {version} " in message
    assert f"commit {missing} is missing" in message
    assert format_commit_name(missing) in message
