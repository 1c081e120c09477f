"""Tables on Azure's and Google's storage: options, accounts, and errors that say what to do."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from tailer.errors import ConfigError, TableError, TransientError
from tailer.secrets import hide_secrets
from tailer.storage import open_store, storage_named
from tailer.storage.objects import AzureStorage
from tailer.store import FileStatus, Store
from tailer.store.objects import options as cloud_options
from tailer.store.objects.options import Credentials
from tests.clouds.servers import ACCOUNT, CLOUDS, KEY, Cloud, CloudServer, Container, run_cloud
from tests.clouds.servers import sas_token as signature
from tests.support.extent import rest_slow

pytestmark = pytest.mark.anyio

LOG = "_delta_log/00000000000000000000.json"


def store_of(container: Container, **options: Any) -> Store:
    return open_store(container.address("orders"), {**container.options, **options})


async def listed(store: Store, folder: str = "_delta_log") -> list[FileStatus]:
    return [status async for status in store.list(folder)]


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("az", "azure_storage_account_key", "account_key"),
        ("az", "AZURE_STORAGE_SAS_KEY", "sas_token"),
        ("az", "azure_storage_sas_token", "sas_token"),
        ("az", "azure_skip_signature", "anonymous"),
        ("gs", "google_service_account", "service_account_file"),
        ("gs", "google_application_credentials", "service_account_file"),
    ],
)
def test_an_option_by_the_name_of_another_tool_is_told_ours(
    name: str, theirs: str, ours: str
) -> None:
    with pytest.raises(ConfigError, match=rf"here it is '{ours}'"):
        storage_named(name).check_options({theirs: "true"})


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("az", {"acount_key": "secret-key"}, "account_key"),
        ("az", {"endpoint_url": "ftp://x"}, "endpoint_url"),
        ("az", {"allow_http": "true"}, "an endpoint_url with http:// is enough"),
        ("az", {"container_name": "c"}, "the table's address names it"),
        ("az", {"azure_client_secret": "secret-key"}, "here it is 'client_secret'"),
        ("az", {"use_azure_cli": "true"}, "set AZURE_USE_AZURE_CLI in the environment"),
        ("gs", {"service_account_key": "secret-key"}, "name that as service_account_file"),
        ("gs", {"bucket": "b"}, "the table's address names it"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(
    name: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        storage_named(name).check_options(options)
    assert "secret-key" not in str(caught.value)


def test_a_key_that_is_none_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="the options of Azure's storage are wrong") as caught:
        open_store("az://lake/orders", {"account_name": "a", "account_key": "no!key!of!azure"})
    assert "no!key!of!azure" not in str(caught.value)
    assert hide_secrets("it is no!key!of!azure") == "it is ***"


async def test_a_time_is_the_same_whoever_says_it(container: Container) -> None:
    await container.put(f"orders/{LOG}", b"{}")
    store = store_of(container)
    (status,) = await listed(store)
    assert status == structs.replace(await store.stat(LOG), name=status.name)
    assert status == structs.replace((await store.read(LOG))[1], name=status.name)


async def test_no_container_is_said_by_name(container: Container) -> None:
    absent = replace(container, name="no-such-container")
    with pytest.raises(TableError, match=r"its (container|bucket) does not exist; check the \1's"):
        await listed(store_of(absent))


async def test_a_file_outside_of_the_table_is_read_only_if_it_is_named(
    container: Container,
) -> None:
    await container.put("source/part.parquet", b"rows")
    location = container.address("source/part.parquet")
    with pytest.raises(TableError, match="outside the table's folder"):
        await store_of(container).read(location)
    named = store_of(container, also=container.address("source"))
    assert (await named.read(location))[0] == b"rows"
    with pytest.raises(TableError, match="different store"):
        await named.read("hdfs://other/part.parquet")


async def test_a_clone_may_have_its_files_in_another_container(azurite: CloudServer) -> None:
    source, clone = azurite.container(), azurite.container()
    await source.put("orders/part.parquet", b"rows")
    also = source.address("orders")
    store = open_store(clone.address("clone"), {**clone.options, "also": [also]})
    assert (await store.read(source.address("orders/part.parquet")))[0] == b"rows"


WRONG_KEY = base64.b64encode(b"x" * 64).decode()
REFUSALS: dict[str, dict[str, Any]] = {
    "another key": {"account_key": WRONG_KEY},
    "a signature that has ended": {"sas_token": signature(dt.timedelta(minutes=-5))},
    "a signature that is too narrow": {"sas_token": signature(rights="w")},
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_is_refused_is_said_with_the_servers_words(
    azurite: CloudServer, case: str
) -> None:
    container = azurite.container()
    await container.put(f"orders/{LOG}", b"{}")
    options = {"account_name": ACCOUNT, "endpoint_url": container.url, **REFUSALS[case]}
    store = open_store(container.address("orders"), options)
    for attempt in (store.read(LOG), store.stat(LOG), listed(store)):
        with pytest.raises(TableError, match=r"access denied to \w+ \(.*firewall") as caught:
            await attempt
        for secret in (WRONG_KEY, "sig=", REFUSALS[case].get("sas_token", KEY)):
            assert secret not in str(caught.value)
        assert caught.value.__cause__ is None


async def test_a_signature_reads_what_it_may(azurite: CloudServer) -> None:
    container = azurite.container()
    await container.put(f"orders/{LOG}", b"{}")
    options = {
        "account_name": ACCOUNT, "endpoint_url": container.url, "sas_token": signature(),
    }  # fmt: skip
    store = open_store(container.address("orders"), options)
    assert (await store.read(LOG))[0] == b"{}"
    assert len(await listed(store)) == 1


async def test_credentials_that_end_are_asked_for_again(azurite: CloudServer) -> None:
    container = azurite.container()
    await container.put(f"orders/{LOG}", b"{}")
    asked = []

    async def credentials() -> dict[str, Any]:
        asked.append(1)
        lasts = dt.timedelta(seconds=2 if len(asked) == 1 else 3600)
        return {"sas_token": signature(lasts), "expires_at": dt.datetime.now(dt.UTC) + lasts}

    options = {"account_name": ACCOUNT, "endpoint_url": container.url}
    place = container.address("orders")
    store = AzureStorage().open_store(place, options, credentials=Credentials(credentials))
    assert (await store.read(LOG))[0] == b"{}"
    await anyio.sleep(2.1)
    assert (await store.read(LOG))[0] == b"{}"
    assert len(asked) >= 2


async def test_the_environment_has_the_account(
    azurite: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = azurite.container()
    await container.put(f"orders/{LOG}", b"{}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    store = open_store(container.address("orders"), {"endpoint_url": container.url})
    assert (await store.read(LOG))[0] == b"{}"


async def test_a_service_account_is_a_file(gcs_server: CloudServer, tmp_path: Path) -> None:
    container = gcs_server.container()
    await container.put(f"orders/{LOG}", b"{}")
    account = tmp_path / "account.json"
    fields = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({**fields, "gcs_base_url": container.url, "disable_oauth": True}))
    options = {"service_account_file": str(account), "endpoint_url": container.url}
    store = open_store(container.address("orders"), options)
    assert (await store.read(LOG))[0] == b"{}"


@pytest.mark.needs("azurite", "gcs")
@pytest.mark.parametrize("cloud", rest_slow(CLOUDS, "gcs"))
async def test_a_server_that_is_away_or_stands_still_may_come_back(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_options, "READ_TIMEOUT", dt.timedelta(seconds=0.3))
    monkeypatch.setitem(cloud_options.RETRIES, "retry_timeout", dt.timedelta(seconds=0.1))
    with run_cloud(cloud) as server:
        container = server.container()
        await container.put(f"orders/{LOG}", b"{}")
        store = store_of(container)
        with server.still(), pytest.raises(TransientError, match=f"{LOG}.*it took too long"):
            await store.read(LOG)
        assert (await store.read(LOG))[0] == b"{}"
        server.stop()
        with pytest.raises(TransientError, match="can't be reached: check endpoint_url"):
            await store.read(LOG)
        server.start()
        with suppress(AssertionError):  # killed, Azurite may have forgotten what it had just made
            server.make_container(container.name)
        await container.put(f"orders/{LOG}", b"{}")
        assert (await store.read(LOG))[0] == b"{}"


async def test_a_file_that_is_replaced_while_it_is_open_is_no_mix(container: Container) -> None:
    await container.put("orders/large.parquet", b"a" * 3_000_000)
    store = store_of(container)
    file = await store.open("large.parquet", 3_000_000)
    await container.put("orders/large.parquet", b"b" * 3_000_000)

    def read() -> bytes:
        file.seek(0)
        return bytes(file.read(100))

    with pytest.raises(TransientError, match="was replaced while it was read"):
        await anyio.to_thread.run_sync(read)


@pytest.mark.parametrize("said", [2_500_000, 3_000_000, 3_500_000, 9_000_000])
async def test_a_size_that_the_log_has_wrong_is_seen(container: Container, said: int) -> None:
    await container.put("orders/large.parquet", b"a" * 3_000_000)
    file = await store_of(container).open("large.parquet", said)
    assert await anyio.to_thread.run_sync(file.size) == 3_000_000


_LISTS = """
import asyncio, json, sys
from tailer.storage import open_store

async def main():
    async for _ in open_store(sys.argv[1], json.loads(sys.argv[2])).list("_delta_log"):
        pass

asyncio.run(main())
"""


@pytest.mark.slow  # it starts Python many times
@pytest.mark.needs("gcs")
async def test_a_program_that_ends_right_after_an_answer_is_not_aborted(
    gcs_server: CloudServer,
) -> None:
    container = gcs_server.container()
    for version in range(5):
        await container.put(f"orders/_delta_log/{version:020}.json", b"{}")
    command = [
        sys.executable, "-c", _LISTS, container.address("orders"), json.dumps(container.options),
    ]  # fmt: skip
    # About one in ten was, on a busy machine.
    programs = [subprocess.Popen(command) for _ in range(30)]  # noqa: ASYNC220
    assert [program.wait() for program in programs] == [0] * 30
