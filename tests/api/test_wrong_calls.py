"""Wrong calls: each is one sentence, at once where the table need not be asked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

import tailer
from tailer.errors import ConfigError, TailerError
from tailer.testing.table import TableBuilder

READERS: list[Callable[..., Any]] = [tailer.read, tailer.tail]

#: Options that are wrong for every table, and what is said.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"start": -1}, "start is -1, and must be a version or a time"),
    ({"start": 1.5}, "start is 1.5"),
    ({"start": True}, "start is True"),
    ({"start": "yesterday"}, "start is 'yesterday'"),
    ({"start": dt.time(12)}, "start is datetime.time"),
    ({"start": 10**20}, "start is 1000"),
    ({"start": []}, r"start is \[\]"),
    ({"end": -1}, "end is -1"),
    ({"end": "soon"}, "end is 'soon'"),
    ({"end": 1.0}, "end is 1.0"),
    ({"after": 7}, "after is 7, and must be a Cursor, the offset of a batch, or its text"),
    ({"after": "orders.cursor"}, "after is 'orders.cursor'"),
    ({"after": '{"format": 99}'}, "after is"),
    ({"after": {"version": 1}}, "after is"),
    ({"after": b"{}"}, "after is"),
    ({"where": 5}, "'where' of tailer.* is 5, and must be a condition"),
    ({"where": "price >"}, "where "),
    ({"where": "now() > placed_at"}, "where .*now"),
    ({"where": "id in (select 1)"}, "where "),
    ({"where": ["id > 1"]}, "'where' of tailer"),
    ({"select": 5}, "'select' of tailer.* is 5"),
    ({"select": []}, r"'select' of tailer.* is \[\]"),
    ({"select": " "}, "'select' of tailer.* is ' '"),
    ({"where": ""}, "'where' of tailer.* is ''"),
    ({"select": [1]}, r"'select' of tailer.* is \[1\]"),
    ({"select": "random() as r"}, "select .*random"),
    ({"select": "id, id"}, "select "),
    ({"select": "sum(id) as s"}, "select .*sum"),
    ({"select": {"id": "x"}.items()}, "'select' of tailer"),
    ({"key": 5}, "'key' of tailer.* is 5"),
    ({"key": [5]}, r"'key' of tailer.* is \[5\]"),
    ({"change_source": "cdc"}, "must be one of auto, cdf, derived"),
    ({"change_source": None, "with_ids": "yes"}, "'with_ids' of tailer.* is 'yes'"),
    ({"own_prefix": "9"}, "letters, digits and `_`, not beginning with a digit"),
    ({"own_prefix": ""}, "letters, digits and `_`, not beginning with a digit"),
    ({"writer_timezone": "Mars/Phobos"}, "an IANA time zone name"),
    ({"writer_timezone": 1}, "an IANA time zone name"),
    ({"page_checksums": 1}, "must be true or false"),
    ({"storage_options": "region=x"}, "storage_options must be a mapping"),
    ({"storage_options": [("a", 1)]}, "storage_options must be a mapping"),
    ({"table": ""}, "the table is '', and must be a path or an address"),
    ({"table": None}, "the table is None"),
    ({"table": b"orders"}, "the table is b'orders'"),
    ({"table": 5}, "the table is 5"),
]

#: Those that are found out when the table is asked.
LATE: list[tuple[dict[str, Any], str]] = [
    ({"table": "nowhere://orders"}, "no store for 'nowhere://orders'"),
    ({"table": "/no/such/orders"}, "/no/such/orders"),
    (
        {"table": "s3://b/t", "storage_options": {"region_": "x"}},
        "'region_'.*did you mean 'region'",
    ),
    ({"table": "s3://b/t", "storage_options": {"access_key_id": "x"}}, "go together"),
    ({"table": "s3://b/t", "storage_options": {"endpoint_url": "x"}}, "http://host or https://"),
    ({"table": "s3://"}, "s3://"),
    ({"storage_options": {"region": "x"}}, "region"),
    ({"where": "prize > 1"}, "prize.*price"),
    ({"where": "id + 1"}, "id"),
    ({"select": "prize"}, "prize"),
    ({"select": "upper(id) as id, nothing"}, "nothing"),
    ({"key": ["nothing"]}, "has no column 'nothing'"),
    ({"start": 99}, "99"),
    ({"start": 3, "end": 1}, "ends at version 1, before it starts at 3"),
]


@pytest.mark.parametrize("function", READERS)
@pytest.mark.parametrize(("words", "says"), WRONG, ids=[str(words)[:40] for words, _ in WRONG])
def test_a_wrong_argument_is_refused_at_once(
    table: TableBuilder, function: Callable[..., Any], words: dict[str, Any], says: str
) -> None:
    given = {"table": table.folder, **words}
    with pytest.raises(ConfigError, match=says) as raised:
        function(given.pop("table"), **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("function", READERS)
@pytest.mark.parametrize(("words", "says"), LATE, ids=[str(words)[:40] for words, _ in LATE])
def test_what_the_table_is_asked_about_is_said_at_the_first_use(
    table: TableBuilder, function: Callable[..., Any], words: dict[str, Any], says: str
) -> None:
    given = {"table": table.folder, **words}
    with pytest.raises(TailerError, match=says) as raised:
        next(iter(function(given.pop("table"), **given)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("limit", [-1, "2", 1.0, True])
def test_a_limit_is_a_whole_number(table: TableBuilder, limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit is"):
        tailer.history(table.folder, limit)


@pytest.mark.parametrize("version", [-1, 1.5, "newest", "latest"])
def test_a_snapshot_is_of_a_version_or_a_time(table: TableBuilder, version: Any) -> None:
    with pytest.raises(ConfigError, match="version is"):
        tailer.snapshot(table.folder, version)


def test_an_unknown_option_is_python_s_own_error(table: TableBuilder) -> None:
    with pytest.raises(TypeError, match="where_"):
        tailer.read(table.folder, where_="id > 1")  # type: ignore[call-arg]


def test_start_and_an_offset_exclude_each_other(table: TableBuilder) -> None:
    at = tailer.changes.Offset(2)
    with pytest.raises(ConfigError, match="an offset says where to start"):
        tailer.read(table.folder, start=1, after=at)


def test_a_closed_iterator_gives_nothing_more(table: TableBuilder) -> None:
    batches = iter(tailer.read(table.folder))
    assert len(next(batches))
    batches.close()  # type: ignore[attr-defined]
    assert list(batches) == []
