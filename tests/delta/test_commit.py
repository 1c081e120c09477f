"""One commit: two passes whatever the order of its actions, and the ones that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tailer.delta.actions import AddFile, Metadata, Protocol, RemoveFile
from tailer.delta.commit import read_actions, read_header
from tailer.errors import CorruptLog, TableError, UnsupportedTable
from tests.support.feeds import commit_of, log_lines, refusal, state

NAME = "00000000000000000001.json"
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {"metaData": {"id": "1", "format": {"provider": "parquet"}, "schemaString": "{}",
                         "partitionColumns": [], "configuration": {}}}  # fmt: skip


def vector(name: str = "a", offset: int | None = 1) -> dict[str, Any]:
    descriptor = {"storageType": "p", "pathOrInlineDv": name, "sizeInBytes": 40, "cardinality": 1}
    return descriptor if offset is None else {**descriptor, "offset": offset}


def add(path: str = "f", **fields: Any) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 0,
                    "dataChange": True, **fields}}  # fmt: skip


def remove(path: str = "f", **fields: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, **fields}}


def cdc(path: str = "c", **partition: str) -> dict[str, Any]:
    return {"cdc": {"path": path, "partitionValues": partition, "size": 5, "dataChange": False}}


def refused(*actions: dict[str, Any]) -> str:
    return refusal(lambda: read_header(NAME, lambda: log_lines(*actions)), CorruptLog)


def test_statistics_that_nobody_asks_for_may_be_anything() -> None:
    bad = list(log_lines(add("a", stats="{" * 100_000)))
    assert read_header(NAME, lambda: bad).adds == 1
    (action,) = read_actions(NAME, bad)
    assert isinstance(action, AddFile)
    assert action.num_records is None


def test_without_files_the_rest_comes_and_is_as_strict() -> None:
    actions = [add("a"), METADATA, remove("r"), PROTOCOL, cdc("c")]
    found = read_actions(NAME, log_lines(*actions), files=False)
    assert [type(a) for a in found] == [Metadata, Protocol]
    for bad in (b'{"add": {}, "add": {}}', b'{"add": {}', b"5"):
        with pytest.raises(CorruptLog, match="line 1"):
            list(read_actions(NAME, [bad], files=False))
    two = [{**add("a"), **PROTOCOL}]
    with pytest.raises(CorruptLog, match="two actions"):
        list(read_actions(NAME, log_lines(*two), files=False))


def test_the_actions_of_a_commit_have_no_order() -> None:
    actions = [
        add("a"),
        cdc("c"),
        METADATA,
        remove("r"),
        PROTOCOL,
        {"txn": {"appId": "app", "version": 1}},
        {"commitInfo": {"operation": "MERGE"}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
    ]
    forward = read_header(NAME, lambda: log_lines(*actions))
    backward = read_header(NAME, lambda: log_lines(*reversed(actions)))
    assert forward == structs.replace(backward, files=forward.files)
    assert (forward.adds, forward.removes, forward.cdcs) == (1, 1, 1)
    assert forward.metadata is not None
    assert forward.protocol == Protocol(1, 2)
    assert [t.app_id for t in forward.transactions] == ["app"]
    assert [d.domain for d in forward.domains] == ["d"]


def test_data_change_is_counted_for_each_file_and_never_for_cdc() -> None:
    header = read_header(
        NAME,
        lambda: log_lines(
            add("a"), add("b", dataChange=False), remove("r", dataChange=False), cdc()
        ),
    )
    assert header.data_changes == 1


def test_the_bytes_of_all_files_are_summed_and_an_unknown_size_is_none() -> None:
    header = read_header(NAME, lambda: log_lines(add("a"), remove("r"), remove("s", size=7), cdc()))
    assert header.file_bytes == 10 + 7 + 5


def test_one_path_removed_and_added_with_another_vector_is_a_pair() -> None:
    commit = commit_of(
        remove("x%20y"), add("x%20y", deletionVector=vector()), add("z"), remove("w")
    )
    assert commit.is_added_again("x%20y")
    assert not commit.is_added_again("z")
    assert not commit.is_added_again("w")


def test_a_pair_is_known_by_where_it_lies_and_not_by_how_it_is_spelled() -> None:
    commit = commit_of(remove("p=%61/f"), add("p=a/f", deletionVector=vector()))
    assert commit.is_added_again("p=a/f")


def test_the_file_actions_come_in_the_files_order_as_often_as_asked() -> None:
    commit = commit_of(add("a"), PROTOCOL, remove("r"), {"unknown": {}}, cdc("c"))
    for _ in range(2):
        assert [a.path for a in commit.file_actions()] == ["a", "r", "c"]


def test_cdc_partitions_are_told_apart_whatever_the_order_of_their_keys() -> None:
    first = {"cdc": {"path": "c", "partitionValues": {"p": "1", "q": "2"}, "size": 1}}
    second = {"cdc": {"path": "d", "partitionValues": {"q": "2", "p": "1"}, "size": 1}}
    assert read_header(NAME, lambda: log_lines(first, second)).cdc_partitions == 1
    assert (
        read_header(NAME, lambda: log_lines(cdc("c", p="1"), cdc("d", p="2"))).cdc_partitions == 2
    )


def test_two_metadata_actions_that_differ_are_refused() -> None:
    other = {"metaData": {**METADATA["metaData"], "configuration": {"password": "s3cret"}}}
    message = refused(METADATA, add(), other)
    assert "two metaData actions, by actions that differ in configuration" in message
    assert "s3cret" not in message


def test_two_protocol_actions_that_differ_are_refused() -> None:
    other = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
    assert "two protocol actions, by actions that differ in minWriterVersion (2 and 4)" in refused(
        PROTOCOL, other
    )


@pytest.mark.parametrize("action", [add, remove])
def test_one_path_with_two_vectors_is_refused(action: Any) -> None:
    first, again = action("f", deletionVector=vector("a")), action("f", deletionVector=vector("b"))
    for commit in ((action("f"), action("g"), first), (first, again)):
        assert "twice, by actions that differ in deletionVector: f" in refused(*commit)


def test_one_add_with_two_times_is_one_file() -> None:
    lines = log_lines(add("f", modificationTime=1), add("f", modificationTime=2))
    header = read_header(NAME, lambda: lines)
    assert header.adds == 1
    assert header.repeated


def test_one_path_twice_in_two_spellings_is_refused() -> None:
    assert "added twice" in refused(add("a b"), add("a%20b"))


@pytest.mark.parametrize("dv", [{}, {"deletionVector": vector()}])
def test_the_same_file_and_vector_removed_and_added_is_refused(dv: dict[str, Any]) -> None:
    assert "same deletion vector" in refused(add("f", **dv), remove("f", **dv))


@pytest.mark.parametrize("other", [vector("b"), vector("a", 50), vector("a", None)])
def test_another_vector_or_offset_makes_another_file(other: dict[str, Any]) -> None:
    lines = log_lines(remove("f", deletionVector=vector()), add("f", deletionVector=other))
    header = read_header(NAME, lambda: lines)
    assert (header.adds, header.removes, len(header.added_again)) == (1, 1, 1)


@pytest.mark.parametrize(
    "action",
    [{"sidecar": {"path": "s", "sizeInBytes": 1, "modificationTime": 0}},
     {"checkpointMetadata": {"version": 1}}],
)  # fmt: skip
def test_actions_of_v2_checkpoints_are_refused_in_a_commit(action: dict[str, Any]) -> None:
    assert "only checkpoints may have" in refused(add(), action)


def test_a_format_other_than_parquet_is_refused_by_name() -> None:
    odd = {"metaData": {**METADATA["metaData"], "format": {"provider": "orc"}}}
    header = read_header(NAME, lambda: log_lines(odd))
    message = refusal(lambda: state().after(header.protocol, header.metadata), UnsupportedTable)
    assert "'orc'" in message


def test_an_error_names_the_file_and_the_line() -> None:
    lines = [*log_lines(PROTOCOL, add()), b'{"add": {"path"']
    message = refusal(lambda: read_header(NAME, lambda: lines), CorruptLog)
    assert message.startswith(f"{NAME}: line 3: ")


@pytest.mark.parametrize("path", ["../../etc/passwd", "%2e%2e/f", "", "%ff"])
@pytest.mark.parametrize("action", [add, remove])
def test_a_file_outside_of_the_table_is_refused_before_anything_is_read(
    action: Any, path: str
) -> None:
    read_header(NAME, lambda: log_lines(action("f")))
    refused(action(path))


@pytest.mark.parametrize(
    "line",
    [
        b'{"add": {"path": "f", "size": 1, "dataChange": true, "partitionValues": [7]}}',
        b'{"remove": {"path": "\\udfff", "dataChange": true}}',
        b'{"commitInfo": ' + b"[" * 100_000,
        b'{"txn": {"appId": "a", "version": ' + b"1" * 5000 + b"}}",
        b'{"domainMetadata": {"domain": 1}}',
        b"\x00\x01\x02",
        b"{}{}",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_hostile_line_is_an_error_of_the_table(line: bytes) -> None:
    with pytest.raises(TableError, match="line 2"):
        read_header(NAME, lambda: [*log_lines(PROTOCOL), line])


def test_a_commit_of_nothing_is_a_commit() -> None:
    assert read_header(NAME, list) == read_header(NAME, lambda: [b"\n", b"\n"])


def test_actions_stream_and_are_not_gathered_first() -> None:
    def lines() -> Iterator[bytes]:
        yield from log_lines(add("a"), remove("b"))
        raise AssertionError("read further than was asked for")

    actions = read_actions(NAME, lines())
    assert isinstance(next(actions), AddFile)
    assert isinstance(next(actions), RemoveFile)


# What is measured runs in a process of its own: peak memory never goes down again. The memory that
# the libraries take is measured by the same program upon a small commit.
MEASURE = """
import sys
from tailer.plan.rules import find_incomplete_removes, plan_changes
from tests.support.feeds import state
from tailer.delta.commit import Commit, read_header

