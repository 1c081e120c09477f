"""One request over HTTP: its parameters, its facts for the audit log, and how it is answered."""

from __future__ import annotations

import json
import math
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tailer.delta.actions import LONG_MAX
from tailer.http_server.serving import read_body, send_chunk
from tailer.share_server.query import QueryResult
from tailer.share_server.recipients import Recipient
from tailer.share_server.refusals import Refusal, invalid_parameter
from tailer.share_server.tables import SharedTable
from tailer.sharing.model import (
    CAPABILITIES_HEADER,
    JSON_TYPE,
    NDJSON_TYPE,
    TABLE_VERSION_HEADER,
    Capabilities,
)

#: Bytes of a range's answer that are held back, so that an early error becomes a status.
_HOLD_BYTES_MAX = 256 * 1024


@dataclass(slots=True)
class Request:
    """One request. ``sent`` counts the bytes of its answer; with ``streaming``, its status is sent.

    ``facts`` are collected for the audit log, ``taken`` are the tables to be given back.
    """

    http: web.Request
    endpoint: str
    recipient: Recipient = field(default_factory=lambda: Recipient("", ""))
    sent: int = 0
    streaming: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    taken: list[SharedTable] = field(default_factory=list)

    def path_part(self, key: str) -> str:
        """Return a part of the path; empty if the path has no such part."""
        return self.http.match_info.get(key, "")

    @property
    def names(self) -> tuple[str, str, str]:
        """Return the path's share, schema and table, each of which may be empty."""
        return self.path_part("share"), self.path_part("schema"), self.path_part("table")

    def parse_count(self, key: str) -> int | None:
        """Parse a version among the query's parameters."""
        text = self.http.query.get(key)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LONG_MAX:
            raise invalid_parameter(f"{key} must be a number of 0 or more")
        return int(text)

    @property
    def capabilities(self) -> Capabilities:
        """Return what the client supports, as its header says."""
        return Capabilities.from_header(self.http.headers.get(CAPABILITIES_HEADER))

    async def read_json_body(self) -> Any:
        """Parse the body as JSON; an empty one is ``{}``."""
        data = await read_body(self.http)
        if not data.strip():
            return {}
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise Refusal(400, "MALFORMED_REQUEST", f"the body is not JSON ({e})") from None

    def make_json_answer(self, document: dict[str, Any]) -> web.Response:
        """Return an answer of one JSON document."""
        body = json.dumps(document).encode()
        self.sent = len(body)
        return web.Response(body=body, headers={"Content-Type": JSON_TYPE})

    def make_refusal_answer(self, refusal: Refusal) -> web.Response:
        """Return an error answer. Raises ``ConnectionResetError`` if a status is sent already: the
        stream can only be broken, so that it does not look whole."""
        if self.streaming:
            raise ConnectionResetError(refusal.body.message)
        self.facts["error"] = refusal.body.error_code
        response = make_error_answer(refusal)
        self.sent = response.content_length or 0
        return response

    async def send_lines(self, answer: QueryResult, stall_s: float) -> web.StreamResponse:
        """Send an answer's lines as they are found, no faster than the client takes them."""
        response = web.StreamResponse()
        response.headers["Content-Type"] = NDJSON_TYPE
        response.headers[TABLE_VERSION_HEADER] = str(answer.version)
        said = Capabilities((answer.form,), frozenset(), answer.end_of_stream)
        response.headers[CAPABILITIES_HEADER] = said.to_header()
        self.facts |= {"version": answer.version, "format": answer.form}
        held = bytearray(answer.head)

        async def flush() -> None:
            if not response.prepared:
                await response.prepare(self.http)
                self.streaming = True
            await send_chunk(response, bytes(held), stall_s)
            self.sent += len(held)
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


def make_error_answer(refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    """Return a refusal as the protocol's error body, with the headers that belong to its status."""
    headers = dict(headers or {})
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(refusal.body.to_json(), status=refusal.status, headers=headers)
