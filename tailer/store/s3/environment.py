"""What a client knows before its first request: region, servers, authorities, account.

They come from the options, else from where every AWS tool looks: environment, profile, instance.
aiobotocore looks there. To load it takes a third of the time until the first request, so it is
asked only for what options and environment do not say by themselves.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from tailer.errors import ConfigError, TailerError, TransientError
from tailer.secrets import forget_secrets, keep_secrets
from tailer.secrets.urls import UrlError, parse_url
from tailer.store.s3.options import S3Options
from tailer.store.s3.signing import Account, Keys
from tailer.store.vended import Vendor

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

__all__ = ["VENDED", "KeySource", "S3Environment", "unusable"]

#: What a catalog must vend.
VENDED = ("s3.access-key-id", "s3.secret-access-key")
_DEFAULT_REGION = "us-east-1"


class KeySource(Protocol):
    """An account, whose keys may change with time."""

    async def keys(self) -> Keys:
        """Return the keys that are good now. Raises the errors of :func:`unusable`."""


class S3Environment:
    """The answers for one set of options, each looked up when it is asked for.

    The methods raise :class:`TransientError` for what may heal, else :class:`ConfigError`.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options

    def region(self) -> str:
        """Return the region of requests, until a server names a bucket's."""
        named = self._options.region or os.environ.get("AWS_DEFAULT_REGION")
        # The last variable is one that other AWS tools read, and botocore does not.
        return named or self._said("region") or os.environ.get("AWS_REGION") or _DEFAULT_REGION

    async def endpoint(self, region: str) -> str:
        """Return the URL of a region's servers."""
        if self._options.endpoint_url is not None:
            return self._options.endpoint_url
        with _named():
            from aiobotocore.config import AioConfig

            unsigned = AioConfig(signature_version="s3v4")
            made = self._session.create_client("s3", region_name=region, config=unsigned)
            async with made as client:
                url: str = client.meta.endpoint_url
        try:
            parse_url(url, ("http", "https"), login=False)
        except UrlError as e:
            raise ConfigError(
                "the address of the S3 servers in AWS_ENDPOINT_URL, or in the profile, must be "
                f"http://host or https://host: {e}"
            ) from None
        return url

    def authorities(self) -> str:
        """Return the PEM file of the authorities to trust."""
        own = self._options.ca_file or os.environ.get("AWS_CA_BUNDLE") or self._said("ca_bundle")
        if own:
            return own
        from botocore.httpsession import where

        path: str = where()
        return path

    async def account(self) -> KeySource:
        """Return the account to sign with. Raises :class:`ConfigError` if there is none."""
        own = self._options
        if own.vendor is not None:
            return _Vended(own.vendor)
        if own.access_key_id is not None and own.secret_access_key is not None:
            return _Fixed(Account(own.access_key_id, own.secret_access_key, own.session_token))
        account = None if own.profile else _told()
        if account is not None:
            return _Fixed(account)
        with _named():
            credentials = await self._session.get_credentials()
        if credentials is None:
            raise ConfigError(
                f"there are no credentials for S3: {_CREDENTIALS}; for a public bucket, "
                "anonymous = true"
            )
        return _Found(credentials)

    def _said(self, name: str) -> str | None:
        """Return a variable of the session's."""
        with _named():
            value: str | None = self._session.get_config_variable(name)
            return value

    @cached_property
    def _session(self) -> AioSession:
        from aiobotocore.session import AioSession

        return AioSession(profile=self._options.profile)


class _Fixed:
    """Keys that options or environment name."""

    def __init__(self, account: Account) -> None:
        keep_secrets((account.secret_key, account.token or ""))
        self._account = account

    async def keys(self) -> Keys:
        return self._account


class _Vended:
    """Keys that a catalog vends, and renews."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor

    async def keys(self) -> Keys:
        values = await self._vendor.values(*VENDED)
        access, secret = (values[name] for name in VENDED)
        return Account(access, secret, values.get("s3.session-token"))


class _Found:
    """An account that the session has found, and renews."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._secrets = ("", "")  # those that were in use last

    async def keys(self) -> Keys:
        with _named():
            frozen: Keys = await self._credentials.get_frozen_credentials()
        secrets = frozen.secret_key, frozen.token or ""
        if secrets != self._secrets:
            forget_secrets(self._secrets)
            keep_secrets(secrets)
            self._secrets = secrets
        return frozen


def _told() -> Account | None:
    """Return the account in the environment, if that is all there is to know of it: neither a
    profile stands before it, nor does it end."""
    variable = os.environ.get
    if (
        variable("AWS_PROFILE")
        or variable("AWS_DEFAULT_PROFILE")
        or variable("AWS_CREDENTIAL_EXPIRATION")
    ):
        return None
    access, secret = variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        return None
    return Account(access, secret, variable("AWS_SECURITY_TOKEN") or variable("AWS_SESSION_TOKEN"))


@contextmanager
def _named() -> Iterator[None]:
    """Raise botocore's errors as ours."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, OSError) as e:
        raise unusable(e) from e


_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"


def unusable(e: Exception, service: str = "S3") -> TailerError:
    """Return the error for a session that can't be opened or credentials that can't be loaded."""
    lasting = isinstance(e, FileNotFoundError | ssl.SSLError)
    passing = isinstance(e, OSError)
    if not passing:
        from botocore.exceptions import (
            MetadataRetrievalError,
            NoCredentialsError,
            ProfileNotFound,
        )

        if isinstance(e, NoCredentialsError):
            return ConfigError(f"there are no credentials for {service}: {_CREDENTIALS}")
        if isinstance(e, ProfileNotFound):
            return ConfigError(f"{e}; profiles are in ~/.aws/config")
        passing = isinstance(e, MetadataRetrievalError)
    if passing and not lasting:
        return TransientError(f"the credentials for {service} are unavailable ({e})")
    return ConfigError(f"{service} can't be used as it is configured ({e})")
