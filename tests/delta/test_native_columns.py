"""The crate gives pyarrow's arrays; what it refuses, pyarrow decodes."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.delta.damaged_bytes import UNREADABLE
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups, find_chunk
from tailer.errors import CorruptLog, UnsupportedTable
from tests.support.components import require_crate
from tests.support.extent import examples
from tests.support.raw_parquet import (
    BYTES,
    DELTA_TEXTS,
    INT64,
    INT96,
    Chunk,
    Element,
    Page,
    levels,
    shared_texts,
    write_parquet,
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require_crate()


ROWS = 10_000
DECIMAL = pa.decimal128(22, 2)


@cache
def table(seed: int, rows: int = ROWS, nulls: float = 0.1) -> pa.Table:
    """Columns of the types that tables have."""
    dice = random.Random(seed)

    def some(make: Any) -> list[Any]:
        return [None if dice.random() < nulls else make() for _ in range(rows)]

    words = ["", "new", "paid", "a longer text of forty characters, or so"]
    columns = {
        "int": pa.array(some(lambda: dice.randrange(-(2**31), 2**31)), pa.int32()),
        "long": pa.array(some(lambda: dice.randrange(-(2**63), 2**63)), pa.int64()),
        "few": pa.array(some(lambda: dice.randrange(7)), pa.int64()),
        "float": pa.array(some(dice.random), pa.float32()),
        "double": pa.array(some(dice.random), pa.float64()),
        "day": pa.array(some(lambda: dice.randrange(20_000)), pa.int32()).cast(pa.date32()),
        "time": pa.array(some(lambda: dice.randrange(2**50)), pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
        "word": pa.array(some(lambda: dice.choice(words)), pa.string()),
        "text": pa.array(some(lambda: "é" * dice.randrange(70)), pa.string()),
        "bytes": pa.array(some(lambda: dice.randbytes(dice.randrange(20))), pa.binary()),
        "small": pa.array(some(lambda: Decimal(dice.randrange(-999, 999))), pa.decimal128(4, 0)),
        "amount": pa.array(
            some(lambda: Decimal(dice.randrange(-(10**20), 10**20)).scaleb(-2)), DECIMAL
        ),
        "large": pa.array(
            some(lambda: Decimal(dice.randrange(-(10**37), 10**37))), pa.decimal128(38, 0)
        ),
        "flag": pa.array(some(lambda: dice.random() < 0.5), pa.bool_()),
        "tags": pa.array(some(lambda: ["x"] * dice.randrange(3)), pa.list_(pa.string())),
        "place": pa.array(some(lambda: {"x": dice.random()}), pa.struct([("x", pa.float64())])),
        "nothing": pa.nulls(rows, pa.int32()),
    }
    return pa.table(columns)


def decoded(path: Path, rows_max: int, names: list[str] | None = None) -> tuple[pa.Table, bool]:
    """What is read of a file, and whether the crate decoded all of it."""
    parquet = ParquetColumns(pa.OSFile(str(path)))
    names = names or parquet.schema.names
    batches: list[pa.RecordBatch] = []
    for group in range(parquet.num_row_groups):
        found = list(parquet.read_rows(rows_max, group, names, threads=True))
        rows = parquet.groups[group].rows
        assert [b.num_rows for b in found] == [
            min(rows_max, rows - at) for at in range(0, rows, rows_max)
        ]
        batches += found
    return pa.Table.from_batches(batches).select(names), parquet._is_native


def whole(path: Path, names: list[str] | None = None) -> pa.Table:
    """What pyarrow reads of a file."""
    parquet = ParquetColumns(pa.OSFile(str(path)), checksums=False)
    names = names or parquet.schema.names
    batches = [
        batch
        for group in range(parquet.num_row_groups)
        for batch in parquet._read_pyarrow_rows(1000, group, names, threads=False)
    ]
    return pa.Table.from_batches(batches).select(names)


@pytest.mark.parametrize("options", [
    {},
    {"compression": "zstd", "row_group_size": 5000},
    {"use_dictionary": False},
    {"compression": "none", "data_page_size": 200},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"compression": "gzip", "data_page_size": 4096, "write_batch_size": 64},
    {"compression": "lz4", "use_dictionary": False},
    {"compression": "brotli", "row_group_size": 5000},
    {"store_decimal_as_integer": True},
    {"store_decimal_as_integer": True, "use_dictionary": False},
    {"dictionary_pagesize_limit": 1000, "data_page_size": 2000},
    {"write_page_checksum": True, "data_page_size": 2000},
    {"write_page_checksum": True, "compression": "zstd", "data_page_version": "2.0"},
    {"write_page_checksum": True, "compression": "none", "use_dictionary": False},
])  # fmt: skip
@pytest.mark.parametrize("nulls", [0.0, 0.1, 0.999])
def test_arrays_are_pyarrows(options: dict[str, Any], nulls: float, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = table(7, nulls=nulls)
    pq.write_table(rows, path, **options)
    for rows_max in (999, 4096, 65_536):
        found, is_native = decoded(path, rows_max)
        found.validate(full=True)
        assert found.equals(whole(path))
        assert is_native
    assert decoded(path, 3000)[0].equals(rows)


def test_columns_without_nulls(tmp_path: Path) -> None:
    """Required columns have no levels."""
    rows = table(1, nulls=0.0)
    names = [name for name in rows.column_names if name != "nothing"]
    schema = pa.schema([rows.schema.field(name).with_nullable(False) for name in names])
    rows = rows.select(names).cast(schema)
    for version in ("1.0", "2.0"):
        path = tmp_path / f"{version}.parquet"
        pq.write_table(rows, path, data_page_version=version)
        found, is_native = decoded(path, 4097)
        assert is_native
        assert found.cast(schema).equals(rows)


@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_any_pages(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("pages") / "rows.parquet"
    rows = table(data.draw(st.integers(0, 2**32)), 4500, data.draw(st.floats(0, 1)))
    names = data.draw(st.lists(st.sampled_from(rows.column_names), min_size=1, unique=True))
    pq.write_table(
        rows, path,
        use_dictionary=data.draw(st.booleans()),
        compression=data.draw(st.sampled_from(["none", "snappy", "zstd"])),
        data_page_size=data.draw(st.integers(1, 20_000)),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        write_batch_size=data.draw(st.integers(1, 3000)),
        dictionary_pagesize_limit=data.draw(st.integers(1, 20_000)),
        store_decimal_as_integer=data.draw(st.booleans()),
    )  # fmt: skip
    found, is_native = decoded(path, data.draw(st.integers(1, 5000)), names)
    assert is_native
    assert found.equals(rows.select(names))


@given(st.lists(
    st.tuples(st.binary(min_size=1, max_size=90), st.integers(1, 300)), min_size=1, max_size=40
))  # fmt: skip
@settings(max_examples=examples(50), deadline=None)
def test_repeated_bytes(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[bytes, int]]
) -> None:
    """Snappy's copies, near and far, short and long, some of which overlap what they copy."""
    texts = [pattern * times for pattern, times in runs]
    texts = (texts + [text[1:] for text in texts])[:60]
    rows = pa.table({"bytes": pa.array(texts * (ROWS // len(texts)), pa.binary())})
    path = tmp_path_factory.mktemp("pages") / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=False, compression="snappy")
    found, is_native = decoded(path, 3000)
    assert is_native
    assert found.equals(rows)


def test_change_types_are_numbers(tmp_path: Path) -> None:
    """The column that is asked for as a dictionary comes as one, of each row group's own texts."""
    kinds = ["insert", None, "delete"] * 4000 + ["update_preimage", "update_postimage"] * 3000
    path = tmp_path / "rows.parquet"
    rows = pa.table({"kind": kinds, "id": range(len(kinds))})
    for options in ({}, {"use_dictionary": False}, {"row_group_size": 12_000}):
        pq.write_table(rows, path, **options)
        source = pa.OSFile(str(path))
        parquet = ParquetColumns(source, dictionaries=["kind"])
        batches = [
            batch
            for group in range(parquet.num_row_groups)
            for batch in parquet.read_rows(5000, group, ["kind", "id"], threads=True)
        ]
        assert all(pa.types.is_dictionary(batch.schema.field("kind").type) for batch in batches)
        plain = [batch.set_column(0, "kind", batch["kind"].cast(pa.string())) for batch in batches]
        assert pa.Table.from_batches(plain).equals(rows)
        assert parquet._is_native


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        ("int", "DELTA_BINARY_PACKED"),
        ("double", "BYTE_STREAM_SPLIT"),
        ("word", "DELTA_BYTE_ARRAY"),
        ("text", "DELTA_LENGTH_BYTE_ARRAY"),
    ],
)
def test_encodings(column: str, encoding: str, tmp_path: Path) -> None:
    rows = table(3).select(["int", "double", "word", "text"])
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=False, column_encoding={column: encoding})
    assert decoded(path, 1000)[0].equals(rows)
    assert decoded(path, 1000)[1]


