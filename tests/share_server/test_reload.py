"""SIGHUP: shares, grants and limits change while the server runs."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.share_server.serving import Served, configuration, place, served, token
from tests.support.components import require
from tests.support.programs import run_tailer, started
from tests.support.waiting import PATIENCE_S

SCHEMA = pa.schema([("id", pa.int64())])


def table_at(folder: Path, rows: int = 1) -> TableBuilder:
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": n} for n in range(rows)])
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reload")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Served]:
    table = table_at(folder / "t")
    table_at(folder / "later", 5)
    grants = {"alice": ["s"], "bob": ["s"]}
    limits = "requests_per_s = 250"
    with served(folder, {"s.x.t": table.folder}, share=limits, recipients=grants) as server:
        yield server


@pytest.fixture
def server(running: Served) -> Iterator[Served]:
    """The server, which has its first configuration again afterwards."""
    text = running.config.read_text()
    yield running
    reload(running, text)


def reload(server: Served, text: str, said: str = "configuration read again") -> None:
    """Write another configuration, and have it read; `said` is what the server says to it."""
    server.config.write_text(text)
    before = len(server.program.errors)
    server.program.process.send_signal(signal.SIGHUP)
    server.program.wait_until(lambda: any(said in x for x in server.program.errors[before:]))


def test_shares_and_tables_come_and_go(server: Served, folder: Path) -> None:
    text = server.config.read_text()
    assert server.query("s.x.t").status == 200
    more = f'[shares.s.schemas.y.tables.later]\nlocation = "{folder}/later"\n'
    reload(server, text + more)
    assert len(server.query("s.y.later").lines) == 3
    assert [t["name"] for t in server.get("/shares/s/all-tables").json["items"]] == ["t", "later"]
    assert server.get(f"{place('s.y.later')}/changes?startingVersion=0").status == 400
    reload(server, text + more + "cdf = true\n")
    assert server.get(f"{place('s.y.later')}/changes?startingVersion=0").status == 200
    reload(server, text.replace(f'{folder}/t"', f'{folder}/later"'))
    assert server.query("s.y.later").status == 404
    assert server.query("s.x.t").lines[2]["file"]["stats"].startswith('{"numRecords": 5')


def test_the_audit_log_is_rotated(server: Served) -> None:
    current = server.state / "audit.jsonl"
    server.query("s.x.t")
    moved = current.rename(current.with_suffix(".1"))
    before = moved.read_bytes()
    server.query("s.x.t")
    assert not current.exists()
    assert moved.read_bytes().startswith(before)
    reload(server, server.config.read_text())
    assert server.get("/shares").status == 200
    kept = moved.read_bytes()
    assert server.get("/shares/s").status == 200
    assert "get-share" in [line["endpoint"] for line in server.audit()]
    assert moved.read_bytes() == kept
    assert kept.endswith(b"\n")


def test_a_revoked_grant_ends_at_once_and_the_urls_with_it(server: Served) -> None:
    bob = json.loads(token(server.config, "bob"))["bearerToken"]
    url = server.query("s.x.t").lines[2]["file"]["url"]
    assert server.get(f"{place('s.x.t')}/version", bearer=bob).status == 200
    text = server.config.read_text()
    reload(server, text.replace('[recipients.alice]\ngrants = ["s"]', "[recipients.alice]"))
    assert server.get("/shares").json["items"] == []
    assert server.query("s.x.t").status == 404
    assert server.get(url).status == 403
    assert server.get(f"{place('s.x.t')}/version", bearer=bob).status == 200
    reload(server, text)
    assert server.get(url).status == 200


def test_limits_and_times_change(server: Served) -> None:
    text = server.config.read_text()
    reload(server, text.replace("requests_per_s = 250", "requests_per_s = 0.01"))
    assert [server.get("/shares").status for _ in range(3)] == [200, 429, 429]
    reload(server, text.replace("requests_per_s = 250", "requests_per_s = 1e6\nurl_ttl_s = 7"))
    file = server.query("s.x.t").lines[2]["file"]
    assert file["expirationTimestamp"] / 1000 < time.time() + 8


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("[share", "is not TOML"),
        ("[recipients.eve]\ngrants = ['nothing']\n", "recipients.eve.grants names 'nothing'"),
        ("[shares.S.schemas.x.tables.t]\nlocation = 't'\n", "collides with 's'"),
    ],
)
def test_a_broken_file_is_refused_with_its_sentence_and_the_old_one_goes_on(
    server: Served, broken: str, said: str
) -> None:
    text = server.config.read_text()
    reload(server, f"{text}\n{broken}", said)
    assert any("configuration not taken" in line for line in server.program.errors)
    assert server.query("s.x.t").status == 200
    server.config.unlink()
    before = len(server.program.errors)
    server.program.process.send_signal(signal.SIGHUP)
    server.program.wait_until(
        lambda: any("can't be read" in line for line in server.program.errors[before:])
    )
    assert server.query("s.x.t").status == 200


def test_what_needs_a_restart_says_so(server: Served) -> None:
    text = server.config.read_text()
    reload(server, text.replace("public_url = ", "audit = 'elsewhere.jsonl'\npublic_url = "),
           "share.audit has changed; that needs a restart")  # fmt: skip
    assert server.query("s.x.t").status == 200
    server.program.wait_for(lambda: any(x["endpoint"] == "query" for x in server.audit()))
    assert not (server.config.parent / "elsewhere.jsonl").exists()


def test_a_download_under_way_goes_on_when_its_table_goes(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    big = table.add([{"id": 1}])
    content = bytes(range(256)) * (128 * 1024)  # more than the buffers between us hold
    (table.folder / big["add"]["path"]).write_bytes(content)
    table.commit(big)
    other = table_at(tmp_path / "other")
    with served(tmp_path, {"s.x.t": table.folder}) as server:
        parts = urlsplit(server.query("s.x.t").lines[2]["file"]["url"])
        client = socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S)
        request = f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        client.sendall(request.encode())
        begun = client.recv(4096)
        assert begun.startswith(b"HTTP/1.1 200 ")
        text = server.config.read_text()
        reload(server, text.replace("tables.t]", "tables.o]").replace(
            f'"{table.folder}"', f'"{other.folder}"'))  # fmt: skip
        assert server.query("s.x.t").status == 404
        assert server.query("s.x.o").status == 200
        parts_read = [begun]
        while data := client.recv(1 << 20):
            parts_read.append(data)
        client.close()
        assert b"".join(parts_read).partition(b"\r\n\r\n")[2] == content
        # The same URL again is another request.
        assert server.get(parts.geturl()).status == 403


def test_a_new_certificate_is_taken(tmp_path: Path) -> None:
    require("openssl", shutil.which("openssl") is not None)

    def certificate(name: str) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
             f"/CN={name}", "-keyout", str(tmp_path / "key.pem"), "-out",
             str(tmp_path / "cert.pem")],
            check=True, capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip

    def shown(server: Served) -> str:
        address = urlsplit(server.url)
        pem = ssl.get_server_certificate((address.hostname or "", address.port or 0))
        return pem.strip()

    certificate("first")
    tls = 'tls_cert = "cert.pem"\ntls_key = "key.pem"'
    with served(tmp_path, {"s.x.t": table_at(tmp_path / "t").folder}, share=tls) as server:
        assert shown(server) == (tmp_path / "cert.pem").read_text().strip()
        certificate("second")
        reload(server, server.config.read_text())
        assert shown(server) == (tmp_path / "cert.pem").read_text().strip()
        (tmp_path / "key.pem").write_text("no key")
        reload(server, server.config.read_text(), "tls_cert and tls_key can't be used")
        assert shown(server) == (tmp_path / "cert.pem").read_text().strip()


def test_a_port_that_the_system_chose_is_the_one_that_is_said_and_signed(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    text = configuration({"s.x.t": table.folder}, 'address = "127.0.0.1:0"', {"alice": ["s"]})
    config = tmp_path / "share.toml"
    config.write_text(text)
    refused = run_tailer("share", "token", "new", config, "alice")
    assert refused.returncode == 2
    assert "share.address has port 0; set share.public_url" in refused.stderr
    config.write_text(text.replace("[share]", '[share]\npublic_url = "http://elsewhere"'))
    profile = tmp_path / "alice.share"
    profile.write_text(token(config, "alice"))
    with started("share", config, dev=True) as program:
        said = "at http://elsewhere, listening on port "
        program.wait_until(lambda: any(said in line for line in program.errors))
    config.write_text(text)
    with started("share", config, dev=True) as program:
        program.wait_until(lambda: any("sharing " in line for line in program.errors))
        (line,) = (line for line in program.errors if "sharing " in line)
        server = Served(config, line.rpartition(" at ")[2].strip(), profile, program)
        reload(server, text)
        assert not any("needs a restart" in line for line in program.errors)
        *_, file = server.query("s.x.t").lines
        assert server.get(file["file"]["url"]).status == 200
