"""Profile files: a sharing server's address, and the credentials for it.

"Profile File Format" has version 1, a bearer token. Version 2 adds a ``type``: ``bearer_token``,
``oauth_client_credentials`` (a token endpoint exchanges a secret for short-lived tokens),
``oauth_jwt_bearer_private_key_jwt`` (a signature by a private key instead) or ``basic``. Secrets
appear in no repr and in no error.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailer.errors import ConfigError, healing, unreadable
from tailer.secrets import keep_secrets
from tailer.secrets.urls import UrlError, parse_url
from tailer.sharing.assertion import ALGORITHMS

#: In addition to loopback and link-local addresses: "this network", and the addresses of the
#: metadata services of clouds (AWS and Google by IPv6, Alibaba, Oracle, Azure).
_HERE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32",
        "192.0.0.192/32", "168.63.129.16/32",
    )
)  # fmt: skip
#: IPv6 addresses whose last four bytes are an IPv4 address: compatible, mapped, translated, NAT64.
_TRANSLATED = tuple(
    ipaddress.IPv6Network(text)
    for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A fixed token; ``expires`` None: never."""

    token: str = field(repr=False)
    expires: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """OAuth 2.0 client credentials (RFC 6749, section 4.4), for short-lived tokens."""

    token_endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """HTTP basic authentication."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """OAuth 2.0 with assertions that a private key signs (RFC 7523), for short-lived tokens.

    ``issuer`` is the token endpoint's name for itself, ``audience`` the use of the tokens.
    ``key_file`` is in PEM form; a relative path is beside the profile.
    """

    token_endpoint: str
    issuer: str
    client_id: str
    key_file: Path
    key_id: str | None = None
    algorithm: str = "RS256"
    audience: str | None = None
    scope: str | None = None


Credentials = BearerToken | ClientCredentials | PrivateKey | BasicAuth


@dataclass(frozen=True, slots=True)
class Profile:
    """A sharing server and the credentials for it. ``endpoint`` has no slash at its end."""

    endpoint: str
    credentials: Credentials
    source: str = "profile"


def is_shared(address: str) -> bool:
    """Return whether an address is a shared table's: ``profile.share#share.schema.table``.

    A ``#`` may be in any folder's name, so the part before it must look like a profile, or be a
    file.
    """
    file, separator, name = address.rpartition("#")
    if not separator or "/" in name:
        return False
    return file.lower().endswith(".share") or Path(file).is_file()


def parse_address(address: str) -> tuple[str, str, str, str]:
    """Split an address into (profile file, share, schema, table).

    Raises :class:`ConfigError` for another shape.
    """
    file, _, name = address.rpartition("#")
    parts = name.split(".")
    if not file or len(parts) != 3 or not all(parts):
        raise ConfigError(
            f"{address!r} is not a shared table; write it as profile.share#share.schema.table"
        )
    return file, *parts  # type: ignore[return-value]  # three, as was checked


def load_profile(file: str, *, allow_http: bool = False) -> Profile:
    """Load the profile in a file. Raises :class:`ConfigError` for the first fault in it."""
    try:
        with healing(f"the profile {file} can't be read"):
            text = Path(file).expanduser().read_text(encoding="utf-8")
    except OSError as e:
        raise unreadable(f"the profile {file}", file, e) from e
    except UnicodeDecodeError:
        raise ConfigError(f"the profile {file} is not UTF-8") from None
    return parse_profile(text, file, allow_http=allow_http)


def parse_profile(text: str, source: str = "profile", *, allow_http: bool = False) -> Profile:
    """Parse the profile in a JSON text; ``source`` names it in errors.

    Raises :class:`ConfigError`, also for an unknown version or type.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # Not the parser's message, which would quote what may be a secret.
        raise ConfigError(f"the profile {source} is not JSON") from None
    if not isinstance(document, dict):
        raise ConfigError(f"the profile {source} is not a JSON object")
    version = document.get("shareCredentialsVersion")
    kind = document.get("type")
    if version == 1 and not isinstance(version, bool) and kind in (None, "bearer_token"):
        kind = "bearer_token"
    elif version != 2:
        raise ConfigError(
            f"the profile {source} has shareCredentialsVersion {version!r}, and 1 and 2 are known "
            "here; install a newer delta-tailer"
        )
    endpoint = check_url(_require_text(document, "endpoint", source), source, allow_http=allow_http)
    credentials = _parse_credentials(kind, document, source, allow_http=allow_http)
    return Profile(endpoint.rstrip("/"), credentials, source)


