"""The order `resnapshot` to the feed of a copy: what differs within its condition is set right,
rows that the table does not have among it."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinks.sql.sink import SqlSink
from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble_feed
from tailer.errors import SinkRejected
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.run import Feed, run_feed
from tailer.shape.expressions import parse_condition
from tests.support.copies import Copy, make_copy_of
from tests.support.extent import rest_slow
from tests.support.iceberg import Lake
from tests.support.sql_targets import SQL_SINKS, sql_target
from tests.verify.test_repair import NUMBERS, Damaged, damaged

KINDS = (*SQL_SINKS, "delta", "iceberg")
SQLITE = 'type = "sqlite"\npath = "copy.sqlite"\nkey = ["id"]'
PLACES = pa.schema([("id", pa.int64()), ("country", pa.string()), ("n", pa.int64())])


def ordered(copy: Copy, last: int, *wheres: str | None) -> Feed:
    """The feed up to a version, with orders to read the table again."""
    loaded = load_config(copy.config)
    feed = replace(assemble_feed(loaded, loaded.feeds["orders"]), last=last)
    feed.orders.resnapshots += [
        ResnapshotRequest(parse_condition(w) if w else None) for w in wheres
    ]
    return feed


def resnapshot(copy: Copy, last: int, *wheres: str | None) -> None:
    """Run the feed up to a version, with these orders."""
    feed = ordered(copy, last, *wheres or (None,))
    anyio.run(run_feed, feed)
    assert feed.orders.resnapshots == []


def copied(copy: Copy, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of the copy."""
    with copy.make_sink().read_mirror("orders") as mirror:
        return [row for batch in mirror.rows(schema) for row in batch.to_pylist()]


@pytest.fixture(params=KINDS)
def make_copy(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[pa.Schema], Damaged]:
    return partial(damaged, str(request.param), tmp_path, request)


def test_rows_too_many_are_removed_and_the_others_set_right(
    make_copy: Callable[[pa.Schema], Damaged],
) -> None:
    copy = make_copy(NUMBERS)
    copy.table.insert([{"id": n, "n": 0} for n in range(8)])
    copy.deliver(1)
    copy.table.insert([{"id": 8, "n": 0}])
    copy.update("id", "70", "id = 3")
    copy.delete("id = 1")
    copy.update("n", "-1", "id = 5")
    if not isinstance(copy.make_sink(), SqlSink):
        assert copy.verify("--repair") == 0  # their feeds begin with no copy that was changed
        copy.move_back(1)
        resnapshot(copy, 0)
        assert copied(copy, NUMBERS) == []
        copy.move_back(2)
    resnapshot(copy, 2)
    found = sorted(copied(copy, NUMBERS), key=lambda row: row["id"])
    assert found == [{"id": n, "n": 0} for n in range(9)]
    assert copy.verify() == 0


def test_a_condition_leaves_all_other_rows_as_they_are(tmp_path: Path) -> None:
    copy = damaged("sqlite", tmp_path, None, PLACES)  # type: ignore[arg-type]  # a file asks for no server
    rows = [{"id": n, "country": ("DE", "FR", None)[n % 3], "n": n} for n in range(9)]
    copy.table.insert(rows)
    copy.deliver(1)
    copy.update("n", "-1", "id IN (0, 1, 2)")
    copy.update("country", "'DE'", "id = 4")  # the table's row does not meet the condition
    copy.update("country", "'FR'", "id = 3")  # the copy's row does not
    copy.update("id", "60", "id = 6")
    copy.update("id", "70", "id = 7")
    resnapshot(copy, 1, "country = 'DE'")
    found = {row["id"]: (row["country"], row["n"]) for row in copied(copy, PLACES)}
    assert found == {
        0: ("DE", 0), 1: ("FR", -1), 2: (None, -1), 3: ("DE", 3), 4: ("FR", 4), 5: (None, 5),
        6: ("DE", 6), 8: (None, 8), 70: ("FR", 7),
    }  # fmt: skip


