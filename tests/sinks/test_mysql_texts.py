"""Texts in MySQL: keys of every length, tables that somebody else has made, and names of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailer.changes import ChangeBatch
from tailer.errors import RowsRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.extent import examples
from tests.support.mysql import Mysql
from tests.support.sinks import write

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
#: Lengths near those that a key of one, two and three columns has.
LENGTHS = st.sampled_from([0, 1, 256, 257, 384, 385, 768, 769, 1024, 1025, 1536, 1537, 3072, 3073])


@pytest.fixture
def database(mysql: Mysql) -> str:
    return mysql.database()


@pytest.fixture
def options(mysql: Mysql, database: str) -> dict[str, Any]:
    return {"url": mysql.url(database), "tls": False, "key": ["k"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("mysql", {**options, **more}, Path())


def rows(*keys: str, version: int = 1) -> ChangeBatch:
    found = [{"k": key, "v": place} for place, key in enumerate(keys)]
    return change_batch(SCHEMA, found, version=version, last=True)


def refusal_of(sink: Sink, batch: ChangeBatch) -> str | None:
    try:
        anyio.run(lambda: write(sink, batch))
    except RowsRefused as refused:
        return str(refused)
    return None


@settings(max_examples=examples(15))
@example([("k", 760, 20)])
@example([("größe", 100, 400), ("k", 1, 0)])
@given(st.lists(st.tuples(st.sampled_from(["k", "größe", "😀"]), LENGTHS, LENGTHS), min_size=1,
                max_size=3))  # fmt: skip
@pytest.mark.parametrize("data_type", [pa.string(), pa.binary()], ids=str)
def test_a_key_is_kept_with_its_blanks_or_refused(
    mysql: Mysql, database: str, options: dict[str, Any], data_type: pa.DataType,
    parts: list[tuple[str, int, int]],
) -> None:  # fmt: skip
    key = [f"k{place}" for place in range(len(parts))]
    schema = pa.schema([(name, data_type) for name in key])
    texts = [text[:1] * letters + " " * blanks for text, letters, blanks in parts]
    values = [text.encode() if data_type == pa.binary() else text for text in texts]
    batch = change_batch(schema, [dict(zip(key, values, strict=True))], last=True)
    mysql.query("DROP TABLE IF EXISTS orders, _delta_tailer", database=database)
    said = refusal_of(new(options, key=key), batch)
    if said is None:
        assert mysql.query("SELECT * FROM orders", database=database) == [tuple(values)]
        return
    assert "version 1: the column 'k" in said
    assert max(map(len, values)) * len(key) > 768


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["VARCHAR(5)", "TINYTEXT", "VARBINARY(5)"])
async def test_a_table_that_somebody_else_has_made_cuts_nothing(
    mysql: Mysql, database: str, options: dict[str, Any], kind: str
) -> None:
    column = f"k {kind.replace('(5)', '(200)').replace('TINYTEXT', 'VARCHAR(200)')} PRIMARY KEY"
    mysql.query(f"CREATE TABLE orders ({column}, t {kind})", database=database)
    data_type = pa.binary() if "BINARY" in kind else pa.string()
    schema = pa.schema([("k", data_type), ("t", data_type)])
    long = "abc" + " " * 253

    def batch(version: int, text: str) -> ChangeBatch:
        row = {"k": f"{version}", "t": text}
        row = {n: v.encode() if data_type == pa.binary() else v for n, v in row.items()}  # type: ignore[misc]
        return change_batch(schema, [row], version=version, last=True)

    sink = new(options, create=False, evolve=False)
    await write(sink, batch(1, "abc  "))
    with pytest.raises(RowsRefused, match=r"version 2: the column 't' has a value of 256"):
        await write(sink, batch(2, long))
    ((kept,),) = mysql.query("SELECT t FROM orders", database=database)
    assert kept in ("abc  ", b"abc  ")


@pytest.mark.anyio
async def test_tables_of_names_in_other_case_and_letters_have_claims_of_their_own(
    mysql: Mysql, database: str, options: dict[str, Any]
) -> None:
    names = ["orders", "Orders", "データ", "ordérs"]
    for number, name in enumerate(names, start=1):
        await write(new(options, table=name), rows(name, version=number))
    found = mysql.query("SELECT target, epoch FROM _delta_tailer", database=database)
    assert sorted(found) == sorted((name, 1) for name in names)
    for number, name in enumerate(names, start=1):
        assert await new(options, table=name).open("orders") == rows(version=number).next_offset
