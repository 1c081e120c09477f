"""Row ids in events (rule 21 of tests/README.md), the same on every replay."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tailer.changes import Offset
from tailer.cli.main import main
from tailer.decode.rows import DecodeOptions
from tailer.feed.options import FeedOptions
from tailer.feed.progress import FeedProgress, Observer
from tailer.feed.read import read_changes
from tests.support.feeds import batches, table_log
from tests.tables.writer import TableWriter

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def written(folder: Path, *, vectors: bool = False, cdf: bool = False) -> TableWriter:
    """Version 1 adds rows 0 to 3, version 2 updates row 1, version 3 deletes row 2."""
    properties = {"delta.enableRowTracking": "true"}
    if vectors:
        properties["delta.enableDeletionVectors"] = "true"
    writer = TableWriter(folder / "t", SCHEMA, properties=properties, seed=1, cdf=cdf)
    writer.append([{"id": i, "v": "a"} for i in range(4)])
    writer.update(lambda row: row["id"] == 1, lambda row: {**row, "v": "b"})
    writer.delete(lambda row: row["id"] == 2)
    return writer


def arguments(writer: TableWriter, output: str, *more: str) -> list[str]:
    table = str(writer.builder.folder)
    return ["read", table, "--from", "1", "--output", output, "--with-ids", *more]


def ids_by_event(rows: list[dict[str, Any]]) -> list[tuple[int, str, int, int | None]]:
    return [(r["_commit_version"], r["_change_type"], r["id"], r["_row_id"]) for r in rows]


@pytest.mark.parametrize("vectors", [False, True])
def test_rule_21_a_row_keeps_its_id_through_update_and_delete(
    tmp_path: Path, *, vectors: bool
) -> None:
    writer = written(tmp_path, vectors=vectors)
    output = tmp_path / "out.arrow"
    assert main(arguments(writer, str(output))) == 0
    with pyarrow.ipc.open_file(str(output)) as reader:
        rows = reader.read_all().to_pylist()
    of_row = {r["id"]: r["_row_id"] for r in rows if r["_commit_version"] == 1}
    assert sorted(of_row.values()) == [0, 1, 2, 3]
    later = [r for r in rows if r["_commit_version"] > 1]
    assert {r["id"] for r in later} == {1, 2}
    assert all(r["_row_id"] == of_row[r["id"]] for r in later)
    assert {r["_origin"] for r in later} <= {"row_ids", "files"}


def test_rule_21_replay_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    writer = written(tmp_path)
    outputs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for output in outputs:
        assert main(arguments(writer, str(output))) == 0
    first = outputs[0].read_bytes()
    assert first == outputs[1].read_bytes()
    lines = first.splitlines()
    assert [list(json.loads(line))[-3:] for line in lines] == [
        ["_event_id", "_origin", "_row_id"]
    ] * len(lines)


def test_rule_21_every_kind_of_output_has_the_same_ids(tmp_path: Path) -> None:
    writer = written(tmp_path)
    for kind in ("jsonl", "parquet"):
        assert main(arguments(writer, str(tmp_path / f"out.{kind}"))) == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    of_lines = ids_by_event([json.loads(line) for line in lines])
    assert of_lines == ids_by_event(pq.read_table(tmp_path / "out.parquet").to_pylist())
    assert None not in [row_id for *_, row_id in of_lines]


def test_rows_of_cdc_files_have_no_row_id(tmp_path: Path) -> None:
    writer = written(tmp_path, cdf=True)
    output = tmp_path / "out.jsonl"
    assert main(arguments(writer, str(output))) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {r["_row_id"] for r in rows if r["_commit_version"] == 2} == {None}
    assert None not in {r["_row_id"] for r in rows if r["_commit_version"] == 1}


def test_without_row_tracking_or_without_asking_there_are_no_row_ids(tmp_path: Path) -> None:
    plain = TableWriter(tmp_path / "plain", SCHEMA, seed=1)
    plain.append([{"id": 1, "v": "a"}])
    assert [b.row_ids for b in batches(plain.builder, 1, row_ids=True)] == [None]
    tracked = written(tmp_path)
    assert {b.row_ids for b in batches(tracked.builder, 1)} == {None}


def test_the_snapshot_has_row_ids_too(tmp_path: Path) -> None:
    writer = written(tmp_path)
    start = Offset(writer.builder.version, snapshot=True)
    found = batches(writer.builder, start, row_ids=True)
    ids = [i for b in found if b.row_ids is not None for i in b.row_ids.to_pylist()]
    assert len(ids) == len(set(ids)) == 3


def test_what_is_read_is_counted_in_bytes(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", SCHEMA, seed=1)
    writer.append([{"id": i, "v": "a" * 100} for i in range(1000)])

    def bytes_read() -> float:
        progress = FeedProgress("orders", lambda: 0.0)

        async def read() -> None:
            found = read_changes(table_log(writer.builder), Offset(1), 1, FeedOptions(), progress)
            async for _ in found:
                pass

        anyio.run(read)
        return progress.totals[("read_bytes",)].value

    files = {b.file.path: b.file.size or 0 for b in batches(writer.builder, 1) if b.file}
    assert 0.9 * sum(files.values()) < bytes_read() <= sum(files.values())


def test_of_a_file_the_columns_that_are_read_count_by_their_size(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t", SCHEMA, seed=1)
    chance = Random(1)
    writer.append([{"id": i, "v": chance.randbytes(200).hex()} for i in range(1000)])
    [size] = {b.file.size or 0 for b in batches(writer.builder, 1) if b.file}
    counted: list[int] = []

    class Counting(Observer):
        def count_read_bytes(self, count: int) -> None:
            counted.append(count)

    async def read() -> None:
        options = FeedOptions(decode=DecodeOptions(columns=("id",)))
        async for _ in read_changes(table_log(writer.builder), Offset(1), 1, options, Counting()):
            pass

    anyio.run(read)
    assert 1000 < sum(counted) < 0.1 * size
