"""URLs of servers, parsed in one place: no error shows any part of one.

A user or password in a URL is percent-encoded (RFC 3986, section 3.2.1). A ``/``, ``?`` or ``#`` as
it is would end the server's name there, and the rest of a password would be taken for a path, so a
URL with such a password is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from msgspec import Struct

from tailer.secrets import keep_pair, keep_secrets

_AUTHORITY = r"[^/?#]*"
_HOST = r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^:\[\] ]*))(?::(?P<port>[^:]*))?"
_BAD_ESCAPE = r"%(?![0-9A-Fa-f]{2})"
_REST = r"(?s)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?"
_SENSITIVE_NAMES = r"(?i)pass|token|key|secret|sig|auth"
_ENCODE = (
    "its user or password has characters that end it: write % as %25, / as %2F, ? as %3F, # as "
    "%23, @ as %40 and : as %3A, or leave both out and set the options 'user' and 'password'"
)


class UrlError(ValueError):
    """A text is not the URL that was asked for. The message says why, and shows no part of it."""


class Url(Struct, frozen=True):
    """A URL. ``user`` and ``password`` are decoded, and None where there is none; ``path`` and
    ``query`` are as they are written. ``host`` has no brackets, and may be empty."""

    scheme: str
    host: str
    port: int | None = None
    user: str | None = None
    password: str | None = None
    path: str = ""
    query: str = ""

    def __repr__(self) -> str:
        """Return where it leads, without what may be a secret."""
        return f"Url({self.scheme!r}, {self.host!r}, {self.port!r})"

    @property
    def server(self) -> str:
        """The host as it is written before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def origin(self) -> str:
        """Scheme, host and port, without what may be a secret."""
        return f"{self.scheme}://{self.server}" + (f":{self.port}" if self.port else "")

    def host_port(self, port: int) -> str:
        """Return host and port for messages; ``port`` is the scheme's own."""
        return f"{self.server}:{self.port or port}"

    def to_text(self) -> str:
        """Return the URL with its user and password encoded: a secret."""
        login = "" if self.user is None and self.password is None else quote(self.user or "", "")
        login += "" if self.password is None else f":{quote(self.password, '')}"
        login += "" if self.user is None and self.password is None else "@"
        port = "" if self.port is None else f":{self.port}"
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{login}{self.server}{port}{self.path}{query}"


def parse_url(
    text: str, schemes: Collection[str], *, login: bool = True, needs_host: bool = True
) -> Url:
    """Return the URL in a text. Its password becomes a known secret, and so do passwords, keys and
    the like in its query.

    Raises :class:`UrlError` for another scheme, a port that is none, characters that must be
    encoded, a user in it without ``login``, and a missing host unless it is not needed.
    """
    scheme, user, password, rest = split_url(text, schemes, login=login)
    authority = re.match(_AUTHORITY, rest)
    assert authority is not None
    found = re.fullmatch(_HOST, authority[0])
    if found is None:
        raise UrlError("its host is not a name or an address")
    host = found["v6"] or found["name"] or ""
    if needs_host and not host:
        raise UrlError("it names no host")
    port = found["port"] or None
    if port is not None and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise UrlError("its port is not a number from 1 to 65535")
    parts = re.fullmatch(_REST, rest[authority.end() :])
    assert parts is not None
    given = parse_qsl(parts["query"] or "", keep_blank_values=True)
    keep_secrets(value for name, value in given if re.search(_SENSITIVE_NAMES, name))
    return Url(
        scheme, host, None if port is None else int(port), user, password,
        parts["path"], parts["query"] or "",
    )  # fmt: skip


class SplitUrl(NamedTuple):
    """A URL with its login apart; ``rest`` is all after it, as written: hosts, path and query."""

    scheme: str
    user: str | None
    password: str | None
    rest: str


def split_url(text: str, schemes: Collection[str], *, login: bool = True) -> SplitUrl:
    """Split a URL after its login, which is decoded. Raises :class:`UrlError`."""
    if not text.isprintable() or text != text.strip():
        raise UrlError("it has a line break in it, or a blank at an end")
    scheme, mark, rest = text.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in schemes:
        raise UrlError(f"it does not begin with {' or '.join(f'{each}://' for each in schemes)}")
    found = re.match(_AUTHORITY, rest)
    assert found is not None
    authority, rest = found[0], rest[found.end() :]
    if login and "@" in rest:
        raise UrlError(_ENCODE)
    info, at, hosts = authority.rpartition("@")
    if not at:
        return SplitUrl(scheme, None, None, hosts + rest)
    if not login:
        raise UrlError("it has a user in it, which belongs into other options")
    user, colon, password = info.partition(":")
    user, password = _decode_part(user), _decode_part(password)
    if colon:
        keep_pair(user, password)
    return SplitUrl(scheme, user, password if colon else None, hosts + rest)


def _decode_part(text: str) -> str:
    if re.search(_BAD_ESCAPE, text):
        raise UrlError(_ENCODE)
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UrlError("its user or password is not UTF-8") from None
