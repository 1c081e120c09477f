"""A real Kafka Connect worker with Debezium's JDBC sink, for tests.

Its connectors and converters are plugins in folders of their own, as an operator installs them.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kafka.broker import KAFKA_VERSION, LOG4J_VERSION
from tests.support.components import Component, no_java, server_java
from tests.support.maven import copy_jars
from tests.support.servers import Server
from tests.support.waiting import eventually

#: The newest of both lines that runs on Java 17 and resolves whole from Maven Central.
DEBEZIUM_VERSION = "3.4.0.Final"
CONVERTER_VERSION = "2.6.13.Final"

# What of Maven goes into which folder: the worker, and its plugins.
_FOLDERS = {
    "worker": (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
    ),
    "plugins/jdbc": (f"io.debezium:debezium-connector-jdbc:{DEBEZIUM_VERSION}",),
    "plugins/avro": (f"io.apicurio:apicurio-registry-utils-converter:{CONVERTER_VERSION}",),
}
# Drivers of databases that no test has, and what the worker gives to its plugins. A second Jackson
# would find the worker's modules, which are none of its own.
_LEFT_OUT = (
    "ojdbc11,mssql-jdbc,mysql-connector-j,kafka-clients,connect-api,jackson-core,jackson-databind,"
    "jackson-annotations,slf4j-api"
)
_LOGGING = """Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "%d{ISO8601} %p %m (%c)%n%throwable{full}"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: STDOUT}}
"""


def _make(home: Path) -> None:
    (home / "log4j2.yaml").write_text(_LOGGING)
    for name, artifacts in _FOLDERS.items():
        folder = home / name
        folder.mkdir(parents=True)
        more = [] if name == "worker" else [f"-DexcludeArtifactIds={_LEFT_OUT}"]
        copy_jars(folder, artifacts, *more)


CONNECT = Component(
    "connect",
    "Kafka Connect with Debezium's JDBC sink, by Maven,",
    home=lambda: f"connect-{KAFKA_VERSION}-{DEBEZIUM_VERSION}",
    make=_make,
    missing=no_java,
)


class Connect(Server):
    """One worker of its own group, that reads committed records of a cluster."""

    name = "connect"

    def __init__(self, bootstrap: str) -> None:
        self.home = CONNECT.path()
        super().__init__()
        self._bootstrap = bootstrap

    def start(self) -> None:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.path": self.home / "plugins",
            "plugin.discovery": "hybrid_warn",
            "offset.storage.file.filename": self.folder / "offsets",
            "offset.flush.interval.ms": "1000",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "consumer.isolation.level": "read_committed",
            "consumer.auto.offset.reset": "earliest",
        }
        file = self.folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.yaml'}"
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        self.launch(*server_java("512m"), logging, "-cp", f"{self.home}/worker/*", program, file)

    def answers(self) -> bool:
        """Whether it takes requests."""
        try:
            return self.call("GET", "/connectors")[0] == 200
        except (OSError, ValueError):  # before it is ready it answers with a page
            return False

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and body of an answer of its REST API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def run_connector(self, name: str, settings: Mapping[str, object]) -> None:
        """Make a connector of one task; returns when the task runs."""
        body = {"name": name, "config": {k: str(v) for k, v in settings.items()}}
        status, answer = self.call("POST", "/connectors", body)
        assert status == 201, answer
        eventually(lambda: self.state(name) == "RUNNING", why=lambda: self.trace(name))

    def state(self, name: str) -> str:
        """The state of a connector's task; empty before there is one."""
        status, answer = self.call("GET", f"/connectors/{name}/status")
        tasks = answer["tasks"] if status == 200 else []
        return str(tasks[0]["state"]) if tasks else ""

    def trace(self, name: str) -> str:
        """What a connector's task failed with."""
        answer = self.call("GET", f"/connectors/{name}/status")[1]
        return json.dumps(answer)[:8000]
