"""`tailer parked`: what a sink refused is listed, delivered later with the same ids, or dropped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from sinks.sqlite import SqliteSink
from tailer.changes import ChangeBatch
from tailer.cli.main import main
from tailer.errors import TransientError
from tailer.feed.parked_rows import note_delivered, read_parked
from tailer.testing.table import TableBuilder
from tests.support.pages import blocks
from tests.support.programs import started

Capture = pytest.CaptureFixture[str]
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.string())])
#: What every third row fails for, and what it does not.
BAD, GOOD = "n::bigint as m", "try_cast(n as bigint) as m"
SINKS = {
    "jsonl": 'type = "jsonl"\npath = "out.jsonl"',
    "sqlite": 'type = "sqlite"\npath = "out.sqlite"\nmode = "log"',
    "files": 'type = "files"\npath = "out"\nformat = "parquet"',
}


def read_lines(folder: Path) -> list[tuple[str, Any]]:
    lines = (folder / "out.jsonl").read_text().splitlines()
    return [(event["_event_id"], event["m"]) for event in map(json.loads, lines)]


def read_sqlite(folder: Path) -> list[tuple[str, Any]]:
    with closing(sqlite3.connect(folder / "out.sqlite")) as lite:
        return lite.execute("SELECT _event_id, m FROM orders ORDER BY _seq").fetchall()


def read_files(folder: Path) -> list[tuple[str, Any]]:
    files = sorted((folder / "out").rglob("*.parquet"))
    rows = ds.dataset(files, format="parquet").to_table().to_pylist()
    return [(row["_event_id"], row["m"]) for row in rows]


READERS: dict[str, Callable[[Path], list[tuple[str, Any]]]] = {
    "jsonl": read_lines, "sqlite": read_sqlite, "files": read_files,
}  # fmt: skip


class Feed:
    """A feed that parks rows, and its table."""

    def __init__(self, folder: Path, sink: str, *, select: str = BAD) -> None:
        self.folder = folder
        self.sink = sink
        self.config = folder / "tailer.toml"
        self.table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
        self.table.create()
        self.configure(select)

    def configure(self, select: str) -> None:
        self.config.write_text(
            '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "earliest"\n'
            f'on_reject = "park"\nselect = ["id", "{select}"]\n[feeds.orders.sink]\n{self.sink}\n'
        )

    def insert(self, first: int, count: int) -> None:
        self.table.insert(
            [{"id": n, "n": "x" if n % 3 == 2 else str(n)} for n in range(first, first + count)]
        )

    def run(self) -> int:
        return main(["run", "--once", str(self.config)])

    def parked(self, action: str, *ids: str) -> int:
        return main(["parked", action, str(self.config), "orders", *ids])


def make_parked(folder: Path, kind: str) -> Feed:
    """A feed that has delivered 8 of 12 rows, in two versions."""
    feed = Feed(folder, SINKS[kind])
    feed.insert(0, 6)
    feed.insert(6, 6)
    assert feed.run() == 0
    return feed


@pytest.mark.parametrize("kind", SINKS)
def test_a_row_is_delivered_when_its_cause_is_gone(
    tmp_path: Path, kind: str, capsys: Capture
) -> None:
    feed = make_parked(tmp_path, kind)
    assert feed.run() == 0, "the last row of all is parked, and nothing follows it"
    read = READERS[kind]
    assert sorted(m for _, m in read(tmp_path)) == [0, 1, 3, 4, 6, 7, 9, 10]
    capsys.readouterr()
    assert feed.parked("list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 4
    assert "version 1, parked 20" in listed[0]
    assert "Could not convert string 'x'" in listed[0]
    assert feed.parked("show") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in shown] == [2, 5, 8, 11]
    assert {*shown[0]["_parked"]} == {"reason", "at", "file", "position", "offset", "id"}
    assert feed.parked("replay") == 1, "nothing was corrected"
    assert capsys.readouterr().err.startswith("0 rows delivered\n")
    feed.configure(GOOD)
    first = shown[0]["_event_id"]
    assert feed.parked("replay", first) == 0, capsys.readouterr()
    assert feed.parked("replay") == 0, capsys.readouterr()
    assert feed.parked("list") == 0
    assert capsys.readouterr().out == ""
    feed.insert(12, 2)
    assert feed.run() == 0
    events = read(tmp_path)
    assert sorted(events, key=str) == sorted({*events}, key=str), "each once"
    assert {id for id, m in events if m is None} == {row["_event_id"] for row in shown}  # noqa: A001  # the event's
    assert len(events) == 14


def test_rows_are_dropped(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 6)
    assert feed.run() == 0
    capsys.readouterr()
    feed.parked("list")
    first, second = (line.split()[0] for line in capsys.readouterr().out.splitlines())
    assert feed.parked("drop", "nowhere") == 2
    assert "no row with the id 'nowhere' is parked" in capsys.readouterr().err
    assert feed.parked("drop", first) == 0
    assert "1 rows dropped" in capsys.readouterr().err
    assert feed.parked("list") == 0
    assert capsys.readouterr().out.startswith(second)
    (file,) = tmp_path.rglob("*.parked.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600, "rows may be secret"
    assert feed.parked("drop") == 0
    assert file.read_bytes() == b""


def test_a_row_that_the_table_no_longer_has_stays(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 3)
    assert feed.run() == 0
    feed.configure(GOOD)
    text = feed.config.read_text()
    feed.config.write_text(text.replace("select =", 'where = "id < 2"\nselect ='))
    assert feed.parked("replay") == 1
    assert "version 1 no longer has it under the feed's options" in capsys.readouterr().err
    assert feed.parked("list") == 0
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("kind", SINKS)
def test_a_feed_that_goes_back_delivers_each_row_again(
    tmp_path: Path, kind: str, capsys: Capture
) -> None:
    feed = make_parked(tmp_path, kind)
    assert main(["offsets", "rewind", str(feed.config), "orders", "--to", "1"]) == 0
    capsys.readouterr()
    assert feed.parked("list") == 0
    assert capsys.readouterr().out.count("\n") == 2
    feed.configure(GOOD)
    assert feed.parked("replay") == 0, capsys.readouterr()
    assert feed.run() == 0
    ids = [id for id, _ in READERS[kind](tmp_path)]  # noqa: A001  # the event's
    assert len({*ids}) == 12
    assert len(ids) == 12 + 4, "those of version 2 that were not parked come again"


def test_what_is_delivered_before_a_fault_is_parked_no_longer(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path, SINKS["sqlite"])
    feed.insert(0, 12)
    assert feed.run() == 0
    feed.configure(GOOD)
    whole, left = SqliteSink.write, [True, True]

    async def write(self: SqliteSink, batch: ChangeBatch) -> None:
        if not left:
            raise TransientError("the server is away")
        left.pop()
        await whole(self, batch)

    monkeypatch.setattr(SqliteSink, "write", write)
    assert feed.parked("replay") == 1
    assert "is away" in capsys.readouterr().err
    monkeypatch.undo()
    assert feed.parked("replay") == 0
    ids = [id for id, _ in read_sqlite(tmp_path)]  # noqa: A001  # the event's
    assert len(ids) == len({*ids}) == 12


def test_what_a_killed_replay_had_delivered_is_not_delivered_again(
    tmp_path: Path, capsys: Capture
) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 9)
    assert feed.run() == 0
    (file,) = tmp_path.rglob("*.parked.jsonl")
    rows = read_parked(file, keeps_lines=True)
    note_delivered(file, rows[0].id)
    note_delivered(file, rows[1].id)
    with (beside := file.with_name(f"{file.name}.delivered")).open("a") as torn:
        torn.write(rows[2].id[:-3])
    assert beside.stat().st_mode & 0o777 == 0o600
    assert [row.id for row in read_parked(file)] == [rows[2].id]
    feed.configure(GOOD)
    assert feed.parked("replay") == 0
    assert "1 rows delivered" in capsys.readouterr().err
    assert file.read_bytes() == b""
    assert not beside.exists()
    # What is left of it when a process ended behind the new file is of no file.
    beside.write_text(f"0\n{rows[0].id}\n")
    file.write_bytes(rows[0].line)
    assert read_parked(file, keeps_lines=True) == [rows[0]]
    beside.write_bytes(b"\xff\n")
    assert [row.id for row in read_parked(file)] == [rows[0].id]
    file.unlink()
    file.mkdir()
    assert feed.parked("list") == 2
    assert "can't be read (Is a directory)" in capsys.readouterr().err


def test_a_target_that_is_gone_is_not_begun_again(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["sqlite"])
    feed.insert(0, 6)
    assert feed.run() == 0
    feed.configure(GOOD)
    with closing(sqlite3.connect(tmp_path / "out.sqlite", isolation_level=None)) as lite:
        lite.execute("DROP TABLE orders")
        lite.execute("DROP TABLE _delta_tailer")
    assert feed.parked("replay") == 1
    assert "what the feed has written is not there" in capsys.readouterr().err


def test_a_column_of_the_name_and_hidden_characters(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    text = feed.config.read_text().replace('["id",', """["id", "'a\u202eb' as _parked",""")
    feed.config.write_text(text)
    feed.insert(0, 3)
    assert feed.run() == 0, capsys.readouterr()
    assert feed.parked("list") == 0
    capsys.readouterr()
    assert feed.parked("show") == 0
    assert capsys.readouterr().out.isascii()
    feed.config.write_text(text.replace(BAD, GOOD))
    assert feed.parked("replay") == 0


def test_where_nothing_is_parked_in_a_file(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    assert feed.parked("list") == 0
    assert capsys.readouterr().out == ""
    assert feed.parked("replay") == 2
    assert "has no offset" in capsys.readouterr().err
    text = feed.config.read_text()
    feed.config.write_text(text.replace('on_reject = "park"\n', ""))
    assert feed.parked("list") == 2
    assert "parks no rows" in capsys.readouterr().err
    feed.config.write_text(f'{text}[feeds.orders.park]\ntype = "jsonl"\npath = "p.jsonl"\n')
    assert feed.parked("list") == 2
    assert "in a sink of its own" in capsys.readouterr().err


def test_a_copy_is_repaired_and_not_replayed(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, 'type = "sqlite"\npath = "out.sqlite"\nkey = ["id"]', select=GOOD)
    feed.insert(0, 3)
    assert feed.run() == 0
    assert feed.parked("replay") == 2
    assert "--repair` writes what it lacks" in capsys.readouterr().err


def test_a_line_of_another_kind_is_named(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 3)
    assert feed.run() == 0
    (file,) = tmp_path.rglob("*.parked.jsonl")
    line = json.loads(file.read_text())
    del line["_parked"]
    for text in (f"{json.dumps(line)}\n", "[]\n", "{\n"):
        file.write_text(text)
        assert feed.parked("list") == 2
        assert "line 1: no parked row of this release" in capsys.readouterr().err
    file.write_text('{"torn')
    assert feed.parked("list") == 0


def test_a_feed_that_runs_keeps_its_parked_rows(tmp_path: Path, capsys: Capture) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 3)
    assert feed.run() == 0
    with started("run", str(feed.config)) as program:
        feed.insert(3, 2)
        program.wait_for(lambda: len(read_lines(tmp_path)) == 4)
        for action in ("replay", "drop"):
            assert feed.parked(action) != 0
    capsys.readouterr()
    assert feed.parked("list") == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    feed = Feed(tmp_path, SINKS["jsonl"])
    feed.insert(0, 6)
    assert feed.run() == 0
    feed.configure(GOOD)
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in blocks("docs/operations.md", "sh") if "parked" in b.text)
    (_, *rest) = block.commands
    capsys.readouterr()
    feed.parked("list")
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    for command in block.commands:
        assert main([ids.pop() if word == "ID" else word for word in command]) == 0
    assert rest
