"""A real Elasticsearch for tests: its server, and the one module without which it has no HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.support.components import Component, no_java, run_maker
from tests.support.maven import copy_jars
from tests.support.search_engine import SearchEngine

#: Of the last line that runs on Java 17, the release whose module of HTTP Maven has.
VERSION = "8.19.0"
_MODULE = "transport-netty4"
_SERVER = (
    f"org.elasticsearch:elasticsearch:{VERSION}",
    # Its own pages leave it to whoever packs them.
    "org.apache.logging.log4j:log4j-core:2.19.0",
)
_DESCRIPTOR = f"""name={_MODULE}
description=HTTP
version={VERSION}
elasticsearch.version={VERSION}
java.version=17
classname=org.elasticsearch.transport.netty4.Netty4Plugin
"""
_NODE = Path(__file__).with_name("ElasticsearchNode.java")


def _make(home: Path) -> None:
    jars, module, classes = home / "jars", home / "modules" / _MODULE, home / "classes"
    (home / "plugins").mkdir()
    copy_jars(jars, _SERVER)
    copy_jars(module, (f"org.elasticsearch.plugin:{_MODULE}:{VERSION}",))
    for jar in module.iterdir():  # it refuses to start if it finds a class twice
        if (jars / jar.name).exists():
            jar.unlink()
    (module / "plugin-descriptor.properties").write_text(_DESCRIPTOR)
    run_maker(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", classes, _NODE])


ELASTICSEARCH = Component(
    "elasticsearch",
    f"Elasticsearch {VERSION}, by Maven,",
    home=lambda: f"elasticsearch-{VERSION}",
    make=_make,
    missing=no_java,
)


class Elasticsearch(SearchEngine):
    """One node of it."""

    name = "elasticsearch"

    def start(self) -> None:
        home = ELASTICSEARCH.path()
        # Its modules know those of the server, as Java's modules.
        self.launch_java(
            "-p", home / "jars", "--add-modules", "ALL-MODULE-PATH", "-cp", home / "classes",
            "ElasticsearchNode", home, self.folder, str(self.port),
        )  # fmt: skip
