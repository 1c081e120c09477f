"""Tables by pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.daemon.discovery import discover, is_pattern
from tailer.errors import ConfigError
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
    found = await discover(f"{lake}/{pattern}", {})
    assert found == {match: f"{lake}/{where}" for match, where in matches.items()}
    uri = await discover(f"file://{lake}/{pattern}", {})
    assert list(uri) == list(matches)


async def test_a_store_without_folders_is_named() -> None:
    with pytest.raises(ConfigError, match="can't be looked for at https://"):
        await discover("https://host/*/", {})


def test_what_is_a_pattern() -> None:
    assert is_pattern("s3://lake/*/")
    assert not is_pattern("s3://lake/orders")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
async def test_tables_are_found_on_s3(lake: Path, bucket: Bucket, scheme: str) -> None:
    for log in lake.glob("**/_delta_log"):  # noqa: ASYNC240 - a test's own few folders
        (log / "00000000000000000000.json").write_text("{}")
    await upload(lake, bucket, "lake house")
    root = f"{scheme}://{bucket.name}/lake house"
    found = await discover(f"{root}/*/", bucket.options)
    assert found == {"orders": f"{root}/orders", "people": f"{root}/people"}
    deep = await discover(f"{scheme}://{bucket.name}/*/*/orders", bucket.options)
    assert deep == {f"lake house/{c}": f"{root}/{c}/orders" for c in ("eu", "us")}
    assert await discover(f"{root}/nowhere/*/", bucket.options) == {}
