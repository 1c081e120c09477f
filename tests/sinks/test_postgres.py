"""The PostgreSQL sink beyond the public suites: its server, its accounts, and what it refuses."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TargetRefused, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.components import free_port
from tests.support.postgres import PASSWORD, Postgres
from tests.support.sinks import NAMED, rows, write

pytestmark = pytest.mark.anyio


@pytest.fixture
def schema(postgres: Postgres) -> str:
    return postgres.schema()


@pytest.fixture
def options(postgres: Postgres, schema: str) -> dict[str, Any]:
    return {"dsn": postgres.dsn(), "schema": schema, "key": ["id"]}


def new(options: dict[str, Any], **more: Any) -> Sink:
    return make_sink("postgres", {**options, **more}, Path())


def one(data_type: pa.DataType, value: Any, **where: Any) -> ChangeBatch:
    schema = pa.schema([("id", pa.int64()), ("value", data_type)])
    return change_batch(schema, [{"id": 1, "value": value}], **{"last": True, **where})


@pytest.mark.parametrize(
    ("data_type", "value", "said"),
    [
        (pa.string(), "a\0b", "version 1: the column 'value' has text with the character NUL"),
        (
            pa.list_(pa.string()),
            ["a\0b"],
            "version 1: the column 'value' has text with the character NUL",
        ),
        (pa.timestamp("us"), 2**60, "version 1: the column 'value' has a time beyond the years"),
        (pa.timestamp("us", "UTC"), -(2**60), "has a time beyond the years 1 to 9999; exclude it"),
        (pa.date32(), 2**30, "has a time beyond the years 1 to 9999; exclude it with"),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_refused_by_name(
    options: dict[str, Any], data_type: pa.DataType, value: Any, said: str
) -> None:
    with pytest.raises(SinkRejected, match=re.escape(said)):
        await write(new(options), one(data_type, value))


async def test_values_are_exact(postgres: Postgres, schema: str, options: dict[str, Any]) -> None:
    values: dict[pa.DataType, Sequence[Any]] = {
        pa.decimal128(38, 38): [Decimal(f"{sign}0.{'9' * 38}") for sign in ("", "-")],
        pa.decimal128(38, 0): [Decimal("9" * 38), Decimal(0)],
        pa.string(): ["", None],
        pa.binary(): [b"", None, b"\\x00", bytes(range(256))],
        pa.float64(): [float("inf"), 5e-324, -0.0, 1.7976931348623157e308],
        pa.timestamp("us"): [dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
        pa.struct({"b": pa.binary()}): [{"b": b"\xff"}, {"b": None}, None],
    }
    for number, (data_type, given) in enumerate(values.items()):
        schema_ = pa.schema([("id", pa.int64()), ("value", data_type)])
        found = [{"id": i, "value": value} for i, value in enumerate(given)]
        await write(new(options, table=f"t{number}"), change_batch(schema_, found, last=True))
        got = postgres.query(f"SELECT value FROM {schema}.t{number} ORDER BY id")
        wanted = given if number < 6 else [{"b": "/w=="}, {"b": None}, None]
        assert [row[0] for row in got] == list(wanted)


async def test_a_statement_of_a_feed_is_not_cut_off_by_the_server(
    postgres: Postgres, schema: str, options: dict[str, Any]
) -> None:
    limited = {**options, "dsn": postgres.dsn(options="-c statement_timeout=3s")}
    await write(new(limited), one(pa.int64(), 1))
    postgres.query(
        f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql "
        "AS $$ BEGIN PERFORM pg_sleep(4); RETURN NEW; END $$; "
        f"CREATE TRIGGER slow BEFORE INSERT ON {schema}.orders FOR EACH ROW "
        f"EXECUTE FUNCTION {schema}.slow()"
    )
    update = [{"id": 1, "value": value, "_change_type": kind}
              for value, kind in ((1, "update_preimage"), (2, "update_postimage"))]  # fmt: skip
    changed = pa.schema({"id": pa.int64(), "value": pa.int64()})
    await write(new(limited), change_batch(changed, update, version=2, last=True))
    assert postgres.query(f"SELECT id, value FROM {schema}.orders") == [(1, 2)]


async def test_a_log_is_in_order(postgres: Postgres, schema: str, options: dict[str, Any]) -> None:
    sink = new(options, mode="log", key=[])
    await write(sink, rows((2, "b"), (1, "a")), rows((1, "a"), kind="delete", version=2))
    found = postgres.query(f"SELECT id, _change_type FROM {schema}.orders ORDER BY _seq")
    assert found == [(2, "insert"), (1, "insert"), (1, "delete")]


async def test_a_table_that_the_operator_makes(
    postgres: Postgres, schema: str, options: dict[str, Any]
) -> None:
    manual = {"create": False, "evolve": False}
    with pytest.raises(SinkRejected, match="option 'create' is false; run: CREATE TABLE") as e:
        await write(new(options, **manual), rows((1, "a")))
    postgres.query(str(e.value).partition("run: ")[2])
    await write(new(options, **manual), rows((1, "a")))
    with pytest.raises(SinkRejected, match=r"the copy has already.*'id': 1"):
        await write(new(options, **manual), rows((1, "a"), version=2))
    wider = pa.schema([*NAMED, ("country", pa.string())])
    batch = change_batch(wider, [{"id": 2, "country": "DE"}], version=2, last=True)
    with pytest.raises(SinkRejected, match="option 'evolve' is false; run: ALTER TABLE") as e:
        await write(new(options, **manual), batch)
    postgres.query(str(e.value).partition("run: ")[2])
    await write(new(options, **manual), batch)
    assert postgres.query(f"SELECT id, country FROM {schema}.orders ORDER BY id") == [
        (1, None), (2, "DE"),
    ]  # fmt: skip


async def test_what_depends_on_the_copy_is_named(
    postgres: Postgres, schema: str, options: dict[str, Any]
) -> None:
    """It would not pass by itself."""
    await write(new(options), rows((1, "a")))
    postgres.query(f"CREATE VIEW {schema}.names AS SELECT name FROM {schema}.orders")
    lacking = pa.schema([("id", pa.int64())])
    batch = change_batch(lacking, [{"id": 2}], version=2, last=True)
    said = rf"column name .*other objects depend on it \(view {schema}.names depends .*; drop what"
    with pytest.raises(TargetRefused, match=said):
        await write(new(options), batch)
    with pytest.raises(TargetRefused, match=r"cannot drop table .*; drop what depends on it"):
        await new(options).set_offset("orders", None)
    postgres.query(f"DROP VIEW {schema}.names")
    await write(new(options), batch)


async def test_a_target_that_somebody_else_has_or_changes(
    postgres: Postgres, schema: str, options: dict[str, Any]
) -> None:
    postgres.query(f"CREATE TABLE {schema}.orders AS SELECT 1 AS id")
    with pytest.raises(SinkRejected, match="has a table 'orders' that no feed has made"):
        await new(options).open("orders")
    with pytest.raises(SinkRejected, match="has a table 'orders' that is not empty"):
        await new(options, create=False).open("orders")
    await write(new(options, table="mine"), rows((1, "a"), (2, "b")))
    with pytest.raises(SinkRejected, match="'mine' is written by the feed 'orders'; name another"):
        await new(options, table="mine").open("customers")
    postgres.query(f"DELETE FROM {schema}.mine WHERE id = 2")
    with pytest.raises(SinkRejected, match=r"that the copy lacks; .*{'id': 2}; `tailer verify"):
        await write(new(options, table="mine"), rows((2, "b"), kind="delete", version=2))
    postgres.query(f"ALTER TABLE {schema}.mine DROP COLUMN name")
    with pytest.raises(SinkRejected, match='column "name" of relation "mine" does not exist'):
        await write(new(options, table="mine"), rows((3, "c"), version=2))
    postgres.query(f"DROP TABLE {schema}.mine")
    with pytest.raises(SinkRejected, match="'mine' was dropped; `tailer offsets reset` creates it"):
        await new(options, table="mine").open("orders")


async def test_a_reset_drops_the_table_with_its_offset(
    postgres: Postgres, schema: str, options: dict[str, Any]
) -> None:
    sink = new(options)
    assert await sink.look("orders") is None
    await write(sink, rows((1, "a")))
    await sink.set_offset("orders", Offset(7))
    assert await sink.look("orders") == Offset(7)
    await sink.set_offset("orders", None)
    assert postgres.query(f"SELECT * FROM {schema}._delta_tailer") == []
    await write(sink, rows((1, "a")))


async def test_an_account_or_a_server_that_is_not_there(
    postgres: Postgres, options: dict[str, Any]
) -> None:
    wrong = postgres.dsn(password="not it at all")
    with pytest.raises(SinkRejected, match="password authentication failed for user") as e:
        await new(options, dsn=wrong).open("orders")
    assert "not it at all" not in str(e.value)
    with pytest.raises(SinkRejected, match='database "no" does not exist; check the option'):
        await new(options, dsn=postgres.dsn(dbname="no")).open("orders")
    with pytest.raises(TransientError, match="nothing listens there"):
        await new(options, dsn=postgres.dsn(port=str(free_port()))).open("orders")
    with pytest.raises(SinkRejected, match=r"schema .*missing.* does not exist"):
        await new(options, schema="missing").open("orders")


def test_options_are_checked_and_secrets_not_shown(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'keys' of sink 'postgres' is not known .did you mean"):
        new(options, keys=["id"])
    for dsn in (f"host={PASSWORD}", f"postgresql://tester:{PASSWORD}zz@127.0.0.1/x", 4711):
        with pytest.raises(ConfigError, match="option 'dsn' of sink 'postgres'") as e:
            new(options, dsn=dsn)
        assert PASSWORD not in str(e.value)
        assert "4711" not in str(e.value)


def test_a_missing_driver_is_named_with_what_installs_it(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'delta-tailer\[postgres\]'"):
        new(options)


async def test_a_server_that_ends_is_waited_for() -> None:
    with Postgres() as server:
        options = {"dsn": server.dsn(), "key": ["id"]}
        sink = new(options)
        await sink.open("orders")
        await sink.write(rows((1, "a")))
        server.stop()
        with pytest.raises(TransientError):
            await sink.write(rows((2, "b"), version=2))
        server.start()
        assert await sink.open("orders") == rows((1, "a")).next_offset
        await sink.write(rows((2, "b"), version=2))
        await sink.aclose()
        assert server.query("SELECT count(*) FROM orders") == [(2,)]
