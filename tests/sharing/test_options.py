"""The options of a shared table's store, and how its address is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailer.errors import ConfigError
from tailer.storage import open_store
from tailer.store.shared.store import SharingOptions
from tests.sharing.reference_server import serving


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"poll_interval_s": 29.9}, "is 29.9, and must be a number of seconds, 30 or greater"),
        ({"poll_interval_s": "soon"}, "must be a number of seconds"),
        ({"allow_http": 1}, "must be true or false"),
        ({"ca_file": 1}, "must be a string"),
        ({"poll_interval_s": True}, "must be a number of seconds"),
        ({"response_format": "csv"}, "one of auto, delta, parquet"),
        ({"region": "eu"}, "option 'region' of a shared table is not known; known are allow_http"),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SharingOptions.from_options(options)


@pytest.mark.anyio
async def test_a_shared_table_is_found_by_its_address(tmp_path: Path) -> None:
    with serving({}) as server:
        profile = server.profile(tmp_path)
        store = open_store(f"{profile}#a.b.c", {"poll_interval_s": 60})
        assert store.root == f"{profile}#a.b.c"
        assert "the-token" not in repr(store) + repr(vars(store))
        await store.aclose()


def test_options_may_be_text() -> None:
    """As the command line and Spark have them."""
    text = {"poll_interval_s": "60", "allow_http": "true"}
    found = SharingOptions.from_options(text)
    assert found.poll_interval_s == 60.0
    assert found.allow_http