DEEP = pa.list_(
    pa.struct([
        ("tags", pa.list_(pa.int8())),
        ("places", pa.map_(pa.string(), pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])))),
    ])
)  # fmt: skip


@pytest.mark.parametrize("store_schema", [True, False])
def test_types_are_those_of_pyarrow(tmp_path: Path, *, store_schema: bool) -> None:
    """With the writer's Arrow types and without them."""
    times = pa.array(range(ROWS), pa.int64())
    deep = [{"tags": [1, None], "places": [("k", [{"at": 5}, None])]}, None]
    rows = pa.table({
        "coded": pa.array(["x", "y"] * (ROWS // 2)).dictionary_encode(),
        "wide": pa.array(["x"] * ROWS, pa.large_string()),
        "wide bytes": pa.array([b"x"] * ROWS, pa.large_binary()),
        **{f"{kind}": pa.array([1, None] * (ROWS // 2), kind) for kind in (
            pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
            pa.decimal256(50, 3), pa.decimal128(38, 37), pa.time32("ms"), pa.time64("us"),
            pa.time64("ns"), pa.duration("us"), pa.date64(),
        )},
        **{f"in {unit}": times.cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
        "berlin": times.cast(pa.timestamp("us", "Europe/Berlin")),
        "half": pa.array([1.5] * ROWS, pa.float16()),
        "fixed": pa.array([b"abcd"] * ROWS, pa.binary(4)),
        "map": pa.array([[("a", 1), ("b", None)]] * ROWS, pa.map_(pa.string(), pa.int32())),
        "deep": pa.array([deep, None, [], [None]] * (ROWS // 4), DEEP),
        "wide list": pa.array([[1]] * ROWS, pa.large_list(pa.int64())),
        "pairs": pa.array([[1, 2]] * ROWS, pa.list_(pa.int64(), 2)),
        "null": pa.nulls(ROWS),
        "json": pa.array(['{"a": 1}'] * ROWS, pa.json_()),
        "uuid": pa.array([b"0123456789abcdef"] * ROWS, pa.uuid()),
    })  # fmt: skip
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, store_schema=store_schema)
    found, is_native = decoded(path, 3000)
    found.validate(full=True)
    assert found.equals(whole(path))
    assert found.schema.types == whole(path).schema.types
    assert is_native


def test_timestamps_of_96_bits(tmp_path: Path) -> None:
    micros = [0, 1, -1, -(2**55), 2**53, 1_582_000_000_000_000, None] * 1000
    rows = pa.table({"old": pa.array(micros, pa.timestamp("us"))})
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    found, is_native = decoded(path, 3000)
    assert found.equals(rows)  # the older versions of pyarrow read some of them wrong
    assert is_native


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_views_come_as_plain_types(tmp_path: Path, *, use_dictionary: bool) -> None:
    """A view's bytes are counted once, however many values point at them."""
    texts = pa.array(["x" * 50, None, "y"] * 1000, pa.string_view())
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"view": texts}), path, use_dictionary=use_dictionary)
    found, is_native = decoded(path, 700)
    assert found["view"].type == pa.string()
    assert found["view"].to_pylist() == texts.to_pylist()
    assert is_native


def test_rows_begin_where_they_are_asked_for(tmp_path: Path) -> None:
    rows = table(8, 5000)
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, row_group_size=4000, data_page_size=3000)
    parquet = ParquetColumns(pa.OSFile(str(path)))
    for first in (0, 1, 999, 3999, 4000):
        found = list(parquet.read_rows(700, 0, rows.column_names, threads=True, first=first))
        assert sum(batch.num_rows for batch in found) == 4000 - first
        if found:
            assert pa.Table.from_batches(found).equals(rows.slice(first, 4000 - first))
    assert parquet._is_native


def test_a_dictionary_is_read_ahead_of_its_values(tmp_path: Path) -> None:
    """Its longest text is looked up, which bounds the rows of a batch."""
    texts = ["", "b" * 77, None, "cc"] * 1000
    rows = pa.table({"id": range(4000), "text": texts, "plain": texts})
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=["text", "id"], row_group_size=2500)
    source = pa.OSFile(str(path))
    parquet = ParquetColumns(source)
    known = RowGroups(parquet, source)
    for group, first in ((0, 0), (1, 0), (1, 300), (0, 2499)):
        for leaf, longest in ((1, 77), (2, 0)):
            chunk = find_chunk(parquet.groups[group], leaf)
            assert chunk is not None
            assert (
                parquet.find_longest_text(group, leaf) == known.find_longest_text(chunk) == longest
            )
        found = list(parquet.read_rows(700, group, rows.column_names, threads=True, first=first))
        whole = rows.slice(2500 * group, 2500)
        assert pa.Table.from_batches(found).equals(whole.slice(first))
    assert parquet._is_native


