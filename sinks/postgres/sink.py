"""The PostgreSQL sink: a copy of a table (a mirror), or a log of its changes (an outbox)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinks.postgres.database import Postgres
from sinks.postgres.vectors import parse_vectors
from sinks.shared.options import CREDENTIALS
from sinks.sql.sink import TABLE_SETTINGS, SqlSink
from tailer.settings import Setting

SETTINGS: dict[str, Setting] = {
    "dsn": Setting(
        "text", "", "Connection string of libpq: a URI, or `host=... dbname=...`. Missing values "
        "come from libpq's environment variables and files.", secret=True,
    ),
    **CREDENTIALS,
    "schema": Setting("text", "public", "The schema of the table."),
    "timeout_s": Setting(
        "number", 60, "How long to wait for a lock or an unresponsive server.",
        unit="seconds", advanced=True,
    ),
    **TABLE_SETTINGS,
    "vectors": Setting(
        "table", {}, "Columns with lists of numbers that become vectors of the extension pgvector, "
        'and their types, for example `{ embedding = "vector(384)" }`.',
    ),
}  # fmt: skip


class PostgresSink(SqlSink):
    """A copy of a table, or a log of its changes, in a PostgreSQL database, exactly once."""

    settings = SETTINGS
    kind = "postgres"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> PostgresSink:  # noqa: ARG003  # it has no paths
        """Create the sink. Options: :data:`SETTINGS`."""
        more = dict(options)
        names = ("dsn", "schema", "timeout_s", "user", "password")
        vectors = parse_vectors(more.pop("vectors"), more["key"])
        found = {name: more.pop(name) for name in names}
        return cls(Postgres(**found, vectors=vectors), **more)
