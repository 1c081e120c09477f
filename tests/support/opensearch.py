"""A real OpenSearch for tests: one node, without what Maven does not bring."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.components import Component, no_java, run_maker, run_maven
from tests.support.maven import pom
from tests.support.servers import Server

#: The newest that runs on Java 17.
VERSION = "2.19.6"
_ARTIFACTS = (
    f"org.opensearch:opensearch:{VERSION}",
    f"org.opensearch.plugin:transport-netty4-client:{VERSION}",
    # Its own pages leave it to whoever packs them.
    "org.apache.logging.log4j:log4j-core:2.25.4",
)
_NODE = Path(__file__).with_name("OpenSearchNode.java")


def _make(home: Path) -> None:
    project = home / "opensearch.xml"
    project.write_text(pom("opensearch", _ARTIFACTS))
    jars = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    run_maven("-f", str(project), *jars, f"-DoutputDirectory={home / 'jars'}")
    run_maker(["javac", "-nowarn", "-cp", f"{home / 'jars'}/*", "-d", home / "jars", _NODE])


OPENSEARCH = Component(
    "opensearch",
    f"OpenSearch {VERSION}, by Maven,",
    home=lambda: f"opensearch-{VERSION}",
    make=_make,
    missing=no_java,
)


class OpenSearch(Server):
    """One node, which keeps its data over a restart."""

    name = "opensearch"

    def __init__(self) -> None:
        self.home = OPENSEARCH.path() / "jars"
        super().__init__()
        (self.folder / "config").mkdir()

    def start(self) -> None:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = ["-cp", f"{self.home}:{self.home}/*", "OpenSearchNode"]
        self.launch(java, *options, *classes, self.folder, str(self.port))

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
