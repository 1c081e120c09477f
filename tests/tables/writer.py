"""A table writer for tests: operations in, real Delta commits out, and the table in memory too.

A :class:`TableWriter` keeps the protocol's writer rules for deletion vectors, cdc files, row
tracking, column mapping, type widening and in-commit timestamps, and after each commit has the
table's rows in memory (:class:`~tests.tables.model.TableVersion`), made from what the operation
means, so that a reader can be held against them::

    writer = TableWriter(folder, pa.schema([("id", pa.int64())]), cdf=True)
    writer.append([{"id": 1}, {"id": 2}])
    writer.delete(lambda row: row["id"] == 1)
    writer.present.rows()   # [{"id": 2}]

Its choices (which file a row goes to, whether a deletion vector or a rewrite deletes it, the order
of the actions) come from ``seed``. Each operation commits one version if not said otherwise.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.builders import VersatileBuilder
from tests.tables.checkpoints import LogUpkeep
from tests.tables.datafiles import DataFiles
from tests.tables.model import (
    BASE_FEATURES,
    Change,
    DataFile,
    Row,
    TableVersion,
    columns_of,
    logical_row,
    physical_row,
    visible,
)
from tests.tables.properties import TableProperties
from tests.tables.transaction import Draft, commit_draft

Decide = Callable[[dict[str, Any]], dict[str, Any] | None]
Rows = Iterable[Mapping[str, Any]]


class TableWriter(TableProperties, DataFiles, LogUpkeep):
    """Writes one table. Version 0 creates it, empty.

    ``mapping`` is the column mapping mode, ``properties`` are further table properties; the
    features that they need come by themselves. ``lean_removes`` lets half of the removes say no
    more than the protocol requires. ``present`` is the newest version that this writer knows,
    ``versions`` all of them by number, which :meth:`fork` shares.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        mapping: str = "none",
        cdf: bool = False,
        properties: Mapping[str, str] | None = None,
        seed: int = 0,
        lean_removes: bool = False,
    ) -> None:
        self.builder = VersatileBuilder(folder, pa.schema([]))
        self.versions: dict[int, TableVersion] = {}
        self.rng = random.Random(seed)
        self.builder.new_id = self._uuid
        self.lean_removes = lean_removes
        self.field_ids = count(1)
        columns = columns_of(schema)
        if mapping != "none":
            columns = tuple(self._mapped(c, fresh=True) for c in columns)
        physical = {c.name: c.physical for c in columns}
        self.present = TableVersion(
            -1,
            self.builder.table_id,
            columns,
            tuple(physical[name] for name in partition_by),
            {},
            BASE_FEATURES,
            {},
            {},
        )
        settings = self._switched(cdf=cdf or None, mapping=mapping, more=dict(properties or {}))
        self._commit(self._draft("CREATE TABLE", **settings))

    def fork(self) -> TableWriter:
        """A second writer of the table, which knows it as it is now and works beside this one."""
        other = object.__new__(TableWriter)
        other.__dict__.update(self.__dict__)
        other.rng = random.Random(self.rng.random())
        return other

    # Transactions

    def _draft(self, operation: str, **fields: Any) -> Draft:
        return Draft(self.present, operation, **fields)

    def _commit(self, draft: Draft) -> TableVersion:
        self.present = commit_draft(
            draft, self.builder, self.versions, self.rng, lean_removes=self.lean_removes
        )
        return self.present

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def unique(self) -> str:
        """A new UUID, from the seed."""
        return str(self._uuid())

    # Operations on rows

    def append(
        self,
        rows: Rows,
        *,
        files: int = 1,
        evolve: pa.Schema | None = None,
        compact: bool = False,
        renew: bool = False,
    ) -> TableVersion:
        """Append rows; ``evolve`` has columns to add to the table with them.

        The same commit may, with dataChange=false, ``compact`` the files that are there, or
        ``renew`` what the log says of them by adding them again.
        """
        draft = self._draft("WRITE", preserved=self._tracking)
        self._evolve(draft, evolve)
        if compact:
            self._compact(draft, list(self.present.files.values()))
        elif renew:
            self._renew(draft)
        draft.come += self._files(draft, self._new_rows(draft, rows), files)
        return self._commit(draft)

    def delete(self, where: Callable[[dict[str, Any]], bool], *, preserve: bool = True) -> bool:
        """Delete the rows for which ``where`` holds; it is asked once for each row. Returns
        whether there were any: without, nothing is committed."""
        return self.change(
            lambda row: None if where(row) else row, operation="DELETE", preserve=preserve
        )

    def update(
        self, where: Callable[[dict[str, Any]], bool], values: Decide, *, preserve: bool = True
    ) -> bool:
        """Update the rows for which ``where`` holds, to what ``values`` makes of them."""
        return self.change(
            lambda row: values(dict(row)) if where(row) else row,
            operation="UPDATE",
            preserve=preserve,
        )

    def change(
        self,
        decide: Decide,
        inserts: Rows = (),
        *,
        operation: str = "MERGE",
        preserve: bool = True,
        evolve: pa.Schema | None = None,
    ) -> bool:
        """Change rows one by one, and insert some, as MERGE does.

        ``decide`` gets a row and gives the very same one to keep it, None to delete it, another
        one to update it. With ``preserve`` row ids are kept where the table tracks rows. Returns
        whether anything changed: without, nothing is committed.
        """
        draft = self._draft(operation, preserved=self._tracking and preserve)
        self._evolve(draft, evolve)
        images: list[Change] = []
        updated: list[Row] = []
        only_whole_files = True
        for file in self.present.files.values():
            before = len(images)
            fates, rows = self._fates(draft, file, decide, images)
            if len(images) == before:
                continue
            updated += rows
            only_whole_files &= not rows and all(fate is None for fate in fates.values())
            updated += self._apply(draft, file, fates)
        new = self._new_rows(draft, inserts)
        images += [Change("insert", row.values) for row in new]
        if not images:
            return False
        if self.present.on("delta.enableChangeDataFeed") and (new or not only_whole_files):
            self._write_cdc(draft, images)
        files = 1 + self.rng.randrange(2)
        draft.come += self._files(draft, [*updated, *new], files, keep_ids=draft.preserved)
        self._commit(draft)
        return True

    def _fates(
        self, draft: Draft, file: DataFile, decide: Decide, images: list[Change]
    ) -> tuple[dict[int, Row | None], list[Row]]:
        """Of each live row, by position: the row as it is to be copied, None if it leaves; and
        the rows that updates make of those that leave."""
        old, columns = self.present.columns, draft.columns or self.present.columns
        fates: dict[int, Row | None] = {}
        updated = []
        for position, row in file.live():
            values = visible(row.values, old)
            shown = logical_row(values, columns)
            wanted = decide(shown)
            tracked = replace(file.tracked(position), values=values)
            if wanted is shown:
                fates[position] = tracked
                continue
            fates[position] = None
            if wanted is None:
                images.append(Change("delete", values))
                continue
            after = physical_row(wanted, columns)
            images += [Change("update_preimage", values), Change("update_postimage", after)]
            updated.append(replace(tracked, values=after, commit_version=None))
        return fates, updated

    def _apply(self, draft: Draft, file: DataFile, fates: Mapping[int, Row | None]) -> list[Row]:
        """Take the rows that leave out of their file: whole, by a deletion vector or a rewrite.
        Returns those rows that are still to be copied."""
        kept = [row for row in fates.values() if row is not None]
        draft.gone.append(file)
        if not kept:
            return []
        vectors = self.present.on("delta.enableDeletionVectors")
        if vectors and self.rng.random() < 0.75:
            leaving = {position for position, row in fates.items() if row is None}
            deleted = file.deleted | leaving
            vector = self.builder.vector(sorted(deleted), self.rng.choice("uuip"))
            draft.come.append(replace(file, deleted=deleted, vector=vector))
            return []
        if self.rng.random() < 0.5:
            return kept
        draft.come += self._files(draft, kept, keep_ids=draft.preserved)
        return []

    def overwrite(
        self, rows: Rows, *, schema: pa.Schema | None = None, partition_by: Sequence[str] = ()
    ) -> TableVersion:
        """Replace all rows; with ``schema`` also the columns and the partitioning. No row id is
        kept, as on a plain overwrite."""
        draft = self._draft("WRITE", gone=list(self.present.files.values()))
        if schema is not None:
            mapped = self.present.mapping != "none"
            columns = columns_of(schema)
            draft.columns = tuple(self._mapped(c, fresh=True) if mapped else c for c in columns)
            names = {c.name: c.physical for c in draft.columns}
            draft.partition_by = tuple(names[name] for name in partition_by)
            if mapped:
                draft.properties = {**self.present.properties, **self._max_id(draft.columns)}
        draft.come = self._files(draft, self._new_rows(draft, rows), 2)
        return self._commit(draft)

    def restore(self, version: int) -> TableVersion:
        """Bring rows, columns and most properties of an earlier version back: files that are gone
        come again, with the deletion vector, row ids and row commit versions that they had."""
        target, now = self.versions[version], self.present
        draft = self._draft("RESTORE", preserved=self._tracking)
        draft.columns, draft.partition_by = target.columns, target.partition_by
        draft.properties = self._restored_properties(target)
        for file in now.files.values():
            then = target.files.get(file.path)
            if then is None or then.key != file.key:
                draft.gone.append(file)
        for file in target.files.values():
            live = now.files.get(file.path)
            if live is None:
                draft.come.append(file)
            elif live.key != file.key:  # the same rows: they keep the ids that they have now
                ids = live.base_row_id, live.default_row_commit_version
                back = replace(file, base_row_id=ids[0], default_row_commit_version=ids[1])
                draft.come.append(back)
        return self._commit(draft)

    # Operations that only rearrange

    def optimise(self, *, preserve: bool = True) -> TableVersion:
        """Write all rows of each partition into one file, in another order (dataChange=false)."""
        return self._rearrange("OPTIMIZE", list(self.present.files.values()), preserve=preserve)

    def purge(self) -> TableVersion:
        """Rewrite the files that have deletion vectors, without the rows that those delete."""
        files = [f for f in self.present.files.values() if f.vector is not None]
        return self._rearrange("REORG", files)

    def renew(self) -> TableVersion:
        """Add all files again, with dataChange=false and nothing else, as ANALYZE does."""
        draft = self._draft("COMPUTE STATS", preserved=self._tracking)
        self._renew(draft)
        return self._commit(draft)

    def _rearrange(
        self, operation: str, files: list[DataFile], *, preserve: bool = True
    ) -> TableVersion:
        draft = self._draft(operation, preserved=self._tracking and preserve)
        self._compact(draft, files)
        return self._commit(draft)

    def _compact(self, draft: Draft, files: list[DataFile]) -> None:
        rows = [
            replace(row, values=visible(row.values, self.present.columns))
            for file in files
            for row in (file.tracked(position) for position, _ in file.live())
        ]
        self.rng.shuffle(rows)
        new = self._files(draft, rows, keep_ids=draft.preserved)
        draft.gone += files
        draft.come += new
        draft.still |= {file.path for file in (*files, *new)}

    def _renew(self, draft: Draft) -> None:
        draft.come += self.present.files.values()
        draft.still |= self.present.files.keys()

    def _new_rows(self, draft: Draft, rows: Rows) -> list[Row]:
        columns = draft.columns or self.present.columns
        return [Row(physical_row(row, columns)) for row in rows]

    @property
    def _tracking(self) -> bool:
        return self.present.on("delta.enableRowTracking")
