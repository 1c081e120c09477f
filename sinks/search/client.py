"""Requests to a search engine, and what its answers mean."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from yarl import URL

from sinks.messages.http_session import HttpClient
from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError
from tailer.network.http_answers import read_whole_body
from tailer.secrets import hide_secrets, keep_secrets
from tailer.sink import FaultTable

#: By the type of the engine's error, or by the status of an answer that has none. What is not here
#: passes: a node is away, a disk is full, an index is read-only, a queue has no room.
FAULTS = FaultTable(
    for_good="""
        3* 401 403 404 405 407 410 security_exception index_not_found_exception
        invalid_index_name_exception resource_already_exists_exception
        index_closed_exception action_request_validation_exception invalid_alias_name_exception
        routing_missing_exception
    """,
    unclear="400 illegal_argument_exception",
    rows="413 mapper_parsing_exception document_parsing_exception strict_dynamic_mapping_exception",
)
_ANSWER_BYTES_MAX = 256 * 1024**2
_SAID_CHARACTERS = 500
_JSON = "application/json"


class SearchClient(HttpClient):
    """A connection to one engine, or to the load balancer before several nodes."""

    kind = "search"

    def _build_headers(self) -> Mapping[str, str]:
        user, password = self._url.user or "", self._url.password or ""
        if not user and not password:
            return {}
        pair = b64encode(f"{user}:{password}".encode()).decode()
        keep_secrets((pair,))
        return {"Authorization": f"Basic {pair}"}

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        absent: tuple[int, ...] = (404,),
        **query: str,
    ) -> Mapping[str, Any] | None:
        """Return an answer; None if it has a status of ``absent``. ``body`` is JSON, or bytes that
        are sent as they are."""
        status, answer = await self.send(method, path, body, **query)
        if status in absent and _is_engines(_decode_object(answer)):
            return None
        if not 200 <= status < 300:
            kind, reason = read_answer(status, answer)
            raise self.make_error(kind, reason, has_rows=isinstance(body, bytes))
        found = _decode_object(answer)
        if found is None:
            raise TransientError(f"{self.location}: an answer that is no JSON object")
        return found

    async def create_index(self, name: str, body: Any) -> None:
        """Create an index, if it is not there: the request may come twice."""
        status, answer = await self.send("PUT", quote(name, ""), body)
        if not 200 <= status < 300:
            kind, reason = read_answer(status, answer)
            if kind != "resource_already_exists_exception":
                raise self.make_error(kind, f"the index {name!r}: {reason}")

    async def send(
        self, method: str, path: str, body: Any = None, **query: str
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else _JSON
        url = self._base.join(URL(path, encoded=True)).with_query(query)
        headers = {"Content-Type": kind, "Accept": _JSON}
        async with self._request(method, url, data, headers) as answer:
            parts = await read_whole_body(answer, _ANSWER_BYTES_MAX)
            return answer.status, b"".join(parts)

    def make_error(self, code: str, what: str, *, has_rows: bool = False) -> TailerError:
        """Return our error of one of the engine's; what it says may repeat a secret. What has no
        rows is not refused for them."""
        said = f"{self.location}: {hide_secrets(' '.join(what.split()))[:_SAID_CHARACTERS]}"
        if code in ("401", "403", "security_exception"):
            return ConfigError(f"{said}; check the user, the password and the role's rights")
        if not has_rows and FAULTS.verdict(code) in ("rows", "unclear"):
            return TargetRefused(said)
        return FAULTS.error(code, said)


def _decode_object(answer: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _is_engines(found: Mapping[str, Any] | None) -> bool:
    """Return whether the engine has said that something is absent, and not a proxy that it has no
    engine just now."""
    return found is not None and ("_index" in found or isinstance(found.get("error"), Mapping))


def read_answer(status: int, answer: bytes) -> tuple[str, str]:
    """Return the type of the error in an answer, or its status, and what it says."""
    found = _decode_object(answer)
    if found is None or "error" not in found:
        return str(status), f"answered {status} ({answer.decode(errors='replace')})"
    kind, reason = read_error(found.get("error"))
    return kind or str(status), f"{kind or status}: {reason}"


def read_error(error: Any) -> tuple[str, str]:
    """Return type and reason of an error in an answer, whatever stands there."""
    if not isinstance(error, Mapping):
        return "", str(error)
    causes = error.get("caused_by")
    deeper = f" ({causes.get('reason')})" if isinstance(causes, Mapping) else ""
    return str(error.get("type", "")), f"{error.get('reason', '')}{deeper}"
