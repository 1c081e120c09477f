"""A real REST catalog of Iceberg tables: the one with which Iceberg tests its own clients."""

from __future__ import annotations

import http.client
from importlib.util import find_spec
from pathlib import Path

from tests.support.components import Component, no_java, run_maker, server_java
from tests.support.hdfs import find_spark_jars
from tests.support.maven import copy_jars
from tests.support.servers import Server

#: The newest that runs on Java 17 and whose parts Maven has.
VERSION = "1.10.0"
_ARTIFACTS = (
    f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.slf4j:slf4j-simple:2.0.17",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
_PROGRAM = Path(__file__).with_name("IcebergRestNode.java")


def _list_hadoop() -> str:
    """Return what of Hadoop its files need, which PySpark has."""
    return ":".join(map(str, sorted(find_spark_jars().glob("hadoop-client-*.jar"))))


def _find_missing() -> str:
    return no_java() or ("" if find_spec("pyspark") is not None else "PySpark")


def _make(home: Path) -> None:
    jars = home / "jars"
    copy_jars(jars, _ARTIFACTS)
    classes = f"{jars}/*:{_list_hadoop()}"
    run_maker(["javac", "-nowarn", "-cp", classes, "-d", home / "classes", _PROGRAM])


ICEBERG_REST = Component(
    "iceberg-rest",
    f"Iceberg's REST catalog {VERSION}, by Maven,",
    home=lambda: f"iceberg-rest-{VERSION}",
    make=_make,
    missing=_find_missing,
)


class RestCatalog(Server):
    """One server, which keeps its tables over a restart."""

    name = "iceberg-rest"

    def start(self) -> None:
        home = ICEBERG_REST.path()
        classes = f"{home / 'classes'}:{home / 'jars'}/*:{_list_hadoop()}"
        program = "org.apache.iceberg.rest.IcebergRestNode"
        java = server_java("256m")
        self.launch(*java, "-cp", classes, program, str(self.port), self.folder)

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/v1/config")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"
