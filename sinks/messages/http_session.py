"""The session of a sink whose target answers HTTP requests, and why one had no answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp

from sinks.messages.tls import make_tls_context
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.http_answers import make_answer_timeout
from tailer.network.reach import explain_unreached


def open_session(
    sink: str, ca_file: Path | None, headers: Mapping[str, str], *, timeout_s: float,
    connections: int,
) -> aiohttp.ClientSession:  # fmt: skip
    """Return a session, without cookies, that waits ``timeout_s`` seconds for a connection, and for
    the next part of an answer."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=make_tls_context(sink, ca_file) or True, limit=connections
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=timeout_s, sock_connect=timeout_s),
        headers=headers,
        middlewares=[make_answer_timeout(timeout_s)],
    )


def explain_http_failure(where: str, e: Exception) -> TailerError:
    """Return the error of a request to ``where``, the address in the sink's option ``url``."""
    if isinstance(e, aiohttp.ClientConnectorCertificateError):
        return ConfigError(
            f"{where}: the certificate is not trusted ({e.certificate_error}); set ca_file, or "
            "mend the server"
        )
    if (no_way := explain_unreached(where, e, "the option 'url'")) is not None:
        return no_way
    return TransientError(f"{where} does not answer ({str(e) or type(e).__name__})")
