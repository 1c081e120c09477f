"""`tailer offsets import` from checkpoints of Spark's queries, as each Delta and Spark wrote them;
no Spark is started here. tests/spark/test_take_over.py has real ones."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import duckdb
import obstore
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.offsets.local import LocalOffsetStore
from tailer.storage import storage_of
from tailer.testing.table import TableBuilder
from tests.clouds.servers import Container
from tests.support.programs import run_tailer

ID = "b1f6d9a0-9f3b-4c5e-8f14-3c6f0b1a2d77"
SCHEMA = pa.schema([("id", pa.int64())])
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
KAFKA, FILES = '{"orders":{"0":12}}', '{"logOffset":3}'


def place(version: int, index: int = -1, *, start: bool | None = False, **more: Any) -> str:
    """An offset of Delta's source, as Delta 2.0 wrote it and all later ones do."""
    fields = {"sourceVersion": 1, "reservoirId": ID, "reservoirVersion": version, "index": index}
    return json.dumps(fields | {"isStartingVersion": start} | more, separators=(",", ":"))


def renamed(text: str) -> str:
    return text.replace("isStartingVersion", "isInitialSnapshot")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A feed of a table whose versions 1 and 2 add three files each."""
    table = TableBuilder(tmp_path / "table", SCHEMA, table_id=ID)
    table.create()
    for _ in (1, 2):
        table.commit(*(table.add([{"id": n}, {"id": n}]) for n in range(3)))
    file = tmp_path / "tailer.toml"
    sink = '[feeds.orders.sink]\ntype = "jsonl"\npath = "orders.jsonl"\n'
    file.write_text(f'[feeds.orders]\ntable = "table"\n{sink}')
    return file


def checkpoint(folder: Path, *sources: str, version: str = "v1", batch: int = 7) -> Path:
    """A checkpoint whose batch was committed, as Spark leaves its files."""
    files = {
        "metadata": '{"id":"0a1b"}',
        f"offsets/{batch}": "\n".join([version, METADATA, *sources]),
        f"offsets/.{batch}.crc": "crc",
        f"commits/{batch}": 'v1\n{"nextBatchWatermarkMs":0}',
        f"commits/.{batch + 1}.1f0c.TID3.tmp": "v1",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def imported(config: Path, place: Path | str, *more: str) -> tuple[Offset | None, str]:
    """The feed's offset after an import, and what was said."""
    done = run_tailer("offsets", "import", config, "orders", "--checkpoint", place, *more)
    offset = anyio.run(LocalOffsetStore(config.parent / "state", "orders").load)
    assert (done.returncode == 0) == (offset is not None), done.stderr
    return offset, done.stderr


def at(version: int, **fields: Any) -> Offset:
    return Offset(version, table_id=ID, **fields)


