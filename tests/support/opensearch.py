"""A real OpenSearch for tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.components import Component, no_java, run_maker
from tests.support.maven import copy_jars
from tests.support.search_engine import SearchEngine

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
    copy_jars(home / "jars", _ARTIFACTS)
    run_maker(["javac", "-nowarn", "-cp", f"{home / 'jars'}/*", "-d", home / "jars", _NODE])


OPENSEARCH = Component(
    "opensearch",
    f"OpenSearch {VERSION}, by Maven,",
    home=lambda: f"opensearch-{VERSION}",
    make=_make,
    missing=no_java,
)


class OpenSearch(SearchEngine):
    """One node of it."""

    name = "opensearch"

    def start(self) -> None:
        jars = OPENSEARCH.path() / "jars"
        self.launch_java("-cp", f"{jars}:{jars}/*", "OpenSearchNode", self.folder, str(self.port))
