"""A mirror in a Delta table, by keys of any type: after any changes it has the rows of a dict.

Keys lie near each other and in many files, so that whoever trusts cut or rounded statistics, or
compares the types of Arrow that a file was written in, loses one.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.changes import ChangeBatch
from tailer.sink import make_sink
from tailer.testing.batches import change_batch
from tests.support.extent import examples

#: Values of each type that differ where statistics are cut or rounded.
NEAR: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [False, True],
    pa.int8(): [-128, -1, 0, 127],
    pa.int16(): [-(2**15), 0, 2**15 - 1],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [-(2**63), 2**53, 2**53 + 1, 2**63 - 1],
    pa.string(): [
        "", "a", "x" * 80, "x" * 80 + "1", "\U0010ffff" * 40, "\U0010ffff" * 41, "'`\\\"",
    ],
    pa.binary(): [b"", b"\x00", b"a", b"\xff" * 80, b"\xff" * 80 + b"\x00", "ü".encode()],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [
        dt.datetime(2026, 1, 1, 0, 0, 0, us, dt.UTC) for us in (0, 1, 999, 1000, 123999)
    ],
    pa.timestamp("us"): [dt.datetime(1, 1, 1), *(dt.datetime(2026, 1, 1, 0, 0, 0, us)  # noqa: DTZ001
                                                 for us in (1, 999, 1000))],
    pa.decimal128(9, 2): [Decimal("0.01"), Decimal("-9999999.99"), Decimal("9999999.99")],
    pa.decimal128(20, 10): [Decimal("1234567890.0123456788"), Decimal("1234567890.0123456789")],
    pa.decimal128(38, 0): [
        Decimal(10**37 + 1), Decimal(10**37 + 2), Decimal(-(10**37)), Decimal(0),
    ],
    pa.decimal128(38, 38): [Decimal("0." + "1" * 38), Decimal("0." + "1" * 37 + "2")],
}  # fmt: skip
types = st.sampled_from(list(NEAR))


@st.composite
def keys(draw: st.DrawFn) -> tuple[pa.Schema, st.SearchStrategy[tuple[Any, ...]]]:
    """The columns of a key, and its values."""
    chosen = draw(st.lists(types, min_size=1, max_size=2))
    schema = pa.schema([(f"k{i}", each) for i, each in enumerate(chosen)])
    return schema, st.tuples(*(st.sampled_from(NEAR[each]) for each in chosen))


def changes(key: pa.Schema, rows: dict[Any, int | None], had: dict[Any, int], version: int) -> Any:
    """The batch that sets rows (None: removes them), as a table's changes are."""
    found = []
    for values, value in rows.items():
        named = dict(zip(key.names, values, strict=True))
        kinds: list[tuple[str, int]] = []
        if values in had:
            kinds = [("update_preimage" if value is not None else "delete", had[values])]
        if value is not None:
            kinds += [("update_postimage" if values in had else "insert", value)]
        found += [{**named, "v": v, "_change_type": kind} for kind, v in kinds]
    schema = pa.schema([*key, ("v", pa.int64())])
    return change_batch(schema, found, version=version, last=True) if found else None


async def kept(folder: Path, key: pa.Schema, batches: list[ChangeBatch]) -> None:
    sink = make_sink("delta", {"path": "copy", "key": key.names}, folder)
    await sink.open("orders")
    for batch in batches:
        await sink.write(batch)
    await sink.aclose()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_mirror_by_any_key_has_the_rows(data: st.DataObject) -> None:
    key, values = data.draw(keys())
    wanted: dict[Any, int] = {}
    batches = []
    for version in range(1, data.draw(st.integers(2, 6)) + 1):
        rows = data.draw(st.dictionaries(values, st.none() | st.integers(0, 9), max_size=4))
        batch = changes(key, rows, wanted, version)
        for values_of, value in rows.items():
            wanted.pop(values_of, None)
            if value is not None:
                wanted[values_of] = value
        if batch is not None:
            batches.append(batch)
    with tempfile.TemporaryDirectory() as name:
        anyio.run(kept, Path(name), key, batches)
        if batches:
            found = deltalake.DeltaTable(f"{name}/copy").to_pyarrow_table().to_pylist()
            assert len(found) == len(wanted)
            assert {tuple(row[n] for n in key.names): row["v"] for row in found} == wanted


@pytest.mark.parametrize("data_type", list(NEAR), ids=str)
def test_each_row_of_its_own_file_is_updated_and_read_back(
    tmp_path: Path, data_type: pa.DataType
) -> None:
    key, values = pa.schema([("k0", data_type)]), NEAR[data_type]
    had: dict[Any, int] = {}
    batches = []
    for turn in range(2):
        for i, value in enumerate(values):
            batches.append(changes(key, {(value,): turn}, had, turn * len(values) + i + 1))
            had[(value,)] = turn
    anyio.run(kept, tmp_path, key, batches)
    sink = make_sink("delta", {"path": "copy", "key": ["k0"]}, tmp_path)
    schema = pa.schema([*key, ("v", pa.int64())])
    with sink.read_mirror("orders") as copy:
        assert copy.offset == batches[-1].next_offset
        found = pa.Table.from_batches(copy.rows(schema), schema=schema).to_pylist()
    assert {(row["k0"],): row["v"] for row in found} == had
    assert len(found) == len(had)
