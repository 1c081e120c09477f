"""The REST API as an aiohttp application: routes, authorization, errors, audit and metrics.

:mod:`tailer.share_server.request` reads a request and writes its answer.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tailer.errors import TailerError
from tailer.http_server.serving import Bounds
from tailer.share_server.audit import Audit
from tailer.share_server.changes import ChangesRange, changes_answer, stream_answer
from tailer.share_server.config import ShareConfig
from tailer.share_server.downloads import send_file
from tailer.share_server.grants import TableConfig
from tailer.share_server.guard import RateLimits, ShareMetrics
from tailer.share_server.openapi import openapi
from tailer.share_server.pages import Pager, max_results
from tailer.share_server.query import (
    Links,
    QueryBody,
    find_version,
    metadata_answer,
    query_answer,
)
from tailer.share_server.recipients import Recipient, RecipientStore, TokensUnusable
from tailer.share_server.refusals import Refusal, not_found, refusal_of, unsupported
from tailer.share_server.request import Request, error_answer
from tailer.share_server.signing import FileClaim, Forged, Signer
from tailer.share_server.tables import SharedTable, Tables
from tailer.sharing.model import TABLE_VERSION_HEADER, Page

_BODY_BYTES_MAX = 1024 * 1024

Handler = Callable[[Request], Awaitable[web.StreamResponse]]


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

    def listens_at(self, port: int) -> None:
        """Sign the URLs of files, and say the server's own, with the port that it listens on."""
        self.config = self.config.at_port(port)
        self.signer.base = self.config.public_url

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
        return Bounds(
            stall_s=limits.stall_s, connections=limits.connections, body_bytes=_BODY_BYTES_MAX
        )

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
            return error_answer(Refusal(e.status, code, e.reason), allow)

    async def _handle(
        self, endpoint: str, handler: Handler, http: web.Request
    ) -> web.StreamResponse:
        request = Request(http, endpoint)
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

    async def _answer(self, request: Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.endpoint == "file":
                return await handler(request)
            request.recipient = self._authenticate(request.http)
            with self.limits.admit(request.recipient.name):
                return await handler(request)
        except Refusal as refusal:
            return request.refused(refusal)
        except TokensUnusable as e:
            self._logger.error("%s: %s", request.endpoint, e)  # noqa: TRY400  # no internal error
            mistake = Refusal(500, "INTERNAL_ERROR", "tokens can't be checked at the moment")
            return request.refused(mistake)
        except TailerError as e:
            told = refusal_of(e)
            if told.status >= 500:
                self._logger.warning("%s: %s", request.endpoint, e)
            return request.refused(told)
        except web.HTTPException as e:  # about the body
            return request.refused(Refusal(e.status, "MALFORMED_REQUEST", e.reason))
        except ConnectionError:
            raise
        except Exception:
            # An internal error: the recipient learns no details.
            self._logger.exception("%s failed", request.endpoint)
            mistake = Refusal(500, "INTERNAL_ERROR", "the server made a mistake")
            return request.refused(mistake)

    def _authenticate(self, http: web.Request) -> Recipient:
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        recipient = None
        if scheme.lower() == "bearer" and token:
            recipient = self.recipients.authenticate(token.strip())
        if recipient is None:
            # Guesses are limited by the network that they come from.
            self.limits.guess(http.remote)
            raise Refusal(401, "UNAUTHENTICATED", "the bearer token is missing, wrong or expired")
        return recipient

    def _record(self, request: Request, status: int, seconds: float) -> None:
        self.metrics.requests.labels(request.endpoint, status).inc()
        self.metrics.bytes.labels(request.endpoint).inc(request.sent)
        self.metrics.seconds.labels(request.endpoint).observe(seconds)
        table = ".".join(name for name in request.names if name)
        self.audit.request(
            recipient=request.recipient.name or None,
            token=request.recipient.token_id or None,
            remote=request.http.remote,
            endpoint=request.endpoint,
            table=table or None,
            status=status,
            bytes=request.sent,
            ms=round(seconds * 1000, 1),
            **request.facts,
        )

    # Lists

    async def _list(self, request: Request) -> web.StreamResponse:
        who, grants = request.recipient.name, self.config.grants
        parent = tuple(name.lower() for name in request.names if name)
        if parent and not grants.sees(who, *parent):
            raise not_found("the schema" if len(parent) > 1 else "the share")
        deep = request.endpoint == "list-all-tables"

        def item(path: tuple[str, ...]) -> dict[str, Any]:
            found: Any = None
            match (*parent, *path):
                case (share,):
                    found = grants.share(who, share)
                case (share, schema):
                    found = grants.schema(who, share, schema)
                case (share, schema, table):
                    found = grants.table(who, share, schema, table)
            assert found is not None
            return (found.to_wire() if isinstance(found, TableConfig) else found).to_json()

        page: Page = self.pager.page(
            (request.endpoint, who, *parent),
            max_results(request.http.query.get("maxResults"), self.config.limits.page_size),
            request.http.query.get("pageToken"),
            lambda last: grants.after(who, parent, last, deep=deep),
            item,
        )
        return request.json_answer(page.to_json())

    async def _share(self, request: Request) -> web.StreamResponse:
        share = self.config.grants.share(request.recipient.name, request.name("share"))
        if share is None:
            raise not_found("the share")
        return request.json_answer({"share": share.to_json()})

    # Tables

    def _table(self, request: Request) -> SharedTable:
        share, schema, name = request.names
        config = self.config.grants.table(request.recipient.name, share, schema, name)
        if config is None:
            raise not_found("the table")
        return self._take(request, config)

    def _take(self, request: Request, config: TableConfig) -> SharedTable:
        table = self.tables.take(config)
        request.taken.append(table)
        return table

    async def _links(self, request: Request, table: SharedTable) -> Links:
        key, who = table.config.key, request.recipient.name
        now, ttl_s = int(self.clock()), self.config.url_ttl_s
        presigned = await table.presigner(dt.datetime.fromtimestamp(now, dt.UTC), ttl_s)
        expires_ms = (now + ttl_s) * 1000

        def url(where: str) -> str:
            elsewhere = presigned(where) if presigned else None
            return elsewhere or self.signer.url(FileClaim(key, where, who, expires_ms))

        return Links(self.signer, who, now * 1000, expires_ms, url)

    async def _version(self, request: Request) -> web.StreamResponse:
        table = self._table(request)
        start = request.http.query.get("startingTimestamp")
        version = await find_version(table, start if request.http.method == "GET" else None)
        return web.Response(headers={TABLE_VERSION_HEADER: str(version)})

    async def _metadata(self, request: Request) -> web.StreamResponse:
        table = self._table(request)
        links = await self._links(request, table)
        version, time = request.count("version"), request.http.query.get("timestamp")
        answer = await metadata_answer(table, version, time, request.capabilities, links)
        return await request.stream(answer, self.config.limits.stall_s)

    async def _query(self, request: Request) -> web.StreamResponse:
        table = self._table(request)
        body = QueryBody.parse(await request.json_body())
        links = await self._links(request, table)
        ask = stream_answer if body.starting_version is not None else query_answer
        answer = await ask(table, body, request.capabilities, links)
        return await request.stream(answer, self.config.limits.stall_s)

    async def _changes(self, request: Request) -> web.StreamResponse:
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
        return await request.stream(answer, self.config.limits.stall_s)

    async def _credentials(self, request: Request) -> web.StreamResponse:
        self._table(request)
        raise unsupported(
            "temporary credentials are not issued; read files through the URLs of /query"
        )

    # Files, and what needs no token

    async def _file(self, request: Request) -> web.StreamResponse:
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
        share, schema, name = claim.table
        config = self.config.grants.table(claim.recipient, share, schema, name)
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
