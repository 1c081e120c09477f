"""The object of a feed's offset on S3: conditional writes of :mod:`tailer.offsets.leased`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tailer.errors import ConfigError, OffsetError
from tailer.network.http_answers import strong_etag
from tailer.offsets import LEASE_S
from tailer.offsets.conditional import Seen, age_s, steady_now
from tailer.offsets.document import document_name, from_bytes
from tailer.offsets.leased import LeasedOffsetStore
from tailer.store.s3.client import Call, S3Client
from tailer.store.s3.errors import refusal
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.store import SharedClients
from tailer.store.traffic import Traffic

__all__ = ["S3Object", "s3_offsets"]


def s3_offsets(
    address: str,
    feed: str,
    options: Mapping[str, Any] | S3Options,
    *,
    standby: bool = True,
    lease_s: float = LEASE_S,
    traffic: Traffic | None = None,
) -> LeasedOffsetStore:
    """Return the store of a feed's offset below ``address``, which is ``s3://bucket/prefix``."""
    chosen = options if isinstance(options, S3Options) else S3Options.from_options(options)
    place = S3Object(address, feed, chosen, traffic or Traffic())
    return LeasedOffsetStore(place, feed, standby=standby, lease_s=lease_s)


class S3Object:
    """See :class:`tailer.offsets.conditional.ConditionalObject`."""

    def __init__(self, address: str, feed: str, options: S3Options, traffic: Traffic) -> None:
        place = parse_s3_address(address)
        if place is None:
            raise ConfigError(f"{address!r} is not an S3 address like s3://bucket/prefix")
        self._bucket, prefix = place
        folder = f"{prefix}/" if prefix else ""
        self._key = f"{folder}{document_name(feed)}.offset.json"
        self._feed, self._options, self._traffic = feed, options, traffic
        self._client: S3Client | None = None

    @property
    def path(self) -> str:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        return f"s3://{self._bucket}/{self._key}"

    async def open(self) -> None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        self._client = SharedClients.take(self._options)

    async def close(self) -> None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        client, self._client = self._client, None
        if client is not None:
            await SharedClients.give_back(client)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[S3Client]:
        """Yield the client; without an opened one, a client for this call only."""
        if self._client is not None:
            yield self._client
            return
        async with SharedClients.lent(self._options) as client:
            yield client

    async def get(self) -> Seen:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        async with self._connected() as client:
            call = Call("get", "GET", self._bucket, self._key)
            answer = await client.request(call, self._traffic)
        now = steady_now()
        if answer.status == 404:
            return Seen(None, "", 0.0, now)
        if answer.status != 200:
            raise refusal(answer, "get", self._bucket, self._key)
        try:
            document = from_bytes(answer.body, self._feed, self.path)
        except OffsetError as e:
            document = {"epoch": 0, "damaged": e.what.partition(": ")[2]}
        return Seen(document, answer.headers.get("etag", ""), age_s(answer), now)

    async def put(self, body: bytes, etag: str | None) -> str | None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": etag}
        headers = {"Content-Type": "application/json", **condition}
        async with self._connected() as client:
            call = Call("put", "PUT", self._bucket, self._key, {}, headers, body)
            answer = await client.request(call, self._traffic)
        if answer.status == 412 or (answer.status == 404 and etag is not None):
            return None
        if answer.status != 200:
            raise refusal(answer, "put", self._bucket, self._key)
        return strong_etag(answer.headers.get("etag")) or ""
