"""Files as other writers make them, which pyarrow refuses or reads in another way."""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta import parquet_columns
from tailer.errors import CorruptRow, UnsupportedTable
from tailer.native.parquet import native
from tailer.testing.table import TableBuilder
from tests.decode.test_rows import decoded, order, values
from tests.support.components import require_crate
from tests.support.feeds import ID, events, refusal, state
from tests.support.raw_parquet import (
    BYTES,
    DICTIONARY,
    FIXED,
    INT32,
    MAP,
    MAP_KEY_VALUE,
    REPEATED,
    REQUIRED,
    Chunk,
    Element,
    Page,
    levels,
    texts,
    write_parquet,
)

INTS = pa.schema([("x", pa.int32())])
MAPS = pa.schema([("id", pa.int32()), ("m", pa.map_(pa.string(), pa.int32()))])
#: Four rows: two entries, none, no map, one entry without a value.
ROWS = [[("a", 1), ("b", 2)], [], None, [("c", None)]]


def flat(path: Path, kind: int, pages: list[Page], rows: int, **column: Any) -> bytes:
    """A file of one column, ``x``, that is required."""
    schema = [Element("x", kind, repetition=REQUIRED, **column)]
    write_parquet(path, schema, [Chunk(["x"], kind, pages, rows)], rows)
    return path.read_bytes()


def maps(path: Path, outer: int, entries: str, inner: int | None, keys: tuple[int, ...]) -> bytes:
    """A file with a column ``id`` and a map ``m`` whose keys are declared optional, as Flink, Hive
    and Athena do. ``keys`` are the definition levels of its keys."""
    start = levels([0, 1, 0, 0, 0], 1)
    names = [text.encode() for text, level in zip("ab--c", keys, strict=True) if level == 3]
    write_parquet(
        path,
        [
            Element("id", INT32, repetition=REQUIRED),
            Element("m", children=1, annotation=outer),
            Element(entries, children=2, repetition=REPEATED, annotation=inner),
            Element("key", BYTES, annotation=0),
            Element("value", INT32),
        ],
        [
            Chunk(["id"], INT32, [Page(4, struct.pack("<4i", *range(4)))], 4),
            Chunk(
                ["m", entries, "key"], BYTES,
                [Page(5, start + levels(keys, 2) + texts(names))], 5,
            ),
            Chunk(
                ["m", entries, "value"], INT32,
                [Page(5, start + levels([3, 3, 1, 0, 2], 2) + struct.pack("<2i", 1, 2))], 5,
            ),
        ],
        rows=4,
    )  # fmt: skip
    return path.read_bytes()


@pytest.mark.parametrize(
    ("outer", "entries", "inner"),
    [(MAP, "key_value", None), (MAP, "map", MAP_KEY_VALUE), (MAP_KEY_VALUE, "map", None)],
)
def test_a_map_may_declare_its_keys_optional(
    tmp_path: Path, outer: int, entries: str, inner: int | None
) -> None:
    data = maps(tmp_path / "a.parquet", outer, entries, inner, (3, 3, 1, 0, 3))
    with pytest.raises(pa.ArrowInvalid, match="Map keys"):
        pq.read_schema(pa.BufferReader(data))
    require_crate()
    found = decoded(data, order(state(MAPS)))
    assert values(found, "m") == ROWS
    assert values(found) == list(range(4))
    without = decoded(data, order(state(pa.schema([MAPS.field("id")]))))
    assert values(without) == list(range(4)), "also where nobody asks for the map"


def test_a_key_that_is_null_is_refused_by_its_column(tmp_path: Path) -> None:
    require_crate()
    data = maps(tmp_path / "a.parquet", MAP, "key_value", None, (3, 2, 1, 0, 3))
    with pytest.raises(UnsupportedTable, match="'m' has a key that is null"):
        decoded(data, order(state(MAPS)))


