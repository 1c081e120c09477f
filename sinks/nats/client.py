"""A connection to NATS: to whom, as whom, and never in plain text where TLS is asked for."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from nats import errors
from nats.aio.client import Client

from tailer.secrets import keep_secrets
from tailer.secrets.urls import Url

PORT = 4222
_CLOSE_S = 2.0
#: What a server may say that it takes: no value of Arrow's texts has more bytes.
_PAYLOAD_BYTES = range(1024, 2**31)


class NoTls(errors.Error):
    """TLS is asked for, and the server does not offer it."""

    def __str__(self) -> str:
        return "tls:// is set, but the server offers no TLS"


class _EncryptedClient(Client):
    """A client that says who it is only after the TLS handshake.

    nats-py begins TLS where the server's greeting requires it, and continues in plain text where it
    does not, also for `tls://`; whoever stands between may have changed the greeting.
    """

    has_tls = False

    def _connect_command(self) -> bytes:
        """Return the client's first message, which has the password."""
        if not self._server_info.get("tls_required"):
            raise NoTls
        self.has_tls = True
        return super()._connect_command()


@dataclass(frozen=True, slots=True)
class Login:
    """Who connects; a user without a password is a token."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials_file: str | None = None


def new_client(servers: Sequence[Url]) -> Any:
    """Return a client for servers. Where one of them needs TLS, all do: no password goes to one
    that has none."""
    return _EncryptedClient() if _needs_tls(servers) else Client()


async def connect_client(
    client: Any,
    servers: Sequence[Url],
    login: Login,
    *,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    note: Callable[[Exception], Awaitable[None]],
) -> None:
    """Connect the client to one of its servers, once; ``note`` gets what servers say.

    Raises nats-py's errors, OSError and TimeoutError.
    """
    if login.credentials_file:
        _keep_credentials(Path(login.credentials_file))
    scheme = "tls" if _needs_tls(servers) else "nats"
    token = login.user if login.password is None else None
    if token:
        keep_secrets([token])
    await client.connect(
        [f"{scheme}://{url.host_port(PORT)}" for url in servers], name="delta-tailer",
        user=None if token else login.user, password=login.password, token=token,
        user_credentials=login.credentials_file, tls=tls, allow_reconnect=False,
        connect_timeout=timeout_s, max_reconnect_attempts=1, reconnect_time_wait=0.1,
        error_cb=note,
    )  # fmt: skip
    if not isinstance(client.max_payload, int) or client.max_payload not in _PAYLOAD_BYTES:
        raise errors.Error(f"max_payload is {client.max_payload!r}, which is no limit of events")
    if _needs_tls(servers) and not client.has_tls:
        raise NoTls  # this nats-py builds its first message elsewhere


async def close_client(client: Any) -> None:
    """Close a client, within a few seconds. After a TLS handshake that has failed, nats-py waits
    for the end of a connection that has ended already."""
    with anyio.move_on_after(_CLOSE_S), suppress(errors.Error, OSError):
        await client.close()


def _keep_credentials(file: Path) -> None:
    """Make what a file of credentials has known secrets."""
    with suppress(OSError, UnicodeDecodeError):  # nats-py says what is wrong with it
        keep_secrets(file.read_text(encoding="utf-8").split())


def _needs_tls(servers: Sequence[Url]) -> bool:
    return any(url.scheme == "tls" for url in servers)
