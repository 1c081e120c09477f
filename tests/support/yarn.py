"""A real YARN for tests: a resource manager and a node in one process, with the jars of PySpark."""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.components import Component, no_java, run_maker, server_java
from tests.support.hdfs import find_hadoop_version, find_spark_jars
from tests.support.maven import copy_jar
from tests.support.servers import Server

_PROGRAM = Path(__file__).with_name("MiniYarn.java")
#: What the jar of Hadoop's small clusters expects beside it.
_ARTIFACTS = (
    "org.junit.jupiter:junit-jupiter-api:5.11.4",
    "org.junit.platform:junit-platform-commons:1.11.4",
    "org.opentest4j:opentest4j:1.3.0",
    "org.bouncycastle:bcprov-jdk18on:1.82",
    "org.bouncycastle:bcpkix-jdk18on:1.82",
    "org.bouncycastle:bcutil-jdk18on:1.82",
)


def _make(home: Path) -> None:
    cluster = f"org.apache.hadoop:hadoop-client-minicluster:{find_hadoop_version()}"
    for artifact in (cluster, *_ARTIFACTS):
        copy_jar(home, artifact)
    classes = f"{home}/*:{find_spark_jars()}/*"
    run_maker(["javac", "-nowarn", "-cp", classes, "-d", home, _PROGRAM])


YARN = Component(
    "yarn",
    "Hadoop's YARN, by Maven,",
    home=lambda: f"yarn-{find_hadoop_version()}",
    make=_make,
    missing=no_java,
)


class Yarn(Server):
    """One cluster. ``folder`` is what its clients name as HADOOP_CONF_DIR."""

    name = "yarn"

    def __init__(self) -> None:
        self.home = YARN.path()
        super().__init__()

    def start(self) -> None:
        classes = ["-cp", f"{self.home}:{self.home}/*:{find_spark_jars()}/*", "MiniYarn"]
        (self.folder / "log").write_text("")
        self.launch(*server_java("400m"), *classes, self.folder)

    def answers(self) -> bool:
        return self._find_address() is not None

    def find_application(self) -> Any:
        """What the resource manager says of the newest application; None before there is any."""
        found = (self._ask("GET", "apps")["apps"] or {}).get("app", [])
        return max(found, key=lambda each: each["startedTime"], default=None)

    def kill_application(self, name: str) -> None:
        """End an application, as `yarn application -kill` does."""
        self._ask("PUT", f"apps/{name}/state", '{"state": "KILLED"}')

    def _find_address(self) -> str | None:
        said = re.search(r"^listening at (\S+)$", (self.folder / "log").read_text(), re.MULTILINE)
        return None if said is None else said[1]

    def _ask(self, method: str, what: str, body: str | None = None) -> Any:
        address = self._find_address()
        assert address is not None
        with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            kind = {"Content-Type": "application/json"}
            connection.request(method, f"/ws/v1/cluster/{what}", body, kind)
            answer = connection.getresponse()
            assert answer.status < 300, answer.reason
            return json.loads(answer.read())
