"""The MySQL sink: a copy of a table (a mirror), or a log of its changes, in MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinks.messages.tls import CA_FILE, find_ca_file
from sinks.mysql.database import Mysql
from sinks.shared.options import CREDENTIALS, find_url
from sinks.sql.sink import TABLE_SETTINGS, SqlSink
from tailer.secrets.urls import Url, UrlError, parse_url
from tailer.settings import REQUIRED, Setting


def _parse_database_url(text: str) -> Url:
    url = parse_url(text, ("mysql",))
    if not url.path.strip("/"):
        raise UrlError("it names no database")
    return url


SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The database: `mysql://user:password@host:port/database`, also for "
        "MariaDB.", form="a mysql:// URL with a database", parse=_parse_database_url, secret=True,
    ),
    **CREDENTIALS,
    "tls": Setting(
        "flag", True, "Encrypt the connection and verify the server; disable it only on this "
        "machine or a trusted network.", advanced=True,
    ),
    "ca_file": CA_FILE,
    "timeout_s": Setting(
        "number", 60, "How long to wait for an answer; three quarters of it for a lock.",
        unit="seconds", advanced=True,
    ),
    **TABLE_SETTINGS,
}  # fmt: skip


class MysqlSink(SqlSink):
    """A copy of a table, or a log of its changes, in a MySQL database, exactly once."""

    settings = SETTINGS
    kind = "mysql"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> MysqlSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        database = Mysql(
            find_url("mysql", options), tls=options["tls"], ca_file=find_ca_file(options, folder),
            timeout_s=options["timeout_s"],
        )  # fmt: skip
        return cls(database, **{name: options[name] for name in TABLE_SETTINGS})
