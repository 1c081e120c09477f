"""A catalog-managed table that is shared: recipients need not know its catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalog.reading import ids
from tests.catalog.server import TOKEN, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.share_server.serving import served
from tests.sharing.shared import read_shared


@pytest.mark.anyio
@pytest.mark.parametrize("response_format", ["delta", "parquet"])
async def test_recipients_get_what_is_ratified(tmp_path: Path, response_format: str) -> None:
    with serving_catalog(tmp_path) as server:
        table = ManagedTable(server.endpoint, TOKEN).create()
        for _ in range(3):
            table.commit()
        table.publish()
        table.stage(4, "never ratified")
        store = f'endpoint = "{server.endpoint}"\ntoken = "{TOKEN}"'
        shared = {"share.schema.table": table.address}
        with served(tmp_path, shared, store=store) as found:
            events = await read_shared(found.profile, 1, 3, response_format=response_format)
    assert ids(events) == [1, 2, 3]
