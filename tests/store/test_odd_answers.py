"""Answers that no server should give: each ends in what it says, or in an error with a sentence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tailer.errors import CorruptLog, TailerError, TargetRefused, TransientError
from tailer.sharing.model import Table
from tailer.storage import open_offset_store, open_store, storage_named
from tailer.store import Store
from tailer.store.https import HttpsFiles
from tailer.store.objects import options as cloud_options
from tests.sharing.lying import Reply, asking, files_at, lying, saying
from tests.support.extent import ends, sampled

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("s3_account")]

DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
SIZE = 6 * 1024 * 1024
OBJECT = {"Last-Modified": DATE, "ETag": '"a1"', "Content-Range": "bytes 0-3/4"}
DIGITS = "9" * 5000
#: What texts a header may have that is to be a number, a date, a tag, a name or a range.
TEXTS = [
    "", "\u00b2", "-1", "1e400", DIGITS, "\x01", "%00", "\u00e4", "\udcff", '""', 'W/"a1"',
    "bytes 0-3", "bytes 0-3/*", "bytes */4", "bytes 3-0/4", "bytes 1-4/5",
    f"bytes {DIGITS}-{DIGITS}/{DIGITS}", "Mon, 01 Jan 99999 00:00:00 GMT",
    "Mon, 01 Jan 2024 00:00:00 +9999", "Mon, 01 Jan 0000 00:00:00",
    "Fri, 31 Dec 9999 23:59:59 -2300", "Mon, 99 Foo 2024 99:99:99", ", , ,", "gzip", "none, none",
    "a/b.example.org/", "http://[x/", "//",
]  # fmt: skip
PART, WHOLE = "206 Partial Content", "200 OK"
BUSY, MOVED = "503 Busy", "301 Moved"
#: Where each header is read.
NAMES = {
    "Last-Modified": [PART, WHOLE], "ETag": [PART, WHOLE], "Content-Range": [PART],
    "Date": [WHOLE, BUSY], "Content-Encoding": [PART, WHOLE], "Content-Type": [WHOLE],
    "Retry-After": [BUSY], "Location": [MOVED], "X-Amz-Bucket-Region": [MOVED],
    "Delta-Table-Version": [WHOLE], "Delta-Sharing-Capabilities": [WHOLE],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cloud_options.RETRIES, "max_retries", 0)


@asynccontextmanager
async def s3_at(url: str, **options: Any) -> AsyncIterator[Store]:
    known = {"endpoint_url": url, "region": "eu-west-1", **options}
    store = open_store("s3://lake/t", known)
    try:
        yield store
    finally:
        await store.aclose()


def answering(status: str, headers: dict[str, str], body: bytes = b"abcd") -> Reply:
    """An answer whose headers are what they are, byte by byte."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)

    return reply


@asynccontextmanager
async def requests_to(url: str) -> AsyncIterator[dict[str, Callable[[], Awaitable[Any]]]]:
    """What asks a server of tables: S3, its state, pre-signed files and sharing."""
    options = {"endpoint_url": url, "region": "eu-west-1"}
    offsets = open_offset_store("s3://lake/state", "f", options, standby=False, lease_s=60)
    async with s3_at(url) as store, files_at(url + "/f") as files, asking(url) as client:
        yield {
            "head": lambda: store.stat("f"),
            "range": lambda: store.read("f", 0, 4),
            "whole": lambda: store.read("f"),
            "open": lambda: in_pieces(store),
            "list": lambda: names(store),
            "folders": lambda: storage_named("s3").list_folders("s3://lake/t", options),
            "offset": offsets.load,
            "https": lambda: files.read("f", 0, 4),
            "sharing": lambda: all_of(client.list_shares()),
            "version": lambda: client.find_version(Table("t", "s", "s")),
        }


async def in_pieces(store: Store | HttpsFiles) -> None:
    """Open a file that is larger than its end that comes first."""
    file = await store.open("f", SIZE)
    await asyncio.to_thread(lambda: (file.seek(0), file.read(1)))


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def names(store: Store) -> list[str]:
    async with aclosing(store.list("_delta_log", "0")) as files:
        return [file.name async for file in files]


@sampled
@pytest.mark.parametrize("name", NAMES)
async def test_no_header_is_a_traceback(name: str) -> None:
    current: list[Reply] = []

    async def reply(head: bytes, writer: asyncio.StreamWriter) -> None:
        await current[0](head, writer)

    async with lying(reply) as (url, seen), requests_to(url) as requests:
        # Each region that is named has a client made for it, which takes a fifth of a second.
        texts = ends(TEXTS[::8]) if NAMES[name] == [MOVED] else TEXTS
        for status in NAMES[name]:
            for text in texts:
                current[:] = [answering(status, {**OBJECT, name: text})]
                for request in requests.values():
                    with suppress(TailerError, FileNotFoundError):
                        await request()
    assert len(seen) >= len(NAMES[name]) * len(texts) * len(requests)


