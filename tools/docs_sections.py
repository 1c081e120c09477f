"""The sections of docs/ that are made from the code, besides the tables of options: see
``docs_tables.py``, which writes them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from tests.kafka.broker import KAFKA_VERSION
from tests.reliability.tables import SECTIONS as RELIABILITY
from tests.spark.others import OTHER_LINES, OWN
from tests.support.clickhouse import ENGINE_VERSION
from tests.support.components import DELTA_VERSION
from tests.support.elasticsearch import VERSION as ELASTICSEARCH_VERSION
from tests.support.iceberg_rest import VERSION as ICEBERG_REST_VERSION
from tests.support.opensearch import VERSION as OPENSEARCH_VERSION
from tests.support.source import ROOT
from tests.versions import supported_pythons

#: The lines of a section.
Section = Callable[[], list[str]]

# The servers that the tests start. What is supported stands on the page of the sink.
_SERVERS = (
    ("Apache Kafka", "the brokers of kafka-python 3", KAFKA_VERSION),
    ("PostgreSQL", "12 or newer", "15, 16"),
    ("MySQL", "8.0.17 or newer", "as MariaDB alone"),
    ("MariaDB", "10.6 or newer", "10.11"),
    ("Redis", "7.0 or newer", "7.0"),
    ("NATS", "2.9 or newer", "2.9, 2.10"),
    ("RabbitMQ", "3.10 or newer", "3.10, 3.12"),
    ("OpenSearch", "2 or newer", OPENSEARCH_VERSION),
    ("Elasticsearch", "8 or newer", ELASTICSEARCH_VERSION),
    ("Iceberg's REST catalogs", "those that pyiceberg supports", ICEBERG_REST_VERSION),
    ("ClickHouse", "24.8 or newer", f"the engine of {ENGINE_VERSION}, as chdb"),
)
# Extras that only who changes the code installs.
_OWN_EXTRAS = ("all", "demo", "dev", "docs", "release")


def _versions() -> list[str]:
    """What is supported, as pyproject.toml and the tests' components say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [
        ("Python", ", ".join(supported_pythons()), "all, each with the whole suite"),
        ("PySpark", _range(project["optional-dependencies"]["spark"][0]), _pysparks()),
        ("Java, for Spark", "17 or newer", "17"),
        *_packages(project),
        *_SERVERS,
    ]
    return [
        "| what | supported | tested |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _pysparks() -> str:
    others = ", ".join(OTHER_LINES)
    return f"{OWN} with Delta {DELTA_VERSION}; {others} by `make torture`"


def _packages(project: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    extras = project["optional-dependencies"].items()
    wanted = [
        each for name, named in extras if name not in (*_OWN_EXTRAS, "spark") for each in named
    ]
    packages = [each.partition(";")[0].strip() for each in [*project["dependencies"], *wanted]]
    both = "the lowest and the highest"
    return [(_name(each), _range(each), both) for each in packages if not each.endswith("]")]


def _name(requirement: str) -> str:
    return requirement[: len(requirement) - len(_range(requirement))].partition("[")[0]


def _range(requirement: str) -> str:
    """What follows the name of a package and its extras."""
    start = min(at for sign in "<>=~!" if (at := requirement.find(sign)) >= 0)
    return requirement[start:]


def _log_fields() -> list[str]:
    """The fields of JSON's log lines, as their schema says."""
    fields = log_schema()["properties"].items()
    rows = [
        f"| `{name}` | {each.get('type', 'string')} | {each['description']} |"
        for name, each in fields
    ]
    return ["| field | type | meaning |", "| --- | --- | --- |", *rows]


def _log_events() -> list[str]:
    events = log_schema()["properties"]["event"]["oneOf"]
    rows = [f"| `{each['const']}` | {each['description']} |" for each in events]
    return ["| event | meaning |", "| --- | --- |", *rows]


def log_schema() -> Any:
    """The JSON schema of the daemon's log lines."""
    return json.loads((ROOT / "docs" / "logs.schema.json").read_text(encoding="utf-8"))


SECTIONS: Mapping[str, Section] = {
    "log events": _log_events,
    "log fields": _log_fields,
    "versions": _versions,
    **RELIABILITY,
}
