"""The REST API as an aiohttp application: routes, authorization, errors, audit and metrics."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tailer.delta.actions import LONG_MAX
from tailer.errors import TailerError
from tailer.process.serving import Bounds, read_body, send_chunk
from tailer.share_server.audit import Audit
from tailer.share_server.changes import ChangesRange, changes_answer, stream_answer
from tailer.share_server.config import ShareConfig
from tailer.share_server.downloads import send_file
from tailer.share_server.grants import TableConfig
from tailer.share_server.guard import RateLimits, ShareMetrics
from tailer.share_server.openapi import openapi
from tailer.share_server.pages import Pager, max_results
from tailer.share_server.query import (
    Answer,
    Links,
    QueryBody,
    find_version,
    metadata_answer,
    query_answer,
)
from tailer.share_server.recipients import Recipient, RecipientStore, TokensUnusable
from tailer.share_server.refusals import Refusal, invalid, not_found, refusal_of, unsupported
from tailer.share_server.signing import FileClaim, Forged, Signer
from tailer.share_server.tables import SharedTable, Tables
from tailer.sharing.model import (
    CAPABILITIES_HEADER,
    JSON_TYPE,
    NDJSON_TYPE,
    TABLE_VERSION_HEADER,
    Capabilities,
    Page,
)

__all__ = ["ShareServer"]

_BODY_BYTES_MAX = 1024 * 1024
#: Bytes of a range's answer that are held back, so that an early error becomes a status.
_HOLD_BYTES_MAX = 256 * 1024

Handler = Callable[["_Request"], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _Request:
    """One request, and the facts about it that are collected for the audit log."""

    http: web.Request
    endpoint: str
    recipient: Recipient = field(default_factory=lambda: Recipient("", ""))
    sent: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    taken: list[SharedTable] = field(default_factory=list)

    def name(self, key: str) -> str:
        return self.http.match_info.get(key, "")

    @property
    def names(self) -> tuple[str, str, str]:
        return self.name("share"), self.name("schema"), self.name("table")

    def count(self, key: str) -> int | None:
        """Parse a version among the query's parameters."""
        text = self.http.query.get(key)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LONG_MAX:
            raise invalid(f"{key} must be a number from 0 on")
        return int(text)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.parse(self.http.headers.get(CAPABILITIES_HEADER))


