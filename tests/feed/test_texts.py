"""Texts that are not UTF-8: what leaves is, and in a key they stop the feed."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.delta.parquet_columns import ParquetColumns
from tailer.errors import CorruptRow
from tailer.feed.policy import Policies
from tailer.feed.run import run_feed
from tailer.feed.texts import is_utf8, repair_texts
from tailer.sink import make_sink
from tailer.testing.table import TableBuilder
from tests.support.extent import examples
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio

WRONG = [b"\xff\xfe", b"\xc0\x80", b"stra\xdfe", b"\xed\xa0\x80", b"\xe2\x82"]
RIGHT = ["\ufffdFF\ufffdFE", "\ufffdC0\ufffd80", "stra\ufffdDFe", "\ufffdED\ufffdA0\ufffd80",
         "\ufffdE2\ufffd82"]  # fmt: skip
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("t", pa.string())])


def as_texts(values: list[bytes | None]) -> pa.Array:
    """Strings with these bytes, whatever they are."""
    return pa.array(values, pa.binary()).view(pa.string())


def committed(table: TableBuilder, first: int, values: list[bytes | None], **more: Any) -> int:
    """Commit a file of rows with these texts; returns its version."""
    add = table.add([{"id": i, "s": "x", "t": "y"} for i in range(first, first + len(values))])
    file = table.folder / add["add"]["path"]
    columns = {
        "id": range(first, first + len(values)), "s": as_texts(values), "t": ["fine"] * len(values),
    }  # fmt: skip
    pq.write_table(pa.table({**columns, **more}), file)
    add["add"]["size"] = file.stat().st_size
    return table.commit(add)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    committed(table, 0, [*WRONG, b"", None, "größer".encode()])
    return Rig(tmp_path, table)


async def test_wrong_bytes_are_shown_and_different_texts_stay_different(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    committed(rig.table, 10, [b"ok", b"\xff", b"\xff"])
    with caplog.at_level(logging.WARNING, "tailer"):
        await run_feed(rig.feed(batch_rows_max=3))
    assert [e["s"] for e in rig.events] == [
        *RIGHT, "", None, "größer", "ok", "\ufffdFF", "\ufffdFF",
    ]  # fmt: skip
    said = [r.getMessage() for r in caplog.records if "UTF-8" in r.getMessage()]
    assert len(said) == 2, "one line for each version"
    assert said[0].startswith("feed orders: version 1: texts of the column s are not UTF-8 (b'")
    assert said[1].startswith("feed orders: version 2: texts of the column s are not UTF-8")
    assert rig.metric("tailer_replaced_texts_total") == len(WRONG) + 2


@pytest.mark.parametrize("mode", ["jsonl", "sqlite", "files", "folders"])
async def test_every_sink_gets_the_same_texts(rig: Rig, tmp_path: Path, mode: str) -> None:
    known: dict[str, dict[str, Any]] = {
        "sqlite": {"mode": "log"}, "folders": {"folders": "s={s}"},
    }  # fmt: skip
    options = known.get(mode, {})
    kind = "files" if mode == "folders" else mode
    sink = make_sink(kind, {"path": str(tmp_path / "out"), **options}, tmp_path)
    await run_feed(rig.feed(sink=sink, batch_rows_max=100))
    if mode == "jsonl":
        lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line)["s"] for line in lines if '"id"' in line]
    elif mode == "sqlite":
        with closing(sqlite3.connect(tmp_path / "out")) as database:
            (name,) = database.execute(
                "select name from sqlite_master where sql like '%`s`%'"
            ).fetchone()
            found = [s for (s,) in database.execute(f'select s from "{name}" order by id')]
    else:
        files = sorted((tmp_path / "out").rglob("*.parquet"))
        found = [s for f in files for s in pq.ParquetFile(f).read().column("s").to_pylist()]
    assert sorted(found, key=str) == sorted([*RIGHT, "", None, "größer"], key=str)


async def test_a_key_is_never_changed(rig: Rig) -> None:
    with pytest.raises(
        CorruptRow,
        match=r"version 1.*the key column 's' has texts that are not UTF-8, such as b'.*', "
        r"and keys are never changed",
    ):
        await run_feed(rig.feed(key=("s",)))
    assert rig.lines == []


async def test_the_key_of_a_sink_is_never_changed(rig: Rig, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "copy"), "mode": "mirror", "key": ["s"]}
    sink = make_sink("sqlite", options, tmp_path)
    with pytest.raises(CorruptRow, match="key column 's'"):
        await run_feed(rig.feed(sink=sink))


async def test_they_stop_a_feed_that_is_told_so(rig: Rig) -> None:
    with pytest.raises(CorruptRow, match=r"version 1.* column 's' has texts.*on_invalid_text"):
        await run_feed(rig.feed(policies=Policies(on_invalid_text="fail")))


async def test_rows_are_compared_as_they_are(tmp_path: Path) -> None:
    """A rewrite that changes one wrong byte into another is a change."""
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    committed(table, 0, [b"\xff", b"same"])
    old = table.actions()[-1]
    committed(table, 0, [b"\xfe", b"same"])
    new = table.actions()[-1]
    other = TableBuilder(tmp_path / "other", SCHEMA)
    other.create()
    for action in (old, new):
        name = action["add"]["path"]
        (other.folder / name).write_bytes((table.folder / name).read_bytes())
    other.commit(old)
    other.commit(other.remove(old), new)
    rig = Rig(tmp_path, other)
    await run_feed(rig.feed(start="2", change_source="derived"))
    assert [(e["_change_type"], e["s"]) for e in rig.events] == [
        ("delete", "\ufffdFF"), ("insert", "\ufffdFE"),
    ]  # fmt: skip


NESTED = pa.struct([("a", pa.string()), ("l", pa.list_(pa.string()))])


def test_texts_are_found_and_repaired_at_any_depth() -> None:
    wrong, fine = as_texts([b"\xff", b"ok", None]), pa.array(["é", "", None])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), wrong)
    structs = pa.StructArray.from_arrays(
        [fine, lists], fields=list(NESTED), mask=pa.array([False, False, True])
    )
    ends = pa.array([0, 1, 2, 2], pa.int32())
    maps = pa.MapArray.from_arrays(ends, fine.slice(0, 2), wrong.slice(0, 2))
    for array in (wrong, lists, structs, maps):
        for some in (array, array.slice(0, 1)):
            found: list[bytes] = []
            assert not is_utf8(some)
            valid = repair_texts(some, found)
            assert found == [b"\xff"]
            valid.validate(full=True)
            assert valid.type == some.type
            shown = str(valid.to_pylist())
            assert "\ufffdFF" in shown
            assert valid.is_null().equals(some.is_null())
        rest, found = array.slice(1), []
        assert repair_texts(rest, found).equals(rest)
        assert not found
    assert is_utf8(fine)
    assert is_utf8(pa.array([1, 2]))
    assert is_utf8(wrong.slice(1))
    assert is_utf8(pa.array([], pa.string()))
    assert is_utf8(pa.nulls(3, pa.string()))
    assert repair_texts(fine, []) is fine


ENCODINGS = ["PLAIN", "PLAIN_DICTIONARY", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
SOME = st.one_of(st.none(), st.text(max_size=3).map(str.encode), st.sampled_from(WRONG))


@given(
    values=st.lists(SOME, min_size=1, max_size=20),
    repeat=st.sampled_from([1, 50]),
    encoding=st.sampled_from(ENCODINGS),
    nested=st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_rows_that_are_said_to_be_utf8_are(
    values: list[bytes | None],
    repeat: int,
    encoding: str,
    nested: bool,  # noqa: FBT001
) -> None:
    texts = as_texts(values * repeat)
    column = pa.ListArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), texts)
    output = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"s": column if nested else texts}),
        output,
        use_dictionary=encoding == "PLAIN_DICTIONARY",
        column_encoding=None if "DICTIONARY" in encoding else encoding,
        data_page_size=64,
    )
    parquet = ParquetColumns(pa.BufferReader(output.getvalue()))
    for batch in parquet.read_rows(7, 0, ["s"], threads=False):
        assert not parquet.gives_utf8 or is_utf8(batch.column(0))
    if is_utf8(texts):
        assert parquet.gives_utf8 is parquet.skips_rows, (
            "what the crate has read is not checked again"
        )


def test_bytes_that_are_called_no_texts_are_not_said_to_be_any() -> None:
    output = pa.BufferOutputStream()
    pq.write_table(pa.table({"s": pa.array(WRONG, pa.binary())}), output)
    assert not ParquetColumns(pa.BufferReader(output.getvalue())).gives_utf8
