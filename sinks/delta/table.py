"""The target table: who writes it, how far it is, and commits that say so.

Each commit has the protocol's transaction identifier ``delta-tailer/FEED`` with a growing version,
and in its commit info, under ``delta-tailer``, the offset after it and what else is known of the
target. A process that finds another version there than its last one has been replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from sinks.shared.history import HistoryMerge, HistoryNames, refuse_emptied
from sinks.shared.merge import match_columns, unused_name
from sinks.shared.target_table import (
    INFO,
    ColumnChange,
    TableClaim,
    TargetTable,
    filter_keys,
    has_exact_bounds,
)
from tailer.changes import Offset
from tailer.errors import (
    OffsetError,
    TailerError,
    TargetRefused,
    TransientError,
)
from tailer.sink import FaultTable

#: The column of a merge that says which keys leave.
_GONE = "_delta_tailer_gone"
#: deltalake looks for such timestamps in structs and lists when it decides on the features of a
#: table, but not in maps.
_NO_FEATURE = "does not have the required 'timestampNtz' feature"
#: By deltalake's words; it has no codes.
FAULTS = FaultTable(
    for_good="*denied* *Forbidden* *Unauthorized* *InvalidAccessKey* *NoSuchBucket* *Read-only* "
    "*Not?a?directory*",
    rows="*failed?validation?check* *violated?by?value* *Invariant?violat*",
)


class DeltaTarget(TargetTable):
    """A Delta table."""

    option = "path"

    def __init__(self, address: str, storage: Mapping[str, str]) -> None:
        self.address = address
        self._storage = dict(storage)
        self._app = ""
        self._mode = ""
        self._table: DeltaTable | None = None
        self._version = -1  # up to which the log is known to have only what may be there
        self._mark: tuple[int, ...] | None = None
        self.claim: TableClaim | None = None

    @property
    def table(self) -> DeltaTable:
        """The table as of the last commit."""
        assert self._table is not None, "the table is there"
        return self._table

    def find_schema(self) -> pa.Schema:
        with self.translate_errors():
            return pa.schema(self.table.schema())

    @contextmanager
    def translate_errors(self, written: pa.Schema | None = None) -> Iterator[None]:
        """Raise our errors for deltalake's. ``written`` has the columns that are being written."""
        try:
            yield
        except CommitFailedError as e:
            if "Concurrent transaction" in str(e):
                raise self.make_replaced_error() from e
            raise TransientError(f"{self.address}: another writer's commit conflicts ({e})") from e
        except (DeltaError, OSError, pa.ArrowException) as e:
            columns = [] if written is None else _find_zoneless_maps(written)
            if columns and _NO_FEATURE in str(e):
                raise TargetRefused(
                    f"{self.address}: the column {columns[0]!r} has timestamps without a time zone "
                    "within a map, for which deltalake does not enable the feature 'timestampNtz'; "
                    "exclude it with the feed's option 'select'"
                ) from e
            raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, e: Exception) -> TailerError:
        said = " ".join(
            str(e).partition("Preview of invalid data")[0].split()
        )  # rows are not logged
        verdict = FAULTS.verdict(said)
        now = " now" if verdict == "passing" else ""
        check = "; check it" if verdict == "for good" else ""
        return FAULTS.error(said, f"{self.address} can't be read or written{now} ({said}){check}")

    def load(self, feed: str, mode: str, *, as_it_is: bool = False) -> TableClaim | None:
        self._app, self._mode = f"delta-tailer/{feed}", mode
        self._table, self.claim, self._version = None, None, -1
        with self.translate_errors():
            try:
                self._table = DeltaTable(self.address, storage_options=self._storage)
            except TableNotFoundError:
                return None
            number = self._table.transaction_version(self._app)
            if number is None:
                raise self.make_stranger_error(feed)
            self.claim = self._find_claim(number)
        self.check_mode(self.claim, mode)
        if not as_it_is:
            self._check_others()
        self._mark = self._find_mark(self._version)
        return self.claim

    def _find_mark(self, version: int) -> tuple[int, ...] | None:
        """Return what tells the file of a commit in a local table from that of any other log."""
        folder = Path(self.address.removeprefix("file://"))
        try:
            found = (folder / _format_commit_path(version)).stat()
        except OSError:
            return None
        return version, found.st_dev, found.st_ino, found.st_ctime_ns

    def _find_claim(self, number: int) -> TableClaim:
        """Return what the commit with that number says."""
        for limit in (20, None):
            for entry in self.table.history(limit):
                info = json.loads(entry.get(INFO) or "{}")
                # One of a repair that has not ended settles nothing.
                ours = (info.get("app"), info.get("number")) == (self._app, number)
                if ours and not info.get("repairing"):
                    self._version = entry["version"]
                    return self._parse_claim(info)
        raise TargetRefused(
            f"{self.address}: the log no longer has the commit with the feed's offset (transaction "
            f"{number}); remove the table, then `tailer offsets reset` creates it again"
        )

    def _parse_claim(self, info: Mapping[str, Any]) -> TableClaim:
        try:
            offset = None if info["offset"] is None else Offset.from_json(info["offset"])
            return TableClaim(info["number"], info["mode"], offset, info["key"], info["physical"])
        except (KeyError, OffsetError) as e:
            raise TargetRefused(f"{self.address}: the offset in its log is damaged ({e})") from e

    def refresh(self) -> None:
        # A log that is shorter, as of a copy that was restored, or in another folder is another.
        if self._mark is not None and self._find_mark(self._mark[0]) != self._mark:
            raise self.make_other_table_error()
        try:
            self.table.update_incremental()
            number = self.table.transaction_version(self._app)
        except (DeltaError, OSError) as e:
            # What is listed is what follows the last version, and that has to be there.
            raise (
                self.make_other_table_error() if "not found" in str(e) else self._to_tailer_error(e)
            ) from e
        if self.claim is None or number != self.claim.number:
            raise self.make_replaced_error()
        self._check_others()

    def _check_others(self) -> None:
        """Raise :class:`SinkRejected` if somebody else's commit has changed the rows of a copy
        since ours; to compact or to vacuum it is none."""
        newest = self.table.version()
        if self._mode != "log":
            for version in range(self._version + 1, newest + 1):
                if self._changes_rows(version):
                    raise self.make_changed_error(version, self._mode)
        self._version = newest

    def _changes_rows(self, version: int) -> bool:
        """Return whether a commit is not ours, and its files are other rows than before."""
        changes = False
        with self.translate_errors():
            files = DeltaStorageHandler(self.address, self._storage)
            try:
                file = files.open_input_file(_format_commit_path(version))
            except FileNotFoundError:  # cleaned up, after a checkpoint
                return False
            for line in file.read().splitlines():
                action = json.loads(line)
                if (action.get("txn") or {}).get("appId") == self._app:
                    return False
                files_of = (action.get("add") or {}, action.get("remove") or {})
                changes = changes or any(each.get("dataChange") for each in files_of)
        return changes

    def build_properties(self, claim: TableClaim) -> CommitProperties:
        """Return what a commit has to say."""
        info = {
            "app": self._app,
            "number": claim.number,
            "mode": claim.mode,
            "offset": None if claim.offset is None else claim.offset.to_json(),
            "key": claim.key,
            "physical": dict(claim.physical),
        }
        if claim.repairing:
            info["repairing"] = True
        return CommitProperties(
            custom_metadata={INFO: json.dumps(info)},
            app_transactions=[Transaction(self._app, claim.number)],
        )

    def scan(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        with self.translate_errors():
            # Now: the package can't open a table in the midst of writing one.
            chosen = None if columns is None else list(columns)
            scanner = self.table.to_pyarrow_dataset().scanner(columns=chosen, filter=where)
        return self._pull_batches(scanner)

    def _pull_batches(self, scanner: ds.Scanner) -> Iterator[pa.RecordBatch]:
        with self.translate_errors():
            yield from scanner.to_batches()

    def find_keys(
        self, asked: pa.Table, where: pc.Expression | None = None, columns: Sequence[str] = ()
    ) -> pa.Table:
        key = asked.column_names
        # Of the other columns the package would make an expression for each file's statistics.
        whole = self.find_schema()
        schema = pa.schema([whole.field(name) for name in (*key, *columns)])
        with self.translate_errors():
            dataset = self.table.to_pyarrow_dataset(schema=schema)
            near = _find_bounds(asked)
            files = list(
                dataset.get_fragments() if near is None else dataset.get_fragments(filter=near)
            )
            chosen = ds.FileSystemDataset(files, schema, dataset.format, dataset.filesystem)
            return filter_keys(chosen.scanner(columns=key, filter=where).to_batches(), asked)

    def create_table(self, schema: pa.Schema, claim: TableClaim) -> None:
        with self.translate_errors(schema):
            self._table = DeltaTable.create(
                self.address, schema, storage_options=self._storage,
                commit_properties=self.build_properties(claim),
            )  # fmt: skip
        self._note_commit(claim)

    def append_rows(self, rows: pa.Table, claim: TableClaim) -> None:
        with self.translate_errors(rows.schema):
            write_deltalake(
                self.table, rows, mode="append", schema_mode="merge",
                commit_properties=self.build_properties(claim),
            )  # fmt: skip
        self._note_commit(claim)

    def change_columns(self, change: ColumnChange, claim: TableClaim) -> None:
        if change.keep and all(step.kind == "add" for step in change.steps):
            return  # the next append adds them
        pairs = match_columns(change.old, change.version, keep=change.keep, folded=True)
        had = {to.name: field.name for field, to in pairs if field is not None}
        had |= {name: name for name in change.new.names if name not in change.version.names}
        with self.translate_errors(change.new):
            write_deltalake(
                self.table, self._reshape_rows(change.new, had), mode="overwrite",
                schema_mode="overwrite", commit_properties=self.build_properties(claim),
            )  # fmt: skip
        self._note_commit(claim)

    def _reshape_rows(self, schema: pa.Schema, had: Mapping[str, str]) -> pa.RecordBatchReader:
        """Return the table's rows with other columns; ``had`` are the names that these had."""
        wanted = pa.schema([field.remove_metadata() for field in schema])

        def column(rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
            name = had.get(field.name)
            if name is None:
                return pa.nulls(rows.num_rows, field.type)
            return rows.column(name).cast(field.type)

        batches = (
            pa.RecordBatch.from_arrays([column(rows, field) for field in schema], schema=wanted)
            for rows in self.scan()
        )
        return pa.RecordBatchReader.from_batches(wanted, batches)

    def merge_rows(
        self, leaving: pa.Table, rows: pa.Table, key: list[str], claim: TableClaim
    ) -> None:
        leave = leaving.join(rows.select(key), key, join_type="left anti")
        gone = unused_name(_GONE, rows.schema.names)
        staying = rows.append_column(gone, pa.repeat(False, rows.num_rows))
        keys = leave.append_column(gone, pa.repeat(True, leave.num_rows))
        source = pa.concat_tables([staying, keys], promote_options="default")
        same = " AND ".join(f"t.{_quote_name(name)} = s.{_quote_name(name)}" for name in key)
        with self.translate_errors():
            merger = self.table.merge(
                source, same, source_alias="s", target_alias="t",
                commit_properties=self.build_properties(claim),
            )  # fmt: skip
            merger.when_matched_delete(f"s.{gone}")
            merger.when_matched_update_all(f"NOT s.{gone}", except_cols=[gone])
            merger.when_not_matched_insert_all(f"NOT s.{gone}", except_cols=[gone])
            merger.execute()
        self._note_commit(claim)

    def merge_history(
        self, merge: HistoryMerge, names: HistoryNames, key: list[str], claim: TableClaim
    ) -> None:
        gone = unused_name(_GONE, merge.rows.schema.names)
        begun = merge.rows.append_column(gone, pa.repeat(False, merge.rows.num_rows))
        ended = merge.ended.append_column(gone, pa.repeat(True, merge.ended.num_rows))
        source = pa.concat_tables([begun, ended], promote_options="default")
        same = " AND ".join(f"t.{_quote_name(name)} = s.{_quote_name(name)}" for name in key)
        first, last = _quote_name(names.from_version), _quote_name(names.to_version)
        ends = {name: f"s.{_quote_name(name)}" for name in (names.valid_to, names.to_version)}
        with self.translate_errors():
            merger = self.table.merge(
                source,
                f"{same} AND ((s.{gone} AND t.{last} IS NULL AND t.{first} < s.{last}) "
                f"OR (NOT s.{gone} AND t.{first} = s.{first}))",
                source_alias="s", target_alias="t",
                commit_properties=self.build_properties(claim),
            )  # fmt: skip
            merger.when_matched_update(ends, f"s.{gone}")
            merger.when_matched_update_all(f"NOT s.{gone}", except_cols=[gone])
            merger.when_not_matched_insert_all(f"NOT s.{gone}", except_cols=[gone])
            merger.execute()
        self._note_commit(claim)

    def take_back(self, version: int, names: HistoryNames, claim: TableClaim) -> None:
        first, last = (f"t.{_quote_name(n)}" for n in (names.from_version, names.to_version))
        before = self.table.version()
        with self.translate_errors():
            begun = self.table.to_pyarrow_dataset().scanner(columns=[names.from_version])
            least = pc.min(begun.to_table()[names.from_version]).as_py()
        if least is not None and least >= version:
            raise refuse_emptied(self.address, version)
        with self.translate_errors():
            merger = self.table.merge(
                pa.table({_GONE: [True]}), f"{first} >= {version} OR {last} >= {version}",
                source_alias="s", target_alias="t",
                commit_properties=self.build_properties(claim),
            )  # fmt: skip
            merger.when_matched_delete(f"{first} >= {version}")
            merger.when_matched_update({names.valid_to: "NULL", names.to_version: "NULL"})
            merger.execute()
        if self.table.version() == before:  # nothing to forget, and no commit
            self.append_rows(self.find_schema().empty_table(), claim)
        else:
            self._note_commit(claim)

    def _note_commit(self, claim: TableClaim) -> None:
        """Note our own commit."""
        self.claim = claim
        if self.table.version() == self._version + 1:  # else others are looked at by the next one
            self._version += 1
        self._mark = self._find_mark(self.table.version())


def _format_commit_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _find_bounds(asked: pa.Table) -> pc.Expression | None:
    """Return the bounds of the asked keys in the first column whose statistics are exact: deltalake
    writes decimals as floating-point numbers, which may leave the value out, and cuts timestamps to
    milliseconds."""
    for name in asked.column_names:
        if has_exact_bounds(asked.schema.field(name).type):
            bounds = pc.min_max(asked[name].combine_chunks())
            return (pc.field(name) >= bounds["min"]) & (pc.field(name) <= bounds["max"])
    return None


def _find_zoneless_maps(schema: pa.Schema) -> list[str]:
    """Return the columns with a map that has timestamps without a time zone."""
    return [field.name for field in schema if _has_zoneless(field.type, in_map=False)]


def _has_zoneless(data_type: pa.DataType, *, in_map: bool) -> bool:
    if pa.types.is_timestamp(data_type):
        return in_map and data_type.tz is None
    in_map = in_map or pa.types.is_map(data_type)
    children = (data_type.field(i).type for i in range(data_type.num_fields))
    return any(_has_zoneless(child, in_map=in_map) for child in children)
