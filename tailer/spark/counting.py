"""How many changes a file has. Most say it in the log; a few have to be opened for it."""

from __future__ import annotations

from collections.abc import Iterator

import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.changes import CHANGE_TYPE, ChangeFile
from tailer.fetch import fetch
from tailer.store import Store

__all__ = ["count_changes"]


async def count_changes(store: Store, file: ChangeFile) -> int:
    """How many changes a file has, from the log where it says so, else from its footer and its
    deletion vectors; only where a cdc file is read in two passes, from its change types."""
    if file.change_type is not None and file.only is None and file.num_records is not None:
        return file.num_records - (file.without.cardinality if file.without else 0)
    fetched = await fetch(store, file)
    with fetched.source:
        selection = fetched.selection

        def count() -> int:
            with pq.ParquetFile(fetched.source) as parquet:
                if file.kinds is None:
                    return selection.count(0, int(parquet.metadata.num_rows))
                return sum(_of_kinds(parquet, file.kinds))

        return await anyio.to_thread.run_sync(count)


def _of_kinds(parquet: pq.ParquetFile, kinds: tuple[str, ...]) -> Iterator[int]:
    for batch in parquet.iter_batches(columns=[CHANGE_TYPE]):
        wanted = pa.array(kinds, pa.string())
        yield pc.sum(pc.is_in(batch.column(0), value_set=wanted)).as_py() or 0
