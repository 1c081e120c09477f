"""An Iceberg table that a feed writes.

Each snapshot of ours has in its summary, under ``delta-tailer``, the feed, a number that grows, and
the offset after it. What changes more rarely is in the table's property of that name, and so is a
copy of the offset, for a table whose snapshots were expired behind a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot

from sinks.iceberg.types import find_stored_schema
from sinks.shared.target_table import (
    INFO,
    Claim,
    ColumnChange,
    TargetTable,
    cast_columns,
    filter_keys,
    has_exact_bounds,
)
from tailer.changes import Offset
from tailer.errors import OffsetError, TailerError, TargetRefused, TransientError
from tailer.sink import FaultTable

#: By the names of the package's errors and their words; it has no codes.
FAULTS = FaultTable(
    for_good="*ForbiddenError* *NotInstalledError* *UnauthorizedError* *AccessDenied* "
    "*ACCESS_DENIED* *NoSuchNamespaceError* *Read-only* *Not?a?directory*",
)
_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergTarget(TargetTable):
    """An Iceberg table in a catalog, which ``connect`` opens."""

    option = "table"

    def __init__(self, name: str, connect: Callable[[], Catalog]) -> None:
        self.address = f"the Iceberg table {name}"
        self.name = name
        self._connect = connect
        self._catalog: Catalog | None = None
        self._app = self._mode = ""
        self._table: Table | None = None
        self._checked: int | None = None  # the snapshot up to which others changed no rows
        self.claim: Claim | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalog. Raises what it does if it does not answer."""
        if self._catalog is None:
            self._catalog = self._connect()
        return self._catalog

    @property
    def table(self) -> Table:
        """The table as of the last commit."""
        assert self._table is not None, "the table is there"
        return self._table

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except TailerError:
            raise
        except NoSuchTableError as e:
            raise self.make_other_table_error() from e
        except CommitFailedException as e:
            self.refresh()  # which says who has it, if it is another process
            raise TransientError(f"{self.address}: another writer's commit conflicts ({e})") from e
        except Exception as e:  # of a catalog, a store, an HTTP client, a database
            said = f"{type(e).__name__}: {' '.join(str(e).split())}"[:500]
            verdict = FAULTS.verdict(said)
            now = " now" if verdict == "passing" else ""
            check = "; check it" if verdict == "for good" else ""
            raise FAULTS.error(said, f"{self.address} can't be written{now} ({said}){check}") from e

    # Whose it is

    def load(self, feed: str, mode: str, *, as_it_is: bool = False) -> Claim | None:
        self._app, self._mode = f"delta-tailer/{feed}", mode
        self._table = self.claim = self._checked = None
        with self.translate_errors():
            try:
                self._table = self.catalog.load_table(self.name)
            except NoSuchTableError:
                return None
            if self._table.current_snapshot() is None and INFO not in self._table.properties:
                return None  # one that its user has made, to have partitions of his own
            self.claim = self._find_claim(self._table, feed)
            self.check_mode(self.claim, mode)
            if not as_it_is:
                self._check_others()
        return self.claim

    def refresh(self) -> None:
        with self.translate_errors():
            before = self.table.metadata.table_uuid
            found = self.catalog.load_table(self.name)
            if found.metadata.table_uuid != before:
                raise self.make_other_table_error()
            self._table = found
            now = self._find_claim(found, self._app.partition("/")[2])
            if self.claim is not None and now.number < self.claim.number:  # set back
                raise self.make_other_table_error()
            if self.claim is None or now.number > self.claim.number:
                raise self.make_replaced_error()
            self._check_others()

    def _find_claim(self, table: Table, feed: str) -> Claim:
        """Return what the newest snapshot of ours says."""
        said = _parse_info(table.properties.get(INFO))
        if said.get("app") != self._app:
            raise self.make_stranger_error(feed)
        found = next((_read_info(one) for one in _walk_back(table) if _read_info(one)), None)
        if found is None:
            # Where all of ours are expired, what is left must be later than the property's commit:
            # else the table was set back to before it.
            kept = list(_walk_back(table))
            oldest = kept[-1].sequence_number or 0 if kept else 0
            found = said if oldest > said.get("sequence", oldest) else {}
        try:
            if found["app"] != self._app:
                raise self.make_stranger_error(feed)
            offset = None if found["offset"] is None else Offset.from_json(found["offset"])
            return Claim(found["number"], said["mode"], offset, said["key"], said["physical"])
        except (KeyError, OffsetError) as e:
            raise TargetRefused(
                f"{self.address}: its snapshots no longer have the feed's offset ({e}); drop the "
                "table, then `tailer offsets reset` creates it again"
            ) from e

    def _check_others(self) -> None:
        """Raise :class:`TargetRefused` if somebody else's snapshot has changed the rows of a copy
        since ours; one that replaces files by others with the same rows has not."""
        for snapshot in _walk_back(self.table):
            if snapshot.snapshot_id == self._checked or _read_info(snapshot):
                break
            summary = snapshot.summary
            if self._mode != "log" and (summary is None or summary.operation != Operation.REPLACE):
                raise self.make_changed_error(snapshot.snapshot_id, self._mode)
        newest = self.table.current_snapshot()
        self._checked = None if newest is None else newest.snapshot_id

    # Reading

    def find_schema(self) -> pa.Schema:
        with self.translate_errors():
            return find_stored_schema(
                schema_to_pyarrow(self.table.schema(), include_field_ids=False)
            )

    def convert_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return cast_columns(rows, find_stored_schema(rows.schema))

    def scan(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert where is None, "only a history has a condition"
        with self.translate_errors():
            for task in self._plan_files(AlwaysTrue()):
                yield from self._read_file(task, columns)

    def find_keys(
        self, asked: pa.Table, where: pc.Expression | None = None, columns: Sequence[str] = (),  # noqa: ARG002
    ) -> pa.Table:  # fmt: skip
        assert where is None, "only a history has a condition"
        with self.translate_errors():
            tasks = self._plan_files(_find_bounds(asked))
            batches = (
                batch for task in tasks for batch in self._read_file(task, asked.column_names)
            )
            return filter_keys(batches, asked)

    def _plan_files(self, where: BooleanExpression) -> Iterable[FileScanTask]:
        return self.table.scan(row_filter=where).plan_files()

    def _read_file(
        self, task: FileScanTask, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, without those that a file of deletes takes from it."""
        # The package reads all files of a scan at once, each as a whole.
        table = self.table
        wanted = table.schema() if columns is None else table.schema().select(*columns)
        return ArrowScan(table.metadata, table.io, wanted, AlwaysTrue()).to_record_batches([task])

    # Writing

    def create_table(self, schema: pa.Schema, claim: Claim) -> None:
        with self.translate_errors():
            if self._table is None:
                self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
                plain = pa.schema([pa.field(f.name, f.type) for f in schema])
                self._table = self.catalog.create_table(self.name, plain, properties=_PROPERTIES)
                self._commit(claim)
            else:
                self._commit(claim, transaction=self._take_table(schema))

    def _take_table(self, schema: pa.Schema) -> Transaction:
        """Return what gives a table of the user's, which is empty, what it lacks of the columns."""
        had = self.find_schema()
        for field in had:
            if field.name not in schema.names or schema.field(field.name).type != field.type:
                raise TargetRefused(
                    f"{self.address} has the column {field.name!r} of type {field.type}, and the "
                    "feed has none such; drop the table, or make it with the feed's columns"
                )
        transaction = self._begin()
        with transaction.update_schema() as update:
            update.union_by_name(schema.remove_metadata())
        return transaction

    def change_columns(self, change: ColumnChange, claim: Claim) -> None:
        with self.translate_errors():
            transaction = self._begin()
            for step in change.steps:
                if step.kind in ("drop", "rename"):
                    with transaction.update_schema() as update:
                        if step.kind == "drop":
                            update.delete_column((step.column,))
                        else:
                            update.rename_column((step.column,), step.field.name)
            fields = [
                s.field.remove_metadata() for s in change.steps if s.kind in ("retype", "add")
            ]
            try:
                with transaction.update_schema() as update:
                    update.union_by_name(pa.schema(fields))
            except Exception as e:
                widened = ", ".join(repr(s.column) for s in change.steps if s.kind == "retype")
                if not widened:
                    raise
                raise TargetRefused(
                    f"{self.address}: Iceberg can't widen the type of {widened} so ({e}); drop the "
                    "table, then `tailer offsets reset` creates it again"
                ) from e
            self._commit(claim, transaction=transaction)

    def append_rows(self, rows: pa.Table, claim: Claim) -> None:
        with self.translate_errors():
            self._commit(claim, self._write_files(rows))

    def merge_rows(self, leaving: pa.Table, rows: pa.Table, key: list[str], claim: Claim) -> None:
        coming = rows.select(key)
        keys = pa.concat_tables([coming, leaving.select(key).cast(coming.schema)])
        removed, added = [], self._write_files(rows)
        with self.translate_errors():
            for task in self._plan_files(_find_bounds(keys)):
                held = pa.Table.from_batches(
                    [cast_columns(each, keys.schema) for each in self._read_file(task, key)],
                    schema=keys.schema,
                )
                stays = _find_others(held, keys)
                if len(stays) == held.num_rows:
                    continue
                removed.append(task.file)
                if len(stays):
                    added += self._rewrite_file(task, stays)
            self._commit(claim, added, removed)

    def _rewrite_file(self, task: FileScanTask, stays: pa.Array) -> list[DataFile]:
        """Write those rows of a file, by their places, into others, and return these."""
        whole = self.find_schema()
        batches = [cast_columns(each, whole) for each in self._read_file(task)]
        return self._write_files(pa.Table.from_batches(batches, schema=whole).take(stays))

    def _write_files(self, rows: pa.Table) -> list[DataFile]:
        if not rows.num_rows:
            return []
        with self.translate_errors():
            table = self.table
            return list(_dataframe_to_data_files(table.metadata, rows, table.io))

    def _begin(self) -> Transaction:
        # A commit that meets another writer's must not be tried again on top of it: who that is has
        # to be seen first. The package asks what it holds of the table, which only we change so.
        self.table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        return self.table.transaction()

    def _commit(
        self, claim: Claim, added: Sequence[DataFile] = (), removed: Sequence[DataFile] = (),
        transaction: Transaction | None = None,
    ) -> None:  # fmt: skip
        """Commit files, and what else a transaction has, with what the claim says."""
        said: dict[str, Any] = {
            "app": self._app,
            "number": claim.number,
            "offset": None if claim.offset is None else claim.offset.to_json(),
        }
        transaction = transaction or self._begin()
        begun = transaction.update_snapshot(snapshot_properties={INFO: json.dumps(said)})
        with begun.overwrite() if removed else begun.merge_append() as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
        columns = {"mode": claim.mode, "key": claim.key, "physical": dict(claim.physical)}
        at = {"sequence": self.table.last_sequence_number + 1}
        transaction.set_properties({INFO: json.dumps(said | columns | at)})
        self._table = transaction.commit_transaction()
        newest = self.table.current_snapshot()
        self.claim, self._checked = claim, None if newest is None else newest.snapshot_id


def _walk_back(table: Table) -> Iterator[Snapshot]:
    """Yield the newest snapshot, and those before it as far as they are kept."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _read_info(snapshot: Snapshot) -> Mapping[str, Any]:
    """Return what a snapshot of ours says; nothing if it is somebody else's."""
    summary = snapshot.summary
    return {} if summary is None else _parse_info(summary.additional_properties.get(INFO))


def _parse_info(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _find_bounds(asked: pa.Table) -> BooleanExpression:
    """Return the bounds of the asked keys in the first column whose statistics are exact."""
    for name in asked.column_names:
        if asked.num_rows and has_exact_bounds(asked.schema.field(name).type):
            bounds = pc.min_max(asked[name]).as_py()
            least = GreaterThanOrEqual(name, bounds["min"])  # type: ignore[call-arg]
            return And(least, LessThanOrEqual(name, bounds["max"]))  # type: ignore[call-arg]
    return AlwaysTrue()


def _find_others(held: pa.Table, keys: pa.Table) -> pa.Array:
    """Return the places of the rows that have none of these keys, in their order."""
    place = "_place"
    while place in held.column_names:
        place += "_"
    numbered = held.append_column(place, pa.arange(0, held.num_rows))
    left = numbered.join(keys, keys.column_names, join_type="left anti")
    return left[place].combine_chunks().sort()
