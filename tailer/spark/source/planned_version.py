"""What the driver knows of one version before anything is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from tailer.changes import ChangeFile, Offset
from tailer.delta.snapshot import TableState
from tailer.spark.orders import RewriteOrder


@dataclass(frozen=True, slots=True)
class Planned:
    """One version's changes, or the initial snapshot's rows, before anything is decoded.

    ``offset`` is that of its first change and ``next_offset`` the one after its last. The work is
    in ``files``, or in ``rewrite``, which can't be cut; a version without changes has neither.
    """

    state: TableState
    offset: Offset
    next_offset: Offset
    files: list[ChangeFile] = field(default_factory=list)
    rewrite: RewriteOrder | None = None

    @property
    def version(self) -> int:
        """Return the version."""
        return self.offset.version

    def all_files(self) -> Iterable[ChangeFile]:
        """Return the files whose rows are read, those of a comparison too."""
        if self.rewrite is not None:
            return chain(self.rewrite.rewrite.leaving, self.rewrite.rewrite.coming)
        return self.files
