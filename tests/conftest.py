"""Fixtures and settings of all tests. See README.md in this folder."""

from __future__ import annotations

import os
import re
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tailer import secrets
from tailer.native import rowbytes
from tests.clouds.servers import SERVERS as CLOUD_SERVERS
from tests.clouds.servers import CloudServer, Container, run_cloud
from tests.s3.fixture import ACCOUNT, Bucket, S3Server, run_server
from tests.support.components import Component, java_major, require, start_spark, with_byte_code
from tests.support.extent import TORTURE, examples, sampled
from tests.support.kafka_sockets import sockets_closed
from tests.support.order import sort_by_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka.broker import Broker
    from tests.kafka.brokers import Brokers
    from tests.support.aws import Aws
    from tests.support.brokers import Nats, RabbitMq, Redis
    from tests.support.clickhouse import ClickHouse
    from tests.support.elasticsearch import Elasticsearch
    from tests.support.iceberg_rest import RestCatalog
    from tests.support.mysql import Mysql
    from tests.support.opensearch import OpenSearch
    from tests.support.postgres import Postgres
    from tests.support.pubsub import Pubsub
    from tests.support.registry import Registry
    from tests.support.search_engine import SearchEngine

# The first test that uses one of these waits for its start.
START_TIMEOUT_S = 600
SERVERS = {
    "spark", "s3_server", "azurite", "gcs_server", "kafka", "brokers", "postgres", "pgvector",
    "opensearch", "elasticsearch", "clickhouse", "hdfs", "yarn", "rest_catalog",
}  # fmt: skip

# Of each kind, a test that is for several is quick with one of them.
STORES = {"azurite", "gcs_server", "s3_server"}
ENGINES = {"opensearch", "elasticsearch"}
CATALOGS = {"sql_catalog", "rest_catalog"}

# What a test's fixtures need from `prepare.py`; other tests are marked `needs` themselves.
NEEDS = {
    "spark": "delta",
    "s3_server": "s3",
    "kafka": "kafka",
    "brokers": "kafka",
    "secured": "kafka",
    "official": "official",
    "client_python": "official",
    "aws": "moto",
    "azurite": "azurite",
    "gcs_server": "gcs",
    "opensearch": "opensearch",
    "elasticsearch": "elasticsearch",
    "pgvector": "pgvector",
    "clickhouse": "clickhouse",
    "pubsub": "pubsub",
    "hdfs": "hdfs",
    "yarn": "yarn",
    "rest_catalog": "iceberg-rest",
}
# What starts Java: fixtures, and folders whose tests may also start some of their own.
JAVA = {"spark", "kafka", "brokers"}
TESTS = Path(__file__).parent
SPARK_FOLDER = TESTS / "spark"
JAVA_FOLDERS = [SPARK_FOLDER, TESTS / "kafka"]
# Where most tests start programs or servers: they wait more than they compute.
PROGRAM_NAMES = (
    "catalog cli conformance console daemon deploy house integration offsets process share_server "
    "sharing soak store torture"
)
PROGRAM_FOLDERS = [TESTS / name for name in PROGRAM_NAMES.split()]
# They share servers that take seconds of a processor to start.
SINK_NAMES = "conformance sinks verify daemon/test_rehearsal.py daemon/test_still_servers.py"
SINK_PATHS = [TESTS / name for name in SINK_NAMES.split()]
# What a file with other tests of this kind has somewhere in it: a fixture, or the marker.
SPARK_WORD = re.compile(r"\bspark: ")
JAVA_WORD = re.compile(rf"\b({'|'.join(sorted(JAVA))}): |mark\.java\b")

# What a run chooses of a part, at the end of its expression: see `__main__.py`.
CHOSEN = re.compile(r" and (not slow|\(slow or sampled\))$")

