"""Clients that mean harm: what they send is refused with a status, costs little, and is in no log
as an error of ours."""

from __future__ import annotations

import gzip
import hmac
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest

from tailer.share_server.config import RecipientLimits
from tailer.share_server.guard import RateLimits
from tailer.share_server.hints import Hints, parse_hints
from tailer.share_server.recipients import RecipientStore
from tailer.share_server.refusals import Refusal
from tailer.testing.table import TableBuilder
from tests.share_server.serving import Served, place, served
from tests.support.waiting import PATIENCE_S

SCHEMA = pa.schema([("id", pa.int64())])
QUERY = f"{place('s.x.t')}/query"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("hostile")
    table = TableBuilder(folder / "t", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": 1}])
    limits = "requests_per_s = 1e6\nstall_s = 1.0"
    # At its end, this holds that the log has no traceback.
    with served(folder, {"s.x.t": table.folder}, share=limits) as running:
        yield running
        assert not any(" ERROR " in line for line in running.program.errors)


def connected(server: Served) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S)


def raw(server: Served, request: bytes) -> bytes:
    """The whole answer to some bytes, which the server ends by closing the connection."""
    with connected(server) as client:
        client.sendall(request)
        parts = []
        while data := client.recv(65_536):
            parts.append(data)
        return b"".join(parts)


def head(server: Served, path: str = "/shares", authorization: bytes | None = None) -> bytes:
    said = authorization or f"Bearer {server.bearer}".encode()
    target = urlsplit(server.url).path + path
    line = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: "
    return line.encode() + said + b"\r\n"