class ShareServer:
    """The server of one configuration.

    ``clock`` gives epoch seconds, ``ticks`` seconds that never go back. Close it when done.
    """

    def __init__(
        self,
        config: ShareConfig,
        key: bytes,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock, self.ticks = clock, ticks
        self.registry = CollectorRegistry()
        self.metrics = ShareMetrics(self.registry)
        self.signer = Signer(key, config.public_url)
        self.recipients = RecipientStore(config.state, clock)
        self.tables = Tables()
        self.pager = Pager(self.signer)
        self.limits = RateLimits(config.limits, ticks)
        self.audit = Audit(config.audit, clock, ticks)
        self._logger = logging.getLogger("tailer.share")

    async def reconfigure(self, config: ShareConfig) -> None:
        """Use another configuration: from now on its shares, grants, limits and times apply.

        Answers under way are finished with the old one. The address, the public URL, the state
        folder, the audit log and the key cannot be changed.
        """
        at_start = self.config
        self.config = replace(
            config, address=at_start.address, public_url=at_start.public_url,
            state=at_start.state, audit=at_start.audit, key=at_start.key,
        )  # fmt: skip
        self.limits.limits = config.limits
        await self.tables.keep(config.catalog.tables())

    def bounds(self) -> Bounds:
        """Return the limits on what clients may hold before they are authenticated."""
        limits = self.config.limits
        return Bounds(limits.stall_s, limits.connections, _BODY_BYTES_MAX)

    async def aclose(self) -> None:
        """Close tables and files."""
        await self.tables.aclose()
        self.audit.close()

    def application(self) -> web.Application:
        """Return the application with its routes, below the prefix of the public URL."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._unrouted])
        share = "/shares/{share}"
        schema = share + "/schemas/{schema}"
        table = schema + "/tables/{table}"
        routes: tuple[tuple[str, str, str, Handler], ...] = (
            ("GET", "/shares", "list-shares", self._list),
            ("GET", share, "get-share", self._share),
            ("GET", share + "/schemas", "list-schemas", self._list),
            ("GET", schema + "/tables", "list-tables", self._list),
            ("GET", share + "/all-tables", "list-all-tables", self._list),
            ("GET", table + "/version", "version", self._version),
            ("HEAD", table, "version-head", self._version),
            ("GET", table + "/metadata", "metadata", self._metadata),
            ("POST", table + "/query", "query", self._query),
            ("GET", table + "/changes", "changes", self._changes),
            ("POST", table + "/temporary-table-credentials", "credentials", self._credentials),
        )
        prefix = self.config.prefix
        for method, path, endpoint, handler in routes:
            handle = partial(self._handle, endpoint, handler)
            if method == "GET":
                app.router.add_get(prefix + path, handle, allow_head=False)
            else:
                app.router.add_route(method, prefix + path, handle)
        files = partial(self._handle, "file", self._file)
        app.router.add_get(prefix + "/files/{claim}/{name}", files)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get(prefix + "/openapi.json", self._openapi)
        return app

    # One request, from end to end

    @web.middleware
    async def _unrouted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer aiohttp's refusals (no such route, wrong method) with the protocol's body."""
        try:
            return await handler(request)
        except web.HTTPException as e:
            code = "RESOURCE_DOES_NOT_EXIST" if e.status == 404 else "MALFORMED_REQUEST"
            allow = {k: v for k, v in e.headers.items() if k == "Allow"}
            return _error(Refusal(e.status, code, e.reason), allow)

    async def _handle(
        self, endpoint: str, handler: Handler, http: web.Request
    ) -> web.StreamResponse:
        request = _Request(http, endpoint)
        started = self.ticks()
        status = 499  # the client disconnected before it had an answer
        try:
            response = await self._answer(request, handler)
            status = response.status
        except ConnectionError as e:
            # An answer under way can't be repaired: nothing more is sent, not even an end.
            request.facts.setdefault("broken", str(e) or "the connection was lost")
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=status)
        finally:
            with anyio.CancelScope(shield=True):
                for table in request.taken:
                    await self.tables.give_back(table)
            self._record(request, status, self.ticks() - started)
        return response

    async def _answer(self, request: _Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.endpoint == "file":
                return await handler(request)
            request.recipient = self._authenticate(request.http)
            with self.limits.admit(request.recipient.name):
                return await handler(request)
        except Refusal as refusal:
            return self._refused(request, refusal)
        except TokensUnusable as e:
            self._logger.error("%s: %s", request.endpoint, e)  # noqa: TRY400  # no internal error
            mistake = Refusal(500, "INTERNAL_ERROR", "tokens can't be checked at the moment")
            return self._refused(request, mistake)
        except TailerError as e:
            told = refusal_of(e)
            if told.status >= 500:
                self._logger.warning("%s: %s", request.endpoint, e)
            return self._refused(request, told)
        except web.HTTPException as e:  # about the body
            return self._refused(request, Refusal(e.status, "MALFORMED_REQUEST", e.reason))
        except ConnectionError:
            raise
        except Exception:
            # An internal error: the recipient learns no details.
            self._logger.exception("%s failed", request.endpoint)
            mistake = Refusal(500, "INTERNAL_ERROR", "the server made a mistake")
            return self._refused(request, mistake)

    def _refused(self, request: _Request, refusal: Refusal) -> web.StreamResponse:
        if request.facts.get("streaming"):
            # The status is sent: the stream can only be broken, so that it does not look whole.
            raise ConnectionResetError(refusal.body.message)
        request.facts["error"] = refusal.body.error_code
        response = _error(refusal)
        request.sent = response.content_length or 0
        return response

    def _authenticate(self, http: web.Request) -> Recipient:
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        recipient = None
        if scheme.lower() == "bearer" and token:
            recipient = self.recipients.authenticate(token.strip())
        if recipient is None:
            # Guesses are limited by the network that they come from.
            self.limits.guess(http.remote)
            raise Refusal(401, "UNAUTHENTICATED", "the bearer token is missing, wrong or over")
        return recipient

    def _record(self, request: _Request, status: int, seconds: float) -> None:
        self.metrics.requests.labels(request.endpoint, status).inc()
        self.metrics.bytes.labels(request.endpoint).inc(request.sent)
        self.metrics.seconds.labels(request.endpoint).observe(seconds)
        table = ".".join(name for name in request.names if name)
        facts = {k: v for k, v in request.facts.items() if k != "streaming"}
        self.audit.request(
            recipient=request.recipient.name or None,
            token=request.recipient.token_id or None,
            remote=request.http.remote,
            endpoint=request.endpoint,
            table=table or None,
            status=status,
            bytes=request.sent,
            ms=round(seconds * 1000, 1),
            **facts,
        )

    # Lists

    async def _list(self, request: _Request) -> web.StreamResponse:
        who, grants = request.recipient.name, self.config.grants
        parent = tuple(name.lower() for name in request.names if name)
        if parent and not grants.sees(who, *parent):
            raise not_found("the schema" if len(parent) > 1 else "the share")
        deep = request.endpoint == "list-all-tables"

        def item(path: tuple[str, ...]) -> dict[str, Any]:
            full = (*parent, *path)
            found = (
                grants.share(who, *full) if len(full) == 1
                else grants.schema(who, *full) if len(full) == 2
                else grants.table(who, *full)
            )  # fmt: skip
            assert found is not None
            return (found.to_wire() if isinstance(found, TableConfig) else found).to_json()

        page: Page = self.pager.page(
            (request.endpoint, who, *parent),
            max_results(request.http.query.get("maxResults"), self.config.limits.page_size),
            request.http.query.get("pageToken"),
            lambda last: grants.after(who, parent, last, deep=deep),
            item,
        )
        return self._json(request, page.to_json())

    async def _share(self, request: _Request) -> web.StreamResponse:
        share = self.config.grants.share(request.recipient.name, request.name("share"))
        if share is None:
            raise not_found("the share")
        return self._json(request, {"share": share.to_json()})

    def _json(self, request: _Request, document: dict[str, Any]) -> web.Response:
        body = json.dumps(document).encode()
        request.sent = len(body)
        return web.Response(body=body, headers={"Content-Type": JSON_TYPE})

    # Tables

    def _table(self, request: _Request) -> SharedTable:
        config = self.config.grants.table(request.recipient.name, *request.names)
        if config is None:
            raise not_found("the table")
        return self._take(request, config)

    def _take(self, request: _Request, config: TableConfig) -> SharedTable:
        table = self.tables.take(config)
        request.taken.append(table)
        return table

    async def _links(self, request: _Request, table: SharedTable) -> Links:
        key, who = table.config.key, request.recipient.name
        now, ttl_s = int(self.clock()), self.config.url_ttl_s
        presigned = await table.presigner(dt.datetime.fromtimestamp(now, dt.UTC), ttl_s)
        expires_ms = (now + ttl_s) * 1000

        def url(where: str) -> str:
            elsewhere = presigned(where) if presigned else None
            return elsewhere or self.signer.url(FileClaim(key, where, who, expires_ms))

        return Links(self.signer, who, now * 1000, expires_ms, url)

    async def _version(self, request: _Request) -> web.StreamResponse:
        table = self._table(request)
        start = request.http.query.get("startingTimestamp")
        version = await find_version(table, start if request.http.method == "GET" else None)
        return web.Response(headers={TABLE_VERSION_HEADER: str(version)})

    async def _metadata(self, request: _Request) -> web.StreamResponse:
        table = self._table(request)
        links = await self._links(request, table)
        version, time = request.count("version"), request.http.query.get("timestamp")
        answer = await metadata_answer(table, version, time, request.capabilities, links)
        return await self._stream(request, answer)

    async def _query(self, request: _Request) -> web.StreamResponse:
        table = self._table(request)
        body = QueryBody.parse(await _json_body(request.http))
        links = await self._links(request, table)
        ask = stream_answer if body.starting_version is not None else query_answer
        return await self._stream(request, await ask(table, body, request.capabilities, links))

    async def _changes(self, request: _Request) -> web.StreamResponse:
        table = self._table(request)
        query = request.http.query
        wanted = ChangesRange(
            starting_version=request.count("startingVersion"),
            starting_timestamp=query.get("startingTimestamp"),
            ending_version=request.count("endingVersion"),
            ending_timestamp=query.get("endingTimestamp"),
            historical_metadata=query.get("includeHistoricalMetadata", "").lower() == "true",
        )
        links = await self._links(request, table)
        answer = await changes_answer(table, wanted, request.capabilities, links)
        return await self._stream(request, answer)

    async def _credentials(self, request: _Request) -> web.StreamResponse:
        self._table(request)
        raise unsupported(
            "temporary credentials are not given out; files are read by the URLs of /query"
        )

    async def _stream(self, request: _Request, answer: Answer) -> web.StreamResponse:
        """Send an answer's lines as they are found, no faster than the client takes them."""
        response = web.StreamResponse()
        response.headers["Content-Type"] = NDJSON_TYPE
        response.headers[TABLE_VERSION_HEADER] = str(answer.version)
        said = Capabilities((answer.form,), frozenset(), answer.end_of_stream)
        response.headers[CAPABILITIES_HEADER] = said.format()
        request.facts |= {"version": answer.version, "format": answer.form}
        stall_s = self.config.limits.stall_s
        held = bytearray(answer.head)

        async def flush() -> None:
            if not response.prepared:
                await response.prepare(request.http)
                request.facts["streaming"] = True
            await send_chunk(response, bytes(held), stall_s)
            request.sent += len(held)
            held.clear()

        if not answer.hold:
            await flush()
        if answer.chunks is not None:
            async with aclosing(answer.chunks) as chunks:
                async for chunk in chunks:
                    held += chunk
                    if response.prepared or len(held) > _HOLD_BYTES_MAX:
                        await flush()
        if held:
            await flush()
        await response.write_eof()
        return response

    # Files, and what needs no token

    async def _file(self, request: _Request) -> web.StreamResponse:
        http = request.http
        try:
            claim = self.signer.open_url(
                http.match_info["claim"],
                http.match_info["name"],
                http.rel_url.raw_query_string,
                self.clock() * 1000,
            )
        except Forged as e:
            self.limits.guess(http.remote)
            raise Refusal(403, "PERMISSION_DENIED", str(e)) from None
        request.recipient = Recipient(claim.recipient, "")
        request.facts |= {"of": ".".join(claim.table), "file": claim.location}
        config = self.config.grants.table(claim.recipient, *claim.table)
        if config is None or not self.recipients.is_active(claim.recipient):
            raise Refusal(403, "PERMISSION_DENIED", "the table is no longer shared with you")
        table = self._take(request, config)
        with self.limits.download(claim.recipient):
            response, request.sent = await send_file(
                http, table, claim.location, self.config.limits.stall_s
            )
        return response

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(self.registry), headers=headers)

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(openapi(self.config.public_url))


def _error(refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    headers = dict(headers or {})
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(refusal.body.to_json(), status=refusal.status, headers=headers)


async def _json_body(http: web.Request) -> Any:
    """Parse the body as JSON; an empty one is ``{}``."""
    data = await read_body(http)
    if not data.strip():
        return {}
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise Refusal(400, "MALFORMED_REQUEST", f"the body is not JSON ({e})") from None
