"""A front of an object store's server that fails and lies on demand, at the level of HTTP.

It hands requests on as they were signed, and alters what comes back::

    with run_front(bucket) as front:
        front.fail(Fault("truncated", "get", count=2, key=r"\\.parquet$"))

Each fault is for requests of one operation whose key matches; ``front.met`` counts those that were
met by it, for a test must see that its fault was there at all.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from tests.clouds.servers import Container
from tests.s3.fixture import Bucket
from tests.s3.objects import Objects
from tests.support.components import free_port

_DROPPED = ("transfer-encoding", "connection", "keep-alive", "content-length", "server")


@dataclass(slots=True)
class Fault:
    """What goes wrong, ``count`` times, for ``operation`` (get, head, list, put) on a key that
    matches ``key``; the first ``after`` such requests go well."""

    kind: str
    operation: str
    count: int = 1
    key: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes


Alter: TypeAlias = Callable[["Front", web.Request, Answer], Answer]


def _status(status: int, code: str, headers: dict[str, str] | None = None) -> Alter:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return lambda _front, _request, _answer: Answer(status, headers or {}, body)


def _as_said(code: str, message: str, more: str = "") -> Alter:
    """A refusal in the words of a cloud's documentation."""
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    )
    return lambda _front, _request, _answer: Answer(403, {}, body.encode())


def _whole_for_range(front: Front, request: web.Request, answer: Answer) -> Answer:  # noqa: ARG001
    """The server takes no notice of the range; the body was fetched without it."""
    return answer


