"""What Hadoop's settings say of a table's storage, as options of our stores."""

from __future__ import annotations

import pytest

from tailer.errors import ConfigError
from tailer.spark.hadoop_access import hadoop_options, is_hadoop_address
from tailer.storage import storage_of

KEYS = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
OURS = {"access_key_id": "key", "secret_access_key": "secret"}
PROVIDERS = "fs.s3a.aws.credentials.provider"
HADOOPS = "org.apache.hadoop.fs.s3a."
ABFS = "abfss://lake@account.dfs.core.windows.net/orders"
HOST = "account.dfs.core.windows.net"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2."
TENANT = "https://login.microsoftonline.com/tenant-1/oauth2/token"


class Conf(dict[str, str]):
    """A configuration whose secrets are among its settings, or in a provider's file."""

    def secret(self, name: str) -> str | None:
        return self.get(name)

    def use_providers(self, path: str) -> None:
        self.update({"fs.s3a.access.key": f"of {path}", "fs.s3a.secret.key": "secret"})


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        (KEYS, OURS),
        ({**KEYS, "fs.s3a.session.token": "t"}, {**OURS, "session_token": "t"}),
        ({"fs.s3a.access.key": "key"}, {}),
        ({"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
        ({"fs.s3a.endpoint": "https://s3.eu-central-1.amazonaws.com/"}, {"region": "eu-central-1"}),
        ({"fs.s3a.endpoint": "minio:9000"}, {"endpoint_url": "https://minio:9000"}),
        (
            {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"},
            {"endpoint_url": "http://minio:9000"},
        ),
        ({"fs.s3a.endpoint": "http://minio"}, {"endpoint_url": "http://minio"}),
        ({"fs.s3a.path.style.access": "False"}, {"path_style": "false"}),
        ({"fs.s3a.requester.pays.enabled": "true"}, {"requester_pays": "true"}),
        (
            {
                "fs.s3a.endpoint.region": "a",
                "fs.s3a.bucket.lake.endpoint.region": "b",
                "fs.s3a.bucket.other.endpoint.region": "c",
            },
            {"region": "b"},
        ),
        (
            {"fs.s3a.bucket.lake.security.credential.provider.path": "jceks://one"},
            {**OURS, "access_key_id": "of jceks://one"},
        ),
        # Providers: the first that has something.
        ({**KEYS, PROVIDERS: f"{HADOOPS}AnonymousAWSCredentialsProvider"}, {"anonymous": "true"}),
        (
            {
                **KEYS,
                "fs.s3a.session.token": "t",
                PROVIDERS: f"{HADOOPS}SimpleAWSCredentialsProvider",
            },
            OURS,
        ),
        (
            {
                **KEYS,
                PROVIDERS: f"{HADOOPS}TemporaryAWSCredentialsProvider,\n "
                f"{HADOOPS}auth.IAMInstanceCredentialsProvider,"
                f"{HADOOPS}SimpleAWSCredentialsProvider",
            },
            {},
        ),
        (
            {**KEYS, PROVIDERS: "software.amazon.awssdk.auth.credentials."
             "EnvironmentVariableCredentialsProvider, "
             f"{HADOOPS}SimpleAWSCredentialsProvider"},
            OURS,
        ),
        (
            {PROVIDERS: f"{HADOOPS}auth.ProfileAWSCredentialsProvider",
             "fs.s3a.auth.profile.name": "reader"},
            {"profile": "reader"},
        ),
        (
            {
                **KEYS,
                PROVIDERS: f"{HADOOPS}auth.AssumedRoleCredentialProvider",
                "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/reader",
                "fs.s3a.assumed.role.sts.endpoint": "sts.eu-central-1.amazonaws.com",
            },
            {
                **OURS,
                "role_arn": "arn:aws:iam::1:role/reader",
                "sts_endpoint_url": "https://sts.eu-central-1.amazonaws.com",
            },
        ),
        (
            {
                **KEYS,
                PROVIDERS: f"{HADOOPS}auth.AssumedRoleCredentialProvider",
                "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/reader",
                "fs.s3a.assumed.role.credentials.provider": "com.amazonaws.auth."
                "InstanceProfileCredentialsProvider",
            },
            {"role_arn": "arn:aws:iam::1:role/reader"},
        ),
    ],
)  # fmt: skip
def test_s3(settings: dict[str, str], expected: dict[str, str]) -> None:
    for address in ("s3a://lake/orders", "s3://lake/orders"):
        found = hadoop_options(address, Conf(settings))
        assert found == expected
        storage_of(address).check_options(found)


def test_an_account_of_the_environment_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    provider = "com.amazonaws.auth.EnvironmentVariableCredentialsProvider"
    assert hadoop_options("s3a://lake/t", Conf({**KEYS, PROVIDERS: provider})) == {}
    assert hadoop_options("s3a://lake/t", Conf(KEYS)) == OURS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({f"fs.azure.account.key.{HOST}": "a2V5"}, {"account_key": "a2V5"}),
        ({"fs.azure.account.key.account.blob.core.windows.net": "a2V5"}, {"account_key": "a2V5"}),
        ({"fs.azure.account.key.other.dfs.core.windows.net": "a2V5"}, {}),
        (
            {
                f"fs.azure.account.auth.type.{HOST}": "SAS",
                f"fs.azure.sas.fixed.token.{HOST}": "sv=1&sig=2",
            },
            {"sas_token": "sv=1&sig=2"},
        ),
        (
            {"fs.azure.sas.lake.account.blob.core.windows.net": "sv=1&sig=2"},
            {"sas_token": "sv=1&sig=2"},
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": f"{OAUTH}ClientCredsTokenProvider",
                f"fs.azure.account.oauth2.client.id.{HOST}": "client-1",
                "fs.azure.account.oauth2.client.secret": "secret-1",
                "fs.azure.account.oauth2.client.endpoint": TENANT,
            },
            {
                "client_id": "client-1", "client_secret": "secret-1",
                "authority_url": "https://login.microsoftonline.com/tenant-1",
            },
        ),
        (
            {
                "fs.azure.account.auth.type": "OAuth",
                "fs.azure.account.oauth.provider.type": f"{OAUTH}MsiTokenProvider",
                "fs.azure.account.oauth2.client.id": "client-1",
            },
            {"client_id": "client-1"},
        ),
    ],
)  # fmt: skip
def test_azure(settings: dict[str, str], expected: dict[str, str]) -> None:
    found = hadoop_options(ABFS, Conf(settings))
    assert found == expected
    storage_of(ABFS).check_options(found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        (
            {"google.cloud.auth.service.account.json.keyfile": "/etc/key.json"},
            {"service_account_file": "/etc/key.json"},
        ),
        (
            {
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": "/etc/key.json",
            },
            {"service_account_file": "/etc/key.json"},
        ),
        ({"fs.gs.auth.type": "COMPUTE_ENGINE"}, {}),
        (
            {"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": "http://fake:1/"},
            {"anonymous": "true", "endpoint_url": "http://fake:1"},
        ),
    ],
)
def test_google(settings: dict[str, str], expected: dict[str, str]) -> None:
    assert hadoop_options("gs://lake/orders", Conf(settings)) == expected


@pytest.mark.parametrize(
    ("address", "settings", "expected"),
    [
        ("s3a://lake/t", {PROVIDERS: "com.example.Vault"}, "com.example.Vault"),
        (ABFS, {"fs.azure.account.auth.type": "Custom"}, "account.auth.type"),
        (ABFS, {"fs.azure.account.auth.type": "OAuth"}, "oauth.provider.type"),
        ("gs://lake/t", {"fs.gs.auth.type": "USER_CREDENTIALS"}, "fs.gs.auth.type"),
    ],
)
def test_a_way_that_our_stores_lack_is_named(
    address: str, settings: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        hadoop_options(address, Conf(settings))


def test_only_hadoops_addresses_are_looked_up() -> None:
    assert is_hadoop_address("s3a://lake/t")
    assert not is_hadoop_address("uc://main.sales.orders")
    assert hadoop_options("uc://main.sales.orders", Conf(KEYS)) == {}
