"""Checkpoints in Parquet: their rows as actions, their odd forms, and damaged ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.actions import (
    Action,
    AddFile,
    CheckpointMetadata,
    Metadata,
    Protocol,
    SetTransaction,
    Sidecar,
)
from tailer.delta.add_fields import FILES, WITH_STATISTICS
from tailer.delta.checkpoint import build_adds, read_add_batches, read_checkpoint_actions
from tailer.errors import CorruptLog, TableError
from tailer.testing.table import TableBuilder
from tests.support.components import require_crate
from tests.support.feeds import ID, refusal
from tests.support.raw_parquet import (
    BOOLEAN,
    BYTES,
    INT64,
    MAP,
    REPEATED,
    Chunk,
    Element,
    Page,
    levels,
    texts,
    write_parquet,
)

NAME = "00000000000000000002.checkpoint.parquet"
VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 2,
          "cardinality": 3}  # fmt: skip
ADD = {"path": "a", "partitionValues": [("p", "1")], "size": 1, "modificationTime": 2,
       "dataChange": True}  # fmt: skip
STRINGS = pa.map_(pa.string(), pa.string())
DV = pa.struct(
    [("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
     ("sizeInBytes", pa.int32()), ("cardinality", pa.int64())]
)  # fmt: skip
ADD_FIELDS: list[tuple[str, pa.DataType]] = [
    ("path", pa.string()), ("partitionValues", STRINGS), ("size", pa.int64()),
    ("modificationTime", pa.int64()), ("dataChange", pa.bool_()),
]  # fmt: skip


def parquet(columns: dict[str, pa.Array], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, **options)
    return bytes(sink.getvalue())


def actions(data: bytes, *, files: bool, statistics: bool = False) -> list[Action]:
    source = pa.BufferReader(data)
    if not files:
        return list(read_checkpoint_actions(NAME, source))
    batches = read_add_batches(NAME, source, WITH_STATISTICS if statistics else FILES)
    return [action for batch in batches for action in build_adds(batch)]


def adds(rows: Sequence[Any], *more: tuple[str, pa.DataType]) -> bytes:
    return parquet({"add": pa.array(rows, pa.struct([*ADD_FIELDS, *more]))})


@pytest.fixture
def written(tmp_path: Any) -> bytes:
    """The classic checkpoint of a small table."""
    table = TableBuilder(tmp_path, ID, properties={"k": "v"})
    table.create()
    first = table.add([{"id": 1}, {"id": 2}])
    table.commit(first, {"txn": {"appId": "app", "version": 3, "lastUpdated": 4}})
    table.commit(*table.delete_rows(first, [0]), table.add([{"id": 3}], path="b c.parquet"))
    data: bytes = table.checkpoint().read_bytes()
    return data


def test_the_adds_come_with_all_that_their_rows_need(written: bytes) -> None:
    found = actions(written, files=True)
    vectors = {a.path: a.deletion_vector for a in found if isinstance(a, AddFile)}
    assert len(found) == 2
    assert [v.cardinality for v in vectors.values() if v] == [1]
    assert "b%20c.parquet" in vectors


def test_everything_but_files_comes_without_them(written: bytes) -> None:
    found = actions(written, files=False)
    assert {type(a) for a in found} == {Protocol, Metadata, SetTransaction}
    (meta,) = [a for a in found if isinstance(a, Metadata)]
    assert meta.configuration == {"k": "v"}
    assert SetTransaction("app", 3, 4) in found


def test_record_counts_are_read_only_when_asked_for(written: bytes) -> None:
    with_counts = actions(written, files=True, statistics=True)
    assert {a.num_records for a in with_counts if isinstance(a, AddFile)} == {2, 1}
    without = actions(written, files=True)
    assert {a.num_records for a in without if isinstance(a, AddFile)} == {None}


def test_record_counts_in_parsed_statistics_are_read_too() -> None:
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", pa.struct([("a", pa.int64())]))])
    data = adds([{**ADD, "stats_parsed": {"numRecords": 5}}], ("stats_parsed", parsed))
    (add,) = actions(data, files=True, statistics=True)
    assert isinstance(add, AddFile)
    assert add.num_records == 5


def test_a_sidecars_manifest_is_read() -> None:
    data = parquet(
        {
            "checkpointMetadata": pa.array(
                [{"version": 2}, None], pa.struct({"version": pa.int64()})
            ),
            "sidecar": pa.array(
                [None, {"path": "s.parquet", "sizeInBytes": 9, "modificationTime": 1}]
            ),
        }
    )
    assert set(actions(data, files=False)) == {CheckpointMetadata(2), Sidecar("s.parquet", 9)}
    assert not actions(data, files=True)


def test_a_column_that_may_be_that_of_the_adds_is_refused() -> None:
    data = parquet({"adf": pa.array([ADD], pa.struct(ADD_FIELDS))})
    with pytest.raises(CorruptLog, match=f"{NAME}: the checkpoint has no add column but .* 'adf'"):
        actions(data, files=True)
    assert not list(read_add_batches(NAME, pa.BufferReader(data), FILES, required=False))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"size": None}, "lacks its size"),
        ({"dataChange": None}, "lacks its dataChange"),
        ({"deletionVector": {**VECTOR, "cardinality": None}}, "deletionVector action lacks its"),
    ],
    ids=str,
)
def test_an_add_that_lacks_something_is_refused_before_any_is_given(
    changed: dict[str, Any], what: str
) -> None:
    data = adds([ADD, {**ADD, **changed}], ("deletionVector", DV))
    batches = read_add_batches(NAME, pa.BufferReader(data), FILES)
    with pytest.raises(CorruptLog, match=what):
        next(batches)


def test_a_path_that_is_not_unicode_is_refused_before_any_is_given() -> None:
    path = pa.array([b"good", b"\xff"]).view(pa.string())
    others = [pa.array([value] * 2, kind) for value, kind in zip(
        [ADD[name] for name, _ in ADD_FIELDS[1:]], [kind for _, kind in ADD_FIELDS[1:]], strict=True
    )]  # fmt: skip
    rows = pa.StructArray.from_arrays([path, *others], [name for name, _ in ADD_FIELDS])
    batches = read_add_batches(NAME, pa.BufferReader(parquet({"add": rows})), FILES)
    with pytest.raises(CorruptLog, match="can't be read"):
        next(batches)


def test_a_struct_of_nulls_is_no_action() -> None:
    nothing = dict.fromkeys(ADD)
    assert actions(adds([nothing, None, ADD]), files=True) == actions(adds([ADD]), files=True)


def test_a_vector_of_nulls_is_no_vector() -> None:
    more = ("deletionVector", DV)
    data = adds(
        [{**ADD, "deletionVector": dict.fromkeys(VECTOR)}, {**ADD, "deletionVector": VECTOR}], more
    )
    without, with_one = actions(data, files=True)
    assert isinstance(without, AddFile)
    assert isinstance(with_one, AddFile)
    assert without.deletion_vector is None
    assert with_one.deletion_vector is not None


def test_texts_may_be_dictionaries_or_without_their_annotation() -> None:
    rows = [ADD, ADD | {"path": "b"}, None, ADD]
    plain = pa.array(rows, pa.struct(ADD_FIELDS))
    path, *rest = plain.flatten()
    mask = plain.is_null()
    for odd in (path.dictionary_encode(), path.cast(pa.binary())):
        names = [name for name, _ in ADD_FIELDS]
        column = pa.StructArray.from_arrays([odd, *rest], names=names, mask=mask)
        assert actions(parquet({"add": column}), files=True) == actions(
            parquet({"add": plain}), files=True
        )
    broken = pa.StructArray.from_arrays(
        [pa.array([b"\xff", b"a", None, b"a"]), *rest], names=names, mask=mask
    )
    assert NAME in refusal(lambda: actions(parquet({"add": broken}), files=True), CorruptLog)


def test_maps_may_declare_their_keys_optional(tmp_path: Path) -> None:
    below = levels([2], 2)
    entry = ("add", "partitionValues", "key_value")
    write_parquet(
        tmp_path / NAME,
        [
            Element("add", children=4),
            Element("path", BYTES, annotation=0),
            Element("partitionValues", children=1, annotation=MAP),
            Element("key_value", children=2, repetition=REPEATED),
            Element("key", BYTES, annotation=0),
            Element("value", BYTES, annotation=0),
            Element("size", INT64),
            Element("dataChange", BOOLEAN),
        ],
        [
            Chunk(["add", "path"], BYTES, [Page(1, below + texts([b"a"]))], 1),
            *(
                Chunk(
                    [*entry, name], BYTES,
                    [Page(1, levels([0], 1) + levels([4], 3) + texts([text]))], 1,
                )
                for name, text in (("key", b"p"), ("value", b"7"))
            ),
            Chunk(["add", "size"], INT64, [Page(1, below + (5).to_bytes(8, "little"))], 1),
            Chunk(["add", "dataChange"], BOOLEAN, [Page(1, below + b"\1")], 1),
        ],
        rows=1,
    )  # fmt: skip
    require_crate()
    (add,) = actions((tmp_path / NAME).read_bytes(), files=True)
    assert isinstance(add, AddFile)
    assert (add.path, add.partition_values, add.size) == ("a", {"p": "7"}, 5)


def test_unknown_columns_are_passed_over() -> None:
    data = parquet({"add": pa.array([ADD], pa.struct([*ADD_FIELDS, ("tags", STRINGS)])),
                    "newAction": pa.array([5])})  # fmt: skip
    assert actions(data, files=True) == actions(adds([ADD]), files=True)
    assert actions(data, files=False) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"protocol": pa.array([5])},
        {"metaData": pa.array(["x"])},
        {"protocol": pa.array([{"minReaderVersion": "1", "minWriterVersion": 2}])},
        {"metaData": pa.array([{"id": "1", "schemaString": 5}])},
        {"txn": pa.array([{"appId": "a"}])},
    ],
    ids=lambda columns: str(next(iter(columns))),
)
def test_columns_of_another_kind_are_refused_with_the_files_name(columns: Any) -> None:
    assert NAME in refusal(lambda: actions(parquet(columns), files=False), CorruptLog)


@pytest.mark.parametrize("length", [0, 3, 4, 11, 100, 1000, -1, -4, -8])
def test_a_truncated_checkpoint_is_refused_with_the_files_name(written: bytes, length: int) -> None:
    message = refusal(lambda: actions(written[:length], files=True), CorruptLog)
    assert message.startswith(f"{NAME}: the checkpoint can't be read")


def test_a_damaged_checkpoint_is_refused_or_read_and_never_crashes(written: bytes) -> None:
    source, refused = random.Random(7), 0
    for _ in range(300):
        data = bytearray(written)
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        for files in (True, False):
            try:
                actions(bytes(data), files=files)
            except TableError:
                refused += 1
    assert refused > 0


def with_statistics(texts: pa.Array, **options: Any) -> bytes:
    """A checkpoint whose adds have these statistics."""
    count = len(texts)
    fields = {
        "path": pa.array([f"file {i}" for i in range(count)]),
        "partitionValues": pa.array([[]] * count, STRINGS),
        "size": pa.array([1] * count), "dataChange": pa.array([True] * count), "stats": texts,
    }  # fmt: skip
    rows = pa.StructArray.from_arrays([*fields.values()], [*fields])
    return parquet({"add": rows}, store_schema=False, **options)


def test_a_batch_of_adds_is_bounded_by_bytes() -> None:
    """A few bytes of a dictionary stand for gigabytes."""
    text = '{"numRecords":3,"minValues":{"s":"' + "x" * 2**20 + '"}}'
    codes = pa.array([0] * 3000, pa.int32())
    data = with_statistics(pa.DictionaryArray.from_arrays(codes, [text]), compression="zstd")
    assert len(data) < 300_000
    peak = pa.total_allocated_bytes()
    found = 0
    for batch in read_add_batches(NAME, pa.BufferReader(data), WITH_STATISTICS):
        found += batch.num_rows
        assert batch.nbytes < 9 * 2**20
        peak = max(peak, pa.total_allocated_bytes())
    assert found == 3000
    assert peak < 100 * 2**20


def test_a_page_that_is_small_in_the_file_alone_is_refused() -> None:
    require_crate()
    text = '{"numRecords":3,"x":"' + "x" * 2**20 + '"}'
    data = with_statistics(pa.array([text] * 200), compression="zstd", use_dictionary=False,
                           data_page_size=2**30)  # fmt: skip
    assert len(data) < 300_000
    message = refusal(lambda: actions(data, files=True, statistics=True))
    assert message.startswith(f"{NAME}: a page of ")
    assert "when it is unpacked, and 67108864 are the most that are held in memory" in message
    assert len(actions(data, files=True)) == 200, "without the statistics it is not read"