@pytest.mark.parametrize(
    "authorization",
    [b"Bearer dts_000000000000_\xff\xfe", b"Bearer \xff", b"Bearer dts_\xed\xa0\x80_x",
     b"Bearer dts_" + b"0" * 7000],
)  # fmt: skip
def test_a_token_that_is_no_text_is_a_wrong_token(server: Served, authorization: bytes) -> None:
    reply = raw(server, head(server, authorization=authorization) + b"\r\n")
    assert reply.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "request_of",
    [
        lambda h: h + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        lambda h: h + b"".join(b"X%d: a\r\n" % n for n in range(40_000)) + b"\r\n",
        lambda h: h + b"X: a\0b\r\n\r\n",
        lambda h: h + b"X : a\r\n\r\n",
        lambda h: h.replace(b"/shares", b"/" + b"a" * 100_000) + b"\r\n",
        lambda h: h.replace(b"/shares", b"/shares/\xff\xfe") + b"\r\n",
        lambda h: h + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        lambda h: h + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        lambda h: h + b"Content-Length: -1\r\n\r\n",
        lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_http_that_is_none_is_refused(server: Served, request_of: Any) -> None:
    request = request_of(head(server))
    try:
        reply = raw(server, request)
    except ConnectionError:  # it was still being sent when the connection was closed
        assert len(request) > 100_000
        return
    assert reply.split(b" ")[1] in (b"400", b"431")
    assert b"aiohttp" not in reply
    assert server.bearer.encode() not in reply


def test_a_request_that_never_comes_to_its_end_is_not_waited_for(server: Served) -> None:
    slow = [connected(server) for _ in range(20)]
    request = head(server)
    for number, client in enumerate(slow):
        client.sendall(request[: number * 3])
    for number, client in enumerate(slow):
        with client, suppress(ConnectionError):
            client.sendall(request[number * 3 :][:1])  # a byte now and then does not help
            assert client.recv(4096).split(b"\r\n")[0] in (b"", b"HTTP/1.1 408 Request Timeout")
    assert server.get("/shares").status == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (gzip.compress(b" " * 100_000_000), {"Content-Encoding": "gzip"}, 415),
        (b"{}", {"Content-Encoding": "gzip"}, 415),
        (b"{}", {"Content-Encoding": "identity"}, 200),
        (b" " * 1_100_000, {}, 413),
        (b"{}" + b"\r\n\r\n" * 3_000, {}, 200),
        (b'{"refreshToken": "\\ud800.AAAA"}', {}, 400),
        (b'{"refreshToken": "."}', {}, 400),
        (b'{"timestamp": "\\ud800"}', {}, 400),
        (b'{"timestamp": "0001-01-01T00:00:00+23:59"}', {}, 400),
        (b'{"timestamp": "9999-12-31T23:59:59.999999-23:59"}', {}, 200),
        (b'{"version": 1e400}', {}, 400),
        (b'{"version": ' + b"9" * 5000 + b"}", {}, 400),
        (b'{"limitHint": NaN}', {}, 400),
        (b'{"predicateHints": ["id = \'\\ud800\'", "\\u0000"]}', {}, 200),
    ],
)
def test_bodies_that_mean_harm(
    server: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert server.get(QUERY, method="POST", body=body, headers=headers).status == status


def test_a_body_without_end_is_refused_where_it_is_too_long(server: Served) -> None:
    line = head(server, QUERY).replace(b"GET ", b"POST ", 1)
    with connected(server) as client:
        client.sendall(line + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        reply = b""
        client.settimeout(0.05)
        for _ in range(1000):
            try:
                client.sendall(chunk)
                reply = client.recv(4096)
            except TimeoutError:
                continue
            break
        assert reply.startswith(b"HTTP/1.1 413 ")


def test_deep_and_wide_hints_are_not_used() -> None:
    leaf = {"op": "isNull", "children": [{"op": "column", "name": "id", "valueType": "long"}]}
    for tree in ({"op": "and", "children": [leaf] * 1001}, {"op": "or", "children": [leaf] * 5000}):
        assert parse_hints(None, json.dumps(tree)) == Hints(None, whole=False)
    deep: dict[str, Any] = leaf
    for _ in range(100):
        deep = {"op": "not", "children": [deep]}
    assert parse_hints(None, deep) == Hints(None, whole=False)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused_and_no_origin_is_let_in(server: Served, method: str) -> None:
    origin = {"Origin": "https://elsewhere.example.org", "Access-Control-Request-Method": "GET"}
    for path in ("/shares", "/shares/s", QUERY, f"{place('s.x.t')}/version", place("s.x.t")):
        reply = server.get(path, method=method, headers=origin)
        assert (reply.status, reply.code) == (405, "MALFORMED_REQUEST")
        assert set(reply.headers["allow"].split(",")) <= {"GET", "HEAD", "POST"}
    replies = [server.get("/shares", headers=origin), server.query("s.x.t")]
    for answer in replies:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["server"] == "delta-tailer"


def test_head_of_a_file_says_what_get_gives(server: Served) -> None:
    url = str(server.query("s.x.t").lines[2]["file"]["url"])
    size = len(server.get(url).body)
    for span in ("", "bytes=0-9", "bytes=-5", f"bytes={size}-", "bytes=3-2", "rows=1-2"):
        headers = {"Range": span} if span else {}
        got, told = (server.get(url, method=m, headers=headers) for m in ("GET", "HEAD"))
        assert told.body == b""
        kept = ("content-length", "content-range", "content-type", "accept-ranges")
        assert [told.headers.get(k) for k in kept] == [got.headers.get(k) for k in kept]
        assert told.status == got.status
    forged = url[:-3] + "000"
    assert server.get(forged, method="HEAD").status == server.get(forged).status == 403


@pytest.mark.parametrize(
    ("span", "status"),
    [
        ("bytes=" + ",".join(f"{n}-{n}" for n in range(1000)), 200),
        ("bytes=0-100,0-100,0-100", 200), ("bytes=0-" + "9" * 30, 200), ("bytes=--1", 200),
        ("bytes=-5-3", 200), ("bytes=1-0", 200), ("bytes=\u0661-", 200),
        ("bytes=-" + "9" * 19, 206), ("bytes=0-" + "9" * 19, 206), ("bytes=" + "9" * 19 + "-", 416),
    ],
)  # fmt: skip
def test_ranges_that_mean_harm_give_the_file_once_at_most(
    server: Served, span: str, status: int
) -> None:
    url = str(server.query("s.x.t").lines[2]["file"]["url"])
    whole = server.get(url).body
    reply = server.get(url, headers={"Range": span.encode().decode("latin-1")})
    assert reply.status == status
    assert status == 416 or reply.body == whole


@pytest.mark.parametrize(
    "path",
    ["%252e%252e%252fetc%252fpasswd", "..%00", "%2e%2e", "..%5c..%5c", "%c0%ae%c0%ae%c0%af",
     "t%00.parquet", "%ff%fe", "s%0d%0aX-Evil:%201"],
)  # fmt: skip
def test_names_that_are_none_are_not_found(server: Served, path: str) -> None:
    good = urlsplit(str(server.query("s.x.t").lines[2]["file"]["url"]))
    _, claim, name = good.path.rsplit("/", 2)
    for where in (
        f"/shares/{path}", f"/shares/s/schemas/{path}/tables",
        f"/shares/s/schemas/x/tables/{path}/version",
        f"/files/{claim}/{path}?{good.query}", f"/files/{path}/{name}?{good.query}",
    ):  # fmt: skip
        reply = server.get(where)
        assert reply.status in (403, 404)
        assert set(reply.json) == {"errorCode", "message"}
        assert "x-evil" not in reply.headers


def test_downloads_of_one_recipient_are_bounded() -> None:
    limits = RateLimits(RecipientLimits(downloads=2), lambda: 0.0)
    with limits.count_download("alice"):
        with limits.count_download("alice"), limits.count_download("bob"):
            with pytest.raises(Refusal, match="too many downloads are under way") as refused:
                limits.count_download("alice").__enter__()
            assert (refused.value.status, refused.value.retry_after_s) == (429, 1.0)
        with limits.count_download("alice"):
            pass


def test_strangers_do_not_have_a_recipient_forgotten() -> None:
    limits = RateLimits(RecipientLimits(requests_per_s=0.5, concurrent=1), lambda: 0.0)
    with limits.admit_request("alice"):
        for number in range(20_000):
            limits.count_guess(f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}")
        with pytest.raises(Refusal, match="under way"), limits.admit_request("alice"):
            pass
    with limits.admit_request("alice"):
        pass
    with pytest.raises(Refusal, match="too many requests"), limits.admit_request("alice"):
        pass


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True), ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False), ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True), (None, "", True),
    ],
)  # fmt: skip
def test_guesses_are_counted_by_network(one: str | None, other: str, *, same: bool) -> None:
    limits = RateLimits(RecipientLimits(requests_per_s=0.25), lambda: 0.0)
    limits.count_guess(one)
    if same:
        with pytest.raises(Refusal) as refusal:
            limits.count_guess(other)
        assert refusal.value.status == 429
    else:
        limits.count_guess(other)


