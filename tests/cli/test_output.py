"""Bounded reads into one file: complete under its name, or not there."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from tailer.api.batches import Ids
from tailer.changes import concat_batches
from tailer.cli.main import main
from tailer.cli.output import open_output
from tailer.cli.read import output_kind
from tailer.errors import ConfigError
from tailer.testing.batches import change_span
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDER = pa.schema([*SCHEMA, ("country", pa.string())])
METADATA = ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 inserts two rows, 2 changes nothing, 3 adds a column and a row with it."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": 1, "name": "a"}, {"id": 2, "name": None}])
    table.commit()
    table.schema = WIDER
    table.commit(table.add([{"id": 3, "name": "c", "country": "DE"}]), table.metadata())
    return table


def read(table: TableBuilder, output: Path | str, *options: str) -> int:
    arguments = ["--from", "0", "--output", str(output), *options]
    return main(["read", str(table.folder), *arguments])


def rows_of(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    if file.suffix == ".arrow":
        with pa.ipc.open_file(str(file)) as reader:
            return reader.read_all().to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
async def test_the_rows_of_a_run_have_the_origins_of_their_files(tmp_path: Path, kind: str) -> None:
    output = tmp_path / f"out.{kind}"
    first, second = change_span(SCHEMA, [[[{"id": 1}]], [[{"id": 2}]]]).by_file()
    assert second.file is not None
    second = structs.replace(second, file=structs.replace(second.file, origin="row_ids"))
    run = concat_batches([first, second])
    ids = Ids(wanted=True)
    async with open_output(str(output), kind, ids.extend_schema(run.rows.schema), ids) as opened:
        assert opened.traits.spans
        await opened.write(run)
    found = rows_of(output)
    assert [row["_origin"] for row in found] == ["cdf", "row_ids"]
    assert [row["_event_id"] for row in found] == run.event_ids().to_pylist()
    assert [row["_commit_version"] for row in found] == [1, 2]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_columnar_file_has_the_end_version_s_schema(
    table: TableBuilder, tmp_path: Path, kind: str
) -> None:
    output = tmp_path / f"out.{kind}"
    assert read(table, output) == 0
    rows = rows_of(output)
    assert list(rows[0]) == [*WIDER.names, *METADATA]
    assert [(r["id"], r["country"], r["_commit_version"]) for r in rows] == [
        (1, None, 1),
        (2, None, 1),
        (3, "DE", 3),
    ]


def test_json_lines_have_each_version_s_own_schema(table: TableBuilder, tmp_path: Path) -> None:
    assert read(table, tmp_path / "out.jsonl") == 0
    rows = rows_of(tmp_path / "out.jsonl")
    assert [list(r) for r in rows] == [[*SCHEMA.names, *METADATA]] * 2 + [[*WIDER.names, *METADATA]]


def test_ids_are_the_same_in_every_kind(table: TableBuilder, tmp_path: Path) -> None:
    found = []
    for kind in ("arrow", "parquet", "jsonl"):
        assert read(table, tmp_path / f"out.{kind}", "--with-ids") == 0
        found.append([row["_event_id"] for row in rows_of(tmp_path / f"out.{kind}")])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3


def test_columns_come_in_the_order_asked_for(table: TableBuilder, tmp_path: Path) -> None:
    for kind in ("arrow", "jsonl"):
        assert read(table, tmp_path / f"out.{kind}", "--select", "country, id") == 0
        assert list(rows_of(tmp_path / f"out.{kind}")[-1]) == ["country", "id", *METADATA]
    # A line has no column that its version does not have.
    assert list(rows_of(tmp_path / "out.jsonl")[0]) == ["id", *METADATA]


def test_a_range_without_changes_is_an_empty_file(table: TableBuilder, tmp_path: Path) -> None:
    for kind in ("arrow", "parquet", "jsonl"):
        output = tmp_path / f"out.{kind}"
        arguments = ["--from", "2", "--to", "2", "--output", str(output)]
        assert main(["read", str(table.folder), *arguments]) == 0
        assert rows_of(output) == []


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_a_failed_read_leaves_the_old_file_alone(
    table: TableBuilder, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / f"out.{kind}"
    output.write_bytes(b"of yesterday")
    add = table.add([{"id": 4}])
    table.commit(add)
    (table.folder / add["add"]["path"]).unlink()
    assert read(table, output) == 1
    assert "version 4" in capsys.readouterr().err
    assert output.read_bytes() == b"of yesterday"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["orders", output.name]


def test_an_output_that_can_t_be_made_is_a_usage_error(
    table: TableBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("arrow", "parquet", "jsonl"):
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert read(table, blocked / f"out.{kind}") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"tailer: {blocked / f'out.{kind}'} can't be written")


def test_the_kind_is_told_by_the_name() -> None:
    assert output_kind("-") == "jsonl"
    assert output_kind("a.b/x.parquet") == "parquet"
    for name in ("x", "x.csv", "arrow", ".arrow/x"):
        with pytest.raises(ConfigError, match="must end in"):
            output_kind(name)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_a_full_disk_is_named_and_nothing_is_left(
    table: TableBuilder, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = range(50_000)
    table.insert([{"id": i, "name": f"name {i}", "country": "DE"} for i in ids])
    output = tmp_path / f"out.{kind}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        assert read(table, output) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tailer: {output} can't be written (")
    assert list(tmp_path.glob("*out.*")) == list(tmp_path.glob(".out*")) == []


def test_a_full_disk_under_standard_output_is_one_sentence(table: TableBuilder) -> None:
    for command in (["history"], ["snapshot"], ["read", "--from", "0", "--output=-"]):
        with Path("/dev/full").open("w") as full:
            arguments = [sys.executable, "-m", "tailer", *command, str(table.folder)]
            done = subprocess.run(
                arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 1
        assert re.fullmatch("tailer: standard output: No space left on device.*\n", done.stderr)


def test_a_closed_standard_output_is_no_failure(table: TableBuilder) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "-", sys.executable, "-m", "tailer", "history"]
    done = subprocess.run([*command, table.folder], check=True, stderr=subprocess.PIPE)
    assert done.stderr == b""


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "parquet"])
def test_a_struct_of_nothing_but_void_columns_is_read_and_refused_for_parquet_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    in_file = pa.struct([("gone", pa.null())])
    table = TableBuilder(tmp_path / "voids", pa.schema([("id", pa.int64()), ("s", pa.struct([]))]))
    table.create()
    table.schema = pa.schema([("id", pa.int64()), ("s", in_file)])
    table.insert([{"id": 1, "s": {"gone": None}}, {"id": 2, "s": None}])
    output = tmp_path / f"out.{kind}"
    if kind == "parquet":
        assert read(table, output) == 2
        assert "'s' has a struct without fields" in capsys.readouterr().err
        assert read(table, output, "--select", "id") == 0
        return
    assert read(table, output) == 0
    assert [(row["id"], row["s"]) for row in rows_of(output)] == [(1, {}), (2, None)]
