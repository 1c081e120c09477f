"""The object of an offset on a simulated server; the real store of leased offsets stands on it."""

from __future__ import annotations

from tailer.errors import TransientError
from tailer.network.clock import steady_now
from tailer.offsets.conditional import Seen
from tailer.offsets.document import decode_document, make_document_name
from tests.simulation.bucket import Bucket, BucketFile


class SimulatedObject:
    """See :class:`tailer.offsets.conditional.ConditionalObject`."""

    def __init__(self, bucket: Bucket, feed: str) -> None:
        self._bucket, self._world, self._feed = bucket, bucket.world, feed
        self._key = f"state/{make_document_name(feed)}.offset.json"

    @property
    def path(self) -> str:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""
        return f"simulated:{self._key}"

    async def get(self) -> Seen:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""

        def read() -> BucketFile | None:
            self._busy()
            return self._bucket.files.get(self._key)

        file = await self._world.request(f"GET {self._key}", read)
        if file is None:
            return Seen(None, "", steady_now())
        return Seen(decode_document(file.data, self._feed, self.path), file.tag, steady_now())

    async def put(self, body: bytes, etag: str | None) -> str | None:
        """See :class:`~tailer.offsets.conditional.ConditionalObject`."""

        def write() -> str | None:
            self._busy()
            file = self._bucket.files.get(self._key)
            if (None if file is None else file.tag) != etag:
                return None
            return self._bucket.put(self._key, body).tag

        try:
            return await self._world.request(f"PUT {self._key}", write, repeats=True)
        except TransientError:
            return await self._world.request(f"PUT {self._key}", write, repeats=True)

    def _busy(self) -> None:
        if self._world.fault("busy", self._key):
            raise TransientError(f"{self.path}: the server has too much to do")
