"""The files sink beyond the public suite: rolling, folders, readers, crashes, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import Sink, make_sink
from tailer.storage.targets import LocalTarget
from tailer.testing.batches import change_batch, change_span
from tests.s3.fixture import Bucket
from tests.support.published import manifest, tables
from tests.support.sinks import NAMED, rows, write
from tests.support.source import ROOT
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


def new(folder: Path, **options: Any) -> Sink:
    return make_sink("files", {"path": "out", **options}, folder)


def versions(*counts: int) -> ChangeBatch:
    """A run of versions with so many rows each."""
    ids = iter(range(sum(counts)))
    return change_span(
        NAMED, [[[{"id": next(ids), "name": "a"} for _ in range(n)]] for n in counts]
    )


def ids(folder: Path) -> list[list[int]]:
    """The ids of each file."""
    return [table["id"].to_pylist() for table in tables(folder / "out")]


async def test_files_are_rolled_by_rows(tmp_path: Path) -> None:
    sink: Any = new(tmp_path)
    sink.roll_rows = 4
    await write(sink, versions(3, 3, 3))
    assert ids(tmp_path) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    entries = [entry for entry in manifest(tmp_path / "out") if entry["files"]]
    assert [(e["offset"]["version"], e["offset"]["index"]) for e in entries] == [
        (2, 1), (3, 2), (4, 0),
    ]  # fmt: skip
    assert [(e["files"][0]["first_version"], e["files"][0]["last_version"]) for e in entries] == [
        (1, 2), (2, 3), (3, 3),
    ]  # fmt: skip


async def test_files_are_rolled_by_bytes(tmp_path: Path) -> None:
    sink: Any = new(tmp_path, roll_bytes=1024)
    await sink.open("orders")
    for version in range(1, 5):
        batch = rows(*((i, "x" * 10) for i in range(10)), version=version)
        sink.prepare(batch)
        sink.prepare(batch)  # one more always waits
        await sink.write(batch)
    assert [len(found) for found in ids(tmp_path)] == [20, 20]
    await sink.aclose()


async def test_files_are_published_when_they_are_old_enough(tmp_path: Path) -> None:
    sink = new(tmp_path, roll_s=0.2)
    await sink.open("orders")
    await sink.write(rows((1, "a")))
    await sink.write(rows((2, "b"), version=2))
    assert ids(tmp_path) == [], "nothing is there yet"
    again = new(tmp_path)
    assert await again.look("orders") == rows((1, "a")).offset, "and would be read again"
    with anyio.fail_after(PATIENCE_S):
        while not any(entry["files"] for entry in manifest(tmp_path / "out")):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    assert ids(tmp_path) == [[1, 2]]
    await sink.write(rows((3, "c"), version=3))
    await sink.aclose()
    assert ids(tmp_path) == [[1, 2], [3]]


async def test_folders_are_hive_s(tmp_path: Path) -> None:
    template = "name={name}/day={_commit_date}/hour={_commit_hour}"
    batch = rows((1, "a/b"), (2, None), (3, "a/b"), (4, "größe"))
    await write(new(tmp_path, folders=template), batch)
    (entry,) = [entry for entry in manifest(tmp_path / "out") if entry["files"]]
    day = "day=2026-01-01/hour=00"
    assert [(f["path"].rpartition("/")[0], f["rows"]) for f in entry["files"]] == [
        (f"name=a%2Fb/{day}", 2),
        (f"name=__HIVE_DEFAULT_PARTITION__/{day}", 1),
        (f"name=gr%C3%B6%C3%9Fe/{day}", 1),
    ]
    query = (
        f"FROM read_parquet('{tmp_path}/out/*/*/*/*.parquet', hive_partitioning=true) ORDER BY id"
    )
    found = duckdb.execute(f"SELECT id, name, day::VARCHAR, hour::VARCHAR {query}").fetchall()
    assert found == [
        (1, "a/b", "2026-01-01", "00"), (2, None, "2026-01-01", "00"),
        (3, "a/b", "2026-01-01", "00"), (4, "größe", "2026-01-01", "00"),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
async def test_others_read_the_files_while_they_grow(tmp_path: Path, form: str) -> None:
    def polars_ids() -> list[int]:
        scan: dict[str, Any] = {
            "parquet": pl.scan_parquet,
            "arrow": pl.scan_ipc,
            "jsonl": pl.scan_ndjson,
        }
        frame: Any = scan[form](f"{tmp_path}/out/*.{form}").collect()
        found: list[int] = frame.sort("id")["id"].to_list()
        return found

    def other_ids() -> list[int]:
        if form == "arrow":  # DuckDB has no reader of it
            found = ds.dataset(tmp_path / "out", format="ipc", exclude_invalid_files=False)
            return sorted(found.to_table()["id"].to_pylist())
        read = {"parquet": "read_parquet", "jsonl": "read_json"}[form]
        query = f"SELECT id FROM {read}('{tmp_path}/out/*.{form}') ORDER BY id"
        return [row[0] for row in duckdb.execute(query).fetchall()]

    sink = new(tmp_path, format=form)
    await sink.open("orders")
    for version in (1, 2, 3):
        await sink.write(rows((version, "a"), version=version))
        assert polars_ids() == other_ids() == list(range(1, version + 1))
    await sink.aclose()


class _Died(BaseException):
    """In place of a kill."""


@pytest.mark.parametrize("dies_at", range(5))
async def test_a_crash_at_any_step_leaves_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """Each file that the third publication creates may be the one that is not created any more."""
    one, two = rows((1, "a"), (2, "b")), rows((3, "a"), (4, "b"), version=2)
    sink = new(tmp_path, folders="name={name}")
    await sink.open("orders")
    await sink.write(one)
    create, left = LocalTarget.create, [dies_at]

    async def until_dead(self: LocalTarget, name: str, source: Any) -> bool:
        if not left[0]:
            raise _Died
        left[0] -= 1
        return await create(self, name, source)

    monkeypatch.setattr(LocalTarget, "create", until_dead)
    if dies_at < 4:
        with pytest.raises(_Died):
            await sink.write(two)
    else:
        await sink.write(two)
    monkeypatch.undo()
    at = await write(new(tmp_path, folders="name={name}"))
    assert at == (one if dies_at < 4 else two).next_offset
    await write(new(tmp_path, folders="name={name}"), *([two] if dies_at < 4 else []))
    assert sorted(map(tuple, ids(tmp_path))) == [(1,), (2,), (3,), (4,)]


async def test_an_older_process_is_fenced(tmp_path: Path) -> None:
    older, newer = new(tmp_path), new(tmp_path)
    await older.open("orders")
    await older.write(rows((1, "a")))
    await newer.open("orders")
    with pytest.raises(ConfigError, match="another process writes these files now; stop one of"):
        await older.write(rows((2, "b"), version=2))
    await newer.write(rows((2, "b"), version=2))
    await older.aclose()
    await newer.aclose()
    assert ids(tmp_path) == [[1], [2]]


@pytest.mark.parametrize("dies_at", range(3))
async def test_a_crash_while_the_target_is_taken_over_leaves_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """One dies with a file, and the one that ends its publication dies at each of its steps."""
    one, two = rows((1, "a")), rows((2, "b"), version=2)
    create, left = LocalTarget.create, [2]

    async def until_dead(self: LocalTarget, name: str, source: Any) -> bool:
        if not left[0]:
            raise _Died
        left[0] -= 1
        return await create(self, name, source)

    sink = new(tmp_path)
    await sink.open("orders")
    await sink.write(one)
    for steps, act in ((2, sink.write), (dies_at, lambda _: new(tmp_path).open("orders"))):
        left[0] = steps
        monkeypatch.setattr(LocalTarget, "create", until_dead)
        with pytest.raises(_Died):
            await act(two)
        monkeypatch.undo()
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1 + (dies_at < 2)
    assert await write(new(tmp_path), two) == one.next_offset
    for begun in (tmp_path / "out" / "_delta_tailer").glob("*.begun"):
        begun.unlink()  # as the one that was replaced does, where the folder is not as it left it
    await write(new(tmp_path), rows((3, "c"), version=3))
    assert ids(tmp_path) == [[1], [2], [3]]


async def test_a_file_that_a_replaced_process_creates_late_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun a publication, is replaced, creates the file and is killed."""
    older, newer = new(tmp_path), new(tmp_path)
    await older.open("orders")
    await older.write(rows((1, "a")))
    create = LocalTarget.create

    async def late(self: LocalTarget, name: str, source: Any) -> bool:
        if not name.endswith(".parquet"):
            return await create(self, name, source)
        monkeypatch.undo()
        data = source.read_bytes()
        await newer.open("orders")
        assert await create(self, name, data)
        raise _Died

    monkeypatch.setattr(LocalTarget, "create", late)
    with pytest.raises(_Died):
        await older.write(rows((2, "b"), version=2))
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    await newer.write(rows((2, "b"), version=2))
    await newer.aclose()
    await write(new(tmp_path), rows((3, "c"), version=3))
    assert ids(tmp_path) == [[1], [2], [3]]


