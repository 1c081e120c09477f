"""HTTP for clients of shares: which errors heal, how lines are split, and TLS."""

from __future__ import annotations

import datetime as dt
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DefaultResolver,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
)
from yarl import URL

from tailer import __version__
from tailer.errors import ConfigError, TableError, TransientError, healing, unreadable
from tailer.network.http_answers import BodyParts, make_answer_timeout
from tailer.network.reach import explain_unreached
from tailer.sharing.profile import is_here, leads_here

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, TCPConnector

    from tailer.sharing.auth import Authorization

#: Most bytes of a line; one action is a few kilobytes at most, a schema some megabytes.
LINE_BYTES_MAX = 64 * 1024 * 1024


class SharingRefused(TableError):
    """The sharing server refused a request, with an HTTP status that a retry won't change."""

    def __init__(self, what: str, status: int, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.status = status


def may_heal_status(status: int) -> bool:
    """Return whether a retry may get another answer than one of this HTTP status."""
    return status in (408, 425, 429) or (status >= 500 and status != 501)


def make_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that verifies certificates and host names, always.

    Raises :class:`ConfigError` for a file that can't be read.
    """
    try:
        with healing(f"ca_file: {ca_file} can't be read"):
            return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as e:
        raise ConfigError(f"ca_file: {ca_file} is no PEM file of certificates ({e})") from None
    except OSError as e:
        raise unreadable(f"ca_file: {ca_file}", ca_file or "", e) from None


class LeadsHere(OSError):
    """A connection to this machine that an untrusted address would cause."""

    def __init__(self) -> None:
        super().__init__("it leads to this machine or its link")


class Whereabouts:
    """Whether a profile's endpoint is on this machine: by its address, or as its name resolves.

    If it is, the URLs in its answers may be here too. A name that has once resolved elsewhere is
    not trusted again when it resolves to this machine: its owner is a stranger.
    """

    def __init__(self, endpoint: str) -> None:
        self._literal = leads_here(endpoint)
        self._resolved: bool | None = None

    @property
    def here(self) -> bool:
        """Whether it is."""
        return self._literal or bool(self._resolved)

    def record_addresses(self, addresses: Iterable[str]) -> None:
        """Record what the endpoint's name resolves to."""
        found = all(is_here(address) for address in addresses)
        self._resolved = found and self._resolved is not False


def make_noting_connector(context: ssl.SSLContext, whereabouts: Whereabouts) -> TCPConnector:
    """Return a connector for the endpoint of a profile, which may be anywhere."""

    class Noting(DefaultResolver):  # type: ignore[misc,valid-type]  # one of two classes
        async def resolve(self, *arguments: Any, **more: Any) -> Any:
            found = await super().resolve(*arguments, **more)
            whereabouts.record_addresses(entry["host"] for entry in found)
            return found

    return TCPConnector(ssl=context, resolver=Noting())


def make_guarded_connector(context: ssl.SSLContext, whereabouts: Whereabouts) -> TCPConnector:
    """Return a connector for the URLs in a server's answers.

    It never connects to this machine, unless the server is here too. It checks the address of each
    connection as it is made, because names may resolve to another address at any time.
    """

    def checked(info: Any) -> socket.socket:
        family, kind, protocol, _, address = info
        try:
            here = is_here(address[0])
        except ValueError:
            here = True  # not numeric: it would be resolved again, unchecked
        if here and not whereabouts.here:
            raise LeadsHere
        return socket.socket(family, kind, protocol)

    return TCPConnector(ssl=context, socket_factory=checked)


class Sessions:
    """The HTTP sessions of one profile. Neither has credentials."""

    def __init__(self, endpoint: str, ca_file: str | None, timeout_s: float) -> None:
        self.whereabouts = Whereabouts(endpoint)
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._api: ClientSession | None = None
        self._files: ClientSession | None = None

    def open_api_session(self) -> ClientSession:
        """Return the session for the profile's endpoints."""
        if self._api is None:
            self._api = self._make_session(make_noting_connector)
        return self._api

    def open_files_session(self) -> ClientSession:
        """Return the session for the URLs in the server's answers."""
        if self._files is None:
            self._files = self._make_session(make_guarded_connector)
        return self._files

    def _make_session(
        self, connector: Callable[[ssl.SSLContext, Whereabouts], TCPConnector]
    ) -> ClientSession:
        return ClientSession(
            connector=connector(make_tls_context(self._ca_file), self.whereabouts),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, sock_connect=30.0, sock_read=self._timeout_s),
            middlewares=[make_answer_timeout(2 * self._timeout_s)],
            headers={"User-Agent": f"delta-tailer/{__version__}"},
            auto_decompress=True,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        sessions = self._api, self._files
        self._api = self._files = None
        for session in sessions:
            if session is not None:
                await session.close()


@asynccontextmanager
async def send_request(
    sessions: Sessions,
    authorization: Authorization | None,
    method: str,
    url: str,
    *,
    what: str,
    address: str,
    headers: Mapping[str, str],
    body: object = None,
) -> AsyncIterator[ClientResponse]:
    """Send a request to a server that takes tokens, and yield its answer, whatever the status. A
    refused token is renewed once, if it can be. ``what`` and ``address``: see
    :class:`network_errors`.
    """
    session = sessions.open_api_session()
    own = dict(headers)
    with network_errors(what, address):
        for last in (False, True):
            if authorization is not None:
                own["Authorization"] = await authorization.make_header(session)
            # A redirect would send the token to any server that the answer names.
            async with session.request(
                method, URL(url, encoded=True), headers=own, json=body, allow_redirects=False
            ) as response:
                is_refused = response.status == 401 and not last
                if authorization is not None and is_refused and authorization.can_renew():
                    authorization.forget_token()
                    continue
                yield response
                return


class network_errors:  # noqa: N801  # reads as a statement: with network_errors(...)
    """Converts network errors to :class:`TransientError`.

    Only aiohttp's errors: the block may do other things, and have other errors.
    """

    def __init__(self, what: str, address: str = "the address") -> None:
        self.what = what
        self.address = address  # where it stands

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, ClientConnectorError) and isinstance(e.os_error, LeadsHere):
            raise TableError(
                f"{self.what}: a URL leads to this machine or its link, which is not followed"
            ) from None
        if isinstance(e, InvalidURL):
            raise TableError(f"{self.what}: a URL has an invalid address") from None
        if isinstance(e, ClientConnectorCertificateError | ClientSSLError):
            raise TableError(
                f"{self.what}: the sharing server's certificate can't be verified ({e})",
                hint="set the option ca_file if an authority of your own signed it",
            ) from None
        if isinstance(e, ClientError):
            reason = str(e) or type(e).__name__
            no_way = explain_unreached(self.what, e, self.address)
            raise no_way or TransientError(f"{self.what}: {reason}") from None


async def split_lines(response: ClientResponse, bytes_max: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body as they arrive. A last line without newline must be whole JSON.

    Raises :class:`TableError` for a body of more than ``bytes_max`` bytes after unpacking.
    """
    held: list[bytes] = []
    size = taken = 0
    async for chunk in BodyParts(response):
        taken += len(chunk)
        if taken > bytes_max:
            raise TableError(f"an answer of the sharing server exceeds {bytes_max} bytes")
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            yield b"".join((*held, part))
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > LINE_BYTES_MAX:
            raise TableError(
                f"a line of the sharing server's answer exceeds {LINE_BYTES_MAX} bytes"
            )
    last = b"".join(held)
    if last.strip():
        try:
            json.loads(last)
        except RecursionError:
            pass  # who reads the line refuses it
        except ValueError:
            raise TransientError("the sharing server's answer ends within a line") from None
        yield last


def format_timestamp(timestamp_ms: int) -> str:
    """Format a time as the protocol does ("Timestamp Format"): ISO 8601 in UTC, with its Z."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)
    spec = "milliseconds" if timestamp_ms % 1000 else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"
