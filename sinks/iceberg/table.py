"""An Iceberg table that a feed writes: see :mod:`sinks.iceberg.snapshots` for what it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.utils.properties import property_as_int

from sinks.iceberg.columns import change_schema, check_own_table, list_missing
from sinks.iceberg.patches import RewriteSnapshot
from sinks.iceberg.snapshots import (
    Kept,
    Said,
    describe_claim,
    find_kept,
    find_other_column,
    find_said,
    find_stranger,
    make_claim,
    walk_back,
)
from sinks.iceberg.types import find_stored_schema
from sinks.shared.target_table import (
    INFO,
    ColumnChange,
    TableClaim,
    TargetTable,
    cast_columns,
    filter_keys,
    has_exact_bounds,
)
from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError
from tailer.secrets import hide_secrets
from tailer.sink import FaultTable

#: By the names of the package's errors and their words; it has no codes.
FAULTS = FaultTable(
    for_good="*ForbiddenError* *NotInstalledError* *UnauthorizedError* *AccessDenied* "
    "*ACCESS_DENIED* *NoSuchNamespaceError* *Read-only* *Not?a?directory* *NotImplementedError* "
    "*does?not?yet?support*",
)
#: Properties of a table, unless its user has set them.
_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
#: What the package and Arrow say of properties that they can't use.
_WRONG_PROPERTY = re.compile(
    r"Could not parse table property|is not a valid FileFormat|No writer registered for FileFormat"
    r"|Unsupported (compression|codec|metrics mode)|LZO compression|Malformed truncate"
    r"|Row group size cannot be|Unrecognized filesystem type"
)
#: With less than one row a page, Arrow ends the process, or never ends itself.
_PAGE_ROWS = TableProperties.PARQUET_PAGE_ROW_LIMIT
#: The property of a table that a feed has created, and not yet written to.
_CREATED = f"{INFO}.created"
#: What a catalog's client says of its options, by the names of the errors.
_WRONG_OPTIONS = ("ValueError", "KeyError", "ArgumentError", "NoSuchModuleError")


class IcebergTarget(TargetTable):
    """An Iceberg table in a catalog, which ``connect`` opens."""

    option = "table"

    def __init__(self, name: str, connect: Callable[[], Catalog]) -> None:
        self.address = f"the Iceberg table {name}"
        self.name = name
        self._connect = connect
        self._catalog: Catalog | None = None
        self._app = self._mode = ""
        #: This process, in what its commits say.
        self._by = ""
        self._table: Table | None = None
        self._checked: int | None = None  # the snapshot up to which others changed no rows
        self.claim: TableClaim | None = None

    @property
    def catalog(self) -> Catalog:
        """The catalog. Raises what it does if it does not answer, and :class:`ConfigError` for
        options that are none of a catalog."""
        if self._catalog is None:
            try:
                self._catalog = self._connect()
            except (ImportError, NotInstalledError, NoSuchPropertyException) as e:
                raise self._make_option_error(e) from e
            except Exception as e:
                if type(e).__name__ in _WRONG_OPTIONS:
                    raise self._make_option_error(e) from e
                raise
        return self._catalog

    def _make_option_error(self, e: Exception) -> ConfigError:
        said = _say_error(e)
        return ConfigError(f"{self.address}: the option 'catalog' names no catalog ({said})")

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
            said = _say_error(e)
            if _WRONG_PROPERTY.search(said):
                raise TargetRefused(
                    f"{self.address} has a property that can't be used ({said}); change or remove "
                    "it there: files are Parquet, and the rest is what pyiceberg and Arrow take"
                ) from e
            verdict = FAULTS.verdict(said)
            now = " now" if verdict == "passing" else ""
            check = "; check it" if verdict == "for good" else ""
            raise FAULTS.error(said, f"{self.address} can't be written{now} ({said}){check}") from e

    # Whose it is

    def load(self, feed: str, mode: str, *, as_it_is: bool = False) -> TableClaim | None:
        self._app, self._mode, self._by = f"delta-tailer/{feed}", mode, uuid4().hex
        self._table = self.claim = self._checked = None
        with self.translate_errors():
            try:
                self._table = self.catalog.load_table(self.name)
            except NoSuchTableError:
                return None
            kept = find_kept(self._table, self.address)
            if self._table.current_snapshot() is None and kept is None:
                return None  # one that its user has made, to have partitions of his own
            said = self._find_said(self._table, kept)
            self.claim = make_claim(self._check_kept(kept), said, self.address)
            self.check_mode(self.claim, mode)
            if as_it_is:
                self._by = said.by  # a repair speaks for the feed
            else:
                self._check_others(self._check_kept(kept))
        return self.claim

    def refresh(self) -> None:
        with self.translate_errors():
            before = self.table.metadata.table_uuid
            found = self.catalog.load_table(self.name)
            if found.metadata.table_uuid != before:
                raise self.make_other_table_error()
            kept = find_kept(found, self.address)
            said = self._find_said(found, kept)
            self._table = found
            if self.claim is None:
                raise self.make_replaced_error()
            if said.number < self.claim.number:  # set back
                raise self.make_other_table_error()
            if (said.by, said.number) != (self._by, self.claim.number):
                raise self.make_replaced_error()
            self._check_others(self._check_kept(kept))

    def _check_kept(self, kept: Kept | None) -> Kept:
        if kept is None or kept.said.app != self._app:
            raise self.make_stranger_error(self._app.partition("/")[2])
        return kept

    def _find_said(self, table: Table, kept: Kept | None) -> Said:
        """Return what the newest commit of ours says."""
        said = find_said(table, self._check_kept(kept))
        if said is None:
            raise TargetRefused(
                f"{self.address}: its snapshots no longer have the feed's offset, and others have "
                "changed its rows, or set it back; drop the table, then `tailer offsets reset` "
                "creates it again"
            )
        if said.app != self._app:
            raise self.make_stranger_error(self._app.partition("/")[2])
        return said

    def _check_others(self, kept: Kept) -> None:
        """Raise :class:`TargetRefused` if somebody else has changed the columns, or the rows of a
        copy."""
        other = find_other_column(self.table.schema(), kept)
        if other is not None:
            raise TargetRefused(
                f"{self.address}: the column {other!r} is not the one that the feed has made: it "
                "was dropped, renamed, replaced or made required by somebody else; change it back, "
                "or drop the table, then `tailer offsets reset` creates it again"
            )
        if self._mode != "log":
            stranger = find_stranger(self.table, self._checked)
            if stranger is not None:
                raise self.make_changed_error(stranger, self._mode)
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
        """Return the files whose statistics allow rows that meet a condition. Their partitions are
        not asked: what the package makes of a condition on them overflows at a type's ends."""
        may_have = _InclusiveMetricsEvaluator(self.table.schema(), where)
        return [task for task in self.table.scan().plan_files() if may_have.eval(task.file)]

    def _read_file(
        self, task: FileScanTask, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, without those that a file of deletes takes from it."""
        # The package reads all files of a scan at once, each as a whole.
        table = self.table
        wanted = table.schema() if columns is None else table.schema().select(*columns)
        return ArrowScan(table.metadata, table.io, wanted, AlwaysTrue()).to_record_batches([task])

    # Writing

    def create_table(self, schema: pa.Schema, claim: TableClaim) -> None:
        with self.translate_errors():
            if self._table is None:
                self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
                plain = pa.schema([pa.field(f.name, f.type) for f in schema])
                properties = {**_PROPERTIES, _CREATED: self._app}
                self._table = self.catalog.create_table(self.name, plain, properties=properties)
                self._commit(claim)
            else:
                self._commit(claim, transaction=self._take_table(schema))

    def _take_table(self, schema: pa.Schema) -> Transaction:
        """Return what gives a table without snapshots what it lacks of the columns. It is the
        user's, or ours, from a process that ended behind its creation."""
        check_own_table(self.table, self.address)
        had, transaction = self.find_schema(), self.table.transaction()
        ours = self.table.properties.get(_CREATED) == self._app
        with transaction.update_schema() as update:
            for field in had:
                if field.name in schema.names and schema.field(field.name).type == field.type:
                    continue
                if not ours:
                    raise TargetRefused(
                        f"{self.address} has the column {field.name!r} of type {field.type}, and "
                        "the feed has none such; drop the table, or make it with the feed's columns"
                    )
                update.delete_column((field.name,))
        with transaction.update_schema() as update:
            update.union_by_name(list_missing(schema.remove_metadata(), transaction))
        lacks = {n: v for n, v in _PROPERTIES.items() if n not in self.table.properties}
        return transaction.set_properties(lacks) if lacks else transaction

    def change_columns(self, change: ColumnChange, claim: TableClaim) -> None:
        with self.translate_errors():
            transaction = self.table.transaction()
            change_schema(self.table, transaction, change, self.address)
            self._commit(claim, transaction=transaction)

    def append_rows(self, rows: pa.Table, claim: TableClaim) -> None:
        with self.translate_errors():
            self._commit(claim, self._write_files(rows))

    def merge_rows(
        self, leaving: pa.Table, rows: pa.Table, key: list[str], claim: TableClaim
    ) -> None:
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
        for field in self.find_schema():  # which a partition may be made of
            if field.name not in rows.schema.names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        with self.translate_errors():
            table = self.table
            if int(property_as_int(table.properties, _PAGE_ROWS, 1) or 0) < 1:
                raise TargetRefused(
                    f"{self.address} has a property that can't be used ({_PAGE_ROWS} is less than "
                    "1); change or remove it there"
                )
            return list(_dataframe_to_data_files(table.metadata, rows, table.io))

    def _commit(
        self, claim: TableClaim, added: Sequence[DataFile] = (), removed: Sequence[DataFile] = (),
        transaction: Transaction | None = None,
    ) -> None:  # fmt: skip
        """Commit files, and what else a transaction has, with what the claim says."""
        said = describe_claim(claim, self._app, self._by)
        transaction = transaction or self.table.transaction()
        info = {INFO: msgspec.json.encode(said).decode()}
        if removed:
            begun: Any = RewriteSnapshot(
                Operation.OVERWRITE, transaction, self.table.io, snapshot_properties=info
            )
        else:
            begun = transaction.update_snapshot(snapshot_properties=info).merge_append()
        with begun as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
        kept = self._describe_table(claim, said, transaction, begun.snapshot_id)
        transaction.set_properties({INFO: msgspec.json.encode(kept).decode()})
        # Else the package tries a commit that meets another writer's again on top of it, before
        # anybody has seen whose it is, and deletes the files of one that was told to have failed.
        transaction._snapshot_producers = []  # noqa: SLF001
        try:
            self._table = transaction.commit_transaction()
        except CommitFailedException:
            # A client or a proxy that sends a request again may be told so of its own commit.
            self._table = self.catalog.load_table(self.name)
            if not any(each.snapshot_id == begun.snapshot_id for each in walk_back(self.table)):
                raise
        self.claim, self._checked = claim, begun.snapshot_id

    def _describe_table(
        self, claim: TableClaim, said: Said, transaction: Transaction, number: int
    ) -> Kept:
        """Return what the property has after a commit of a snapshot with that id."""
        metadata = transaction.table_metadata
        snapshot = metadata.snapshot_by_id(number)
        summary = None if snapshot is None else snapshot.summary
        rows = None if summary is None else summary.additional_properties.get("total-records")
        fields = metadata.schema().fields
        return Kept(
            said=said,
            sequence=self.table.last_sequence_number + 1,
            snapshot=number,
            records=int(rows or 0),
            mode=claim.mode,
            key=claim.key,
            physical=dict(claim.physical),
            fields={field.name: field.field_id for field in fields if field.name in claim.physical},
        )


def _say_error(e: Exception) -> str:
    """Return what an error says, without secrets, in one line."""
    name = type(e).__name__
    if isinstance(e, ValueError) and hasattr(e, "errors"):  # pydantic shows what it was given
        places = (".".join(map(str, each.get("loc", ()))) for each in e.errors())
        return f"{name}: an answer that is none of a catalog: {', '.join(places)}"[:500]
    return hide_secrets(f"{name}: {' '.join(str(e).split())}")[:500]


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
