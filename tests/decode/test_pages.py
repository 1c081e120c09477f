"""Pages that are decoded here give pyarrow's arrays; whatever is unusual, pyarrow decodes."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.decode import pages
from tailer.decode.flat import FlatColumns
from tailer.delta.bounded import BoundedColumns
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tests.support.components import require


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require("tailer.native._pages, which needs a C compiler,", pages.native is not None)


ROWS = 10_000
DECIMAL = pa.decimal128(22, 2)


def table(seed: int, rows: int = ROWS, nulls: float = 0.1) -> pa.Table:
    """Columns of all types that are decoded here, and of some that are not."""
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


def flat_columns(
    parquet: ParquetColumns, source: pa.NativeFile, names: list[str], bytes_max: int = 2**25
) -> FlatColumns:
    """The columns of a file as the decoder of its rows opens them."""
    others = BoundedColumns(parquet, RowGroups(parquet, source), bytes_max)
    fixed = {f.name for f in parquet.schema if pa.types.is_primitive(f.type)}
    return FlatColumns(source, others, names, set(names) - fixed)


def decoded(path: Path, rows_max: int, names: list[str] | None = None) -> tuple[pa.Table, set[str]]:
    """What is read of a file, and the columns that were decoded here to the end."""
    source = pa.OSFile(str(path))
    parquet = ParquetColumns(source)
    flat = flat_columns(parquet, source, names or parquet.schema.names)
    here: set[str] | None = None
    begun = flat._begun
    batches: list[pa.RecordBatch] = []

    def spied(group: int) -> Any:
        nonlocal here
        columns = begun(group)
        here = set(columns) if here is None else here & set(columns)
        return columns

    flat._begun = spied  # type: ignore[method-assign]
    for group in range(parquet.num_row_groups):
        given = list(flat.batches(rows_max, group))
        rows = parquet.metadata.row_group(group).num_rows
        assert [b.num_rows for b in given] == [
            min(rows_max, rows - at) for at in range(0, rows, rows_max)
        ]
        batches += given
    return pa.Table.from_batches(batches), here or set()


def whole(path: Path, names: list[str] | None = None) -> pa.Table:
    """What pyarrow reads of a file."""
    parquet = ParquetColumns(pa.OSFile(str(path)), checksums=False)
    groups = range(parquet.num_row_groups)
    names = names or parquet.schema.names
    return pa.Table.from_batches(parquet.batches(1000, groups, names, threads=False)).select(names)


KNOWN_CODECS = {None, "none", "zstd"}
HERE = {
    "int", "long", "few", "float", "double", "day", "time", "word", "text", "bytes", "small",
    "amount", "large", "nothing",
}  # fmt: skip


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
        found, here = decoded(path, rows_max)
        found.validate(full=True)
        assert found.equals(whole(path))
        assert here == (HERE if options.get("compression") in KNOWN_CODECS else set())
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
        found, here = decoded(path, 4097)
        assert here == HERE - {"nothing"}
        assert found.cast(schema).equals(rows)


@given(st.data())
@settings(max_examples=25, deadline=None)
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
    found, _ = decoded(path, data.draw(st.integers(1, 5000)), names)
    assert found.equals(rows.select(names))


@given(st.lists(
    st.tuples(st.binary(min_size=1, max_size=90), st.integers(1, 300)), min_size=1, max_size=40
))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_repeated_bytes(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[bytes, int]]
) -> None:
    """Snappy's copies, near and far, short and long, some of which overlap what they copy."""
    texts = [pattern * times for pattern, times in runs]
    texts = (texts + [text[1:] for text in texts])[:60]
    rows = pa.table({"bytes": pa.array(texts * (ROWS // len(texts)), pa.binary())})
    path = tmp_path_factory.mktemp("pages") / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=False, compression="snappy")
    found, here = decoded(path, 3000)
    assert here == {"bytes"}
    assert found.equals(rows)


def test_change_types_are_numbers(tmp_path: Path) -> None:
    """The column that is asked for as a dictionary comes as one, of each row group's own texts."""
    kinds = ["insert", None, "delete"] * 4000 + ["update_preimage", "update_postimage"] * 3000
    path = tmp_path / "rows.parquet"
    rows = pa.table({"kind": kinds, "id": range(len(kinds))})
    for options in ({}, {"use_dictionary": False}, {"row_group_size": 12_000}):
        pq.write_table(rows, path, **options)
        source = pa.OSFile(str(path))
        parquet = ParquetColumns(source, dictionaries=["kind"], checksums=False)
        flat = flat_columns(parquet, source, ["kind", "id"])
        groups = range(parquet.num_row_groups)
        known = [flat._begun(group).keys() for group in groups]
        batches = [batch for group in groups for batch in flat.batches(5000, group)]
        assert all(pa.types.is_dictionary(batch.schema.field("kind").type) for batch in batches)
        plain = [batch.set_column(0, "kind", batch["kind"].cast(pa.string())) for batch in batches]
        assert pa.Table.from_batches(plain).equals(rows)
        assert known == [{"kind", "id"}] * len(known)


@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_other_encodings_are_pyarrows(encoding: str, tmp_path: Path) -> None:
    rows = table(3).select(["int", "word"])
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=["word"], column_encoding={"int": encoding})
    found, here = decoded(path, 1000)
    assert found.equals(rows)
    assert here == {"word"}


def test_other_types_of_the_writer_are_pyarrows(tmp_path: Path) -> None:
    """The writer's Arrow types may ask for more than Parquet's."""
    rows = pa.table({
        "view": pa.array(["x"] * ROWS, pa.string_view()),
        "coded": pa.array(["x"] * ROWS).dictionary_encode(),
        "wide": pa.array(["x"] * ROWS, pa.large_string()),
        "unsigned": pa.array(range(ROWS), pa.uint32()),
        "tiny": pa.array([1] * ROWS, pa.int8()),
        "millis": pa.array(range(ROWS), pa.timestamp("ms")),
        "nanos": pa.array(range(ROWS), pa.timestamp("ns")),
        "old": pa.array(range(ROWS), pa.int64()).cast(pa.timestamp("us")),
        "hour": pa.array(range(ROWS), pa.time64("us")),
        "lasting": pa.array(range(ROWS), pa.duration("us")),
        "half": pa.array([1.5] * ROWS, pa.float16()),
        "fixed": pa.array([b"abcd"] * ROWS, pa.binary(4)),
    })  # fmt: skip
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path)
    found, here = decoded(path, 3000)
    assert found.equals(whole(path))
    assert here == {"old"}
    pq.write_table(rows.select(["old"]), path, use_deprecated_int96_timestamps=True)
    found, here = decoded(path, 3000)
    assert found.equals(whole(path))
    assert not here


def test_texts_that_grow(tmp_path: Path) -> None:
    """The room for texts is estimated from those before; a few may be much larger."""
    dice = random.Random(5)
    texts = ["x"] * 5000 + [dice.randbytes(30).hex() * 50 for _ in range(5000)]
    path = tmp_path / "rows.parquet"
    for options in ({}, {"use_dictionary": False}):
        pq.write_table(pa.table({"text": texts}), path, **options)
        assert decoded(path, 2500)[0]["text"].to_pylist() == texts


def test_another_type_in_the_footer_is_found_by_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(ROWS)}), path, store_schema=False)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"\x15\x04\x19") + 1] = 0x0A  # before the encodings, DOUBLE for INT64
    path.write_bytes(content)
    with pytest.raises(OSError, match="physical type"):
        decoded(path, 1000)


