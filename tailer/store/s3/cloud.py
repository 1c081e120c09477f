"""The containers of S3 by obstore: region, server, authorities and account of each bucket."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tailer.store.budget import Budget
from tailer.store.objects.options import CloudOptions, Credentials, make_container
from tailer.store.objects.place import Place
from tailer.store.s3.environment import S3Environment, make_unusable_error
from tailer.store.s3.options import S3Options

#: How a server says that a bucket is in another region.
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})<")
#: Answers of such a server that name no region, as to HEAD, whose answer has no body.
_MOVED = re.compile(r"redirect without LOCATION|status code: (?:30[17]|400[^<]*$)")
#: The regions that servers have named, by options and bucket.
_REGIONS: dict[tuple[S3Options, str], str] = {}
#: The AWS variables of the environment: containers made under others are not reused.
_Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class S3Cloud(CloudOptions):
    """S3 by its options. What they leave open is looked up once for each bucket."""

    options: S3Options

    @property
    def requests_max(self) -> int:  # type: ignore[override]  # it is read only
        return self.options.requests_max

    def open_container(self, place: Place, credentials: Credentials | None = None) -> Any:
        region = self._find_region(place)
        return _open_shared_container(
            self.options, place.container, region, credentials, _list_variables()
        )

    def find_credentials(self) -> Credentials | None:
        return (
            None if self.options.anonymous else _find_credentials(self.options, _list_variables())
        )

    async def open_signer(self, place: Place, credentials: Credentials | None) -> Any | None:
        """See :class:`CloudOptions`: with the keys of this moment."""
        if credentials is None:
            return None
        keys = await credentials()
        return _open_container(
            self.options, place.container, self._find_region(place), lambda: keys
        )

    async def has_moved(self, place: Place, error: Exception) -> bool:
        """See :class:`CloudOptions`: to another region, which is asked for if it is not said."""
        text = str(error).partition("Debug source")[0]
        found = _REGION.search(text)
        if found is None and _MOVED.search(text.strip()) is None:
            return False
        before = self._find_region(place)
        environment = S3Environment(self.options)
        region = found[1] if found else await environment.ask_region(place.container, before)
        if region:  # perhaps another request has learned it meanwhile
            _REGIONS[self.options, place.container] = region
        return bool(region)

    def make_budget(self) -> Budget:
        return Budget(self.options.memory_bytes_max // 4, _make_total_budget(self.options))

    def describe_account(self, place: Place) -> str:  # noqa: ARG002 - a bucket does not say it
        return ""

    def _find_region(self, place: Place) -> str:
        return _REGIONS.get((self.options, place.container)) or _find_default_region(
            self.options, _list_variables()
        )


def _list_variables() -> _Variables:
    return tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))


@lru_cache(maxsize=256)
def _find_credentials(options: S3Options, _: _Variables) -> Credentials:
    return S3Environment(options).find_credentials()


@lru_cache(maxsize=256)
def _find_default_region(options: S3Options, _: _Variables) -> str:
    return S3Environment(options).find_region()


class _RegionServers(NamedTuple):
    """A region's servers, and the authorities to trust besides the known ones."""

    url: str
    authorities: bytes | None


@lru_cache(maxsize=256)
def _find_server(options: S3Options, region: str, _: _Variables) -> _RegionServers:
    environment = S3Environment(options)
    endpoint = environment.find_endpoint(region)
    if endpoint.startswith("http:"):
        return _RegionServers(endpoint, None)
    try:
        own = environment.find_own_authorities()
        return _RegionServers(endpoint, Path(own).read_bytes() if own else None)
    except OSError as e:
        raise make_unusable_error(e) from e


@lru_cache(maxsize=256)
def _make_total_budget(options: S3Options) -> Budget:
    return Budget(options.memory_bytes_max)


@lru_cache(maxsize=256)
def _open_shared_container(
    options: S3Options, bucket: str, region: str, credentials: Credentials | None, _: _Variables
) -> Any:
    return _open_container(options, bucket, region, credentials)


def _open_container(options: S3Options, bucket: str, region: str, credentials: Any) -> Any:
    from obstore.store import S3Store

    endpoint, authorities = _find_server(options, region, _list_variables())
    base = urlsplit(endpoint.rstrip("/"))
    path_style = options.path_style
    if path_style is None:
        path_style = ".amazonaws.com" not in (base.hostname or "") or "." in bucket
    if not path_style:
        endpoint = urlunsplit(base._replace(netloc=f"{bucket}.{base.netloc}"))
    config = {
        # All that obstore would otherwise take from the environment.
        "aws_endpoint_url_s3": endpoint.rstrip("/"),
        "region": region,
        "virtual_hosted_style_request": not path_style,
        "skip_signature": options.anonymous,
        "request_payer": options.requester_pays,
        "conditional_put": "etag",
        "disable_bulk_delete": True,
        "server_side_encryption": options.server_side_encryption,
        "sse_kms_key_id": options.sse_kms_key_id,
        "sse_bucket_key_enabled": options.sse_bucket_key_enabled or None,
    }
    more = {"root_certificate": authorities} if authorities else {}
    return make_container(S3Store, "S3", bucket, config, credentials, endpoint, **more)
