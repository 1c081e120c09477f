"""Addresses on Azure's and Google's storage, in the spellings of Spark, delta-rs and Fabric."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError
from tailer.storage import is_url, open_store, storage_of
from tailer.store.objects.place import Place, azure_place, gcs_place

NAMES = st.text(string.ascii_lowercase + string.digits, min_size=3, max_size=12)
#: Keys as they are: a "%" in them is a "%".
KEYS = st.lists(
    st.text("abcÄ数 %+=.-_~&", min_size=1, max_size=8).filter(lambda t: t.strip(".") != ""),
    max_size=4,
).map("/".join)
DOMAINS = st.sampled_from(
    ["core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "fabric.microsoft.com"]
)
SERVICES = st.sampled_from(["blob", "dfs"])


@given(NAMES, NAMES, KEYS, DOMAINS, SERVICES, st.sampled_from(["", "/"]))
def test_all_spellings_of_an_account_name_one_place(
    account: str, container: str, key: str, domain: str, service: str, end: str
) -> None:
    place = Place("azure", container, key, account, domain)
    host = f"{account}.{service}.{domain}"
    spellings = [
        *(f"{s}://{container}@{host}/{key}{end}" for s in ("abfss", "abfs", "wasbs", "wasb")),
        f"ABFSS://{container}@{host.upper()}/{key}{end}",
        f"https://{host}/{container}/{quote(key)}{end}",
        f"HTTPS://{host}/{container}/{quote(key)}{end}",
    ]
    for address in spellings:
        assert azure_place(address) == place, address
        assert storage_of(address).name == "az"
        assert is_url(address) == address.lower().startswith("https:")


@given(NAMES, KEYS, st.sampled_from(["az", "azure", "adl", "abfs", "abfss"]))
def test_an_address_may_leave_the_account_to_the_options(
    container: str, key: str, scheme: str
) -> None:
    assert azure_place(f"{scheme}://{container}/{key}") == Place("azure", container, key)
    assert storage_of(f"{scheme}://{container}/{key}").name == "az"


@given(NAMES, KEYS, st.sampled_from(["gs", "GS", "gcs"]))
def test_google_has_one_form(bucket: str, key: str, scheme: str) -> None:
    assert gcs_place(f"{scheme}://{bucket}/{key}") == Place("gcs", bucket, key)
    assert storage_of(f"{scheme}://{bucket}/{key}").name == "gs"


@given(NAMES, NAMES, KEYS, KEYS)
def test_a_place_holds_what_lies_below_it_alone(
    account: str, container: str, key: str, more: str
) -> None:
    def place(key: str, container: str = container, account: str | None = account) -> Place:
        return Place("azure", container, key, account, "core.windows.net")

    folder = place("lake/a")
    assert folder.contains_place(place(f"lake/a/{key}".rstrip("/")))
    assert folder.contains_place(place(f"lake/a/{more}".rstrip("/"), account=None))
    assert not folder.contains_place(place(f"lake/ab/{more}"))
    assert not folder.contains_place(place("lake/a/../b"))
    assert not folder.contains_place(place("lake/a/b", container=f"{container}x"))
    assert not folder.contains_place(place("lake/a/b", account=f"{account}x"))


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("abfss://c@acct.dfs.core.windows.net/k", None),
        ("az://c/k", None),
        ("https://acct.dfs.core.chinacloudapi.cn/c/k", "https://acct.blob.core.chinacloudapi.cn"),
        (
            "abfss://workspace@onelake.dfs.fabric.microsoft.com/sales.Lakehouse/Tables/orders",
            "https://onelake.blob.fabric.microsoft.com",
        ),
        (
            "https://westus-onelake.dfs.fabric.microsoft.com/0f1a/9c2b/Tables/orders",
            "https://westus-onelake.blob.fabric.microsoft.com",
        ),
    ],
)
def test_the_address_says_which_cloud_is_asked(address: str, endpoint: str | None) -> None:
    place = azure_place(address)
    assert place is not None
    assert place.endpoint == endpoint


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("abfss://c@nowhere.example.org/k", "names no host of Azure's storage: abfss://container@"),
        ("https://acct.blob.core.windows.net/", "names no container: https://acct.blob"),
        ("az:///k", "names no container: az://container/key does"),
        ("gs:///k", "names no bucket: gs://bucket/key does"),
        ("https://example.org/c/k", "no store for 'https://example.org/c/k'"),
        ("gs:/bucket/k", "lacks a slash; type gs://bucket/k"),
    ],
)
def test_an_address_that_names_nothing_is_refused(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", "\\?")):
        open_store(address)