def test_a_list_of_pairs_is_no_map(tmp_path: Path) -> None:
    schema = pa.schema([("m", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])))])
    pq.write_table(pa.table({"m": [ROWS[0]]}, schema=schema), tmp_path / "a.parquet")
    with pytest.raises(CorruptRow, match="which can't be read as map"):
        decoded((tmp_path / "a.parquet").read_bytes(), order(state(MAPS)))


def test_a_dictionary_of_one_without_a_run_is_not_called_damage(tmp_path: Path) -> None:
    pages = [Page(1, struct.pack("<i", 7), is_dictionary=True), Page(4, b"\0", DICTIONARY)]
    data = flat(tmp_path / "a.parquet", INT32, pages, 4)
    error = refusal(lambda: decoded(data, order(state(INTS))), UnsupportedTable)
    assert "may well be sound" in str(error)
    assert "DuckDB" in str(error)


@pytest.mark.parametrize("column", ["a first page without values", "a decimal of 20 bytes"])
def test_the_crate_reads_what_pyarrow_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    if column == "a decimal of 20 bytes":
        kind, wanted, numbers = FIXED, pa.decimal128(38, 2), [0, -1, 2, 10**38 - 1]
        page = Page(4, b"".join(i.to_bytes(20, "big", signed=True) for i in numbers))
        form = {"annotation": 5, "length": 20, "precision": 38, "scale": 2}
        data = flat(tmp_path / "a.parquet", kind, [page], 4, **form)
        rows: list[Any] = [Decimal(i).scaleb(-2, Context(prec=38)) for i in numbers]
    else:
        pages = [Page(0, b""), Page(4, struct.pack("<4i", *range(4)))]
        data, wanted, rows = flat(tmp_path / "a.parquet", INT32, pages, 4), pa.int32(), [0, 1, 2, 3]
    file = order(state(pa.schema([("x", wanted)])))
    if native is not None:
        assert values(decoded(data, file), "x") == rows
    monkeypatch.setattr(parquet_columns, "native", None)
    error = refusal(lambda: decoded(data, file), UnsupportedTable)
    assert "may well be sound" in str(error)


def test_texts_without_their_annotation_may_be_no_texts(tmp_path: Path) -> None:
    """Hive and Impala write such columns; the feed's rule makes them valid."""
    table = TableBuilder(tmp_path, pa.schema([("x", pa.string())]))
    table.create()
    add = table.add([{"x": "some"}] * 3, path="a.parquet")
    data = flat(tmp_path / "a.parquet", BYTES, [Page(3, texts([b"ok", b"\xff\xfe", b"z"]))], 3)
    add["add"]["size"] = len(data)
    table.commit(add)
    assert [row["x"] for row in events(table)] == ["ok", "\ufffdFF\ufffdFE", "z"]


def test_wide_deltas_of_integers_are_not_called_damage(tmp_path: Path) -> None:
    """Writers may take deltas beyond 32 bits for 32-bit integers; pyarrow refuses these pages."""
    path = tmp_path / "a.parquet"
    duckdb.sql(
        "copy (select cast(case when i % 2 = 0 then -2147483648 else 2147483647 - i end as int) x "
        f"from range(1000) t(i)) to '{path}' (parquet_version v2)"
    )
    try:
        pq.read_table(path)
    except OSError:
        error = refusal(lambda: decoded(path.read_bytes(), order(state(INTS))), UnsupportedTable)
        assert "may well be sound" in str(error)
    else:
        assert len(values(decoded(path.read_bytes(), order(state(INTS))), "x")) == 1000


@pytest.mark.parametrize("schema", [{}, {"schemaString": None}, {"schemaString": ""}])
def test_a_table_may_begin_without_a_schema(tmp_path: Path, schema: dict[str, Any]) -> None:
    """As pipelines of Databricks commit it at version 0."""
    table = TableBuilder(tmp_path, ID)
    later = table.metadata()
    first = {k: v for k, v in later["metaData"].items() if k != "schemaString"} | schema
    table.commit(table.protocol(1, 2), {"metaData": first})
    table.commit(later, table.add([{"id": 1}]))
    assert [row["id"] for row in events(table)] == [1]