XML = "<ListBucketResult><EncodingType>url</EncodingType>"
ITEM = (
    "<Contents><Key>t/_delta_log/1</Key><Size>{}</Size><LastModified>{}</LastModified></Contents>"
)
LISTINGS = [
    f'<?xml version="1.0" encoding="none"?>{XML}</ListBucketResult>'.encode(),
    f'<?xml version="1.0" encoding="utf-7"?>{XML}</ListBucketResult>'.encode(),
    f'<?xml version="1.0" encoding="utf-16"?>{XML}</ListBucketResult>'.encode("utf-16"),
    f'<!DOCTYPE a [<!ENTITY b "c">]>{XML}<d>&b;</d></ListBucketResult>'.encode(),
    f"{XML}\x00</ListBucketResult>".encode(),
    b"<a>" * 100_000,
    *(f"{XML}{ITEM.format(size, '2024-01-01T00:00:00Z')}</ListBucketResult>".encode()
      for size in ("", "-1", "\u00b2", DIGITS, "1.5", "1_0")),
    *(f"{XML}{ITEM.format(1, date)}</ListBucketResult>".encode()
      for date in ("", "x", "0001-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "2024-13-01",
                   "9999-12-31T23:59:59-23:59", DIGITS, "1969-01-01T00:00:00Z")),
]  # fmt: skip


async def test_no_listing_is_a_traceback() -> None:
    current: list[bytes] = []

    async def reply(head: bytes, writer: asyncio.StreamWriter) -> None:
        await answering("200 OK", {}, current[0])(head, writer)

    async with lying(reply) as (url, _), s3_at(url) as store:
        for body in LISTINGS:
            current[:] = [body]
            with suppress(TransientError):
                assert await names(store) in ([], ["1"])


@pytest.mark.parametrize("address", ["s3://lake/t", "az://lake/t", "gs://lake/t"])
@pytest.mark.parametrize("headers", [{"Content-Type": "text/html"}, OBJECT])
async def test_a_page_that_is_no_listing_is_not_an_empty_one(
    address: str, headers: dict[str, str]
) -> None:
    """A table behind a captive portal is not gone, nor are the tables of a folder."""
    page = b"<html><body>sign in</body></html>"
    async with lying(answering(WHOLE, headers, page)) as (url, _):
        more: dict[str, Any] = {"region": "eu-west-1"} if address.startswith("s3") else {}
        more |= {"account_name": "lake"} if address.startswith("az") else {}
        store = open_store(address, {"endpoint_url": url, "anonymous": True, **more})
        async with aclosing(store):
            with pytest.raises(TransientError):
                _ = [file async for file in store.list("_delta_log")]
            with pytest.raises(TransientError):
                await store.entries(address)


# Without end


def endless(counted: list[int], status: str = "200 OK", *headers: str) -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())
        while True:  # until the other side leaves
            writer.write(b" " * 1_000_000)
            await writer.drain()
            counted.append(1_000_000)

    return reply


ENDLESS_OBJECT = ("206 Partial Content", *(f"{k}: {v}" for k, v in OBJECT.items()))


@pytest.mark.parametrize(
    "status",
    [("200 OK",), ENDLESS_OBJECT, ("403 Forbidden",), ("200 OK", "Last-Modified: " + DATE)],
)
async def test_no_answer_is_read_without_end(status: tuple[str, ...]) -> None:
    """Of those that are not obstore's, for which ``test_cloud_listings.py`` stands."""
    counted: list[int] = []
    async with lying(endless(counted, *status)) as (url, _), requests_to(url) as requests:
        for name in ("https", "sharing", "version"):
            counted.clear()
            async with asyncio.timeout(120):
                with suppress(TailerError, FileNotFoundError):
                    await requests[name]()
            # What was sent lies in the buffers of both sides, too.
            sent = sum(counted)
            assert sent < 64_000_000, name


async def test_an_answer_that_is_for_ever_to_be_continued_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part of it comes before the socket's time-out."""

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 10)
            await writer.drain()
            await asyncio.sleep(0.01)

    monkeypatch.setattr(cloud_options, "_TIMEOUT", timedelta(seconds=0.5))
    async with lying(reply) as (url, _), s3_at(url) as store, asking(url, timeout_s=0.5) as client:
        async with asyncio.timeout(120):
            with pytest.raises(TransientError, match=r"get failed \(it took too long\)"):
                await store.read("f")
            with pytest.raises(TransientError, match="no answer in 1 s"):
                await client.find_version(Table("t", "s", "s"))


# One file, in pieces


LATER = "Tue, 02 Jan 2024 00:00:00 GMT"


def ranges_of(*states: dict[str, str]) -> Reply:
    """A file that is in the first state for the first request, in the next one for the next."""
    asked: list[str] = []

    async def reply(head: bytes, writer: asyncio.StreamWriter) -> None:
        text = re.search(rb"(?i)range: bytes=(\d*)-(\d*)", head)
        assert text is not None
        last = min(int(text[2]), SIZE - 1) if text[1] and text[2] else SIZE - 1
        first = int(text[1]) if text[1] else SIZE - int(text[2])
        asked.append(head.decode())
        state = states[min(len(asked), len(states)) - 1]
        span = {"Content-Range": f"bytes {first}-{last}/{SIZE}"}
        await answering(PART, {**state, **span}, b"x" * (last + 1 - first))(head, writer)

    return reply


