"""Signatures of requests to S3: Signature Version 4, in headers or (:mod:`.presign`) in a URL.

botocore's signer takes five times the processor time, which was a third of a small request's, and
as long to load as the decoder. The tests hold this one equal to it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

__all__ = ["Account", "Keys", "Request", "scoped", "signature", "signed"]

#: Ports that a Host header leaves out.
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Keys(Protocol):
    """What a request is signed with."""

    @property
    def access_key(self) -> str:
        """The access key's id."""

    @property
    def secret_key(self) -> str:
        """The secret key, never told."""

    @property
    def token(self) -> str | None:
        """The session token of a temporary account."""


class Account(NamedTuple):
    """Keys that do not change."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Account({self.access_key!r})"


class Request(NamedTuple):
    """A request to sign. The path and the query of ``url`` are encoded, the query is sorted."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""


def signed(keys: Keys, region: str, request: Request, at: dt.datetime) -> dict[str, str]:
    """Return the headers of a request with its signature, which is made at a time in UTC."""
    url = urlsplit(request.url)
    scope, moment = scoped(region, at)
    digest = hashlib.sha256(request.body).hexdigest()
    headers = {**request.headers, "X-Amz-Date": moment, "X-Amz-Content-SHA256": digest}
    if keys.token:
        headers["X-Amz-Security-Token"] = keys.token
    host = url.netloc.lower().removesuffix(_DEFAULT_PORTS.get(url.scheme, ""))
    plain = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    lines = sorted({"host": host, **plain}.items())
    names = ";".join(name for name, _ in lines)
    listed = "".join(f"{name}:{value}\n" for name, value in lines)
    text = f"{request.method}\n{url.path or '/'}\n{url.query}\n{listed}\n{names}\n{digest}"
    made = signature(keys.secret_key, scope, moment, text)
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
        f"Signature={made}"
    )
    return headers


def scoped(region: str, at: dt.datetime) -> tuple[str, str]:
    """Return what a signature is good for (the day, the region), and its moment in UTC."""
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    return f"{moment[:8]}/{region}/s3/aws4_request", moment


def signature(secret_key: str, scope: str, moment: str, request: str) -> str:
    """Return the signature of a request in its canonical form."""
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    return hmac.digest(_key(secret_key, scope), text.encode(), "sha256").hex()


@lru_cache(maxsize=64)
def _key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