def test_damage_is_found_by_pyarrow(tmp_path: Path) -> None:
    """Whatever byte is changed: pyarrow's rows, or its error after the rows before it."""
    dice = random.Random(11)
    path, other = tmp_path / "rows.parquet", tmp_path / "damaged.parquet"
    rows = table(2, 5000).select(["int", "few", "word", "text", "amount"])
    pq.write_table(rows, path, data_page_size=3000)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 3])):
            damaged[dice.randrange(4, footer)] = dice.choice([0, 0xFF, dice.randrange(256)])
        other.write_bytes(damaged)
        try:
            expected = whole(other)
        except (pa.ArrowException, OSError, ValueError):
            refused += 1
            with pytest.raises((pa.ArrowException, OSError, ValueError)):
                decoded(other, 1000)
            continue
        assert decoded(other, 1000)[0].equals(expected)
    assert refused > 20


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


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_texts_that_outgrow_a_batch_come_in_fewer_rows(
    tmp_path: Path, *, use_dictionary: bool
) -> None:
    """All columns stay side by side, also those that have given more rows already."""
    dice = random.Random(6)
    long = ["y" * dice.randrange(3000) for _ in range(40)]
    rows = table(4, nulls=0.2).set_column(
        7, "word", [["x"] * 3000 + [dice.choice([*long, None]) for _ in range(ROWS - 3000)]]
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, use_dictionary=use_dictionary)
    source = pa.OSFile(str(path))
    parquet = ParquetColumns(source)
    flat = flat_columns(parquet, source, rows.column_names, bytes_max=200_000)
    texts = ["word", "text", "bytes", "tags"]
    assert flat.text_bytes(0, texts, 256).keys() >= {"word", "text", "bytes"}
    batches = list(flat.batches(2000, 0))
    assert pa.Table.from_batches(batches).equals(rows)
    assert "word" in flat._flat, "it was decoded here to the end"
    assert max(b.nbytes for b in batches) <= 200_000
    assert max(b.num_rows for b in batches) > 400
