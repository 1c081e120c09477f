"""Requests to S3: signed, bounded, checked, and retried a few times.

Session, configuration and credentials come from aiobotocore, so that they are found where every AWS
tool finds them; so does the signer. The requests are made with aiohttp: a feed that polls a table
requests one small object again and again, and aiobotocore's client takes four times the processor
time for that.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import (
    BotoCoreError,
    MetadataRetrievalError,
    ProfileNotFound,
)
from botocore.httpsession import where
from botocore.utils import get_environ_proxies
from msgspec import Struct
from yarl import URL

from tailer.backoff import Backoff
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.store.budget import Budget
from tailer.store.s3.errors import (
    EXPIRED,
    Answer,
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
from tailer.store.s3.signing import Signed, Signer
from tailer.store.traffic import Traffic

__all__ = ["Call", "S3Client"]

_DEFAULT_REGION = "us-east-1"
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 2.0
#: A longer Retry-After is left to the feed.
_RETRY_AFTER_HERE_S = 3.0
#: Statuses that the caller handles.
_PLAIN = {200, 204, 206, 304, 404, 412, 416}
#: aiohttp pauses a connection while twice this many bytes wait to be taken. With its default of 64
#: KiB, it would pause many times within one piece of a file.
_READ_BYTES = 1024 * 1024
_REFUSAL_BYTES_MAX = 1024 * 1024


class Call(Struct, frozen=True):
    """One request. ``check`` raises :class:`Unfit` for an answer that must not be trusted.

    ``bytes_max`` bounds the body that is accepted; ``operation`` names it in metrics and messages.
    """

    operation: str
    method: str
    bucket: str
    key: str = ""
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    bytes_max: int | None = None
    check: Callable[[Answer], None] = lambda _: None


class S3Client:
    """The connections and credentials of one set of options, on one event loop."""

    def __init__(self, options: S3Options) -> None:
        self.options = options
        #: Limit of the bytes fetched ahead for all tables together.
        self.ahead = Budget(options.total_ahead_bytes_max)
        self._gate = asyncio.Semaphore(options.max_concurrency)
        self._starting = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._session: AioSession | None = None
        self._credentials: Any = None
        self._signer = Signer()
        self._region = options.region or _DEFAULT_REGION
        self._endpoints: dict[str, str] = {}
        self._regions: dict[str, str] = {}

    # Start and end

    async def _start(self) -> aiohttp.ClientSession:
        async with self._starting:
            if self._http is None:
                try:
                    await self._open_session()
                except (BotoCoreError, OSError, ssl.SSLError) as e:
                    raise _session_error(e) from e
        assert self._http is not None
        return self._http

    async def _open_session(self) -> None:
        session = AioSession(profile=self.options.profile)
        # The variable that other AWS tools read, and botocore does not.
        also = os.environ.get("AWS_REGION")
        known = self.options.region or session.get_config_variable("region") or also
        self._region = known or _DEFAULT_REGION
        self._session = session
        endpoint = await self._endpoint(self._region)
        if not self.options.anonymous:
            self._credentials = await self._found_credentials(session)
            if self._credentials is None:
                raise ConfigError(
                    "there are no credentials for S3: set AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, a profile or a role; for a public bucket, "
                    "anonymous = true"
                )
        tls: ssl.SSLContext | bool = True
        if not endpoint.startswith("http:"):  # reading the authorities takes 20 ms
            bundle = self.options.ca_bundle or session.get_config_variable("ca_bundle") or where()
            tls = ssl.create_default_context(cafile=bundle)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # the gate limits, and waiting there is not a time-out
                ssl=tls,
            ),
            timeout=aiohttp.ClientTimeout(
                total=self.options.read_timeout_s * 10,
                sock_connect=self.options.connect_timeout_s,
                sock_read=self.options.read_timeout_s,
            ),
            headers={"User-Agent": session.user_agent(), "Accept-Encoding": "identity"},
            skip_auto_headers=["Content-Type"],
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            proxy=get_environ_proxies(endpoint).get(urlsplit(endpoint).scheme),
        )

    async def _found_credentials(self, session: AioSession) -> Any:
        """Return the credentials of the options, else the session's; None if there are none."""
        own = self.options
        if own.access_key_id is not None:
            session.set_credentials(own.access_key_id, own.secret_access_key, own.session_token)
        return await session.get_credentials()

    async def _endpoint(self, region: str) -> str:
        """Return the URL of a region's servers, as the AWS tools find it."""
        if self.options.endpoint_url is not None:
            return self.options.endpoint_url
        if region not in self._endpoints:
            assert self._session is not None
            unsigned = AioConfig(signature_version="s3v4")
            async with self._session.create_client(
                "s3", region_name=region, config=unsigned
            ) as client:
                self._endpoints[region] = client.meta.endpoint_url
        return self._endpoints[region]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    # Requests

    async def request(self, call: Call, traffic: Traffic) -> Answer:
        """Return the answer, with status 200, 204, 206, 304, 404, 412 or 416.

        Raises :class:`TransientError` when all attempts failed in ways that may heal,
        :class:`TableError` for a refusal, :class:`ConfigError` without credentials.
        """
        renewed = False
        error: TailerError | None = None
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)
        for attempt in range(self.options.max_attempts):
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
            if answer.status in _PLAIN and not is_about_more_than_the_key(answer):
                return answer
            error = refusal(answer, call.operation, call.bucket, call.key)
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

    async def _attempt(self, call: Call, traffic: Traffic) -> Answer:
        """Make one attempt. Raises :class:`TransientError` unless the answer is whole and fits."""
        what = f"s3://{call.bucket}/{call.key}: {call.operation}"
        status = "failed"
        received = 0
        try:
            answer = await self._exchange(call)
            status, received = str(answer.status), len(answer.body)
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

    async def _exchange(self, call: Call) -> Answer:
        http = self._http or await self._start()
        async with self._gate:
            url = await self._url(call)
            signed = await self._signed(call, url)
            async with http.request(
                call.method, URL(url, encoded=True), headers=signed.headers, data=call.body or None,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status == 404:
                    self._signer.found_nothing(signed)
                else:
                    self._signer.found(signed)
                found = {name.lower(): value for name, value in response.headers.items()}
                body = b""
                if call.method != "HEAD":
                    most = call.bytes_max if response.status < 300 else _REFUSAL_BYTES_MAX
                    body = await _body(response, most)
                return Answer(response.status, found, body)

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

    async def _signed(self, call: Call, url: str) -> Signed:
        headers = dict(call.headers)
        if self.options.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        if self.options.anonymous:
            return Signed(headers, ())
        try:
            frozen = await self._credentials.get_frozen_credentials()
        except (BotoCoreError, OSError) as e:
            raise _session_error(e) from e
        region = self._regions.get(call.bucket, self._region)
        return self._signer.sign(frozen, region, (call.method, url, call.body), headers)

    async def presigner(self, bucket: str, at: dt.datetime, ttl_s: int) -> Presigner | None:
        """Return a signer of URLs for a bucket's objects; None for anonymous access.

        Anonymous access has no key to sign with. Raises the errors of :meth:`request`.
        """
        if self._http is None:
            await self._start()
        if self.options.anonymous:
            return None
        base = await self._url(Call("presign", "GET", bucket))
        try:
            frozen = await self._credentials.get_frozen_credentials()
        except (BotoCoreError, OSError) as e:
            raise _session_error(e) from e
        return Presigner(
            base=base.rstrip("/"),
            region=self._regions.get(bucket, self._region),
            access_key=frozen.access_key,
            secret_key=frozen.secret_key,
            token=frozen.token,
            at=at,
            ttl_s=ttl_s,
            more={"x-amz-request-payer": "requester"} if self.options.requester_pays else {},
        )

    async def _renew_credentials(self) -> None:
        """Load the credentials again from their source: expired ones may have been renewed."""
        try:
            session = AioSession(profile=self.options.profile)
            found = await self._found_credentials(session)
        except (BotoCoreError, OSError) as e:
            raise _session_error(e) from e
        if found is not None:
            self._credentials = found


def _session_error(e: Exception) -> TailerError:
    """Return the error for a session that can't be opened or credentials that can't be loaded."""
    lasting = isinstance(e, FileNotFoundError | ssl.SSLError)
    if isinstance(e, MetadataRetrievalError | OSError) and not lasting:
        return TransientError(f"the credentials for S3 can't be had now ({e})")
    if isinstance(e, ProfileNotFound):
        return ConfigError(f"{e}; profiles are in ~/.aws/config")
    return ConfigError(f"S3 can't be used as it is configured ({e})")


async def _body(response: aiohttp.ClientResponse, bytes_max: int | None) -> bytes:
    """Read the whole body; aiohttp checks it against the length in the headers."""
    length = response.content_length
    if bytes_max is not None and length is not None and length > bytes_max:
        raise Unfit(f"{length} bytes, of {bytes_max} at most")
    parts, total = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        total += len(part)
        if bytes_max is not None and total > bytes_max:
            raise Unfit(f"more than {bytes_max} bytes")
    if length is not None and total != length:
        raise Unfit(f"{total} bytes, and {length} were promised")
    return b"".join(parts)
