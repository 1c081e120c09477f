"""The writer of a simulated table: real commits in a bucket, and beside them what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tailer.testing.actions import Action, add_action, inline_vector, remove_action
from tests.simulation.bucket import Bucket, BucketFolder
from tests.simulation.catalog import CatalogFolder, SimulatedCatalog
from tests.simulation.model import (
    Event,
    LogicalFile,
    Row,
    TableVersion,
    changes,
    shown,
)
from tests.simulation.world import World
from tests.support.builders import RememberingBuilder

_FIELDS = (pa.field("id", pa.int64()), pa.field("rev", pa.int32()))


@lru_cache
def _schema(columns: int) -> pa.Schema:
    return pa.schema([*_FIELDS, *(pa.field(f"c{n}", pa.int32()) for n in range(2, columns))])


@lru_cache(maxsize=4096)
def _vector(deleted: frozenset[int]) -> Action:
    return inline_vector(sorted(deleted))


class SimulatedTable:
    """A table with change data feed and deletion vectors. Version 0 creates it, empty.

    A ``catalog`` ratifies its commits. ``versions`` has what each version holds, and ``table_id``
    is the one that a feed follows.
    """

    def __init__(
        self,
        world: World,
        bucket: Bucket,
        *,
        folder: str = "table",
        first_id: int = 0,
        catalog: SimulatedCatalog | None = None,
    ) -> None:
        self.catalog = catalog
        self._time_ms = 0
        self.world = world
        self.bucket = bucket
        self.folder = folder
        self.versions: list[TableVersion] = []
        self.table_id = f"00000000-0000-4000-8000-{first_id:012d}"
        if catalog is not None:
            catalog.begin(self.table_id)
        self.builder = RememberingBuilder(
            BucketFolder(bucket, folder) if catalog is None else CatalogFolder(catalog, folder),
            _schema(2),
            cdf=True,
            table_id=self.table_id,
            properties={"delta.enableInCommitTimestamps": "true"} if catalog is not None else None,
        )
        self.removed_versions = 0
        self.removed_files: set[str] = set()
        self.touched: list[set[str]] = []
        self.successor: SimulatedTable | None = None
        self.went_back_to: int | None = None
        self._ids = first_id
        self._paths = first_id  # no writer uses the names of another table
        self._commit([self._protocol(), self.builder.metadata()], {}, Counter(), 2)

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
        managed = [] if self.catalog is None else ["catalogManaged"]
        both = ["deletionVectors", *managed, *features]
        writers = [*both, "changeDataFeed", *(["inCommitTimestamp"] if managed else [])]
        return self.builder.protocol(3, 7, readerFeatures=both, writerFeatures=writers)

    def _new_rows(self, count: int) -> tuple[Row, ...]:
        first, self._ids = self._ids, self._ids + count
        rev: tuple[object, ...] = (0,) * (self.newest.columns - 1)
        return tuple((n, *rev) for n in range(first, first + count))

    def _new_file(self, rows: tuple[Row, ...]) -> LogicalFile:
        self._paths += 1
        path = f"part-{self._paths:04d}.parquet"
        return LogicalFile(
            path, rows, self.builder.add(self._named(rows), path=path)["add"]["size"]
        )

    def _named(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        names = self.builder.schema.names
        return [dict(zip(names, shown(row, len(names)), strict=True)) for row in rows]

    @staticmethod
    def _add(file: LogicalFile, **fields: Any) -> Action:
        vector = {"deletionVector": _vector(file.deleted)} if file.deleted else {}
        return add_action(file.path, file.size, len(file.rows), None, **vector, **fields)

    def _remove(self, file: LogicalFile, **fields: Any) -> Action:
        return remove_action(self._add(file), **fields)

    def _cdc(self, events: list[Event]) -> Action:
        self._paths += 1
        rows = self._named(row for _, row in events)
        for named, (kind, _) in zip(rows, events, strict=True):
            named["_change_type"] = kind
        return self.builder.cdc(rows, path=f"_change_data/cdc-{self._paths:04d}.parquet")

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
        if self.catalog is not None:
            actions = self._in_catalog(self.catalog, number, actions)
        self.builder.commit(*actions, version=number)

    def _in_catalog(
        self, catalog: SimulatedCatalog, number: int, actions: list[Action]
    ) -> list[Action]:
        """Return the actions of a commit with its time; often stage another's commit before, which
        is not ratified."""
        self._time_ms = max(self._time_ms + 1, int(self.world.clock() * 1000))
        info: Action = {"commitInfo": {"inCommitTimestamp": self._time_ms}}
        if catalog.rng.random() < 0.4:
            row = (-1 - number, *([0] * (len(self.builder.schema.names) - 1)))
            lost = self.builder.add(self._named([row]), path=f"lost-{number:04d}.parquet")
            early = number + catalog.rng.randint(0, 1)
            catalog.stage(early, self.builder.encode_lines([info, lost]))
        return [info, *(action for action in actions if "commitInfo" not in action)]

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
        cdc = [self._cdc(events)]
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
        actions = [self._remove(f, dataChange=False) for f in leaving]
        actions.append(self._add(new, dataChange=False))
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
        self.builder.schema = _schema(columns)
        file = self._new_file(tuple((*row, 7) for row in self._new_rows(2)))
        self._rewrite([], [file], [self.builder.metadata()], columns)

    # What a feed must refuse

    def replace(self) -> None:
        """Put another table in this one's place, with fewer, as many or more versions."""
        for location in list(self.bucket.files):
            if location.startswith(f"{self.folder}/"):
                self.bucket.remove(location)
        self.successor = SimulatedTable(
            self.world, self.bucket, folder=self.folder, first_id=1_000_000, catalog=self.catalog
        )
        for _ in range(self.world.rng.randint(0, len(self.versions) + 2)):
            self.successor.append()

    def go_back(self) -> None:
        """Restore an older copy of the whole table: its newest commits are gone."""
        self.went_back_to = self.world.rng.randrange(self.removed_versions, len(self.versions))
        self.builder.store.remove("_delta_log/_last_checkpoint")
        for number in range(self.went_back_to + 1, len(self.versions)):
            for end in ("json", "checkpoint.parquet"):
                self.builder.store.remove(f"_delta_log/{number:020d}.{end}")

    def demand(self) -> None:
        """Commit a protocol that no reader here supports."""
        self._commit([self._protocol("unheardOf")], dict(self.newest.files), Counter())

    # Upkeep, which commits nothing

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and the hint to it."""
        if self.catalog is not None:
            self.catalog.publish(all_of_them=True)  # no checkpoint is beyond what is published
        files = map(self._add, self.newest.files.values())
        actions = [self._protocol(), self.builder.metadata(), *files]
        self.builder.checkpoint(self.newest.number, actions=actions)

    def clean_up(self) -> None:
        """Write a checkpoint, and remove all of the log that is older."""
        self.checkpoint()
        self.builder.clean_log(self.newest.number)
        self.removed_versions = self.newest.number

    def vacuum(self) -> None:
        """Remove all files that the newest version does not have."""
        live = self.newest.files
        for location in list(self.bucket.files):
            folder, _, path = location.partition("/")
            if folder == self.folder and not path.startswith("_delta_log/") and path not in live:
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
