"""Signatures of requests to S3, by botocore's signer (Signature Version 4).

Signing takes a third of the processor time of a small request. A poll for an object that does not
exist yet repeats the same request, and a signature is valid for minutes. The signature of a request
that found nothing is therefore reused for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

__all__ = ["Signed", "Signer"]

#: Servers accept a signature for 15 minutes by their clock, which may differ from this one.
_GOOD_S = 60.0
#: Most requests that are remembered; a feed needs one.
_KEPT_MAX = 10_000


class Signed(NamedTuple):
    """A signed request: all its headers, and the key under which its signature is remembered."""

    headers: dict[str, str]
    same: tuple[Any, ...]


class Signer:
    """Signs requests, and remembers the signatures worth reusing. ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[Any, ...], tuple[float, dict[str, str]]] = {}

    def sign(
        self,
        credentials: Any,
        region: str,
        request: tuple[str, str, bytes],
        headers: Mapping[str, str],
    ) -> Signed:
        """Sign a request, given as method, URL and body, with frozen credentials."""
        method, url, body = request
        same = (credentials, region, method, url, tuple(headers.items()))
        if not body:
            made, known = self._kept.get(same, (0.0, None))
            if known is not None and self._clock() - made < _GOOD_S:
                return Signed(known, same)
        signed = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
        S3SigV4Auth(credentials, "s3", region).add_auth(signed)
        return Signed(dict(signed.headers.items()), same)

    def found_nothing(self, signed: Signed) -> None:
        """Remember the signature of a request that is likely to be made again."""
        if signed.same in self._kept and self._kept[signed.same][1] is signed.headers:
            return
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[signed.same] = self._clock(), signed.headers

    def found(self, signed: Signed) -> None:
        """Forget the signature of a request that has its answer."""
        self._kept.pop(signed.same, None)
