"""Profile files, addresses of shared tables, and the tokens that requests carry."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tailer.errors import ConfigError, TransientError
from tailer.sharing.auth import Authorization
from tailer.sharing.profile import (
    BasicAuth,
    BearerToken,
    ClientCredentials,
    PrivateKey,
    Profile,
    is_shared,
    load_profile,
    parse_address,
    parse_profile,
)

ENDPOINT = "https://sharing.example.org/delta-sharing/"
V1 = {"shareCredentialsVersion": 1, "endpoint": ENDPOINT, "bearerToken": "s3cret"}
OAUTH = {
    "shareCredentialsVersion": 2,
    "type": "oauth_client_credentials",
    "endpoint": ENDPOINT,
    "tokenEndpoint": "https://login.example.org/token",
    "clientId": "me",
    "clientSecret": "s3cret",
    "scope": "all",
}
BASIC = {
    "shareCredentialsVersion": 2,
    "type": "basic",
    "endpoint": ENDPOINT,
    "username": "me",
    "password": "s3cret",
}


def profile(**fields: Any) -> str:
    return json.dumps(fields)


def test_every_kind_of_profile_is_read() -> None:
    assert parse_profile(profile(**V1)).endpoint == ENDPOINT.rstrip("/")
    assert parse_profile(profile(**V1)).credentials == BearerToken("s3cret")
    typed = {**V1, "shareCredentialsVersion": 2, "type": "bearer_token"}
    assert parse_profile(profile(**typed)).credentials == BearerToken("s3cret")
    assert parse_profile(profile(**BASIC)).credentials == BasicAuth("me", "s3cret")
    assert parse_profile(profile(**OAUTH)).credentials == ClientCredentials(
        "https://login.example.org/token", "me", "s3cret", "all"
    )


@pytest.mark.parametrize("document", [V1, OAUTH, BASIC])
def test_no_secret_is_in_a_repr(document: dict[str, Any]) -> None:
    found = parse_profile(profile(**document))
    assert "s3cret" not in repr(found) + str(found) + repr(Authorization(found, lambda: 0.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shareCredentialsVersion": 3}, "shareCredentialsVersion 3, and 1 and 2 are known"),
        ({"shareCredentialsVersion": None}, "install a newer delta-tailer"),
        ({"shareCredentialsVersion": True}, "install a newer delta-tailer"),
        ({"shareCredentialsVersion": 2}, "the type None"),
        ({"shareCredentialsVersion": 2, "type": "oauth_jwt"}, "the type 'oauth_jwt'"),
        ({"bearerToken": None}, "lacks bearerToken"),
        ({"bearerToken": "a\nX-Evil: b"}, "line break"),
        ({"endpoint": "http://sharing.example.org/"}, "only https"),
        ({"endpoint": "file:///etc"}, "only https"),
        ({"endpoint": "https://user:pw@host/"}, "only https"),
        ({"endpoint": "https://[broken/"}, "not a URL"),
        ({"expirationTime": "soon"}, "not an ISO 8601 time"),
    ],
)
def test_a_profile_that_is_wrong_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_profile(profile(**{**V1, **changes}), "x.share")
    assert "x.share" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_what_is_not_json_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match="not JSON") as caught:
        parse_profile('{"bearerToken": "s3cret')
    assert "s3cret" not in repr(caught.value.__cause__) + str(caught.value)


def test_plain_http_goes_to_this_machine_or_where_it_is_allowed() -> None:
    for local in ("http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x"):
        assert parse_profile(profile(**{**V1, "endpoint": local})).endpoint == local
    other = profile(**{**V1, "endpoint": "http://sharing.internal/x"})
    assert parse_profile(other, allow_http=True).endpoint == "http://sharing.internal/x"


def test_a_profile_that_is_not_there_is_a_mistake_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load_profile(str(tmp_path / "none.share"))


def test_an_address_names_profile_and_table(tmp_path: Path) -> None:
    assert is_shared("a/b.share#s.x.t")
    assert parse_address("a#b/p.share#s.x.t") == ("a#b/p.share", "s", "x", "t")
    assert not is_shared("/data/with#hash.and.dots")
    assert not is_shared("/data/p.share#1/orders")
    (tmp_path / "profile.json").write_text("{}")
    assert is_shared(f"{tmp_path}/profile.json#s.x.t")
    for wrong in ("p.share#s.t", "p.share#s.x.t.u", "p.share#s..t", "#s.x.t"):
        with pytest.raises(ConfigError, match=r"profile\.share#share\.schema\.table"):
            parse_address(wrong)


# Tokens


@pytest.mark.anyio
async def test_a_private_key_without_the_package_that_signs_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    key = PrivateKey("https://h/token", "https://h", "me", Path("key.pem"))
    authorization = Authorization(Profile("https://h", key), lambda: 0.0)
    async with ClientSession() as session:
        with pytest.raises(ConfigError, match=r"install delta-tailer\[sharing\]"):
            await authorization.make_header(session)


class TokenEndpoint:
    """An OAuth server: it sells a new token each time, with the answers that it is told."""

    def __init__(self) -> None:
        self.sold = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.life: Any = 3600
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.requests.append((request.headers["Authorization"], form))
        self.sold += 1
        body = {"access_token": f"token-{self.sold}", "expires_in": self.life}
        return web.json_response(body, status=self.status)


@asynccontextmanager
async def selling() -> AsyncIterator[tuple[TokenEndpoint, str]]:
    seller = TokenEndpoint()
    app = web.Application()
    app.router.add_post("/token", seller.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield seller, f"http://{host}:{port}/token"
    finally:
        await runner.cleanup()


@pytest.mark.anyio
async def test_a_token_is_bought_once_and_renewed_before_it_ends() -> None:
    now = [1000.0]
    async with selling() as (seller, url), ClientSession() as session:
        bought = parse_profile(profile(**{**OAUTH, "tokenEndpoint": url}))
        authorization = Authorization(bought, lambda: now[0])
        assert await authorization.make_header(session) == "Bearer token-1"
        now[0] += 2999
        assert await authorization.make_header(session) == "Bearer token-1"
        now[0] += 2  # less than ten minutes are left
        assert await authorization.make_header(session) == "Bearer token-2"
        authorization.forget_token()
        seller.life = "60"  # some endpoints say it as a text
        assert await authorization.make_header(session) == "Bearer token-3"
        now[0] += 29
        assert await authorization.make_header(session) == "Bearer token-3"
        now[0] += 2
        assert await authorization.make_header(session) == "Bearer token-4"
    header, form = seller.requests[0]
    assert header == "Basic bWU6czNjcmV0"
    assert form == {"grant_type": "client_credentials", "scope": "all"}


@pytest.mark.anyio
async def test_a_token_endpoint_that_refuses_is_named_without_the_secret() -> None:
    async with selling() as (seller, url), ClientSession() as session:
        bought = parse_profile(profile(**{**OAUTH, "tokenEndpoint": url}), "x.share")
        authorization = Authorization(bought, lambda: 0.0)
        seller.status = 401
        with pytest.raises(ConfigError, match=r"status 401; check the profile x\.share") as caught:
            await authorization.make_header(session)
        assert "s3cret" not in str(caught.value)
        seller.status = 503
        with pytest.raises(TransientError, match="answered 503"):
            await authorization.make_header(session)


@pytest.mark.anyio
async def test_an_expired_token_is_noticed_before_it_is_sent() -> None:
    ended = parse_profile(profile(**{**V1, "expirationTime": "2021-11-12T00:12:29.0Z"}), "x.share")
    async with ClientSession() as session:
        with pytest.raises(ConfigError, match=r"x\.share expired at 2021-11-12T00:12:29"):
            await Authorization(ended, lambda: 1.7e9).make_header(session)
        assert await Authorization(ended, lambda: 1.6e9).make_header(session) == "Bearer s3cret"
