"""The access that Hadoop's file systems have, as options of our stores.

A cluster's storage is set up for Hadoop: ``fs.s3a.*``, ``fs.azure.*`` and ``fs.gs.*`` have the
endpoint, the region and the account. Those settings for a table's address hold for our stores
too, by the rules of Hadoop's own clients: a bucket's or an account's own setting precedes the
general one, and of several providers of credentials the first that has some is used. Credentials
that Hadoop finds in the environment or at the machine, our stores find there themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Protocol
from urllib.parse import urlsplit

from tailer.errors import ConfigError
from tailer.store.objects.place import Place, azure_place, gcs_place, s3_place

Options = dict[str, str]


class HadoopConf(Protocol):
    """A configuration of Hadoop. A setting that only Hadoop's defaults have is None."""

    def get(self, name: str) -> str | None:
        """Return a setting."""

    def secret(self, name: str) -> str | None:
        """Return a setting that may be kept by a provider of credentials."""

    def use_providers(self, path: str) -> None:
        """Look for secrets in these providers of credentials first."""


def hadoop_options(address: str, conf: HadoopConf) -> Options:
    """Return the options of the store of an address; none if no setting is for it.

    Raises :class:`ConfigError` for a way of access that our stores do not have.
    """
    if (place := s3_place(address)) is not None:
        return _find_s3_options(place.container, conf)
    if (place := gcs_place(address)) is not None:
        return _find_gcs_options(conf)
    if (place := azure_place(address)) is not None:
        return _find_azure_options(address, place, conf)
    return {}


def is_hadoop_address(address: str) -> bool:
    """Return whether Hadoop may have access to an address, in the form that it has in Hadoop."""
    scheme = address.partition("://")[0].lower()
    return scheme in ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")


def _drop_empty_options(**options: str | None) -> Options:
    return {name: value for name, value in options.items() if value}


def _is_true(value: str | None) -> bool:
    return (value or "").lower() == "true"


def _make_setting_error(setting: str, value: str, instead: str) -> ConfigError:
    return ConfigError(
        f"the session's {setting} is {value!r}, by which this store can't be reached; {instead}"
    )


# S3

