"""The Authorization header of every request to a sharing server; it renews tokens."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from aiohttp import ClientError

from tailer.errors import ConfigError, TransientError
from tailer.network.http_answers import read_at_most
from tailer.secrets import forget_secrets, keep_pair, keep_secrets
from tailer.sharing.assertion import sign_assertion
from tailer.sharing.profile import BasicAuth, BearerToken, ClientCredentials, PrivateKey, Profile

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: How long before its end a token is renewed; a shorter-lived one is renewed at half its life.
_RENEW_BEFORE_S = 600.0
_TOKENS_KEPT = 4
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Authorization:
    """Makes the header, and obtains a new OAuth token before the old one expires.

    ``clock`` gives epoch seconds.
    """

    def __init__(self, profile: Profile, clock: Callable[[], float]) -> None:
        self._profile = profile
        self._clock = clock
        self._lock = anyio.Lock()
        self._token: str | None = None
        self._tokens: deque[str] = deque()  # the newest, which may still be valid
        self._renew_at = 0.0

    def __repr__(self) -> str:
        return f"Authorization({self._profile!r})"

    async def make_header(self, session: ClientSession) -> str:
        """Return the header's value.

        Raises :class:`ConfigError` for a token that has expired or that the token endpoint
        refuses, :class:`TransientError` while that endpoint does not answer.
        """
        credentials = self._profile.credentials
        match credentials:
            case BearerToken(token, expires):
                if expires is not None and self._clock() >= expires.timestamp():
                    raise ConfigError(
                        f"the token in the profile {self._profile.source} expired at "
                        f"{expires.isoformat()}; ask the provider for a new profile"
                    )
                return f"Bearer {token}"
            case BasicAuth(username, password):
                return "Basic " + _encode_basic(username, password)
            case ClientCredentials() | PrivateKey():
                async with self._lock:
                    if self._token is None or self._clock() >= self._renew_at:
                        await self._obtain_token(session, credentials)
                    return f"Bearer {self._token}"

    def can_renew(self) -> bool:
        """Return whether a new token can be obtained at once when the server refuses this one."""
        return isinstance(self._profile.credentials, ClientCredentials | PrivateKey)

    def forget_token(self) -> None:
        """Forget the token, so that the next request obtains a new one."""
        self._token = None

    def find_expiry(self) -> dt.datetime | None:
        """Return when the profile's token expires, if the profile says so."""
        credentials = self._profile.credentials
        return credentials.expires if isinstance(credentials, BearerToken) else None

    def _keep_token(self, token: str) -> None:
        """Make a token a known secret, and forget those that are long over."""
        self._tokens.append(token)
        keep_secrets([token])
        if len(self._tokens) > _TOKENS_KEPT:
            forget_secrets([self._tokens.popleft()])

    async def _make_token_request(
        self, credentials: ClientCredentials | PrivateKey
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form and the headers of a token request."""
        headers = {"Accept": "application/json"}
        if isinstance(credentials, PrivateKey):
            claims = {
                "aud": credentials.issuer,
                "iss": credentials.client_id,
                "scope": credentials.scope,
                "resource": credentials.audience,
            }
            assertion = await anyio.to_thread.run_sync(
                sign_assertion,
                credentials.key_file,
                credentials.algorithm,
                credentials.key_id,
                {key: value for key, value in claims.items() if value is not None},
                self._clock(),
            )
            return {"grant_type": _JWT_BEARER, "assertion": assertion}, headers
        form = {"grant_type": "client_credentials"}
        if credentials.scope:
            form["scope"] = credentials.scope
        secret = _encode_basic(credentials.client_id, credentials.client_secret)
        return form, {**headers, "Authorization": "Basic " + secret}

    async def _obtain_token(
        self, session: ClientSession, credentials: ClientCredentials | PrivateKey
    ) -> None:
        form, headers = await self._make_token_request(credentials)
        where = f"the token endpoint {credentials.token_endpoint}"
        try:
            async with session.post(
                credentials.token_endpoint, data=form, headers=headers, allow_redirects=False
            ) as response:
                body = await read_at_most(response, 1024 * 1024)
                status = response.status
        except (ClientError, TimeoutError, OSError) as e:
            raise TransientError(f"{where} can't be reached ({type(e).__name__})") from None
        if status == 429 or status >= 500:
            raise TransientError(f"{where} answered {status}")
        if status != 200:
            raise ConfigError(
                f"{where} refused the client {credentials.client_id!r} with status {status}; "
                f"check the profile {self._profile.source}"
            )
        try:
            document = json.loads(body)
            token, life = document["access_token"], float(document.get("expires_in") or 0)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{where} gave an answer without access_token") from None
        if not isinstance(token, str) or any(c in token for c in "\r\n\x00"):
            raise ConfigError(f"{where} gave an access_token that is not valid")
        self._keep_token(token)
        self._token = token
        self._renew_at = self._clock() + max(life - _RENEW_BEFORE_S, life / 2)


def _encode_basic(user: str, secret: str) -> str:
    keep_pair(user, secret)
    return base64.b64encode(f"{user}:{secret}".encode()).decode()