def _parse_credentials(
    kind: object, document: Mapping[str, Any], source: str, *, allow_http: bool
) -> Credentials:
    match kind:
        case "bearer_token":
            expires = _parse_expiry(document.get("expirationTime"), source)
            return BearerToken(_parse_secret(document, "bearerToken", source), expires)
        case "oauth_client_credentials":
            endpoint = _require_text(document, "tokenEndpoint", source)
            return ClientCredentials(
                check_url(endpoint, source, allow_http=allow_http),
                _require_text(document, "clientId", source),
                _parse_secret(document, "clientSecret", source),
                _require_text(document, "scope", source) if document.get("scope") else None,
            )
        case "oauth_jwt_bearer_private_key_jwt":
            return _parse_private_key(document.get("auth"), source, allow_http=allow_http)
        case "basic":
            return BasicAuth(
                _require_text(document, "username", source),
                _parse_secret(document, "password", source),
            )
    raise ConfigError(
        f"the profile {source} has the type {kind!r}; known are bearer_token, "
        "oauth_client_credentials, oauth_jwt_bearer_private_key_jwt and basic"
    )


def _parse_private_key(auth: object, source: str, *, allow_http: bool) -> PrivateKey:
    if not isinstance(auth, dict):
        raise ConfigError(f"the profile {source} lacks auth, an object")
    key = auth.get("privateKey")
    if not isinstance(key, dict):
        raise ConfigError(f"the profile {source} lacks auth.privateKey, an object")
    algorithm = key.get("algorithm") or "RS256"
    if algorithm not in ALGORITHMS:
        raise ConfigError(
            f"the profile {source} has the algorithm {algorithm!r}; known are "
            f"{', '.join(ALGORITHMS)}"
        )
    file = Path(_require_text(key, "privateKeyFile", source)).expanduser()
    return PrivateKey(
        check_url(_require_text(auth, "tokenEndpoint", source), source, allow_http=allow_http),
        _require_text(auth, "issuer", source),
        _require_text(auth, "clientId", source),
        Path(source).expanduser().parent / file,
        _require_text(key, "keyId", source) if key.get("keyId") else None,
        algorithm,
        _require_text(auth, "audience", source) if auth.get("audience") else None,
        _require_text(auth, "scope", source) if auth.get("scope") else None,
    )


def _require_text(document: Mapping[str, Any], key: str, source: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the profile {source} lacks {key}, a text")
    return value


def _parse_secret(document: Mapping[str, Any], key: str, source: str) -> str:
    """Return a text for a header. A line break in it would begin another header."""
    value = _require_text(document, key, source)
    if any(c in value for c in "\r\n\x00"):
        raise ConfigError(f"{key} in the profile {source} has a line break in it")
    keep_secrets([value])
    return value


def _parse_expiry(value: object, source: str) -> dt.datetime | None:
    if value is None or value == "":
        return None
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(
            f"expirationTime in the profile {source} is not an ISO 8601 time"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def check_url(url: str, source: str, *, allow_http: bool) -> str:
    """Return the URL if tokens may be sent there: by https, or to this machine.

    Raises :class:`ConfigError` for any other, unless plain HTTP is explicitly allowed.
    """
    try:
        # Some parsers drop characters that others send.
        if not url.isprintable() or " " in url:
            raise ValueError(url)
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"{source} has an address that is not a URL") from None
    secure = parts.scheme == "https" or (
        parts.scheme == "http" and (allow_http or _is_loopback(host))
    )
    if not host or parts.username is not None or not secure:
        raise ConfigError(
            f"{source} has the address {parts.scheme}://{host}, and only https is used for "
            "shares (http with the option allow_http, or on this machine)"
        )
    with suppress(UrlError):
        parse_url(url, ("https", "http"), login=False)  # which makes a key in the query a secret
    return url


def leads_here(url: str) -> bool:
    """Return whether a URL names this machine, or an address that only its link reaches.

    Such an address is a cloud's metadata, for example. Only literal addresses and ``localhost`` are
    recognized; for other names, the same rule holds when a connection is made
    (:func:`tailer.sharing.http.make_guarded_connector`).
    """
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    # Resolvers accept circled digits and dots of other scripts for what they look like.
    host = unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return is_here(host)
    except ValueError:
        try:
            # Forms that only old resolvers accept: 127.1, 0x7f000001.
            return is_here(socket.inet_ntoa(socket.inet_aton(host)))
        except (OSError, ValueError):
            return False


def is_here(address: str) -> bool:
    """Return whether a numeric address is this machine's or its link's, or a cloud's metadata.

    Raises ValueError for a text that is not a numeric address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and not found.is_loopback:
        inner = _find_embedded_address(found)
        if inner is not None and is_here(str(inner)):
            return True
    return (
        found.is_loopback
        or found.is_link_local
        or found.is_unspecified
        or any(found in network for network in _HERE)
    )


def _find_embedded_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address; None without one."""
    if any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.sixtofour


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
