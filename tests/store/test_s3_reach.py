"""An S3 server that can't be reached, and options under other tools' names: what to do is said.

No server of S3's is needed for any of it.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest

from tailer.errors import ConfigError, TableError, TransientError
from tailer.storage import open_store
from tailer.store.objects import options as cloud_options
from tailer.store.s3.options import S3Options

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cloud_options.RETRIES, "max_retries", 0)


async def read(endpoint: str) -> None:
    options = {
        "endpoint_url": endpoint, "region": "us-east-1",
        "access_key_id": "a", "secret_access_key": "b",
    }  # fmt: skip
    async with aclosing(open_store("s3://bucket/orders", options)) as store:
        await store.read("x")


@asynccontextmanager
async def plain_server() -> AsyncIterator[int]:
    """Answers whatever comes as an HTTP server does that does not know it."""

    async def answer(client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            await client.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610  # no Django here
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_https_to_a_server_of_plain_http_is_said() -> None:
    async with plain_server() as port:
        with pytest.raises(TableError) as refused:
            await read(f"https://127.0.0.1:{port}")
    assert "does not speak https (InvalidContentType); write endpoint_url" in str(refused.value)
    assert "ca_file" not in str(refused.value)


async def test_a_refused_connection_names_a_remedy() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        told = "the server can't be reached: check endpoint_url"
        with pytest.raises(TransientError, match=told):
            await read(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url", ["http://me:pass-word@127.0.0.1:1", "http://me:pass/word@127.0.0.1"]
)
async def test_an_endpoint_with_a_password_is_refused_and_not_shown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the options, and from the environment."""
    with pytest.raises(ConfigError, match="option 'endpoint_url' of the S3 store must be") as e:
        await read(url)
    assert "word" not in str(e.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    account = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-west-1"}
    with pytest.raises(ConfigError, match="the address of the S3 servers in AWS_ENDPOINT") as e:
        open_store("s3://bucket/orders", account)
    assert "word" not in str(e.value)


async def test_an_endpoint_that_does_not_resolve_names_a_remedy() -> None:
    told = "DNS does not know the server's name: check endpoint_url"
    with pytest.raises(TransientError, match=told):
        await read("http://no.such.host.invalid:9000")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("AWS_ENDPOINT_URL", "here it is 'endpoint_url'"),
        ("aws_endpoint", "here it is 'endpoint_url'"),
        ("AWS_ENDPOINT_URL_S3", "here it is 'endpoint_url'"),
        ("AWS_ACCESS_KEY_ID", "here it is 'access_key_id'"),
        ("aws_secret_access_key", "here it is 'secret_access_key'"),
        ("AWS_SESSION_TOKEN", "here it is 'session_token'"),
        ("AWS_REGION", "here it is 'region'"),
        ("AWS_DEFAULT_REGION", "here it is 'region'"),
        ("aws_skip_signature", "here it is 'anonymous'"),
        ("aws_virtual_hosted_style_request", "give path_style, which says the opposite"),
        ("AWS_ALLOW_HTTP", "an endpoint_url with http:// is enough; leave it out"),
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "this store only reads; leave it out"),
        ("endpoint_ur", "did you mean 'endpoint_url'"),
    ],
)
def test_another_tool_s_option_gets_ours(key: str, hint: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^option '{key}' of the S3 store is not known.*{hint}"
    ) as refused:
        S3Options.from_options({key: "hush"})
    assert "hush" not in str(refused.value)
