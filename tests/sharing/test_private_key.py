"""Profiles with a private key: a token endpoint that checks what the key signed."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from aiohttp import ClientSession, web

from tailer.errors import ConfigError
from tailer.sharing.assertion import ALGORITHMS
from tailer.sharing.auth import Authorization
from tailer.sharing.client import SharingClient
from tailer.sharing.profile import PrivateKey, load_profile
from tests.sharing.official import call_official, official_python
from tests.sharing.reference_server import TOKEN, serving
from tests.sharing.shared import NAME, orders
from tests.support.components import require

pytestmark = pytest.mark.anyio
NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _cryptography() -> None:
    require("cryptography", find_spec("cryptography") is not None)


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def make_key(algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if algorithm.startswith("ES"):
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        return ec.generate_private_key(curves[algorithm])
    return rsa.generate_private_key(65537, 2048)


def pem(key: Any, password: bytes | None = None) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    hidden: Any = s.BestAvailableEncryption(password) if password else s.NoEncryption()
    text: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, hidden)
    return text


def verify(key: Any, algorithm: str, signature: bytes, data: bytes) -> None:
    """Raises InvalidSignature for one that is not of this key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    kinds: dict[str, Any] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
    digest = kinds[algorithm[2:]]()
    if algorithm.startswith("ES"):
        half = len(signature) // 2
        one, other = (int.from_bytes(part, "big") for part in (signature[:half], signature[half:]))
        key.verify(encode_dss_signature(one, other), data, ec.ECDSA(digest))
        return
    filled: Any = padding.PKCS1v15()
    if algorithm.startswith("PS"):
        filled = padding.PSS(padding.MGF1(digest), salt_length=digest.digest_size)
    key.verify(signature, data, filled, digest)


@dataclass
class TokenEndpoint:
    """Sells the reference server's token to whom signs with the right key, once per assertion."""

    key: Any
    algorithm: str
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        from cryptography.exceptions import InvalidSignature

        form = await request.post()
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        assert "Authorization" not in request.headers
        signed, _, signature = str(form["assertion"]).rpartition(".")
        header, claims = (json.loads(decoded(part)) for part in signed.split("."))
        try:
            verify(self.key, self.algorithm, decoded(signature), signed.encode())
        except InvalidSignature:
            return web.json_response({"error": "invalid_grant"}, status=400)
        if claims["jti"] in {claims["jti"] for _, claims in self.seen}:
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.seen.append((header, claims))
        return web.json_response({"access_token": TOKEN, "expires_in": "3600"})