def test_a_wrong_token_is_compared_as_a_good_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecipientStore(tmp_path, time.time)
    bearer, _ = store.create_token("alice", None)
    compared: list[tuple[int, int]] = []
    original = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert store.authenticate_bearer(bearer) is not None
    for wrong in ("", "dts_x_y", bearer[:-1], bearer.replace("dts_", "dtx_"), "dts_\udcff_\udcff"):
        assert store.authenticate_bearer(wrong) is None
    assert compared == [(64, 64)] * 6


def test_no_secret_is_in_what_the_server_says_of_itself(server: Served) -> None:
    url = str(server.query("s.x.t").lines[2]["file"]["url"])
    server.get(url)
    secrets = [server.bearer.split("_", 2)[2], url.rpartition("=")[2]]
    # Also where a client puts a token at a wrong place.
    for where in (f"/shares?access_token={quote(server.bearer)}", f"/nowhere?x={server.bearer}"):
        server.get(where, headers={"Authorization": f"Basic {server.bearer}"})
    root = server.url.removesuffix("/delta-sharing")
    said = [
        (server.state / "audit.jsonl").read_text(),
        server.get(f"{root}/metrics", headers={"Authorization": ""}).body.decode(),
        "\n".join(server.program.errors),
    ]
    for text in said:
        for secret in secrets:
            assert secret not in text
    assert "alice" not in said[1]
    assert "s.x.t" not in said[1]
