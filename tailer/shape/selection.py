"""What is published of a table: rows, columns, masked values; as it is configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
from msgspec import Struct

from tailer.changes import CHANGE_TYPES
from tailer.delta.commit import CommitHeader
from tailer.shape.expressions import Condition, Select
from tailer.shape.masks import Mask

Operation = Literal["insert", "update", "delete"]
OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete")
Unchanged = Literal["keep", "drop"]


class Selection(Struct, frozen=True):
    """What is published: the rows that meet ``where`` (None: all), the columns of ``select`` (None:
    all), the ``operations`` (None: all), and how columns are masked (by name, case-insensitive).
    ``mask_key`` is the key of hashes; it is not shown. ``unchanged``: what becomes of an update
    whose selected columns are equal."""

    select: Select | None = None
    where: Condition | None = None
    masks: Mapping[str, Mask] = {}
    mask_key: bytes = b""
    operations: tuple[Operation, ...] | None = None
    unchanged: Unchanged = "keep"

    def __repr__(self) -> str:
        """Return all fields but the key."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        del shown["mask_key"]
        return f"Selection({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def find_needed(self, *more: Condition | None) -> tuple[str, ...] | None:
        """Return the table's columns that are read for it, and for further conditions, in the order
        in which they are delivered; None for all."""
        selected = None if self.select is None else self.select.find_needed()
        if selected is None:
            return None
        conditions = (each.columns for each in (self.where, *more) if each is not None)
        names = {n.lower(): n for columns in (selected, *conditions) for n in columns}
        return tuple(names.values())

    def list_change_types(self) -> pa.StringArray | None:
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
