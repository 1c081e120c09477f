"""A front of a cloud's storage that lets requests pass by a bearer token alone, and gives out such
tokens to those who ask as the cloud's own server wants it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from yarl import URL

from tests.support.components import free_port
from tests.support.web_front import WebFront

#: Headers of one connection alone.
_HOP = ("host", "authorization", "connection", "transfer-encoding", "content-length")


@dataclass(frozen=True)
class Request:
    """A request for a token."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    form: Mapping[str, str]


@dataclass
class IdentityFront(WebFront):
    """Leads requests to the storage at ``upstream``, with ``signature`` as their query's end.

    ``asks`` says whether a path is that of tokens, and ``refusal`` why a request for one is not
    as it should be, or "". A token is said to live for ``said_s`` seconds, and does for a minute
    more; ``knows`` accepts others, that their bearers have made.
    """

    upstream: str
    signature: str = ""
    asks: Callable[[str], bool] = lambda _path: False
    refusal: Callable[[Request], str] = lambda _request: "nobody has tokens"
    knows: Callable[[str], bool] = lambda _token: False
    said_s: float = 3600.0
    tokens: dict[str, float] = field(default_factory=dict)
    refused: int = 0
    passed: int = 0
    port: int = field(default_factory=free_port)

    def issue(self) -> str:
        """A new token."""
        token = f"issued-token-{uuid.uuid4()}"
        self.tokens[token] = time.monotonic() + self.said_s + 60
        return token

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.asks(request.path):
            form = {name: str(value) for name, value in (await request.post()).items()}
            return self._token(
                Request(request.method, request.path, request.query, request.headers, form)
            )
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        good = self.tokens.get(token, 0.0) > time.monotonic() or self.knows(token)
        if kind != "Bearer" or not good:
            self.refused += 1
            return web.Response(status=401, text="<Error><Code>InvalidToken</Code></Error>")
        self.passed += 1
        raw = request.raw_path
        if self.signature:
            raw += ("&" if "?" in raw else "?") + self.signature
        headers = {name: value for name, value in request.headers.items()
                   if name.lower() not in _HOP}  # fmt: skip
        async with self.session.request(
            request.method, URL(f"{self.upstream}{raw}", encoded=True),
            data=await request.read() or None, headers=headers,
        ) as answer:  # fmt: skip
            kept = {name: value for name, value in answer.headers.items()
                    if name.lower() not in _HOP}  # fmt: skip
            if request.method == "HEAD":  # its length is the object's
                kept["Content-Length"] = answer.headers["Content-Length"]
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    def _token(self, request: Request) -> web.Response:
        if why := self.refusal(request):
            error = {"error": "invalid_client", "error_description": why}
            return web.json_response(error, status=401)
        end_s = int(time.time() + self.said_s)
        return web.json_response({
            "access_token": self.issue(), "token_type": "Bearer",
            "expires_in": int(self.said_s), "expires_on": str(end_s),
        })  # fmt: skip
