"""What is published of a table: columns, partitions, masked values.

Rows of partitions that ``where`` does not select are never fetched. Columns are masked before a
sink, a parked row or a notice sees them. The state that is sent with a batch is reduced in the same
way, so that no sink learns of a hidden column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from tailer.changes import METADATA_FIELDS, ChangeFile
from tailer.delta.comparisons import Comparison, IsNull, Node, Not, NotUnderstood, Parser
from tailer.delta.partitions import partition_scalar, partition_text
from tailer.delta.schema import parse_schema
from tailer.delta.snapshot import TableState
from tailer.delta.types import PrimitiveType, StructField
from tailer.errors import ConfigError, SchemaChanged, TableError

__all__ = ["MASKS", "Mask", "Selection", "Selector", "Where", "parse_where"]

Mask = Literal["drop", "redact", "hash"]
MASKS: tuple[Mask, ...] = ("drop", "redact", "hash")
REDACTED = "[redacted]"
_DIGEST_BYTES = 16

#: How a partition's value compares with the literals.
_COMPARISONS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "=": lambda value, literals: bool(value == literals[0]),
    "<>": lambda value, literals: bool(value != literals[0]),
    "<": lambda value, literals: bool(value < literals[0]),
    "<=": lambda value, literals: bool(value <= literals[0]),
    ">": lambda value, literals: bool(value > literals[0]),
    ">=": lambda value, literals: bool(value >= literals[0]),
    "in": lambda value, literals: value in literals,
}


@dataclass(frozen=True, slots=True)
class _Term:
    """One comparison of a partition column, perhaps negated."""

    test: Comparison | IsNull
    negated: bool

    @classmethod
    def of(cls, node: Node) -> _Term:
        """Return a term for what the parser gives for one comparison."""
        test = node.child if isinstance(node, Not) else node
        assert isinstance(test, Comparison | IsNull)
        return cls(test, negated=isinstance(node, Not))

    def holds(self, file: ChangeFile, zone: str) -> bool:
        """Return whether the comparison is true for the rows of a file."""
        column = self.test.column
        fields = {f.name.lower(): f for f in file.state.partition_fields()}
        found = fields.get(column.lower())
        if found is None:
            names = ", ".join(f.name for f in file.state.partition_fields()) or "none"
            raise TableError(
                f"`where` names {column!r}, which is not a partition column of this version",
                version=file.version,
                hint=f"its partition columns are: {names}",
            )
        try:
            text = partition_text(
                file.partition_values,
                file.state.physical_name(found),
                absent_is_null=file.change_type is None,
            )
        except TableError as e:
            raise e.at(version=file.version, path=file.path) from None
        value = _key(partition_scalar(text, found.type, zone))
        if isinstance(self.test, IsNull):
            return (value is None) is not self.negated
        if value is None:
            return False  # as in SQL: a comparison with null is never true
        try:
            literals = self.literals(found, zone)
        except ConfigError as e:
            raise TableError(f"`where` {e}", version=file.version) from None
        return _COMPARISONS[self.test.op](value, literals) is not self.negated

    def literals(self, column: StructField, zone: str) -> list[Any]:
        """Return the values, in the column's type. Raises :class:`ConfigError` for one that does
        not fit it."""
        found = []
        for literal in self.test.literals if isinstance(self.test, Comparison) else ():
            try:
                found.append(_key(partition_scalar(literal.text, column.type, zone)))
            except TableError:
                kind = column.type.name if isinstance(column.type, PrimitiveType) else "text"
                raise ConfigError(
                    f"compares {self.test.column!r} with {literal.text!r}, "
                    f"which is not a valid {kind}"
                ) from None
        return found


def _key(value: pa.Scalar) -> Any:
    """Return a value that compares with others of its type; times as numbers."""
    kind = value.type
    return value.value if pa.types.is_temporal(kind) else value.as_py()


@dataclass(frozen=True, slots=True)
class Where:
    """A conjunction of comparisons of partition columns; ``text`` is the configured text."""

    text: str
    terms: tuple[_Term, ...]

    def wants(self, file: ChangeFile, zone: str) -> bool:
        """Return whether rows of this file's partition are selected.

        Raises :class:`TableError` for a column that is not a partition column.
        """
        return all(term.holds(file, zone) for term in self.terms)

    def check(self, state: TableState) -> None:
        """Raise :class:`ConfigError` for a column that is not a partition column of this state, and
        for a value that does not have its column's type."""
        known = {f.name.lower(): f for f in state.partition_fields()}
        for term in self.terms:
            column = term.test.column
            if column.lower() in known:
                term.literals(known[column.lower()], "UTC")
            else:
                raise ConfigError(
                    f"names {column!r}, and the table's partition columns are: "
                    + (", ".join(f.name for f in state.partition_fields()) or "none")
                )