async def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await sink.open("orders")
    await sink.write(rows((1, "a")))
    (taken,) = (tmp_path / "out").glob("*.parquet")
    foreign = taken.with_name(f"{int(taken.stem) + 1:010}.parquet")
    foreign.write_bytes(b"theirs")
    with pytest.raises(TransientError, match="is there already, and this feed did not write it"):
        await sink.write(rows((2, "b"), version=2))
    assert await write(sink, rows((2, "b"), version=2)) == rows((1, "a")).next_offset
    assert foreign.read_bytes() == b"theirs"
    foreign.unlink()
    assert ids(tmp_path) == [[1], [2]]


async def test_a_reset_removes_the_files_with_their_offset(tmp_path: Path) -> None:
    sink = new(tmp_path)
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await write(sink) == Offset(7)
    await sink.set_offset("orders", None)
    assert await write(sink, rows((1, "a"))) is None
    assert ids(tmp_path) == [[1]]


async def test_what_can_t_be_is_refused(tmp_path: Path) -> None:
    await write(new(tmp_path), rows((1, "a")))
    with pytest.raises(SinkRejected, match="has the files of the feed 'orders'; name another"):
        await new(tmp_path).open("customers")
    sink = new(tmp_path, folders="x={country}")
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'country' of the option 'folders' is not among the c"):
        await sink.write(rows((2, "b"), version=2))
    await sink.aclose()
    (last,) = sorted((tmp_path / "out" / "_delta_tailer").glob("*.json"))[-1:]
    last.write_text("{}")
    with pytest.raises(SinkRejected, match=rf"{last.name} is damaged: restore it, or remove"):
        await new(tmp_path).open("orders")
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkRejected, match=r"file/_delta_tailer.* can't be written \(Not a dir"):
        await new(tmp_path, path="file").open("orders")


