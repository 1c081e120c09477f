"""delta-rs at work on a round's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import deltalake
import pyarrow as pa

from tests.torture.places import Place
from tests.torture.recipe import Recipe
from tests.torture.writers.base import MOVED, VERSION_ROWS, RoundWriter


class DeltaRsWriter(RoundWriter):
    """Appends, updates, deletes, merges, changes keys, adds columns, rewrites files, restores,
    vacuums, writes checkpoints and cleans the log."""

    weights: ClassVar[Mapping[str, float]] = {
        "append": 30, "update": 18, "delete": 14, "merge": 14, "move": 6, "optimize": 5,
        "checkpoint": 4, "add_column": 3, "restore": 2, "vacuum": 2, "clean_log": 2,
    }  # fmt: skip

    def __init__(self, recipe: Recipe, place: Place, without: Sequence[str] = ()) -> None:
        super().__init__(recipe, place, without)
        self.table = deltalake.DeltaTable.create(
            place.table,
            pa.schema([("id", pa.int64()), ("part", pa.int64()), ("name", pa.string())]),
            partition_by=["part"] if recipe.partitioned else None,
            configuration={
                "delta.enableChangeDataFeed": str(recipe.recorded).lower(),
                "delta.logRetentionDuration": "interval 0 days",
                # Or each checkpoint would clean the log, also of what no feed has read yet.
                "delta.enableExpiredLogCleanup": "false",
            },
            storage_options=dict(place.deltalake),
        )

    def version(self) -> int:
        self.table.update_incremental()
        return self.table.version()

    def append(self) -> None:
        rows = pa.Table.from_pylist(self.new_rows(self.next_id), self._schema(self.extra))
        deltalake.write_deltalake(self.table, rows, mode="append", schema_mode="merge")
        self.next_id += VERSION_ROWS

    def _schema(self, extra: int) -> pa.Schema:
        more = [(f"extra{number}", pa.int64()) for number in range(extra)]
        return pa.schema([("id", pa.int64()), ("part", pa.int64()), ("name", pa.string()), *more])

    def update(self) -> None:
        part = self.random.randrange(10)
        self.table.update(predicate=f"id % 10 = {part}", updates={"name": f"'updated {part}'"})

    def delete(self) -> None:
        part = self.random.randrange(10)
        old = self.next_id - self.rows_max
        self.table.delete(f"id % 20 = {part} or id < {old} or (id >= {MOVED} and id % 3 = 0)")

    def move(self) -> None:
        """Change the keys of some rows."""
        self.moves += 1
        part = self.random.randrange(30)
        self.table.update(
            predicate=f"id < {MOVED} and id % 30 = {part}",
            updates={"id": f"id + {MOVED * self.moves}"},
        )

    def merge(self) -> None:
        first = max(0, self.next_id - VERSION_ROWS // 2)
        source = pa.Table.from_pylist(self.new_rows(first), self._schema(0))
        merger = self.table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        columns = {name: f"s.{name}" for name in ("id", "part", "name")}
        merger.when_matched_update(columns).when_not_matched_insert(columns).execute()
        self.next_id = first + VERSION_ROWS

    def optimize(self) -> None:
        self.table.optimize.compact()

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def add_column(self) -> bool:
        if self.extra == 3:
            return False
        field = deltalake.Field(
            f"extra{self.extra}", deltalake.schema.PrimitiveType("long"), nullable=True
        )
        self.table.alter.add_columns([field])
        self.extra += 1
        return True

    def restore(self) -> bool:
        """Go back some versions, of those that have the present columns."""
        to = self.version() - self.random.randint(1, 5)
        if to < max(self.whole_since, 1):
            return False
        then = deltalake.DeltaTable(
            self.place.table, version=to, storage_options=dict(self.place.deltalake)
        )
        if then.schema() != self.table.schema():
            return False
        self.table.restore(to)
        return True

    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        self.whole_since = self.version()

    def clean_log(self) -> None:
        self.table.create_checkpoint()
        self.table.cleanup_metadata()
        self.whole_since = self.version()

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row["id"])
