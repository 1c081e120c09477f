"""Tables by pattern."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailer.config.feeds import load_config
from tailer.daemon.assembly import find_pattern_feeds
from tailer.daemon.discovery import discover_tables, is_pattern
from tailer.errors import ConfigError, TableError
from tests.clouds.servers import Container
from tests.s3.fixture import Bucket
from tests.s3.tables import upload

pytestmark = pytest.mark.anyio


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for table in ("orders", "people", "eu/orders", "us/orders", "us/people", ".hidden"):
        (tmp_path / table / "_delta_log").mkdir(parents=True)
    (tmp_path / "no_table" / "data").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*/", {"orders": "orders", "people": "people"}),
        ("*", {"orders": "orders", "people": "people"}),
        ("o*s/", {"rder": "orders"}),
        ("*/orders/", {"eu": "eu/orders", "us": "us/orders"}),
        ("*/*/", {"eu/orders": "eu/orders", "us/orders": "us/orders", "us/people": "us/people"}),
        ("u*/p*e/", {"s/eopl": "us/people"}),
        ("nowhere/*/", {}),
        ("file/*/", {}),
    ],
)
async def test_stars_stand_for_folders(lake: Path, pattern: str, matches: dict[str, str]) -> None:
    found = await discover_tables(f"{lake}/{pattern}", {})
    assert found.tables == {match: f"{lake}/{where}" for match, where in matches.items()}
    assert not found.unclean
    assert not found.shared
    uri = await discover_tables(f"file://{lake}/{pattern}", {})
    assert list(uri.tables) == list(matches)


@pytest.mark.parametrize(
    ("pattern", "folder", "text"),
    [
        ("db_*/", "db_..", ".."),
        ("db_*/", "db_.", "."),
        ("db_*/", "db_", ""),
        ("db_*/t_*/", "db_../t_..", "../.."),
        ("db_*/t_*/", "db_a/t_..", "a/.."),
        ("*/", "a\nb", "a\nb"),
        ("*/", "a\x9bb", "a\x9bb"),
        ("*/", os.fsdecode(b"a\xff"), os.fsdecode(b"a\xff")),
    ],
)
async def test_a_text_that_would_lead_elsewhere_is_refused(
    tmp_path: Path, pattern: str, folder: str, text: str
) -> None:
    (tmp_path / folder / "_delta_log").mkdir(parents=True)
    found = await discover_tables(f"{tmp_path}/{pattern}", {})
    assert found.unclean == {f"{tmp_path}/{folder}": text}
    assert not found.tables
    assert not found.shared


@pytest.mark.parametrize("folder", ["db_a b", "db_dt=1", "db_..x", "db_größe", "db_a\u200db"])
async def test_other_texts_are_taken_as_they_are(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder / "_delta_log").mkdir(parents=True)
    found = await discover_tables(f"{tmp_path}/db_*/", {})
    assert found.tables == {folder.removeprefix("db_"): f"{tmp_path}/{folder}"}


async def test_two_folders_with_one_name_are_both_refused(tmp_path: Path) -> None:
    for folder in ("a1-b2", "a1b-2", "a3b4"):
        (tmp_path / folder / "_delta_log").mkdir(parents=True)
    found = await discover_tables(f"{tmp_path}/a*b*/", {})
    assert found.tables == {"3-4": f"{tmp_path}/a3b4"}
    assert found.shared == {"1--2": [f"{tmp_path}/a1-b2", f"{tmp_path}/a1b-2"]}


async def test_a_folder_that_can_t_be_listed_is_named(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a table; what can't be listed in front of the star are all tables."""
    (lake / "lost+found").mkdir()

    def refuse(closed: Path) -> None:
        def listed(folder: Path, list_folder: Any = Path.iterdir) -> Iterator[Path]:
            if folder in (closed, lake / "lost+found"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return list_folder(folder)  # type: ignore[no-any-return]  # as pathlib does

        monkeypatch.setattr(Path, "iterdir", listed)

    refuse(lake / "people")
    found = await discover_tables(f"{lake}/*/", {})
    assert found.closed == [f"{lake}/people"]
    assert found.tables.keys() == {"orders"}
    refuse(lake)
    with pytest.raises(TableError, match=r"can't be searched for tables \(Permission denied\)"):
        await discover_tables(f"{lake}/*/", {})
    with pytest.raises(TableError, match=r"can't be searched for tables \(File name too long\)"):
        await discover_tables(f"{lake}/{'x' * 300}/*/", {})


async def test_a_match_is_a_part_of_an_option_and_nothing_else_of_it(tmp_path: Path) -> None:
    """In a URL it must not begin a query; a bucket's key and a path are plain text."""
    (tmp_path / "lake" / "a?b#c%2e" / "_delta_log").mkdir(parents=True)
    (tmp_path / "tailer.toml").write_text(
        '[daemon]\n[feeds.lake]\ntable = "lake/*/"\n[feeds.lake.sink]\ntype = "x"\n'
        'url = "https://host/{table}?key=1"\nkey = "s3://bucket/{table}"\npath = "out/{table}"\n'
    )
    config = load_config(tmp_path / "tailer.toml")
    (feed,) = (await find_pattern_feeds(config, config.feeds["lake"])).feeds.values()
    assert feed.sink.options == {
        "url": "https://host/a%3Fb%23c%252e?key=1",
        "key": "s3://bucket/a?b#c%2e",
        "path": "out/a?b#c%2e",
    }


async def test_a_store_without_folders_is_named() -> None:
    with pytest.raises(ConfigError, match="no store for 'https://host"):
        await discover_tables("https://host/*/", {})


def test_what_is_a_pattern() -> None:
    assert is_pattern("s3://lake/*/")
    assert not is_pattern("s3://lake/orders")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
async def test_tables_are_found_on_s3(lake: Path, bucket: Bucket, scheme: str) -> None:
    for log in lake.glob("**/_delta_log"):  # noqa: ASYNC240 - a test's own few folders
        (log / "00000000000000000000.json").write_text("{}")
    await upload(lake, bucket, "lake house")
    root = f"{scheme}://{bucket.name}/lake house"
    found = await discover_tables(f"{root}/*/", bucket.options)
    assert found.tables == {"orders": f"{root}/orders", "people": f"{root}/people"}
    deep = await discover_tables(f"{scheme}://{bucket.name}/*/*/orders", bucket.options)
    assert deep.tables == {f"lake house/{c}": f"{root}/{c}/orders" for c in ("eu", "us")}
    assert (await discover_tables(f"{root}/nowhere/*/", bucket.options)).tables == {}


async def test_tables_are_found_on_azure_and_google(lake: Path, container: Container) -> None:
    for log in lake.glob("**/_delta_log"):  # noqa: ASYNC240 - a test's own few folders
        (log / "00000000000000000000.json").write_text("{}")
    await container.upload(lake, "lake house")
    root = container.address("lake house")
    found = await discover_tables(f"{root}/*/", container.options)
    assert found.tables == {"orders": f"{root}/orders", "people": f"{root}/people"}
    deep = await discover_tables(container.address("*/*/orders"), container.options)
    assert deep.tables == {f"lake house/{c}": f"{root}/{c}/orders" for c in ("eu", "us")}
    assert (await discover_tables(f"{root}/nowhere/*/", container.options)).tables == {}
