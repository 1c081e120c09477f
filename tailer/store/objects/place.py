"""Addresses of objects on S3, Azure and Google storage, in all spellings that their users write."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from tailer.errors import ConfigError

Cloud = Literal["s3", "azure", "gcs"]

#: Hosts of Azure's storage, without the account: all of its clouds, and Fabric's OneLake.
_AZURE_HOST = (
    r"(?i)(?P<account>[^./]+)\.(?P<service>blob|dfs)\."
    r"(?P<domain>core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|fabric\.microsoft\.com)"
)
_PUBLIC = "core.windows.net"


class Place(Struct, frozen=True):
    """A container (elsewhere than on Azure: bucket) and a key in it; the account of Azure if the
    address says it.

    ``domain`` is that of the account's host: ``core.windows.net``, another cloud's or Fabric's.
    """

    cloud: Cloud
    container: str
    key: str
    account: str | None = None
    domain: str | None = None

    def contains_place(self, other: Place) -> bool:
        """Return whether another place lies at this one or below it."""
        same = (self.container, self.account or other.account) == (
            other.container,
            other.account or self.account,
        )
        below = not self.key or other.key == self.key or other.key.startswith(f"{self.key}/")
        return same and below and ".." not in other.key.split("/")

    @property
    def endpoint(self) -> str | None:
        """Return the account's URL if it is not of Azure's public cloud; None if it is."""
        if self.account is None or self.domain in (None, _PUBLIC):
            return None
        return f"https://{self.account}.blob.{self.domain}"


def s3_place(address: str) -> Place | None:
    """Return the place of ``s3://bucket/key``, also as s3a and s3n; None for another address."""
    return _parse_bucket_place("s3", address, ("s3", "s3a", "s3n"))


def gcs_place(address: str) -> Place | None:
    """Return the place of ``gs://bucket/key``; None for an address of another kind."""
    return _parse_bucket_place("gcs", address, ("gs", "gcs"))


def _parse_bucket_place(cloud: Cloud, address: str, schemes: tuple[str, ...]) -> Place | None:
    scheme, separator, rest = address.partition("://")
    if not separator or scheme.lower() not in schemes:
        return None
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise ConfigError(f"{address!r} names no bucket: {schemes[0]}://bucket/key does")
    return Place(cloud, bucket, key.strip("/"))


def azure_place(address: str) -> Place | None:
    """Return the place of an address of Azure's storage; None for an address of another kind.

    ``abfss://container@account.dfs.core.windows.net/key`` (abfs, wasbs and wasb too),
    ``az://container/key`` (azure, adl, and abfss without a host), and
    ``https://account.blob.core.windows.net/container/key``, whose key is encoded. OneLake has the
    same forms below ``onelake.dfs.fabric.microsoft.com``.
    """
    scheme, separator, rest = address.partition("://")
    scheme = scheme.lower()
    if not separator:
        return None
    if scheme == "https":
        return _parse_url_place(rest)
    if scheme not in ("abfss", "abfs", "wasbs", "wasb", "az", "azure", "adl"):
        return None
    where, _, key = rest.partition("/")
    container, at, host = where.partition("@")
    if not container:
        raise ConfigError(f"{address!r} names no container: az://container/key does")
    if not at:
        return Place("azure", container, key.strip("/"))
    found = re.fullmatch(_AZURE_HOST, host)
    if found is None:
        raise ConfigError(
            f"{address!r} names no host of Azure's storage: "
            "abfss://container@account.dfs.core.windows.net/key does"
        )
    account, domain = found["account"].lower(), found["domain"].lower()
    return Place("azure", container, key.strip("/"), account, domain)


def is_azure_url(address: str) -> bool:
    """Return whether this is ``https://`` and a host of Azure's storage."""
    scheme, _, rest = address.partition("://")
    return (
        scheme.lower() == "https" and re.fullmatch(_AZURE_HOST, rest.partition("/")[0]) is not None
    )


def _parse_url_place(rest: str) -> Place | None:
    host, _, path = rest.partition("/")
    found = re.fullmatch(_AZURE_HOST, host)
    if found is None:
        return None
    container, _, key = unquote(path).partition("/")
    if not container:
        raise ConfigError(f"https://{rest} names no container: https://{host}/container/key does")
    return Place(
        "azure", container, key.strip("/"), found["account"].lower(), found["domain"].lower()
    )
