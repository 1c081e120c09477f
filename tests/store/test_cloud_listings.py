"""Listings of S3's, Azure's and Google's storage that lead on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tailer.errors import TransientError
from tailer.storage import open_store
from tailer.store import Store
from tests.clouds.servers import Cloud, Container
from tests.sharing.lying import lying

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def at(cloud: Cloud, url: str) -> AsyncIterator[Store]:
    """A table's store at this server."""
    container = Container(cloud, "c", url)
    store = open_store(container.address("t"), container.options)
    try:
        yield store
    finally:
        await store.aclose()


def whole(body: bytes) -> bytes:
    """An answer with this body."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def page(cloud: str, token: str, names: Sequence[str]) -> bytes:
    """An answer to a listing, with a token for the next one."""
    paths = [f"t/_delta_log/{name}" for name in names]
    time = "2024-01-01T00:00:00Z"
    if cloud != "azure":
        rest = f"<Size>1</Size><LastModified>{time}</LastModified><ETag>a</ETag></Contents>"
        items = [f"<Contents><Key>{path}</Key>{rest}" for path in paths]
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}"
        more += "</NextContinuationToken></ListBucketResult>"
        return f"<ListBucketResult>{''.join(items)}{more}".encode()
    facts = (
        "<Content-Length>1</Content-Length><Content-Type>x</Content-Type>"
        "<Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT"
        "</Last-Modified><Etag>a</Etag><ResourceType>file</ResourceType>"
    )
    blobs = [f"<Blob><Name>{p}</Name><Properties>{facts}</Properties></Blob>" for p in paths]
    return (
        f'<?xml version="1.0"?><EnumerationResults><Blobs>{"".join(blobs)}</Blobs>'
        f"<NextMarker>{token}</NextMarker></EnumerationResults>"
    ).encode()


class EndlessAnswer:
    """A head, and behind it chunks of a mebibyte until the reader has gone, or 4 GiB are sent."""

    def __init__(self, head: str) -> None:
        self.sent = 0
        self._head = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()

    async def __call__(self, _: bytes, writer: asyncio.StreamWriter) -> None:
        chunk = b"100000\r\n" + b"a" * 2**20 + b"\r\n"
        writer.write(self._head)
        try:
            while self.sent < 4 * 2**30:
                writer.write(chunk)
                self.sent += len(chunk)
                await writer.drain()
        finally:
            writer.transport.abort()


async def listed(store: Store) -> AsyncIterator[str]:
    async for file in store.list("_delta_log"):
        yield file.name


@pytest.mark.parametrize("cloud", ["azure", "gcs", "s3"])
async def test_a_listing_of_new_names_for_ever_is_left(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud
) -> None:
    monkeypatch.setattr("tailer.store.objects.store._PAGE_OBJECTS", 10)
    monkeypatch.setattr("tailer.network.http_answers._LISTED_FILES_MAX", 500)
    asked = 0

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        names = [f"{asked * 10 + number:020d}.json" for number in range(10)]
        asked += 1
        writer.write(whole(page(cloud, str(asked), names)))

    async with lying(reply) as (url, _), at(cloud, url) as store:
        with pytest.raises(TransientError, match=r"listing of .* has more than 500 files; check"):
            async with asyncio.timeout(100):
                _ = [name async for name in listed(store)]
    assert asked < 100


@pytest.mark.parametrize("cloud", ["azure", "gcs", "s3"])
@pytest.mark.parametrize("asked", ["list", "folders", "get"])
async def test_an_answer_without_end_is_left(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud, asked: str
) -> None:
    """A listing, or the text of an error, is read whole by obstore."""
    monkeypatch.setattr("tailer.store.objects.asking._GROWTH_BYTES_MAX", 64 * 1024 * 1024)
    monkeypatch.setattr("tailer.store.objects.store._AT_ONCE_BYTES_MAX", 64 * 1024 * 1024)
    status = "200 OK" if asked in ("list", "folders") else "400 Bad Request"
    reply = EndlessAnswer(f"HTTP/1.1 {status}\r\n")

    async def ask(store: Store) -> None:
        if asked == "list":
            _ = [name async for name in listed(store)]
        elif asked == "folders":
            await store.entries(store.root)
        else:
            await store.read("_delta_log/00000000000000000000.json")

    async with lying(reply) as (url, _), at(cloud, url) as store:
        with pytest.raises(TransientError, match=r"answer has no end .* 64 MiB while"):
            async with asyncio.timeout(100):
                await ask(store)
    assert reply.sent < 2 * 2**30


@pytest.mark.parametrize("cloud", ["azure", "gcs", "s3"])
@pytest.mark.parametrize(
    ("names", "said"), [(["1.json"], "form a loop"), ([], "list of _delta_log took longer")]
)
async def test_pages_that_lead_on_for_ever_are_left(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud, names: list[str], said: str
) -> None:
    monkeypatch.setattr("tailer.store.objects.store._PAGE_OBJECTS", 10)
    monkeypatch.setattr("tailer.store.objects.requests._REQUEST_S", 1.0 if not names else 300.0)
    asked = 0

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(whole(page(cloud, str(asked), names)))

    async with lying(reply) as (url, _), at(cloud, url) as store:
        with pytest.raises(TransientError, match=said):
            async with asyncio.timeout(100):
                _ = [name async for name in listed(store)]
    assert asked >= 5


SIZE = 1024 * 1024
FOUND = f'HTTP/1.1 206 OK\r\nContent-Length: {SIZE}\r\nETag: "a"\r\n'
FOUND += f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}\r\n"
FOUND += "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"


@pytest.mark.parametrize("cloud", ["azure", "gcs", "s3"])
async def test_memory_that_others_take_is_not_taken_for_an_answer_without_end(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud
) -> None:
    """Another feed of the process takes memory while a file comes over a slow line, each time."""
    monkeypatch.setattr("tailer.store.objects.asking._GROWTH_BYTES_MAX", 32 * 1024 * 1024)
    taken: list[bytes] = []

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(FOUND.encode() + b"\r\n" + bytes(SIZE // 2))
        await writer.drain()
        await asyncio.sleep(0.3)  # the process is looked at
        taken.append(b"x" * (64 * 1024 * 1024))
        await asyncio.sleep(0.5)
        writer.write(bytes(SIZE - SIZE // 2))

    async with lying(reply) as (url, _), at(cloud, url) as store:
        async with asyncio.timeout(100):
            data, _ = await store.read("file", 0, SIZE)
    assert data == bytes(SIZE)
    assert len(taken) >= 2


@pytest.mark.parametrize("cloud", ["azure", "gcs", "s3"])
async def test_a_file_without_end_is_left(monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> None:
    """It is sent in chunks, of which there are more than the length that it says."""
    monkeypatch.setattr("tailer.store.objects.asking._GROWTH_BYTES_MAX", 64 * 1024 * 1024)
    monkeypatch.setattr("tailer.store.objects.store._AT_ONCE_BYTES_MAX", 64 * 1024 * 1024)
    reply = EndlessAnswer(FOUND)

    async with lying(reply) as (url, _), at(cloud, url) as store:
        with pytest.raises(TransientError, match=rf"bytes of {SIZE}"):
            async with asyncio.timeout(100):
                await store.read("file", 0, SIZE)
    assert reply.sent < 2 * 2**30
