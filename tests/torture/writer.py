"""A real writer (delta-rs) at work on a round's table."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa

from tests.integration.killing import PacedWriter
from tests.torture.places import Place
from tests.torture.recipe import Recipe

__all__ = ["TableWriter"]

VERSION_ROWS = 60
TABLE_ROWS = 1500
#: Texts that a format or a database may get wrong.
AWKWARD = ("größe", 'a "b"', "x\\y", "new\nline", "", "\u202e", "NULL")


class TableWriter(PacedWriter):
    """Appends, updates, deletes, merges, rewrites files, writes checkpoints and adds columns."""

    def __init__(self, recipe: Recipe, place: Place) -> None:
        self.place = place
        self.extra = 0
        configuration = {"delta.enableChangeDataFeed": str(recipe.cdf).lower()}
        table = deltalake.DeltaTable.create(
            place.table,
            pa.schema([("id", pa.int64()), ("part", pa.int64()), ("name", pa.string())]),
            partition_by=["part"] if recipe.partitioned else None,
            configuration=configuration,
            storage_options=dict(place.deltalake),
        )
        super().__init__(recipe.seed, table)

    def commit(self) -> None:
        chance = self.random.random()
        part = self.random.randrange(10)
        if self.next_id < VERSION_ROWS or chance < 0.35:
            self._append()
        elif chance < 0.55:
            self.table.update(predicate=f"id % 10 = {part}", updates={"name": f"'updated {part}'"})
        elif chance < 0.7:
            self.table.delete(f"id % 20 = {part} or id < {self.next_id - TABLE_ROWS}")
        elif chance < 0.85:
            self._merge()
        elif chance < 0.91:
            self.table.optimize.compact()
        elif chance < 0.95:
            self.table.create_checkpoint()
        elif self.extra < 3:
            self._add_column()

    def _rows(self, first: int) -> pa.Table:
        ids = range(first, first + VERSION_ROWS)
        names = [self.random.choice([*AWKWARD, None, f"name {i}"]) for i in ids]
        return pa.table(
            {"id": pa.array(ids, pa.int64()), "part": [i % 3 for i in ids], "name": names}
        )

    def _append(self) -> None:
        rows = self._rows(self.next_id)
        for number in range(self.extra):
            values = [self.random.choice([None, i]) for i in range(VERSION_ROWS)]
            rows = rows.append_column(f"extra{number}", pa.array(values, pa.int64()))
        deltalake.write_deltalake(self.table, rows, mode="append", schema_mode="merge")
        self.next_id += VERSION_ROWS

    def _merge(self) -> None:
        first = max(0, self.next_id - VERSION_ROWS // 2)
        merger = self.table.merge(
            self._rows(first), "t.id = s.id", source_alias="s", target_alias="t"
        )
        columns = {name: f"s.{name}" for name in ("id", "part", "name")}
        merger.when_matched_update(columns).when_not_matched_insert(columns).execute()
        self.next_id = first + VERSION_ROWS

    def _add_column(self) -> None:
        field = deltalake.Field(
            f"extra{self.extra}", deltalake.schema.PrimitiveType("long"), nullable=True
        )
        self.table.alter.add_columns([field])
        self.extra += 1

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows, by id."""
        found: list[dict[str, Any]] = self.table.to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row["id"])
