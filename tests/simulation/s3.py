"""A simulated S3 server, and the client that reaches it.

The real client's retries and checks run; only the exchange of one request is simulated. The real
S3 store and the real S3 offset store stand on it.
"""

from __future__ import annotations

import datetime as dt
import re
from email.utils import formatdate
from functools import lru_cache
from urllib.parse import quote

from tailer.store.s3.client import Call, S3Client
from tailer.store.s3.errors import S3Answer
from tailer.store.s3.options import S3Options
from tests.simulation.bucket import Bucket, BucketFile
from tests.simulation.world import World

__all__ = ["SimulatedS3Client", "options_of"]

_RANGE = re.compile(r"bytes=(-?\d+)-?(\d*)")
_NOT_FOUND = S3Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
_BUSY = S3Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")


def options_of(process: str) -> S3Options:
    """Return the options of one process, so that it shares no client with another one."""
    return S3Options(endpoint_url="http://simulated", profile=process, anonymous=True)


class SimulatedS3Client(S3Client):
    """A client of the bucket of :attr:`world`, which is set while a history runs."""

    bucket: Bucket
    world: World

    async def _exchange(self, call: Call) -> S3Answer:
        world = self.world
        what = f"{call.method} {call.key or call.query['prefix']}"
        answer = await world.request(
            what,
            lambda: self._answer(call),
            failure=TimeoutError,
            repeats=call.method == "PUT",
        )
        if answer.body and answer.status < 300 and world.fault("short", what):
            return S3Answer(answer.status, answer.headers, answer.body[:-1])
        return answer

    def _answer(self, call: Call) -> S3Answer:
        if self.world.fault("busy", call.key):
            return _BUSY
        if call.method == "PUT":
            return self._put(call)
        if not call.key:
            return self._list(call)
        file = self.bucket.files.get(call.key)
        if file is None:
            return _NOT_FOUND
        wanted = call.headers.get("If-Match")
        if wanted is not None and wanted != file.tag:
            return S3Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        headers = self._headers(file)
        if call.method == "HEAD":
            return S3Answer(200, headers, b"")
        found = _RANGE.fullmatch(call.headers.get("Range", ""))
        return S3Answer(200, headers, file.data) if found is None else _part(file, headers, found)

    def _headers(self, file: BucketFile) -> dict[str, str]:
        return {
            "date": _http_date(int(self.world.clock())),
            "last-modified": _http_date(file.mtime_ms // 1000),
            "etag": file.tag,
            "content-length": str(len(file.data)),
        }

    def _put(self, call: Call) -> S3Answer:
        file = self.bucket.files.get(call.key)
        wanted = call.headers.get("If-Match")
        if wanted is not None and file is None:
            return _NOT_FOUND
        taken = file is not None and ("If-None-Match" in call.headers or wanted != file.tag)
        if taken:
            return S3Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        return S3Answer(200, self._headers(self.bucket.put(call.key, call.body)), b"")

    def _list(self, call: Call) -> S3Answer:
        prefix = call.query["prefix"]
        stale = self.world.fault("stale list", prefix)
        after = call.query.get("start-after", "")
        rows = [
            f"<Contents><Key>{quote(prefix + name)}</Key><Size>{len(file.data)}</Size>"
            f"<LastModified>{_iso(file.mtime_ms)}</LastModified><ETag>{quote(file.tag)}</ETag>"
            "</Contents>"
            for name, file in self.bucket.listed(prefix.removesuffix("/"), stale=stale)
            if prefix + name > after
        ]
        body = "<ListBucketResult><EncodingType>url</EncodingType>" + "".join(rows)
        return S3Answer(200, {}, (body + "</ListBucketResult>").encode())


@lru_cache
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _iso(mtime_ms: int) -> str:
    return dt.datetime.fromtimestamp(mtime_ms // 1000, dt.UTC).isoformat()


def _part(file: BucketFile, headers: dict[str, str], found: re.Match[str]) -> S3Answer:
    size, start = len(file.data), int(found[1])
    first = max(0, size + start) if start < 0 else start
    last = min(size, int(found[2]) + 1) if found[2] else size
    if first >= size:
        return S3Answer(416, {}, b"")
    data = file.data[first:last]
    span = f"bytes {first}-{last - 1}/{size}"
    return S3Answer(206, {**headers, "content-range": span, "content-length": str(len(data))}, data)