_S3A = "fs.s3a."
#: Providers by the last parts of their names, which Hadoop's and both of Amazon's libraries have.
_KEYS = ("SimpleAWSCredentialsProvider",)
_TEMPORARY = ("TemporaryAWSCredentialsProvider", "MarshalledCredentialProvider")
_ANONYMOUS = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
_VARIABLES = ("EnvironmentVariableCredentialsProvider",)
_PROFILES = ("ProfileCredentialsProvider", "ProfileAWSCredentialsProvider")
_ROLE = ("AssumedRoleCredentialProvider",)
#: Those that find what our store finds by itself: roles of machines, containers and workloads.
_FOUND = (
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "WebIdentityTokenFileCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)
#: Hadoop's own, where none are named.
_USUAL = (*_TEMPORARY[:1], *_KEYS, *_VARIABLES, _FOUND[0])
#: Amazon's public servers, which a region names.
_AMAZON = re.compile(r"s3(?:[.-](?P<region>[a-z]{2}(?:-[a-z]+)+-\d))?\.amazonaws\.com(?:\.cn)?")


def _find_s3_options(bucket: str, conf: HadoopConf) -> Options:
    def read_setting(read: Callable[[str], str | None], name: str) -> str | None:
        return read(f"{_S3A}bucket.{bucket}.{name}") or read(f"{_S3A}{name}")

    if providers := read_setting(conf.get, "security.credential.provider.path"):
        conf.use_providers(providers)

    def get(name: str) -> str | None:
        return read_setting(conf.get, name)

    def secret(name: str) -> str | None:
        return read_setting(conf.secret, name)

    endpoint, region = get("endpoint"), get("endpoint.region")
    if endpoint and (amazon := _AMAZON.fullmatch(endpoint.removeprefix("https://").rstrip("/"))):
        endpoint, region = None, region or amazon["region"]
    if endpoint and "://" not in endpoint:
        plain = get("connection.ssl.enabled") in ("false", "FALSE")
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    place = _drop_empty_options(
        endpoint_url=endpoint,
        region=region,
        path_style=(get("path.style.access") or "").lower(),
        requester_pays="true" if _is_true(get("requester.pays.enabled")) else None,
    )
    return place | _find_s3_account(get, secret)


def _find_s3_account(
    get: Callable[[str], str | None], secret: Callable[[str], str | None]
) -> Options:
    """Return the account of the first provider that has one; none if our store shall find it."""
    providers = re.split(r"[,\s]+", get("aws.credentials.provider") or "")
    keys = _drop_empty_options(
        access_key_id=secret("access.key"), secret_access_key=secret("secret.key")
    )
    token = secret("session.token")
    for provider in filter(None, providers) if any(providers) else _USUAL:
        name = re.split(r"[.$]", provider)[-1]
        if name in _ANONYMOUS:
            return {"anonymous": "true"}
        if name in _FOUND or (name in _VARIABLES and "AWS_ACCESS_KEY_ID" in os.environ):
            return {}
        if name in _TEMPORARY and len(keys) == 2 and token:
            return {**keys, "session_token": token}
        if name in _KEYS and len(keys) == 2:
            return keys
        if name in _PROFILES:
            return _drop_empty_options(profile=get("auth.profile.name"))
        if name in _ROLE:
            base = get("assumed.role.credentials.provider")
            return {
                **(keys if base is None or base.split(".")[-1] in _KEYS else {}),
                **_drop_empty_options(
                    role_arn=get("assumed.role.arn"),
                    role_external_id=get("assumed.role.external.id"),
                    sts_endpoint_url=_add_https(get("assumed.role.sts.endpoint")),
                ),
            }
        if name not in (*_TEMPORARY, *_KEYS, *_VARIABLES):
            instead = "give the table's options store.access_key_id and store.secret_access_key"
            raise _make_setting_error(f"{_S3A}aws.credentials.provider", provider, instead)
    return {}


def _add_https(host: str | None) -> str | None:
    return host if host is None or "://" in host else f"https://{host}"


# Azure

_AZURE = "fs.azure."


def _find_azure_options(address: str, place: Place, conf: HadoopConf) -> Options:
    if place.account is None:
        return {}
    hosts = [f"{place.account}.{service}.{place.domain}" for service in ("dfs", "blob")]
    if f".blob.{place.domain}" in address:
        hosts.reverse()

    def names(name: str) -> Iterator[str]:
        yield from (f"{_AZURE}{name}.{host}" for host in hosts)
        yield f"{_AZURE}{name}"

    def first(read: Callable[[str], str | None], name: str) -> str | None:
        return next(filter(None, map(read, names(name))), None)

    kind = (first(conf.get, "account.auth.type") or "SharedKey").lower()
    if kind == "oauth":
        return _find_azure_identity(lambda name: first(conf.secret, name))
    sas = first(conf.secret, "sas.fixed.token") or next(
        filter(None, (conf.secret(f"{_AZURE}sas.{place.container}.{host}") for host in hosts)), None
    )
    key = first(conf.secret, "account.key")
    if kind == "sharedkey":
        return _drop_empty_options(account_key=key) or _drop_empty_options(sas_token=sas)
    if kind == "sas" and sas:
        return {"sas_token": sas}
    instead = "give the table's option store.secret.account_key or store.secret.sas_token"
    raise _make_setting_error(f"{_AZURE}account.auth.type", kind, instead)


def _find_azure_identity(get: Callable[[str], str | None]) -> Options:
    provider = (get("account.oauth.provider.type") or "").split(".")[-1]
    client = _drop_empty_options(client_id=get("account.oauth2.client.id"))
    if provider == "ClientCredsTokenProvider":
        endpoint = urlsplit(get("account.oauth2.client.endpoint") or "")
        tenant = endpoint.path.strip("/").split("/")[0]
        authority = f"{endpoint.scheme}://{endpoint.netloc}/{tenant}"
        secret = get("account.oauth2.client.secret")
        return client | _drop_empty_options(
            client_secret=secret, authority_url=authority if tenant else None
        )
    if provider == "MsiTokenProvider":
        return client
    if provider == "WorkloadIdentityTokenProvider":  # its file is named by the environment too
        return {}
    instead = "give the table's option store.secret.account_key or store.secret.sas_token"
    raise _make_setting_error(f"{_AZURE}account.oauth.provider.type", provider, instead)


# Google

_GOOGLE = ("fs.gs.auth.", "google.cloud.auth.")


def _find_gcs_options(conf: HadoopConf) -> Options:
    def get(name: str) -> str | None:
        return next(filter(None, (conf.get(f"{prefix}{name}") for prefix in _GOOGLE)), None)

    kind = (get("type") or "").upper()
    endpoint = conf.get("fs.gs.storage.root.url")
    place = _drop_empty_options(endpoint_url=endpoint and endpoint.rstrip("/"))
    if kind == "UNAUTHENTICATED" or _is_true(get("null.enable")):
        return {**place, "anonymous": "true"}
    file = get("service.account.json.keyfile")
    if kind in ("", "SERVICE_ACCOUNT_JSON_KEYFILE") and file:
        return {**place, "service_account_file": file.removeprefix("file://")}
    if kind in ("", "COMPUTE_ENGINE", "APPLICATION_DEFAULT"):
        return place
    instead = "give the table's option store.service_account_file"
    raise _make_setting_error("fs.gs.auth.type", kind, instead)
