"""What Azure's and Google's storage refuses, or what stands between, is said with its remedy."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.errors import TableError, TailerError, TransientError
from tailer.storage import open_offset_store, open_store
from tailer.store import Store
from tailer.store.objects import options as cloud_options
from tests.clouds.servers import ACCOUNT, CloudServer, Container, sas_token
from tests.s3.front import Fault, run_front
from tests.support.registry import make_certificate

pytestmark = pytest.mark.anyio

LOG = "_delta_log/00000000000000000000.json"


@pytest.fixture(autouse=True)
def soon_tired(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is not tried for long."""
    monkeypatch.setitem(cloud_options.RETRIES, "retry_timeout", dt.timedelta(seconds=0.1))


@pytest.fixture
async def filled(container: Container) -> Container:
    """A container with a commit."""
    await container.put(f"orders/{LOG}", b"{}")
    return container


def store_of(container: Container, **options: Any) -> Store:
    return open_store(container.address("orders"), {**container.options, **options})


async def refused(store: Store, kind: type[TailerError], sentence: str) -> None:
    """A read and a listing fail with this sentence."""
    with pytest.raises(kind, match=sentence):
        await store.read(LOG)
    with pytest.raises(kind, match=sentence):
        async for _ in store.list("_delta_log"):
            pass


FIREWALLS = {
    "s3": r"access denied to get \(AccessDenied: m\); .*, and grant s3:GetObject on the key and "
    r"s3:ListBucket|access denied to list .*, and grant s3:ListBucket",
    "azure": r"access denied to \w+ \(AuthorizationFailure: This request is not authorized to "
    r"perform this operation\.\); check .*the account's firewall",
    "gcs": r"access denied to \w+ \(SecurityPolicyViolated: Request violates VPC Service Controls"
    r"\.\); check .* firewall",
}


async def test_a_firewall_is_named(filled: Container) -> None:
    with run_front(filled) as front:
        kind = "denied" if filled.cloud == "s3" else f"firewall of {filled.cloud}"
        front.fail(Fault(kind, "get", 9), Fault(kind, "list", 9))
        await refused(store_of(front.bucket), TableError, FIREWALLS[filled.cloud])


async def test_a_wrong_clock_is_named(azurite: CloudServer) -> None:
    """Azure alone has a word on it, beside its message."""
    container = azurite.container()
    with run_front(container) as front:
        front.fail(Fault("wrong clock", "get", 9), Fault("wrong clock", "list", 9))
        sentence = r"\(AuthenticationFailed: Server failed.*Request date header too old: .*clock"
        await refused(store_of(front.bucket), TableError, sentence)


async def test_a_name_that_no_dns_knows_is_said(container: Container) -> None:
    store = store_of(container, endpoint_url="http://no-such-account.invalid")
    sentence = "DNS does not know the server's name: check endpoint_url, or the account"
    await refused(store, TransientError, sentence)


async def test_an_account_that_its_server_does_not_know_has_no_container(
    azurite: CloudServer,
) -> None:
    container = azurite.container()
    elsewhere = container.at(container.url.replace(ACCOUNT, "anotheraccount"))
    with pytest.raises(TableError, match=r"container does not exist; check .* and the account's"):
        async for _ in store_of(elsewhere, account_name="anotheraccount").list("_delta_log"):
            pass


async def test_a_signature_that_ends_in_the_midst_stops_the_feed(azurite: CloudServer) -> None:
    container = azurite.container()
    await container.put(f"orders/{LOG}", b"{}")
    lasts = dt.timedelta(seconds=3)
    options = {
        "account_name": ACCOUNT,
        "endpoint_url": container.url,
        "sas_token": sas_token(lasts),
    }
    store = open_store(container.address("orders"), options)
    assert (await store.read(LOG))[0] == b"{}"
    await anyio.sleep(3.1)
    await refused(store, TableError, r"access denied to \w+ \(.*; check .*when they end")


async def test_state_needs_the_right_to_write(azurite: CloudServer) -> None:
    container = azurite.container()
    options = {"account_name": ACCOUNT, "endpoint_url": container.url, "sas_token": sas_token()}
    state = open_offset_store(container.address("state"), "orders", options, lease_s=60)
    with pytest.raises(TableError, match=r"access denied to put \(Authori.*what they may do with"):
        await state.acquire()


async def test_state_needs_its_container(container: Container) -> None:
    address = container.address("state").replace(container.name, "no-such-container")
    state = open_offset_store(address, "orders", container.options, lease_s=60)
    sentence = r"no-such-container/state: its (bucket|container) does not exist"
    with pytest.raises(TableError, match=sentence):
        await state.acquire()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path)[0]


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(certificate))
        yield


async def test_a_certificate_is_trusted_by_its_authority_alone(
    filled: Container, tls: ssl.SSLContext
) -> None:
    with run_front(filled, tls) as front:
        sentence = r"certificate is not trusted \(.*\); .*SSL_CERT_FILE"
        await refused(store_of(front.bucket), TableError, sentence)


async def test_a_server_without_tls_is_told(filled: Container) -> None:
    store = store_of(filled, endpoint_url=filled.url.replace("http:", "https:"))
    await refused(store, TableError, "does not speak https .*; write endpoint_url with http://")


@pytest.mark.usefixtures("trusted")
async def test_an_answer_that_is_cut_within_tls_is_no_answer(
    filled: Container, tls: ssl.SSLContext
) -> None:
    data = bytes(range(256)) * 4096
    await filled.put("orders/x", data)
    with run_front(filled, tls) as front:
        store = store_of(front.bucket)
        for kind in ("reset", "truncated"):
            front.fail(Fault(kind, "get", 1, "/x$"))
            with suppress(TransientError):  # unless the rest is asked for at once
                assert (await store.read("x"))[0] == data
            assert (await store.read("x"))[0] == data
        assert front.met == {"reset": 1, "truncated": 1}
