"""The session of a sink whose target answers HTTP requests, and why one had no answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
from yarl import URL

from sinks.messages.tls import find_ca_file, make_tls_context
from sinks.shared.options import find_url
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.http_answers import Oversize, make_answer_timeout
from tailer.network.reach import explain_unreached


class HttpClient(ABC):
    """A connection to the server in a sink's option ``url``, or to the load balancer before it."""

    #: The sink's type.
    kind: ClassVar[str]

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        self._url = url = find_url(self.kind, options)
        self.location = url.origin
        self._base = URL(f"{self.location}{url.path.rstrip('/')}/", encoded=True)
        self._ca_file = find_ca_file(options, folder)
        self._timeout_s: float = options["timeout_s"]
        self._http: aiohttp.ClientSession | None = None

    @abstractmethod
    def _build_headers(self) -> Mapping[str, str]:
        """Return the headers of every request, with the login."""

    async def connect(self, connections: int) -> None:
        """Get ready; nothing is sent. There are no cookies, and each wait, for a connection or the
        next part of an answer, has the sink's time-out."""
        await self.aclose()
        timeout_s = self._timeout_s
        context = make_tls_context(self.kind, self._ca_file)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context or True, limit=connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=timeout_s, sock_connect=timeout_s),
            headers=self._build_headers(),
            middlewares=[make_answer_timeout(timeout_s)],
        )

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    @asynccontextmanager
    async def _request(
        self, method: str, url: URL, data: bytes | None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Provide an answer. A failure of the network, also while it is read, is a
        :class:`TailerError`."""
        assert self._http is not None, "the client is connected"
        try:
            async with self._http.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as answer:
                yield answer
        except Oversize as e:
            raise TransientError(f"{self.location}: an answer without end") from e
        except (aiohttp.ClientError, OSError) as e:
            raise explain_http_failure(self.location, e) from e


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
