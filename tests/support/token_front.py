"""A front of a catalog's server that checks no tokens: it does, and knows when each ends. It sells
tokens to an OAuth client, and may change what the catalog vends."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from yarl import URL

from tests.support.components import free_port
from tests.support.web_front import WebFront

TOKEN_PATH = "/oidc/v1/token"


class TokenFront(WebFront):
    """Leads requests to the server at ``upstream``. ``tokens`` have the moment in which each ends,
    by the steady clock; what is sold lives for ``life_s`` seconds and is said to live for
    ``said_s``. ``change`` alters each credential that is vended, of which there were ``vended``;
    ``refusal`` is the status in place of one. Tables of the names in ``forbidden`` are refused."""

    def __init__(self, upstream: str, token: str, client: tuple[str, str]) -> None:
        self.upstream, self.upstream_token = upstream, token
        self.client = client
        self.tokens = {token: float("inf")}
        self.life_s, self.said_s = 3600.0, 3600.0
        self.sold = self.refused = 0
        self.vended: list[dict[str, Any]] = []
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = dict
        self.refusal = 0
        self.forbidden: set[str] = set()
        self.port = free_port()

    def end_tokens(self) -> None:
        """Have all tokens end now."""
        self.tokens = dict.fromkeys(self.tokens, time.monotonic())

    async def answer(self, request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization", "")
        if request.path == TOKEN_PATH:
            return self._sell(await request.post(), authorization)
        kind, _, token = authorization.partition(" ")
        if kind != "Bearer" or self.tokens.get(token, 0.0) <= time.monotonic():
            self.refused += 1
            return self._refuse(request.path)
        headers = {"Authorization": f"Bearer {self.upstream_token}"}
        for name in ("Accept", "Content-Type"):
            if name in request.headers:
                headers[name] = request.headers[name]
        vends = request.path.endswith("/credentials")
        if vends and self.refusal:
            return self._refuse(request.path, self.refusal, "no storage credential")
        if request.path.rpartition("/tables/")[2] in self.forbidden:
            return self._refuse(request.path, 403, "no SELECT on it")
        url = f"{self.upstream}{request.raw_path}"
        async with self.session.request(
            request.method, URL(url, encoded=True), data=await request.read(), headers=headers
        ) as answer:
            kept = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            body = await answer.read()
            if vends and answer.status == 200:
                body = self._changed(body)
            return web.Response(status=answer.status, body=body, headers=kept)

    def _changed(self, body: bytes) -> bytes:
        known = "storage-credentials"
        vended = [self.change(one) for one in json.loads(body)[known]]
        self.vended += vended
        return json.dumps({known: vended}).encode()

    def _refuse(
        self, path: str, status: int = 401, message: str = "the token is not known or has ended"
    ) -> web.Response:
        kind = "NotAuthorizedException" if status == 401 else "PermissionDeniedException"
        error = {"message": message, "type": kind, "code": status}
        old = {"error_code": "UNAUTHENTICATED", "message": message}
        return web.json_response({"error": error} if "/delta/" in path else old, status=status)

    def _sell(self, form: object, authorization: str) -> web.Response:
        wanted = {"grant_type": "client_credentials", "scope": "all-apis"}
        fields = dict(form) if isinstance(form, Mapping) else {}
        account = base64.b64encode(":".join(self.client).encode()).decode()
        if authorization != f"Basic {account}" or fields != wanted:
            return web.json_response({"error": "invalid_client"}, status=401)
        token = f"sold-token-{uuid.uuid4()}"
        self.tokens[token] = time.monotonic() + self.life_s
        self.sold += 1
        return web.json_response(
            {"access_token": token, "token_type": "Bearer", "expires_in": self.said_s}
        )
