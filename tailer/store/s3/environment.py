"""What a client knows before its first request: region, servers, authorities, account.

They come from the options, else from where every AWS tool looks: environment, profile, instance.
aiobotocore looks there. It takes long to load, so it is asked only for what options and environment
do not say by themselves.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tailer.errors import ConfigError, TailerError, TransientError
from tailer.secrets import forget_secrets, keep_secrets
from tailer.secrets.urls import UrlError, parse_url
from tailer.store.objects.options import Credentials
from tailer.store.s3.options import S3Options

if TYPE_CHECKING:
    from botocore.session import Session

_DEFAULT_REGION = "us-east-1"
#: How long a server may take to name a bucket's region, in seconds.
_REGION_S = 20.0
#: A region becomes a part of a host's name.
_REGION_NAME = re.compile(r"[a-z0-9-]{1,40}")
#: Credentials that the session has found are asked for again after a minute: obstore does so five
#: minutes before their end. The session itself knows when to renew them.
_GOOD_FOR = dt.timedelta(minutes=6)


class S3Environment:
    """The answers for one set of options, each looked up when it is asked for.

    The methods raise :class:`TransientError` for what may heal, else :class:`ConfigError`.
    """

    def __init__(self, options: S3Options) -> None:
        self._options = options

    def find_region(self) -> str:
        """Return the region of requests, until a server names a bucket's."""
        named = self._options.region or os.environ.get("AWS_DEFAULT_REGION")
        # The last variable is one that other AWS tools read, and botocore does not.
        return (
            named
            or self._find_variable("region")
            or os.environ.get("AWS_REGION")
            or _DEFAULT_REGION
        )

    def find_endpoint(self, region: str) -> str:
        """Return the URL of a region's servers."""
        if self._options.endpoint_url is not None:
            return self._options.endpoint_url
        with _translate_errors():
            client = self._session.create_client(
                "s3", region_name=region,
                # With keys, none are looked for.
                aws_access_key_id="-", aws_secret_access_key="-",  # noqa: S106 - none
            )  # fmt: skip
            url: str = client.meta.endpoint_url
        try:
            parse_url(url, ("http", "https"), login=False)
        except UrlError as e:
            raise ConfigError(
                "the address of the S3 servers in AWS_ENDPOINT_URL, or in the profile, must be "
                f"http://host or https://host: {e}"
            ) from None
        return url

    async def ask_region(self, bucket: str, region: str) -> str | None:
        """Return the region that a bucket's server names, also to strangers; None if it does not.
        ``region`` is where it is asked."""
        from aiobotocore.session import UNSIGNED, AioSession

        created = AioSession(profile=self._options.profile).create_client(
            "s3", region_name=region, endpoint_url=self.find_endpoint(region),
            verify=self.find_authorities(),
        )  # fmt: skip
        headers: dict[str, str] = {}

        def note(http_response: Any, **_: Any) -> None:
            headers.update({k.lower(): v for k, v in http_response.headers.items()})

        # Also a refusal says it, and who gets no answer has the error of the first request.
        with suppress(Exception):
            async with asyncio.timeout(_REGION_S), created as client:
                client.meta.events.register("choose-signer.s3.HeadBucket", lambda **_: UNSIGNED)
                client.meta.events.register("after-call.s3.HeadBucket", note)
                await client.head_bucket(Bucket=bucket)
        named = headers.get("x-amz-bucket-region", "")
        return named if _REGION_NAME.fullmatch(named) else None

    def find_own_authorities(self) -> str | None:
        """Return the PEM file of the authorities to trust that is named; None if none is."""
        options = self._options
        return (
            options.ca_file or os.environ.get("AWS_CA_BUNDLE") or self._find_variable("ca_bundle")
        )

    def find_authorities(self) -> str:
        """Return the PEM file of the authorities to trust, which may be botocore's own."""
        from botocore.httpsession import where

        path: str = self.find_own_authorities() or where()
        return path

    def find_credentials(self) -> Credentials:
        """Return where the keys come from; asked, it raises :class:`ConfigError` if there are
        none."""
        own = self._options
        if own.role_arn is None:
            if own.access_key_id is not None and own.secret_access_key is not None:
                return _make_fixed_credentials(
                    own.access_key_id, own.secret_access_key, own.session_token
                )
            found = None if own.profile else _find_environment_keys()
            if found is not None:
                return found
        account = _SessionAccount(own, self.find_region)
        return Credentials(account.load_keys, account.forget)

    def _find_variable(self, name: str) -> str | None:
        """Return a variable of the session's."""
        with _translate_errors():
            value: str | None = self._session.get_config_variable(name)
            return value

    @cached_property
    def _session(self) -> Session:
        from botocore.session import Session

        return Session(profile=self._options.profile)