@asynccontextmanager
async def selling(algorithm: str, key: Any) -> AsyncIterator[tuple[TokenEndpoint, str]]:
    seller = TokenEndpoint(key.public_key(), algorithm)
    app = web.Application()
    app.router.add_post("/token", seller.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield seller, f"http://{host}:{port}/token"
    finally:
        await runner.cleanup()


def write_profile(folder: Path, endpoint: str, token_endpoint: str, **key: Any) -> Path:
    file = folder / "key.share"
    private = {"privateKeyFile": "key.pem", "keyId": "key-1", **key}
    auth = {
        "tokenEndpoint": token_endpoint,
        "issuer": "https://login.example.org/issuer",
        "clientId": "me",
        "audience": "sharing",
        "scope": "all",
        "privateKey": private,
    }
    kind = "oauth_jwt_bearer_private_key_jwt"
    document = {"shareCredentialsVersion": 2, "type": kind, "endpoint": endpoint, "auth": auth}
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_signed_assertion_buys_a_token(tmp_path: Path, algorithm: str) -> None:
    key = make_key(algorithm)
    (tmp_path / "key.pem").write_bytes(pem(key))
    async with selling(algorithm, key) as (seller, url), ClientSession() as session:
        profile = load_profile(
            str(write_profile(tmp_path, "https://example.org", url, algorithm=algorithm))
        )
        authorization = Authorization(profile, lambda: NOW)
        assert await authorization.make_header(session) == f"Bearer {TOKEN}"
        authorization.forget_token()  # as after a 401
        assert await authorization.make_header(session) == f"Bearer {TOKEN}"
    (header, claims), (_, again) = seller.seen
    assert header == {"alg": algorithm, "typ": "JWT", "kid": "key-1"}
    jti = claims.pop("jti")
    assert again.pop("jti") != jti
    assert claims == again == {
        "aud": "https://login.example.org/issuer", "iss": "me", "scope": "all",
        "resource": "sharing", "iat": NOW, "exp": NOW + 120,
    }  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.needs("official")
async def test_the_official_client_says_the_same_with_the_same_profile(tmp_path: Path) -> None:
    python = official_python()
    key = make_key("RS256")
    (tmp_path / "key.pem").write_bytes(pem(key))
    with serving({NAME: orders(tmp_path / "orders").folder}) as server:
        async with selling("RS256", key) as (seller, url):
            whole = {"privateKeyFile": str(tmp_path / "key.pem")}
            file = str(write_profile(tmp_path, server.endpoint, url, **whole))
            client = SharingClient(load_profile(file), lambda: NOW)
            assert [t.name async for t in client.list_all_tables("share")] == ["table"]
            await client.aclose()
            call = {"profile": file, "function": "list_all_tables"}
            told = await anyio.to_thread.run_sync(partial(call_official, python, [call]))
    assert told == [{"result": [["share", "schema", "table"]]}]
    ours, theirs = seller.seen
    assert set(ours[1]) == set(theirs[1])
    same = ("aud", "iss", "scope", "resource")
    assert [ours[1][name] for name in same] == [theirs[1][name] for name in same]
    assert ours[0] == {"typ": "JWT", **theirs[0]}


async def test_a_key_that_is_not_the_clients_is_refused_by_the_endpoint(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(pem(make_key("RS256")))
    async with selling("RS256", make_key("RS256")) as (_, url), ClientSession() as session:
        profile = load_profile(str(write_profile(tmp_path, "https://example.org", url)))
        with pytest.raises(ConfigError, match="refused the client 'me' with status 400"):
            await Authorization(profile, lambda: NOW).make_header(session)


@pytest.mark.parametrize(
    ("content", "algorithm", "words"),
    [
        (None, "RS256", "can't be read"),
        (b"s3cret", "RS256", "is not a private key in PEM form"),
        ("locked", "RS256", "without a password"),
        ("ES256", "RS256", "of another kind than RS256 needs"),
        ("RS256", "ES256", "of another kind than ES256 needs"),
        ("ES256", "ES384", "of another kind than ES384 needs"),
    ],
)
async def test_a_key_that_can_not_sign_is_named(
    tmp_path: Path, content: str | bytes | None, algorithm: str, words: str
) -> None:
    if content == "locked":
        content = pem(make_key("RS256"), b"s3cret")
    elif isinstance(content, str):
        content = pem(make_key(content))
    if content is not None:
        (tmp_path / "key.pem").write_bytes(content)
    file = write_profile(
        tmp_path, "https://example.org", "https://login.example.org/token", algorithm=algorithm
    )
    async with ClientSession() as session:
        with pytest.raises(ConfigError, match=words) as caught:
            await Authorization(load_profile(str(file)), lambda: NOW).make_header(session)
    assert str(tmp_path / "key.pem") in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_what_a_profile_lacks_is_named(tmp_path: Path) -> None:
    file = write_profile(tmp_path, "https://example.org", "https://login.example.org/token")
    found = load_profile(str(file)).credentials
    assert isinstance(found, PrivateKey)
    assert found.key_file == tmp_path / "key.pem"
    good = json.loads(file.read_text())
    for changes, words in (
        ({"auth": None}, "lacks auth, an object"),
        ({"auth": {**good["auth"], "privateKey": "x"}}, r"lacks auth\.privateKey"),
        ({"auth": {**good["auth"], "privateKey": {}}}, "lacks privateKeyFile"),
        ({"auth": {**good["auth"], "issuer": ""}}, "lacks issuer"),
        ({"auth": {**good["auth"], "tokenEndpoint": "http://evil.example.org"}}, "only https"),
        ({"auth": {**good["auth"], "privateKey": {"algorithm": "none"}}}, "algorithm 'none'"),
    ):
        file.write_text(json.dumps({**good, **changes}))
        with pytest.raises(ConfigError, match=words):
            load_profile(str(file))
