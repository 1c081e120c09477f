"""A writer of our own, by :mod:`tailer.testing`: deletion vectors, column mapping, in-commit
timestamps, and logs as no other writer here writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.torture.places import Place
from tests.torture.recipe import Recipe
from tests.torture.writers.base import MOVED, VERSION_ROWS, RoundWriter

Row = dict[str, Any]


@dataclass
class _File:
    """A data file: its action, its rows, and which of them are deleted."""

    add: dict[str, Any]
    rows: list[Row]
    deleted: set[int] = field(default_factory=set)

    def live(self) -> list[tuple[int, Row]]:
        return [(i, row) for i, row in enumerate(self.rows) if i not in self.deleted]


class OwnWriter(RoundWriter):
    """Each version is made of actions by hand. Rows are known by ids of columns, so that a renamed
    column keeps its values."""

    weights: ClassVar[Mapping[str, float]] = {
        "append": 30, "update": 18, "delete": 14, "merge": 14, "move": 6, "optimize": 5,
        "checkpoint": 4, "add_column": 4, "rename_column": 4, "restore": 3, "vacuum": 2,
        "nothing": 2,
    }  # fmt: skip

    def __init__(self, recipe: Recipe, place: Place) -> None:
        super().__init__(recipe, place)
        self.mapped = self.random.random() < 0.6
        self.vectors = self.random.random() < 0.7
        self.stamped = self.random.random() < 0.5
        traits = {"column mapping": self.mapped, "deletion vectors": self.vectors,
                  "in-commit timestamps": self.stamped}  # fmt: skip
        self.table_traits = [name for name, on in traits.items() if on]
        properties = {"delta.columnMapping.mode": "name"} if self.mapped else {}
        properties |= {"delta.enableDeletionVectors": "true"} if self.vectors else {}
        properties |= {"delta.enableInCommitTimestamps": "true"} if self.stamped else {}
        self.columns = ["id", "part", "name"]  # physical, in order
        self.types = {"id": pa.int64(), "part": pa.int64(), "name": pa.string()}
        self.partition = ("part",) if recipe.partitioned else ()
        self.files: list[_File] = []
        self.history: list[list[tuple[dict[str, Any], list[Row], frozenset[int]]]] = []
        self.stamp_ms = 1_767_225_600_000
        self.table = TableBuilder(
            Path(place.table), self._schema(), cdf=recipe.recorded, properties=properties,
            partition_by=self.partition,
        )  # fmt: skip
        readers = ["columnMapping"] * self.mapped + ["deletionVectors"] * self.vectors
        writers = [*readers, *["inCommitTimestamp"] * self.stamped]
        writers += ["changeDataFeed"] * recipe.recorded
        protocol = self.table.protocol(3, 7, readerFeatures=readers, writerFeatures=writers)
        self._commit_version([protocol], create=True)

    def _schema(self) -> pa.Schema:
        fields = []
        for number, physical in enumerate(self.columns, 1):
            keys = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
            texts = {name: json.dumps(value) for name, value in keys.items()} if self.mapped else {}
            name = self._last_name(physical)
            fields.append(pa.field(name, self.types[physical], metadata=texts))
        return pa.schema(fields)

    def _physical(self) -> pa.Schema:
        return pa.schema([(name, self.types[name]) for name in self.columns])

    def version(self) -> int:
        return self.table.version

    def _commit_version(self, actions: Sequence[dict[str, Any]], *, create: bool = False) -> None:
        self.stamp_ms += 1000
        info: dict[str, Any] = {"timestamp": self.stamp_ms, "operation": "WRITE"}
        if self.stamped:
            info["inCommitTimestamp"] = self.stamp_ms
        first = {"commitInfo": info}
        if create:
            self.table.create(first, *actions)
        else:
            self.table.commit(first, *actions)
        self.history.append([(f.add, f.rows, frozenset(f.deleted)) for f in self.files])

    def _write(self, rows: Sequence[Row], **fields: Any) -> list[_File]:
        """Write rows to files, one for each partition."""
        if not rows:
            return []
        parts: dict[Any, list[Row]] = {}
        for row in rows:
            parts.setdefault(row["part"] if self.partition else None, []).append(row)
        self.table.schema = self._physical()
        files = []
        for value, some in parts.items():
            partition = {"part": str(value)} if self.partition else None
            files.append(_File(self.table.add(some, partition=partition, **fields), some))
        self.table.schema = self._schema()
        return files

    def _images(self, kinds: Sequence[tuple[str, Row]]) -> list[dict[str, Any]]:
        """The cdc actions of changed rows, if the table records them."""
        if not self.recipe.recorded or not kinds:
            return []
        parts: dict[Any, list[Row]] = {}
        for kind, row in kinds:
            image = {**row, "_change_type": kind}
            parts.setdefault(row["part"] if self.partition else None, []).append(image)
        self.table.schema = self._physical()
        actions = [
            self.table.cdc(rows, partition={"part": str(value)} if self.partition else None)
            for value, rows in parts.items()
        ]
        self.table.schema = self._schema()
        return actions

    def _full(self, row: Row) -> Row:
        return {name: row.get(name) for name in self.columns}

    def append(self) -> None:
        rows = self.new_rows(self.next_id)
        self.next_id += VERSION_ROWS
        files = self._write(self._by_physical(rows))
        self.files += files
        self._commit_version([file.add for file in files])

    def _by_physical(self, rows: Sequence[Row]) -> list[Row]:
        names = {self._last_name(physical): physical for physical in self.columns}
        return [{names[name]: value for name, value in row.items()} for row in rows]

    def _change(
        self, wanted: Callable[[Row], bool], changed: Callable[[Row], Row | None],
        more: Sequence[Row] = (),
    ) -> bool:  # fmt: skip
        """Replace the rows that are wanted, or remove them, and add some."""
        actions: list[dict[str, Any]] = []
        images: list[tuple[str, Row]] = [("insert", row) for row in more]
        coming: list[Row] = list(more)
        left: list[_File] = []
        for file in self.files:
            gone = [(i, row) for i, row in file.live() if wanted(row)]
            if not gone:
                left.append(file)
                continue
            staying = [row for _, row in file.live() if not wanted(row)]
            for _, row in gone:
                new = changed(self._full(row))
                if new is None:
                    images.append(("delete", self._full(row)))
                else:
                    images += [("update_preimage", self._full(row)), ("update_postimage", new)]
                    coming.append(new)
            if self.vectors and staying:
                deleted = file.deleted | {i for i, _ in gone}
                storage = self.random.choice("iup" if len(deleted) < 100 else "u")
                remove, add = self.table.delete_rows(_changing(file.add), deleted, storage)
                actions += [remove, add]
                left.append(_File(add, file.rows, deleted))
            else:
                actions.append(self.table.remove(file.add))
                rewritten = self._write([self._full(row) for row in staying])
                actions += [each.add for each in rewritten]
                left += rewritten
        if not actions and not coming:
            return False
        written = self._write(coming)
        self.files = left + written
        self._commit_version([*actions, *(file.add for file in written), *self._images(images)])
        return True

    def update(self) -> bool:
        part = self.random.randrange(10)
        return self._change(
            lambda row: row["id"] % 10 == part, lambda row: {**row, "name": f"updated {part}"}
        )

    def delete(self) -> bool:
        part, old = self.random.randrange(10), self.next_id - self.rows_max

        def wanted(row: Row) -> bool:
            key: int = row["id"]
            return key % 20 == part or key < old or (key >= MOVED and key % 3 == 0)

        return self._change(wanted, lambda _: None)

    def move(self) -> bool:
        """Change the keys of some rows."""
        self.moves += 1
        part, by = self.random.randrange(30), MOVED * self.moves
        return self._change(
            lambda row: row["id"] < MOVED and row["id"] % 30 == part,
            lambda row: {**row, "id": row["id"] + by},
        )

    def merge(self) -> bool:
        first = max(0, self.next_id - VERSION_ROWS // 2)
        source = {row["id"]: self._full(row) for row in self._by_physical(self.new_rows(first))}
        known = {row["id"] for file in self.files for _, row in file.live()}
        self.next_id = first + VERSION_ROWS
        more = [row for key, row in source.items() if key not in known]
        return self._change(lambda row: row["id"] in source, lambda row: source[row["id"]], more)

    def optimize(self) -> bool:
        """Rewrite all files as one, or one for each partition; no row changes."""
        rows = [self._full(row) for file in self.files for _, row in file.live()]
        if not rows:
            return False
        old, self.files = self.files, self._write(rows, dataChange=False)
        gone = [self.table.remove(file.add, dataChange=False) for file in old]
        self._commit_version([*gone, *(file.add for file in self.files)])
        return True

    def checkpoint(self) -> None:
        self.table.checkpoint()

    def nothing(self) -> None:
        """A version without any file."""
        self._commit_version([])

    def add_column(self) -> bool:
        if self.extra == 3:
            return False
        name = f"extra{self.extra}"
        self.columns.append(name)
        self.types[name] = pa.int64()
        self.extra += 1
        self._metadata()
        return True

    def rename_column(self) -> bool:
        if not self.mapped:
            return False
        self.renamed[self._last_name("name")] = f"name{len(self.renamed)}"
        self._metadata()
        return True

    def _metadata(self) -> None:
        self.table.schema = self._schema()
        self._commit_version([self.table.metadata()])

    def restore(self) -> bool:
        """The files of an earlier version again."""
        to = self.version() - self.random.randint(1, 5)
        if to <= self.whole_since:
            return False
        then = [_File(add, rows, set(deleted)) for add, rows, deleted in self.history[to]]
        now = {_name(file.add): file for file in self.files}
        old = {_name(file.add): file for file in then}
        gone = [self.table.remove(file.add) for name, file in now.items() if name not in old]
        back = [_changing(file.add) for name, file in old.items() if name not in now]
        self.files = then
        self._commit_version([*gone, *back])
        return True

    def vacuum(self) -> bool:
        """Remove the files that the newest version does not need."""
        needed = {file.add["add"]["path"] for file in self.files}
        for path in Path(self.place.table).rglob("*.parquet"):
            relative = path.relative_to(self.place.table)
            if relative.parts[0] != "_delta_log" and str(relative) not in needed:
                path.unlink()
        self.whole_since = self.version()
        return True

    def rows(self) -> list[Row]:
        found = [row for file in self.files for _, row in file.live()]
        named = [{self._last_name(name): row.get(name) for name in self.columns} for row in found]
        return sorted(named, key=lambda row: row["id"])


def _changing(action: dict[str, Any]) -> dict[str, Any]:
    """An add of a file, which another version may only have moved rows to."""
    return {"add": {**action["add"], "dataChange": True}}


def _name(action: dict[str, Any]) -> tuple[str, str]:
    add = action["add"]
    return add["path"], json.dumps(add.get("deletionVector"), sort_keys=True)