@pytest.mark.parametrize(
    "feed",
    ['select = ["id", "n"]', 'select = ["id", "lower(country) AS country", "n"]',
     'mask = {country = "redact"}', 'select = ["* EXCLUDE (country)"]'],
)  # fmt: skip
def test_a_condition_that_the_copy_can_not_be_asked_is_about_all_of_it(
    tmp_path: Path, feed: str
) -> None:
    """No row that belongs is removed, and none that does not stays."""
    copy = make_copy_of(tmp_path, SQLITE, PLACES, f'from = "snapshot"\n{feed}')
    copy.table.create()
    copy.table.insert([{"id": n, "country": "DE" if n % 2 else "FR", "n": n} for n in range(6)])
    copy.deliver(1)
    rows = copied(copy, PLACES if "country" in feed and "EXCLUDE" not in feed else NUMBERS)
    copy.table.insert([{"id": n, "country": "FR", "n": n} for n in (10, 11)])
    copy.deliver(2)
    copy.move_back(2)
    resnapshot(copy, 1, "country = 'DE'")
    schema = pa.schema([PLACES.field(name) for name in rows[0]])
    assert copied(copy, schema) == rows


def test_a_condition_that_fails_for_a_row_of_the_copy_is_met_by_it(tmp_path: Path) -> None:
    copy = damaged("sqlite", tmp_path, None, PLACES)  # type: ignore[arg-type]  # a file
    copy.table.insert([{"id": n, "country": str(n), "n": n} for n in range(4)])
    copy.deliver(1)
    copy.update("id", "20", "id = 2")
    copy.update("country", "'x'", "id = 20")
    resnapshot(copy, 1, "country::int > 1")
    found = sorted((row["id"], row["country"]) for row in copied(copy, PLACES))
    assert found == [(n, str(n)) for n in range(4)]


def test_orders_wait_in_line_and_an_exact_copy_is_not_written(tmp_path: Path) -> None:
    copy = damaged("sqlite", tmp_path, None, NUMBERS)  # type: ignore[arg-type]  # a file
    copy.table.insert([{"id": n, "n": 0} for n in range(4)])
    copy.deliver(1)
    copy.update("n", "1", "id = 1")
    feed = ordered(copy, 1, "id = 0", "id = 1", None)
    said: list[int] = []
    written = feed.sink.announce

    async def announce(notice: Any) -> None:
        said.append(notice.details["rows"])
        await written(notice)

    feed.sink.announce = announce  # type: ignore[method-assign]  # and its own thereafter
    anyio.run(run_feed, feed)
    assert said == [0, 1, 0]


def test_a_row_that_the_copy_does_not_take_ends_the_feed_and_keeps_the_order(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.float64())])
    copy = make_copy_of(tmp_path, SQLITE, schema, 'from = "snapshot"\nwhere = "NOT isnan(n)"')
    copy.table.create()
    copy.table.insert([{"id": 1, "n": 1.0}, {"id": 2, "n": float("nan")}])
    copy.deliver(1)
    copy.config.write_text(copy.config.read_text().replace('where = "NOT isnan(n)"\n', ""))
    feed = ordered(copy, 1, None)
    with pytest.raises(SinkRejected, match="could not write 1 rows: version 1: the column 'n' has"):
        anyio.run(run_feed, feed)
    assert len(feed.orders.resnapshots) == 1


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("aAäÄ  ß\t"),
    max_size=6,
)
MOMENTS = st.builds(dt.datetime.combine, st.dates(), st.times())
#: The values of keys, by their types.
KEY_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "decimal": (
        pa.decimal128(20, 3),
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    ),
    "text": (pa.string(), TEXTS),
    "binary": (pa.binary(), st.binary(max_size=6)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        MOMENTS.map(lambda at: at.replace(tzinfo=dt.UTC)),
    ),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS),
}


def copy_by(kind: str, folder: Path, request: pytest.FixtureRequest, schema: pa.Schema) -> Copy:
    """A created table, and a copy by all columns but the last two."""
    key = schema.names[:-2]
    if kind == "delta":
        options = f'type = "delta"\npath = "copy"\nkey = {key}'
    elif kind == "iceberg":
        options = Lake(folder / "lake").toml(key=key)
    else:
        options = sql_target(kind, folder, request).toml(key=key)
    copy = make_copy_of(folder, options, schema)
    copy.table.create()
    return copy