def test_texts_that_are_not_utf8_are_pyarrows(tmp_path: Path) -> None:
    """From the row on where the crate refuses them: each row comes once."""
    path = tmp_path / "rows.parquet"
    texts = pa.array([b"fine"] * 6000 + [b"\xff"] * 4000, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": range(ROWS), "text": texts}), path, use_dictionary=False)
    found, is_native = decoded(path, 1000)
    assert found["id"].to_pylist() == [*range(ROWS)]
    assert found["text"].cast(pa.binary()).to_pylist() == texts.cast(pa.binary()).to_pylist()
    assert not is_native


def test_texts_that_grow(tmp_path: Path) -> None:
    """The room for texts is estimated from those before; a few may be much larger."""
    dice = random.Random(5)
    texts = ["x"] * 5000 + [dice.randbytes(30).hex() * 50 for _ in range(5000)]
    path = tmp_path / "rows.parquet"
    for options in ({}, {"use_dictionary": False}):
        pq.write_table(pa.table({"text": texts}), path, **options)
        assert decoded(path, 2500)[0]["text"].to_pylist() == texts


def test_damage_is_found_by_pyarrow(tmp_path: Path) -> None:
    """Whatever byte is changed: pyarrow's rows, or its error after the rows before it."""
    dice = random.Random(11)
    path, other = tmp_path / "rows.parquet", tmp_path / "damaged.parquet"
    rows = table(2, 5000).select(["int", "few", "word", "text", "amount"])
    pq.write_table(rows, path, data_page_size=3000)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refused = passed = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 3])):
            damaged[dice.randrange(4, footer)] = dice.choice([0, 0xFF, dice.randrange(256)])
        other.write_bytes(damaged)
        try:
            expected = whole(other)
        except (pa.ArrowException, OSError, ValueError):
            refused += 1
            try:
                decoded(other, 1000)
                passed += 1  # it may pass over what it does not need, as statistics
            except (pa.ArrowException, OSError, ValueError):
                pass
            continue
        assert decoded(other, 1000)[0].equals(expected)
    assert refused > 20
    assert passed < 10