# No deadline: the same example is slow once, while something else has the processor.
settings.register_profile(
    "user",
    deadline=None,
    max_examples=500 if TORTURE else examples(30),
    # A busy machine is slow, too; and each example makes what it needs in its test's fixtures.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", settings.get_profile("user"), print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" and not TORTURE else "user")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses Spark, other Java and programs, and what is made for it; give it time for a
    start. The tests of what was changed come first."""
    _leave_other_servers_to_slow(items)
    for item in items:
        used = {*getattr(item, "fixturenames", ()), *((ENGINES | CATALOGS) & _list_texts(item))}
        if "spark" in used or item.path.is_relative_to(SPARK_FOLDER):
            item.add_marker(pytest.mark.spark)
        if JAVA & used or any(map(item.path.is_relative_to, JAVA_FOLDERS)):
            item.add_marker(pytest.mark.java)
        if any(map(item.path.is_relative_to, PROGRAM_FOLDERS)):
            item.add_marker(pytest.mark.programs)
        if any(map(item.path.is_relative_to, SINK_PATHS)):
            item.add_marker(pytest.mark.sinks)
        if item.get_closest_marker("java") and not _may_start_java(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} starts Java, and its file names no such fixture"
            )
        for component in {NEEDS[name] for name in used & set(NEEDS)}:
            item.add_marker(pytest.mark.needs(component))
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(sampled)
        if SERVERS & used and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(START_TIMEOUT_S))
    sort_by_change(items)


def _leave_other_servers_to_slow(items: list[pytest.Item]) -> None:
    """A test that is for the servers of several object stores, search engines or catalogs is quick
    with one of them, which its name chooses, and slow with the others."""
    cases: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        for server in (STORES | ENGINES | CATALOGS) & _list_texts(item):
            cases.setdefault(item.nodeid.replace(server, ""), {})[server] = item
    for name, by_server in cases.items():
        servers = sorted(by_server)
        chosen = servers[zlib.crc32(name.encode()) % len(servers)]
        for server in servers:
            if server != chosen:
                by_server[server].add_marker(pytest.mark.slow)


def _list_texts(item: pytest.Item) -> set[str]:
    """A test's parameters that are texts."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params.values() if callspec else ()
    return {each for each in params if isinstance(each, str)}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--share=1/2``: the first half of the files."""
    parser.addoption("--share", default="1/1", help="which share of the test files, as 1/2")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part of a run imports no file that has only tests of others: half of the time until its
    first test. Only the expressions of the parts say so."""
    path = collection_path
    is_test = path.name.startswith("test_")
    with_programs = any(map(path.is_relative_to, PROGRAM_FOLDERS))
    of_sinks = any(map(path.is_relative_to, SINK_PATHS))
    share, shares = map(int, config.option.share.split("/"))
    # By the name: the same share each time, whatever files there are.
    if is_test and zlib.crc32(f"{path.parent.name}/{path.name}".encode()) % shares != share - 1:
        return True
    match CHOSEN.sub("", config.option.markexpr):
        case "spark":
            other = is_test and not (
                path.is_relative_to(SPARK_FOLDER) or SPARK_WORD.search(_text(path))
            )
        case "java and not spark":
            other = path == SPARK_FOLDER or (is_test and not _may_start_java(path))
        case "sinks and not java":
            other = is_test and not of_sinks
        case "programs and not sinks and not java":
            other = of_sinks or (is_test and not with_programs)
        case "not programs and not sinks and not java":
            other = path in JAVA_FOLDERS or with_programs or of_sinks
        case "not programs and not java":  # of `make check`
            other = path in JAVA_FOLDERS or with_programs
        case _:
            other = False
    return other or None


def _may_start_java(file: Path) -> bool:
    """Whether a file is in one of the folders, or so much as names what marks a test ``java``."""
    if any(map(file.is_relative_to, JAVA_FOLDERS)):
        return True
    return JAVA_WORD.search(_text(file)) is not None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make what the selected tests need, before the first of them: none waits within its time."""
    if session.config.option.collectonly:
        return
    marks = (mark for item in session.items for mark in item.iter_markers("needs"))
    names = sorted({name for mark in marks for name in mark.args} - set(Component.failed))
    if names:
        from tests.prepare import prepare

        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        Component.failed.update(prepare(names, terminal.write_line))


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that a test has made known are not taken out of what others expect."""
    monkeypatch.setattr(secrets, "_forms", [])


@pytest.fixture(autouse=True, scope="session")
def kafka_sockets() -> Iterator[None]:
    """kafka-python's sockets are closed where it forgets them."""
    with sockets_closed():
        yield


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests marked ``anyio``: asyncio, as aiohttp and aiobotocore need it."""
    return "asyncio"


@pytest.fixture(scope="module")
def compiled() -> None:
    """The compiled part of the encoders is there."""
    require("tailer.native._rowbytes, which needs a C compiler,", rowbytes.native is not None)


@pytest.fixture(scope="module", params=["compiled", "by Arrow"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests of a module twice: with the compiled part of the encoders, and without it."""
    native = rowbytes.native
    if request.param == "compiled":
        require("tailer.native._rowbytes, which needs a C compiler,", native is not None)
    rowbytes.native = native if request.param == "compiled" else None
    yield
    rowbytes.native = native


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One real Spark with Delta for all tests: UTC, two threads, reachable from here alone."""
    require("Java 17 or newer", java_major() >= 17)
    folder = tmp_path_factory.mktemp("spark")
    session = start_spark(folder, str(with_byte_code(folder)))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def own_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test sets in Spark's session, and its views, are not the next one's."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    before = dict(session.conf.getAll)
    yield
    after = dict(session.conf.getAll)
    for key in after.keys() - before.keys():
        session.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value:
            session.conf.set(key, value)
    for view in session.sql("SHOW VIEWS").where("isTemporary").collect():
        session.catalog.dropTempView(view.viewName)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """One real broker for all tests that do not stop it; each uses topics of its own."""
    from tests.kafka.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def brokers() -> Iterator[Brokers]:
    """Three real brokers that replicate. Who ends one of them starts it again."""
    from tests.kafka.brokers import Brokers

    with Brokers() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """One real schema registry for all tests; each uses subjects of its own."""
    from tests.support.registry import Registry

    with Registry() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One real PostgreSQL server for all tests that do not stop it; each uses a schema of its
    own."""
    from tests.support.postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgvector() -> Iterator[Postgres]:
    """One real PostgreSQL server with the extension `vector`, in the database `postgres`."""
    from tests.support.postgres import start_pgvector

    with start_pgvector() as server:
        server.query("CREATE EXTENSION vector")
        yield server


@pytest.fixture(scope="session")
def aws() -> Iterator[Aws]:
    """Services of AWS for all tests; each uses targets of its own."""
    from tests.support.aws import ACCOUNT, Aws

    with pytest.MonkeyPatch.context() as patched, Aws() as server:
        for name, value in ACCOUNT.items():
            patched.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def pubsub() -> Iterator[Pubsub]:
    """One server of Pub/Sub for all tests that do not stop it; each uses a topic of its own."""
    from tests.support.pubsub import Pubsub

    with Pubsub() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[Mysql]:
    """One real MariaDB server for all tests that do not stop it; each uses a database of its
    own."""
    from tests.support.mysql import Mysql

    with Mysql() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """One real Redis server for all tests that do not stop it; each uses streams of its own."""
    from tests.support.brokers import Redis

    with Redis() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMq]:
    """One real RabbitMQ server for all tests that do not stop it; each uses queues of its own."""
    from tests.support.brokers import RabbitMq

    with RabbitMq() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """One real NATS server for all tests that do not stop it; each uses streams of its own."""
    from tests.support.brokers import Nats

    with Nats() as server:
        yield server


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearch]:
    """One real OpenSearch for all tests that do not stop it; each uses indices of its own."""
    from tests.support.opensearch import OpenSearch

    with OpenSearch() as server:
        yield server


