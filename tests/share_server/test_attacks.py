"""What nobody may have: bytes outside of the grants, by whatever way they are asked for."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit
from urllib.request import urlopen

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.share_server.downloads import parse_byte_range
from tailer.share_server.refusals import Refusal
from tailer.testing.table import TableBuilder
from tests.share_server.serving import Served, place, served, token
from tests.support.components import require
from tests.support.waiting import PATIENCE_S, eventually

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
SECRET = "the content of a file that nobody shared"


def table_at(folder: Path, rows: int = 3) -> TableBuilder:
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": n, "text": f"{n}"} for n in range(rows)])
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("attacks")
    (found / "secret.txt").write_text(SECRET)
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    tables = {
        "open.x.t": table_at(folder / "open").folder,
        "hidden.x.t": table_at(folder / "hidden").folder,
        "open.y.secret": table_at(folder / "secret").folder,
    }
    grants = {"alice": ["open.x"], "bob": ["hidden", "open.y.secret"]}
    limits = "requests_per_s = 1000"
    with served(folder, tables, share=limits, recipients=grants) as running:
        yield running


def wait_until_refused(server: Served, url: str) -> None:
    eventually(lambda: server.get(url).status == 403, why="the URL ends", pause_s=0.05)


def first_url(server: Served, table: str = "open.x.t", **more: str) -> str:
    headers = server.get(f"{place(table)}/query", method="POST", json={}, **more)
    return str(headers.lines[2]["file"]["url"])


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer dts_000000000000_x", "Basic YTpi", "Token x",
     "Bearer dts__", "Bearer \u00ff"],
)  # fmt: skip
def test_a_token_that_is_none_is_refused_before_anything_else(
    server: Served, authorization: str
) -> None:
    for path in ("/shares", "/shares/open", "/shares/nothing", f"{place('open.x.t')}/metadata"):
        reply = server.get(path, headers={"Authorization": authorization})
        assert (reply.status, reply.code) == (401, "UNAUTHENTICATED")
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_scheme_may_be_written_in_any_case(server: Served, scheme: str) -> None:
    reply = server.get("/shares", headers={"Authorization": f"{scheme} {server.bearer}"})
    assert reply.status == 200


def test_the_secret_half_of_a_token_decides(server: Served) -> None:
    good = server.bearer
    for wrong in (
        good[:-1],
        good + "x",
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        good.upper(),
    ):
        assert server.get("/shares", bearer=wrong).status == 401


def test_what_is_not_granted_does_not_exist(server: Served) -> None:
    def answers(share: str, schema: str, table: str) -> list[tuple[int, bytes]]:
        where = f"/shares/{share}/schemas/{schema}/tables/{table}"
        replies = [
            server.get(f"{where}/version"), server.get(f"{where}/metadata"),
            server.get(f"{where}/query", method="POST", json={}),
            server.get(f"{where}/changes?startingVersion=0"),
            server.get(f"{where}/temporary-table-credentials", method="POST", json={}),
            server.get(f"/shares/{share}/schemas/{schema}/tables"),
        ]  # fmt: skip
        return [(reply.status, reply.body) for reply in replies]

    nothing = answers("nowhere", "x", "t")
    assert {status for status, _ in nothing} == {404}
    assert answers("hidden", "x", "t") == nothing
    assert answers("open", "y", "secret") == nothing
    assert server.get("/shares/hidden").body == server.get("/shares/nowhere").body
    listed = server.get("/shares/open/all-tables").json["items"]
    assert [t["name"] for t in listed] == ["t"]
    assert [s["name"] for s in server.get("/shares/open/schemas").json["items"]] == ["x"]


def test_a_foreign_token_opens_its_own_share_alone(server: Served) -> None:
    bob = json.loads(token(server.config, "bob"))["bearerToken"]
    assert server.get(f"{place('hidden.x.t')}/version", bearer=bob).status == 200
    assert server.get(f"{place('open.y.secret')}/version", bearer=bob).status == 200
    assert server.get(f"{place('open.x.t')}/version", bearer=bob).status == 404
    page = server.get("/shares/open/all-tables?maxResults=0").json["nextPageToken"]
    assert server.get(f"/shares/open/all-tables?pageToken={page}", bearer=bob).status == 400


def test_with_the_last_token_end_the_urls_that_were_given(server: Served) -> None:
    bob = json.loads(token(server.config, "bob"))["bearerToken"]
    url = first_url(server, "hidden.x.t", bearer=bob)
    assert server.get(url).status == 200
    assert main(["share", "token", "revoke", str(server.config), "bob"]) == 0
    reply = server.get(url)
    assert (reply.status, reply.code) == (403, "PERMISSION_DENIED")


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    with served(tmp_path, {"s.x.t": table.folder}, share="stall_s = 0.5") as server:
        parts = urlsplit(f"{server.url}{place('s.x.t')}/query")
        client = socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S)
        client.sendall(
            f"POST {parts.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.bearer}\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
        client.close()
        assert server.query("s.x.t").status == 200


def test_a_url_with_anything_changed_gives_nothing(server: Served) -> None:
    url = first_url(server)
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    base, claim, name = parts.path.rsplit("/", 2)
    other_claim, other_name = urlsplit(first_url(server, "open.x.t")).path.rsplit("/", 2)[1:]
    signature = query["X-Amz-Signature"]
    flipped = ("0" if signature[0] != "0" else "1") + signature[1:]
    changed = [
        (base, claim, name, {}), (base, claim, name, {"X-Amz-Signature": ""}),
        (base, claim, name, {"X-Amz-Signature": flipped}),
        (base, claim, name, {"X-Amz-Signature": signature[:-2]}),
        (base, claim, name, {"X-Amz-Signature": "\u00e9"}),
        (base, claim[:-1], name, query), (base, claim + "A", name, query),
        (base, other_claim + "x", other_name, query), (base, claim, "other.parquet", query),
        (base, claim, name + "x", query), (base, "e30", name, query), (base, ".", name, query),
    ]  # fmt: skip
    for path, one, two, values in changed:
        reply = server.get(f"{parts.scheme}://{parts.netloc}{path}/{one}/{two}?{urlencode(values)}")
        assert reply.status in (403, 404)
        assert b"PAR1" not in reply.body
        assert reply.code in ("PERMISSION_DENIED", "RESOURCE_DOES_NOT_EXIST")
    expires = query["X-Amz-Expires"]
    for text in (
        f"{parts.query}&x=1", f"{parts.query}&", f"x=1&{parts.query}",
        f"X-Amz-Signature={signature}&X-Amz-Expires={expires}", f"X-Amz-Signature={signature}",
        f"X-Amz-Expires={int(expires) + 9999}&X-Amz-Signature={signature}",
        f"X-Amz-Expires=0{expires}&X-Amz-Signature={signature}",
        f"X-Amz-Expires={expires}&X-Amz-Signature={signature.upper()}",
        f"X-Amz-Expires={expires}&X-Amz-Expires={expires}&X-Amz-Signature={signature}",
        f"X-Amz-Expires={expires}&X%2DAmz-Signature={signature}",
    ):  # fmt: skip
        reply = server.get(parts._replace(query=text).geturl())
        assert (reply.status, reply.code) == (403, "PERMISSION_DENIED"), text
    assert server.get(url).status == 200


def test_no_path_leads_out(server: Served) -> None:
    root = server.url.removesuffix("/delta-sharing")
    for path in (
        "/delta-sharing/files/../../../../etc/passwd", "/delta-sharing/files/..%2f..%2fetc/passwd",
        "/../../etc/passwd", "//etc/passwd", "/delta-sharing/files//etc/passwd",
        "/delta-sharing/shares/..%2f..%2fsecret.txt", "/delta-sharing/shares/open%00/schemas",
        "/delta-sharing/shares/open/schemas/x/tables/..%2f..%2fhidden/metadata", "/secret.txt",
        "/delta-sharing/shares/open/schemas/x/tables/t/../../../../hidden",
    ):  # fmt: skip
        reply = server.get(root + path)
        assert reply.status in (400, 403, 404, 405)
        assert SECRET.encode() not in reply.body
        assert b"root:" not in reply.body


KINDS = ("absolute", "uri", "climbing", "encoded", "link", "folder_link")


def evil_table(folder: Path, secret: Path, kind: str, storage: str) -> Path:
    """A table whose log names a file elsewhere."""
    table = TableBuilder(folder / storage / kind, SCHEMA, cdf=True)
    table.folder.mkdir(exist_ok=True, parents=True)
    (table.folder / "link.parquet").symlink_to(secret)
    (table.folder / "linked").symlink_to(secret.parent)
    climbing = "../../elsewhere/secret.txt"
    path = {
        "absolute": str(secret), "uri": secret.as_uri(), "climbing": climbing,
        "encoded": climbing.replace("/", "%2F"), "link": "link.parquet",
        "folder_link": "linked/secret.txt",
    }[kind]  # fmt: skip
    features = {"readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors", "changeDataFeed"]}  # fmt: skip
    table.commit(table.protocol(3, 7, **features), table.metadata())
    add = table.add([{"id": 1, "text": "a"}])
    if storage == "data":
        add["add"]["path"] = path
    else:
        add["add"]["deletionVector"] = {
            "storageType": "p", "pathOrInlineDv": path, "offset": 0, "sizeInBytes": 10,
            "cardinality": 1,
        }  # fmt: skip
    table.commit(add)
    return table.folder


@pytest.fixture(scope="module")
def evil(folder: Path) -> Iterator[Served]:
    secret = folder / "evil" / "elsewhere" / "secret.txt"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    tables = {
        f"s.{storage}.{kind}": evil_table(folder / "evil", secret, kind, storage)
        for storage in ("data", "vector")
        for kind in KINDS
    }
    with served(folder / "evil", tables) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", ["data", "vector"])
def test_a_log_that_names_files_elsewhere_shares_none_of_them(
    evil: Served, kind: str, storage: str
) -> None:
    name = f"s.{storage}.{kind}"
    capable = "responseformat=delta;readerfeatures=deletionvectors"
    found: list[str | None] = []
    ending = f"{capable};includeendstreamaction=true"
    changes = f"{place(name)}/changes?startingVersion=0"
    for reply in (evil.query(name, ending), evil.get(changes, ending)):
        assert SECRET.encode() not in reply.body
        if reply.status == 200 and "link" in kind:
            action = reply.lines[2]["file"]["deltaSingleAction"]["add"]
            found += [action["path"], (action.get("deletionVector") or {}).get("pathOrInlineDv")]
        elif reply.status == 200:
            end = reply.lines[-1]["endStreamAction"]
            assert "damaged" in end["errorMessage"]
            assert end["httpStatusErrorCode"] == 500
            assert not any("file" in line for line in reply.lines)
        else:
            assert reply.code in ("INTERNAL_ERROR", "INVALID_PARAMETER_VALUE")
    if "link" not in kind:
        # Who does not know the action sees a stream that has no end.
        with pytest.raises(http.client.IncompleteRead):
            evil.query(name, capable)
    replies = [evil.get(url) for url in found if url]
    assert all(SECRET.encode() not in reply.body for reply in replies)
    assert not found or 404 in {reply.status for reply in replies}


def test_a_clone_shares_the_folders_that_the_configuration_names(tmp_path: Path) -> None:
    base = table_at(tmp_path / "base")
    (file,) = base.folder.glob("*.parquet")
    clone = TableBuilder(tmp_path / "clone", SCHEMA)
    clone.create()
    add = clone.add([{"id": 1, "text": "a"}])
    add["add"]["path"] = str(file)
    clone.commit(add)
    with served(tmp_path, {"s.x.t": clone.folder}) as server:
        text = server.config.read_text() + f"also = [{json.dumps(str(base.folder))}]\n"
    open_config = tmp_path / "open.toml"
    open_config.write_text(text)
    from tests.support.programs import started

    with started("share", open_config) as program:
        program.wait_until(lambda: any("sharing " in line for line in program.errors))
        assert server.get(first_url(server, "s.x.t")).body == file.read_bytes()


def test_a_url_ends_in_the_middle_of_a_read_and_the_next_query_goes_on(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t", rows=1000)
    with served(tmp_path, {"s.x.t": table.folder}, share="url_ttl_s = 8") as server:
        old = server.query("s.x.t").lines[2]["file"]
        part = server.get(old["url"], headers={"Range": "bytes=0-99"})
        assert (part.status, len(part.body)) == (206, 100)
        wait_until_refused(server, old["url"])
        reply = server.get(old["url"], headers={"Range": "bytes=100-"})
        assert (reply.status, reply.code) == (403, "PERMISSION_DENIED")
        new = server.query("s.x.t").lines[2]["file"]
        assert (new["id"], new["url"] == old["url"]) == (old["id"], False)
        rest = server.get(new["url"], headers={"Range": "bytes=100-"})
        assert len(part.body + rest.body) == new["size"]
        # An old signature does not come back to life with a later time.
        assert server.get(old["url"] + "&X-Amz-Expires=9999999999").status == 403


def test_a_token_that_has_expired_is_refused(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    with served(tmp_path, {"s.x.t": table.folder}) as server:
        short = json.loads(token(server.config, "alice", "--expires-in", "2s"))["bearerToken"]
        ended = partial(server.get, "/shares", bearer=short)
        eventually(lambda: ended().status != 200, why="the token ends", pause_s=0.05)
        assert server.get("/shares", bearer=short).code == "UNAUTHENTICATED"
        assert server.get("/shares").status == 200


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 0)), ("bytes=5-", (5, 99)), ("bytes=-10", (90, 99)),
        ("bytes=-1000", (0, 99)), ("bytes=90-1000", (90, 99)), ("", None), ("bytes=5-3", None),
        ("bytes=0-1,3-4", None), ("rows=1-2", None), ("bytes=a-b", None), ("bytes=-", None),
    ],
)  # fmt: skip
def test_ranges(header: str, expected: tuple[int, int] | None) -> None:
    assert parse_byte_range(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=-0", "bytes=" + "9" * 19 + "-"])
def test_a_range_behind_the_end_is_refused(header: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_byte_range(header, 100)
    assert refusal.value.status == 416


def test_ranges_over_http(server: Served) -> None:
    url = first_url(server)
    whole = server.get(url)
    assert whole.headers["accept-ranges"] == "bytes"
    size = len(whole.body)
    part = server.get(url, headers={"Range": "bytes=4-9"})
    assert (part.status, part.body) == (206, whole.body[4:10])
    assert part.headers["content-range"] == f"bytes 4-9/{size}"
    beyond = server.get(url, headers={"Range": f"bytes={size}-"})
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    head = server.get(url, method="HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(size), b"")


def test_too_many_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    limits = "requests_per_s = 0.01"
    grants = {"alice": ["s"], "bob": ["s"]}
    with served(tmp_path, {"s.x.t": table.folder}, share=limits, recipients=grants) as server:
        bob = json.loads(token(server.config, "bob"))["bearerToken"]
        assert [server.get("/shares").status for _ in range(2)] == [200, 429]
        reply = server.get("/shares")
        assert reply.code == "RESOURCE_EXHAUSTED"
        assert 1 <= int(reply.headers["retry-after"]) <= 100
        assert server.get("/shares", bearer=bob).status == 200  # others are not touched
        guesses = [server.get("/shares", bearer=f"dts_0_{n}").status for n in range(5)]
        assert guesses == [401, 429, 429, 429, 429]


def test_a_client_that_takes_nothing_is_cut_off_and_disturbs_nobody(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    big = table.add([{"id": 1, "text": "a"}])
    path = table.folder / big["add"]["path"]
    path.write_bytes(bytes(64 * 1024 * 1024))
    table.commit(big)
    with served(tmp_path, {"s.x.t": table.folder}, share="stall_s = 1.0") as server:
        parts = urlsplit(first_url(server, "s.x.t"))
        slow = []
        for _ in range(8):
            client = socket.create_connection((parts.hostname or "", parts.port or 0))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            slow.append(client)
        for _ in range(5):
            assert server.query("s.x.t").status == 200
        eventually(
            lambda: sum("broken" in line for line in server.audit()) >= len(slow),
            why="every slow client is cut off",
            pause_s=0.05,
        )
        for client in slow:
            client.close()
        broken = [line for line in server.audit() if "broken" in line]
        assert all(line["bytes"] < 64 * 1024 * 1024 for line in broken)


def test_a_share_of_ten_thousand_tables_is_paged(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    names = {f"big.s{n % 7}.t{n:05d}": table.folder for n in range(10_000)}
    limits = "requests_per_s = 1000"
    with served(tmp_path, names, share=limits) as server:
        seen: list[str] = []
        following = ""
        while True:
            page = server.get(f"/shares/big/all-tables?maxResults=5000{following}").json
            assert len(page["items"]) <= 500
            seen += [f"{t['share']}.{t['schema']}.{t['name']}" for t in page["items"]]
            if "nextPageToken" not in page:
                break
            following = f"&pageToken={page['nextPageToken']}"
        assert sorted(seen) == sorted(names)
        assert len(set(seen)) == 10_000


def test_the_audit_log_says_who_had_what_and_no_secret(server: Served) -> None:
    url = first_url(server)
    server.get(url)
    server.get("/shares", bearer="dts_000000000000_guess")
    text = (server.state / "audit.jsonl").read_text()
    lines = server.audit()
    file = next(line for line in reversed(lines) if line["endpoint"] == "file")
    assert file["recipient"] == "alice"
    assert file["of"] == "open.x.t"
    assert file["file"].endswith(".parquet")
    query = next(line for line in reversed(lines) if line["endpoint"] == "query")
    assert {"time", "recipient", "token", "remote", "table", "status", "bytes", "ms"} <= set(query)
    denied = next(line for line in reversed(lines) if line["status"] == 401)
    assert "recipient" not in denied
    signature = dict(parse_qsl(urlsplit(url).query))["X-Amz-Signature"]
    for secret in (signature, server.bearer.split("_", 2)[2], "guess"):
        assert secret not in text
        assert secret not in (server.state / "tokens.json").read_text()
    for private in ("tokens.json", "tokens.lock", "signing.key", "audit.jsonl"):
        assert (server.state / private).stat().st_mode & 0o077 == 0


def test_tls(tmp_path: Path) -> None:
    require("openssl", shutil.which("openssl") is not None)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
         str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        check=True, capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    table = table_at(tmp_path / "t")
    tls = 'tls_cert = "cert.pem"\ntls_key = "key.pem"'
    # In asyncio's debug mode, every handshake that fails is in the log.
    with served(tmp_path, {"s.x.t": table.folder}, share=tls, dev=False) as server:
        root = server.url.replace("http://", "https://").removesuffix("/delta-sharing")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with urlopen(f"{root}/healthz", context=trusting, timeout=PATIENCE_S) as reply:  # noqa: S310 - our own address
            assert json.load(reply) == {"status": "ok"}
        address = urlsplit(root)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        with connected(address) as client, old.wrap_socket(client) as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with connected(address) as client, pytest.raises(ssl.SSLError):
            old.wrap_socket(client)
        with connected(address) as client, suppress(ConnectionError):
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not client.recv(4096).startswith(b"HTTP/1.1 200")


def connected(address: SplitResult) -> socket.socket:
    return socket.create_connection((address.hostname or "", address.port or 0), PATIENCE_S)
