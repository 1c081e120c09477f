"""The state of a table at one version, by action reconciliation ("Action Reconciliation").

Replay goes from the newest file of the log to the oldest, and the first reference to anything wins.
Only the references in the commits after the checkpoint are kept in memory; the checkpoint, which
may list a million files, is streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from msgspec import Struct

from tailer.delta.actions import (
    Action,
    AddFile,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    choose_later,
)
from tailer.delta.features import cdf_enabled, check_readable, column_mapping_mode
from tailer.delta.paths import parse_location
from tailer.delta.schema import StructField, StructType, parse_schema
from tailer.delta.segment import LogSegment
from tailer.delta.types import all_fields
from tailer.errors import CorruptLog, UnsupportedTable


class TableState(Struct, frozen=True):
    """Protocol and metadata at one version: everything needed to read that version's rows.

    ``mapping`` is the column mapping mode; ``schema`` the logical schema.
    """

    protocol: Protocol
    metadata: Metadata
    schema: StructType
    mapping: str

    @classmethod
    def from_actions(cls, protocol: Protocol, metadata: Metadata) -> TableState:
        """Return the state, checked.

        Raises :class:`UnsupportedTable` for one that can't be read.
        """
        check_readable(protocol, metadata)
        schema = parse_schema(metadata.schema_string)
        mapping = column_mapping_mode(protocol, metadata)
        state = cls(protocol, metadata, schema, mapping)
        if len(state.partition_fields()) != len(metadata.partition_columns):
            raise CorruptLog("a partition column of the metaData action is not in its schema")
        if mapping != "none":
            state._check_mapped(schema)
        return state

    def _check_mapped(self, schema: StructType) -> None:
        for f in all_fields(schema):
            if "delta.columnMapping.physicalName" not in f.metadata or (
                self.mapping == "id" and f.field_id is None
            ):
                raise UnsupportedTable(
                    f"column mapping is on, but the column {f.name!r} has no physical name or id"
                )

    @property
    def table_id(self) -> str:
        """The table's unique id."""
        return self.metadata.id

    @property
    def cdf(self) -> bool:
        """Whether writers had to write change data at this version."""
        return cdf_enabled(self.protocol, self.metadata)

    def physical_name(self, field: StructField) -> str:
        """Return the name of a top-level column in files and partition values."""
        return field.name if self.mapping == "none" else field.physical_name

    def partition_fields(self) -> list[StructField]:
        """Return the partition columns, in the metadata's order."""
        by_name = {f.name: f for f in self.schema}
        return [by_name[n] for n in self.metadata.partition_columns if n in by_name]

    def after(self, protocol: Protocol | None, metadata: Metadata | None) -> TableState:
        """Return the state after a commit with these actions (None: unchanged)."""
        if protocol is None and metadata is None:
            return self
        return TableState.from_actions(protocol or self.protocol, metadata or self.metadata)


class Snapshot(Struct, frozen=True):
    """A version's state without its files, which :mod:`tailer.log.table` streams on demand.

    ``segment`` are the files that the snapshot was read from; ``transactions`` maps application id
    to its last transaction, ``domains`` domain name to its metadata.
    """

    version: int
    state: TableState
    segment: LogSegment
    transactions: dict[str, SetTransaction]
    domains: dict[str, DomainMetadata]


def find_file_key(action: AddFile | RemoveFile) -> tuple[str, str]:
    """Return the key of a logical file: its location, and its deletion vector's unique id or ""."""
    dv = action.deletion_vector
    return parse_location(action.path), dv.unique_id if dv else ""


class Reconciliation:
    """Reconciles actions that arrive newest first.

    Within one commit the order of files does not matter: :mod:`tailer.delta.commit` refuses two
    that reconcile with each other, unless they are equal. Of all else the last action counts.
    """

    def __init__(self) -> None:
        self.protocol: Protocol | None = None
        self.metadata: Metadata | None = None
        self.transactions: dict[str, SetTransaction] = {}
        self._domains: dict[str, DomainMetadata] = {}
        self._seen: set[tuple[str, str]] = set()

    def take(self, actions: Iterable[Action]) -> None:
        """Reconcile all actions of one file of the log, but those of data files, with what was seen
        before. Raises :class:`CorruptLog` for two metaData or protocol actions that differ
        (:func:`tailer.delta.actions.choose_later`)."""
        protocol, metadata = None, None
        transactions: dict[str, SetTransaction] = {}
        domains: dict[str, DomainMetadata] = {}
        for action in actions:
            match action:
                case Protocol():
                    protocol = choose_later(protocol, action)
                case Metadata():
                    metadata = choose_later(metadata, action)
                case SetTransaction():
                    transactions[action.app_id] = action
                case DomainMetadata():
                    domains[action.domain] = action
        self.protocol = self.protocol or protocol
        self.metadata = self.metadata or metadata
        for app_id, transaction in transactions.items():
            self.transactions.setdefault(app_id, transaction)
        for name, domain in domains.items():
            self._domains.setdefault(name, domain)

    def find_live_files(
        self, actions: Iterable[Action], *, remember: AbstractSet[int] | None = None
    ) -> Iterator[AddFile]:
        """Yield the files among these actions that are still in the table.

        ``remember`` is for a checkpoint: nothing older follows it, so of a million files only those
        are kept that it lists more than once, given as the hashes of their locations.
        """
        for action in actions:
            if isinstance(action, AddFile | RemoveFile):
                key = find_file_key(action)
                fresh = key not in self._seen
                if fresh and (remember is None or (remember and hash(key[0]) in remember)):
                    self._seen.add(key)
                if fresh and isinstance(action, AddFile):
                    yield action

    @property
    def domains(self) -> dict[str, DomainMetadata]:
        """The metadata domains, without those that were removed."""
        return {name: d for name, d in self._domains.items() if not d.removed}

    def build_state(self) -> TableState:
        """Return protocol and metadata; raise :class:`CorruptLog` if the log lacks either."""
        if self.protocol is None or self.metadata is None:
            lacking = "protocol" if self.protocol is None else "metaData"
            raise CorruptLog(f"the log has no {lacking} action")
        return TableState.from_actions(self.protocol, self.metadata)
