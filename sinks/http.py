"""The HTTP sink: events in CloudEvents batches, to a webhook, signed as Standard Webhooks says.

A request is an event batch of CloudEvents 1.0 (``application/cloudevents-batch+json``). Its id,
``webhook-id``, follows from the ids of its events, so a request that comes again has the id that
it had. Delivery is at least once.
"""

from __future__ import annotations

import hmac
import re
import time
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import aiohttp
import anyio
import pyarrow as pa
import pyarrow.compute as pc
from yarl import URL

from sinks.formats.json import view_text
from sinks.messages.http_session import explain_http_failure
from sinks.messages.in_flight import IN_FLIGHT, send_requests
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.retry import retry_attempts
from sinks.messages.sink import MessageSink
from sinks.messages.tls import CA_FILE, find_ca_file, make_tls_context
from sinks.shared.options import make_timeout
from sinks.shared.routes import Route
from tailer.changes import Offset
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.backoff import Backoff
from tailer.network.http_answers import parse_retry_after, read_at_most
from tailer.secrets import hide_secrets, keep_secrets
from tailer.secrets.urls import Url, UrlError, parse_url
from tailer.settings import REQUIRED, Setting
from tailer.sink import FaultTable

_MIB = 1024**2
_LOCAL = ("localhost", "127.0.0.1", "::1")
#: A part of a path that may be a secret: with a digit, or long.
_TOKEN = re.compile(r"(?=[^/]*\d)[^/]{6,}|[^/]{16,}")
_PATH_LEAST = 12
#: A text beside a column that may be a secret has so many characters.
_PART_LEAST = 6
_COLUMN = re.compile(r"\{\{[^{}]*\}\}|\{[^{}]+\}")
#: What a row's value can't have in a URL. One of dots alone would lead to another folder.
_NOT_IN_URLS = re.compile(r"[^A-Za-z0-9._~-]+|^\.+$")
_URL = "an https:// URL (http:// for this machine)"
_SECRET = "whsec_ and the base64 text of 24 to 64 bytes"  # noqa: S105  # a description


def _parse_webhook_url(text: str) -> Url:
    """Return the URL. Its query and what looks like a token in its path become known secrets."""
    try:
        url = parse_url(text, ("https", "http"), login=False)
    except UrlError as e:
        raise UrlError(f"{e}; what says who sends belongs into 'headers'") from None
    if url.scheme == "http" and url.host not in _LOCAL:
        raise UrlError("http:// is for this machine alone")
    parts = _COLUMN.sub("/", url.path).split("/")
    if _COLUMN.search(text.partition("#")[2]) or {"{", "}"} & set(
        f"{url.host}{''.join(parts)}{_COLUMN.sub('', url.query)}"
    ):
        raise UrlError("columns stand in braces, in its path or its query")
    keep_secrets(unquote(part) for part in parts if _TOKEN.fullmatch(part))
    keep_secrets(
        part
        for _, value in parse_qsl(url.query)
        for part in _COLUMN.split(value)
        if part == value or len(part) >= _PART_LEAST
    )
    keep_secrets((url.query, url.path if len(url.path) > _PATH_LEAST else ""))
    return url


def _parse_secret(secret: str) -> bytes:
    """Return the key in the text of a secret."""
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except NoBase64 as e:
        raise ValueError(_SECRET) from e
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ValueError(_SECRET)
    return key


SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "URL to post requests to; `{feed}` in its path or query is the feed's "
        "name, any other name in braces that column's value in each row.", form=_URL,
        parse=_parse_webhook_url, secret=True,
    ),
    "secrets": Setting(
        "texts", [], "Secrets that sign each request; each adds one signature.",
        form=f"a list of {_SECRET}", parse=lambda texts: [_parse_secret(text) for text in texts],
        secret=True,
    ),
    "headers": Setting("table", {}, "Additional headers, for example "
        "`Authorization`.", secret=True),
    "ca_file": CA_FILE,
    "request_events_max": Setting("whole", 1000, "Maximum events per request.", most=100_000,
        advanced=True),
    "request_bytes_max": Setting(
        "whole", _MIB, "Maximum bytes per request.", unit="bytes", least=1024, most=256 * _MIB,
        advanced=True,
    ),
    "timeout_s": make_timeout(30),
    "key": Setting("texts", [], "Columns that identify a row: its events arrive in their order."),
    "in_flight": IN_FLIGHT,
    "table": Setting(
        "text", "", "The table's name in events.", unset="the name in its metadata, else its id",
        advanced=True,
    ),
}  # fmt: skip
#: What servers take of a path and a query.
_PATH_BYTES_MAX = 4096
#: The pauses between attempts, in seconds; the feed waits for what is longer.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.2, 20.0
#: By the status. What is not here passes: the receiver is busy or away (429, 500 and more, and
#: others). Of 400 and 415 nobody knows whether the events are meant.
_FAULTS = FaultTable(
    for_good="3* 401 403 404 405 406 407 410 411 414 417 421 426 431",
    unclear="400 415",
    rows="413 422",
)
_SAID_CHARACTERS = 500
#: Of a body, so much is read.
_BODY_BYTES, _BODY_S = 64 * 1024, 1.0
_HEADERS = {
    "User-Agent": "delta-tailer", "Accept-Encoding": "identity",
    "Content-Type": "application/cloudevents-batch+json; charset=utf-8",
}  # fmt: skip