STATES = [
    {"Last-Modified": DATE},
    {"Last-Modified": DATE, "ETag": '""'},
    {"Last-Modified": DATE, "ETag": 'W/"a"'},
    {"Last-Modified": DATE, "ETag": '"a"'},
]


@pytest.mark.parametrize("state", STATES)
async def test_pieces_of_one_state_are_one_file(state: dict[str, str]) -> None:
    async with lying(ranges_of(state)) as (url, seen), s3_at(url) as store:
        await in_pieces(store)
        async with files_at(url + "/f") as files:
            await in_pieces(files)
    conditions = [head for head in seen if b"if-match" in head.lower()]
    assert bool(conditions) == (state.get("ETag") == '"a"'), "a weak one would never match"


@pytest.mark.parametrize(
    "states",
    [
        *(({**state}, {**state, "Last-Modified": LATER}) for state in STATES[:3]),
        (STATES[2], {**STATES[2], "ETag": 'W/"b"'}),
        (STATES[3], {**STATES[3], "ETag": '"b"'}),
        (STATES[3], STATES[0]),
    ],
)
async def test_pieces_of_two_states_are_not_one_file(states: tuple[dict[str, str], ...]) -> None:
    async with lying(ranges_of(*states)) as (url, _), s3_at(url) as store:
        with pytest.raises(TransientError, match="was replaced while it was read"):
            await in_pieces(store)
    async with lying(ranges_of(*states)) as (url, _), files_at(url + "/f") as files:
        with pytest.raises(CorruptLog, match="changed while it was read"):
            await in_pieces(files)


# Servers that know less


async def test_a_server_without_start_after_is_listed_whole() -> None:
    asked: list[dict[str, list[str]]] = []
    items = [ITEM.format(1, "2024-01-01T00:00:00Z").replace("log/1", f"log/{n}") for n in range(4)]
    listing = f"{XML}{''.join(items)}</ListBucketResult>".encode()

    async def reply(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(parse_qs(urlsplit(head.split()[1].decode()).query))
        said: tuple[str, bytes] = ("200 OK", listing)
        if "start-after" in asked[-1]:
            said = "501 Not Implemented", b"<Error><Code>NotImplemented</Code></Error>"
        await answering(said[0], {}, said[1])(head, writer)

    async with lying(reply) as (url, _), s3_at(url) as store:
        for _ in range(2):
            found = [file.name async for file in store.list("_delta_log", "1")]
            assert found == ["2", "3"]
    assert ["start-after" in query for query in asked] == [True, False, False]


async def test_cookies_are_not_kept() -> None:
    headers = {**OBJECT, "Set-Cookie": "session=of-a-stranger; Path=/"}
    async with lying(answering("206 Partial Content", headers)) as (url, seen):
        named = url.replace("127.0.0.1", "localhost")  # addresses get no cookies anyway
        async with s3_at(named) as store:
            await store.read("f", 0, 4)
            await store.read("f", 0, 4)
    assert len(seen) == 2
    assert not [head for head in seen if b"cookie" in head.lower()]


async def test_a_body_of_another_length_is_said() -> None:
    headers = {**OBJECT, "Content-Encoding": "gzip", "Content-Range": "bytes 0-9/10"}
    async with lying(answering("206 Partial Content", headers)) as (url, _), s3_at(url) as store:
        with pytest.raises(TransientError, match="4 bytes of 10"):
            await store.read("f", 0, 10)


# Refusals


@pytest.mark.parametrize(
    ("operation", "right"),
    [("put", "s3:PutObject"), ("delete", "s3:DeleteObject"), ("list", "s3:ListBucket")],
)
async def test_a_denied_request_names_its_right(operation: str, right: str) -> None:
    denied = answering("403 Forbidden", {}, b"<Error><Code>AccessDenied</Code></Error>")
    async with lying(denied) as (url, _):
        options = {"endpoint_url": url, "region": "eu-west-1"}
        target = storage_named("s3").open_target("s3://lake/k", options)
        requests: dict[str, Callable[[], Awaitable[Any]]] = {
            "put": lambda: target.replace("k", b""),
            "delete": lambda: target.remove("k"),
            "list": lambda: target.names(""),
        }
        sentence = f"access denied to {operation} .* grant {right} on"
        with pytest.raises(TargetRefused, match=sentence):
            await requests[operation]()


async def test_a_skewed_clock_is_named_with_the_server_s() -> None:
    code = "<Code>RequestTimeTooSkewed</Code><ServerTime>2024-01-01T00:00:00Z</ServerTime>"
    reply = saying(f"<Error>{code}</Error>".encode(), status="403 Forbidden")
    async with lying(reply) as (url, _), s3_at(url) as store:
        with pytest.raises(TransientError, match=r"machine's clock .* says 2024-01-01T.*; set it"):
            await store.read("f", 0, 4)
