"""The crate's types are those that pyarrow takes from the same footer, however old its form."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.parquet_columns import ParquetColumns
from tests.delta.test_footer import footer_of, with_footer
from tests.support import thrift
from tests.support.components import require_crate

Element = list[list[Any]]

#: Fields of a schema's element.
REPETITION, CONVERTED, SCALE, PRECISION, LOGICAL = 3, 6, 7, 8, 10
#: A list's repeated group as writers name it, and what is in it.
MIDDLES = (b"list", b"array", b"bag", b"y_tuple", b"element", b"map")
ITEMS = (b"element", b"array_element", b"x")
ONE = pa.struct([pa.field("a", pa.int32(), nullable=False)])
TWO = pa.struct([pa.field(name, pa.int32(), nullable=False) for name in "ab"])
LISTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int32(), [[1, 2], [], None, [3]]),
    "one field": (ONE, [[{"a": 1}, {"a": 2}], [], None, [{"a": 3}]]),
    "two fields": (TWO, [[{"a": 1, "b": 5}], [], None, [{"a": 3, "b": 7}]]),
}


@pytest.fixture(autouse=True)
def _crate() -> None:
    require_crate()


def written(array: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"y": array}), sink, store_schema=False, compression="none")
    return bytes(sink.getvalue())


def opened(data: bytes) -> tuple[thrift.Fields, list[Element]]:
    fields, _ = thrift.read_struct(footer_of(data), 0, 0)
    return fields, thrift.value(fields, thrift.SCHEMA)[1]


def field(element: Element, number: int) -> list[Any]:
    return next(each for each in element if each[0] == number)


def without(element: Element, *numbers: int) -> None:
    element[:] = [each for each in element if each[0] not in numbers]


def of_pyarrow(data: bytes) -> tuple[str, list[Any]]:
    found = pq.ParquetFile(pa.BufferReader(data)).read().column(0)
    return str(found.type), found.to_pylist()


def of_crate(data: bytes) -> tuple[str, list[Any]] | None:
    parquet = ParquetColumns(pa.BufferReader(data))
    if not parquet.skips_rows:
        return None
    batches = parquet._read_native_rows(100, 0, ["y"], 0, threads=False)
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    return str(parquet.schema.field(0).type), values


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("annotated", ["both", "converted", "none"])
@pytest.mark.parametrize("levels", [2, 3])
def test_lists_of_other_writers(kind: str, annotated: str, levels: int) -> None:
    """By the rules for older forms ("Nested Types" of the Parquet format)."""
    item, rows = LISTS[kind]
    data = written(pa.array(rows, pa.list_(pa.field("element", item, nullable=False))))
    for middle_name, item_name in product(MIDDLES, ITEMS):
        fields, elements = opened(data)
        outer, middle, inner = elements[1:4]
        field(middle, thrift.NAME)[2], field(inner, thrift.NAME)[2] = middle_name, item_name
        if annotated != "both":
            without(outer, LOGICAL, *([CONVERTED] if annotated == "none" else []))
        if levels == 2:  # what was in the repeated group is repeated itself
            field(inner, REPETITION)[2] = field(middle, REPETITION)[2]
            field(inner, thrift.NAME)[2] = middle_name
            elements.remove(middle)
        changed = with_footer(data, fields)
        assert of_crate(changed) == of_pyarrow(changed), (middle_name, item_name)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3], pa.int32()), pa.array([1, None, 3], pa.int64()),
        pa.array([b"1", None, b"22"], pa.binary()),
        *(pa.array([b"1" * n, None, b"2" * n], pa.binary(n)) for n in (2, 12, 16)),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
@pytest.mark.parametrize("decimal", [(), ((SCALE, 2), (PRECISION, 9))])
def test_annotations(array: pa.Array, decimal: tuple[tuple[int, int], ...]) -> None:
    """Of each number that there may be, on each physical type: the same, or pyarrow is asked."""
    data, same = written(array), 0
    for annotation in (None, *range(23)):
        fields, elements = opened(data)
        element = elements[1]
        without(element, CONVERTED, LOGICAL)
        more = [(CONVERTED, annotation)] if annotation is not None else []
        element += [[number, thrift.I32, n << 1] for number, n in (*more, *decimal)]
        element.sort(key=lambda each: int(each[0]))
        changed = with_footer(data, fields)
        try:
            kind, values = of_pyarrow(changed)
        except (pa.ArrowException, OSError):
            with pytest.raises((pa.ArrowException, OSError)):
                of_crate(changed)
            continue
        found = of_crate(changed)
        same += found is not None
        plain = kind.replace("extension<arrow.json>", "string")
        assert found is None or found == (plain, values), annotation
    assert same
