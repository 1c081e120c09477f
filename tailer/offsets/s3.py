"""Offsets and leases on S3, by conditional writes.

One object per feed holds its offset, its owner and an epoch that counts owners. Every write is
conditional on the object being the one seen last: of two processes that both believe to be the
owner, one is refused, and stops. The owner writes at least every third of the lease. A standby
takes the feed over when the object has not changed for a whole lease, by the server's clock or by
its own, so that the clocks of the two processes need not agree; or at once, when it sees that the
owner has died.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, OffsetHeld, TableError, TransientError
from tailer.http_answers import strong_etag
from tailer.offsets import LEASE_S, OffsetStore
from tailer.offsets.conditional import ConditionRefused, Refusals, Seen, age_s, steady_now
from tailer.offsets.document import (
    FORMAT,
    damaged,
    document_name,
    from_bytes,
    to_bytes,
)
from tailer.offsets.owner import describe, is_dead, this_process
from tailer.store.s3.client import Call, S3Client
from tailer.store.s3.errors import refusal
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.store import SharedClients
from tailer.store.traffic import Traffic

__all__ = ["S3OffsetStore"]

#: The part of the lease during which its owner trusts it. A standby waits for the whole lease.
_TRUSTED_PART = 0.8
#: An ETag that no object has.
_NO_ETAG = '"00000000000000000000000000000000"'


class S3OffsetStore(OffsetStore):
    """The offset of a feed in an object below ``address``, which is ``s3://bucket/prefix``.

    With ``standby``, :meth:`acquire` waits for the lease of ``lease_s`` seconds; without, it
    refuses. ``epoch`` is this owner's number: it grows with every owner.
    """

    def __init__(
        self,
        address: str,
        feed: str,
        options: Mapping[str, Any] | S3Options,
        *,
        standby: bool = True,
        lease_s: float = LEASE_S,
        traffic: Traffic | None = None,
    ) -> None:
        place = parse_s3_address(address)
        if place is None:
            raise ConfigError(f"{address!r} is not an S3 address like s3://bucket/prefix")
        if lease_s <= 0:
            raise ConfigError(f"the lease is {lease_s} s, and must be longer than 0")
        self._bucket, prefix = place
        folder = f"{prefix}/" if prefix else ""
        self._key = f"{folder}{document_name(feed)}.offset.json"
        self._options = (
            options if isinstance(options, S3Options) else S3Options.from_options(options)
        )
        self._traffic = traffic or Traffic()
        self._feed, self._standby, self._lease_s = feed, standby, lease_s
        self._id = uuid.uuid4().hex
        self._writing = asyncio.Lock()
        self._client: S3Client | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._held: Seen | None = None
        self._lost: OffsetError | None = None
        self._renewed_at = 0.0
        self._sequence = 0
        self._waiting_for: str | None = None
        self.epoch = 0

    @property
    def path(self) -> str:
        """The object's address."""
        return f"s3://{self._bucket}/{self._key}"

    @property
    def waiting_for(self) -> str | None:
        """See :class:`tailer.offsets.OffsetStore`."""
        return self._waiting_for

    # Ownership

    async def acquire(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        if self._held is not None:
            return
        self._lost = None
        self._client = SharedClients.take(self._options)
        try:
            held = await self._claim_when_free()
        except BaseException:
            await self._close()
            raise
        finally:
            self._waiting_for = None
        self._held, self.epoch = held, held.epoch
        self._renewal = asyncio.create_task(self._renew_always(), name=f"lease of {self._feed}")

    async def _claim_when_free(self) -> Seen:
        first: Seen | None = None  # of this state of the object
        refusals = Refusals(self.path)
        while True:
            try:
                seen = await self._get()
                if seen.owner is not None and seen.owner.get("id") == self._id:
                    # Claimed before; only the answer was lost.
                    return await self._checked(seen)
                if first is None or first.document != seen.document:
                    first = seen
                if (left := self._left_s(seen, since=first.at)) <= 0:
                    claimed = await self._claim(seen)
                    if claimed is not None:
                        return await self._checked(claimed)
                    await refusals.one_more(seen)  # perhaps another process was faster
                    continue
            except ConditionRefused:
                raise
            except TransientError as e:
                if not self._standby:
                    raise
                self._waiting_for, left = str(e), self._lease_s / 3
            else:
                who = describe(seen.owner or {})
                if not self._standby:
                    raise OffsetHeld(
                        f"{who} holds the offset of feed {self._feed!r}",
                        path=self.path,
                        hint="two daemons must not run one feed; stop the other one",
                    )
                self._waiting_for = who
            await anyio.sleep(max(0.05, min(left, self._lease_s / 3)))

    def _left_s(self, seen: Seen, since: float) -> float:
        """Return how long the owner's lease still runs, as far as known, in seconds.

        ``since`` is when this state was first seen: not every server sends the time.
        """
        if seen.owner is None or is_dead(seen.owner):
            return 0.0
        lease_s = float((seen.document or {}).get("lease_s", self._lease_s))
        return lease_s - max(seen.age_s, seen.at - since)

    async def _claim(self, seen: Seen) -> Seen | None:
        """Claim the free object; return None if it is no longer free, or what it is now says."""
        known = seen.document or {}
        document = self._document(
            epoch=seen.epoch + 1,
            sequence=0,
            offset=known.get("offset"),
            orders=known.get("orders"),
            damaged=known.get("damaged"),
        )
        started = steady_now()
        etag = await self._put(_body(document), self._condition(seen))
        if etag is None:
            return None
        self._renewed_at = started
        return None if not etag else Seen(document, etag, 0.0, started)

    def _document(self, **fields: Any) -> dict[str, Any]:
        owner = {"id": self._id, **this_process()}
        known = {"format": FORMAT, "feed": self._feed, "owner": owner, "lease_s": self._lease_s}
        return {**known, **fields}

    async def _checked(self, held: Seen) -> Seen:
        """Refuse a server that ignores conditions: it would let two owners write."""
        assert held.document is not None
        self._condition(held)
        if await self._put(_body(held.document), {"If-Match": _NO_ETAG}) is not None:
            raise self._without_conditions("the server ignores If-Match")
        return held

    def _condition(self, seen: Seen) -> dict[str, str]:
        """Return the header with which a write succeeds only on what was seen."""
        if seen.document is None:
            return {"If-None-Match": "*"}
        if (etag := strong_etag(seen.etag)) is None:
            raise self._without_conditions(
                f"the ETag that comes with the object, {seen.etag!r}, does not name its state"
                if seen.etag
                else "the object comes without an ETag"
            )
        return {"If-Match": etag}

    def _without_conditions(self, what: str) -> OffsetError:
        return OffsetError(
            f"{what}, so that two daemons can't be kept apart",
            path=self.path,
            hint="keep the state in a local folder, or on a server with conditional writes, "
            "reached without a proxy that alters ETags",
        )

    async def _renew_always(self) -> None:
        """Renew the lease regularly, until it is lost."""
        pause = self._lease_s / 3
        while self._lost is None:
            idle = steady_now() - self._renewed_at
            if idle < pause * 0.9:
                await anyio.sleep(pause - idle)
                continue
            try:
                await self._write()
            except TableError:
                return  # the next writer gets the error
            except TransientError:
                await anyio.sleep(pause / 4)

    async def check(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        self._owned()
        if steady_now() - self._renewed_at > self._lease_s * _TRUSTED_PART:
            await self._write()  # refused if another one has taken over meanwhile

    def _owned(self) -> Seen:
        if self._lost is not None:
            raise self._lost
        if self._held is None:
            raise OffsetError(f"the offset of feed {self._feed!r} is not acquired", path=self.path)
        return self._held

    async def release(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
            self._renewal = None
        if self._held is not None:
            # A lease that can't be released now expires.
            with suppress(TransientError, TableError):
                await self._write(owner=None)
        self._held = None
        await self._close()

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await SharedClients.give_back(client)

    # The offset

    async def load(self) -> Offset | None:
        """See :class:`tailer.offsets.OffsetStore`.

        To its owner it is refused once another one has taken over: a feed that tries again would
        go on from the other's offset.
        """
        seen = await self._get()
        if self._held is not None:
            self._check_mine(seen)
        document = seen.document
        if document is None or document.get("offset") is None:
            if document is not None and document.get("damaged"):
                raise damaged(self._feed, self.path, str(document["damaged"]))
            return None
        try:
            return Offset.from_json(document["offset"])
        except OffsetError as e:
            e.at(path=self.path)
            raise

    async def save(self, offset: Offset) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self._write(offset=offset.to_json(), damaged=None)

    async def clear(self) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self._write(offset=None, orders=None, damaged=None)

    async def load_orders(self) -> dict[str, Any]:
        """See :class:`tailer.offsets.OffsetStore`."""
        document = (self._held or await self._get()).document or {}
        return dict(document.get("orders") or {})

    async def save_orders(self, orders: dict[str, Any]) -> None:
        """See :class:`tailer.offsets.OffsetStore`."""
        await self._write(orders=orders or None)

    async def _write(self, **changes: Any) -> None:
        """Write the object with some fields changed, on condition that it is still this owner's."""
        async with self._writing:
            held = self._owned()
            refusals = Refusals(self.path)
            while True:
                assert held.document is not None
                # Of this attempt alone, so that an object with it shows that it has arrived.
                self._sequence = sequence = max(held.document["sequence"], self._sequence) + 1
                document = {**held.document, **changes, "sequence": sequence}
                body, started = _body(document), steady_now()
                etag = await self._put(body, self._condition(held))
                if etag:
                    self._held, self._renewed_at = Seen(document, etag, 0.0, started), started
                    return
                # Refused: by another owner, or because this write did arrive and only its answer
                # was lost.
                seen = await self._get()
                self._check_mine(seen)
                self._held = held = seen
                if seen.document is not None and to_bytes(seen.document) == body:
                    self._renewed_at = started
                    return
                await refusals.one_more(seen)

    def _check_mine(self, seen: Seen) -> None:
        """Raise :class:`OffsetError`, now and from now on, if the object is another owner's."""
        if (seen.owner or {}).get("id") != self._id or seen.epoch != self.epoch:
            self._lost = self._taken(seen)
            raise self._lost

    def _taken(self, seen: Seen) -> OffsetError:
        if seen.document is None:
            what = f"the offset of feed {self._feed!r} was removed"
        else:
            who = describe(seen.owner) if seen.owner else "another process"
            what = f"{who} has taken feed {self._feed!r} over, with epoch {seen.epoch}"
        return OffsetError(
            what, path=self.path, hint="this process has stopped it, and writes no more"
        )

    # The object

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[S3Client]:
        """Yield the client; without an acquired one, a client for this call only."""
        if self._client is not None:
            yield self._client
            return
        async with SharedClients.lent(self._options) as client:
            yield client

    async def _get(self) -> Seen:
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

    async def _put(self, body: bytes, condition: Mapping[str, str]) -> str | None:
        """Write the object on a condition.

        Returns the new ETag, empty if the answer has none that names a state; None if the
        condition failed.
        """
        headers = {"Content-Type": "application/json", **condition}
        async with self._connected() as client:
            call = Call("put", "PUT", self._bucket, self._key, {}, headers, body)
            answer = await client.request(call, self._traffic)
        if answer.status == 412 or (answer.status == 404 and "If-Match" in condition):
            return None
        if answer.status != 200:
            raise refusal(answer, "put", self._bucket, self._key)
        return strong_etag(answer.headers.get("etag")) or ""


def _body(document: dict[str, Any]) -> bytes:
    """Return what the object has of a document."""
    return to_bytes({name: value for name, value in document.items() if value is not None})
