"""The MySQL sink: a copy of a table (a mirror), or a log of its changes, in MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sinks.mysql.database import Mysql
from sinks.sql.sink import TABLE_SETTINGS, SqlSink
from tailer.settings import REQUIRED, Setting

__all__ = ["SETTINGS", "MysqlSink"]


def _checked_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "mysql" or not parts.hostname or not parts.path.strip("/"):
        raise ValueError(text)
    return text


SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The database: `mysql://user:password@host:port/database`, for MariaDB "
        "too.", form="a mysql:// URL with a database", parse=_checked_url, secret=True,
    ),
    "tls": Setting(
        "flag", True, "Encrypt the connection and verify the server; false is for this machine or "
        "a network that is trusted.",
    ),
    "ca_file": Setting(
        "text", "", "PEM file of the authorities to trust.", unset="the system's authorities",
    ),
    **TABLE_SETTINGS,
}  # fmt: skip


class MysqlSink(SqlSink):
    """A copy of a table, or a log of its changes, in a MySQL database, exactly once."""

    settings = SETTINGS
    ddl_in_transactions = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> MysqlSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        more = dict(options)
        ca = more.pop("ca_file")
        return cls(
            Mysql(more.pop("url"), tls=more.pop("tls"), ca_file=folder / ca if ca else None),
            **more,
        )
