"""`tailer.read` and `tailer.snapshot`: the rows of the command line, as Arrow."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import tailer
from tailer.cli.main import main
from tailer.errors import ConfigError, DataLoss, TableError
from tailer.testing.table import TableBuilder
from tests.api.conftest import SCHEMA, insert

METADATA = ["_change_type", "_commit_version", "_commit_timestamp"]


def test_a_range_has_the_rows_of_the_command_line(table: TableBuilder, tmp_path: Path) -> None:
    table.schema = pa.schema([*SCHEMA, ("country", pa.string())])
    table.commit(table.add([{"id": 99, "country": "DE"}]), table.metadata())
    words: dict[str, Any] = {
        "where": "price > 12 or id = 99",
        "select": "id, price * n as total, country",
    }
    output = tmp_path / "rows.arrow"
    options = [f"--{name}={text}" for name, text in words.items()]
    arguments = ["--from", "1", "--with-ids", "--output", str(output), *options]
    assert main(["read", str(table.folder), *arguments]) == 0
    with pa.ipc.open_file(str(output)) as file:
        expected = file.read_all()
    found = tailer.read(table.folder, start=1, with_ids=True, **words)
    assert found.schema == expected.schema
    assert found.read_all() == expected
    assert expected.num_rows == 28


def test_a_selection_may_be_a_list(table: TableBuilder) -> None:
    found = tailer.read(table.folder, start=2, end=2, select=["id", "round(price * n, 2) as t"])
    assert found.schema.names == ["id", "t", *METADATA]
    assert found.read_all()["t"].to_pylist() == [2.0 * i for i in range(10, 20)]


def test_a_read_can_be_used_again_and_has_the_same_rows(table: TableBuilder) -> None:
    found = tailer.read(table.folder)
    assert [row["id"] for batch in found for row in batch.to_pylist()] == list(range(40))
    insert(table, 40)
    assert found.read_all().num_rows == 40
    assert tailer.read(table.folder).read_all().num_rows == 50


def test_other_libraries_take_it_without_a_copy_of_their_own(table: TableBuilder) -> None:
    changes = tailer.read(table.folder)
    found = duckdb.sql("select sum(id) from changes")
    assert found is not None
    assert found.fetchall() == [(780,)]
    assert pl.DataFrame(changes).height == changes.to_polars().height == 40
    assert pa.table(changes).num_rows == 40
    assert pa.RecordBatchReader.from_stream(changes).read_all().num_rows == 40
    for batch in changes:
        assert pa.record_batch(batch).num_rows == len(batch) == batch.to_polars().height
        assert pl.DataFrame(batch).columns == batch.schema.names == [*SCHEMA.names, *METADATA]
        assert batch["id"] == batch.column(0)
        assert pa.table(batch).num_rows == batch.num_rows


def test_a_library_that_is_missing_is_an_import_error(table: TableBuilder) -> None:
    program = (
        "import sys, tailer\n"
        "sys.modules['polars'] = None\n"
        f"changes = tailer.read({str(table.folder)!r})\n"
        "for convert in changes.to_polars, next(iter(changes)).to_polars:\n"
        "    try:\n        convert()\n    except ImportError as e:\n        print(e.name)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == ["polars", "polars"]
    assert not ended.stderr


def test_a_batch_says_where_the_next_one_begins(table: TableBuilder) -> None:
    batches = list(tailer.read(table.folder, start=1, where="id % 7 = 0"))
    whole = tailer.read(table.folder, start=1, where="id % 7 = 0").read_all()
    for after in [batch.offset for batch in batches]:
        rest = tailer.read(table.folder, after=after, where="id % 7 = 0").read_all()
        text = tailer.read(table.folder, after=str(after), where="id % 7 = 0").read_all()
        assert rest == text
        assert rest == whole.slice(whole.num_rows - rest.num_rows)
    assert batches[-1].offset.version == 5


def test_times_choose_versions(table: TableBuilder) -> None:
    times = [entry.timestamp_ms for entry in tailer.history(table.folder)][::-1]
    moments = [dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in times]
    found = tailer.read(table.folder, start=moments[2], end=moments[3]).read_all()
    same = tailer.read(table.folder, start=str(moments[2]), end="3").read_all()
    assert found == same
    assert {*found["_commit_version"].to_pylist()} == {2, 3}
    assert tailer.snapshot(table.folder, moments[1]).read_all().num_rows == 10


def test_a_snapshot_has_the_columns_of_the_table(table: TableBuilder) -> None:
    rows = tailer.snapshot(table.folder, 2)
    assert rows.schema == SCHEMA
    assert sorted(rows.read_all()["id"].to_pylist()) == list(range(20))
    newest = tailer.snapshot(table.folder, where="price >= 5", select="id, price as p")
    assert newest.schema.names == ["id", "p"]
    insert(table, 40)
    assert newest.read_all().num_rows == 35  # the newest version at the first use


def test_a_read_may_begin_with_all_rows(table: TableBuilder) -> None:
    found = tailer.read(table.folder, start="snapshot")
    rows = found.read_all()
    assert sorted(rows["id"].to_pylist()) == list(range(40))
    assert {*rows["_change_type"].to_pylist()} == {"insert"}
    assert tailer.read(table.folder, start="latest").read_all().num_rows == 0


def test_the_history_is_the_command_line_s(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", str(table.folder), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = tailer.history(table.folder)
    assert [entry.version for entry in found] == [line["version"] for line in lines]
    assert [entry.version for entry in tailer.history(table.folder, 2)] == [4, 3]
    assert all(later.timestamp_ms >= earlier.timestamp_ms for later, earlier in pairwise(found))


def test_an_iterator_that_is_dropped_ends_at_once(table: TableBuilder) -> None:
    for row in range(40, 200, 10):
        insert(table, row)
    batches = iter(tailer.read(table.folder))
    assert len(next(batches))
    del batches
    for batch in tailer.read(table.folder):
        assert len(batch)
        break
    reader = tailer.read(table.folder).to_reader()
    assert reader.read_next_batch().num_rows
    reader.close()


def test_many_threads_read_at_once(table: TableBuilder) -> None:
    shared = tailer.read(table.folder)
    found: list[int] = []

    def use() -> None:
        found.append(shared.read_all().num_rows + tailer.read(table.folder).read_all().num_rows)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [80] * 8


def test_an_iterator_goes_from_thread_to_thread(table: TableBuilder) -> None:
    batches, found = iter(tailer.read(table.folder, start=1)), []

    def take() -> None:
        found.extend(next(batches).to_pylist())

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    found.extend(row for batch in batches for row in batch.to_pylist())
    assert len(found) == 40


@pytest.mark.anyio
async def test_it_works_inside_of_an_event_loop(table: TableBuilder) -> None:
    assert tailer.read(table.folder).read_all().num_rows == 40
    found = [row["id"] async for batch in tailer.read(table.folder) for row in batch.to_pylist()]
    assert found == list(range(40))
    async for batch in tailer.read(table.folder):
        assert len(batch)
        break
    rows = tailer.snapshot(table.folder, 1)
    assert sum([len(batch) async for batch in rows]) == 10


FORKED = """
import os, sys, warnings
import tailer

