"""Offsets and leases in an object that is written on condition only.

One object per feed holds its offset, its owner and an epoch that counts owners. The rules:

* Every write is conditional on the object being the one seen last. Of two processes that both
  believe to be the owner, one is refused, and stops for good.
* A refused write may have arrived, with only its answer lost. So each attempt has a sequence number
  of its own: an object with it shows that it did.
* The owner writes at least every third of the lease, and trusts it for four fifths: past that,
  :meth:`~LeasedOffsetStore.check` renews it before a batch goes to the sink.
* A standby takes over when the object has not changed for a whole lease, by the server's clock or
  by its own: the clocks of the two processes need not agree. It does so at once when it sees that
  the owner has died.

An example, with a lease of 30 s. A and B are processes, "e1 #5" is epoch 1, write 5:

    0 s   A creates the object              e1 #0
    10 s  A saves an offset                 e1 #1
    12 s  A stands still; B sees e1 #1 and waits for a lease from here
    42 s  B writes on condition of e1 #1    e2 #0: B is the owner
    50 s  A continues. Its lease is older than 24 s, so check() writes before the batch, on
          condition of e1 #1: refused, the object is B's, and A writes nothing any more.

What must never happen: a batch that is written by two owners. A server that ignores conditions is
therefore found when the object is claimed, by a write that has to be refused.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import anyio

from tailer.changes import Offset
from tailer.errors import ConfigError, OffsetError, OffsetHeld, TableError, TransientError
from tailer.network.clock import steady_now
from tailer.network.http_answers import parse_strong_etag
from tailer.offsets import LEASE_S, OffsetStore
from tailer.offsets.conditional import (
    ConditionalObject,
    ConditionRefused,
    Refusals,
    Seen,
)
from tailer.offsets.document import FORMAT, encode_document, make_damaged_error
from tailer.offsets.owner import describe_owner, is_dead, this_process

#: The part of the lease during which its owner trusts it. A standby waits for the whole lease.
_TRUSTED_PART = 0.8
#: An ETag that no object has.
_NO_ETAG = '"00000000000000000000000000000000"'


class LeasedOffsetStore(OffsetStore):
    """The offset of a feed in a conditional object.

    With ``standby``, :meth:`acquire` waits for the lease of ``lease_s`` seconds; without, it
    refuses. ``epoch`` is this owner's number: it grows with every owner.
    """

    def __init__(
        self,
        place: ConditionalObject,
        feed: str,
        *,
        standby: bool = True,
        lease_s: float = LEASE_S,
    ) -> None:
        if lease_s <= 0:
            raise ConfigError(f"the lease is {lease_s} s, and must be longer than 0")
        self._object = place
        self._feed, self._standby, self._lease_s = feed, standby, lease_s
        self._id = uuid.uuid4().hex
        self._writing = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._held: Seen | None = None
        self._lost: OffsetError | None = None
        self._renewed_at = 0.0
        self._sequence = 0
        self._waiting_for: str | None = None
        self.epoch = 0
        #: The object's address.
        self.path = self._object.path

    @property
    def waiting_for(self) -> str | None:
        return self._waiting_for

    # Ownership

    async def acquire(self) -> None:
        if self._held is not None:
            return
        self._lost = None
        try:
            held = await self._claim_when_free()
        finally:
            self._waiting_for = None
        self._held, self.epoch = held, held.epoch
        self._renewal = asyncio.create_task(self._renew_always(), name=f"lease of {self._feed}")

    async def _claim_when_free(self) -> Seen:
        first: Seen | None = None  # of this state of the object
        refusals = Refusals(self.path)
        while True:
            try:
                seen = await self._object.get()
                if seen.owner is not None and seen.owner.get("id") == self._id:
                    # Claimed before; only the answer was lost.
                    return await self._check_conditions(seen)
                if first is None or first.document != seen.document:
                    first = seen
                if (left := self._remaining_s(seen, since=first.at)) <= 0:
                    claimed = await self._claim_object(seen)
                    if claimed is not None:
                        return await self._check_conditions(claimed)
                    await refusals.pause_after(seen)  # perhaps another process was faster
                    continue
            except ConditionRefused:
                raise
            except TransientError as e:
                if not self._standby:
                    raise
                self._waiting_for, left = str(e), self._lease_s / 3
            else:
                who = describe_owner(seen.owner or {})
                if not self._standby:
                    raise OffsetHeld(who, self._feed, path=self.path)
                self._waiting_for = who
            await anyio.sleep(max(0.05, min(left, self._lease_s / 3)))

    def _remaining_s(self, seen: Seen, since: float) -> float:
        """Return how long the owner's lease still runs, as far as known, in seconds.

        ``since`` is when this state was first seen: no answer has the server's time.
        """
        if seen.owner is None or is_dead(seen.owner):
            return 0.0
        lease_s = float((seen.document or {}).get("lease_s", self._lease_s))
        return lease_s - (seen.at - since)

    async def _claim_object(self, seen: Seen) -> Seen | None:
        """Claim the free object; return None if it is no longer free, or what it is now says."""
        known = seen.document or {}
        document = self._build_document(
            epoch=seen.epoch + 1,
            sequence=0,
            offset=known.get("offset"),
            orders=known.get("orders"),
            damaged=known.get("damaged"),
        )
        started = steady_now()
        etag = await self._object.put(_encode_body(document), self._require_etag(seen))
        if etag is None:
            return None
        self._renewed_at = started
        return None if not etag else Seen(document, etag, started)

    def _build_document(self, **fields: Any) -> dict[str, Any]:
        owner = {"id": self._id, **this_process()}
        known = {"format": FORMAT, "feed": self._feed, "owner": owner, "lease_s": self._lease_s}
        return {**known, **fields}

    async def _check_conditions(self, held: Seen) -> Seen:
        """Refuse a server that ignores conditions: it would let two owners write."""
        assert held.document is not None
        self._require_etag(held)
        if await self._object.put(_encode_body(held.document), _NO_ETAG) is not None:
            raise self._make_condition_error("the server ignores If-Match")
        return held

    def _require_etag(self, seen: Seen) -> str | None:
        """Return the ETag with which a write succeeds only on what was seen; None: on nothing."""
        if seen.document is None:
            return None
        if (etag := parse_strong_etag(seen.etag)) is None:
            raise self._make_condition_error(
                f"the ETag that comes with the object, {seen.etag!r}, does not name its state"
                if seen.etag
                else "the object comes without an ETag"
            )
        return etag

    def _make_condition_error(self, what: str) -> OffsetError:
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
                await self._write_object()
            except TableError:
                return  # the next writer gets the error
            except TransientError:
                await anyio.sleep(pause / 4)

    async def check(self) -> None:
        self._require_held()
        if steady_now() - self._renewed_at > self._lease_s * _TRUSTED_PART:
            await self._write_object()  # refused if another one has taken over meanwhile

    def _require_held(self) -> Seen:
        if self._lost is not None:
            raise self._lost
        if self._held is None:
            raise OffsetError(f"the offset of feed {self._feed!r} is not acquired", path=self.path)
        return self._held

    async def release(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
            self._renewal = None
        if self._held is not None:
            # A lease that can't be released now expires.
            with suppress(TransientError, TableError):
                await self._write_object(owner=None)
        self._held = None

    # The offset

    async def load(self) -> Offset | None:
        """See :class:`tailer.offsets.OffsetStore`.

        To its owner it is refused once another one has taken over: a feed that tries again would
        continue from the other's offset.
        """
        seen = await self._object.get()
        if self._held is not None:
            self._check_mine(seen)
        document = seen.document
        if document is None or document.get("offset") is None:
            if document is not None and document.get("damaged"):
                raise make_damaged_error(self._feed, self.path, str(document["damaged"]))
            return None
        try:
            return Offset.from_json(document["offset"])
        except OffsetError as e:
            e.at(path=self.path)
            raise

    async def save(self, offset: Offset) -> None:
        await self._write_object(offset=offset.to_json(), damaged=None)

    async def clear(self) -> None:
        await self._write_object(offset=None, orders=None, damaged=None)

    async def load_orders(self) -> dict[str, Any]:
        document = (self._held or await self._object.get()).document or {}
        return dict(document.get("orders") or {})

    async def save_orders(self, orders: dict[str, Any]) -> None:
        await self._write_object(orders=orders or None)

    async def _write_object(self, **changes: Any) -> None:
        """Write the object with some fields changed, on condition that it is still this owner's."""
        async with self._writing:
            held = self._require_held()
            refusals = Refusals(self.path)
            while True:
                assert held.document is not None
                # Of this attempt alone, so that an object with it shows that it has arrived.
                self._sequence = sequence = max(held.document["sequence"], self._sequence) + 1
                document = {**held.document, **changes, "sequence": sequence}
                body, started = _encode_body(document), steady_now()
                etag = await self._object.put(body, self._require_etag(held))
                if etag:
                    self._held, self._renewed_at = Seen(document, etag, started), started
                    return
                # Refused: by another owner, or because this write did arrive and only its answer
                # was lost.
                seen = await self._object.get()
                self._check_mine(seen)
                self._held = held = seen
                if seen.document is not None and encode_document(seen.document) == body:
                    self._renewed_at = started
                    return
                await refusals.pause_after(seen)

    def _check_mine(self, seen: Seen) -> None:
        """Raise :class:`OffsetError`, now and from now on, if the object is another owner's."""
        if (seen.owner or {}).get("id") != self._id or seen.epoch != self.epoch:
            self._lost = self._make_loss_error(seen)
            raise self._lost

    def _make_loss_error(self, seen: Seen) -> OffsetError:
        if seen.document is None:
            what = f"the offset of feed {self._feed!r} was removed"
        else:
            who = describe_owner(seen.owner) if seen.owner else "another process"
            what = f"{who} has taken feed {self._feed!r} over, with epoch {seen.epoch}"
        return OffsetError(
            what, path=self.path, hint="this process has stopped it, and writes no more"
        )


def _encode_body(document: dict[str, Any]) -> bytes:
    """Return what the object has of a document."""
    return encode_document({name: value for name, value in document.items() if value is not None})