path = sys.argv[1]
lines = lambda: open(path, "rb")
header = read_header("00000000000000000001.json", lines)
commit = Commit(1, "00000000000000000001.json", 0, 0, 0, header, lines, state(), state())
assert find_incomplete_removes(commit) == set()
orders = sum(1 for _ in plan_changes(commit))
# Not ru_maxrss: that begins with the size of whoever started this process.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(orders, int(status["VmHWM"].split()[0]) // 1024)
"""


def planned(path: Path) -> tuple[int, int]:
    """(change files, peak memory in MiB) of planning a commit file in a process of its own."""
    root = Path(__file__).resolve().parents[2]
    program = [sys.executable, "-W", "ignore", "-c", MEASURE, str(path)]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    orders, peak = map(int, done.stdout.split())
    return orders, peak


def write_commit(path: Path, size: int) -> int:
    """Adds and removes by turns, one in ten of them a pair; returns how many there are."""
    stats = {"numRecords": 9, "minValues": {f"c{i}": i for i in range(20)},
             "maxValues": {f"c{i}": i for i in range(20)}}  # fmt: skip
    count = 0
    with path.open("wb") as f:
        while f.tell() < size:
            new = add(f"part-{count:08d}-{'x' * 60}.parquet", stats=json.dumps(stats))
            if count % 20:
                old = remove(f"old-{count:08d}-{'y' * 60}.parquet", size=1, stats=json.dumps(stats))
            else:
                new["add"]["deletionVector"] = vector(f"{count:020d}")
                old = remove(new["add"]["path"], size=1, stats=json.dumps(stats))
            f.writelines(log_lines(new, old))
            count += 2
        f.writelines(log_lines({"commitInfo": {"operation": "WRITE"}}))
    return count


# Memory grows with the number of files, so that a tenth of what `make torture` takes shows it.
COMMIT_BYTES = 200_000_000 if "TAILER_TORTURE_ROUNDS" in os.environ else 20_000_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_huge_commit_is_planned_in_bounded_memory(tmp_path: Path) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    write_commit(small, 1)
    files = write_commit(large, COMMIT_BYTES)
    assert files > COMMIT_BYTES / 1000
    _, baseline = planned(small)
    orders, peak = planned(large)
    pairs = -(-files // 20)
    assert orders == files - pairs, "a file that got its first vector is deletes alone"
    # Kept are digests of the paths, to find what the protocol forbids, and the actions of pairs.
    bound = COMMIT_BYTES // 2_000_000
    assert peak - baseline < bound, f"{peak} MiB for {files} files, {baseline} MiB for none"


@pytest.mark.parametrize("digests", [True, False])
def test_a_damaged_line_among_many_is_named_by_its_number(*, digests: bool) -> None:
    lines = [json.dumps(add(f"f{i}")).encode() + b"\n" for i in range(200)]
    for damage in (b'{"add":{"path":"x"}}\n', b"{add\n", b'{"add":{"path":"x"},"txn":{}}\n',
                   b'{"add":{"path":"x","size":1,"dataChange":true,"stats":"\xff"}}\n',
                   ):  # fmt: skip
        damaged = [*lines[:130], damage, *lines[130:]]
        with pytest.raises(CorruptLog, match="line 131: "):
            read_header("n", partial(iter, damaged), digests=digests)
    other = json.dumps(add("f7", size=11)).encode()
    with pytest.raises(CorruptLog, match=r"added twice, .* differ in size \(10 and 11\): f7"):
        read_header("n", lambda: [*lines, other], digests=digests)


def test_a_header_without_digests_counts_the_same() -> None:
    removed = [json.dumps(remove(f"g{i}")).encode() for i in range(100)]
    added = [json.dumps(add(f"f{i}", deletionVector=vector())).encode() for i in range(100)]
    whole = read_header("n", lambda: [*removed, *added])
    assert len(whole.added) == len(whole.removed) == 100 * 16
    counted = read_header("n", lambda: [*added, *removed], digests=False)
    assert (counted.adds, counted.removes, counted.file_bytes, counted.data_changes) == (
        whole.adds, whole.removes, whole.file_bytes, whole.data_changes
    )  # fmt: skip
    assert counted.added == counted.removed == b""
