"""Batches of rows, as callers get them: an Arrow record batch, and the offset behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from tailer.changes import ChangeBatch, Offset
from tailer.sink import OWN_PREFIX, OwnNames

if TYPE_CHECKING:
    import polars as pl

_IDS = {"_event_id": pa.string(), "_origin": pa.string(), "_row_id": pa.int64()}


class Ids(Struct, frozen=True):
    """Whether all that identifies events is added to them, and what its names begin with."""

    wanted: bool = False
    prefix: str = OWN_PREFIX

    @property
    def own(self) -> OwnNames:
        """Return the names of the columns that are added."""
        return OwnNames.of(*_IDS, prefix=self.prefix) if self.wanted else OwnNames()

    def of_jsonl(self, path: str) -> dict[str, Any]:
        """Return the options of the JSON lines sink."""
        ids = "all" if self.wanted else "none"
        return {"path": path, "own_prefix": self.prefix, "notices": False, "ids": ids}

    def extend_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema with the columns that are added at its end."""
        added = map(pa.field, self.own.names, _IDS.values())
        return pa.schema([*schema, *added]) if self.wanted else schema

    def build_rows(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return the rows of a batch that has some, with the columns that are added."""
        rows = batch.rows
        if not self.wanted:
            return rows
        origin = batch.by_part(lambda part: part.file.origin)
        if isinstance(origin, str):
            origin = pa.repeat(pa.scalar(origin), rows.num_rows)
        row_ids = batch.row_ids
        if row_ids is None:
            row_ids = pa.nulls(rows.num_rows, pa.int64())
        columns = [*rows.columns, batch.event_ids(), origin, row_ids]
        return pa.RecordBatch.from_arrays(columns, schema=self.extend_schema(rows.schema))


class Batch(Struct, frozen=True):
    """Rows of one or more versions, in order; never none.

    ``rows`` is the Arrow record batch, whose methods and attributes the batch has too, and
    ``offset`` where a read continues behind it. Arrow's C interface gives it to every library
    that has that: ``polars.DataFrame(batch)``, ``pyarrow.record_batch(batch)``.
    """

    rows: pa.RecordBatch
    offset: Offset

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rows, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.rows)})

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __getitem__(self, column: int | str) -> pa.Array:
        return self.rows[column]

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.rows.__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(self.rows).__arrow_c_stream__(requested_schema)

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a polars frame. Raises ImportError without polars."""
        return polars_frame(self.rows)


def polars_frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return rows as a polars frame. Raises ImportError if polars is not installed."""
    import polars as pl  # a user's library, and none of ours

    return pl.DataFrame(pl.from_arrow(rows))
