"""The accounts of the Pub/Sub sink: tokens that are renewed, that do not come, or are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sinks.pubsub.client import Connection
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.sink import make_sink
from tests.support.components import free_port
from tests.support.pubsub import Pubsub
from tests.support.sinks import rows, write

pytestmark = pytest.mark.anyio


class Tokens:
    """A server of tokens: what it answers next, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.status = 200
        self.answer: dict[str, Any] = {}
        self.still = threading.Event()
        self.still.set()
        self.expires_in = 3600


@contextmanager
def token_server() -> Iterator[tuple[Tokens, str]]:
    tokens = Tokens()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tokens.asked += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            tokens.still.wait()
            whole = {"access_token": f"token-{tokens.asked}", "expires_in": tokens.expires_in}
            body = json.dumps(tokens.answer or whole).encode()
            self.send_response(tokens.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield tokens, f"http://127.0.0.1:{server.server_port}/token"
        finally:
            tokens.still.set()
            server.shutdown()


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def write_account(folder: Path, private_key: str, token_uri: str) -> Path:
    file = folder / "account.json"
    given = {"type": "service_account", "client_email": "a@b", "private_key": private_key}
    file.write_text(json.dumps({**given, "token_uri": token_uri}))
    return file


@contextmanager
def connected(server: Pubsub, name: str, *, timeout_s: float = 30) -> Iterator[Connection]:
    """A connection without TLS, which signs all the same."""
    topic = server.topic(name)
    yield Connection(server.address, topic, timeout_s, tls=False)


async def test_a_token_is_renewed_when_it_ends(
    pubsub: Pubsub, private_key: str, tmp_path: Path
) -> None:
    with token_server() as (tokens, uri), connected(pubsub, "renewed") as connection:
        await connection.log_in(write_account(tmp_path, private_key, uri))
        for _ in range(3):
            assert await connection.publish(["e"], [b"x"], "") == 1
        assert tokens.asked == 1
        connection._account.expiry = None
        connection._account.token = None
        assert await connection.publish(["e"], [b"x"], "") == 1
        assert tokens.asked == 2
        await connection.aclose()


async def test_a_token_that_does_not_come_is_waited_for(
    pubsub: Pubsub, private_key: str, tmp_path: Path
) -> None:
    """Also where a status says that it is a fault of the client's."""
    away = f"http://127.0.0.1:{free_port()}/token"
    with connected(pubsub, "away", timeout_s=1) as connection:
        await connection.log_in(write_account(tmp_path, private_key, away))
        with pytest.raises(TransientError, match="there is no token for the account"):
            await connection.publish(["e"], [b"x"], "")
        await connection.aclose()
    with token_server() as (tokens, uri), connected(pubsub, "away2") as connection:
        await connection.log_in(write_account(tmp_path, private_key, uri))
        tokens.status, tokens.answer = 503, {"secret": "s3cret"}
        with pytest.raises(TransientError) as waits:
            await connection.publish(["e"], [b"x"], "")
        tokens.status, tokens.answer = 400, {"error": "invalid_grant"}
        with pytest.raises(ConfigError, match="invalid_grant"):
            await connection.publish(["e"], [b"x"], "")
        tokens.status, tokens.answer = 200, {}
        assert await connection.publish(["e"], [b"x"], "") == 1
        await connection.aclose()
    assert "Pub/Sub" in str(waits.value)


async def test_all_requests_wait_for_one_token(
    pubsub: Pubsub, private_key: str, tmp_path: Path
) -> None:
    with token_server() as (tokens, uri), connected(pubsub, "one", timeout_s=1) as connection:
        await connection.log_in(write_account(tmp_path, private_key, uri))
        tokens.still.clear()
        failed = []

        async def publish() -> None:
            try:
                await connection.publish(["e"], [b"x"], "")
            except TransientError as e:
                failed.append(e)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(publish)
        assert len(failed) == 20
        assert tokens.asked < 20
        await connection.aclose()


async def test_a_token_that_is_refused_is_made_anew(
    pubsub: Pubsub, private_key: str, tmp_path: Path
) -> None:
    with token_server() as (tokens, uri), connected(pubsub, "refused") as connection:
        await connection.log_in(write_account(tmp_path, private_key, uri))
        refused = grpc.StatusCode.UNAUTHENTICATED
        with pubsub.failing("refused", refused), pytest.raises(grpc.aio.AioRpcError):
            await connection.publish(["e"], [b"x"], "")
        assert tokens.asked == 2
        await connection.aclose()


@pytest.mark.parametrize("text", ["[1]", "{}", "no json", '{"type": "service_account"}'])
async def test_a_file_that_is_no_account_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "account.json").write_text(text)
    sink = make_sink(
        "pubsub",
        {
            "topic": "projects/p/topics/t", "endpoint_url": "https://127.0.0.1:1",
            "service_account_file": "account.json",
        },
        tmp_path,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"account\.json is no file of a service account"):
        await sink.open("orders")


async def test_a_refusal_with_much_to_say_is_a_refusal(pubsub: Pubsub) -> None:
    """gRPC would take it for a quota, which passes."""
    sink = make_sink("pubsub", pubsub.options("long"), Path())
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    with (
        pubsub.failing("long", invalid, method="Publish", message="x" * 20_000),
        pytest.raises(TailerError, match="INVALID_ARGUMENT") as refused,
    ):
        await write(sink, rows((1, "a")))
    assert not isinstance(refused.value, TransientError)
    assert len(str(refused.value)) < 2000


def test_an_address_has_no_path() -> None:
    given = {"topic": "projects/p/topics/t", "endpoint_url": "https://pubsub.googleapis.com/v1"}
    with pytest.raises(ConfigError, match="endpoint_url"):
        make_sink("pubsub", given, Path())
