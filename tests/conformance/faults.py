"""How the faults of real servers are brought about, for the public suites of their sinks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import grpc
import redis

from tailer.sink import make_sink
from tailer.testing.conformance import TargetFaults
from tests.support.aws import Aws
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.components import free_port
from tests.support.mysql import Mysql
from tests.support.postgres import Postgres
from tests.support.pubsub import Pubsub
from tests.support.waiting import eventually
from tests.support.webhook import Webhook

POISON = "a value that is refused"


@contextmanager
def asked(run: Callable[[str], object], begin: str, end: str) -> Iterator[None]:
    """Run a statement before the block, and one after it."""
    run(begin)
    try:
        yield
    finally:
        run(end)


def postgres_options(server: Postgres, schema: str) -> dict[str, Any]:
    """The options of a sink whose user has rights on its schema alone."""
    server.query(f"CREATE ROLE {schema} LOGIN PASSWORD 'secret'")
    server.query(f"GRANT ALL ON SCHEMA {schema} TO {schema}")
    dsn = server.dsn(user=schema, password="secret")
    return {"dsn": dsn, "schema": schema}


def postgres_faults(server: Postgres, options: dict[str, Any]) -> TargetFaults:
    """Those of PostgreSQL."""
    schema = user = options["schema"]
    orders, mine = f"{schema}.orders", "FROM pg_stat_activity WHERE usename = %s"

    def cut() -> None:
        server.query(f"SELECT pg_terminate_backend(pid) {mine}", [user])
        eventually(lambda: not server.query(f"SELECT 1 {mine}", [user]))

    @contextmanager
    def read_only() -> Iterator[None]:
        """As a server is for some seconds in a failover."""
        role = f"ALTER ROLE {user} SET default_transaction_read_only ="
        with asked(server.query, f"{role} on", f"{role} off"):
            cut()
            yield
        cut()

    @contextmanager
    def failing() -> Iterator[None]:
        server.query(
            f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'nobody knows' USING ERRCODE = 'ZZ123'; END $$"
        )
        made = f"CREATE TRIGGER failing BEFORE INSERT ON {orders} EXECUTE FUNCTION {schema}.fail()"
        with asked(server.query, made, f"DROP TRIGGER failing ON {orders}"):
            yield

    def revoked() -> AbstractContextManager[None]:
        alter = f"ALTER TABLE {orders} OWNER TO"
        return asked(server.query, f"{alter} tester", f"{alter} {user}")

    def refused() -> str:
        server.query(f"ALTER TABLE {orders} ADD CHECK (name <> '{POISON}')")
        return POISON

    return TargetFaults(
        hasty=lambda: make_sink(
            "postgres",
            {**options, "dsn": f"{options['dsn']} connect_timeout=2", "timeout_s": 1},
            Path(),
        ),
        still=server.still,
        cut=cut,
        forbidden=[read_only, revoked],
        unknown=failing,
        refused=refused,
    )


def mysql_options(server: Mysql, database: str) -> dict[str, Any]:
    """The options of a sink whose user has rights on its database alone."""
    server.query(f"CREATE USER {database}@'127.0.0.1' IDENTIFIED BY 'secret'")
    server.query(f"GRANT ALL ON {database}.* TO {database}@'127.0.0.1'")
    return {"url": f"mysql://{database}:secret@127.0.0.1:{server.port}/{database}", "tls": False}


def mysql_faults(server: Mysql, options: dict[str, Any]) -> TargetFaults:
    """Those of MariaDB."""
    database = options["url"].rpartition("/")[2]
    orders, user = f"{database}.orders", f"{database}@'127.0.0.1'"

    def cut() -> None:
        mine = "SELECT id FROM information_schema.processlist WHERE user = %s"
        for (session,) in server.query(mine, [database]):
            server.query(f"KILL {session}")
        eventually(lambda: not server.query(mine, [database]))

    def failing(code: int) -> AbstractContextManager[None]:
        return asked(
            server.query,
            f"CREATE TRIGGER {database}.failing BEFORE INSERT ON {orders} FOR EACH ROW "
            f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'as it happens'",
            f"DROP TRIGGER {database}.failing",
        )

    @contextmanager
    def revoked() -> Iterator[None]:
        """Of a session that is there, rights on a database are not revoked."""
        rights = f"ON {database}.* "
        with asked(
            server.query, f"REVOKE INSERT {rights} FROM {user}", f"GRANT ALL {rights} TO {user}"
        ):
            cut()
            yield

    def read_only() -> AbstractContextManager[None]:
        return asked(server.query, "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0")

    def refused() -> str:
        server.query(f"ALTER TABLE {orders} ADD CHECK (name <> '{POISON}')")
        return POISON

    # An interrupted statement, a time-out, a cluster that is not ready, an engine, a disk.
    passing = [partial(failing, code) for code in (1317, 1969, 1047, 1030, 3)]
    return TargetFaults(
        hasty=lambda: make_sink("mysql", {**options, "timeout_s": 2}, Path()),
        still=server.still,
        cut=cut,
        forbidden=[revoked, read_only, *passing],
        unknown=lambda: failing(9999),
        refused=refused,
    )


def sqlite_faults(file: Path) -> TargetFaults:
    """Those of a SQLite file."""

    def run(statement: str) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as lite:
            lite.execute(statement)

    def refused() -> str:
        run(f"CREATE TRIGGER refuse BEFORE INSERT ON orders WHEN NEW.name = '{POISON}' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END")  # fmt: skip
        return POISON

    return TargetFaults(refused=refused)


def duckdb_faults(file: Path) -> TargetFaults:
    """Those of a DuckDB file, whose columns can be made to refuse null."""

    def refused() -> None:
        def alter() -> bool:
            try:
                with duckdb.connect(file) as connection:
                    connection.execute("ALTER TABLE orders ALTER name SET NOT NULL")
            except duckdb.Error:  # the sink has it open for now
                return False
            return True

        eventually(alter)

    return TargetFaults(refused=refused)


def delta_faults(folder: Path) -> TargetFaults:
    """Those of a Delta table."""

    def refused() -> str:
        table = deltalake.DeltaTable(folder)
        table.alter.add_constraint({"no_poison": f"name <> '{POISON}'"})
        return POISON

    return TargetFaults(refused=refused)


def redis_faults(server: Redis, options: dict[str, Any]) -> TargetFaults:
    """Those of Redis, by the commands of an operator."""

    def run(*words: str) -> None:
        client: Any = redis.Redis.from_url(server.url())
        with closing(client):
            client.execute_command(*words)

    def given(begin: str, end: str) -> Callable[[], AbstractContextManager[None]]:
        return lambda: asked(lambda line: run(*line.split()), begin, end)

    def cut() -> None:
        run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    return TargetFaults(
        hasty=lambda: make_sink("redis", {**options, "timeout_s": 1}, Path()),
        still=server.still,
        cut=cut,
        forbidden=[
            given("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
            given(f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE"),
            given("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
            given("ACL SETUSER tailer -xadd -evalsha", "ACL SETUSER tailer +@all"),
        ],
    )


def nats_faults(server: Nats, options: dict[str, Any]) -> TargetFaults:
    """Those of NATS, whose payload is limited."""
    return TargetFaults(
        hasty=lambda: make_sink("nats", {**options, "timeout_s": 1}, Path()),
        still=server.still,
        refused=lambda: "x" * 1_100_000,  # max_payload is 1 MiB
    )


def rabbitmq_faults(server: RabbitMq, options: dict[str, Any]) -> TargetFaults:
    """Those of RabbitMQ, whose messages are limited."""
    return TargetFaults(
        hasty=lambda: make_sink("rabbitmq", {**options, "timeout_s": 2}, Path()),
        still=server.still,
        refused=lambda: "x" * 1_100_000,  # max_message_size of the server is 1 MB
    )


def http_faults(hook: Webhook) -> TargetFaults:
    """Those of a webhook: what it answers."""

    def refused() -> str:
        hook.refuses = POISON
        return POISON

    def answering(status: int) -> AbstractContextManager[None]:
        return asked(lambda many: hook.answers.__setitem__(
            slice(None), [(status, {})] * int(many)), "9", "0")  # fmt: skip

    @contextmanager
    def silent() -> Iterator[None]:
        hook.silent = True
        yield
        hook.silent = False

    hasty = {"url": hook.url, "timeout_s": 1}
    return TargetFaults(
        hasty=lambda: make_sink("http", hasty, Path()),
        still=silent,
        forbidden=[partial(answering, status) for status in (401, 403, 404, 500, 503)],
        unknown=lambda: answering(499),
        refused=refused,
    )


def aws_faults(kind: str, options: dict[str, Any], server: Aws) -> TargetFaults:
    """Those of a service of AWS."""
    return TargetFaults(
        hasty=lambda: make_sink(kind, {**options, "timeout_s": 1}, Path()),
        still=server.still,
    )


def pubsub_faults(server: Pubsub, topic: str, options: dict[str, Any]) -> TargetFaults:
    """Those of Pub/Sub: what it answers."""
    status = grpc.StatusCode

    def refused() -> str:
        schema = {"code": 3, "message": "no", "text": POISON, "reason": "INVALID_JSON_AVRO_MESSAGE"}
        server.set_faults({topic: [schema]})
        return POISON

    refusing = (
        status.PERMISSION_DENIED, status.UNAUTHENTICATED, status.NOT_FOUND,
        status.FAILED_PRECONDITION, status.RESOURCE_EXHAUSTED, status.UNAVAILABLE,
    )  # fmt: skip
    return TargetFaults(
        hasty=lambda: make_sink("pubsub", {**options, "timeout_s": 1}, Path()),
        still=server.still,
        forbidden=[partial(server.failing, topic, code) for code in refusing],
        unknown=lambda: server.failing(topic, status.DATA_LOSS),
        refused=refused,
    )
