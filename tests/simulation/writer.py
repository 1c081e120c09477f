"""The writer of a simulated table: real commits in a bucket, and beside them what they mean."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.checkpoint_files import CLASSIC_SCHEMA
from tailer.testing.table import deletion_vector_bytes, delta_schema, z85_encode
from tests.simulation.bucket import Bucket
from tests.simulation.model import (
    Event,
    LogicalFile,
    Row,
    TableVersion,
    changes,
    shown,
)
from tests.simulation.world import World

__all__ = ["OPERATIONS", "SimulatedTable"]

_FIELDS = (pa.field("id", pa.int64()), pa.field("rev", pa.int32()))
_LOG = "_delta_log"
Action = dict[str, Any]


def _schema(columns: int) -> pa.Schema:
    return pa.schema([*_FIELDS, *(pa.field(f"c{n}", pa.int32()) for n in range(2, columns))])


@lru_cache
def _schema_text(columns: int) -> str:
    return delta_schema(_schema(columns))


@lru_cache(maxsize=4096)
def _parquet(columns: int, rows: tuple[Row, ...], kinds: tuple[str, ...] | None = None) -> bytes:
    """Return a data file's bytes; with ``kinds`` a cdc file's. Histories share them."""
    schema = _schema(columns)
    arrays = [pa.array([row[n] for row in rows], schema.field(n).type) for n in range(columns)]
    if kinds is not None:
        schema = schema.append(pa.field("_change_type", pa.string()))
        arrays.append(pa.array(kinds, pa.string()))
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="none")
    return sink.getvalue()


@lru_cache(maxsize=4096)
def _checkpoint(actions: str) -> bytes:
    """Return the bytes of a checkpoint with these actions, which are JSON."""
    table = pa.Table.from_pylist(json.loads(actions), schema=CLASSIC_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@lru_cache(maxsize=4096)
def _vector(deleted: frozenset[int]) -> Action:
    data = deletion_vector_bytes(deleted)
    return {
        "storageType": "i", "pathOrInlineDv": z85_encode(data), "sizeInBytes": len(data),
        "cardinality": len(deleted),
    }  # fmt: skip


class SimulatedTable:
    """A table with change data feed and deletion vectors. Version 0 creates it, empty.

    ``versions`` has what each version holds. ``table_id`` is the one that a feed follows.
    """

    def __init__(
        self, world: World, bucket: Bucket, *, folder: str = "table", first_id: int = 0
    ) -> None:
        self.world = world
        self.bucket = bucket
        self.folder = folder
        self.versions: list[TableVersion] = []
        self.table_id = f"00000000-0000-4000-8000-{first_id:012d}"
        self.removed_versions = 0
        self.removed_files: set[str] = set()
        self.touched: list[set[str]] = []
        self.successor: SimulatedTable | None = None
        self.went_back_to: int | None = None
        self._ids = first_id
        self._paths = first_id  # no writer uses the names of another table
        self._commit([self._protocol(), self._metadata(2)], {}, Counter(), 2)

    # What it holds

    @property
    def newest(self) -> TableVersion:
        """The newest version."""
        return self.versions[-1]

    @property
    def next_id(self) -> int:
        """The id of the next row that will be inserted."""
        return self._ids

    @property
    def last(self) -> int | None:
        """The version that a feed ends after; None: it must refuse to go on."""
        if self.successor is not None:
            return None
        return self.newest.number if self.went_back_to is None else self.went_back_to

    def is_lost(self, version: int) -> bool:
        """Return whether something that the version's changes or rows need is gone."""
        needed = self.touched[version] | self.versions[version].files.keys()
        return version <= self.removed_versions or bool(needed & self.removed_files)

    def _some(self, files: Iterable[LogicalFile], most: int) -> list[LogicalFile]:
        found = sorted(files, key=lambda f: f.path)
        rng = self.world.rng
        return rng.sample(found, min(len(found), rng.randint(1, most)))

    # Actions

    def _protocol(self, *features: str) -> Action:
        both = ["deletionVectors", *features]
        return {
            "protocol": {
                "minReaderVersion": 3, "minWriterVersion": 7,
                "readerFeatures": both, "writerFeatures": [*both, "changeDataFeed"],
            }
        }  # fmt: skip

    def _metadata(self, columns: int) -> Action:
        return {
            "metaData": {
                "id": self.table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": _schema_text(columns),
                "partitionColumns": [],
                "configuration": {"delta.enableChangeDataFeed": "true"},
                "createdTime": 0,
            }
        }

    def _new_rows(self, count: int) -> tuple[Row, ...]:
        first, self._ids = self._ids, self._ids + count
        rev: tuple[object, ...] = (0,) * (self.newest.columns - 1)
        return tuple((n, *rev) for n in range(first, first + count))

    def _new_file(self, rows: tuple[Row, ...], columns: int | None = None) -> LogicalFile:
        self._paths += 1
        path = f"part-{self._paths:04d}.parquet"
        columns = columns or self.newest.columns
        data = _parquet(columns, tuple(shown(row, columns) for row in rows))
        self.bucket.put(f"{self.folder}/{path}", data)
        return LogicalFile(path, rows, len(data))

    @staticmethod
    def _fields(file: LogicalFile, *, data_change: bool) -> Action:
        found: Action = {
            "path": file.path, "partitionValues": {}, "size": file.size, "dataChange": data_change,
        }  # fmt: skip
        return {**found, "deletionVector": _vector(file.deleted)} if file.deleted else found

    def _add(self, file: LogicalFile, *, data_change: bool = True) -> Action:
        stats = json.dumps({"numRecords": len(file.rows)})
        fields = self._fields(file, data_change=data_change)
        return {"add": {**fields, "modificationTime": 0, "stats": stats}}

    def _remove(self, file: LogicalFile, *, data_change: bool = True) -> Action:
        fields = self._fields(file, data_change=data_change)
        return {"remove": {**fields, "deletionTimestamp": 0, "extendedFileMetadata": True}}

    def _cdc(self, events: list[Event], columns: int) -> Action:
        self._paths += 1
        path = f"_change_data/cdc-{self._paths:04d}.parquet"
        rows = tuple(shown(row, columns) for _, row in events)
        data = _parquet(columns, rows, tuple(kind for kind, _ in events))
        self.bucket.put(f"{self.folder}/{path}", data)
        return {
            "cdc": {"path": path, "partitionValues": {}, "size": len(data), "dataChange": False}
        }

    # Commits

    def _commit(
        self,
        actions: list[Action],
        files: dict[str, LogicalFile],
        events: Counter[Event],
        columns: int | None = None,
    ) -> None:
        number = len(self.versions)
        columns = columns or self.newest.columns
        actions = actions or [{"commitInfo": {}}]
        self.touched.append(
            {v["path"] for action in actions for v in action.values() if "path" in v}
        )
        before = self.versions[-1] if self.versions else None
        version = TableVersion(number, columns, files, events, before)
        self.versions.append(version)
        data = "".join(json.dumps(action) + "\n" for action in actions).encode()
        self.bucket.put(f"{self.folder}/{_LOG}/{number:020d}.json", data)

    def _rewrite(
        self, leaving: Iterable[LogicalFile], coming: Iterable[LogicalFile],
        more: Iterable[Action] = (), columns: int | None = None,
    ) -> None:  # fmt: skip
        """Commit files that leave and come; their rows are the changes."""
        gone, new = {f.path: f for f in leaving}, {f.path: f for f in coming}
        before = self.newest
        files = {p: f for p, f in before.files.items() if p not in gone} | new
        actions = [*more, *map(self._remove, gone.values()), *map(self._add, new.values())]
        columns = columns or before.columns
        paths = {**gone, **new}
        self._commit(actions, files, changes(before, paths, files, columns), columns)

    # Operations. Each commits one version, or does nothing where the table has no files for it.

    def append(self) -> None:
        """Add one to three files."""
        rng = self.world.rng
        files = [
            self._new_file(self._new_rows(rng.randint(1, 5))) for _ in range(rng.randint(1, 2))
        ]
        self._rewrite([], files)

    def nothing(self) -> None:
        """Commit nothing."""
        self._commit([], dict(self.newest.files), Counter())

    def delete(self) -> None:
        """Delete some rows by deletion vectors."""
        rng, leaving, coming = self.world.rng, [], []
        for file in self._some(self.newest.files.values(), 2):
            live = list(file.live())
            chosen = frozenset(rng.sample(live, rng.randint(1, max(1, len(live) - 1))))
            leaving.append(file)
            if len(chosen) < len(live):
                coming.append(replace(file, deleted=file.deleted | chosen))
        self._rewrite(leaving, coming)

    def update(self) -> None:
        """Update some rows: files are rewritten, and a cdc file has the images."""
        rng, before = self.world.rng, self.newest
        leaving = self._some(before.files.values(), 2)
        events: list[Event] = []
        coming = []
        for file in leaving:
            rows = []
            for row in file.live().values():
                old = shown(row, before.columns)
                if rng.random() < 0.5:
                    new = (old[0], int(str(old[1])) + 1, *old[2:])
                    events += [("update_preimage", old), ("update_postimage", new)]
                    rows.append(new)
                else:
                    rows.append(old)
            coming.append(self._new_file(tuple(rows)))
        if not events:
            return self.optimize()
        files = {p: f for p, f in before.files.items() if f not in leaving}
        files |= {f.path: f for f in coming}
        cdc = [self._cdc(events, before.columns)]
        actions = [*map(self._remove, leaving), *map(self._add, coming), *cdc]
        self._commit(actions, files, Counter(events))
        return None

    def overwrite(self) -> None:
        """Remove all files and add a new one."""
        self._rewrite(self.newest.files.values(), [self._new_file(self._new_rows(3))])

    def optimize(self) -> None:
        """Write several files as one, which changes no row."""
        before = self.newest
        leaving = self._some(before.files.values(), 4)
        rows = tuple(shown(row, before.columns) for file in leaving for row in file.live().values())
        if not rows:
            return self.nothing()
        new = self._new_file(rows)
        files = {p: f for p, f in before.files.items() if f not in leaving}
        actions = [self._remove(f, data_change=False) for f in leaving]
        actions.append(self._add(new, data_change=False))
        self._commit(actions, {**files, new.path: new}, Counter())
        return None

    def restore(self) -> None:
        """Return to an earlier version's files, where all of them still exist."""
        target = self.world.rng.choice(self.versions)
        if self.removed_files & target.files.keys():
            return self.nothing()
        now = self.newest.files
        leaving = [f for f in now.values() if target.files.get(f.path) != f]
        coming = [f for f in target.files.values() if now.get(f.path) != f]
        self._rewrite(leaving, coming)
        return None

    def add_column(self) -> None:
        """Add a column, together with a file that has it."""
        columns = self.newest.columns + 1
        file = self._new_file(tuple((*row, 7) for row in self._new_rows(2)), columns)
        self._rewrite([], [file], [self._metadata(columns)], columns)

    # What a feed must refuse

    def replace(self) -> None:
        """Put another table in this one's place, with fewer, as many or more versions."""
        for location in list(self.bucket.files):
            if location.startswith(f"{self.folder}/"):
                self.bucket.remove(location)
        self.successor = SimulatedTable(
            self.world, self.bucket, folder=self.folder, first_id=1_000_000
        )
        for _ in range(self.world.rng.randint(0, len(self.versions) + 2)):
            self.successor.append()

    def go_back(self) -> None:
        """Restore an older copy of the whole table: its newest commits are gone."""
        self.went_back_to = self.world.rng.randrange(self.removed_versions, len(self.versions))
        for number in range(self.went_back_to + 1, len(self.versions)):
            self.bucket.remove(f"{self.folder}/{_LOG}/{number:020d}.json")
            self.bucket.remove(f"{self.folder}/{_LOG}/{number:020d}.checkpoint.parquet")
        self.bucket.remove(f"{self.folder}/{_LOG}/_last_checkpoint")

    def demand(self) -> None:
        """Commit a protocol that no reader here supports."""
        self._commit([self._protocol("unheardOf")], dict(self.newest.files), Counter())

    # Upkeep, which commits nothing

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and the hint to it."""
        version = self.newest
        metadata = self._metadata(version.columns)
        actions = [self._protocol(), metadata, *map(self._add, version.files.values())]
        log = f"{self.folder}/{_LOG}"
        data = _checkpoint(json.dumps(actions))
        self.bucket.put(f"{log}/{version.number:020d}.checkpoint.parquet", data)
        hint = {"version": version.number, "size": len(actions)}
        self.bucket.put(f"{log}/_last_checkpoint", json.dumps(hint).encode())

    def clean_up(self) -> None:
        """Write a checkpoint, and remove all commits before it."""
        self.checkpoint()
        for number in range(self.removed_versions, self.newest.number):
            self.bucket.remove(f"{self.folder}/{_LOG}/{number:020d}.json")
        self.removed_versions = self.newest.number

    def vacuum(self) -> None:
        """Remove all files that the newest version does not have."""
        live = self.newest.files
        for location in list(self.bucket.files):
            folder, _, path = location.partition("/")
            if folder == self.folder and not path.startswith(f"{_LOG}/") and path not in live:
                self.bucket.remove(location)
                self.removed_files.add(path)


#: The operations of a writer, and how often each is chosen.
OPERATIONS: dict[str, tuple[int, Callable[[SimulatedTable], None]]] = {
    "append": (8, SimulatedTable.append),
    "delete": (4, SimulatedTable.delete),
    "update": (5, SimulatedTable.update),
    "nothing": (1, SimulatedTable.nothing),
    "overwrite": (1, SimulatedTable.overwrite),
    "optimize": (2, SimulatedTable.optimize),
    "restore": (1, SimulatedTable.restore),
    "add_column": (1, SimulatedTable.add_column),
    "checkpoint": (1, SimulatedTable.checkpoint),
}
