"""Where a sharing server's URLs may lead: not to this machine, whatever their names say."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tailer.errors import TableError
from tailer.sharing.client import SharingClient
from tailer.sharing.http import Whereabouts
from tailer.sharing.model import Table
from tailer.sharing.profile import parse_profile
from tailer.store.https import FileRange, HttpsFiles
from tests.sharing.lying import OneLink, files_at, lying, saying

pytestmark = pytest.mark.anyio
TABLE = Table("table", "schema", "share")


def resolving(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    """Have these names resolve to these addresses."""
    original = socket.getaddrinfo

    def found(host: Any, *arguments: Any, **more: Any) -> Any:
        return original(names.get(host, host), *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "fd00:ec2::254", "0.0.0.1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "fe80::1"],
)  # fmt: skip
async def test_a_name_that_resolves_here_is_not_followed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lying(saying(b"abcd")) as (url, seen):
        target = f"http://files.example.org:{urlsplit(url).port}/f"
        resolving(monkeypatch, {"files.example.org": address})
        async with files_at(target, local=False, http=True) as files:
            with pytest.raises(TableError, match="leads to this machine or its link"):
                await files.read("data/f", 0, 4)
        assert not seen


@pytest.mark.parametrize(
    "host",
    ["\u2460\u2461\u2466.\u24ea.\u24ea.\u2460", "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
     "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1", "\u24db\u24de\u24d2alhost",
     "localhost.", "127.0.0.1."],
)  # fmt: skip
async def test_an_address_in_other_digits_is_not_followed(host: str) -> None:
    async with lying(saying(b"abcd")) as (url, seen):
        target = f"http://{host}:{urlsplit(url).port}/f"
        async with files_at(target, local=False, http=True) as files:
            with pytest.raises(TableError, match="leads to this machine or its link"):
                await files.read("data/f", 0, 4)
        assert not seen


async def test_each_connection_is_checked_also_of_a_redirect_and_of_a_name_that_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 127.0.0.2 stands for a server elsewhere.
    monkeypatch.setattr("tailer.sharing.http.is_here", lambda address: address != "127.0.0.2")
    names = {"files.example.org": "127.0.0.2", "other.example.org": "127.0.0.1"}
    resolving(monkeypatch, names)
    secret = saying(b"abcd", "Content-Range: bytes 0-3/4", status="206 Partial Content")
    async with lying(secret) as (url, seen):
        led = saying(
            b"", f"Location: http://other.example.org:{urlsplit(url).port}/", status="302 F"
        )
        async with lying(led, "127.0.0.2") as (elsewhere, asked):
            target = f"http://files.example.org:{urlsplit(elsewhere).port}/f"
            async with files_at(target, local=False, http=True) as files:
                with pytest.raises(TableError, match="leads to this machine or its link"):
                    await files.read("data/f", 0, 4)
            assert len(asked) == 1
        # The same name, and it moves between two requests.
        port = urlsplit(url).port or 0
        async with (
            lying(secret, "127.0.0.2", port) as (_, asked),
            files_at(f"http://files.example.org:{port}/f", local=False, http=True) as files,
        ):
            assert await files.read("data/f", 0, 4) == FileRange(b"abcd", 4, "")
            names["files.example.org"] = "127.0.0.1"
            files._session()._connector._cached_hosts.clear()  # type: ignore[union-attr]
            with pytest.raises(TableError, match="leads to this machine or its link"):
                await files.read("data/f", 0, 4)
            assert len(asked) == 1
        assert not seen


async def test_who_asks_a_server_here_by_a_name_may_be_led_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"share.internal": "127.0.0.1"}
    resolving(monkeypatch, names)
    reply = saying(b"abcd", "Content-Range: bytes 0-3/4", status="206 Partial Content")
    version = saying(b"", "Delta-Table-Version: 1")
    async with lying(reply) as (url, _), lying(version) as (api, _):
        text = {"shareCredentialsVersion": 1, "bearerToken": "t",
                "endpoint": f"http://share.internal:{urlsplit(api).port}"}  # fmt: skip
        profile = parse_profile(json.dumps(text), allow_http=True)
        client = SharingClient(profile, lambda: 0.0)
        sessions = client.sessions
        target = f"http://share.internal:{urlsplit(url).port}/f"
        files = HttpsFiles(
            sessions.open_files_session, OneLink(target), lambda: 0.0, root="t", allow_http=True,
            whereabouts=sessions.whereabouts,
        )  # fmt: skip
        try:
            with pytest.raises(TableError, match="leads to this machine"):
                await files.read("data/f", 0, 4)
            assert await client.find_version(TABLE) == 1
            assert await files.read("data/f", 0, 4) == FileRange(b"abcd", 4, "")
        finally:
            await client.aclose()


def test_a_name_that_has_led_elsewhere_is_not_believed_to_be_here() -> None:
    for seen, here in (
        ([["127.0.0.1"]], True), ([["127.0.0.1", "192.0.2.1"]], False),
        ([["192.0.2.1"], ["127.0.0.1"]], False), ([["127.0.0.1"], ["192.0.2.1"]], False),
        ([], False),
    ):  # fmt: skip
        whereabouts = Whereabouts("https://share.example.org")
        for addresses in seen:
            whereabouts.record_addresses(addresses)
        assert whereabouts.here == here
