"""The sinks for SQL databases against the public suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg.rows
import pyarrow as pa
import pytest

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import MirrorConformance, SinkConformance
from tailer.testing.conformance.mirror import ReadRows
from tailer.testing.conformance.sink import VALUES, Event, MakeSink, ReadEvents
from tests.support.postgres import Postgres

#: Without the character NUL, and a map in the order of jsonb.
NO_NUL = {**VALUES, "string": VALUES["string"].replace("\x00", ""), "map": {"": None, "a": 1}}


@pytest.fixture
def schema(postgres: Postgres) -> str:
    return postgres.schema()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the types of Arrow."""
    if row.get("map") is not None:
        row["map"] = list(row["map"].items())
    if row.get("float") is not None:
        row["float"] = pa.scalar(row["float"], pa.float32()).as_py()
    return row


class TestPostgresMirror(MirrorConformance):
    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return NO_NUL

    @pytest.fixture
    def make_sink(self, postgres: Postgres, schema: str) -> MakeSink:
        options = {"dsn": postgres.dsn(), "schema": schema, "key": ["id"]}
        return lambda: made_sink("postgres", options, None)  # type: ignore[arg-type]

    @pytest.fixture
    def read_rows(self, postgres: Postgres, schema: str) -> ReadRows:
        def read() -> Sequence[dict[str, Any]]:
            dsn = postgres.dsn(options="-c TimeZone=UTC")
            with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
                return [plain(r) for r in connection.execute(f"SELECT * FROM {schema}.orders")]

        return read


class TestPostgresLog(SinkConformance):
    @pytest.fixture
    def values(self) -> Mapping[str, Any]:
        return NO_NUL

    @pytest.fixture
    def make_sink(self, postgres: Postgres, schema: str) -> MakeSink:
        options = {"dsn": postgres.dsn(), "schema": schema, "mode": "log"}
        return lambda: made_sink("postgres", options, None)  # type: ignore[arg-type]

    @pytest.fixture
    def read_events(self, postgres: Postgres, schema: str) -> ReadEvents:
        def read() -> Sequence[Event]:
            if not postgres.query("SELECT to_regclass(%s)", [f"{schema}.orders"])[0][0]:
                return []
            found = postgres.query(
                "SELECT _event_id, _change_type, _commit_version, (to_jsonb(o) - '_seq')::text "
                f"FROM {schema}.orders o ORDER BY _seq"
            )
            return [Event(*row) for row in found]

        return read
