"""The options of tables on Azure and Google storage, and the clients that they make.

What is not given is found where the clouds' own tools find it: obstore reads their variables of the
environment, identities of the machine or workload, gcloud's login and, with
``AZURE_USE_AZURE_CLI``, az's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError, TailerError
from tailer.secrets.urls import parse_url
from tailer.setting_fields import DeclaredOptions, declared, settings_of
from tailer.settings import Setting, SettingTable
from tailer.store.budget import Budget
from tailer.store.objects.place import Place


class Credentials:
    """Where obstore gets credentials, and again before they end. ``fetch`` returns what it takes
    for them, and until when they are good; ``forget`` has it ask for others, and None says that
    there are no others.

    ``refusal`` is why there were none when it asked last: obstore passes on its text alone.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[dict[str, Any]]],
        forget: Callable[[], None] | None = None,
    ) -> None:
        self._fetch, self._forget = fetch, forget
        self._next: Credentials | None = None
        self.renewable = forget is not None
        self.refusal: TailerError | None = None

    def __call__(self) -> Awaitable[dict[str, Any]]:
        """Return what gives them when it is awaited. It is no coroutine: obstore asks in a thread
        of its own, also while the loop is closing, and Python warns of coroutines that nothing
        awaits."""
        return _Asked(self)

    async def fetch(self) -> dict[str, Any]:
        """Return them."""
        try:
            found = await self._fetch()
        except TailerError as e:
            self.refusal = e
            raise
        self.refusal = None
        return found

    def renew(self) -> Credentials:
        """Return the successor of credentials that the storage has refused, without what obstore
        holds of them. All who share these get the same successor."""
        if self._next is None:
            if self._forget is not None:
                self._forget()
            self._next = Credentials(self._fetch, self._forget)
        return self._next


@dataclass(frozen=True, slots=True)
class _Asked:
    """An answer that is fetched when it is awaited."""

    credentials: Credentials

    def __await__(self) -> Generator[Any, Any, dict[str, Any]]:
        return self.credentials.fetch().__await__()


#: How long to wait for a connection, and for the next byte of an answer.
CONNECT_TIMEOUT, READ_TIMEOUT = timedelta(seconds=5), timedelta(seconds=20)
#: For a whole answer, its body too.
_TIMEOUT = timedelta(seconds=200)
#: Attempts of one request before the feed starts again from its offset.
RETRIES: Any = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2,
    },
}  # fmt: skip
#: Bytes of one table's open file, and of what is fetched ahead, a half each: most writers' row
#: groups, of a million rows, fit into 48 MiB, and then come in few requests.
_AHEAD_BYTES_MAX = 96 * 1024 * 1024
#: Bytes that all tables together may fetch ahead.
_TOTAL_AHEAD = Budget(256 * 1024 * 1024)
#: A service account that obstore signs nothing with.
_NOBODY = {
    "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": "",
}  # fmt: skip


def parse_url_option(text: str) -> str | None:
    """Check the address of a server, which has no login, as a ``parse``."""
    if text:
        parse_url(text, ("http", "https"), login=False)
    return text or None


def make_spelling(*prefixes: str) -> Callable[[str], str]:
    """Return a spelling of names without the prefixes that other tools give them."""

    def spell(name: str) -> str:
        name = name.lower()
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        return name

    return spell


#: Where obstore finds the keys of accounts.
_AZURE_KEYS = (
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY",
)  # fmt: skip
_GOOGLE_FILES = (
    "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS",
)  # fmt: skip
#: Where it finds the addresses of servers.
_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")

#: Options of object_store that have no meaning here.
#: Those of object_store's own client, whose limits are chosen here.
OF_THE_CLIENT = dict.fromkeys(
    (
        "connect_timeout", "max_retries", "pool_idle_timeout", "pool_max_idle_per_host",
        "retry_timeout", "timeout", "user_agent",
    ),
    "requests have limits of their own; leave it out",
)  # fmt: skip
_ANSWERS = {
    **OF_THE_CLIENT,
    "allow_http": "an endpoint_url with http:// is enough; leave it out",
    "use_fabric_endpoint": "the address names OneLake; leave it out",
    "service_account_key": "write it to a file and name that as service_account_file, or set "
    "GOOGLE_SERVICE_ACCOUNT_KEY in the environment",
    **dict.fromkeys(
        ("tenant_id", "authority_id", "authority_host"),
        "give authority_url, as https://login.microsoftonline.com/TENANT",
    ),
    "use_azure_cli": "set AZURE_USE_AZURE_CLI in the environment, from where it is taken",
    **dict.fromkeys(
        ("bucket", "bucket_name", "container_name"),
        "the table's address names it; leave it out",
    ),
}


