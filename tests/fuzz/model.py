"""What the writer of a history knows of its table: files, rows, and what steers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.values import Column

Action = dict[str, Any]
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Row:
    """A row by physical names, with its materialised row id and commit version."""

    values: Mapping[str, Any]
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True)
class File:
    """A logical file. ``action`` are the fields of its add action that its key does not have."""

    path: str
    rows: tuple[Row, ...]
    partition: Mapping[str, Any]
    action: Mapping[str, Any]
    epoch: int
    deleted: frozenset[int] = frozenset()
    vector: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[str, str]:
        dv = self.vector
        return self.path, "" if dv is None else f"{dv['pathOrInlineDv']}@{dv.get('offset')}"

    def live(self) -> list[Row]:
        """The rows that are not deleted, with the ids that a copy has to keep."""
        base, version = (self.action.get(n) for n in ("baseRowId", "defaultRowCommitVersion"))
        return [
            replace(
                row,
                id=base + i if row.id is None and base is not None else row.id,
                version=version if row.version is None else row.version,
            )
            for i, row in enumerate(self.rows)
            if i not in self.deleted
        ]


@dataclass(frozen=True)
class State:
    """What steers the table; ``by`` are the physical names of the partition columns."""

    columns: tuple[Column, ...]
    by: tuple[str, ...]
    properties: Mapping[str, str]
    features: frozenset[str]
    mapping: str = "none"
    legacy: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        return self.properties.get(name, "").lower() == "true"

    @property
    def cdf(self) -> bool:
        return self.on("delta.enableChangeDataFeed") and "changeDataFeed" in self.features
