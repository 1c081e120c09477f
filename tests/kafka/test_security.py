"""Real listeners with SASL, TLS and both, with right and wrong credentials."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import socket
import subprocess
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from sinks.kafka.client.security import OAuthTokens, Security
from tailer.errors import SinkRejected, TailerError, TransientError
from tests.kafka.broker import Broker
from tests.kafka.sinks import batch, fresh, made, opened, refused
from tests.kafka.topics import events
from tests.sharing.lying import lying, saying
from tests.support.components import require

pytestmark = pytest.mark.anyio

JAAS = "org.apache.kafka.common.security."
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "TLS": "SSL",
    "MTLS": "SSL",
}
PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "pw1"}
SCRAM = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "carol", "sasl_password": "pw3"}
OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_client_id": "tailer",
    "sasl_oauthbearer_client_secret": "s3cret &",
    "sasl_oauthbearer_scope": "kafka",
}


def make_certificates(folder: Path) -> Path:
    """An authority, and by it a certificate for the broker and one for a client."""
    require("openssl", shutil.which("openssl") is not None)

    def openssl(command: str) -> None:
        arguments = ["openssl", *command.split()]
        subprocess.run(arguments, check=True, cwd=folder, capture_output=True)

    openssl("req -x509 -newkey rsa:2048 -nodes -days 3 -subj /CN=ca -keyout ca.key -out ca.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("broker", "client"):
        openssl(f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.k -out {name}.csr")
        openssl(f"pkcs8 -topk8 -nocrypt -in {name}.k -out {name}.key")
        openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3"
            f" -extfile names -out {name}.crt"
        )
    both = (folder / "broker.key").read_text() + (folder / "broker.crt").read_text()
    (folder / "broker.pem").write_text(both)
    return folder


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Path) -> Iterator[Broker]:
    plain = f'{JAAS}plain.PlainLoginModule required user_alice="pw1";'
    scram = f"{JAAS}scram.ScramLoginModule required;"
    bearer = f'{JAAS}oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";'
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
    }
    for listener in ("sasl", "sasltls"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = scram
        settings[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = bearer
    user = ["--add-scram", "SCRAM-SHA-512=[name=carol,password=pw3]"]
    with Broker(settings=settings, listeners=LISTENERS, format_arguments=user) as broker:
        yield broker


class Issuer(BaseHTTPRequestHandler):
    """Gives whoever knows the secret a token; the broker of these tests takes unsigned ones."""

    asked: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(body)
        good = "Basic " + "dGFpbGVyOnMzY3JldCUyMCUyNg=="  # tailer:s3cret%20%26
        status = 200 if self.headers["Authorization"] == good else 401
        answer = {"access_token": unsigned_token(), "expires_in": 3600} if status == 200 else {}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


def unsigned_token() -> str:
    def part(document: dict[str, Any]) -> str:
        return urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()

    claims = {"sub": "tailer", "iat": 1_700_000_000, "exp": 4_000_000_000, "scope": "kafka"}
    return f"{part({'alg': 'none'})}.{part(claims)}."


@pytest.fixture
def issuer() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("OneIssuer", (Issuer,), {"asked": asked})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token", asked
        server.shutdown()
        thread.join()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM", "PLAIN over TLS", "TLS", "mTLS", "OAUTHBEARER"])
async def test_every_way_in_works(
    secured: Broker, certificates: Path, issuer: tuple[str, list[str]], way: str
) -> None:
    tls = {"ssl_cafile": str(certificates / "ca.pem")}
    own = {
        "ssl_certfile": str(certificates / "client.crt"),
        "ssl_keyfile": str(certificates / "client.key"),
    }
    listener, options = {
        "PLAIN": ("SASL", PLAIN),
        "SCRAM": ("SASL", SCRAM),
        "PLAIN over TLS": ("SASLTLS", PLAIN | tls),
        "TLS": ("TLS", tls),
        "mTLS": ("MTLS", tls | own),
        "OAUTHBEARER": (
            "SASLTLS",
            OAUTH | tls | {"sasl_oauthbearer_token_endpoint_url": issuer[0]},
        ),
    }[way]
    topic = fresh()
    protocol = LISTENERS[listener]
    address = secured.address(listener)
    async with opened(address, topic, security_protocol=protocol, **options) as (
        sink,
        _,
    ):
        await sink.write(batch(1, [1, 2]))
    assert len(events(secured.bootstrap, topic)) == 2
    if way == "OAUTHBEARER":
        assert issuer[1][0] == "grant_type=client_credentials&scope=kafka"


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        ("307 Temporary Redirect", "Location: ELSEWHERE", "", "HTTP Error 307"),
        ("302 Found", "Location: ELSEWHERE", "", "HTTP Error 302"),
        ("200 OK", "X: y", '{"access_token": "t", "expires_in": "nan"}', "expires_in is nan"),
        ("200 OK", "X: y", '{"access_token": "t", "expires_in": 1e999}', "expires_in is inf"),
        ("200 OK", "Transfer-Encoding: chunked", "zz", "no token from"),
        ("nonsense", "X: y", "", "no token from"),
        ("200 OK", "X: y", "[" * 100_000, "RecursionError"),
    ],
)
async def test_an_odd_issuer_is_an_error_and_gets_no_secret_for_another(
    status: str, headers: str, body: str, said: str
) -> None:
    async with lying(saying(b"{}")) as (other, led):
        headers = headers.replace("ELSEWHERE", other + "/token")
        async with lying(saying(body.encode(), headers, status=status)) as (url, seen):
            security = Security(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauthbearer_token_endpoint_url=url + "/token",
                sasl_oauthbearer_client_id="tailer",
                sasl_oauthbearer_client_secret="s3cret",
            )
            with pytest.raises(OSError, match=said):
                await asyncio.to_thread(OAuthTokens(security).obtain_token)
        assert len(seen) == 1
        assert not led


async def test_a_token_may_be_given(secured: Broker) -> None:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token": unsigned_token(),
    }
    topic = fresh()
    async with opened(secured.address("SASL"), topic, **options) as (sink, _):
        await sink.write(batch(1, [1]))
    assert [row["id"] for row in events(secured.bootstrap, topic)] == [1]


WRONG: list[tuple[str, str, dict[str, str], type[TailerError], str]] = [
    ("password", "SASL", PLAIN | {"sasl_password": "no"}, SinkRejected, "check the user name"),
    ("SCRAM user", "SASL", SCRAM | {"sasl_username": "eve"}, SinkRejected, "check the user name"),
    (
        "mechanism",
        "SASL",
        SCRAM | {"sasl_mechanism": "SCRAM-SHA-256"},
        SinkRejected,
        "choose a sasl_mechanism that the listener offers",
    ),
    ("authority", "TLS", {}, SinkRejected, "check ssl_cafile"),
    ("client certificate", "MTLS", {"ca": "yes"}, SinkRejected, "ssl_certfile and ssl_keyfile"),
    (
        "TLS to plain text",
        "PLAINTEXT",
        {"security_protocol": "SSL"},
        TransientError,
        "this listener may not speak TLS",
    ),
    (
        "plain text to TLS",
        "TLS",
        {"security_protocol": "PLAINTEXT"},
        SinkRejected,
        "this listener wants TLS",
    ),
    ("issuer", "SASL", OAUTH, SinkRejected, "check the options sasl_oauthbearer_"),
]


# kafka-python leaves the sockets of failed handshakes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("what", "listener", "options", "kind", "said"), WRONG)
async def test_a_wrong_way_in_is_named(
    secured: Broker,
    certificates: Path,
    issuer: tuple[str, list[str]],
    what: str,
    listener: str,
    options: dict[str, str],
    kind: type[TailerError],
    said: str,
) -> None:
    options = dict(options)
    if options.pop("ca", ""):
        options["ssl_cafile"] = str(certificates / "ca.pem")
    if what == "issuer":
        options["sasl_oauthbearer_token_endpoint_url"] = issuer[0]
        options["sasl_oauthbearer_client_secret"] = "wrong"
    settings: dict[str, Any] = {"security_protocol": LISTENERS[listener]} | options
    settings["delivery_timeout_ms"] = 6_000
    sentence = await refused(made(secured.address(listener), fresh(), **settings), kind)
    gc.collect()
    assert said in sentence
    assert "hush" not in sentence
    for secret in ("pw1", "pw3", "s3cret"):
        assert secret not in sentence


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_what_one_feed_is_told_is_not_taken_for_another_feeds(secured: Broker) -> None:
    """One has a wrong password; the other's broker is away, and will be back."""
    wrong = PLAIN | {"sasl_password": "no", "security_protocol": LISTENERS["SASL"]}
    told: list[str] = []

    async def refused_again_and_again() -> None:
        while not told:
            sink = made(secured.address("SASL"), fresh(), **wrong)
            assert "check the user name" in await refused(sink, SinkRejected)

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        away = made(f"127.0.0.1:{held.getsockname()[1]}", fresh(), delivery_timeout_ms=3_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused_again_and_again)
            told.append(await refused(away, TransientError))
    assert "no Kafka broker" in told[0]
