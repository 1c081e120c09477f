"""Tables that Spark and others wrote, copied to S3, Azure's and Google's storage: what is followed
there is what is followed on the local disk, byte for byte.

``TAILER_TABLES`` names another folder of archives, all of which are copied to each.
"""

from __future__ import annotations

import os
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.clouds.copies import copied, followed, unpacked
from tests.clouds.servers import CLOUDS, Cloud, Container
from tests.support.source import ROOT

pytestmark = pytest.mark.anyio

KINDS: tuple[Cloud, ...] = (*CLOUDS, "s3")
OTHERS = os.environ.get("TAILER_TABLES")
ARCHIVES = sorted(Path(OTHERS or ROOT / "tests" / "golden" / "data").glob("*.tar.gz"))


@pytest.mark.slow
async def test_every_golden_table_is_the_same_wherever_it_lies(
    container: Container, tmp_path: Path
) -> None:
    # Each of ours lies on one of the three, to save time.
    here_lie = ARCHIVES if OTHERS else ARCHIVES[KINDS.index(container.cloud) :: len(KINDS)]
    originals = [unpacked(archive, tmp_path) for archive in here_lie]
    await copied(originals, container)
    there = await followed(originals, container)
    for name, here in (await followed(originals, None)).items():
        assert there[name].ended == here.ended, name
        pairs = zip_longest(here.batches, there[name].batches)
        assert next((pair for pair in pairs if pair[0] != pair[1]), None) is None, name
        assert here.rows or here.ended, name