class HttpSink(MessageSink):
    """Events in signed requests to a webhook."""

    faults = _FAULTS

    settings = SETTINGS
    kind = "http"

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        """Create the sink. Options: :data:`SETTINGS`; ``folder`` is what its paths are relative
        to."""
        super().__init__("cloudevents", {name: options[name] for name in ("table", "key")})
        url = options["url"]
        # As it is written: what is encoded stays so.
        self.url = URL(url.to_text(), encoded=True)
        self._path: str = url.path + (f"?{url.query}" if url.query else "")
        self.headers: Mapping[str, str] = options["headers"]
        for name, value in self.headers.items():
            if not isinstance(value, str):
                raise ConfigError(f"option 'headers' of sink 'http': {name!r} is not a string")
        self.ca_file = find_ca_file(options, folder)
        # The brackets of the list, and a comma after each event.
        most, remedy = options["request_bytes_max"] - 2, "increase request_bytes_max, "
        self.limits = RequestLimits(options["request_events_max"], most, overhead=1, remedy=remedy)
        self.timeout_s = options["timeout_s"]
        self.in_flight = options["in_flight"]
        # A path or a query may have a token.
        self._place = url.origin
        self._keys: Sequence[bytes] = options["secrets"]
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> HttpSink:
        return cls(options, folder)

    def fill_option(self, name: str) -> str:  # noqa: ARG002  # only the URL has places
        """Return path and query."""
        return self._path.replace("{feed}", quote(self._feed, ""))

    def _build_route(self) -> Route:
        return Route(
            self.fill_option("url"), "url", (), _NOT_IN_URLS, "%", bytes_max=_PATH_BYTES_MAX
        )

    @property
    def place(self) -> str:
        return self.kind  # a path may be a secret

    def format_place(self, place: str) -> str:
        return hide_secrets(self._place + place if self.route else place)

    def _find_url(self, place: str) -> URL:
        return URL(self._place + place, encoded=True)

    async def _connect(self) -> Offset | None:
        context = make_tls_context("http", self.ca_file)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context or True, limit=self.in_flight),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers={**_HEADERS, **self.headers},
            auto_decompress=False,
        )
        return None

    async def _disconnect(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _look_at_target(self) -> Offset | None:
        await self._connect()
        assert self._http is not None
        try:
            url = self._find_url("/" if self.route else self._build_route().mask_columns(""))
            async with self._http.options(url, allow_redirects=False):
                return None  # any answer means that it is there
        except (aiohttp.ClientError, OSError) as e:
            raise explain_http_failure(self._place, e) from e

    async def _send_messages(self, messages: Messages, then: Offset) -> None:  # noqa: ARG002  # the feed keeps it
        await send_requests(
            messages, self.limits, self.in_flight, self._send_request, self._note_taken
        )

    async def _send_request(self, request: Messages) -> None:
        body = _build_body(request.values)
        request_id = blake2b(view_text(request.ids), digest_size=16).hexdigest()
        where = f"table {request.table}, versions {request.versions[0]} to "
        where += f"{request.versions[-1]}, request {request_id}"
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)
        places = request.places
        path = self._build_route().mask_columns("") if places is None else places[0].as_py()
        url = self._find_url(path)
        await retry_attempts(lambda: self._post_request(url, body, request_id, where), backoff)

    async def _post_request(self, url: URL, body: bytes, name: str, where: str) -> None:
        assert self._http is not None
        at = str(int(time.time()))
        headers = {"webhook-id": name, "webhook-timestamp": at}
        if self._keys:
            headers["webhook-signature"] = _sign_request(self._keys, name, at, body)
        try:
            async with self._http.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if 200 <= answer.status < 300:
                    # The status says that they are taken. A body that ends soon is read, so that
                    # the connection serves the next request.
                    with anyio.move_on_after(_BODY_S), suppress(aiohttp.ClientError, OSError):
                        await read_at_most(answer, _BODY_BYTES)
                    return
                # A secret must not be cut: its beginning would be shown.
                said = hide_secrets(
                    (await read_at_most(answer, _BODY_BYTES)).decode(errors="replace").strip()
                )
                raise self._describe_answer(answer, said[:_SAID_CHARACTERS], where)
        except (aiohttp.ClientError, OSError) as e:
            raise explain_http_failure(self._place, e) from e

    def _describe_answer(
        self, answer: aiohttp.ClientResponse, said: str, where: str
    ) -> TailerError:
        status = answer.status
        what = f"{self._place} answered {status}" + (f" ({said})" if said else "")
        match self.faults.verdict(status):
            case "passing":
                wish = answer.headers.get("Retry-After", "")
                return TransientError(what, parse_retry_after(wish, time.time()))
            case "for good" if 300 <= status < 400:
                to = self._describe_redirect(answer.headers.get("Location", ""))
                return ConfigError(f"{what}{to}: redirects are not followed; set url")
            case "for good":
                return ConfigError(f"{what}; check url, secrets and headers of the sink")
        said = f'{where}: {what}; fix the receiver, or park such rows with on_reject = "park"'
        return self.faults.error(status, said)

    def _describe_redirect(self, location: str) -> str:
        """Return where a redirect leads to, without a path: it may repeat that of the URL."""
        try:
            to = self.url.join(URL(location)).origin()
        except ValueError:
            return ""
        other = "another path of " if to == self.url.origin() else ""
        return f", which leads to {other}{to}"


def _build_body(values: pa.BinaryArray) -> bytes:
    """Return events as a JSON array."""
    listed = pc.binary_join_element_wise(values, pa.scalar(b","), pa.scalar(b""))
    return b"".join((b"[", memoryview(view_text(listed))[:-1], b"]"))


def _sign_request(keys: Sequence[bytes], name: str, at: str, body: bytes) -> str:
    """Return the header ``webhook-signature``."""
    signed = b"".join((f"{name}.{at}.".encode(), body))
    found = (b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
    return " ".join(f"v1,{text}" for text in found)