@pytest.mark.parametrize("options", [
    {"compression": "none"}, {"compression": "snappy", "data_page_size": 500},
    {"compression": "zstd", "data_page_version": "2.0"},
    {"compression": "none", "use_dictionary": False, "data_page_size": 500},
])  # fmt: skip
def test_a_flipped_bit_does_not_pass_the_checksum(options: dict[str, Any], tmp_path: Path) -> None:
    """Wherever it is in the bytes of a page, also of a dictionary."""
    dice = random.Random(3)
    path, other = tmp_path / "rows.parquet", tmp_path / "damaged.parquet"
    rows = table(2, 5000).select(["int", "few", "word", "text", "amount"])
    pq.write_table(rows, path, write_page_checksum=True, **options)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    passed = 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[dice.randrange(4, footer)] ^= 1 << dice.randrange(8)
        other.write_bytes(damaged)
        try:
            found, _ = decoded(other, 1000)
        except (pa.ArrowException, OSError, ValueError):
            continue
        passed += 1
        assert found.equals(rows), "a bit of a page's header that says nothing of its values"
    assert passed < 10


def _texts_of_old_writer(path: Path, writer: str) -> list[bytes]:
    """Write texts of which a page begins as the page before has ended."""
    texts = [f"customer {n // 7:05}-{n % 7}".encode() for n in range(600)]
    pages = [
        Page(len(part), levels([1] * len(part), 1) + shared_texts(part, last), DELTA_TEXTS)
        for part, last in (
            (texts[:100], b""),
            (texts[100:350], texts[99]),
            (texts[350:], texts[349]),
        )
    ]
    schema = [Element("text", BYTES)]
    write_parquet(path, schema, [Chunk(["text"], BYTES, pages, len(texts))], len(texts), writer)
    return texts


