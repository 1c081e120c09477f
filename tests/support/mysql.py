"""A real MariaDB server for tests (Debian: mariadb-server-core)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql

from tests.support.components import require
from tests.support.servers import START_S, Server

MYSQL_PASSWORD = "pa55 word%"
_SYSTEM_TABLES = (
    "mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql",
)  # fmt: skip
#: What managed servers may say, and no session of the sink must depend on.
_STRICT = (
    "--innodb-force-primary-key=ON", "--sql-mode=ANSI,TRADITIONAL",
    "--transaction-isolation=SERIALIZABLE",
)  # fmt: skip


class Mysql(Server):
    """A MariaDB server with the account `tester`, as strict as managed ones. It does not wait for
    the disk, unless it is ``durable``."""

    name = "mariadb"

    def __init__(self, *, durable: bool = False) -> None:
        folders = f"{os.environ.get('PATH', '')}:/usr/sbin"
        program = shutil.which("mariadbd", path=folders)
        require("MariaDB (Debian: mariadb-server-core)", program is not None)
        super().__init__()
        self._server = str(program)
        self._durable = durable
        (self.folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS tester@'127.0.0.1' IDENTIFIED BY '{MYSQL_PASSWORD}';\n"
            "GRANT ALL ON *.* TO tester@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._user = ["--user=root"] if os.getuid() == 0 else []
        for name in ("data", "scratch"):  # a server that starts clears /tmp of such tables
            (self.folder / name).mkdir()
        # What mariadb-install-db does, which needs programs of another package.
        texts = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
        texts += [Path("/usr/share/mysql", name).read_text() for name in _SYSTEM_TABLES]
        made = subprocess.run(
            [self._server, "--no-defaults", "--bootstrap", f"--datadir={self.folder}/data",
             f"--tmpdir={self.folder}/scratch",
             "--innodb-flush-log-at-trx-commit=0", "--innodb-use-native-aio=0", *self._user],
            input="\n".join(texts), text=True, check=False, capture_output=True, timeout=START_S,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr[-2000:]

    def start(self) -> None:
        flush = 1 if self._durable else 0
        self.launch(
            self._server, "--no-defaults", f"--datadir={self.folder}/data", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.folder}/socket",
            f"--tmpdir={self.folder}/scratch",
            f"--pid-file={self.folder}/pid", f"--init-file={self.folder}/init.sql",
            f"--innodb-flush-log-at-trx-commit={flush}", "--skip-log-bin",
            "--skip-name-resolve", "--innodb-use-native-aio=0",
            "--innodb-buffer-pool-size=64M", "--default-time-zone=-03:30",
            "--character-set-server=latin1", "--max-allowed-packet=16M", *_STRICT, *self._user,
        )  # fmt: skip

    def answers(self) -> bool:
        try:
            self.query("SELECT 1")
        except pymysql.Error:
            return False
        return True

    def url(self, database: str, password: str = MYSQL_PASSWORD) -> str:
        """The connection, as the sink takes it."""
        return f"mysql://tester:{quote(password)}@127.0.0.1:{self.port}/{database}"

    def query(
        self, statement: str, values: Sequence[Any] = (), database: str | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session with UTC."""
        with (
            closing(pymysql.connect(
                host="127.0.0.1", port=self.port, user="tester", password=MYSQL_PASSWORD,
                database=database, charset="utf8mb4", autocommit=True,
                init_command="SET time_zone = '+00:00'",
            )) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall())

    def database(self) -> str:
        """A new database, for one test."""
        name = f"d{time.monotonic_ns()}"
        self.query(f"CREATE DATABASE {name}")
        return name