PLACES = {
    "2.0, before a version": ([place(2)], at(2)),
    "2.0, within a version": ([place(2, 0)], at(2, delivered_files=1)),
    "2.0, after its last file": ([place(1, 2)], at(2)),
    "2.0, in the initial snapshot": (
        [place(1, 1, start=True)], at(1, snapshot=True, delivered_files=2)
    ),
    "2.0, before its first file": ([place(2, start=True)], at(2, snapshot=True)),
    "2.0, after the snapshot's last file": ([place(2, 5, start=True)], at(3)),
    "2.4, before a version": ([place(2, -100, sourceVersion=3)], at(2)),
    "2.4, before a new schema": ([place(2, -20, sourceVersion=3)], at(2)),
    "2.4, after a new schema": ([place(2, -19, sourceVersion=3)], at(2)),
    "the name of the field that code has": (
        [renamed(place(1, 0, start=True))], at(1, snapshot=True, delivered_files=1)
    ),
    "the next version": ([place(3)], at(3)),
    "beside other sources": (["-", KAFKA, FILES, place(2), place(9, reservoirId="other")], at(2)),
    "twice the same": ([place(2), place(2)], at(2)),
    "of this package": ([str(at(2, index=1))], at(2, index=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_place_becomes_the_feeds_offset(config: Path, tmp_path: Path, name: str) -> None:
    sources, wanted = PLACES[name]
    offset, _ = imported(config, checkpoint(tmp_path / "checkpoint", *sources))
    assert offset == wanted


def test_named_sources_of_newer_sparks_are_read(config: Path, tmp_path: Path) -> None:
    sources = json.dumps({"clicks": KAFKA, "orders": place(2, 0), "none": None})
    offset, _ = imported(config, checkpoint(tmp_path / "checkpoint", sources, version="v2"))
    assert offset == at(2, delivered_files=1)


REFUSED = {
    "another format of Delta": ([place(2, sourceVersion=4)], "has sourceVersion 4, and 1 and 3"),
    "the reserved one": ([place(2, sourceVersion=2)], "has sourceVersion 2, and 1 and 3"),
    "none": ([place(2, sourceVersion=None)], "has sourceVersion None, and 1 and 3"),
    "a text": ([place(2, index="1")], "lacks a field, or has one of a wrong kind"),  # type: ignore[arg-type]  # wrong on purpose
    "no flag": ([place(2, start=None)], "lacks a field, or has one of a wrong kind"),
    "below zero": ([place(-2)], "lacks a field, or has one of a wrong kind"),
    "no JSON": (["{"], "the checkpoint's offsets can't be read"),
    "no Delta": ([KAFKA, FILES], "reads no Delta table; give the checkpointLocation of a query"),
    "no source": ([], "reads no Delta table"),
    "another table": ([place(2, reservoirId="x")], f"reads table x, and the table there is {ID}"),
    "two places": ([place(2), place(1)], "2 times, up to other places"),
    "versions that are not there": ([place(4)], "the table went back to version 2"),
    "files that are not there": ([place(3, 0)], "choose the feed's start by `tailer offsets set`"),
    "a snapshot that is not there": ([place(3, 0, start=True)], "went back to version 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_place_that_can_not_be_is_refused(config: Path, tmp_path: Path, name: str) -> None:
    sources, sentence = REFUSED[name]
    offset, said = imported(config, checkpoint(tmp_path / "checkpoint", *sources))
    assert offset is None
    assert sentence in said
    assert len(said.splitlines()) == 1, "one sentence"


def test_another_format_of_the_checkpoint_is_refused(config: Path, tmp_path: Path) -> None:
    _, said = imported(config, checkpoint(tmp_path / "checkpoint", place(2), version="v3"))
    assert "they are of format 'v3', and v1 and v2 are known" in said


def test_a_commit_whose_offsets_are_gone_is_refused(config: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", place(2))
    (folder / "offsets" / "7").unlink()
    assert "the checkpoint's offsets can't be read" in imported(config, folder)[1]


def test_a_version_whose_commit_is_gone_is_refused(config: Path, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table", SCHEMA, table_id=ID)
    for version in (1, 2):
        table.checkpoint(version)
    for version in (0, 1, 2):
        table.commit_path(version).unlink()
    offset, said = imported(config, checkpoint(tmp_path / "checkpoint", place(2, 0)))
    assert offset is None
    assert "version 2: the query stopped within this version, and its commit was cleaned up" in said


def test_what_a_writer_has_repeated_is_not_counted(config: Path, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "table", SCHEMA, table_id=ID)
    add = table.add([{"id": 9}])
    table.commit(add, add, table.add([{"id": 10}]))  # Spark counts three files
    offset, said = imported(config, checkpoint(tmp_path / "checkpoint", place(3, 1)))
    assert offset is None
    assert "the query stopped after 2 files of this version" in said


def test_what_the_query_had_done_and_had_not_is_said(config: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", place(2, 0))
    (folder / "offsets" / "8").write_text("\n".join(["v1", METADATA, place(3)]))
    _, said = imported(config, folder)
    query, planned, place_said, plain, more, done = said.splitlines()
    assert query == "query 0a1b has committed batch 7, which began at 2023-11-14 22:13:20 UTC"
    assert planned.startswith("batch 8 has no commit, so its changes are sent again")
    assert place_said.endswith("with version 2, after the 1 files of it that the query has sent")
    assert 'unless you set operations = ["insert"]' in plain
    assert "skipChangeCommits" in more
    assert done == "the offset of orders is imported"


def test_the_operations_are_compared_with_the_streams(config: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint", place(2))
    config.write_text(config.read_text().replace("orders]\n", 'orders]\noperations = ["insert"]\n'))
    _, said = imported(config, folder)
    assert "unless you set operations" not in said
    assert run_tailer("offsets", "reset", config, "orders").returncode == 0
    _, said = imported(config, folder, "--read-change-feed")
    assert "the stream sent all operations, and this feed sends insert" in said


@pytest.mark.parametrize("sink", ["sqlite", "duckdb"])
def test_a_sink_that_keeps_the_offset_with_the_rows_begins_there(
    config: Path, tmp_path: Path, sink: str
) -> None:
    text = config.read_text().replace("jsonl", sink, 1).replace("orders.jsonl", "orders.db")
    config.write_text(f'{text}mode = "log"\n')
    imported(config, checkpoint(tmp_path / "checkpoint", place(1, 0)))
    for _ in range(2):
        assert run_tailer("run", config, "--once").returncode == 0
    connect = sqlite3.connect if sink == "sqlite" else duckdb.connect
    with closing(connect(str(tmp_path / "orders.db"))) as database:
        found = database.execute("SELECT id FROM orders").fetchall()
    assert sorted(n for (n,) in found) == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_checkpoint_is_read_from_each_cloud(
    container: Container, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "checkpoint", place(2, 0))
    for file in folder.rglob("*"):
        if file.is_file():
            key = f"queries/{file.relative_to(folder)}"
            obstore.put(container.other_client, key, file.read_bytes(), use_multipart=False)
    for name, value in container.environment.items():
        monkeypatch.setenv(name, value)
    offset, said = imported(config, container.address("queries"))
    assert offset == at(2, delivered_files=1)
    assert "query 0a1b has committed batch 7" in said


def test_the_options_of_the_configuration_reach_the_checkpoint(
    container: Container, config: Path, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "checkpoint", place(2))
    for name in ("offsets/7", "commits/7"):
        data = (folder / name).read_bytes()
        obstore.put(container.other_client, f"q/{name}", data, use_multipart=False)
    options = "".join(
        f"{name} = {json.dumps(value)}\n" for name, value in container.options.items()
    )
    place_there = container.address("q")
    name = storage_of(place_there).name
    config.write_text(f"{config.read_text()}[store.{name}]\n{options}")
    assert imported(config, place_there)[0] == at(2)