def _other_range(_: Front, __: web.Request, answer: Answer) -> Answer:
    """One byte further on, and said so, as a proxy's cache with a wrong key would."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
    if found is None or len(answer.body) < 2:
        return answer
    moved = f"bytes {int(found[1]) + 1}-{found[2]}/{found[3]}"
    return Answer(answer.status, {**answer.headers, "Content-Range": moved}, answer.body[1:])


def _short_and_whole(_: Front, __: web.Request, answer: Answer) -> Answer:
    """A body cut in half, of which only the range still knows how long it was."""
    return replace(answer, body=answer.body[: len(answer.body) // 2])


def _other_etag(_: Front, __: web.Request, answer: Answer) -> Answer:
    """Other bytes of the same length under another ETag: the object was replaced."""
    headers = {**answer.headers, "Etag": '"ffffffffffffffffffffffffffffffff"'}
    return Answer(answer.status, headers, bytes(b ^ 0xFF for b in answer.body))


def _with_etag(alter: Callable[[str], str]) -> Alter:
    """The ETag altered by a proxy; taken away where it is empty."""

    def altered(_: Front, __: web.Request, answer: Answer) -> Answer:
        kept = {k: v for k, v in answer.headers.items() if k.lower() != "etag"}
        tags = [v for k, v in answer.headers.items() if k.lower() == "etag"]
        tag = alter(tags[0]) if tags else ""
        return replace(answer, headers={**kept, "ETag": tag} if tag else kept)

    return altered


def _stale_list(front: Front, request: web.Request, answer: Answer) -> Answer:
    """The listing as it was when it was first asked for."""
    return front.first_lists.get(request.rel_url.raw_query_string, answer)


def _empty_list(_: Front, __: web.Request, answer: Answer) -> Answer:
    """A listing without anything, of a store whose lists lag behind."""
    return replace(
        answer, body=re.sub(rb"<(Contents|Blob)>.*</\1>", b"", answer.body, flags=re.DOTALL)
    )


def _cut_list(_: Front, __: web.Request, answer: Answer) -> Answer:
    return replace(answer, body=answer.body[: len(answer.body) * 2 // 3])


def _as_it_is(_: Front, __: web.Request, answer: Answer) -> Answer:
    return answer


#: What may go wrong by name, and what the answer becomes. Three kinds are about the connection
#: itself: hang, reset (in the middle of the body) and lost (done, and never answered).
FAULTS: dict[str, Alter] = {
    "500": _status(500, "InternalError"),
    "503": _status(503, "SlowDown"),
    "429": _status(429, "TooManyRequests", {"Retry-After": "1"}),
    "skewed": _status(403, "RequestTimeTooSkewed"),
    "timeout": _status(400, "RequestTimeout"),
    "not found": _status(404, "NoSuchKey"),
    "denied": _status(403, "AccessDenied"),
    "firewall of azure": _as_said(
        "AuthorizationFailure",
        "This request is not authorized to perform this operation.\nRequestId:1\nTime:2",
    ),
    "firewall of gcs": _as_said(
        "SecurityPolicyViolated",
        "Request violates VPC Service Controls.",
        "<Details>Request is prohibited by organization's policy.</Details>",
    ),
    "wrong clock": _as_said(
        "AuthenticationFailed",
        "Server failed to authenticate the request.\nRequestId:1\nTime:2",
        "<AuthenticationErrorDetail>Request date header too old: 'Thu, 26 Nov 2026 01:00:00 GMT'"
        "</AuthenticationErrorDetail>",
    ),
    "expired": _status(400, "ExpiredToken"),
    "refused": _status(412, "PreconditionFailed"),
    "weak etag": _with_etag(lambda tag: f"W/{tag}"),
    "no etag": _with_etag(lambda _: ""),
    "any etag": _with_etag(lambda _: f'"{uuid.uuid4().hex}"'),
    "no bucket": _status(404, "NoSuchBucket"),
    "html": lambda *_: Answer(502, {"Content-Type": "text/html"}, b"<html>Bad Gateway</html>"),
    "hang": _as_it_is,
    "reset": _as_it_is,
    "truncated": _as_it_is,
    "lost": _as_it_is,
    "short and whole": _short_and_whole,
    "whole for range": _whole_for_range,
    "other range": _other_range,
    "other etag": _other_etag,
    "stale list": _stale_list,
    "empty list": _empty_list,
    "cut list": _cut_list,
}


@dataclass
class Front:
    """A front of one bucket's server, at ``bucket.url``."""

    #: A Bucket or a Container, whichever it is in front of.
    bucket: Any
    #: The same, without the front.
    behind: Bucket | Container
    faults: list[Fault] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    first_lists: dict[str, Answer] = field(default_factory=dict)
    last_headers: Mapping[str, str] = field(default_factory=dict)
    #: The headers of all PUTs.
    written: list[Mapping[str, str]] = field(default_factory=list)
    #: Every request takes so long, in seconds.
    delay_s: float = 0.0
    #: Operation and path of each request, as they came.
    asked: list[tuple[str, str]] = field(default_factory=list)
    at_a_time_max: int = 0
    ignore_conditions: bool = False
    _at_a_time: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, *faults: Fault) -> None:
        """From now on, these go wrong."""
        with self._lock:
            self.faults += faults

    def heal(self) -> None:
        """From now on, all goes well."""
        with self._lock:
            self.faults.clear()

    def _take(self, operation: str, path: str) -> str | None:
        with self._lock:
            self.requests[operation] += 1
            for fault in self.faults:
                if fault.operation != operation or not re.search(fault.key, path):
                    continue
                if fault.after > 0:
                    fault.after -= 1
                elif fault.count > 0:
                    fault.count -= 1
                    self.met[fault.kind] += 1
                    return fault.kind
        return None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request, handed on and answered, perhaps wrongly."""
        self.last_headers = request.headers
        if request.method == "PUT":
            self.written.append(request.headers)
        self._at_a_time += 1
        self.at_a_time_max = max(self.at_a_time_max, self._at_a_time)
        try:
            return await self._handle(request)
        finally:
            self._at_a_time -= 1

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        operation = request.method.lower()
        if operation == "get" and ("list-type" in request.query or "comp" in request.query):
            operation = "list"
        kind = self._take(operation, request.path)
        self.asked.append((operation, request.path))
        await asyncio.sleep(self.delay_s)
        if kind == "refused":  # and so not done
            return _response(FAULTS[kind](self, request, Answer(412, {}, b"")))
        answer = await self._behind(request, whole=kind == "whole for range")
        if operation == "list":
            self.first_lists.setdefault(request.rel_url.raw_query_string, answer)
        if kind is None:
            return _response(answer)
        if kind == "hang":
            await asyncio.sleep(3600)
        altered = FAULTS[kind](self, request, answer)
        if kind in ("reset", "truncated", "lost"):
            return await self._break_off(request, altered, kind)
        return _response(altered)

    async def _behind(self, request: web.Request, *, whole: bool) -> Answer:
        url = URL(_origin(self.behind.url) + request.raw_path, encoded=True)
        # The signature covers the host that the client asked, and the range.
        headers = {k: v for k, v in request.headers.items() if k.lower() != "connection"}
        if self.ignore_conditions:  # the signature is over them, and so must be made anew
            return await self._unconditional(request)
        body = await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                url,
                headers=headers,
                data=body or None,
                allow_redirects=False,
                # Azure signs the type of the content, also that there is none.
                skip_auto_headers=["Content-Type"],
            ) as response,
        ):
            answer = Answer(response.status, dict(response.headers), await response.read())
        if not whole or answer.status != 206:
            return answer
        key = request.path.partition(f"/{self.bucket.name}/")[2]
        async with _objects(self.behind) as objects:
            data = await objects.get(key)
        kept = {k: v for k, v in answer.headers.items() if k.lower() != "content-range"}
        return Answer(200, kept, data)

    async def _unconditional(self, request: web.Request) -> Answer:
        """What a server does that takes no notice of If-Match and If-None-Match."""
        key = request.path.partition(f"/{self.bucket.name}/")[2]
        async with _objects(self.behind) as objects:
            if request.method == "PUT":
                await objects.put(key, await request.read())
                return Answer(200, {"Etag": '"any"'}, b"")
            if key in await objects.keys(key):
                return Answer(200, {"Etag": '"any"'}, await objects.get(key))
        return Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")

    async def _break_off(
        self, request: web.Request, answer: Answer, kind: str
    ) -> web.StreamResponse:
        """Promise the whole body, send half of it, and go."""
        assert request.transport is not None
        if kind != "lost":
            response = web.StreamResponse(status=answer.status, headers=_kept(answer))
            response.content_length = len(answer.body)
            await response.prepare(request)
            await response.write(answer.body[: len(answer.body) // 2])
        if kind == "truncated":  # an orderly end of the connection, at the wrong moment
            request.transport.close()
        else:
            request.transport.abort()
        return web.Response()


def _origin(url: str) -> str:
    return str(URL(url).origin())


def _objects(place: Bucket | Container) -> AbstractAsyncContextManager[Objects | Container]:
    return Objects(place) if isinstance(place, Bucket) else nullcontext(place)


def _kept(answer: Answer) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.lower() not in _DROPPED}


def _response(answer: Answer) -> web.Response:
    response = web.Response(status=answer.status, headers=_kept(answer), body=answer.body)
    length = answer.headers.get("Content-Length")
    if not answer.body and length is not None:
        response.headers["Content-Length"] = length  # of a HEAD
    return response


@contextmanager
def run_front(bucket: Bucket | Container, tls: ssl.SSLContext | None = None) -> Iterator[Front]:
    """A front of the bucket's server, in a thread, as long as the block runs."""
    port, scheme = free_port(), "http" if tls is None else "https"
    here = f"{scheme}://127.0.0.1:{port}"
    front = Front(replace(bucket, url=bucket.url.replace(_origin(bucket.url), here)), bucket)
    started = threading.Event()
    end: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        end.append(lambda: loop.call_soon_threadsafe(ending.set))
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", front.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        started.set()
        await ending.wait()
        await runner.cleanup()
        await asyncio.sleep(0.01)  # connections are closed in the loop's next turns

    # What is still at work on a request is cancelled, and waited for.
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(150)
        yield front
    finally:
        end[0]()
        thread.join()
