"""A table that was put back from an older copy keeps its id, and goes on with other versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tailer
from tailer.cli.main import main
from tailer.errors import OffsetError
from tailer.offset import Offset
from tailer.testing.table import TableBuilder
from tests.api.conftest import insert
from tests.api.test_cursor import ids

SENTENCE = "the commit there is another one than the one that was read"


def put_back(table: TableBuilder, versions: int) -> None:
    """Put the table back from a copy that lacks versions 3 and 4; then so many others come."""
    copy = table.folder.with_name("copy")
    shutil.copytree(table.folder, copy, copy_function=shutil.copyfile)  # with other times
    shutil.rmtree(table.folder)
    shutil.copytree(copy, table.folder, copy_function=shutil.copyfile)
    for version in (3, 4):
        table.commit_path(version).unlink()
    for number in range(versions):
        insert(table, 100 + 10 * number)


@pytest.mark.parametrize("versions", [2, 5])
def test_a_cursor_of_the_table_as_it_was_is_refused(
    versions: int, table: TableBuilder, tmp_path: Path
) -> None:
    place = tmp_path / "orders.cursor"
    with tailer.Cursor(place) as cursor:
        assert len(ids(cursor, table.folder)) == 40
    put_back(table, versions)
    with pytest.raises(OffsetError, match=SENTENCE) as refused, tailer.Cursor(place) as cursor:
        ids(cursor, table.folder)
    assert (refused.value.version, refused.value.table) == (4, str(table.folder))


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_a_feed_stops_and_loses_nothing(
    start: str, table: TableBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, output = tmp_path / "tailer.toml", tmp_path / "orders.jsonl"
    config.write_text(
        f'[daemon]\nhttp = ""\nstate = "{tmp_path}/state"\n[feeds.orders]\n'
        f'table = "{table.folder}"\nfrom = "{start}"\n[feeds.orders.sink]\ntype = "jsonl"\n'
        f'path = "{output}"\n'
    )
    assert main(["run", "--once", str(config)]) == 0
    put_back(table, 3)
    before = output.read_bytes()
    capsys.readouterr()
    assert main(["run", "--once", str(config)]) == 1
    assert f"version 4: {SENTENCE}" in capsys.readouterr().out
    assert output.read_bytes() == before
    assert main(["offsets", "set", str(config), "orders", "--from", "5"]) == 0
    assert main(["run", "--once", str(config)]) == 0
    found = [json.loads(line) for line in output.read_bytes()[len(before) :].splitlines()]
    assert [row["id"] for row in found] == list(range(120, 130))


def test_a_copy_of_the_table_elsewhere_goes_on(table: TableBuilder, tmp_path: Path) -> None:
    place, moved = tmp_path / "orders.cursor", tmp_path / "moved"
    with tailer.Cursor(place) as cursor:
        ids(cursor, table.folder)
    insert(table, 40)
    shutil.copytree(table.folder, moved, copy_function=shutil.copyfile)
    with tailer.Cursor(place) as cursor:
        assert ids(cursor, moved) == list(range(40, 50))


@pytest.mark.parametrize("gone", [False, True], ids=["an offset without it", "its commit is gone"])
def test_what_is_not_known_is_no_difference(table: TableBuilder, *, gone: bool) -> None:
    read = tailer.read(table.folder, end=3)
    after = [batch.offset for batch in read][-1]
    assert after.commit_id is not None
    assert Offset.from_json(after.to_json()) == after
    if gone:
        table.checkpoint(3)
        for version in range(4):
            table.commit_path(version).unlink()
    else:
        after = Offset(after.version, table_id=after.table_id)
    rows = tailer.read(table.folder, after=after).read_all()
    assert rows["id"].to_pylist() == list(range(30, 40))
