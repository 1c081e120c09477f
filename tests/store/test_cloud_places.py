"""One place of Azure's storage, in each spelling, as table, pattern, state and target: what is
written by one is there by every other."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailer.changes import Offset
from tailer.config.feeds import Config, load_config
from tailer.daemon.assembly import list_feed_configs, make_offset_store
from tailer.storage import open_store, open_target
from tests.clouds.servers import ACCOUNT, CloudServer, Container
from tests.store.test_cloud_addresses import DOMAINS
from tests.support.extent import examples

#: What a folder's name may have: a "%" and what follows it are as they are.
NAMES = (
    st.lists(
        st.sampled_from(["aZ9", " ", "Ä数", "%", "%41", *"+=.-_~&#?@:"]), min_size=1, max_size=5
    )
    .map("".join)
    .filter(lambda name: name.strip(" .:_") == name)
)
FOLDERS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
COMMIT = "_delta_log/00000000000000000000.json"


def spellings(container: str, key: str, domain: str) -> list[list[str]]:
    """The same place, by kinds, as users of Spark, delta-rs and Fabric write it."""
    hosts = [f"{ACCOUNT}.{service}.{domain}" for service in ("dfs", "blob")]
    schemes = ("abfss", "abfs", "wasbs", "wasb")
    return [
        [f"{s}://{container}/{key}" for s in ("az", "azure", "adl", "abfs", "abfss")],
        [f"{s}://{container}@{host}/{key}" for s in schemes for host in hosts],
        # Of these alone the key is encoded.
        [f"https://{host}/{container}/{quote(key)}" for host in hosts],
    ]


CONFIG = """
[daemon]
http = ""
state = {state}

[store.az]
account_name = {name}
account_key = {key}
endpoint_url = {endpoint}

[feeds.lake]
table = {pattern}
from = "earliest"

[feeds.lake.sink]
type = "files"
path = {target}
"""


def config_of(container: Container, **places: str) -> Config:
    """A daemon of these places."""
    account = {
        "name": container.options["account_name"],
        "key": container.options["account_key"],
        "endpoint": container.url,
    }
    quoted = {name: json.dumps(value) for name, value in {**account, **places}.items()}
    with TemporaryDirectory() as folder:
        file = Path(folder, "tailer.toml")
        file.write_text(CONFIG.format(**quoted), encoding="utf-8")
        return load_config(file)


@pytest.mark.needs("azurite")
@settings(max_examples=examples(10), deadline=None)
@given(
    folder=FOLDERS, table=NAMES, domain=DOMAINS, kinds=st.tuples(*[st.integers(0, 2)] * 3),
    number=st.integers(0, 7),
)  # fmt: skip
@example(folder="a/50%41", table="50%41", domain="core.windows.net", kinds=(2, 2, 2), number=0)
def test_every_spelling_names_one_place_in_every_part(
    azurite: CloudServer,
    folder: str,
    table: str,
    domain: str,
    kinds: tuple[int, int, int],
    number: int,
) -> None:
    container = azurite.container()

    def spelled(key: str, kind: int = 0) -> str:
        among = spellings(container.name, key, domain)[kind]
        return among[number % len(among)]

    of_state, of_tables, of_target = kinds
    config = config_of(
        container,
        state=spelled(f"{folder}/state", of_state),
        pattern=spelled(f"{folder}/tables", of_tables) + "/*/",
        target=spelled(f"{folder}/out", of_target) + "/{table}",
    )
    again = config_of(container, state=spelled(f"{folder}/state"), pattern="az://a/*/", target="x")

    async def check() -> None:
        await container.put(f"{folder}/tables/{table}/{COMMIT}", b"{}")
        (feed,) = (await list_feed_configs(config)).values()
        assert feed.name == f"lake/{table}"
        for address in (feed.table, spelled(f"{folder}/tables/{table}")):
            async with aclosing(open_store(address, container.options)) as store:
                assert (await store.read(COMMIT))[0] == b"{}"
                assert [status.name async for status in store.list("_delta_log")]
        owner = make_offset_store(config, feed.name)
        await owner.acquire()
        await owner.save(Offset(7))
        assert await make_offset_store(again, feed.name).load() == Offset(7)
        await owner.release()
        target = open_target(feed.sink.options["path"], config.folder, container.options)
        async with aclosing(target):
            assert await target.create("x", b"written")
        assert await container.get(f"{folder}/out/{table}/x") == b"written"

    anyio.run(check)