async def test_a_folder_that_can_t_be_written_is_refused() -> None:
    with pytest.raises(SinkRejected, match=r"can't be written \(.*\); check the folder"):
        await new(Path("/proc")).open("orders")


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    limited = (
        "import resource, sys, anyio; from tests.sinks.test_files import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "big = rows(*((i, __import__('os').urandom(50).hex()) for i in range(2000)))\n"
        "anyio.run(write, new(Path(sys.argv[1])), big)"
    )
    command = [sys.executable, "-c", limited, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "can't be written (File too large)" in done.stderr
    anyio.run(write, new(tmp_path), rows((1, "a")))
    assert ids(tmp_path) == [[1]]


async def test_a_struct_without_fields_is_for_the_other_formats(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([]))])
    batch = change_batch(schema, [{"id": 1, "s": {}}], last=True)
    sink = new(tmp_path)
    await sink.open("orders")
    with pytest.raises(SinkRejected, match="'s' has a struct without fields, which Parquet can't"):
        await sink.write(batch)
    await sink.aclose()
    await write(new(tmp_path, format="jsonl"), batch)
    (lines,) = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(lines.read_text())["s"] == {}


async def test_a_bucket_that_is_not_there_is_refused(tmp_path: Path, bucket: Bucket) -> None:
    sink = new(tmp_path, path="s3://not-there/out", store=bucket.options)
    with pytest.raises(SinkRejected, match="its bucket does not exist"):
        await sink.open("orders")
    await sink.aclose()
    other = {**bucket.options, "access_key_id": "nobody", "secret_access_key": "wrong"}
    sink = new(tmp_path, path=bucket.address("out"), store=other)
    with pytest.raises(SinkRejected, match="check the access key"):
        await sink.open("orders")
    await sink.aclose()


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'roll_row' of sink 'files' is not known .did you mean"):
        new(tmp_path, roll_row=1)
    for template in ("{id}", "../x={id}", "x={id}/", "x=1"):
        with pytest.raises(ConfigError, match=r"must be folders `name=\{column\}`"):
            new(tmp_path, folders=template)
