"""What is published of a table: columns, partitions, masked values.

Rows of partitions that ``where`` does not select are never fetched. Columns are masked before a
sink, a parked row or a notice sees them. The state that is sent with a batch is reduced in the same
way, so that no sink learns of a hidden column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from tailer.changes import CHANGE_TYPES, METADATA_FIELDS, ChangeFile
from tailer.delta.commit import CommitHeader
from tailer.delta.schema import parse_schema
from tailer.delta.snapshot import TableState
from tailer.errors import SchemaChanged, TableError
from tailer.feed.texts import TextRule
from tailer.feed.where import PartitionColumns, Where

Mask = Literal["drop", "redact", "hash"]
MASKS: tuple[Mask, ...] = ("drop", "redact", "hash")
Operation = Literal["insert", "update", "delete"]
OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete")
REDACTED = "[redacted]"
_DIGEST_BYTES = 16


class Selection(Struct, frozen=True):
    """What is published: ``columns`` (None: all), the partitions that ``where`` selects, the
    ``operations`` (None: all), and how columns are masked (by name, case-insensitive). ``mask_key``
    is the key of hashes; it is not shown."""

    columns: tuple[str, ...] | None = None
    where: Where | None = None
    masks: Mapping[str, Mask] = {}
    mask_key: bytes = b""
    operations: tuple[Operation, ...] | None = None

    def __repr__(self) -> str:
        """Return all fields but the key."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        del shown["mask_key"]
        return f"Selection({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def change_types(self) -> pa.StringArray | None:
        """Return the change types of the rows that are published; None for all."""
        if self.operations is None:
            return None
        return pa.array(
            [kind for kind in CHANGE_TYPES if kind.startswith(self.operations)], pa.string()
        )

    def may_have(self, header: CommitHeader) -> bool:
        """Return whether a commit may have rows that are published: one that only adds files has
        inserts, one that only removes files has deletes."""
        if self.operations is None or header.cdcs or (header.adds and header.removes):
            return True
        return ("insert" if header.adds else "delete") in self.operations


class Selector:
    """Applies a selection to files, states and rows. ``checked`` is the last state that can be
    published as it is selected; ``partitions`` are the columns that conditions name."""

    def __init__(
        self,
        selection: Selection,
        zone: str,
        partitions: PartitionColumns | None = None,
        texts: TextRule | None = None,
    ) -> None:
        self.selection = selection
        self.partitions = partitions or PartitionColumns(zone)
        self._texts = texts
        self._masks = {name.lower(): mask for name, mask in selection.masks.items()}
        self._last: tuple[TableState, TableState] | None = None
        self.checked: TableState | None = None

    def wants(self, file: ChangeFile) -> bool:
        """Return whether this file's partition is selected."""
        where = self.selection.where
        return where is None or where.wants(file, self.partitions)

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
        return structs.replace(file, state=self.state(file.state), partition_values=known)

    def rows(
        self, rows: pa.RecordBatch, *, counted: bool = True, utf8: bool = False
    ) -> pa.RecordBatch:
        """Return the rows as sinks may see them. Raises :class:`TableError` for a type that can't
        be hashed, or for a text that must be valid and is not. ``counted``: they are delivered;
        ``utf8``: all texts are known to be UTF-8."""
        rows = self._masked(rows) if self._masks else rows
        return rows if self._texts is None or utf8 else self._texts.rows(rows, counted=counted)

    def _masked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
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
    return pc.if_else(
        column.is_valid(), pa.scalar(REDACTED, pa.string()), pa.scalar(None, pa.string())
    )


def _hashed(name: str, column: pa.Array, key: bytes) -> pa.Array:
    """Hash each distinct value with keyed BLAKE2b to 32 hex digits. Equal values stay equal, so
    that they can be joined and counted; without the key, values can't be guessed by trying them."""
    if pa.types.is_nested(column.type):
        raise TableError(
            f"the column {name!r} is of a nested type and can't be hashed",
            hint="mask it with drop or redact",
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