@pytest.fixture(scope="session")
def elasticsearch() -> Iterator[Elasticsearch]:
    """One real Elasticsearch for all tests that do not stop it; each uses indices of its own."""
    from tests.support.elasticsearch import Elasticsearch

    with Elasticsearch() as server:
        yield server


@pytest.fixture(params=sorted(ENGINES))
def search_engine(request: pytest.FixtureRequest) -> SearchEngine:
    """Each of the search engines."""
    engine: SearchEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(scope="session")
def rest_catalog() -> Iterator[RestCatalog]:
    """One real REST catalog of Iceberg for all tests; each uses a namespace of its own. Who ends it
    starts it again."""
    from tests.support.iceberg_rest import RestCatalog

    with RestCatalog() as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[ClickHouse]:
    """ClickHouse's engine for all tests that do not stop it; each uses tables of its own."""
    from tests.support.clickhouse import ClickHouse

    with ClickHouse() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for all tests."""
    with run_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 server's account in the environment, where users have theirs; and nothing else."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3_server: S3Server, s3_account: None) -> Bucket:  # noqa: ARG001 - it sets variables
    """An empty bucket."""
    return s3_server.bucket(f"b-{uuid.uuid4()}")


@pytest.fixture(scope="session")
def azurite() -> Iterator[CloudServer]:
    """One real server of Azure's storage for all tests."""
    with run_cloud("azure") as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[CloudServer]:
    """One real server of Google's storage for all tests."""
    with run_cloud("gcs") as server:
        yield server


@pytest.fixture(params=CLOUD_SERVERS)
def container(request: pytest.FixtureRequest) -> Container:
    """An empty container of each cloud."""
    server: CloudServer | S3Server = request.getfixturevalue(request.param)
    return server.container()


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink's request is sent once: what fails is the feed's to try again."""
    monkeypatch.setattr("sinks.messages.retry.ATTEMPTS", 1)
