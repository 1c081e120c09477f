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
from tailer.http_server.serving import ConnectionLimits
from tailer.share_server.audit import Audit
from tailer.share_server.changes import ChangesRange, answer_changes, answer_stream
from tailer.share_server.config import ShareConfig
from tailer.share_server.downloads import send_file
from tailer.share_server.grants import TableConfig
from tailer.share_server.guard import RateLimits, ShareMetrics
from tailer.share_server.openapi import describe_api
from tailer.share_server.pages import Pager, parse_max_results
from tailer.share_server.query import (
    Links,
    QueryBody,
    answer_metadata,
    answer_query,
    find_version,
)
from tailer.share_server.recipients import Recipient, RecipientStore, TokensUnusable
from tailer.share_server.refusals import Refusal, not_found, refusal_of, unsupported_operation
from tailer.share_server.request import Request, make_error_answer
from tailer.share_server.signing import FileClaim, Forged, Signer
from tailer.share_server.tables import OpenTables, SharedTable
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
        self.tables = OpenTables()
        self.pager = Pager(self.signer)
        self.limits = RateLimits(config.limits, ticks)
        self.audit = Audit(config.audit, clock, ticks)
        self._logger = logging.getLogger("tailer.share")

    def set_port(self, port: int) -> None:
        """Sign the URLs of files, and say the server's own, with the port that it listens on."""
        self.config = self.config.with_port(port)
        self.signer.base = self.config.public_url

    async def use_config(self, config: ShareConfig) -> None:
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
        await self.tables.keep_only(config.catalog.list_tables())

    def make_bounds(self) -> ConnectionLimits:
        """Return the limits on what clients may hold before they are authenticated."""
        limits = self.config.limits
        return ConnectionLimits(
            stall_s=limits.stall_s, connections=limits.connections, body_bytes=_BODY_BYTES_MAX
        )

    async def aclose(self) -> None:
        """Close tables and files."""
        await self.tables.aclose()
        self.audit.close()

    def build_application(self) -> web.Application:
        """Return the application with its routes, below the prefix of the public URL."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._answer_unrouted])
        share = "/shares/{share}"
        schema = share + "/schemas/{schema}"
        table = schema + "/tables/{table}"
        routes: tuple[tuple[str, str, str, Handler], ...] = (
            ("GET", "/shares", "list-shares", self._answer_list),
            ("GET", share, "get-share", self._answer_share),
            ("GET", share + "/schemas", "list-schemas", self._answer_list),
            ("GET", schema + "/tables", "list-tables", self._answer_list),
            ("GET", share + "/all-tables", "list-all-tables", self._answer_list),
            ("GET", table + "/version", "version", self._answer_version),
            ("HEAD", table, "version-head", self._answer_version),
            ("GET", table + "/metadata", "metadata", self._answer_metadata),
            ("POST", table + "/query", "query", self._answer_query),
            ("GET", table + "/changes", "changes", self._answer_changes),
            (
                "POST",
                table + "/temporary-table-credentials",
                "credentials",
                self._refuse_credentials,
            ),
        )
        prefix = self.config.prefix
        for method, path, endpoint, handler in routes:
            handle = partial(self._serve_request, endpoint, handler)
            if method == "GET":
                app.router.add_get(prefix + path, handle, allow_head=False)
            else:
                app.router.add_route(method, prefix + path, handle)
        files = partial(self._serve_request, "file", self._answer_file)
        app.router.add_get(prefix + "/files/{claim}/{name}", files)
        app.router.add_get("/healthz", self._answer_health)
        app.router.add_get("/metrics", self._answer_metrics)
        app.router.add_get(prefix + "/openapi.json", self._answer_openapi)
        return app

    # One request, from end to end

    @web.middleware
    async def _answer_unrouted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer aiohttp's refusals (no such route, wrong method) with the protocol's body."""
        try:
            return await handler(request)
        except web.HTTPException as e:
            code = "RESOURCE_DOES_NOT_EXIST" if e.status == 404 else "MALFORMED_REQUEST"
            allow = {k: v for k, v in e.headers.items() if k == "Allow"}
            return make_error_answer(Refusal(e.status, code, e.reason), allow)

    async def _serve_request(
        self, endpoint: str, handler: Handler, http: web.Request
    ) -> web.StreamResponse:
        request = Request(http, endpoint)
        started = self.ticks()
        status = 499  # the client disconnected before it had an answer
        try:
            response = await self._answer_request(request, handler)
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
            self._record_request(request, status, self.ticks() - started)
        return response

    async def _answer_request(self, request: Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.endpoint == "file":
                return await handler(request)
            request.recipient = self._authenticate_request(request.http)
            with self.limits.admit_request(request.recipient.name):
                return await handler(request)
        except Refusal as refusal:
            return request.make_refusal_answer(refusal)
        except TokensUnusable as e:
            self._logger.error("%s: %s", request.endpoint, e)  # noqa: TRY400  # no internal error
            mistake = Refusal(500, "INTERNAL_ERROR", "tokens can't be checked at the moment")
            return request.make_refusal_answer(mistake)
        except TailerError as e:
            answer = refusal_of(e)
            if answer.status >= 500:
                self._logger.warning("%s: %s", request.endpoint, e)
            return request.make_refusal_answer(answer)
        except web.HTTPException as e:  # about the body
            return request.make_refusal_answer(Refusal(e.status, "MALFORMED_REQUEST", e.reason))
        except ConnectionError:
            raise
        except Exception:
            # An internal error: the recipient learns no details.
            self._logger.exception("%s failed", request.endpoint)
            mistake = Refusal(500, "INTERNAL_ERROR", "the server made a mistake")
            return request.make_refusal_answer(mistake)

    def _authenticate_request(self, http: web.Request) -> Recipient:
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        recipient = None
        if scheme.lower() == "bearer" and token:
            recipient = self.recipients.authenticate_bearer(token.strip())
        if recipient is None:
            # Guesses are limited by the network that they come from.
            self.limits.count_guess(http.remote)
            raise Refusal(401, "UNAUTHENTICATED", "the bearer token is missing, wrong or expired")
        return recipient

    def _record_request(self, request: Request, status: int, seconds: float) -> None:
        self.metrics.requests.labels(request.endpoint, status).inc()
        self.metrics.bytes.labels(request.endpoint).inc(request.sent)
        self.metrics.seconds.labels(request.endpoint).observe(seconds)
        table = ".".join(name for name in request.names if name)
        self.audit.record_request(
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

    async def _answer_list(self, request: Request) -> web.StreamResponse:
        who, grants = request.recipient.name, self.config.grants
        parent = tuple(name.lower() for name in request.names if name)
        if parent and not grants.can_see(who, *parent):
            raise not_found("the schema" if len(parent) > 1 else "the share")
        deep = request.endpoint == "list-all-tables"

        def item(path: tuple[str, ...]) -> dict[str, Any]:
            found: Any = None
            match (*parent, *path):
                case (share,):
                    found = grants.find_share(who, share)
                case (share, schema):
                    found = grants.find_schema(who, share, schema)
                case (share, schema, table):
                    found = grants.find_table(who, share, schema, table)
            assert found is not None
            return (found.to_wire() if isinstance(found, TableConfig) else found).to_json()

        page: Page = self.pager.make_page(
            (request.endpoint, who, *parent),
            parse_max_results(request.http.query.get("maxResults"), self.config.limits.page_size),
            request.http.query.get("pageToken"),
            lambda last: grants.list_after(who, parent, last, deep=deep),
            item,
        )
        return request.make_json_answer(page.to_json())

    async def _answer_share(self, request: Request) -> web.StreamResponse:
        share = self.config.grants.find_share(request.recipient.name, request.path_part("share"))
        if share is None:
            raise not_found("the share")
        return request.make_json_answer({"share": share.to_json()})

    # Tables

    def _take_granted_table(self, request: Request) -> SharedTable:
        share, schema, name = request.names
        config = self.config.grants.find_table(request.recipient.name, share, schema, name)
        if config is None:
            raise not_found("the table")
        return self._take_table(request, config)

    def _take_table(self, request: Request, config: TableConfig) -> SharedTable:
        table = self.tables.take_table(config)
        request.taken.append(table)
        return table

    async def _make_links(self, request: Request, table: SharedTable) -> Links:
        key, who = table.config.key, request.recipient.name
        now, ttl_s = int(self.clock()), self.config.url_ttl_s
        presigned = await table.make_presigner(dt.datetime.fromtimestamp(now, dt.UTC), ttl_s)
        expires_ms = (now + ttl_s) * 1000

        def url(where: str) -> str:
            elsewhere = presigned(where) if presigned else None
            return elsewhere or self.signer.make_url(FileClaim(key, where, who, expires_ms))

        return Links(self.signer, who, now * 1000, expires_ms, url)

    async def _answer_version(self, request: Request) -> web.StreamResponse:
        table = self._take_granted_table(request)
        start = request.http.query.get("startingTimestamp")
        version = await find_version(table, start if request.http.method == "GET" else None)
        return web.Response(headers={TABLE_VERSION_HEADER: str(version)})

    async def _answer_metadata(self, request: Request) -> web.StreamResponse:
        table = self._take_granted_table(request)
        links = await self._make_links(request, table)
        version, time = request.parse_count("version"), request.http.query.get("timestamp")
        answer = await answer_metadata(table, version, time, request.capabilities, links)
        return await request.send_lines(answer, self.config.limits.stall_s)

    async def _answer_query(self, request: Request) -> web.StreamResponse:
        table = self._take_granted_table(request)
        body = QueryBody.from_json(await request.read_json_body())
        links = await self._make_links(request, table)
        ask = answer_stream if body.starting_version is not None else answer_query
        answer = await ask(table, body, request.capabilities, links)
        return await request.send_lines(answer, self.config.limits.stall_s)

    async def _answer_changes(self, request: Request) -> web.StreamResponse:
        table = self._take_granted_table(request)
        query = request.http.query
        wanted = ChangesRange(
            starting_version=request.parse_count("startingVersion"),
            starting_timestamp=query.get("startingTimestamp"),
            ending_version=request.parse_count("endingVersion"),
            ending_timestamp=query.get("endingTimestamp"),
            historical_metadata=query.get("includeHistoricalMetadata", "").lower() == "true",
        )
        links = await self._make_links(request, table)
        answer = await answer_changes(table, wanted, request.capabilities, links)
        return await request.send_lines(answer, self.config.limits.stall_s)

    async def _refuse_credentials(self, request: Request) -> web.StreamResponse:
        self._take_granted_table(request)
        raise unsupported_operation(
            "temporary credentials are not issued; read files through the URLs of /query"
        )

    # Files, and what needs no token

    async def _answer_file(self, request: Request) -> web.StreamResponse:
        http = request.http
        try:
            claim = self.signer.open_url(
                http.match_info["claim"],
                http.match_info["name"],
                http.rel_url.raw_query_string,
                self.clock() * 1000,
            )
        except Forged as e:
            self.limits.count_guess(http.remote)
            raise Refusal(403, "PERMISSION_DENIED", str(e)) from None
        request.recipient = Recipient(claim.recipient, "")
        request.facts |= {"of": ".".join(claim.table), "file": claim.location}
        share, schema, name = claim.table
        config = self.config.grants.find_table(claim.recipient, share, schema, name)
        if config is None or not self.recipients.is_active(claim.recipient):
            raise Refusal(403, "PERMISSION_DENIED", "the table is no longer shared with you")
        table = self._take_table(request, config)
        with self.limits.count_download(claim.recipient):
            return await send_file(request, table, claim.location, self.config.limits.stall_s)

    async def _answer_health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _answer_metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(self.registry), headers=headers)

    async def _answer_openapi(self, _: web.Request) -> web.Response:
        return web.json_response(describe_api(self.config.public_url))
