"""Parquet footers cut down to some columns, so that files open which pyarrow refuses as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta import footer
from tailer.delta.actions import Protocol
from tailer.delta.add_fields import WITH_STATISTICS
from tailer.delta.checkpoint import add_batches, adds_of, checkpoint_actions
from tailer.delta.footer import column_ranges, pruned_footer
from tailer.errors import CorruptLog
from tests.support.feeds import refusal

NAME = "00000000000000000002.checkpoint.parquet"
STATISTICS = pa.struct(
    [("numRecords", pa.int64()), ("odd", pa.struct([("x", pa.int64())])), ("y", pa.int32())]
)
ADD = pa.struct(
    [("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string())),
     ("size", pa.int64()), ("dataChange", pa.bool_()), ("stats_parsed", STATISTICS)]
)  # fmt: skip
PROTOCOL = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
ROWS = [
    {"add": {"path": f"file {i}", "partitionValues": [("p", str(i))], "size": i, "dataChange": True,
             "stats_parsed": {"numRecords": i, "odd": {"x": i}, "y": i}}}
    for i in range(20)
] + [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]  # fmt: skip

#: A schema element of the footer: its fields by number.
Element = list[list[Any]]


def checkpoint() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(ROWS, schema=pa.schema({"add": ADD, "protocol": PROTOCOL}))
    pq.write_table(table, sink, row_group_size=9)
    return bytes(sink.getvalue())


def footer_of(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def with_footer(data: bytes, fields: Any) -> bytes:
    out = bytearray()
    footer._write(out, footer._STRUCT, fields)
    return data[: -8 - len(footer_of(data))] + out + len(out).to_bytes(4, "little") + b"PAR1"


def changed(name: bytes, change: Callable[[list[Element], int, list[Any]], None]) -> bytes:
    """The checkpoint with another schema at the element of a name, and other chunks."""
    data = checkpoint()
    fields, _ = footer._read_struct(footer_of(data), 0, 0)
    elements = footer._value(fields, footer._SCHEMA)[1]
    at = next(i for i, e in enumerate(elements) if footer._value(e, footer._NAME) == name)
    change(elements, at, footer._value(fields, footer._ROW_GROUPS)[1])
    for element in elements:
        element.sort(key=lambda field: int(field[0]))
    return with_footer(data, fields)


def emptied(elements: list[Element], at: int, groups: list[Any]) -> None:
    """Make a group without a field of one with one."""
    leaf = sum(footer._value(e, footer._TYPE) is not None for e in elements[:at])
    del elements[at + 1]
    next(f for f in elements[at] if f[0] == footer._NUM_CHILDREN)[2] = 0
    for group in groups:
        del footer._value(group, footer._COLUMNS)[1][leaf]


def annotated(number: int) -> Callable[[list[Element], int, list[Any]], None]:
    def change(elements: list[Element], at: int, groups: list[Any]) -> None:
        del groups
        elements[at] = [f for f in elements[at] if f[0] not in (6, 10)]
        elements[at].append([6, footer._I32, number << 1])

    return change


REFUSED = {
    "a group without a field": (b"odd", emptied),
    "text that is numbers": (b"y", annotated(0)),
    "a list that is a number": (b"y", annotated(3)),
    "an annotation from the future": (b"y", annotated(40)),
    "a time in the wrong type": (b"x", annotated(7)),
    "a list without a repeated field": (b"odd", annotated(3)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_pyarrow_refuses_is_read_without_what_is_odd(case: str) -> None:
    data = changed(*REFUSED[case])
    with pytest.raises((OSError, pa.ArrowException)):
        pq.ParquetFile(pa.BufferReader(data))
    batches = add_batches(NAME, pa.BufferReader(data), WITH_STATISTICS)
    adds = [add for batch in batches for add in adds_of(batch)]
    assert [(a.path, a.partition_values, a.num_records) for a in adds] == [
        (f"file {i}", {"p": str(i)}, i) for i in range(20)
    ]
    others = list(checkpoint_actions(NAME, pa.BufferReader(data)))
    assert others == [Protocol(1, 2)]


def test_a_column_that_is_wanted_and_refused_is_named_as_before() -> None:
    data = changed(b"size", annotated(0))
    message = refusal(
        lambda: list(add_batches(NAME, pa.BufferReader(data), WITH_STATISTICS)), CorruptLog
    )
    assert "UTF8 can only annotate BYTE_ARRAY" in message


def test_the_pruned_file_has_the_columns_that_are_wanted_and_no_other() -> None:
    columns = ["add.path", "add.stats_parsed.numRecords", "protocol", "no.such"]
    pruned = pruned_footer(footer_of(checkpoint()), columns)
    metadata = pq.read_metadata(pa.BufferReader(pruned))
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    assert paths == ["add.path", "add.stats_parsed.numRecords", "protocol.minReaderVersion",
                     "protocol.minWriterVersion"]  # fmt: skip
    assert (metadata.num_rows, metadata.num_row_groups) == (21, 3)
    table = pq.ParquetFile(pa.BufferReader(checkpoint()), metadata=metadata).read()
    assert table["add"][3].as_py() == {"path": "file 3", "stats_parsed": {"numRecords": 3}}


def test_a_name_that_another_begins_with_is_another() -> None:
    pruned = pruned_footer(footer_of(checkpoint()), ["add.si", "add.stats_parsed.y", "ad"])
    metadata = pq.read_metadata(pa.BufferReader(pruned))
    assert [metadata.schema.column(i).name for i in range(metadata.num_columns)] == ["y"]


def test_a_footer_comes_out_as_it_went_in() -> None:
    data = checkpoint()
    fields, end = footer._read_struct(footer_of(data), 0, 0)
    assert end == len(footer_of(data))
    again = with_footer(data, fields)
    assert pq.read_table(pa.BufferReader(again)).equals(pq.read_table(pa.BufferReader(data)))
    assert footer._read_struct(footer_of(again), 0, 0)[0] == fields


def test_a_damaged_footer_is_a_value_error_or_cut_down() -> None:
    good, source, refused = footer_of(checkpoint()), random.Random(11), 0
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(source.choice([1, 1, 2, 8])):
            data[source.randrange(len(data))] = source.randrange(256)
        try:
            pruned_footer(
                bytes(data[: source.choice([None, source.randrange(len(data))])]), ["add"]
            )
        except ValueError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x1c" * 200, b"\x19\xfc" + b"\xff" * 9 + b"\x7f", b"\x29\x1c\x00\x00"]
)
def test_what_is_no_footer_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="footer"):
        pruned_footer(data, ["add"])


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_the_places_of_columns_are_those_that_pyarrow_finds(
    version: str, *, use_dictionary: bool
) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1, 2, 3], "s": [{"x": "u", "y": [1]}] * 3, "sx": [None, "v", "v"]})
    pq.write_table(table, sink, row_group_size=2, version=version, use_dictionary=use_dictionary)
    data = bytes(sink.getvalue())
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata

    def found(group: int, prefix: str) -> list[tuple[int, int]]:
        chunks = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        return [
            (start, start + chunk.total_compressed_size)
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(prefix)
            for start in [chunk.dictionary_page_offset or chunk.data_page_offset]
        ]

    groups = range(metadata.num_row_groups)
    for columns, prefixes in (
        (["a"], "a."),
        (["s"], "s."),
        (["sx"], "sx."),
        (["a", "s", "sx"], ""),
    ):
        assert column_ranges(footer_of(data), columns) == [found(g, prefixes) for g in groups]


@pytest.mark.parametrize("start", [-5, 20])
def test_a_footer_with_chunks_that_overlap_or_lie_nowhere_is_refused(start: int) -> None:
    data = checkpoint()
    fields, _ = footer._read_struct(footer_of(data), 0, 0)
    group = footer._value(fields, footer._ROW_GROUPS)[1][0]
    for chunk in footer._value(group, footer._COLUMNS)[1]:
        for field in footer._value(chunk, footer._CHUNK_METADATA):
            if field[0] in (footer._DATA_AT, footer._DICTIONARY_AT):
                field[2] = (start << 1) ^ (start >> 63)
    with pytest.raises(ValueError, match="overlap"):
        column_ranges(footer_of(with_footer(data, fields)), ["add"])


def test_what_is_no_footer_has_no_columns() -> None:
    with pytest.raises(ValueError, match="footer"):
        column_ranges(footer_of(checkpoint())[:-200], ["add"])
