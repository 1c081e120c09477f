"""How a bucket is reached: the options of the S3 store, and its addresses.

What is not set here comes from where the AWS tools take it: environment, profile, instance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from tailer.errors import ConfigError, meant

__all__ = ["S3Options", "is_http_address", "parse_s3_address"]

_ADDRESS = re.compile(r"(?:s3|s3a|s3n)://([^/]+)/*(.*)", re.IGNORECASE | re.DOTALL)
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: Whoever reads a message must not find these values in it.
_ACCOUNT = ("access_key_id", "secret_access_key", "session_token")
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class S3Options:
    """The options of the S3 store; stores with equal options share one pool of connections.

    ``path_style`` None: virtual hosts on AWS, paths elsewhere. ``max_concurrency`` bounds the
    requests at a time of all stores with these options, ``table_concurrency`` those of one store.
    Times are in seconds; a request is made at most ``max_attempts`` times. An account that is given
    here (``access_key_id`` with ``secret_access_key``, for a temporary one ``session_token`` too)
    goes before any other, and is not shown.
    ``read_ahead_bytes_max`` bounds what is kept of one open data file, and once more what is
    fetched of one table before its turn; ``total_ahead_bytes_max`` the latter for all stores with
    these options together, 0: nothing is.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None
    anonymous: bool = False
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    requester_pays: bool = False
    max_concurrency: int = 64
    table_concurrency: int = 8
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 20.0
    max_attempts: int = 4
    read_ahead_bytes_max: int = 32 * MIB
    total_ahead_bytes_max: int = 256 * MIB

    def __post_init__(self) -> None:
        if self.endpoint_url is not None and not is_http_address(self.endpoint_url):
            raise ConfigError(
                f"endpoint_url is {self.endpoint_url!r}, and must be http://host or https://host"
            )
        for name in ("max_concurrency", "table_concurrency", "max_attempts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, and must be at least 1")
        if self.total_ahead_bytes_max < 0:
            raise ConfigError(
                f"total_ahead_bytes_max is {self.total_ahead_bytes_max}, and must be 0 or greater"
            )
        for name in ("connect_timeout_s", "read_timeout_s", "read_ahead_bytes_max"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, and must be greater than 0")
        self._check_account()

    def _check_account(self) -> None:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("access_key_id and secret_access_key go together: give both or none")
        if self.access_key_id is None:
            if self.session_token is not None:
                raise ConfigError("session_token belongs to an access_key_id, and there is none")
        elif self.anonymous or self.profile is not None:
            other = "anonymous" if self.anonymous else "profile"
            raise ConfigError(f"access_key_id and {other} exclude each other; give one")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> S3Options:
        """The options of a mapping, whose values may be text (as the command line gives them).

        Raises :class:`ConfigError`, naming the key, for one that is not known or of another type.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        for key in options:
            if key not in kinds:
                known = ", ".join(sorted(kinds))
                raise ConfigError(
                    f"{key} is not an option of the S3 store{_ours(key) or meant(key, kinds)}; "
                    f"known are {known}"
                )
        return cls(**{key: _typed(key, value, kinds[key]) for key, value in options.items()})


#: What object_store (and so deltalake) calls our options, without "aws_" and in small letters.
_ELSEWHERE = {
    "endpoint": "endpoint_url",
    "endpoint_url_s3": "endpoint_url",
    "default_region": "region",
    "token": "session_token",
    "skip_signature": "anonymous",
    "request_payer": "requester_pays",
    "virtual_hosted_style_request": "path_style (which says the opposite)",
    "connect_timeout": "connect_timeout_s",
    "timeout": "read_timeout_s",
    "max_retries": "max_attempts",
    "ca_bundle_path": "ca_bundle",
}
_NOT_NEEDED = {
    "allow_http": "an endpoint_url with http:// is enough",
    "allow_invalid_certificates": "name the server's authority as ca_bundle",
    "s3_allow_unsafe_rename": "it is for writers, and this store only reads",
    "s3_locking_provider": "it is for writers, and this store only reads",
    "conditional_put": "it is for writers, and this store only reads",
    "copy_if_not_exists": "it is for writers, and this store only reads",
    "bucket": "the bucket is that of the table's address",
    "bucket_name": "the bucket is that of the table's address",
}


def _ours(key: str) -> str:
    """For a message about another tool's option: what it is called here, if anything."""
    name = key.lower().removeprefix("aws_")
    if name in _NOT_NEEDED:
        return f" ({_NOT_NEEDED[name]}: leave it out)"
    ours = _ELSEWHERE.get(name, name)
    known = ours.partition(" ")[0] in {field.name for field in fields(S3Options)}
    return f" (here it is {ours})" if known else ""


def is_http_address(address: str) -> bool:
    """Whether an address is ``http://host`` or ``https://host``, with or without port and path."""
    try:
        url = urlsplit(address)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # of a port or an IPv6 address that is none
        return False


def _typed(key: str, value: Any, kind: str) -> Any:
    wanted = kind.partition(" ")[0]
    is_bool = isinstance(value, bool)
    try:
        match wanted:
            case "str" if isinstance(value, str):
                return value or None
            case "bool" if is_bool or isinstance(value, str):
                return value if is_bool else _WORDS[value.lower()]
            case "int" if isinstance(value, str | int) and not is_bool:
                return int(value)
            case "float" if isinstance(value, str | int | float) and not is_bool:
                return float(value)
    except (KeyError, ValueError):
        pass
    told = f"{key} is {value!r}, and" if key not in _ACCOUNT else key
    raise ConfigError(f"{told} must be a {wanted}")


def parse_s3_address(address: str) -> tuple[str, str] | None:
    """(bucket, key) of ``s3://bucket/key``, also as s3a and s3n; None for another address.

    The key is plain text, without a slash at its end.
    """
    match = _ADDRESS.fullmatch(address)
    return None if match is None else (match[1], match[2].rstrip("/"))