@pytest.mark.parametrize(
    "writer", ["parquet-mr version 1.6.0 (build abc)", "parquet-mr version 1.7", "parquet-mr", ""]
)
def test_texts_that_go_on_from_the_page_before(writer: str, tmp_path: Path) -> None:
    """As Spark reads them (PARQUET-246), also from a row in the middle on."""
    path = tmp_path / "rows.parquet"
    texts = _texts_of_old_writer(path, writer)
    found, is_native = decoded(path, 90)
    assert found["text"].to_pylist() == texts
    assert is_native
    with pa.OSFile(str(path)) as source:
        rows = ParquetColumns(source).read_rows(70, 0, ["text"], threads=False, first=370)
        assert [text for batch in rows for text in batch["text"].to_pylist()] == texts[370:]


@pytest.mark.parametrize(
    "writer", ["parquet-mr version 1.8.0", "parquet-cpp version 1.5", "x version 1"]
)
def test_newer_writers_begin_each_page_anew(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    _texts_of_old_writer(path, writer)
    with pytest.raises(UNREADABLE):
        decoded(path, 1000)


@pytest.mark.parametrize("native_", [True, False])
def test_nanoseconds_before_a_day_are_right_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, native_: bool
) -> None:
    """An INT96 of 1969-12-31T23:59:59.999999, as a day and nanoseconds before it."""
    if not native_:
        monkeypatch.setattr("tailer.delta.parquet_columns.native", None)
    path = tmp_path / "rows.parquet"
    value = struct.pack("<qi", -1000, 2440588)
    chunk = Chunk(["at"], INT96, [Page(1, levels([1], 1) + value)], 1)
    write_parquet(path, [Element("at", INT96)], [chunk], 1)
    if native_:
        assert decoded(path, 10)[0]["at"].cast("int64").to_pylist() == [-1]
    else:
        with pytest.raises(UnsupportedTable, match="'at' has old timestamps"):
            decoded(path, 10)


@pytest.mark.parametrize("native_", [True, False])
def test_more_values_than_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, native_: bool
) -> None:
    if not native_:
        monkeypatch.setattr("tailer.delta.parquet_columns.native", None)
    path = tmp_path / "rows.parquet"
    pages = [Page(5, levels([1] * 5, 1) + struct.pack("<5q", *range(5)))]
    write_parquet(path, [Element("id", INT64)], [Chunk(["id"], INT64, pages, 5)], 3)
    with pa.OSFile(str(path)) as source:
        parquet = ParquetColumns(source)
        with pytest.raises(
            CorruptLog, match="row group 0 has 3 rows, and its column 'id' 5 values"
        ):
            RowGroups(parquet, source).check(None, ["id"])
