"""Requests to S3: signed, bounded, checked, and retried a few times.

Configuration and credentials are found where every AWS tool finds them (:mod:`.environment`). The
requests are made with aiohttp: a feed that polls a table requests one small object again and again,
and aiobotocore's client takes four times the processor time for that.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from msgspec import Struct
from yarl import URL

from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.backoff import Backoff
from tailer.network.http_answers import Oversize, answering_within, byte_range, whole_body
from tailer.secrets import keep_secrets
from tailer.store.budget import Budget
from tailer.store.s3.environment import KeySource, S3Environment, unusable
from tailer.store.s3.errors import (
    EXPIRED,
    S3Answer,
    Unfit,
    error_code,
    is_about_more_than_the_key,
    no_tls,
    not_reached,
    refusal,
    region_of,
    retry_after_s,
    worth_retrying,
)
from tailer.store.s3.options import S3Options
from tailer.store.s3.presign import Presigner
from tailer.store.s3.signing import Request, signed
from tailer.store.traffic import Traffic

__all__ = ["Call", "S3Client"]

#: How long to wait for a connection, and for the next byte of an answer.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 20.0
#: Attempts of a request before the feed begins again at its offset.
ATTEMPTS = 4
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 2.0
#: A longer Retry-After is left to the feed.
_RETRY_AFTER_HERE_S = 3.0
#: Statuses that the caller handles.
_PLAIN = {200, 204, 206, 304, 404, 412, 416}
#: aiohttp pauses a connection while twice this many bytes wait to be taken. With its default of 64
#: KiB, it would pause many times within one piece of a file.
_READ_BYTES = 1024 * 1024
#: Limit of a refusal, and of an answer whose call names no other.
_BYTES_MAX = 1024 * 1024
#: Limit of a body whose length the headers do not promise.
_UNPROMISED_BYTES_MAX = 8 * 1024 * 1024


class Call(Struct, frozen=True):
    """One request. ``check`` raises :class:`Unfit` for an answer that must not be trusted.

    ``bytes_max`` bounds the body that is accepted; ``operation`` names it in metrics and messages.
    ``handled`` are further statuses that are answers to the caller, and no refusals.
    With ``in_parts``, the range of an object comes in parts: to join megabytes takes as long as to
    receive them.
    """

    operation: str
    method: str
    bucket: str
    key: str = ""
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    bytes_max: int = _BYTES_MAX
    in_parts: bool = False
    handled: tuple[int, ...] = ()
    check: Callable[[S3Answer], None] = lambda _: None

    @property
    def subject(self) -> str:
        """What it is about, for messages: a key, or the prefix of a listing."""
        return self.key or self.query.get("prefix", "")


class S3Client:
    """The connections and credentials of one set of options, on one event loop."""

    def __init__(self, options: S3Options) -> None:
        self.options = options
        #: Limit of the bytes fetched ahead for all tables together.
        self.ahead = Budget(options.memory_bytes_max)
        #: The buckets whose servers do not implement start-after.
        self.lists_from_the_start: set[str] = set()
        self._gate = asyncio.Semaphore(options.requests_max)
        self._starting = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._environment = S3Environment(options)
        self._account: KeySource | None = None
        self._region = ""
        self._endpoints: dict[str, str] = {}
        self._regions: dict[str, str] = {}

    # Start and end

    async def _start(self) -> aiohttp.ClientSession:
        async with self._starting:
            if self._http is None:
                self._http = await self._open_session()
        return self._http

    async def _open_session(self) -> aiohttp.ClientSession:
        self._region = self._environment.region()
        endpoint = await self._endpoint(self._region)
        if not self.options.anonymous:
            self._account = await self._environment.account()
        tls: ssl.SSLContext | bool = True
        if not endpoint.startswith("http:"):  # reading the authorities takes 20 ms
            try:
                tls = ssl.create_default_context(cafile=self._environment.authorities())
            except OSError as e:
                raise unusable(e) from e
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # the gate limits, and waiting there is not a time-out
                ssl=tls,
            ),
            timeout=aiohttp.ClientTimeout(
                total=READ_TIMEOUT_S * 10,
                sock_connect=CONNECT_TIMEOUT_S,
                sock_read=READ_TIMEOUT_S,
            ),
            middlewares=[answering_within(3 * READ_TIMEOUT_S)],
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "delta-tailer", "Accept-Encoding": "identity"},
            skip_auto_headers=["Content-Type"],
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            proxy=_proxy(endpoint),
        )

    async def _endpoint(self, region: str) -> str:
        if region not in self._endpoints:
            self._endpoints[region] = await self._environment.endpoint(region)
        return self._endpoints[region]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # Requests

    async def request(self, call: Call, traffic: Traffic) -> S3Answer:
        """Return the answer, with status 200, 204, 206, 304, 404, 412 or 416, or a handled one.

        Raises :class:`TransientError` when all attempts failed in ways that may heal,
        :class:`TableError` for a refusal, :class:`ConfigError` without credentials.
        """
        renewed = False
        error: TailerError | None = None
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)
        for attempt in range(ATTEMPTS):
            if attempt:
                assert error is not None
                traffic.retry(call.operation)
                wish = error.retry_after_s if isinstance(error, TransientError) else None
                await asyncio.sleep(backoff.next_s(wish))
            try:
                answer = await self._attempt(call, traffic)
            except TransientError as e:
                error = e
                continue
            if answer.status in call.handled:
                return answer
            if answer.status in _PLAIN and not is_about_more_than_the_key(answer):
                return answer
            error = refusal(answer, call.operation, call.bucket, call.subject)
            region = region_of(answer)
            if region is not None and region != self._regions.get(call.bucket, self._region):
                self._regions[call.bucket] = region
            elif error_code(answer) in EXPIRED and not renewed:
                renewed = True
                await self._renew_credentials()
            elif not worth_retrying(answer):
                raise error
            elif (retry_after_s(answer) or 0.0) > _RETRY_AFTER_HERE_S:
                break
        assert error is not None
        raise error

    async def _attempt(self, call: Call, traffic: Traffic) -> S3Answer:
        """Make one attempt. Raises :class:`TransientError` unless the answer is whole and fits."""
        what = f"s3://{call.bucket}/{call.subject}: {call.operation}"
        status = "failed"
        received = 0
        try:
            answer = await self._exchange(call)
            status, received = str(answer.status), answer.size
            call.check(answer)
        except Unfit as e:
            status = "failed"
            raise TransientError(f"{what} got a wrong answer: {e}") from e
        except aiohttp.ClientSSLError as e:
            raise no_tls(e, f"s3://{call.bucket}") from e
        except TimeoutError as e:
            raise TransientError(f"{what} took too long") from e
        except (aiohttp.ClientError, OSError) as e:
            why = not_reached(e) or f"({str(e) or type(e).__name__})"
            raise TransientError(f"{what} failed {why}") from e
        finally:
            traffic.request(call.operation, status, received)
        return answer

    async def _exchange(self, call: Call) -> S3Answer:
        http = self._http or await self._start()
        async with self._gate:
            url = await self._url(call)
            headers = await self._signed(call, url)
            async with http.request(
                call.method, URL(url, encoded=True), headers=headers, data=call.body or None,
                allow_redirects=False,
            ) as response:  # fmt: skip
                found = {name.lower(): value for name, value in response.headers.items()}
                parts: list[bytes] = []
                if call.method != "HEAD":
                    most = call.bytes_max if response.status < 300 else _BYTES_MAX
                    parts = await _body(response, most)
                if call.in_parts and response.status == 206:
                    return S3Answer(response.status, found, b"", parts)
                return S3Answer(response.status, found, b"".join(parts))

    async def _url(self, call: Call) -> str:
        region = self._regions.get(call.bucket, self._region)
        base = urlsplit(await self._endpoint(region))
        path_style = self.options.path_style
        if path_style is None:
            on_aws = ".amazonaws.com" in (base.hostname or "")
            path_style = not on_aws or "." in call.bucket
        prefix = base.path.rstrip("/")
        host = base.netloc
        if path_style:
            prefix += "/" + quote(call.bucket, safe="~")
        else:
            host = f"{call.bucket}.{host}"
        query = "&".join(
            f"{name}={quote(value, safe='~')}" for name, value in sorted(call.query.items())
        )
        path = f"{prefix}/{quote(call.key, safe='/~')}" if call.key else prefix or "/"
        return f"{base.scheme}://{host}{path}" + (f"?{query}" if query else "")

    async def _signed(self, call: Call, url: str) -> Mapping[str, str]:
        """Return the headers of a request, signed unless access is anonymous."""
        headers = {**call.headers, **self.options.headers(call.method)}
        if self._account is None:
            return headers
        keys = await self._account.keys()
        region = self._regions.get(call.bucket, self._region)
        request = Request(call.method, url, headers, call.body)
        return signed(keys, region, request, dt.datetime.now(dt.UTC))

    async def presigner(self, bucket: str, at: dt.datetime, ttl_s: int) -> Presigner | None:
        """Return a signer of URLs for a bucket's objects; None for anonymous access.

        Anonymous access has no key to sign with. Raises the errors of :meth:`request`.
        """
        if self._http is None:
            await self._start()
        if self._account is None:
            return None
        base = await self._url(Call("presign", "GET", bucket))
        keys = await self._account.keys()
        return Presigner(
            base=base.rstrip("/"),
            region=self._regions.get(bucket, self._region),
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            token=keys.token or None,
            at=at,
            ttl_s=ttl_s,
            more=self.options.headers("GET"),
        )

    async def _renew_credentials(self) -> None:
        """Load the credentials again from their source: expired ones may have been renewed."""
        if self.options.vendor is not None:
            self.options.vendor.forget()
        with suppress(ConfigError):
            self._account = await S3Environment(self.options).account()


def _proxy(endpoint: str) -> str | None:
    """Return the proxy that the environment names for a server."""
    url = urlsplit(endpoint)
    proxy = None if proxy_bypass(url.netloc) else getproxies().get(url.scheme)
    if proxy:
        keep_secrets([urlsplit(proxy).password or ""])
    return proxy


async def _body(response: aiohttp.ClientResponse, bytes_max: int) -> list[bytes]:
    """Read the whole body, which is as long as the headers say: aiohttp checks the length."""
    length = response.content_length
    if response.status == 206:
        span = byte_range(response.headers.get("Content-Range", ""))
        if span is None:
            raise Unfit("a part without the range that it is of")
        bytes_max = min(bytes_max, span.end - span.start)
    if length is None:  # listings may come so
        bytes_max = min(bytes_max, _UNPROMISED_BYTES_MAX)
    try:
        parts = await whole_body(response, bytes_max)
    except Oversize as e:
        raise Unfit(str(e)) from e
    total = sum(map(len, parts))
    if length is not None and total != length:
        raise Unfit(f"{total} bytes, and {length} were promised")
    return parts
