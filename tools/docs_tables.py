"""The tables of options in docs/, made from the settings that the code declares, and the other
sections that are made from it (``docs_sections.py``).

``python -m tools.docs_tables`` writes them between the marks ``<!-- options: NAME -->`` and
``<!-- end of options -->``, ``<!-- made: NAME -->`` and ``<!-- end of made -->``;
``tests/house/test_docs_tables.py`` fails where one is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sinks import http, jsonl, nats, sqlite
from sinks.aws import firehose, kinesis, sns, sqs
from sinks.aws.sink import CONNECTION
from sinks.clickhouse import sink as clickhouse_sink
from sinks.delta import sink as delta_sink
from sinks.duckdb import sink as duckdb_sink
from sinks.files import sink as files_sink
from sinks.formats.load import LISTED
from sinks.formats.registry import REGISTRY
from sinks.iceberg import sink as iceberg_sink
from sinks.kafka.client.security import Security
from sinks.kafka.options import KafkaOptions
from sinks.mysql import sink as mysql_sink
from sinks.postgres import sink as postgres_sink
from sinks.pubsub import sink as pubsub_sink
from sinks.rabbitmq import sink as rabbitmq_sink
from sinks.redis import sink as redis_sink
from sinks.search import sink as search_sink
from tailer.config.settings import DAEMON, FEED
from tailer.setting_fields import settings_of
from tailer.settings import Setting, options_table
from tailer.share_server.config import SHARE, TABLE
from tailer.spark.options import SOURCE
from tailer.store.objects.options import AzureOptions, GcsOptions
from tailer.store.s3.options import S3Options
from tailer.store.shared.store import SharingOptions
from tailer.store.unity.options import CatalogOptions
from tests.support.source import ROOT
from tools.docs_sections import SECTIONS


def _own(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """The options of a sink of AWS, without those that all of them have."""
    return {name: setting for name, setting in settings.items() if name not in CONNECTION}


TABLES: Mapping[str, Mapping[str, Setting]] = {
    "daemon": DAEMON,
    "feed": FEED,
    "share": SHARE,
    "shared table": TABLE,
    "s3": settings_of(S3Options),
    "azure": settings_of(AzureOptions),
    "gcs": settings_of(GcsOptions),
    "shared tables": settings_of(SharingOptions),
    "catalogs": settings_of(CatalogOptions),
    "spark": SOURCE,
    "jsonl": jsonl.SETTINGS,
    "delta": delta_sink.SETTINGS,
    "duckdb": duckdb_sink.SETTINGS,
    "postgres": postgres_sink.SETTINGS,
    "sqlite": sqlite.SETTINGS,
    "files": files_sink.SETTINGS,
    "firehose": _own(firehose.SETTINGS),
    "http": http.SETTINGS,
    "iceberg": iceberg_sink.SETTINGS,
    "kinesis": _own(kinesis.SETTINGS),
    "sns": _own(sns.SETTINGS),
    "sqs": _own(sqs.SETTINGS),
    "aws": CONNECTION,
    "mysql": mysql_sink.SETTINGS,
    "nats": nats.SETTINGS,
    "pubsub": pubsub_sink.SETTINGS,
    "rabbitmq": rabbitmq_sink.SETTINGS,
    "clickhouse": clickhouse_sink.SETTINGS,
    "search": search_sink.SETTINGS,
    "redis": redis_sink.SETTINGS,
    "formats": LISTED,
    "registry": REGISTRY,
    "kafka": settings_of(KafkaOptions),
    "kafka security": settings_of(Security),
}
_MARKED = re.compile(r"(<!-- (options|made): (.*?) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def with_tables(text: str) -> str:
    """A page with the tables that its marks ask for. Raises ``KeyError`` for an unknown name."""

    def table(mark: re.Match[str]) -> str:
        made = mark[2] == "made"
        lines = SECTIONS[mark[3]]() if made else options_table(TABLES[mark[3]])
        return f"{mark[1]}\n" + "\n".join(lines) + f"\n\n{mark[4]}"

    return _MARKED.sub(table, text)


def write_tables() -> None:
    """Write the tables of all pages."""
    for page in pages():
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_tables()