def parse_where(text: str) -> Where:
    """Parse ``country = 'DE' and year >= 2020 and kind in ('a', 'b') and day is not null``.

    Raises :class:`ConfigError` for anything else.
    """
    try:
        terms = Parser(text).conjunction()
    except NotUnderstood as e:
        raise ConfigError(
            f"is {text!r}, not understood at {e.rest!r}; it must be comparisons of partition "
            "columns joined by `and`, as in country = 'DE' and year >= 2020; also in (...), "
            "is [not] null"
        ) from None
    return Where(text, tuple(_Term.of(term) for term in terms))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is published: ``columns`` (None: all), the partitions that ``where`` selects, and how
    columns are masked (by name, case-insensitive). ``mask_key`` is the key of hashes; it is not
    shown."""

    columns: tuple[str, ...] | None = None
    where: Where | None = None
    masks: Mapping[str, Mask] = field(default_factory=dict, hash=False)
    mask_key: bytes = field(default=b"", repr=False)


class Selector:
    """Applies a selection to files, states and rows. ``checked`` is the last state that can be
    published as it is selected."""

    def __init__(self, selection: Selection, zone: str) -> None:
        self.selection = selection
        self.zone = zone
        self._masks = {name.lower(): mask for name, mask in selection.masks.items()}
        self._last: tuple[TableState, TableState] | None = None
        self.checked: TableState | None = None

    def wants(self, file: ChangeFile) -> bool:
        """Return whether this file's partition is selected."""
        where = self.selection.where
        return where is None or where.wants(file, self.zone)

    def check(self, state: TableState) -> None:
        """Refuse a state without a masked column: renamed, the column would be published unmasked.

        Raises :class:`SchemaChanged`.
        """
        names = {name.lower() for name in state.schema.names}
        for name in self.selection.masks:
            if name.lower() not in names:
                raise SchemaChanged(
                    f"there is no column {name!r} to mask",
                    hint="it was renamed, dropped or misspelt; say in the feed's `mask` what is "
                    "to be masked now",
                )

    def state(self, state: TableState) -> TableState:
        """Return the part of the state that sinks may see."""
        if not self._masks and self.selection.columns is None:
            return state
        if self._last is None or self._last[0] is not state:
            self._last = (state, self._narrowed(state))
        return self._last[1]

    def _narrowed(self, state: TableState) -> TableState:
        document = json.loads(state.metadata.schema_string)
        wanted = self.selection.columns
        fields = [
            self._field(f)
            for f in document["fields"]
            if (wanted is None or f["name"] in wanted) and self._mask(f["name"]) != "drop"
        ]
        if wanted is not None:
            fields.sort(key=lambda f: wanted.index(f["name"]))
        names = {f["name"] for f in fields}
        text = json.dumps({**document, "fields": fields}, ensure_ascii=False, separators=(",", ":"))
        partitions = tuple(n for n in state.metadata.partition_columns if n in names)
        metadata = structs.replace(state.metadata, schema_string=text, partition_columns=partitions)
        return structs.replace(state, metadata=metadata, schema=parse_schema(text))

    def _mask(self, name: str) -> Mask | None:
        return self._masks.get(name.lower())

    def _field(self, document: dict[str, Any]) -> dict[str, Any]:
        mask = self._mask(document["name"])
        return {**document, "type": "string"} if mask == "hash" else document

    def file(self, file: ChangeFile) -> ChangeFile:
        """Return the file as sinks may see it: without values that its rows do not have."""
        if not self._masks and self.selection.columns is None:
            return file
        known = {} if self._masks else file.partition_values
        return replace(file, state=self.state(file.state), partition_values=known)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as sinks may see them. Raises :class:`TableError` for a type that can't
        be hashed."""
        if not self._masks:
            return rows
        end = rows.num_columns - len(METADATA_FIELDS)
        names, columns = [], []
        for at, (name, column) in enumerate(zip(rows.schema.names, rows.columns, strict=True)):
            mask = self._mask(name) if at < end else None
            if mask == "drop":
                continue
            if mask == "redact":
                column = _redacted(column)  # noqa: PLW2901  # the masked one takes its place
            elif mask == "hash":
                column = _hashed(name, column, self.selection.mask_key)  # noqa: PLW2901
            names.append(name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=names)


def _redacted(column: pa.Array) -> pa.Array:
    """Replace all strings by one fixed string and all other values by null; keep nulls."""
    if not pa.types.is_string(column.type):
        return pa.nulls(len(column), column.type)
    return pc.if_else(column.is_valid(), pa.scalar(REDACTED), pa.scalar(None, pa.string()))


def _hashed(name: str, column: pa.Array, key: bytes) -> pa.Array:
    """Hash each distinct value with keyed BLAKE2b to 32 hex digits. Equal values stay equal, so
    that they can be joined and counted; without the key, values can't be guessed by trying them."""
    if pa.types.is_nested(column.type):
        raise TableError(
            f"the column {name!r} is of a nested type and can't be hashed",
            hint="mask it by drop or redact",
        )
    coded = column.dictionary_encode()
    values = coded.dictionary
    if not pa.types.is_binary(values.type):
        # As bytes: a string in a file need not be valid UTF-8.
        values = values.cast(pa.string()).cast(pa.binary())
    digests = [None if v is None else _digest(v, key) for v in values.to_pylist()]
    return pa.array(digests, pa.string()).take(coded.indices)


def _digest(value: bytes, key: bytes) -> str:
    return blake2b(value, key=key, digest_size=_DIGEST_BYTES).hexdigest()
