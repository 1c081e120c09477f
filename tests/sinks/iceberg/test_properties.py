"""Properties of a table of its user's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailer.errors import TargetRefused
from tests.sinks.iceberg.conftest import KEY
from tests.support.iceberg import Lake
from tests.support.sinks import NAMED, rows, write

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "wrong",
    [
        "write.format.default=orc", "write.format.default=nonsense",
        "write.parquet.compression-codec=nonsense", "write.parquet.compression-codec=lzo",
        "write.parquet.compression-level=high", "write.parquet.row-group-limit=0",
        "write.metadata.metrics.default=nonsense", "write.metadata.metrics.default=truncate(x)",
        "write.data.path=nowhere://here", "commit.manifest.min-count-to-merge=some",
        "write.avro.compression-codec=nonsense", "write.parquet.page-row-limit=-1",
        "write.parquet.page-row-limit=0", "write.parquet.page-row-limit=many",
    ],
)  # fmt: skip
async def test_a_property_that_can_not_be_used_is_refused(lake: Lake, wrong: str) -> None:
    """It would not pass by itself."""
    catalog, (name, _, value) = lake.open(), wrong.partition("=")
    catalog.create_namespace(lake.namespace)
    schema = pa.schema([pa.field(f.name, f.type) for f in NAMED])
    catalog.create_table(lake.name, schema, properties={name: value})
    with pytest.raises(TargetRefused, match=r"has a property that can't be used .*; change or"):
        await write(lake.make_sink(key=KEY), rows((1, "a")))
    table = lake.table()
    table.transaction().remove_properties(name).commit_transaction()
    await write(lake.make_sink(key=KEY), rows((1, "a")))
    assert lake.rows() == [{"id": 1, "name": "a"}]
