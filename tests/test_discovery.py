"""Tables by pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.discovery import discover, is_pattern
from tailer.errors import ConfigError

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
