"""Servers by TLS: certificates and names are verified, also those of the files' servers."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailer.errors import ConfigError, TableError
from tests.sharing.reference_server import ReferenceServer, serving
from tests.sharing.shared import NAME, orders, read_shared
from tests.support.components import require

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["IP:127.0.0.1", "DNS:elsewhere.example.org"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path, name: str) -> Iterator[ReferenceServer]:
    require("openssl", shutil.which("openssl") is not None)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=a server", "-addext", f"subjectAltName={name}",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    table = orders(tmp_path / "orders")
    with serving({NAME: table.folder}, tls=context) as running:
        running.profile(tmp_path)
        yield running


async def test_only_a_verified_server_is_spoken_to(
    server: ReferenceServer, name: str, tmp_path: Path
) -> None:
    profile, bundle = tmp_path / "test.share", str(tmp_path / "cert.pem")
    with pytest.raises(TableError, match=r"certificate can't be verified .*ca_file"):
        await read_shared(profile, 0, 3)
    assert server.requests == []
    if name.startswith("IP"):
        found = await read_shared(profile, 0, 3, ca_file=bundle)
        assert [event["id"] for event in found] == [1, 2, 3]
    else:
        with pytest.raises(TableError, match="certificate can't be verified"):
            await read_shared(profile, 0, 3, ca_file=bundle)
        assert server.requests == []
    with pytest.raises(ConfigError, match=r"ca_file: .* can.t be read"):
        await read_shared(profile, 0, 3, ca_file=str(tmp_path / "none.pem"))
