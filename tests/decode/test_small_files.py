"""Small files that are decoded together give the rows that each of them gives by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from tailer.changes import ChangeFile, DecodedRows
from tailer.decode.options import DecodeOptions
from tailer.decode.output import FileLayouts
from tailer.decode.rows import Skip, decode_file
from tailer.decode.small_files import SmallFiles
from tailer.decode.vectors import ALL_ROWS
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tests.support.components import require_crate
from tests.support.extent import examples, sampled
from tests.support.feeds import ID, state

WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
    ]
)
NESTED = pa.schema(
    [
        *WIDE,
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        ("votes", pa.map_(pa.string(), pa.int32())),
    ]
)


@pytest.fixture(autouse=True)
def compiled() -> None:
    require_crate()


def row(dice: random.Random, number: int) -> dict[str, Any]:
    values = {
        "id": number,
        "text": dice.choice(["", "a", "é" * 20, "long " * 50]),
        "price": Decimal(dice.randrange(10**6)) / 100,
        "at": dice.randrange(2**40),
        "flag": dice.random() < 0.5,
        "tags": ["x"] * dice.randrange(3),
        "place": {"x": dice.random(), "y": None},
        "votes": [("a", 1), ("b", dice.randrange(9))][: dice.randrange(3)],
    }
    return {name: value for name, value in values.items() if name == "id" or dice.random() < 0.8}


def parquet(dice: random.Random, count: int, schema: pa.Schema, **options: Any) -> bytes:
    table = pa.Table.from_pylist([row(dice, i) for i in range(count)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def order(number: int, data: bytes, of: TableState, **more: Any) -> ChangeFile:
    kind = "insert" if number % 3 else "delete"
    name = f"{number}.parquet"
    fields = {"partition_values": {}, "change_type": kind, "origin": "files", "size": len(data)}
    return ChangeFile(name, name, number, 1000 + number, "t", of, **{**fields, **more})


def alone(file: ChangeFile, data: bytes, options: DecodeOptions) -> list[DecodedRows]:
    return list(decode_file(pa.BufferReader(data), file, ALL_ROWS, options, Skip()))


def together(
    files: list[ChangeFile], contents: list[bytes], options: DecodeOptions
) -> Iterator[tuple[range, list[int], DecodedRows | None]]:
    """The places of the files that were decoded in each step, and the step's outcome."""
    small, at = SmallFiles(options, FileLayouts(options)), 0
    while at < len(files):
        assert small.can_take(files[at])
        counts, rows = small.decode_files(files[at:], contents[at:])
        yield range(at, at + len(counts)), counts, rows
        at += len(counts)


def check(files: list[ChangeFile], contents: list[bytes], options: DecodeOptions) -> int:
    """Compare with each file by itself; return how many files were decoded together."""
    merged = 0
    for places, counts, rows in together(files, contents, options):
        if rows is None:
            continue
        merged += len(places)
        found = [part for i in places for part in alone(files[i], contents[i], options)]
        each = [sum(part.batch.num_rows for part in alone(files[i], contents[i], options))
                for i in places]  # fmt: skip
        assert counts == each
        rows.batch.validate()
        assert rows.batch.equals(pa.concat_batches([part.batch for part in found]))
        assert rows.positions.equals(pa.concat_arrays([part.positions for part in found]))
        assert rows.batch.num_rows <= options.batch_rows_max
    return merged


@pytest.mark.parametrize("seed", range(12))
def test_files_decoded_together_are_as_each_by_itself(seed: int) -> None:
    dice = random.Random(seed)
    how = {
        "compression": dice.choice(["snappy", "zstd", "none"]),
        "use_dictionary": dice.random() < 0.5,
        "data_page_version": dice.choice(["1.0", "2.0"]),
        "data_page_size": dice.choice([100, 2**20]),
        "write_page_checksum": dice.random() < 0.5,
    }
    contents = [parquet(dice, dice.choice([1, 2, 50, 300]), WIDE, **how) for _ in range(20)]
    of = state(WIDE)
    files = [order(i, data, of) for i, data in enumerate(contents)]
    names = dice.choice([None, ("id",), ("text", "flag")])
    options = DecodeOptions(columns=names, page_checksums=dice.random() < 0.5)
    assert check(files, contents, options) == len(files)