@pytest.mark.parametrize("name", KEY_VALUES)
@pytest.mark.parametrize("kind", rest_slow(KINDS, "sqlite", "postgres"))
def test_what_is_removed_is_what_the_table_does_not_have(
    kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Of all types of keys, alone and beside another key column."""
    data_type, values = KEY_VALUES[name]

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        second = data.draw(st.sampled_from(["alone", "text", "int64"]))
        other, others = KEY_VALUES.get(second, (None, st.none()))
        columns = [("k", data_type), *([("l", other)] if other is not None else [])]
        schema = pa.schema([*columns, ("i", pa.int64()), ("n", pa.int64())])
        keys = data.draw(st.lists(st.tuples(values, others), min_size=2, max_size=9, unique=True))
        numbers = st.none() | st.integers(0, 3)
        rows = [{"k": k, "l": o, "i": i, "n": data.draw(numbers)} for i, (k, o) in enumerate(keys)]
        rows = [{field: row[field] for field in schema.names} for row in rows]
        kept = data.draw(st.integers(1, len(rows)))
        where = data.draw(st.sampled_from([None, "n > 1", "n IS NULL", "i % 2 = 0"]))
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_by(kind, Path(folder), request, schema)
            copy.table.insert(rows[:kept])
            copy.table.insert(rows[kept:] or [])
            copy.deliver(2)
            copy.move_back(2)
            resnapshot(copy, 1, where)
            found = sorted(row["i"] for row in copied(copy, schema))
        meets: dict[str | None, Callable[[dict[str, Any]], bool]] = {
            None: lambda _: True,
            "n > 1": lambda row: (row["n"] or 0) > 1,
            "n IS NULL": lambda row: row["n"] is None,
            "i % 2 = 0": lambda row: row["i"] % 2 == 0,
        }
        right = [row["i"] for row in rows[:kept] + [r for r in rows[kept:] if not meets[where](r)]]
        assert found == right

    check()


@pytest.mark.needs("clickhouse")
@pytest.mark.parametrize("kind", ["bucket", "clickhouse", "redis", "opensearch", "elasticsearch"])
def test_a_copy_that_can_not_be_read_while_it_is_written_is_repaired_between_versions(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By any condition: such a copy has its values as JSON, or as other types."""
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url()
        lines = {"type": kind, "url": url, "mode": "mirror", "prefix": f"t{uuid.uuid4().hex}:"}
    elif kind == "bucket":
        url = request.getfixturevalue("nats_server").url()
        lines = {"type": "nats", "servers": [url], "mode": "mirror", "bucket": uuid.uuid4().hex}
    elif kind in ("opensearch", "elasticsearch"):
        url = request.getfixturevalue(kind).url
        lines = {"type": "search", "url": url, "index": f"t{uuid.uuid4().hex}"}
    else:
        server = request.getfixturevalue("clickhouse")
        lines = {"type": kind, "url": server.url, "database": server.database()}
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
    copy = make_copy_of(tmp_path, f'{options}\nkey = ["id"]', NUMBERS)
    copy.table.create()
    copy.table.insert([{"id": n, "n": 0} for n in range(5)])
    copy.table.insert([{"id": n, "n": 1} for n in range(5, 9)])
    copy.deliver(2)
    copy.move_back(2)
    resnapshot(copy, 1, "n = 1")
    assert copy.verify() == 0
    copy.deliver(2)
    resnapshot(copy, 2)
    assert copy.verify() == 0


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.3, 0.6])
def test_a_repair_that_is_cancelled_ends_and_leaves_its_order(
    tmp_path: Path, seconds: float
) -> None:
    copy = damaged("sqlite", tmp_path, None, NUMBERS)  # type: ignore[arg-type]  # a file
    copy.table.insert([{"id": n, "n": 0} for n in range(100_000)])
    copy.deliver(1)
    copy.update("n", "1", "id % 2 = 0")
    feed = replace(ordered(copy, 1, None), last=None)

    async def run() -> bool:
        with anyio.move_on_after(seconds) as ended:
            await run_feed(feed)
        return ended.cancelled_caught

    assert anyio.run(run)
    if seconds < 0.1:
        assert len(feed.orders.resnapshots) == 1
    resnapshot(copy, 1)
    assert copy.verify() == 0
