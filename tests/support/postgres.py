"""A real PostgreSQL server for tests, of the programs that the machine has (Debian: postgresql)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.components import free_port, require

__all__ = ["PASSWORD", "Postgres", "SqlServer", "as_other_user"]

PASSWORD = "pa55 word%"
START_S = 100.0


def as_other_user(name: str) -> list[str]:
    """The start of a command that ends with this process; servers refuse to run as root."""
    command = ["setpriv", "--pdeathsig", "KILL"]
    if os.getuid() == 0:
        user = pwd.getpwnam(name)
        command += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return command


@cache
def _programs() -> Path | None:
    """The folder with the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


class SqlServer:
    """A server on a free port, with its data in a folder that its user may enter."""

    name = ""
    user = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        if os.getuid() == 0:
            shutil.chown(self.folder, self.user)
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str | Path) -> None:
        """Run one of its programs."""
        done = subprocess.run(
            [*as_other_user(self.user), *map(str, command)],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=START_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout

    def launch(self, *command: str | Path) -> None:
        """Start it; returns when it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*as_other_user(self.user), *map(str, command)],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        give_up = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.folder / "log").read_text()[-4000:])
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it takes connections."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, again if it ran before."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it at once, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(SqlServer):
    """A PostgreSQL server with the account `tester`. It does not wait for the disk, unless it is
    ``durable``."""

    name = user = "postgres"

    def __init__(self, *, durable: bool = False) -> None:
        programs = _programs()
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
            "timezone": "America/St_Johns",  # what a session must not depend on
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
