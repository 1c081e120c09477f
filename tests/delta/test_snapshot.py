"""A table's state: checked as it is made, and reconciled from actions, newest first."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tailer.delta.actions import (
    AddFile,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from tailer.delta.snapshot import Reconciliation, TableState, find_file_key
from tailer.errors import CorruptLog, UnsupportedTable
from tests.support.feeds import metadata, refusal, state

FIRST, SECOND = DeletionVectorDescriptor("u", "x", 1, 1, 1), DeletionVectorDescriptor(
    "u", "x", 1, 1, 9
)  # fmt: skip
MAPPED = {"delta__columnMapping__mode": "id"}


def add(path: str, dv: DeletionVectorDescriptor | None = None, size: int = 1) -> AddFile:
    return AddFile(path, size, data_change=True, deletion_vector=dv)


def remove(path: str, dv: DeletionVectorDescriptor | None = None) -> RemoveFile:
    return RemoveFile(path, data_change=True, deletion_vector=dv)


def live(*commits: list[AddFile | RemoveFile]) -> list[AddFile]:
    """The files that are left after these commits, oldest commit first."""
    reconciliation = Reconciliation()
    return [a for commit in reversed(commits) for a in reconciliation.find_live_files(commit)]


def mapped_schema(*fields: dict[str, Any]) -> Metadata:
    schema = json.dumps({"type": "struct", "fields": fields})
    return Metadata("1", schema, (), {"delta.columnMapping.mode": "id"})


def mapped(name: str, data_type: Any, **extra: Any) -> dict[str, Any]:
    names = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": f"col-{name}"}
    return {"name": name, "type": data_type, "metadata": {**names, **extra}}


def test_the_first_reference_from_the_newest_wins() -> None:
    assert live([add("a"), add("b")], [remove("a")], [add("c")]) == [add("c"), add("b")]
    assert live([add("a", size=1)], [add("a", size=2)]) == [add("a", size=2)]
    assert live([add("a", size=1)], [remove("a")], [add("a", size=3)]) == [add("a", size=3)]


@pytest.mark.parametrize("order", [1, -1])
def test_within_one_commit_a_files_two_vectors_have_no_order(order: int) -> None:
    update: list[AddFile | RemoveFile] = [remove("a", FIRST), add("a", SECOND)]
    assert live([add("a", FIRST)], update[::order]) == [add("a", SECOND)]


def test_a_file_goes_by_its_decoded_path_and_its_vectors_id() -> None:
    assert find_file_key(add("a%20b")) == ("a b", "")
    assert find_file_key(remove("a b", SECOND)) == ("a b", "ux@9")
    assert live([add("a%20b")], [remove("a b")]) == []


def test_a_checkpoints_files_are_not_remembered() -> None:
    reconciliation = Reconciliation()
    list(reconciliation.find_live_files([remove("b")]))
    found = list(reconciliation.find_live_files([add("a"), add("b"), add("c")], remember=set()))
    assert found == [add("a"), add("c")]
    assert len(reconciliation._seen) == 1


def test_the_newest_of_everything_else_wins() -> None:
    reconciliation = Reconciliation()
    newest = metadata(k="new")
    reconciliation.take(
        [newest, SetTransaction("app", 2), DomainMetadata("gone", "", removed=True)]
    )
    reconciliation.take(
        [
            Protocol(1, 2),
            metadata(k="old"),
            SetTransaction("app", 1),
            SetTransaction("other", 9),
            DomainMetadata("gone", "{}", removed=False),
            DomainMetadata("kept", "{}", removed=False),
        ]
    )
    assert reconciliation.build_state().metadata == newest
    assert reconciliation.build_state().protocol == Protocol(1, 2)
    assert {t.app_id: t.version for t in reconciliation.transactions.values()} == {
        "app": 2,
        "other": 9,
    }
    assert list(reconciliation.domains) == ["kept"]


@pytest.mark.parametrize(
    ("action", "lacking"), [(Protocol(1, 2), "metaData"), (metadata(), "protocol")]
)
def test_a_log_without_protocol_or_metadata_is_refused(action: Any, lacking: str) -> None:
    reconciliation = Reconciliation()
    reconciliation.take([action])
    assert f"no {lacking} action" in refusal(reconciliation.build_state, CorruptLog)


def test_a_state_is_checked_as_it_is_made() -> None:
    with pytest.raises(UnsupportedTable, match="'new'"):
        TableState.from_actions(Protocol(3, 7, frozenset({"new"}), frozenset({"new"})), metadata())


def test_a_partition_column_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(CorruptLog, match="partition column"):
        state(pa.schema([("id", pa.int64())]), "day")


def test_partition_columns_keep_the_metadatas_order() -> None:
    columns = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    assert [f.name for f in state(columns, "c", "a").partition_fields()] == ["c", "a"]


def test_a_commit_without_protocol_and_metadata_leaves_the_state_as_it_is() -> None:
    before = state()
    assert before.after(None, None) is before


def test_a_commit_changes_what_it_names() -> None:
    before = state(delta__enableChangeDataFeed="true")
    assert before.cdf
    assert not before.after(Protocol(1, 2), None).cdf
    assert not before.after(None, metadata()).cdf
    assert before.after(None, metadata()).protocol == before.protocol


def test_physical_names_count_only_under_column_mapping() -> None:
    schema = mapped_schema(mapped("a", "long"))
    on, off = (
        TableState.from_actions(Protocol(2, 5), schema),
        TableState.from_actions(Protocol(1, 4), schema),
    )
    assert [s.physical_name(s.schema.fields[0]) for s in (on, off)] == ["col-a", "a"]


@pytest.mark.parametrize("lacking", ["delta.columnMapping.id", "delta.columnMapping.physicalName"])
@pytest.mark.parametrize("shape", ["top", "struct", "array", "map"])
def test_a_mapped_column_without_name_or_id_is_refused_at_any_depth(
    lacking: str, shape: str
) -> None:
    bad = mapped("bad", "long")
    del bad["metadata"][lacking]
    inner = {"type": "struct", "fields": [bad]}
    outer: dict[str, Any] = {
        "top": bad,
        "struct": mapped("s", inner),
        "array": mapped("s", {"type": "array", "elementType": inner}),
        "map": mapped("s", {"type": "map", "keyType": "string", "valueType": inner}),
    }[shape]
    message = refusal(
        lambda: TableState.from_actions(Protocol(2, 5), mapped_schema(outer)), UnsupportedTable
    )
    assert "'bad'" in message
