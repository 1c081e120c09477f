"""Topics in Debezium's envelope, read by Kafka Connect: Debezium's JDBC sink keeps a copy of the
table in PostgreSQL. The recipe is docs/connect.md."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import psycopg.conninfo
import psycopg.rows
import pyarrow as pa
import pytest
from psycopg import sql

from tailer.testing.table import TableBuilder
from tests.kafka.broker import Broker
from tests.kafka.deliveries import deliver, snapshot_rows
from tests.kafka.sinks import fresh, made
from tests.support.connect import Connect
from tests.support.postgres import Postgres
from tests.support.registry import Registry
from tests.support.source import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.needs("connect"), pytest.mark.timeout(300)]

#: The sink's options in docs/connect.md.
JSON: dict[str, Any] = {"format": "debezium", "key": ["id"], "schema": True}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(20, 3)),
        ("weight", pa.float64()), ("small", pa.int16()), ("open", pa.bool_()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")),
        ("photo", pa.binary()),
    ]
)  # fmt: skip


def row(key: int, name: str | None = "a", **more: Any) -> dict[str, Any]:
    """A row whose values are at the edges of their types, or null in each third."""
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    values: dict[str, Any] = {
        "price": Decimal("-12345678901234567.125"), "weight": 0.1 + key, "small": -32768,
        "open": key % 2 == 0, "day": dt.date(1900, 3, 1), "at": at,
        "wall": at.replace(year=2026, tzinfo=None), "photo": b"\0\xff",
    }  # fmt: skip
    if key % 3 == 0:
        values = dict.fromkeys(values)
    return {"id": key, "name": name, **values, **more}


def changed_table(folder: Path) -> TableBuilder:
    """Inserts, updates, deletes, a change of a key, and a new column with values."""
    table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
    table.create()
    first = table.add([row(i) for i in range(1, 7)])
    table.commit(first)
    pre, post = {"_change_type": "update_preimage"}, {"_change_type": "update_postimage"}
    images = [
        row(1) | pre, row(1, "é\n\"'") | post, row(2) | pre, row(2, None) | post,
        row(4) | {"_change_type": "delete"}, row(5) | pre, row(50) | post,
    ]  # fmt: skip
    kept = [row(1, "é\n\"'"), row(2, None), row(3), row(50), row(6)]
    table.commit(table.remove(first), table.add(kept), table.cdc(images))
    table.schema = SCHEMA.append(pa.field("note", pa.string()))
    table.commit(table.metadata(), table.add([row(7, note="new"), row(8, note=None)]))
    return table


@pytest.fixture(scope="module")
def connect(kafka: Broker) -> Iterator[Connect]:
    """One worker for the tests of this file."""
    with Connect(kafka.bootstrap) as worker:
        yield worker


def connected(connect: Connect, postgres: Postgres, topic: str, **settings: str) -> None:
    """Let the connector of docs/connect.md copy a topic into a table of its name."""
    page = (ROOT / "docs" / "connect.md").read_text()
    recipe = json.loads(page.partition("```json\n")[2].partition("```")[0])
    where = psycopg.conninfo.conninfo_to_dict(postgres.dsn())
    assert recipe["name"] == recipe["config"]["topics"] == "orders"
    here = {
        "topics": topic,
        "connection.url": f"jdbc:postgresql://{where['host']}:{where['port']}/postgres",
        "connection.username": str(where["user"]),
        "connection.password": str(where["password"]),
    }
    assert set(here) < set(recipe["config"])
    connect.run_connector(topic, {**recipe["config"], **here, **settings})


def copy_of(postgres: Postgres, topic: str) -> dict[int, dict[str, Any]]:
    """The rows of a copy by their key; none before there is a table."""
    with psycopg.connect(postgres.dsn(options="-c TimeZone=UTC")) as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        cursor.execute("SELECT to_regclass(%s) AS found", [f'"{topic}"'])
        if not (cursor.fetchone() or {}).get("found"):
            return {}
        cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(topic)))
        return {found["id"]: dict(found) for found in cursor}


def assert_copied(
    connect: Connect, postgres: Postgres, topic: str, wanted: dict[int, dict[str, Any]]
) -> None:
    assert len(wanted) == 7

    def is_same() -> bool:
        assert connect.state(topic) == "RUNNING", connect.trace(topic)
        return copy_of(postgres, topic) == wanted

    eventually(is_same, why=lambda: (copy_of(postgres, topic), wanted))


def rows_of(table: TableBuilder) -> dict[int, dict[str, Any]]:
    """The rows of the newest snapshot by their key."""
    return {found["id"]: found for found in snapshot_rows(table)}


def microseconds(at: dt.datetime | None) -> int | None:
    """The time since 1970 of what may have no time zone."""
    zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (
        None if at is None else (at.replace(tzinfo=dt.UTC) - zero) // dt.timedelta(microseconds=1)
    )


@pytest.mark.parametrize("tombstones", [False, True])
def test_a_copy_by_json_with_schemas(
    connect: Connect, kafka: Broker, postgres: Postgres, tmp_path: Path, *, tombstones: bool
) -> None:
    table, topic = changed_table(tmp_path), fresh()
    anyio.run(deliver, table, made(kafka.bootstrap, topic, **JSON, tombstones=tombstones))
    connected(connect, postgres, topic)
    assert_copied(connect, postgres, topic, rows_of(table))


@pytest.mark.parametrize("envelope", ["debezium", "upsert"])
def test_a_copy_by_avro(
    connect: Connect, kafka: Broker, postgres: Postgres, registry: Registry, tmp_path: Path,
    envelope: str,
) -> None:  # fmt: skip
    table, topic = changed_table(tmp_path), fresh()
    options = {"format": "avro", "envelope": envelope, "key": ["id"]}
    sink = made(kafka.bootstrap, topic, **options, registry={"url": registry.url})
    anyio.run(deliver, table, sink)
    converter = {"": "io.apicurio.registry.utils.converter.AvroConverter"}
    url = f"http://127.0.0.1:{registry.port}/apis/registry/v2"
    more = {"apicurio.registry.url": url, "apicurio.registry.as-confluent": "true",
            "apicurio.registry.use-id": "contentId"}  # fmt: skip
    settings = {
        f"{which}.converter{'.' + name if name else ''}": value
        for which in ("key", "value")
        for name, value in {**converter, **more}.items()
    }
    connected(connect, postgres, topic, **settings)
    # The converter does not know Avro's logical types with microseconds.
    wanted = {
        key: {**found, "at": microseconds(found["at"]), "wall": microseconds(found["wall"])}
        for key, found in rows_of(table).items()
    }
    assert_copied(connect, postgres, topic, wanted)


def nested(folder: Path, kind: pa.DataType, value: Any) -> TableBuilder:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    table = TableBuilder(folder / "orders", schema, cdf=True)
    table.create()
    table.insert([{"id": 1, "v": value}])
    return table


def test_a_list_becomes_an_array(
    connect: Connect, kafka: Broker, postgres: Postgres, tmp_path: Path
) -> None:
    topic, table = fresh(), nested(tmp_path, pa.list_(pa.string()), ["a", None])
    anyio.run(deliver, table, made(kafka.bootstrap, topic, **JSON))
    connected(connect, postgres, topic)
    wanted = {1: {"id": 1, "v": ["a", None]}}
    eventually(lambda: copy_of(postgres, topic) == wanted, why=lambda: connect.trace(topic))


@pytest.mark.parametrize(
    ("kind", "value", "schema"),
    [
        (pa.struct([("a", pa.int64())]), {"a": 1}, True),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], True),
        (pa.string(), "a", False),
    ],
    ids=["struct", "map", "no schema"],
)
def test_what_the_page_says_can_t_be_copied_stops_the_connector(
    connect: Connect, kafka: Broker, postgres: Postgres, tmp_path: Path,
    kind: pa.DataType, value: Any, schema: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    topic, table = fresh(), nested(tmp_path, kind, value)
    anyio.run(deliver, table, made(kafka.bootstrap, topic, **JSON | {"schema": schema}))
    connected(connect, postgres, topic)
    eventually(lambda: connect.state(topic) == "FAILED", why=lambda: connect.trace(topic))
    assert copy_of(postgres, topic) == {}
