"""Spark at work on a round's table: one session for all rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.components import start_spark, with_byte_code
from tests.torture.places import Place
from tests.torture.recipe import Recipe
from tests.torture.writers.base import MOVED, VERSION_ROWS, RoundWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a table may have besides; each is drawn by itself.
_PROPERTIES = {
    "deletion vectors": "delta.enableDeletionVectors",
    "row tracking": "delta.enableRowTracking",
    "in-commit timestamps": "delta.enableInCommitTimestamps",
}


@cache
def _session() -> SparkSession:
    folder = Path(tempfile.mkdtemp(prefix="torture-spark-"))
    session = start_spark(folder, str(with_byte_code(folder)))
    # A round's feed has read what is removed.
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return session


class SparkWriter(RoundWriter):
    """All that delta-rs does, by SQL, and: deletion vectors, row tracking, in-commit timestamps,
    column mapping with renamed columns, widened types."""

    weights: ClassVar[Mapping[str, float]] = {
        "append": 30, "update": 18, "delete": 14, "merge": 14, "move": 6, "optimize": 5,
        "checkpoint": 3, "add_column": 4, "rename_column": 3, "widen": 3, "restore": 3, "vacuum": 2,
    }  # fmt: skip

    def __init__(self, recipe: Recipe, place: Place) -> None:
        super().__init__(recipe, place)
        self.spark = _session()
        self.name = f"delta.`{place.table}`"
        properties = {name: self.random.random() < 0.5 for name in _PROPERTIES}
        self.table_traits = [name for name, on in properties.items() if on]
        settings = {_PROPERTIES[name]: str(on).lower() for name, on in properties.items()}
        settings["delta.enableChangeDataFeed"] = str(recipe.recorded).lower()
        settings["delta.enableTypeWidening"] = "true"
        self.mapped = self.random.random() < 0.5
        if self.mapped:
            settings["delta.columnMapping.mode"] = "name"
            self.table_traits.append("column mapping")
        self.wide = False
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in settings.items())
        by = "PARTITIONED BY (part)" if recipe.partitioned else ""
        self._sql(
            f"CREATE TABLE {self.name} (id BIGINT, part BIGINT, name STRING, small INT) "
            f"USING delta {by} TBLPROPERTIES ({listed})"
        )
        self._version = 0

    def _sql(self, text: str) -> Any:
        return self.spark.sql(text)

    @property
    def text(self) -> str:
        """What ``name`` is called now."""
        return self._last_name("name")

    def version(self) -> int:
        found = sorted(Path(self.place.table, "_delta_log").glob("*.json"))
        return int(found[-1].name.partition(".")[0])

    def _new(self, first: int) -> Any:
        rows = [{**row, "small": row["id"] % 1000} for row in self.new_rows(first)]
        more = "".join(f", extra{number} BIGINT" for number in range(self.extra))
        kind = "BIGINT" if self.wide else "INT"
        schema = f"id BIGINT, part BIGINT, {self.text} STRING{more}, small {kind}"
        names = [part.split()[0] for part in schema.split(", ")]
        values = [tuple(row[name] for name in names) for row in rows]
        return self.spark.createDataFrame(values, schema)

    def append(self) -> None:
        self._new(self.next_id).write.format("delta").mode("append").save(self.place.table)
        self.next_id += VERSION_ROWS

    def update(self) -> None:
        part = self.random.randrange(10)
        self._sql(f"UPDATE {self.name} SET {self.text} = 'updated {part}' WHERE id % 10 = {part}")

    def delete(self) -> None:
        part = self.random.randrange(10)
        old = self.next_id - self.rows_max
        where = f"id % 20 = {part} OR id < {old} OR (id >= {MOVED} AND id % 3 = 0)"
        self._sql(f"DELETE FROM {self.name} WHERE {where}")

    def move(self) -> None:
        """Change the keys of some rows."""
        self.moves += 1
        part = self.random.randrange(30)
        self._sql(
            f"UPDATE {self.name} SET id = id + {MOVED * self.moves} "
            f"WHERE id < {MOVED} AND id % 30 = {part}"
        )

    def merge(self) -> None:
        first = max(0, self.next_id - VERSION_ROWS // 2)
        self._new(first).createOrReplaceTempView("torture_source")
        self._sql(
            f"MERGE INTO {self.name} t USING torture_source s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        self.next_id = first + VERSION_ROWS

    def optimize(self) -> None:
        self._sql(f"OPTIMIZE {self.name}")

    def checkpoint(self) -> None:
        jvm: Any = self.spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        log.forTable(self.spark._jsparkSession, self.place.table).checkpoint()

    def add_column(self) -> bool:
        if self.extra == 3:
            return False
        self._sql(f"ALTER TABLE {self.name} ADD COLUMNS (extra{self.extra} BIGINT)")
        self.extra += 1
        return True

    def rename_column(self) -> bool:
        if not self.mapped:
            return False
        old, new = self.text, f"name{len(self.renamed)}"
        self._sql(f"ALTER TABLE {self.name} RENAME COLUMN {old} TO {new}")
        self.renamed[old] = new
        self.whole_since = self.version()
        return True

    def widen(self) -> bool:
        if self.wide:
            return False
        self._sql(f"ALTER TABLE {self.name} ALTER COLUMN small TYPE BIGINT")
        self.wide = True
        self.whole_since = self.version()
        return True

    def restore(self) -> bool:
        """Go back some versions, of those that have the present columns."""
        to = self.version() - self.random.randint(1, 5)
        if to <= self.whole_since:
            return False
        then = self.spark.read.format("delta").option("versionAsOf", to).load(self.place.table)
        if then.columns != self.spark.read.format("delta").load(self.place.table).columns:
            return False
        self._sql(f"RESTORE TABLE {self.name} TO VERSION AS OF {to}")
        return True

    def vacuum(self) -> None:
        self._sql(f"VACUUM {self.name} RETAIN 0 HOURS")
        self.whole_since = self.version()

    def rows(self) -> list[dict[str, Any]]:
        found = self.spark.read.format("delta").load(self.place.table).collect()
        return sorted((row.asDict() for row in found), key=lambda row: row["id"])
