"""Where sinks publish files on S3: a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailer.storage.store_target import StoreTarget
from tailer.store.s3.client import Call
from tailer.store.s3.errors import refusal
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.store import S3Store, SharedClients
from tailer.store.traffic import Traffic

__all__ = ["S3Target"]


class S3Target(StoreTarget):
    """Files under a prefix of a bucket, by requests of the project's client."""

    def __init__(self, address: str, options: S3Options) -> None:
        address = address.rstrip("/")
        super().__init__(S3Store(address, options))
        self._bucket, key = parse_s3_address(address) or ("", "")
        self._prefix = f"{key}/" if key else ""
        self._options = options

    async def _put(self, name: str, body: bytes, *, create: bool) -> bool:
        headers = {"If-None-Match": "*"} if create else {}
        return await self._request("put", name, (200, 412), headers, body) == 200

    async def _delete(self, name: str) -> None:
        await self._request("delete", name, (200, 204, 404))

    async def _request(
        self,
        what: str,
        name: str,
        expected: Sequence[int],
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> int:
        """Return the status of an answer, which is one of the expected ones."""
        key = self._prefix + name
        call = Call(what, what.upper(), self._bucket, key, {}, headers or {}, body)
        async with SharedClients.lent(self._options) as client:
            answer = await client.request(call, Traffic())
        if answer.status not in expected:
            raise refusal(answer, what, self._bucket, key)
        return int(answer.status)
