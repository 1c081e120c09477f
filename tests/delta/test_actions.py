"""One line of the log: what is read of it, what is passed over, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from tailer.delta.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CheckpointMetadata,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    Sidecar,
)
from tailer.delta.parsing import build_action, parse_line
from tailer.errors import CorruptLog
from tests.support.feeds import refusal

ADD = {
    "path": "a.parquet",
    "partitionValues": {"p": "1", "q": None},
    "size": 7,
    "modificationTime": 8,
    "dataChange": True,
}


def parsed(**action: Any) -> Action | None:
    return parse_line(json.dumps(action))


def test_an_add_has_all_that_its_rows_need() -> None:
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    add = parsed(
        add={
            **ADD,
            "stats": '{"numRecords": 3, "minValues": {"id": 1}}',
            "deletionVector": vector,
            "baseRowId": 10,
            "defaultRowCommitVersion": 2,
        }
    )
    assert add == AddFile(
        path="a.parquet",
        partition_values={"p": "1", "q": None},
        size=7,
        data_change=True,
        stats='{"numRecords": 3, "minValues": {"id": 1}}',
        deletion_vector=DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4),
        base_row_id=10,
        default_row_commit_version=2,
        modification_time=8,
    )


def test_a_remove_may_have_nothing_but_its_path_and_flag() -> None:
    remove = parsed(remove={"path": "a.parquet", "dataChange": False})
    assert remove == RemoveFile("a.parquet", data_change=False)
    assert remove.partition_values is None, "lacking is not the same as unpartitioned"


def test_every_kind_of_action_is_known() -> None:
    assert parsed(cdc={"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}) == (
        AddCDCFile("c", {}, 1)
    )
    assert parsed(protocol={"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"],
                            "writerFeatures": []}) == (
        Protocol(3, 7, frozenset({"x"}), frozenset())
    )  # fmt: skip
    assert parsed(txn={"appId": "app", "version": 3, "lastUpdated": 4}) == (
        SetTransaction("app", 3, 4)
    )
    assert parsed(domainMetadata={"domain": "d", "configuration": "{}", "removed": True}) == (
        DomainMetadata("d", "{}", removed=True)
    )
    assert parsed(commitInfo={"operation": "WRITE"}) == CommitInfo({"operation": "WRITE"})
    assert parsed(sidecar={"path": "s", "sizeInBytes": 9, "modificationTime": 1}) == (
        Sidecar("s", 9)
    )
    assert parsed(checkpointMetadata={"version": 5}) == CheckpointMetadata(5)
    meta = parsed(
        metaData={
            "id": "1",
            "format": {"provider": "orc", "options": {}},
            "schemaString": "{}",
            "partitionColumns": ["p"],
            "configuration": {"k": "v", "none": None},
        }
    )
    assert meta == Metadata(
        "1", "{}", ("p",), {"k": "v"}, format={"provider": "orc", "options": {}}
    )
    assert meta.provider == "orc"


@pytest.mark.parametrize("line", [b"\n", b"", b"  \r\n", b"{}", b'{"newAction": {"path": 1}}'])
def test_blank_lines_and_unknown_actions_are_passed_over(line: bytes) -> None:
    assert parse_line(line) is None


def test_unknown_fields_are_passed_over() -> None:
    assert parsed(add={**ADD, "newField": [1, {"x": 2}]}) == parsed(add=ADD)
    assert parsed(add=ADD, unknownSibling={"path": 1}) == parsed(add=ADD)


def test_an_action_beside_nulls_for_the_other_kinds_is_read() -> None:
    assert parsed(txn=None, add=ADD, remove=None) == parsed(add=ADD)


def test_two_actions_on_one_line_are_refused_as_one_would_be_lost() -> None:
    assert "two actions" in refusal(
        lambda: parsed(commitInfo={"operation": "WRITE"}, add=ADD), CorruptLog
    )


@pytest.mark.parametrize(
    "line",
    [
        '{"txn": {}, "txn": {}}',
        f'{{"add": {json.dumps(ADD)}, "add": {json.dumps(ADD)}}}',
        f'{{"add": {json.dumps(ADD)}, "add": null}}',
        f'{{"\\u0061dd": {json.dumps(ADD)}, "add": null}}',
        '{"x": {}, "x": {}}',
        '{"commitInfo": {}, "commitInfo": {}}',
    ],
)
def test_an_action_that_is_named_twice_is_refused_as_one_would_be_lost(line: str) -> None:
    assert refusal(lambda: parse_line(line), CorruptLog)


def test_the_last_of_two_equal_keys_in_an_action_counts() -> None:
    """As in Spark."""
    line = json.dumps({"add": ADD}).replace('"size"', '"path": "b", "size"')
    add = parse_line(line)
    assert isinstance(add, AddFile)
    assert add.path == "b"


def test_an_action_whose_text_names_one_is_read() -> None:
    values = {"add": '"add"', '"add"': "add"}
    add = parsed(add={**ADD, "partitionValues": values})
    assert isinstance(add, AddFile)
    assert add.partition_values == values


@pytest.mark.parametrize("pairs", [[["p", "1"]], [{"key": "p", "value": "1"}], ["ab"], [[]]])
def test_partition_values_that_are_a_list_are_refused(pairs: list[Any]) -> None:
    message = refusal(lambda: parsed(add={**ADD, "partitionValues": pairs}), CorruptLog)
    assert "partitionValues" in message


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse_line(b'\xef\xbb\xbf{"commitInfo": {}}') == CommitInfo({})


@pytest.mark.parametrize("field", ["path", "size", "dataChange"])
@pytest.mark.parametrize("present", [True, False])
def test_a_missing_required_field_is_named(field: str, *, present: bool) -> None:
    broken: dict[str, Any] = {k: v for k, v in ADD.items() if k != field}
    if present:
        broken[field] = None
    message = refusal(lambda: parsed(add=broken), CorruptLog)
    assert message.startswith(f"the add action lacks its {field}; its writer does not follow")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"path": 5}, "path"),
        ({"size": "7"}, "size"),
        ({"size": 7.5}, "size"),
        ({"size": True}, "size"),
        ({"dataChange": 1}, "dataChange"),
        ({"dataChange": "true"}, "dataChange"),
        ({"partitionValues": {"p": 1}}, "partitionValues"),
        ({"partitionValues": "p=1"}, "partitionValues"),
        ({"partitionValues": [1]}, "partitionValues"),
        ({"partitionValues": [[[], "1"]]}, "partitionValues"),
        ({"partitionValues": [[1, "1"]]}, "partitionValues"),
        ({"deletionVector": "x"}, "deletionVector"),
        ({"deletionVector": {"storageType": "u"}}, "pathOrInlineDv"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(fields: dict[str, Any], named: str) -> None:
    assert named in refusal(lambda: parsed(add={**ADD, **fields}), CorruptLog)


def test_the_last_of_two_equal_keys_in_a_commit_info_counts() -> None:
    line = '{"commitInfo": {"inCommitTimestamp": 1, "x": {"a": 1, "a": 2}, "inCommitTimestamp": 5}}'
    info = parse_line(line)
    assert isinstance(info, CommitInfo)
    assert info.in_commit_timestamp == 5
    assert info.fields["x"] == {"a": 2}


@pytest.mark.parametrize("spelled", ["1.7e12", "12.75", "-1.5", '"1"', "null", "1e400"])
def test_a_time_that_no_row_needs_may_be_anything(spelled: str) -> None:
    line = json.dumps({"add": {**ADD, "modificationTime": "?"}}).replace('"?"', spelled)
    add, usual = parse_line(line), parsed(add=ADD)
    assert isinstance(add, AddFile)
    assert structs.replace(add, modification_time=8) == usual


def test_a_deletion_timestamp_may_be_a_float() -> None:
    remove = parsed(remove={"path": "a", "dataChange": True, "deletionTimestamp": 12.75})
    assert isinstance(remove, RemoveFile)
    assert remove.deletion_timestamp == 12.75


@pytest.mark.parametrize("text", ['{"operation": "\\ud800"}', '{"x": NaN}', '{"x": 1e999}'])
def test_what_a_commit_info_says_is_free(text: str) -> None:
    assert isinstance(parse_line(f'{{"commitInfo": {text}}}'), CommitInfo)


def test_what_is_nested_too_deep_is_said_in_our_words() -> None:
    line = '{"commitInfo": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    message = refusal(lambda: parse_line(line), CorruptLog)
    assert message == "the line is nested too deep to be read"


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_a_number_beyond_64_bits_is_refused_by_name(number: int) -> None:
    message = refusal(lambda: parsed(add={**ADD, "size": number}), CorruptLog)
    assert message.startswith("size of the add action does not fit in 64 bits; its writer")
    assert parsed(add={**ADD, "size": 2**63 - 1}) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"add":',
        b"[]",
        b"3",
        b"null",
        b'"add"',
        b"\xff\xfe{",
        b'{"add": {}} trailing',
        b'{"add": ' + b"9" * 100_000 + b"}",
        b'{"add": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"commitInfo": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001,
        b'{"add": [1]}',
        b'{"add": {"path": NaN, "size": Infinity, "dataChange": true}}',
        b'{"add": {"path": "\\ud800.parquet", "size": 1, "dataChange": true}}',
        b'{"add": {"\\ud800": "a.parquet", "size": 1, "dataChange": true}}',
        b'{"\\ud800": {}}',
        b'{"unknown": "\xee"}',
        b'{"unknown": {"\xee": 1}}',
    ],
    ids=lambda line: repr(line[:30]),
)
def test_hostile_lines_are_refused_and_never_crash(line: bytes) -> None:
    with pytest.raises(CorruptLog):
        parse_line(line)


@pytest.mark.parametrize(
    "stats",
    [
        None,
        "",
        "not JSON, with numRecords",
        '{"numRecords": -1}',
        '{"numRecords": "3"}',
        '{"numRecords": true}',
        '{"numRecords": 1e3}',
        '["numRecords"]',
        '{"numRecords": ' + "[" * 100_000,
        5,
    ],
)
def test_statistics_are_hints_so_unreadable_ones_are_as_good_as_none(stats: Any) -> None:
    add = parsed(add={**ADD, "stats": stats})
    assert isinstance(add, AddFile)
    assert add.num_records is None


def test_the_record_count_is_read_from_parsed_statistics_too() -> None:
    add = build_action("add", {**ADD, "stats_parsed": {"numRecords": 4}, "stats": None})
    assert isinstance(add, AddFile)
    assert add.num_records == 4


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (DeletionVectorDescriptor("u", "name", 40, 6, 4), "uname@4"),
        (DeletionVectorDescriptor("i", "bytes", 40, 6), "ibytes"),
        (DeletionVectorDescriptor("p", "/a/b", 40, 6, 0), "p/a/b@0"),
    ],
)
def test_a_deletion_vector_is_known_by_kind_place_and_offset(
    vector: DeletionVectorDescriptor, expected: str
) -> None:
    assert vector.unique_id == expected


@pytest.mark.parametrize("value", ["5", 5.0, True, None, [5]])
def test_an_in_commit_timestamp_is_a_whole_number_or_none_at_all(value: Any) -> None:
    assert CommitInfo({"inCommitTimestamp": value}).in_commit_timestamp is None
    assert CommitInfo({"inCommitTimestamp": 5}).in_commit_timestamp == 5


@pytest.mark.parametrize("tags", [None, "true", {}, {"delta.rowTracking.preserved": True}])
def test_row_ids_are_preserved_only_where_the_tag_says_so(tags: Any) -> None:
    assert not CommitInfo({"tags": tags}).row_tracking_preserved
    assert CommitInfo({"tags": {"delta.rowTracking.preserved": "true"}}).row_tracking_preserved
