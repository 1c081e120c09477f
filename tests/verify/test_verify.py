from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.feed.options import FeedOptions
from tailer.testing.table import TableBuilder
from tailer.verify.table import Verdict, verify_versions
from tests.support.feeds import table_log

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def row(number: int, name: str = "x") -> dict[str, object]:
    return {"id": number, "name": name}


def verdicts(table: TableBuilder, first: int = 0) -> list[Verdict]:
    async def run() -> list[Verdict]:
        found = verify_versions(table_log(table), first, table.version, FeedOptions())
        async with aclosing(found):
            return [verdict async for verdict in found]

    return anyio.run(run)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 1 has three rows; version 2 updates one of them, and says so in a cdc file."""
    table = TableBuilder(tmp_path / "t", SCHEMA, cdf=True)
    table.create()
    first = table.add([row(1), row(2), row(3)])
    table.commit(first)
    table.commit(
        table.remove(first),
        table.add([row(1), row(2, "y"), row(3)]),
        table.cdc(
            [
                {**row(2), "_change_type": "update_preimage"},
                {**row(2, "y"), "_change_type": "update_postimage"},
            ]
        ),
    )
    return table


def wrong_cdc(table: TableBuilder) -> None:
    """A version that deletes the row 3, and whose cdc file says that it was the row 1."""
    last = [a for a in table.actions(table.version) if "add" in a][-1]
    table.commit(
        table.remove(last),
        table.add([row(1), row(2, "y")]),
        table.cdc([{**row(1), "_change_type": "delete"}]),
    )


def test_a_right_range_is_proved_as_a_whole(table: TableBuilder) -> None:
    assert [(v.first, v.last, v.events, v.exact) for v in verdicts(table)] == [(0, 2, 5, True)]


def test_a_writers_wrong_cdc_file_is_found_in_its_version(table: TableBuilder) -> None:
    wrong_cdc(table)
    found = verdicts(table)
    assert [v.first for v in found if not v.exact] == [3]
    wrong = found[-1]
    assert (wrong.missing, wrong.surplus) == (1, 1)
    assert wrong.examples is not None
    assert wrong.examples.to_pylist() == [
        {"id": 1, "name": "x", "surplus": -1},
        {"id": 3, "name": "x", "surplus": 1},
    ]


def test_derived_changes_do_not_follow_a_wrong_cdc_file(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_cdc(table)
    path = str(table.folder)
    assert main(["verify", path, "--from", "3"]) == 1
    assert "versions 3 to 3, 1 events: 1 rows missing, 1 rows too many" in capsys.readouterr().out
    assert main(["verify", path, "--from", "3", "--change-source", "derived"]) == 0
    assert capsys.readouterr().out == "versions 3 to 3, 1 events: exact\n"


def test_duplicate_rows_are_counted(table: TableBuilder) -> None:
    table.commit(table.add([row(1), row(1)]))
    assert all(v.exact for v in verdicts(table))
    table.commit(table.add([row(1)]), table.cdc([{**row(1), "_change_type": "insert"}] * 2))
    assert [v.surplus for v in verdicts(table)] == [0, 0, 0, 0, 1]


def test_a_column_that_comes_later_does_not_hide_or_make_a_difference(table: TableBuilder) -> None:
    table.schema = table.schema.append(pa.field("more", pa.int32()))
    table.commit(table.metadata(), table.add([{**row(9), "more": 1}]))
    assert [v.exact for v in verdicts(table)] == [True]


def other_types(table: TableBuilder, *cdc: dict[str, object]) -> None:
    """An overwrite after which ``id`` is a text: no row can be read in both schemas."""
    last = [a for a in table.actions(table.version) if "add" in a][-1]
    table.schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    new = table.add([{"id": "a", "name": "x"}, {"id": "b", "name": "x"}])
    more = [table.cdc(list(cdc))] if cdc else []
    table.commit(table.metadata(), table.remove(last), new, *more)


@pytest.mark.parametrize("source", ["cdf", "derived"])
def test_rows_before_and_after_a_change_of_types_are_proved_each_in_their_own(
    table: TableBuilder, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other_types(table)
    table.commit(table.add([{"id": "c", "name": "y"}]))
    arguments = ["verify", str(table.folder), "--change-source", source]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "versions 3 to 3, 5 events: exact"
    assert len(lines) == 5
    assert all(line.endswith("exact") for line in lines)


def test_rows_that_a_change_of_types_forgets_are_found(table: TableBuilder) -> None:
    inserts: list[dict[str, object]] = [
        {"id": i, "name": "x", "_change_type": "insert"} for i in ("a", "b")
    ]
    other_types(table, *inserts)
    found = verdicts(table)
    assert [v.first for v in found if not v.exact] == [3]
    assert (found[-1].missing, found[-1].surplus) == (0, 3)
    assert found[-1].examples is not None
    assert found[-1].examples.column("id").type == pa.int64()


def test_rows_that_a_change_of_types_brings_twice_are_found(table: TableBuilder) -> None:
    twice: dict[str, object] = {"id": "a", "name": "x", "_change_type": "insert"}
    other_types(table, twice, twice, twice)
    wrong = verdicts(table, 3)[-1]
    assert (wrong.missing, wrong.surplus) == (1, 5)
    assert wrong.examples is not None
    assert wrong.examples.column("id").to_pylist() == ["a", "b"]