#: How object_store begins its sentences, and what is to be done about them.
_GENERIC = re.compile(r"^Generic \w+ error: ")
_REMEDIES = {
    "Account must be specified": "; set account_name, or AZURE_STORAGE_ACCOUNT_NAME",
    "Invalid Access Key": "; account_key is the key in base64 that the portal shows",
    "service account file": "; check the path in service_account_file, or in "
    "GOOGLE_APPLICATION_CREDENTIALS",
}


class CloudOptions:
    """The options of one cloud's storage."""

    #: Concurrent requests of all tables that share these options.
    requests_max: int = 64

    def open_container(self, place: Place, credentials: Credentials | None = None) -> Any:
        """Return obstore's container of a place. Raises :class:`ConfigError`."""
        raise NotImplementedError

    def find_credentials(self) -> Credentials | None:
        """Return where the credentials come from; None if obstore finds them."""
        return None

    def has_key(self) -> bool:
        """Return whether the account's own key is here, which signs URLs without a request."""
        return False

    async def open_signer(self, place: Place, credentials: Credentials | None) -> Any | None:
        """Return the container of a place that signs URLs without a request; None if there is
        none."""
        return self.open_container(place) if credentials is None and self.has_key() else None

    async def has_moved(self, place: Place, error: Exception) -> bool:  # noqa: ARG002
        """Return whether a failure says that the container of a place is to be asked elsewhere,
        which :meth:`open_container` does from then on."""
        return False

    def make_budget(self) -> Budget:
        """Return the budget of what is fetched ahead for one more table."""
        return Budget(_AHEAD_BYTES_MAX, _TOTAL_AHEAD)

    def describe_account(self, place: Place) -> str:
        """Return who reads a place, and by what, for people; "" if there is nothing to say."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AzureOptions(DeclaredOptions, CloudOptions):
    """The options of Azure storage. ``elsewhere`` are the names that deltalake and Spark use."""

    # fmt: off
    account_name: str | None = declared(Setting(
        "text", None, "Storage account, if the address does not name it.",
        elsewhere=("account",), unset="`AZURE_STORAGE_ACCOUNT_NAME`",
    ))
    account_key: str | None = declared(Setting(
        "text", None, "Access key of the account.", secret=True, elsewhere=("access_key",),
        unset="`AZURE_STORAGE_ACCOUNT_KEY`", advanced=True,
    ))
    sas_token: str | None = declared(Setting(
        "text", None, "Shared access signature.", secret=True, elsewhere=("sas_key",),
        unset="`AZURE_STORAGE_SAS_TOKEN`", advanced=True,
    ))
    client_id: str | None = declared(Setting(
        "text", None, "Client of Entra ID: a service principal, or a managed identity.",
        unset="`AZURE_CLIENT_ID`", advanced=True,
    ))
    client_secret: str | None = declared(Setting(
        "text", None, "Secret of the service principal; requires `client_id` and `authority_url`.",
        secret=True, unset="`AZURE_CLIENT_SECRET`", advanced=True,
    ))
    authority_url: str | None = declared(Setting(
        "text", None, "Where the service principal is known: Entra ID and the tenant.",
        form="https://host/tenant", parse=parse_url_option,
        unset="`AZURE_AUTHORITY_HOST` and `AZURE_TENANT_ID`", advanced=True,
    ))
    anonymous: bool = declared(Setting(
        "flag", False, "Send unsigned requests, for public containers.",
        elsewhere=("skip_signature",), advanced=True,
    ))
    endpoint_url: str | None = declared(Setting(
        "text", None, "Address of the account, for emulators and private links.",
        form="http://host or https://host", parse=parse_url_option, elsewhere=("endpoint",),
        unset="the account's", advanced=True,
    ))
    # fmt: on

    @classmethod
    def setting_table(cls) -> SettingTable:
        return SettingTable(
            "Azure's storage", settings_of(cls),
            text=True, spelling=make_spelling("azure_", "storage_"), answers=_ANSWERS,
        )  # fmt: skip

    def open_container(self, place: Place, credentials: Credentials | None = None) -> Any:
        account = place.account or self.account_name
        return _open_azure_container(self, place.container, account, place.endpoint, credentials)

    def has_key(self) -> bool:
        if self.anonymous or self.sas_token:
            return False
        return bool(self.account_key or any(map(os.environ.get, _AZURE_KEYS)))

    def describe_account(self, place: Place) -> str:
        names = (place.account, self.account_name, os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"))
        if self.anonymous:
            how = "without credentials"
        elif self.has_key():
            how = "by its key"
        else:
            how = "by a SAS" if self.sas_token else "by the environment's identity"
        return f"account {next(filter(None, names), 'unknown')}, {how}"


@dataclass(frozen=True, slots=True)
class GcsOptions(DeclaredOptions, CloudOptions):
    """The options of Google Cloud Storage."""

    # fmt: off
    service_account_file: str | None = declared(Setting(
        "text", None, "JSON file of a service account.",
        elsewhere=("service_account", "service_account_path", "application_credentials"),
        unset="`GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's login, or the "
        "machine's identity",
    ))
    anonymous: bool = declared(Setting(
        "flag", False, "Send unsigned requests, for public buckets.",
        elsewhere=("skip_signature",), advanced=True,
    ))
    endpoint_url: str | None = declared(Setting(
        "text", None, "Address of the server, for emulators.",
        form="http://host or https://host", parse=parse_url_option,
        elsewhere=("endpoint", "base_url"), unset="Google's", advanced=True,
    ))
    # fmt: on

    @classmethod
    def setting_table(cls) -> SettingTable:
        return SettingTable(
            "Google's storage", settings_of(cls),
            text=True, spelling=make_spelling("google_", "gcs_"), answers=_ANSWERS,
        )  # fmt: skip

    def open_container(self, place: Place, credentials: Credentials | None = None) -> Any:
        return _open_gcs_container(self, place.container, credentials)

    def has_key(self) -> bool:
        account = {} if self.anonymous else self._load_service_account()
        return bool(account.get("private_key")) and not account.get("disable_oauth")

    def describe_account(self, place: Place) -> str:  # noqa: ARG002 - a bucket does not say it
        if self.anonymous:
            return "without credentials"
        email = self._load_service_account().get("client_email")
        return f"as {email}" if email else "as the environment's identity"

    def _load_service_account(self) -> dict[str, Any]:
        """Return the service account of the options or the environment, if it is a file."""
        names = (self.service_account_file, *map(os.environ.get, _GOOGLE_FILES))
        with suppress(OSError, ValueError):
            found = json.loads(Path(next(filter(None, names), "")).read_text())
            return found if isinstance(found, dict) else {}
        return {}


@lru_cache(maxsize=256)
def _open_azure_container(
    options: AzureOptions,
    container: str,
    account: str | None,
    endpoint: str | None,
    credentials: Credentials | None,
) -> Any:
    from obstore.store import AzureStore

    authority, _, tenant = (options.authority_url or "").rstrip("/").rpartition("/")
    config = {
        "account_name": account,
        "account_key": options.account_key,
        "sas_key": options.sas_token,
        "client_id": options.client_id,
        "client_secret": options.client_secret,
        "tenant_id": tenant or None,
        "authority_host": authority or None,
        "endpoint": options.endpoint_url or endpoint,
        "skip_signature": options.anonymous or None,
    }
    return _open_cloud_container(AzureStore, "Azure", container, config, credentials)


@lru_cache(maxsize=256)
def _open_gcs_container(options: GcsOptions, bucket: str, credentials: Credentials | None) -> Any:
    from obstore.store import GCSStore

    config: dict[str, Any] = {
        "service_account": options.service_account_file,
        "base_url": options.endpoint_url,
        "skip_signature": options.anonymous or None,
    }
    if options.anonymous and options.endpoint_url:
        # It would ask for a token before it writes to an emulator.
        config["service_account_key"] = json.dumps(
            {**_NOBODY, "gcs_base_url": options.endpoint_url}
        )
    return _open_cloud_container(GCSStore, "Google", bucket, config, credentials)


def _open_cloud_container(
    kind: Any,
    cloud: str,
    container: str,
    config: Mapping[str, Any],
    credentials: Credentials | None,
) -> Any:
    endpoints = (config.get("endpoint"), config.get("base_url"), *map(os.environ.get, _ENDPOINTS))
    return make_container(
        kind, cloud, container, config, credentials, next(filter(None, endpoints), "")
    )


def make_container(
    kind: Any,
    cloud: str,
    container: str,
    config: Mapping[str, Any],
    credentials: Credentials | None,
    endpoint: str,
    **client: Any,
) -> Any:
    """Return obstore's container of one of its kinds. ``endpoint`` is where it is asked, and
    ``client`` are further options of its HTTP client. Raises :class:`ConfigError`."""
    from obstore.exceptions import BaseError

    plain = {"allow_http": True} if endpoint.startswith("http:") else {}
    try:
        return kind(
            container,
            config={name: value for name, value in config.items() if value is not None},
            client_options={
                "timeout": _TIMEOUT,
                "connect_timeout": CONNECT_TIMEOUT,
                "read_timeout": READ_TIMEOUT,
                **plain,
                **client,
            },
            retry_config=RETRIES,
            credential_provider=credentials,
        )
    except (BaseError, ValueError, OSError) as e:
        said = _GENERIC.sub("", str(e).strip().partition("\n")[0])
        remedy = next((then for mark, then in _REMEDIES.items() if mark in said), "")
        raise ConfigError(f"the options of {cloud}'s storage are wrong: {said}{remedy}") from None
