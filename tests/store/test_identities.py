"""Identities of Azure and Google that are found where the clouds' own tools find them: a token is
asked for as the cloud's server wants it, and the storage accepts nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tailer.errors import ConfigError, TableError, TransientError
from tailer.storage import open_store
from tests.clouds.identities import IdentityFront, Request
from tests.clouds.servers import ACCOUNT, CloudServer, Container, sas_token
from tests.sharing.shared import orders
from tests.support.programs import run_tailer
from tests.support.web_front import running_front

TENANT, CLIENT, SECRET = "tenant-1", "client-1", "secret-of-client-1"
ASSERTION = "projected.service-account.token"
SCOPE = "https://storage.azure.com/.default"
LOG = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True)
class Identity:
    """A table of four versions behind a front, which asks for tokens of one identity."""

    front: IdentityFront
    container: Container
    options: dict[str, Any]

    @property
    def address(self) -> str:
        return self.container.address("orders")


def parts(request: Request, **wanted: str) -> str:
    """Why a form is not the wanted one."""
    wrong = [name for name, value in wanted.items() if request.form.get(name) != value]
    return f"wrong: {', '.join(wrong)}" if wrong or request.method != "POST" else ""


def client_secret(front: IdentityFront, patch: pytest.MonkeyPatch, _folder: Path) -> None:
    """A service principal with a secret."""
    patch.setenv("AZURE_AUTHORITY_HOST", front.url)
    patch.setenv("AZURE_TENANT_ID", TENANT)
    patch.setenv("AZURE_CLIENT_ID", CLIENT)
    patch.setenv("AZURE_CLIENT_SECRET", SECRET)
    front.asks = lambda path: path == f"/{TENANT}/oauth2/v2.0/token"
    front.refusal = lambda request: parts(
        request, grant_type="client_credentials", client_id=CLIENT, client_secret=SECRET,
        scope=SCOPE,
    )  # fmt: skip


def client_options(front: IdentityFront, patch: pytest.MonkeyPatch, folder: Path) -> dict[str, str]:
    """The same service principal, given by options alone."""
    client_secret(front, patch, folder)
    for name in ("AUTHORITY_HOST", "TENANT_ID", "CLIENT_ID", "CLIENT_SECRET"):
        patch.delenv(f"AZURE_{name}")
    authority = f"{front.url}/{TENANT}"
    return {"client_id": CLIENT, "client_secret": SECRET, "authority_url": authority}


def workload(front: IdentityFront, patch: pytest.MonkeyPatch, folder: Path) -> None:
    """A workload of Kubernetes, whose token of its cluster is in a file."""
    (folder / "federated").write_text(ASSERTION)
    patch.setenv("AZURE_AUTHORITY_HOST", front.url)
    patch.setenv("AZURE_TENANT_ID", TENANT)
    patch.setenv("AZURE_CLIENT_ID", CLIENT)
    patch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(folder / "federated"))
    front.asks = lambda path: path == f"/{TENANT}/oauth2/v2.0/token"
    front.refusal = lambda request: parts(
        request, grant_type="client_credentials", client_id=CLIENT, scope=SCOPE,
        client_assertion_type="urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        client_assertion=ASSERTION,
    )  # fmt: skip


def managed(front: IdentityFront, patch: pytest.MonkeyPatch, _folder: Path) -> None:
    """The identity of an App Service, which has its endpoint and a header in the environment."""
    patch.setenv("IDENTITY_ENDPOINT", f"{front.url}/msi/token")
    patch.setenv("IDENTITY_HEADER", SECRET)

    def refusal(request: Request) -> str:
        good = (
            request.method == "GET"
            and request.query.get("resource", "").rstrip("/") == "https://storage.azure.com"
            and request.query.get("api-version") == "2019-08-01"
            and request.headers.get("x-identity-header") == SECRET
        )
        return "" if good else "not as App Service wants it"

    front.asks, front.refusal = lambda path: path == "/msi/token", refusal


AZ = """\
#!{python}
import json, sys, time, urllib.parse, urllib.request
if sys.argv[1:] != ["account", "get-access-token", "--output", "json", "--scope", "{scope}"]:
    sys.exit(f"az: {{sys.argv[1:]}}")
