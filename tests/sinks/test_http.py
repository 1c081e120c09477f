"""The HTTP sink beyond the public suite: its requests, its answers, and what it refuses."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import shutil
import ssl
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sinks.http import HttpSink
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, SinkRejected, TailerError, TransientError
from tailer.sink import Sink, make_sink
from tailer.testing.batches import change_batch
from tests.support.components import free_port, require
from tests.support.sinks import NAMED, named, write
from tests.support.webhook import Webhook, webhook

pytestmark = pytest.mark.anyio

KEYS = [bytes(range(24)), bytes(range(32))]
SECRETS = [f"whsec_{b64encode(key).decode()}" for key in KEYS]


@pytest.fixture
async def hook() -> AsyncIterator[Webhook]:
    async with webhook() as running:
        yield running


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.http._PAUSE_MIN_S", 0.001)
    monkeypatch.setattr("sinks.http._PAUSE_MAX_S", 1.0)


def new(hook: Webhook, folder: Path = Path(), **more: Any) -> Sink:
    return make_sink("http", {"url": hook.url, **more}, folder)


def sizes(hook: Webhook) -> list[int]:
    return [len(json.loads(body)) for _, body in hook.taken]


async def test_each_secret_signs_id_time_and_body(hook: Webhook) -> None:
    await write(new(hook, secrets=SECRETS[:2]), named())
    ((headers, body),) = hook.taken
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = [b64encode(hmac.digest(key, signed, "sha256")).decode() for key in KEYS]
    assert headers["webhook-signature"] == f"v1,{wanted[0]} v1,{wanted[1]}"
    assert headers["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
    assert [event["data"]["id"] for event in json.loads(body)] == [0, 1]


async def test_a_request_that_comes_again_has_its_id(hook: Webhook) -> None:
    hook.answers = [(503, {}), (429, {"Retry-After": "0"})]
    await write(new(hook), named(), named(first=2, version=2))
    await write(new(hook), named())
    names = [headers["webhook-id"] for headers, _ in hook.asked]
    assert names == [names[0]] * 3 + [names[3], names[0]]
    assert names[3] != names[0]
    bodies = [body for _, body in hook.asked]
    assert bodies[0] == bodies[2] == bodies[4]


async def test_requests_have_at_most_so_many_events_and_bytes(hook: Webhook) -> None:
    await write(new(hook, request_events_max=3), named(count=8))
    assert sizes(hook) == [3, 3, 2]
    hook.taken.clear()
    await write(new(hook, request_bytes_max=1024), named(count=8))
    assert sum(sizes(hook)) == 8
    assert len(hook.taken) > 2
    assert max(len(body) for _, body in hook.taken) <= 1024


async def test_an_event_that_is_too_large_is_named(hook: Webhook) -> None:
    batch = change_batch(NAMED, [{"id": 1, "name": "x" * 2000}], version=7, last=True)
    with pytest.raises(
        SinkRejected, match=r"version 7: the event .* at most 1021 can be sent; inc"
    ):
        await write(new(hook, request_bytes_max=1024), batch)
    assert hook.asked == []


@pytest.mark.parametrize(
    ("status", "headers", "family", "said"),
    [
        (500, {}, TransientError, "answered 500 .as asked"),
        (408, {}, TransientError, "answered 408"),
        (422, {}, SinkRejected, "versions 1 to 1, request .* answered 422 .*fix the receiver"),
        (413, {}, SinkRejected, "answered 413"),
        (401, {}, ConfigError, "answered 401 .*check url, secrets and headers"),
        (404, {}, ConfigError, "answered 404"),
        (307, {"Location": "https://x.org"}, ConfigError, "leads to https://x.org: redirects are"),
    ],
)
async def test_an_answer_says_who_must_act(
    hook: Webhook, status: int, headers: dict[str, str], family: type[TailerError], said: str
) -> None:
    hook.answers = [(status, headers)] * 5
    with pytest.raises(family, match=said):
        await write(new(hook), named())
    assert len(hook.asked) == (5 if family is TransientError else 1)


async def test_a_long_pause_that_is_asked_for_is_left_to_the_feed(hook: Webhook) -> None:
    hook.answers = [(503, {"Retry-After": "120"})]
    with pytest.raises(TransientError) as e:
        await write(new(hook), named())
    assert e.value.retry_after_s == 120
    hook.answers = [(503, {"Retry-After": "Thu, 01 Jan 2099 00:00:00 GMT"})]
    with pytest.raises(TransientError) as e:
        await write(new(hook), named())
    assert e.value.retry_after_s == 3600  # an hour, whatever is wished


async def test_the_halves_of_a_refused_batch_send_nothing_twice(hook: Webhook) -> None:
    """As a feed writes that parks rows."""
    sink = new(hook, request_events_max=2)
    assert isinstance(sink, HttpSink)
    sink.piece_rows = 2  # type: ignore[misc]
    hook.refuses = "name 5"
    batch = named(count=8)
    await sink.open("orders")
    parked: list[int] = []

    async def halved(part: ChangeBatch) -> None:
        try:
            await sink.write(part)
        except SinkRejected:
            if part.num_rows == 1:
                parked.append(part.rows.column("id")[0].as_py())
                return
            middle = part.num_rows // 2
            await halved(part.slice(0, middle))
            await halved(part.slice(middle, part.num_rows))

    await halved(batch)
    await sink.aclose()
    assert parked == [5]
    assert [event.payload["id"] for event in hook.events()] == [0, 1, 2, 3, 4, 6, 7]


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """Of a server that signed it itself, in ``cert.pem``."""
    require("openssl", shutil.which("openssl") is not None)
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        "-keyout key.pem -out cert.pem -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


async def test_certificates_are_checked(certificate: ssl.SSLContext, tmp_path: Path) -> None:
    async with webhook(certificate) as hook:
        with pytest.raises(ConfigError, match=r"the certificate is not trusted .*set ca_file"):
            await write(new(hook), named())
        await write(new(hook, tmp_path, ca_file="cert.pem"), named())
        assert sizes(hook) == [2]


async def test_a_receiver_that_is_away_is_waited_for(hook: Webhook) -> None:
    sink = new(Webhook(url=f"http://127.0.0.1:{free_port()}/"))
    for work in (write(sink, named()), sink.look("orders")):
        with pytest.raises(TransientError, match="nothing listens at"):
            await work
    looking = new(hook)
    assert await looking.look("orders") is None
    assert hook.asked == []


@pytest.mark.usefixtures("one_attempt")
async def test_what_a_url_has_to_hide_is_not_shown(hook: Webhook) -> None:
    """A token in the query, as many have, or in the path, as Slack's and Discord's."""
    secrets = ("T0CANARY", "B0CANARYB0CANARY", "xoxbCANARYxoxbCANARYxoxb", "CANARY")
    url = f"{hook.url}/services/{secrets[0]}/{secrets[1]}/{secrets[2]}?token={secrets[3]}&a=b"
    at = url.partition("/hook")[0]
    repeated = {"Location": url.replace("?", "/?")}
    for status, headers in ((307, repeated), (503, {}), (401, {}), (400, {})):
        hook.answers, hook.said = [(status, headers)], f"{'x' * 480} {url}"
        with pytest.raises(TailerError) as e:
            await write(new(hook, url=url), named())
        assert at in str(e.value)
        assert "CANARY" not in str(e.value)
    assert len(hook.asked) == 4
    away = url.replace(at, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransientError, match="nothing listens at") as refused:
        await write(new(hook, url=away), named())
    assert "CANARY" not in str(refused.value)


class Endless:
    """A receiver that takes everything, and whose answer has no end: it sends on and on, or nothing
    after the beginning."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.sent = self.asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            self.asked += 1
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
                await writer.drain()
                self.sent += 65536
                if not self.on:
                    await reader.read()
                    break
        writer.close()


