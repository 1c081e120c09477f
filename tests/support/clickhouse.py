"""ClickHouse for tests: its engine, chdb, in an environment of its own, behind an HTTP interface of
ours. See ``clickhouse_front.py`` for what of the server is not real."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.components import Component, make_environment, python_tag
from tests.support.servers import Server

VERSION, ENGINE_VERSION = "4.4.0", "26.9.0"
#: A user that has a password; `default` has none.
USER, PASSWORD = "tailer", "s3cret"


def _install(folder: Path) -> None:
    make_environment(folder, f"chdb=={VERSION}", f"chdb-core=={ENGINE_VERSION}")


CHDB = Component(
    "clickhouse",
    f"chdb {VERSION}, ClickHouse's engine,",
    home=lambda: f"chdb-{VERSION}-{ENGINE_VERSION}-{python_tag()}",
    make=_install,
)


def _text(value: Any) -> Any:
    with suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else value
    return value


class ClickHouse(Server):
    """One server, which keeps its data over a restart."""

    name = "clickhouse"

    def start(self) -> None:
        program = Path(__file__).with_name("clickhouse_front.py")
        self.launch(CHDB.path() / "bin" / "python", program, str(self.port), self.folder / "data")

    def answers(self) -> bool:
        try:
            return self._post("/", b"SELECT 1")[0] == 200
        except OSError:
            return False

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def query(self, statement: str) -> bytes:
        """Run a statement; return its result."""
        status, said = self._post("/", statement.encode())
        assert status == 200, said.decode()
        return said

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query; what is no text is bytes."""
        as_bytes = "SETTINGS output_format_arrow_string_as_string = 0"
        result = self.query(f"{query} {as_bytes} FORMAT ArrowStream")
        rows = pa.ipc.open_stream(result).read_all().to_pylist()
        return [{name: _text(value) for name, value in row.items()} for row in rows]

    def database(self) -> str:
        """A new database."""
        name = f"d{uuid.uuid4().hex[:12]}"
        self.query(f"CREATE DATABASE {name}")
        return name

    @contextmanager
    def failing(self, **faults: Any) -> Iterator[None]:
        """Have it fail within the block: see ``clickhouse_front.py``."""
        self._post("/-/faults", json.dumps(faults).encode())
        try:
            yield
        finally:
            self._post("/-/faults", b"{}")