form = urllib.parse.urlencode({{"login": "mine"}}).encode()
try:
    found = json.load(urllib.request.urlopen("{url}/az", form))
except OSError:
    sys.exit("ERROR: Please run 'az login' to setup account.")
end_s = int(found["expires_on"])
print(json.dumps({{
    "accessToken": found["access_token"],
    "expiresOn": time.strftime("%Y-%m-%d %H:%M:%S.000000", time.localtime(end_s)),
    "expires_on": end_s, "subscription": "s", "tenant": "t", "tokenType": "Bearer",
}}, indent=2))
"""


def az_login(front: IdentityFront, patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The login of `az`, which is a program here that prints what `az` does."""
    program = folder / "bin" / "az"
    program.parent.mkdir()
    program.write_text(AZ.format(python=sys.executable, scope=SCOPE, url=front.url))
    program.chmod(0o755)
    patch.setenv("AZURE_USE_AZURE_CLI", "true")
    patch.setenv("PATH", str(program.parent), prepend=":")
    front.asks = lambda path: path == "/az"
    front.refusal = lambda request: parts(request, login="mine")


def metadata(front: IdentityFront, patch: pytest.MonkeyPatch, _folder: Path) -> None:
    """The identity of a machine or of a workload of GKE."""
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        patch.setenv(name, f"127.0.0.1:{front.port}")
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    front.asks = lambda asked: asked == path
    front.refusal = lambda request: (
        "" if request.headers.get("Metadata-Flavor") == "Google" else "no Metadata-Flavor"
    )


AZURE: dict[str, Callable[..., dict[str, str] | None]] = {
    "client secret": client_secret,
    "client secret of the options": client_options,
    "workload identity": workload,
    "managed identity": managed,
    "az": az_login,
}
VARIABLES = (
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
)  # fmt: skip


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No identity of the machine's is found."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(params=[
    *(pytest.param(name, marks=pytest.mark.needs("azurite")) for name in AZURE),
    pytest.param("metadata server", marks=pytest.mark.needs("gcs")),
])  # fmt: skip
def identity(
    request: pytest.FixtureRequest,
    nobody: None,  # noqa: ARG001 - it clears the environment
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Identity]:
    """A table, and the identity that may read it."""
    azure = request.param in AZURE
    server: CloudServer = request.getfixturevalue("azurite" if azure else "gcs_server")
    container = server.container()
    orders(tmp_path / "orders", 4)
    anyio.run(container.upload, tmp_path / "orders", "orders")
    upstream = f"http://{urlsplit(server.url).netloc}"
    with running_front(IdentityFront(upstream, sas_token() if azure else "")) as front:
        more = (AZURE[request.param] if azure else metadata)(front, monkeypatch, tmp_path)
        options: dict[str, Any] = {"endpoint_url": front.url}
        if azure:
            options = {"account_name": ACCOUNT, "endpoint_url": f"{front.url}/{ACCOUNT}"}
        options |= more or {}
        yield Identity(front, container, options)


def tail(found: Identity) -> Any:
    options = [f"--store-option={name}={value}" for name, value in found.options.items()]
    return run_tailer("tail", found.address, "--from", "1", "--to", "3", *options)


def test_a_table_is_followed_and_no_token_is_shown(identity: Identity) -> None:
    done = tail(identity)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3]
    assert identity.front.passed > 3
    assert (len(identity.front.tokens), identity.front.refused) == (1, 0)
    assert "issued-token" not in done.stdout


