"""Deletion vectors and paths as the builder writes them, read back through the whole feed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tailer.decode.vectors import find_stored_range, parse_dv_file, parse_inline_dv
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.arrow_types import VARIANT
from tailer.errors import CorruptLog
from tailer.testing.table import TableBuilder
from tests.support.feeds import events, refusal
from tests.support.variants import encoded

SCHEMA = pa.schema([("id", pa.int64())])
FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.commit(table.protocol(3, 7, **FEATURES), table.metadata())
    return table


def deleted(table: TableBuilder, version: int) -> list[int]:
    found = events(table, version)
    assert {e["_change_type"] for e in found} == {"delete"}
    return sorted(e["id"] for e in found)


@pytest.mark.parametrize("prefix", ["", "ab"])
def test_several_vectors_lie_in_one_file(table: TableBuilder, prefix: str) -> None:
    adds = [table.add([{"id": 10 * f + i} for i in range(5)]) for f in range(3)]
    table.commit(*adds)
    vectors = table.vectors([[0, 4], [1], [2, 3]], prefix=prefix)
    assert len({v["pathOrInlineDv"] for v in vectors}) == 1
    assert len(list(table.folder.rglob("deletion_vector_*.bin"))) == 1
    after = [
        {"add": {**add["add"], "deletionVector": vector}}
        for add, vector in zip(adds, vectors, strict=True)
    ]
    table.commit(*(table.remove(add) for add in adds), *after)
    assert deleted(table, 2) == [0, 4, 11, 22, 23]


def test_files_and_vectors_may_lie_outside_the_table(table: TableBuilder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    add = table.add([{"id": i} for i in range(4)], path=str(elsewhere / "a b.parquet"))
    assert Path(elsewhere / "a b.parquet").exists()
    table.commit(add)
    assert [e["id"] for e in events(table, 1)] == [0, 1, 2, 3]
    table.commit(*table.delete_rows(add, [1, 3], storage="p"))
    assert deleted(table, 2) == [1, 3]


LARGE = [0, 2**32 - 1, 2**32, 2**40 + 7, 2**62]


@pytest.mark.parametrize("storage", ["u", "i"])
def test_a_vector_holds_positions_beyond_32_bits(table: TableBuilder, storage: str) -> None:
    fields = table.vector(LARGE, storage)
    dv = DeletionVectorDescriptor(
        fields["storageType"],
        fields["pathOrInlineDv"],
        fields["sizeInBytes"],
        fields["cardinality"],
        fields.get("offset"),
    )
    if storage == "i":
        assert list(parse_inline_dv(dv)) == LARGE
        return
    offset, length = find_stored_range(dv)
    [file] = table.folder.glob("deletion_vector_*.bin")
    assert list(parse_dv_file(file.read_bytes()[offset : offset + length], dv)) == LARGE


@pytest.mark.parametrize("storage", ["u", "i", "p"])
@pytest.mark.parametrize("position", [4, 2**32, 2**33 + 1])
def test_a_vector_of_rows_that_the_file_does_not_have_is_refused_by_name(
    table: TableBuilder, storage: str, position: int
) -> None:
    add = table.add([{"id": i} for i in range(4)])
    table.commit(add)
    table.commit(*table.delete_rows(add, [1, position], storage))
    message = refusal(lambda: events(table, 2), CorruptLog)
    assert f"names row {position}" in message
    assert add["add"]["path"] in message


def test_row_numbers_beyond_32_bits_hold_for_row_ids_too(tmp_path: Path) -> None:
    properties = {"delta.enableRowTracking": "true"}
    table = TableBuilder(tmp_path / "t", SCHEMA, properties=properties)
    features = ["rowTracking", "domainMetadata"]
    table.commit(table.protocol(1, 7, writerFeatures=features), table.metadata())
    base = 2**40
    first = table.add([{"id": 1}, {"id": 2}], baseRowId=base, defaultRowCommitVersion=1)
    table.commit(first)
    second = table.add([{"id": 1}], baseRowId=2**62, defaultRowCommitVersion=2)
    preserved = {"commitInfo": {"tags": {"delta.rowTracking.preserved": "true"}}}
    table.commit(preserved, table.remove(first), second)
    # Each row has a new id, so each leaves and one comes.
    kinds = [(e["_change_type"], e["id"]) for e in events(table, 2)]
    assert kinds == [("delete", 1), ("delete", 2), ("insert", 1)]


def test_variants_that_come_with_a_new_column_are_compared_by_value(tmp_path: Path) -> None:
    """The version adds a column; its rows are the old ones but one, each encoded in another way."""

    def row(number: int, value: object, seed: int) -> dict[str, Any]:
        data, metadata = encoded(value, Random(seed))
        return {"id": number, "v": {"metadata": metadata, "value": data}}

    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", VARIANT)]))
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    table.commit(table.protocol(3, 7, **features), table.metadata())
    values: list[object] = [{"a": 1, "b": [True, None]}, "text", {"b": 2, "a": {}}]
    old = table.add([row(i, value, i) for i, value in enumerate(values)])
    table.commit(old)
    table.schema = table.schema.append(pa.field("more", pa.string()))
    values[1] = "other text"
    new = table.add([{**row(i, value, 10 + i), "more": None} for i, value in enumerate(values)])
    table.commit(table.metadata(), table.remove(old), new)
    assert [(e["_change_type"], e["id"]) for e in events(table, 2)] == [
        ("delete", 1),
        ("insert", 1),
    ]