def _make_fixed_credentials(access: str, secret: str, token: str | None) -> Credentials:
    """Return keys that options or environment name."""
    keep_secrets((secret, token or ""))
    keys = {
        "access_key_id": access, "secret_access_key": secret, "token": token, "expires_at": None,
    }  # fmt: skip

    async def fetch() -> dict[str, Any]:
        return keys

    return Credentials(fetch)


class _SessionAccount:
    """An account that the session of each event loop has found, or the role that it assumes, and
    renews."""

    def __init__(self, options: S3Options, region: Callable[[], str]) -> None:
        self._options = options
        self._region = region
        self._accounts: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._secrets = ("", "")  # those that were in use last

    def forget(self) -> None:
        """Look for the account again: it may have been renewed where it is found."""
        self._accounts.clear()

    async def load_keys(self) -> dict[str, Any]:
        """Return the keys that are good now. Raises the errors of :func:`make_unusable_error`."""
        loop = asyncio.get_running_loop()
        with _translate_errors():
            account = self._accounts.get(loop)
            if account is None:
                account = await self._find_account()
                if account is None:
                    raise ConfigError(
                        f"there are no credentials for S3: {_CREDENTIALS}; for a public bucket, "
                        "anonymous = true"
                    )
                self._accounts[loop] = account
            frozen = await account.get_frozen_credentials()
        secrets = frozen.secret_key, frozen.token or ""
        if secrets != self._secrets:
            forget_secrets(self._secrets)
            keep_secrets(secrets)
            self._secrets = secrets
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": dt.datetime.now(dt.UTC) + _GOOD_FOR,
        }

    async def _find_account(self) -> Any:
        """Return the account of the options or the session, or their role; None if there is no
        account."""
        from aiobotocore.credentials import (
            AioAssumeRoleCredentialFetcher,
            AioCredentials,
            AioDeferredRefreshableCredentials,
        )
        from aiobotocore.session import AioSession

        own = self._options
        session = AioSession(profile=own.profile)
        account: Any
        if own.access_key_id is not None:
            account = AioCredentials(own.access_key_id, own.secret_access_key, own.session_token)
        else:
            account = await session.get_credentials()
        if own.role_arn is None or account is None:
            return account
        external = {} if own.role_external_id is None else {"ExternalId": own.role_external_id}
        fetcher = AioAssumeRoleCredentialFetcher(
            partial(
                session.create_client,
                region_name=self._region(),
                endpoint_url=own.sts_endpoint_url,
            ),
            account,
            own.role_arn,
            extra_args={"RoleSessionName": "delta-tailer", **external},
        )
        return AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _find_environment_keys() -> Credentials | None:
    """Return the keys in the environment; None if a profile takes precedence, or they expire."""
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
    return _make_fixed_credentials(
        access, secret, variable("AWS_SECURITY_TOKEN") or variable("AWS_SESSION_TOKEN")
    )


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise botocore's errors as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, OSError) as e:
        raise make_unusable_error(e) from e


_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"


def make_unusable_error(e: Exception, service: str = "S3") -> TailerError:
    """Return the error for a session that can't be opened or credentials that can't be loaded."""
    lasting = isinstance(e, FileNotFoundError | ssl.SSLError)
    passing = isinstance(e, OSError)
    if not passing:
        from botocore.exceptions import (
            HTTPClientError,
            MetadataRetrievalError,
            NoCredentialsError,
            ProfileNotFound,
        )

        if isinstance(e, NoCredentialsError):
            return ConfigError(f"there are no credentials for {service}: {_CREDENTIALS}")
        if isinstance(e, ProfileNotFound):
            return ConfigError(f"{e}; profiles are in ~/.aws/config")
        passing = isinstance(e, MetadataRetrievalError | HTTPClientError)
    if passing and not lasting:
        return TransientError(f"the credentials for {service} are unavailable ({e})")
    return ConfigError(f"{service} can't be used as it is configured ({e})")
