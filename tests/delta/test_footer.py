"""Footers of checkpoints with odd columns, and the places of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.add_fields import WITH_STATISTICS
from tailer.delta.checkpoint import read_add_batches
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog
from tests.support import thrift
from tests.support.components import require_crate
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
#: Changes the schema's elements at a place, the row groups and the orders of columns.
Change = Callable[[list[Element], int, list[Any], list[Any]], None]


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
    thrift.write(out, thrift.STRUCT, fields)
    return data[: -8 - len(footer_of(data))] + out + len(out).to_bytes(4, "little") + b"PAR1"


def changed(name: bytes, change: Change) -> bytes:
    """The checkpoint with another schema at the element of a name, and other chunks."""
    data = checkpoint()
    fields, _ = thrift.read_struct(footer_of(data), 0, 0)
    elements = thrift.value(fields, thrift.SCHEMA)[1]
    at = next(i for i, e in enumerate(elements) if thrift.value(e, thrift.NAME) == name)
    change(elements, at, thrift.value(fields, thrift.ROW_GROUPS)[1], thrift.value(fields, 7)[1])
    for element in elements:
        element.sort(key=lambda field: int(field[0]))
    return with_footer(data, fields)


def emptied(elements: list[Element], at: int, groups: list[Any], orders: list[Any]) -> None:
    """Make a group without a field of one with one."""
    leaf = sum(thrift.value(e, thrift.TYPE) is not None for e in elements[:at])
    del elements[at + 1]
    orders.pop()
    next(f for f in elements[at] if f[0] == thrift.NUM_CHILDREN)[2] = 0
    for group in groups:
        del thrift.value(group, thrift.COLUMNS)[1][leaf]


def annotated(number: int) -> Change:
    def change(elements: list[Element], at: int, groups: list[Any], orders: list[Any]) -> None:
        del groups, orders
        elements[at] = [f for f in elements[at] if f[0] not in (6, 10)]
        elements[at].append([6, thrift.I32, number << 1])

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (b"odd", emptied), (b"size", annotated(0)), (b"y", annotated(3)), (b"y", annotated(40)),
        (b"x", annotated(7)), (b"odd", annotated(3)),
    ],
)  # fmt: skip
def test_a_schema_that_can_not_be_is_refused_by_the_files_name(name: bytes, change: Change) -> None:
    source = pa.BufferReader(changed(name, change))
    message = refusal(lambda: list(read_add_batches(NAME, source, WITH_STATISTICS)), CorruptLog)
    assert NAME in message
    if name == b"size":
        assert "UTF8 can only annotate BYTE_ARRAY" in message


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_the_places_of_columns_are_those_that_pyarrow_finds(
    version: str, *, use_dictionary: bool
) -> None:
    require_crate()
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
    source = pa.BufferReader(data)
    own = RowGroups(ParquetColumns(source), source)
    for columns, prefixes in (
        (["a"], "a."),
        (["s"], "s."),
        (["sx"], "sx."),
        (["a", "s", "sx"], ""),
    ):
        assert [own.find_ranges(g, columns) for g in groups] == [found(g, prefixes) for g in groups]
