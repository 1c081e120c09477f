"""What a cursor asks for, and the answers: plain records, each action before its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from tailer.delta.commit import Commit
from tailer.delta.segment import format_commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptLog


class ReadCommit(Struct, frozen=True):
    """Read a commit; it is wanted since ``asked_at``. ``before`` and ``floor_ms`` are the state and
    the timestamp of the version before."""

    version: int
    before: TableState | None
    floor_ms: int | None
    asked_at: float


class CommitsRead(Struct, frozen=True):
    """The commit; or those that were read at once, contiguous and of one table, perhaps none.
    ``predecessor`` is the file before the commit if it was looked up afterwards."""

    commits: list[Commit]
    predecessor: FileTag | None = None


class NotThere(Struct, frozen=True):
    """The commit did not exist at ``asked_at``, which is long ago if it was requested ahead.
    ``idle``: nothing has changed in the log's folder since an earlier answer of this kind."""

    asked_at: float
    idle: bool = False


class Torn(Struct, frozen=True):
    """A commit that is there, but not whole. ``form``: what its bytes are instead of JSON, if that
    is known. Then it never becomes whole."""

    form: str | None = None


class StatCommit(Struct, frozen=True):
    """Look up a commit's file."""

    version: int


class FileTag(Struct, frozen=True):
    """The tag of the file, which changes whenever the file does; None: there is no such file."""

    tag: str | None


class ListLog(Struct, frozen=True):
    """List the log's files whose names are greater than ``after``."""

    after: str = ""


class Listing(Struct, frozen=True):
    """The versions that exist by a listing, and those whose commit is listed."""

    versions: Sequence[int]
    commits: Sequence[int]


class ReadMore(Struct, frozen=True):
    """Read up to ``count`` commits after one, if that is quick."""

    after: Commit
    count: int


class ReadTableId(Struct, frozen=True):
    """Build the snapshot of a version (None: the newest) to see whose it is."""

    version: int | None


class TableId(Struct, frozen=True):
    """The table's id; None if the snapshot can't be built."""

    table_id: str | None


class Deliver(Struct, frozen=True):
    """Deliver commits; ``at_head``: no later one is known."""

    commits: list[Commit]
    at_head: bool


class Wait(Struct, frozen=True):
    """Wait until something changes in the log's folder, at most ``seconds``. The first time this
    begins the watch; it lasts no time, since what came before is looked for again."""

    seconds: float


class Pause(Struct, frozen=True):
    """Wait ``seconds``, whatever happens."""

    seconds: float


CursorAction: TypeAlias = (
    ReadCommit | StatCommit | ListLog | ReadMore | ReadTableId | Deliver | Wait | Pause
)
#: None: what was asked for is done.
CursorAnswer: TypeAlias = (
    CommitsRead | NotThere | Torn | FileTag | Listing | TableId | None
)  # fmt: skip


class Patience:
    """The pauses in which a half-written commit is waited for, ``max_s`` seconds in all."""

    def __init__(self, max_s: float) -> None:
        self._max_s, self._waited_s = max_s, 0.0

    def pause_s(self, torn: Torn) -> float | None:
        """Return how long to wait before the commit is read again; None if it stays torn."""
        if torn.form is not None or self._waited_s >= self._max_s:
            return None
        pause_s = min(0.05 + self._waited_s, 1.0)
        self._waited_s += pause_s
        return pause_s

    def make_error(self, torn: Torn, table: str, version: int) -> CorruptLog:
        """Return the error of a commit that stays torn."""
        what = f"the commit is half-written, and was not finished for {self._waited_s:.0f} s"
        hint = "its writer does not write atomically and has died; repair or remove it"
        if torn.form is not None:
            what = f"the commit is {torn.form}, and commits are plain JSON in UTF-8"
            hint = "restore it as it was, and let no proxy compress files of the log"
        path = format_commit_name(version)
        return CorruptLog(what, table=table, version=version, path=path, hint=hint)
