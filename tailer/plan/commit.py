"""Planning a commit's changes: which files they are read from, and what the log must supply."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from tailer.changes import ChangeFile
from tailer.delta.commit import Commit
from tailer.log.table import TableLog
from tailer.plan.live_files import Ineffective
from tailer.plan.rules import (
    ChangeSource,
    Completions,
    Rewrite,
    choose_source,
    find_incomplete_removes,
    needs_data_files,
    plan_changes,
    plan_rewrite,
    plan_rewritten_files,
)


class CommitPlan(Struct, frozen=True):
    """A commit with everything that its change files need (:mod:`tailer.plan.rules`).

    Its changes are the rows of :meth:`plan_files`. If it compares, they are the differences between
    the two sides of :meth:`plan_rewrite`.
    """

    commit: Commit
    derived: bool
    ineffective: Ineffective
    completions: Completions

    @property
    def compares(self) -> bool:
        """Whether removed rows must be compared with added rows."""
        return self.derived and self.commit.header.adds > 0 and self.commit.header.removes > 0

    def plan_files(self, delivered: int = 0) -> Iterator[ChangeFile]:
        """Return the files whose rows are the changes, without the first ``delivered`` ones of the
        log (:class:`tailer.offset.Offset`)."""
        plan = plan_rewritten_files if self.derived else plan_changes
        files = plan(self.commit, self.completions, self.ineffective)
        if not delivered:
            return files
        left_out = {action.path for action in islice(self.commit.file_actions(), delivered)}
        return (file for file in files if file.path not in left_out)

    def plan_rewrite(self) -> Rewrite:
        """Return the files whose rows are to be compared."""
        return plan_rewrite(self.commit, self.completions, self.ineffective)


async def plan_commit(
    log: TableLog, commit: Commit, source: ChangeSource, ineffective: Ineffective
) -> CommitPlan:
    """Plan a commit; read the version before only if removes lack fields that only its adds have.

    ``ineffective`` is the result of :meth:`tailer.plan.live_files.LiveFiles.apply_commit`.
    Raises :class:`TableError` if ``source`` does not fit the commit.
    """
    derived = choose_source(commit, source) == "derived"
    lacking = set[tuple[str, str]]()
    if needs_data_files(commit, source):
        lacking = find_incomplete_removes(commit, ineffective, derived=derived)
    completions = await log.find_files(commit.version - 1, lacking)
    return CommitPlan(commit, derived, ineffective, completions)
