"""Signatures: of the URLs of the server's files, and of its opaque tokens.

One key signs all; each kind of signature includes its purpose, so that none is accepted for
another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tailer.errors import ConfigError
from tailer.files.durable import make_folder, make_private, open_private

#: Clients take a file's URL for a local path unless it looks pre-signed: by a key such as this.
SIGNATURE_KEY = "X-Amz-Signature"


class Forged(Exception):
    """A signature that is not this server's, or has expired."""


@dataclass(frozen=True, slots=True)
class FileClaim:
    """The right that a file's URL grants: one file of one table, for one recipient, until a time.

    ``location`` as in :func:`tailer.delta.paths.parse_location`; ``expires_ms`` in epoch ms.
    """

    table: tuple[str, str, str]
    location: str
    recipient: str
    expires_ms: int


def load_signing_key(configured: bytes | None, state: Path) -> bytes:
    """Return the configured key, or one that is generated once and kept in the state folder.

    Raises :class:`ConfigError` if it can be neither read nor written.
    """
    if configured is not None:
        return configured
    path = state / "signing.key"
    try:
        make_folder(state, private=True)
        try:
            handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            make_private(path)
            key = path.read_bytes()
            if len(key) < 32:
                raise ConfigError(f"{path} is not a signing key; remove it") from None
            return key
        with os.fdopen(handle, "wb") as file:
            file.write(key := secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise ConfigError(f"{path} can't be used ({e.strerror})") from e
    return key


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise Forged("it is not one of ours") from None


class Signer:
    """Signs and checks with one key. ``base`` is the public URL below which files are served."""

    def __init__(self, key: bytes, base: str) -> None:
        self.base = base
        self._encoder = json.JSONEncoder(separators=(",", ":"))
        self._keys = {
            purpose: hmac.new(key, purpose.encode(), hashlib.sha256).digest()
            for purpose in ("file", "page", "refresh")
        }

    def _compute_mac(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._keys[purpose], text.encode(errors="surrogatepass"), "sha256")

    def make_token(self, purpose: str, value: Any) -> str:
        """Return an opaque token (``page`` or ``refresh``) that contains a JSON value."""
        body = _encode_base64(json.dumps(value, separators=(",", ":")).encode())
        return f"{body}.{_encode_base64(self._compute_mac(purpose, body))}"

    def open_token(self, purpose: str, token: str) -> Any:
        """Return the value in a token. Raises :class:`Forged` if it is not this server's."""
        body, _, mac = token.partition(".")
        if not hmac.compare_digest(_decode_base64(mac), self._compute_mac(purpose, body)):
            raise Forged("it is not one of ours")
        return json.loads(_decode_base64(body))

    def make_url(self, claim: FileClaim) -> str:
        """Return the URL of a file. The same claim gives the same URL."""
        values = [*claim.table, claim.location, claim.recipient, claim.expires_ms]
        body = _encode_base64(self._encoder.encode(values).encode())
        name = quote(claim.location.rsplit("/", 1)[-1], safe="")
        mac = self._compute_mac("file", f"{body}/{name}").hex()
        return f"{self.base}/files/{body}/{name}?{_make_query(claim, mac)}"

    def open_url(self, body: str, name: str, query: str, now_ms: float) -> FileClaim:
        """Return the claim in a URL. ``name`` is decoded; ``query`` is as it stands in the URL.

        Raises :class:`Forged` if any part of it was changed or added, or it has expired.
        """
        expected = self._compute_mac("file", f"{body}/{quote(name, safe='')}").hex()
        signature = query.rpartition("=")[2]
        if not hmac.compare_digest(signature.encode(errors="surrogatepass"), expected.encode()):
            raise Forged("the URL's signature is not valid")
        share, schema, table, location, recipient, expires_ms = json.loads(_decode_base64(body))
        claim = FileClaim((share, schema, table), location, recipient, expires_ms)
        if query != _make_query(claim, expected):
            raise Forged("the URL's parameters were changed")
        if now_ms >= expires_ms:
            raise Forged("the URL has expired; ask for the files again")
        return claim


def _make_query(claim: FileClaim, mac: str) -> str:
    return f"X-Amz-Expires={claim.expires_ms // 1000}&{SIGNATURE_KEY}={mac}"
