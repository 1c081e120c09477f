"""One real node of a search engine for tests, without what Maven does not bring."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.components import server_java
from tests.support.servers import Server


class SearchEngine(Server):
    """One node, which keeps its data over a restart."""

    def __init__(self) -> None:
        super().__init__()
        (self.folder / "config").mkdir()

    def launch_java(self, *arguments: str | Path) -> None:
        """Start Java, which finds the engine by the first of these arguments."""
        self.launch(*server_java("512m"), f"-Djava.io.tmpdir={self.folder}", *arguments)

    def answers(self) -> bool:
        try:
            return self.call("GET", "/_cluster/health?wait_for_status=yellow")[0] == 200
        except OSError:
            return False

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read(), parse_float=Decimal)
        finally:
            connection.close()

    def documents(self, index: str) -> Mapping[str, Any]:
        """The documents of an index by id."""
        self.call("POST", f"/{index}/_refresh")
        status, found = self.call("POST", f"/{index}/_search", {"size": 10_000})
        hits = found["hits"]["hits"] if status == 200 else []
        return {hit["_id"]: hit["_source"] for hit in hits}