def test_many_files_of_few_rows_come_together() -> None:
    """Each takes the memory of its own rows, not of as many as a batch may have."""
    data = parquet(random.Random(1), 3, WIDE)
    files = [order(i, data, state(WIDE)) for i in range(200)]
    files = [structs.replace(file, state=files[0].state) for file in files]
    ((places, _, rows),) = together(files, [data] * 200, DecodeOptions())
    assert len(places) == 200
    assert rows is not None
    assert rows.batch.num_rows == 600


def test_nested_columns() -> None:
    dice = random.Random(1)
    contents = [parquet(dice, 10, NESTED) for _ in range(5)]
    of = state(NESTED)
    files = [order(i, data, of) for i, data in enumerate(contents)]
    assert check(files, contents, DecodeOptions()) == 5
    assert check(files, contents, DecodeOptions(columns=("id", "at"))) == 5


def test_files_of_different_forms_come_apart() -> None:
    dice = random.Random(1)
    narrow, of = pa.schema([("id", pa.int32())]), state(ID)
    schemas = [ID] * 3 + [narrow] * 2 + [ID] + [narrow]
    contents = [parquet(dice, 10, schema) for schema in schemas]
    contents.append(parquet(dice, 10, narrow, row_group_size=3))
    files = [order(i, data, of) for i, data in enumerate(contents)]
    assert check(files, contents, DecodeOptions()) == 7


def test_files_of_several_partitions_come_apart() -> None:
    dice = random.Random(1)
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    of = state(schema, "p")
    contents = [parquet(dice, 5, ID) for _ in range(6)]
    files = [
        order(i, data, of, partition_values={"p": "ab"[i // 4]}) for i, data in enumerate(contents)
    ]
    assert check(files, contents, DecodeOptions()) == 6


def test_a_batch_keeps_its_bounds() -> None:
    dice = random.Random(1)
    contents = [parquet(dice, 10, ID) for _ in range(10)]
    of = state(ID)
    files = [order(i, data, of) for i, data in enumerate(contents)]
    assert check(files, contents, DecodeOptions(batch_rows_max=35)) == 9
    assert check(files, contents, DecodeOptions(batch_bytes_max=1)) == 0


def test_rows_that_a_dictionary_hides_are_not_decoded_together() -> None:
    text = pa.schema([("text", pa.string())])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["x" * 100_000] * 200}, schema=text), sink)
    contents = [bytes(sink.getvalue())] * 4
    of = state(text)
    files = [order(i, data, of) for i, data in enumerate(contents)]
    assert check(files, contents, DecodeOptions(batch_bytes_max=2**20)) == 0


@sampled
@pytest.mark.parametrize("seed", range(4))
def test_damage_of_a_file_is_left_to_its_own_reading(seed: int) -> None:
    """Whatever byte of one file is wrong: the rows of its neighbours stay, and what it gives by
    itself is what it gives together with them."""
    dice = random.Random(seed)
    options = DecodeOptions(page_checksums=seed % 2 == 0)
    of = state(WIDE)
    how = {"write_page_checksum": seed % 2 == 0, "compression": "none"}
    contents = [parquet(dice, 20, WIDE, **how) for _ in range(3)]
    files = [order(i, data, of) for i, data in enumerate(contents)]
    merged = passed = 0
    for _ in range(examples(300)):
        damaged = bytearray(contents[1])
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        beside = [contents[0], bytes(damaged), contents[2]]
        try:
            alone(files[1], beside[1], options)
        except TableError:
            # pyarrow refuses more than the crate, which may pass over what it does not need.
            for places, counts, rows in together(files, beside, options):
                if rows is not None and len(places) == 3:
                    whole = [part for f, c in zip(files, contents, strict=True)
                             for part in alone(f, c, options)]  # fmt: skip
                    assert rows.batch.equals(pa.concat_batches([part.batch for part in whole]))
                    assert counts == [20] * 3
                    passed += 1
            continue
        merged += check(files, beside, options) == 3
    assert merged > 0
    assert passed < 20
