"""URLs of S3 objects that carry their signature: Signature Version 4, in the query.

They depend on their arguments alone, so that one moment gives one URL for an object, however often
it is requested.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from tailer.store.s3.signing import scoped, signature

__all__ = ["URL_TTL_S_MAX", "Presigner"]

#: S3 accepts no signature that is valid for longer: seven days.
URL_TTL_S_MAX = 604_800


@dataclass(frozen=True, slots=True)
class Presigner:
    """Signs GET requests for the objects of one bucket.

    ``base`` is the bucket's URL, without a slash at its end; ``at`` the moment, in UTC; ``more``
    goes into every query. The repr leaves the secrets out.
    """

    base: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    at: dt.datetime
    ttl_s: int
    more: Mapping[str, str] = field(default_factory=dict)

    def url(self, key: str) -> str:
        """Return the URL at which the object can be read, in ranges too, until it expires."""
        parts = urlsplit(self.base)
        path = f"{parts.path}/{quote(key, safe='/~')}"
        scope, moment = scoped(self.region, self.at)
        query = {
            **self.more,
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.access_key}/{scope}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(min(self.ttl_s, URL_TTL_S_MAX)),
            "X-Amz-SignedHeaders": "host",
        }
        if self.token is not None:
            query["X-Amz-Security-Token"] = self.token
        encoded = "&".join(
            f"{quote(name, safe='~')}={quote(value, safe='~')}"
            for name, value in sorted(query.items())
        )
        request = f"GET\n{path}\n{encoded}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        made = signature(self.secret_key, scope, moment, request)
        return f"{parts.scheme}://{parts.netloc}{path}?{encoded}&X-Amz-Signature={made}"