@pytest.mark.anyio
async def test_tokens_are_renewed_before_they_end(identity: Identity) -> None:
    identity.front.said_s = 2.0
    store = open_store(identity.address, identity.options)
    with anyio.fail_after(120):
        while len(identity.front.tokens) < 3:
            assert (await store.stat(LOG)).size
            await anyio.sleep(0.2)
    assert identity.front.refused == 0
    await store.aclose()


@pytest.mark.anyio
async def test_an_identity_that_gets_no_token_is_one_sentence(identity: Identity) -> None:
    identity.front.refusal = lambda _request: "it is switched off"
    store = open_store(identity.address, identity.options)
    with pytest.raises((TableError, TransientError), match="no credentials can be had") as caught:
        await store.stat(LOG)
    assert re.search("it is switched off|run 'az login'", str(caught.value))
    assert "\n" not in str(caught.value)
    for hidden in (SECRET, ASSERTION):
        assert hidden not in str(caught.value)
    await store.aclose()


@pytest.mark.anyio
@pytest.mark.needs("gcs")
@pytest.mark.usefixtures("nobody")
async def test_a_service_account_signs_its_tokens(
    gcs_server: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )  # fmt: skip
    email = "feed@project.iam.gserviceaccount.com"
    fields = {"type": "service_account", "client_email": email, "private_key_id": "key-1",
              "private_key": pem.decode(), "token_uri": "http://127.0.0.1:9/token"}  # fmt: skip
    (tmp_path / "account.json").write_text(json.dumps(fields))
    seen: list[dict[str, Any]] = []

    def knows(token: str) -> bool:
        try:
            claims = jwt.decode(token, key.public_key(), algorithms=["RS256"])
        except jwt.PyJWTError:
            return False
        good = jwt.get_unverified_header(token)["kid"] == "key-1"
        seen.append(claims)
        return bool(good and claims["iss"] == claims["sub"] == email)

    container = gcs_server.container()
    orders(tmp_path / "orders", 4)
    await container.upload(tmp_path / "orders", "orders")
    with running_front(IdentityFront(gcs_server.url)) as front:
        front.knows = knows
        found = Identity(front, container, {"endpoint_url": front.url})
        for variable in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(tmp_path / "account.json"))
                done = await anyio.to_thread.run_sync(tail, found)
            assert (done.returncode, done.stderr) == (0, "")
            assert len(done.stdout.splitlines()) == 3
        assert seen[0]["scope"].startswith("https://www.googleapis.com/auth/")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # another's
        named = {**found.options, "service_account_file": str(tmp_path / "account.json")}
        store = open_store(found.address, named)
        with pytest.raises(TableError, match="access denied"):
            await store.stat(LOG)
        await store.aclose()


@pytest.mark.anyio
@pytest.mark.needs("gcs")
@pytest.mark.usefixtures("nobody")
async def test_gcloud_s_login_is_asked_for_at_google(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its server is not to be chosen: a proxy sees who is asked, and leads nowhere.
    asked: list[bytes] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.append((await stream.receive()).partition(b"\r\n")[0])
            await stream.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

    login = {"type": "authorized_user", "client_id": "gcloud", "client_secret": SECRET,
             "refresh_token": ASSERTION}  # fmt: skip
    file = Path.home() / ".config" / "gcloud" / "application_default_credentials.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(login))
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        store = open_store("gs://lake/orders", {"endpoint_url": "http://127.0.0.1:9"})
        with pytest.raises(TransientError, match="credentials") as caught:
            await store.stat(LOG)
        await store.aclose()
        tasks.cancel_scope.cancel()
    assert asked[0].startswith(b"CONNECT accounts.google.com:443")
    for hidden in (SECRET, ASSERTION):
        assert hidden not in str(caught.value)


@pytest.mark.usefixtures("nobody")
@pytest.mark.needs("gcs")
def test_a_file_of_a_kind_that_is_not_read_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "federated.json").write_text(json.dumps({"type": "external_account"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "federated.json"))
    with pytest.raises(ConfigError, match="external_account") as caught:
        open_store("gs://lake/orders")
    assert "\n" not in str(caught.value)