warnings.simplefilter("ignore")
table = sys.argv[1]
changes = tailer.read(table)
batches = iter(changes)
first = next(batches)
process = os.fork()
if not process:
    try:
        next(batches)
        status = 1
    except tailer.errors.TailerError as e:
        again = changes.read_all().num_rows == tailer.read(table).read_all().num_rows == 40
        status = 0 if again and "forked" in str(e) else 2
    os._exit(status)
assert os.waitpid(process, 0)[1] == 0
assert len(first) + sum(map(len, batches)) == 40
"""


def test_a_process_that_was_forked_reads_anew(table: TableBuilder) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(table.folder)], check=True)


UNENDED = """
import sys, threading, time, tailer

kept = [iter(tailer.read(sys.argv[1])), iter(tailer.tail(sys.argv[1], start=1))]
print(*[len(next(batches)) > 0 for batches in kept])

def wait():
    try:
        next(kept[1])
    except tailer.errors.TailerError:
        pass

threading.Thread(target=wait, daemon=True).start()
time.sleep(1)
"""


def test_a_program_ends_though_its_iterators_have_not(table: TableBuilder) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNENDED, str(table.folder)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("True True\n", "")


def test_a_table_that_vanishes_in_the_loop_is_one_sentence(table: TableBuilder) -> None:
    for row in range(40, 400, 10):
        insert(table, row)
    changes = tailer.read(table.folder, start=1)
    assert changes.schema.names
    for path in table.folder.glob("*.parquet"):
        path.unlink()
    with pytest.raises(DataLoss, match=f"{table.folder}, version 1, .*parquet"):
        changes.read_all()
    shutil.rmtree(table.folder)
    with pytest.raises(TableError, match=f"{table.folder}"):
        changes.read_all()


def test_one_set_of_options_serves_local_tables_too(table: TableBuilder) -> None:
    options = {"AWS_REGION": "eu-west-1", "timeout": "30s", "GOOGLE_SERVICE_ACCOUNT": "/a"}
    assert tailer.read(table.folder, storage_options=options).read_all().num_rows == 40


def test_a_date_is_a_time(table: TableBuilder) -> None:
    found = tailer.read(table.folder, start=dt.date(2000, 1, 1))
    assert found.read_all().num_rows == 40


def test_it_is_shown_without_what_is_secret(table: TableBuilder) -> None:
    assert repr(tailer.read("s3://key:word@bucket/orders")) == "Changes('s3://bucket/orders')"
    (batch,) = tailer.read(table.folder, start=1, end=1)
    assert {"to_pylist", "to_polars", "offset"} <= {*dir(batch)}


def test_what_does_not_fit_the_table_is_said_at_the_first_use(table: TableBuilder) -> None:
    found = tailer.read(table.folder, where="prize > 10")
    with pytest.raises(ConfigError, match=r"prize.*price"):
        found.read_all()
    with pytest.raises(TableError, match=r"the starting version is 9, and the newest is 4"):
        _ = tailer.read(table.folder, start=9).schema
    with pytest.raises(ConfigError, match="the range ends at version 1, before it starts at 3"):
        _ = tailer.read(table.folder, start=3, end=1).schema
