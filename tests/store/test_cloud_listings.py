"""Listings of Azure's and Google's storage that lead on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tailer.errors import TransientError
from tailer.storage import open_store
from tailer.store import Store
from tests.clouds.servers import Cloud, Container
from tests.sharing.lying import lying

pytestmark = pytest.mark.anyio


def page(cloud: Cloud, token: str, names: Sequence[str]) -> bytes:
    """An answer to a listing, with a token for the next one."""
    paths = [f"t/_delta_log/{name}" for name in names]
    time = "2024-01-01T00:00:00Z"
    if cloud == "gcs":
        rest = f"<Size>1</Size><LastModified>{time}</LastModified><ETag>a</ETag></Contents>"
        items = [f"<Contents><Key>{path}</Key>{rest}" for path in paths]
        more = f"<NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
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


async def listed(store: Store) -> AsyncIterator[str]:
    async for file in store.list("_delta_log"):
        yield file.name


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
@pytest.mark.parametrize(
    ("names", "said"), [(["1.json"], "form a loop"), ([], "list of _delta_log took longer")]
)
async def test_pages_that_lead_on_for_ever_are_left(
    monkeypatch: pytest.MonkeyPatch, cloud: Cloud, names: list[str], said: str
) -> None:
    monkeypatch.setattr("tailer.store.objects.store._PAGE_OBJECTS", 10)
    monkeypatch.setattr("tailer.store.objects.store._REQUEST_S", 1.0 if not names else 300.0)
    asked = 0

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        body = page(cloud, str(asked), names)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)

    async with lying(reply) as (url, _):
        container = Container(cloud, "c", url)
        store = open_store(container.address("t"), container.options)
        try:
            with pytest.raises(TransientError, match=said):
                async with asyncio.timeout(100):
                    _ = [name async for name in listed(store)]
        finally:
            await store.aclose()
    assert asked >= 5
