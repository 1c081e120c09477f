"""The MySQL sink beyond the public suites: its server, its accounts, and what it refuses."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.mysql.statements import format_insertions
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.secrets.urls import parse_url
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.components import free_port
from tests.support.mysql import MYSQL_PASSWORD, Mysql
from tests.support.sinks import write

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.string()), ("name", pa.string())])


@pytest.fixture
def database(mysql: Mysql) -> str:
    return mysql.database()


@pytest.fixture
def options(mysql: Mysql, database: str) -> dict[str, Any]:
    return {"url": mysql.url(database), "tls": False, "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("mysql", {**options, **more}, Path())


def rows(*ids: str, kind: str = "insert", **where: Any) -> ChangeBatch:
    found = [{"id": one, "name": "x", "_change_type": kind} for one in ids]
    return change_batch(SCHEMA, found, **{"last": True, **where})


def one(data_type: pa.DataType, value: Any) -> ChangeBatch:
    schema = pa.schema([("id", pa.int64()), ("value", data_type)])
    return change_batch(schema, [{"id": 1, "value": value}], last=True)


async def test_keys_are_compared_by_their_bytes(
    mysql: Mysql, database: str, options: dict[str, Any]
) -> None:
    ids = ["a", "A", "a ", "\u00e9", "e\u0301", 'q"\\', ""]
    await write(new(options), rows(*ids), rows("A", "a ", kind="delete", version=2))
    found = mysql.query(f"SELECT id FROM {database}.orders")
    assert sorted(id_ for (id_,) in found) == sorted(set(ids) - {"A", "a "})


async def test_no_limit_of_statements_is_the_server_s(
    mysql: Mysql, options: dict[str, Any]
) -> None:
    """A mirror has rows that it does not look at one by one, and reads all of them back."""
    limits = {"max_join_size": 1, "sql_safe_updates": 1, "sql_select_limit": 1}
    sink = new(options)
    try:
        for name, value in limits.items():
            mysql.query(f"SET GLOBAL {name} = {value}")
        changed = rows("c", "d", kind="delete", version=2)
        await write(sink, rows("a", "b", "c", "d"), changed)
        with sink.read_mirror("orders") as copy:
            found = [row["id"] for batch in copy.rows(SCHEMA) for row in batch.to_pylist()]
    finally:
        for name in limits:
            mysql.query(f"SET GLOBAL {name} = DEFAULT")
    assert sorted(found) == ["a", "b"]


@pytest.mark.parametrize("moment", ["made", "changed"])
async def test_a_crash_behind_a_change_of_the_table_is_made_good(
    mysql: Mysql, database: str, options: dict[str, Any], moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sink = new(options)
    first, more = rows("a"), pa.schema([*SCHEMA, ("more", pa.int64())])
    second = change_batch(more, [{"id": "b", "name": "y", "more": 7}], version=2, last=True)
    batches = [first, second] if moment == "changed" else [first]
    if moment == "changed":
        await write(sink, first)
    with monkeypatch.context() as patched:

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr("sinks.mysql.database.Mysql.begin", crash)
        await sink.aclose()
        patched.undo()
        await sink.open("orders")
        patched.setattr("sinks.mysql.database.Mysql.begin", crash)
        with pytest.raises(KeyboardInterrupt):
            await sink.write(batches[-1])
        await sink.aclose()
    await write(new(options), batches[-1])
    assert mysql.query(f"SELECT * FROM {database}.orders ORDER BY id") == (
        [("a", "x", None), ("b", "y", 7)] if moment == "changed" else [("a", "x")]
    )


async def test_columns_change_their_names_at_once(mysql: Mysql, database: str) -> None:
    from sinks.mysql.database import Mysql as Database
    from sinks.shared.merge import PHYSICAL, find_steps

    def schema(**physical: pa.DataType) -> pa.Schema:
        return pa.schema(
            pa.field(
                name.partition("_as_")[2], kind, metadata={PHYSICAL: name.partition("_as_")[0]}
            )
            for name, kind in physical.items()
        )

    old = schema(p1_as_id=pa.int64(), p2_as_a=pa.int8(), p3_as_b=pa.string(), p4_as_c=pa.int8())
    now = schema(p1_as_id=pa.int64(), p2_as_b=pa.int64(), p3_as_a=pa.string(), p5_as_d=pa.date32())
    at = Database(parse_url(mysql.url(database), ["mysql"]), tls=False, ca_file=None)
    at.connect()
    at.execute(at.format_creation("t", old, ["id"], "_seq"))
    at.append("t", pa.table({"id": [1], "a": [2], "b": ["three"], "c": [4]}))
    (statement,) = at.format_alterations("t", find_steps(old, now, keep=False), now)
    assert not at.is_done("t", now)
    at.execute(statement)
    assert at.is_done("t", now)
    at.close()
    found = mysql.query("SELECT id, b, a, d FROM t", database=database)
    assert found == [(1, 2, "three", None)]


@pytest.mark.parametrize(
    ("data_type", "value", "said"),
    [
        (pa.float64(), float("nan"), "'value' has nan, which MySQL can't hold"),
        (pa.float32(), float("inf"), "'value' has inf, which MySQL can't hold"),
        (pa.timestamp("us"), 2**60, "'value' has a time beyond the years"),
        (pa.decimal128(38, 35), Decimal("0.1"), "of which MySQL holds 30 decimals"),
    ],
)
async def test_what_it_can_not_hold_is_named(
    options: dict[str, Any], data_type: pa.DataType, value: Any, said: str
) -> None:
    with pytest.raises(SinkRejected, match=said):
        await write(new(options), one(data_type, value))


async def test_what_does_not_fit_is_refused(
    mysql: Mysql, database: str, options: dict[str, Any]
) -> None:
    with pytest.raises(SinkRejected, match="the column 'id' has a value of 1000 characters"):
        await write(new(options), rows("x" * 1000))
    large = change_batch(SCHEMA, [{"id": "a", "name": "x" * 20_000_000}], last=True)
    with pytest.raises(SinkRejected, match=r"takes 16777216; increase its max_allowed_packet"):
        await write(new(options), large)
    mysql.query(f"CREATE TABLE {database}.taken (id INT PRIMARY KEY)")
    with pytest.raises(SinkRejected, match=r"has a table 'taken' that no feed has made"):
        await new(options, table="taken").open("orders")


async def test_an_account_or_a_server_that_is_not_there(
    mysql: Mysql, options: dict[str, Any], database: str
) -> None:
    with pytest.raises(SinkRejected, match="Access denied for user 'tester'") as e:
        await new(options, url=mysql.url(database, password="not it")).open("orders")
    assert "not it" not in str(e.value)
    with pytest.raises(SinkRejected, match="Unknown database"):
        await new(options, url=mysql.url("nowhere")).open("orders")
    away = f"mysql://tester:{MYSQL_PASSWORD.replace(' ', '%20')[:4]}@127.0.0.1:{free_port()}/lake"
    with pytest.raises(TransientError, match=r"MySQL/127.0.0.1/lake: nothing listens there"):
        await new(options, url=away).open("orders")
    with pytest.raises(ConfigError, match="see the options 'tls' and 'ca_file'"):
        await new(options, tls=True).open("orders")


async def test_a_server_that_ends_is_waited_for() -> None:
    with Mysql(durable=True) as server:
        name = server.database()
        sink = new({"url": server.url(name), "tls": False, "key": ["id"]})
        await sink.open("orders")
        await sink.write(rows("a"))
        server.stop()
        with pytest.raises(TransientError):
            await sink.write(rows("b", version=2))
        server.start()
        assert await sink.open("orders") == rows("a").next_offset
        await sink.write(rows("b", version=2))
        await sink.aclose()
        assert server.query(f"SELECT id FROM {name}.orders ORDER BY id") == [("a",), ("b",)]


def test_statements_are_bounded() -> None:
    table = pa.table({"id": list(range(50_000)), "name": ["x" * 200] * 50_000})
    found = list(format_insertions(b"INSERT INTO t VALUES ", table, 1 << 20))
    assert max(map(len, found)) < 1 << 19
    assert sum(one.count(b"),(") + 1 for one in found) == 50_000


def test_options_are_checked(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'url' .* must be a mysql:// URL with a database") as e:
        new(options, url="mysql://secret@example.org")
    assert "secret" not in str(e.value)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match=r"pip install 'delta-tailer\[mysql\]'"):
        new(options)