@pytest.mark.parametrize("on", [True, False])
async def test_a_body_without_end_is_left(*, on: bool) -> None:
    """What it answered before is what counts."""
    endless = Endless(on=on)
    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await write(new(Webhook(url=f"http://127.0.0.1:{port}/")), named())
        assert endless.asked == 1
        assert endless.sent < 64 * 1024**2  # what the sockets hold


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://example.org/"}, "'url' .* must be an https:// URL"),
        ({"url": "https://me:dG9v@example.org/"}, "a user in it.* belongs into 'headers'"),
        ({"url": "https://me:dG9v/dG9v@example.org/"}, "its port is not a number"),
        ({"urls": "x"}, "'urls' of sink 'http' is not known .did you mean 'url'"),
        ({"secrets": ["whsec_dG9vIHNob3J0"]}, "must be a list of whsec_ and the base64 text"),
        ({"headers": {"Authorization": 1}}, "'Authorization' is not a string"),
    ],
)
def test_options_are_checked(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as e:
        make_sink("http", {"url": "https://example.org/", **options}, Path())
    assert "dG9v" not in str(e.value)


async def test_files_that_can_t_be_used_are_named(hook: Webhook, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("no certificate\n")
    for options, said in (
        ({"ca_file": "none"}, "'ca_file' of sink 'http': .*none can't be used"),
        ({"ca_file": "bad"}, "bad can't be used"),
    ):
        with pytest.raises(ConfigError, match=said):
            await new(hook, tmp_path, **options).open("orders")
