"""What every sink does whose connection is to be encrypted, where it is not, or not well.

A server without TLS hears neither a password nor an event; a certificate that nobody vouches for,
or of somebody else, is for good; a connection that is cut, in the handshake or at rest, may pass.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from sinks.formats.registry import load_registry
from tailer.errors import ConfigError, SinkRejected, TailerError, TransientError
from tailer.sink import Sink, make_sink
from tests.support.brokers import PASSWORD
from tests.support.clickhouse import PASSWORD as CLICKHOUSE_PASSWORD
from tests.support.mysql import MYSQL_PASSWORD
from tests.support.sinks import named, write
from tests.support.tls_front import Certificates, TlsFront
from tests.support.webhook import webhook

pytestmark = [pytest.mark.anyio, pytest.mark.needs("clickhouse", "opensearch")]
EVENT = "name 0"


@dataclass(frozen=True)
class Case:
    """A sink: its options for a port and a file of authorities, the fixture of a real server, and
    how its protocol comes to TLS."""

    options: Callable[[int, Path], dict[str, Any]]
    server: str = ""
    protocol: str = ""


CASES = {
    "nats": Case(
        lambda port, ca: {
            "servers": [f"tls://tailer:{PASSWORD}@127.0.0.1:{port}"], "ca_file": str(ca),
            "stream": f"s{port}", "subject": f"s{port}", "timeout_s": 30,
        }, "nats_server", "nats",
    ),
    "redis": Case(
        lambda port, ca: {
            "url": f"rediss://tailer:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={ca}",
            "stream": f"s{port}", "timeout_s": 30,
        }, "redis_server",
    ),
    "rabbitmq": Case(
        lambda port, ca: {
            "url": f"amqps://tailer:{PASSWORD}@127.0.0.1:{port}/", "ca_file": str(ca),
            "queue": f"q{port}", "queue_type": "classic", "timeout_s": 30,
        }, "rabbitmq_server",
    ),
    "postgres": Case(
        lambda port, ca: {
            "dsn": f"postgresql://127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={ca}",
            "user": "tester", "password": MYSQL_PASSWORD, "mode": "log", "table": f"t{port}",
        }, "postgres", "postgres",
    ),
    "mysql": Case(
        lambda port, ca: {
            "url": f"mysql://127.0.0.1:{port}/test", "user": "tester", "password": MYSQL_PASSWORD,
            "ca_file": str(ca), "mode": "log", "table": f"t{port}",
        }, "mysql", "mysql",
    ),
    "http": Case(
        lambda port, ca: {
            "url": f"https://127.0.0.1:{port}/hook?token={PASSWORD}", "ca_file": str(ca),
            "timeout_s": 30,
        }, "webhook",
    ),
    "clickhouse": Case(
        lambda port, ca: {
            "url": f"https://tailer:{CLICKHOUSE_PASSWORD}@127.0.0.1:{port}", "ca_file": str(ca),
            "table": f"t{port}", "mode": "log", "timeout_s": 30,
        }, "clickhouse",
    ),
    "search": Case(
        lambda port, ca: {
            "url": f"https://tailer:{PASSWORD}@127.0.0.1:{port}", "ca_file": str(ca),
            "index": f"i{port}", "mode": "log", "timeout_s": 30,
        }, "opensearch",
    ),
    # Their good connections are shown by tests of their own.
    "kinesis": Case(
        lambda port, _: {
            "endpoint_url": f"https://127.0.0.1:{port}", "region": "eu-west-1",
            "timeout_s": 30,
        },
    ),
    "kafka": Case(
        lambda port, ca: {
            "bootstrap_servers": f"127.0.0.1:{port}", "topic": "t", "format": "rows",
            "security_protocol": "SSL", "ssl_cafile": str(ca), "delivery_timeout_ms": 10_000,
        },
    ),
    "registry": Case(
        lambda port, ca: {
            "url": f"https://127.0.0.1:{port}", "ca_file": str(ca),
            "user": "tailer", "password": PASSWORD,
        },
    ),
}  # fmt: skip
SERVED = [kind for kind, case in CASES.items() if case.server]


class RegistrySink:
    """The schema registry of the format `avro`, as if it were a sink."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._client = load_registry(options)

    async def open(self, _: str) -> None:
        await anyio.to_thread.run_sync(self._client.register, "subject", '"long"')

    async def write(self, _: Any) -> None:
        pass

    async def aclose(self) -> None:
        pass


def made(kind: str, port: int, certificates: Certificates) -> Any:
    options = CASES[kind].options(port, certificates.authorities)
    return RegistrySink(options) if kind == "registry" else make_sink(kind, options, Path())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> Iterator[None]:
    """Of AWS, whose tools read the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authorities))
    yield
    # kafka-python leaves the sockets of failed handshakes to the garbage collector.
    alive = [thread.name for thread in threading.enumerate() if "_pump" in thread.name]
    assert not alive


@asynccontextmanager
async def upstream(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[int | None]:
    """The port of a sink's real server; None for those that have none here."""
    server = CASES[kind].server
    if server == "webhook":
        async with webhook() as hook:
            yield int(hook.url.rpartition(":")[2].partition("/")[0])
    elif server:
        running = request.getfixturevalue(server)
        if kind == "mysql":
            running.query("CREATE DATABASE IF NOT EXISTS test")
        yield running.port
    else:
        yield None


async def failed(sink: Sink) -> TailerError:
    with pytest.raises(TailerError) as e:
        await write(sink, named())
    assert e.value.family != "internal"
    assert PASSWORD not in str(e.value)
    return e.value


@pytest.mark.parametrize("kind", SERVED)
async def test_what_is_encrypted_arrives_and_a_cut_at_rest_may_pass(
    kind: str, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    async with upstream(kind, request) as port:
        with TlsFront(port, CASES[kind].protocol, certificates.context("right")) as front:
            sink = made(kind, front.port, certificates)
            try:
                await sink.open("orders")
                await sink.write(named())
                front.cut()
                if kind not in (
                    "clickhouse",
                    "http",
                    "search",
                ):  # which connect again by themselves
                    with pytest.raises(TransientError) as e:
                        await sink.write(named(2, version=2))
                    assert e.value.family != "internal"
                    await sink.open("orders")
                await sink.write(named(2, version=2))
            finally:
                await sink.aclose()
            assert not front.heard


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", CASES)
async def test_a_server_without_tls_hears_nothing(
    kind: str, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    async with upstream(kind, request) as port:
        with TlsFront(port) as front:
            await failed(made(kind, front.port, certificates))
        heard = bytes(front.heard)
    for secret in (PASSWORD, MYSQL_PASSWORD, EVENT):
        assert secret.encode() not in heard
    assert b"CONNECT" not in heard


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("certificate", ["unknown", "other"])
@pytest.mark.parametrize("kind", CASES)
async def test_a_certificate_that_does_not_hold_is_for_good(
    kind: str, certificate: str, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    async with upstream(kind, request) as port:
        context = certificates.context(certificate)
        with TlsFront(port, CASES[kind].protocol, context) as front:
            error = await failed(made(kind, front.port, certificates))
    assert isinstance(error, ConfigError | SinkRejected), error
    assert "certificate" in str(error)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", CASES)
async def test_a_cut_in_the_handshake_may_pass(
    kind: str, certificates: Certificates, request: pytest.FixtureRequest
) -> None:
    async with upstream(kind, request) as port:
        with TlsFront(port, CASES[kind].protocol, certificates.context("right"), cut=True) as front:
            error = await failed(made(kind, front.port, certificates))
    assert isinstance(error, TransientError), error
