"""Flink SQL, run within one process, for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tests.support.components import Component, no_java, server_java
from tests.support.maven import copy_jars

#: The newest for which there is a Kafka connector.
FLINK_VERSION = "2.2.1"
CONNECTOR_VERSION = "5.0.0-2.2"
_OF_FLINK = (
    "clients", "table-planner-loader", "table-runtime", "table-api-java-bridge", "connector-base",
    "json",
)  # fmt: skip
_ARTIFACTS = (
    *(f"org.apache.flink:flink-{name}:{FLINK_VERSION}" for name in _OF_FLINK),
    f"org.apache.flink:flink-sql-connector-kafka:{CONNECTOR_VERSION}",
)
_PROGRAM = Path(__file__).with_name("FlinkSql.java")
_TIMEOUT_S = 280.0


def _make(home: Path) -> None:
    copy_jars(home / "lib", _ARTIFACTS)


def _missing() -> str:
    """What of the machine is missing: the program is compiled as it starts."""
    return no_java() or ("" if shutil.which("javac") else "a JDK, with javac,")


FLINK = Component(
    "flink",
    "Flink with its Kafka connector, by Maven,",
    home=lambda: f"flink-{FLINK_VERSION}",
    make=_make,
    missing=_missing,
)


def query(folder: Path, *statements: str) -> Counter[tuple[str | None, ...]]:
    """The rows of the last statement, a query over bounded topics: what its changes amount to, as
    texts."""
    lines = folder / "statements.json"
    lines.write_text(json.dumps(statements))
    done = subprocess.run(
        [*server_java("512m"), "-cp", f"{FLINK.path()}/lib/*", _PROGRAM, lines],
        cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    rows: Counter[tuple[str | None, ...]] = Counter()
    for line in done.stdout.splitlines():
        kind, *values = json.loads(line)
        rows[tuple(values)] += 1 if kind in ("+I", "+U") else -1
    return +rows
