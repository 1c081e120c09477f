"""A real daemon with an HTTP address and a token, to be ordered about by tests."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.programs import Program, started, whole_lines

SCHEMA = pa.schema([("id", pa.int64())])
TOKEN = "a token of the tests"


class Setting:
    """Tables and a daemon with an HTTP address and a token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = folder / "tailer.toml"
        self.feeds: dict[str, str] = {}
        self.state = "state"
        self.daemon = f'token = "{TOKEN}"\nmeasure_s = 0.1\n'

    def table(self, name: str, count: int = 3) -> TableBuilder:
        table = TableBuilder(self.folder / name, SCHEMA, cdf=True)
        table.create()
        if count:
            table.insert([{"id": i} for i in range(count)])
        return table

    def feed(self, name: str, more: str = "", table: str | None = None, output: str = "") -> None:
        self.feeds[name] = (
            f'[feeds.{name}]\ntable = "{table or name}"\nfrom = "earliest"\n{more}\n'
            f'[feeds.{name}.sink]\ntype = "jsonl"\npath = "{output or name + ".jsonl"}"\n'
        )
        self.write()

    def write(self) -> None:
        head = f'[daemon]\nhttp = "127.0.0.1:{self.port}"\nstate = "{self.state}"\n{self.daemon}'
        self.config.write_text(head + "".join(self.feeds.values()))

    def program(self) -> Any:
        return started("run", self.config)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in whole_lines(self.folder / f"{name}.jsonl")]

    def ids(self, name: str) -> list[int]:
        return [line["id"] for line in self.lines(name) if "_notice" not in line]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = TOKEN,
        host: str | None = None,
        scheme: str = "Bearer",
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=150)
        try:
            headers = {} if token is None else {"Authorization": f"{scheme} {token}"}
            headers |= {} if host is None else {"Host": host}
            text = body if isinstance(body, str | bytes | None) else json.dumps(body)
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def metrics(self) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=150)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read()
        finally:
            connection.close()

    def order(self, feed: str, order: str, **body: Any) -> tuple[int, Any]:
        return self.ask("POST", f"/api/v1/feeds/{feed}/{order}", body or None)

    def status(self, feed: str) -> dict[str, Any]:
        status, found = self.ask("GET", f"/api/v1/feeds/{feed}")
        assert status == 200, found
        return found  # type: ignore[no-any-return]  # JSON

    def version(self, feed: str) -> int | None:
        """The version of a feed's offset; None while it starts."""
        offset = self.status(feed)["offset"]
        return None if offset is None else int(offset["version"])


def wait_for_state(program: Program, setting: Setting, state: str) -> None:
    program.wait_for(lambda: setting.status("orders")["state"] == state)


def wait_for_count(program: Program, setting: Setting, count: int) -> None:
    program.wait_for(lambda: len(setting.ids("orders")) == count)
