"""Copies whose rows have versions, by which a write that comes late changes nothing: those of
search engines and ClickHouse."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tailer.errors import ConfigError, SinkRejected, TargetRefused
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch, change_span
from tests.support.clickhouse import ClickHouse
from tests.support.search_engine import SearchEngine
from tests.support.sinks import NAMED, named, rows, write

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("one_attempt"),
    pytest.mark.needs("clickhouse"),
]


@dataclass(frozen=True, slots=True)
class Copy:
    """A target, and the names that it has by their ids. ``progress`` is the attribute of the sink
    that asks whether the process is still the one that writes."""

    options: dict[str, Any]
    names: Callable[[], dict[int, str]]
    progress: str

    def new(self) -> Sink:
        """Return a sink of it."""
        options = dict(self.options)
        return make_sink(options.pop("type"), options, Path())


def of_search(server: SearchEngine) -> Copy:
    index = f"t{uuid.uuid4().hex}"
    options = {"type": "search", "url": server.url, "index": index, "key": ["id"]}

    def names() -> dict[int, str]:
        return {row["id"]: row["name"] for row in server.documents(index).values()}

    return Copy(options, names, "_document")


def of_clickhouse(server: ClickHouse) -> Copy:
    table, database = f"t{uuid.uuid4().hex}", server.database()
    options = {
        "type": "clickhouse", "url": server.url, "database": database, "table": table,
        "key": ["id"],
    }  # fmt: skip

    def names() -> dict[int, str]:
        found = server.rows(f"SELECT id, name FROM {database}.{table} FINAL")
        return {row["id"]: row["name"] for row in found}

    return Copy(options, names, "_progress")


@pytest.fixture(params=["opensearch", "elasticsearch", "clickhouse"])
def copy(request: pytest.FixtureRequest) -> Copy:
    if request.param != "clickhouse":
        return of_search(request.getfixturevalue(request.param))
    return of_clickhouse(request.getfixturevalue("clickhouse"))


async def test_what_comes_late_changes_nothing(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still sends its rows behind the back of its successor."""
    old, successor = copy.new(), copy.new()
    await write(old, named(count=3))
    await old.open("orders")

    async def pass_by() -> None:
        pass

    monkeypatch.setattr(getattr(old, copy.progress), "confirm", pass_by)
    later = rows((0, "new"), kind="update_postimage", version=3)
    gone = rows((1, "name 1"), kind="delete", version=4)
    await write(successor, later, gone)
    late = change_span(
        NAMED,
        [[[
            {"id": 0, "name": "late", "_change_type": "update_postimage"},
            {"id": 1, "name": "late", "_change_type": "update_postimage"},
            {"id": 2, "name": "name 2", "_change_type": "delete"},
        ]]], version=2,
    )  # fmt: skip
    with suppress(ConfigError):  # its offset is not stored, or counts for nothing
        await old.write(late)
    await old.aclose()
    assert copy.names() == {0: "new"}
    assert await copy.new().look("orders") == gone.next_offset


async def test_a_version_that_moves_a_key_to_another_row(copy: Copy) -> None:
    """Whichever of the two comes first, also in pieces."""
    moved = [
        {"id": 1, "name": "of 2", "_change_type": "insert"},
        {"id": 1, "name": "of 1", "_change_type": "delete"},
    ]
    await write(copy.new(), rows((1, "of 1")))
    batch = change_batch(NAMED, moved, version=2, last=True)
    await write(copy.new(), batch.slice(0, 1), batch.slice(1, 2))
    assert copy.names() == {1: "of 2"}


async def test_an_offset_that_is_set_back_is_written_again(copy: Copy) -> None:
    first, second = rows((1, "a")), rows((1, "b"), kind="update_postimage", version=2)
    third = rows((1, "b"), kind="delete", version=3)
    await write(copy.new(), first, second, third)
    await copy.new().set_offset("orders", first.offset)
    assert await copy.new().look("orders") == first.offset
    await write(copy.new(), first, second)
    assert copy.names() == {1: "b"}


@pytest.mark.parametrize("found", [[(8, "a"), (8, "b")], [(None, "a")]], ids=["twice", "null"])
async def test_rows_that_the_key_does_not_identify_are_refused(
    copy: Copy, found: list[tuple[Any, str]]
) -> None:
    sink = copy.new()
    await sink.open("orders")
    with pytest.raises(SinkRejected, match=r"8|null"):
        await sink.write(rows(*found))
    await sink.aclose()


async def test_a_snapshot_is_not_written_over_a_copy(copy: Copy) -> None:
    """Rows that were deleted meanwhile would stay."""
    first = named(count=3)
    await write(copy.new(), first)
    at = structs.replace(first.next_offset, snapshot=True)
    with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
        await copy.new().set_offset("orders", at)
    sink = copy.new()
    await sink.open("orders")
    again = named(count=2, version=5)
    begins = structs.replace(again.offset, snapshot=True)
    ends = structs.replace(again.next_offset, snapshot=True)
    with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
        await sink.write(structs.replace(again, offset=begins, next_offset=ends))
    await sink.aclose()
