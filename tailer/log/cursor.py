"""Which commit of a growing log comes next: decided without a store, a clock, chance or a wait.

:class:`LogCursor` is asked for its next action; its caller carries it out and gives the answer
(:mod:`tailer.log.follow` has the loop, :mod:`tailer.log.questions` the actions). ``_NEXT`` has the
states and where the answers lead; a state that has nothing to ask is passed over, and one in
capitals is an end. The rules:

1. A version is passed only after its commit was read, and versions are contiguous.
2. A commit counts only if its predecessor is still the same file *after* the commit was read: then
   both are of one table. If that file changed or was cleaned up, the id in the snapshot decides.
3. A version that does not exist is waited for while the log ends before it. If there is a later
   one, a commit was lost. Listings may lag behind, so the commit itself is always looked up.
4. While a version is waited for, an unchanged predecessor proves that the table is the same.
   Otherwise the log is examined: it is empty, or of another table, or shorter, or was cleaned up.
5. An empty log proves nothing: its file system may not be mounted.

For example, a table with versions 0 to 2 is followed from version 1 on::

    ReadCommit(1)  -> version 1      StatCommit(0) -> its tag, as before
    ListLog        -> 1 and 2        ReadMore(1)   -> version 2       Deliver(1 and 2)
    ReadCommit(3)  -> NotThere       ListLog       -> nothing         StatCommit(2) -> as before
    Wait(0)                          ReadCommit(3) -> NotThere        Wait(0.5)
    ReadCommit(3)  -> version 3      StatCommit(2) -> as before       Deliver(3)

What must never happen: a version is delivered twice, or before an earlier one; commits of two
tables are delivered as one table's; a lost commit is waited for; a table that is away for a moment
is taken for lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Literal

from msgspec import Struct

from tailer.delta.commit import Commit
from tailer.delta.segment import format_commit_name
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, TableError, TableReplaced, TransientError
from tailer.log import questions as ask
from tailer.log.questions import CursorAction, CursorAnswer
from tailer.offset import Offset

#: The most commits of a backlog that are delivered together.
BACKLOG_COMMITS_MAX = 256

#: Feeds with long pauses poll together with those of the same quarter of a second.
_TICK_S = 0.25

State = Literal[
    "resuming", "reading", "torn", "confirming", "identifying", "counting", "gathering",
    "delivering", "absent", "skipped", "quiet", "examining", "whose", "shorter", "waiting",
    "FINISHED", "AWAY", "GAP", "REPLACED", "TORN", "UNPROVEN", "WENT_BACK",
]  # fmt: skip
Event = Literal[
    "none", "done", "last", "there", "same", "changed", "missing", "empty", "newer",
    "read", "confirmed", "unconfirmed", "idle", "stale", "torn", "broken",
]  # fmt: skip

#: Where an answer leads from each state; "none": there is nothing to ask.
_NEXT: dict[State, dict[Event, State]] = {
    # Is the version there of which a part was delivered?
    "resuming": {"none": "reading", "there": "reading", "missing": "examining"},
    # The next commit. Is its predecessor still the same file? If not, is the table the same?
    "reading": {
        "read": "confirming", "confirmed": "counting", "unconfirmed": "identifying",
        "changed": "REPLACED", "torn": "torn", "broken": "TORN",
        "missing": "absent", "idle": "waiting", "stale": "reading",
    },
    "torn": {"done": "reading"},
    "confirming": {"same": "counting", "changed": "identifying", "missing": "identifying"},
    "identifying": {"same": "counting", "changed": "REPLACED", "missing": "UNPROVEN"},
    # How many follow it? Which of them can be read at once?
    "counting": {"none": "gathering", "there": "gathering"},
    "gathering": {"none": "delivering", "read": "delivering"},
    "delivering": {"done": "reading", "last": "FINISHED"},
    # There is no next commit. Is there a later one?
    "absent": {"none": "waiting", "there": "quiet", "newer": "skipped"},
    "skipped": {"there": "waiting", "missing": "GAP"},
    # Is the predecessor the same file? If not: is there a log, whose, and how long is it?
    "quiet": {
        "same": "waiting", "none": "examining", "changed": "examining", "missing": "examining"
    },
    "examining": {"there": "whose", "empty": "AWAY"},
    "whose": {"none": "shorter", "same": "shorter", "missing": "shorter", "changed": "REPLACED"},
    "shorter": {"none": "waiting", "there": "waiting", "missing": "WENT_BACK"},
    "waiting": {"done": "reading"},
}  # fmt: skip


class FollowOptions(Struct, frozen=True):
    """How to wait for the next commit, in seconds, and what may follow it.

    Polling starts at ``poll_min_s`` after a commit and doubles up to ``poll_max_s``; until then
    each pause is shortened by a random part, up to a half, but not below ``poll_min_s``. With
    ``same_table``, a commit that replaces the table by one with another id ends the following; a
    bounded read of a log's versions need not stop there.
    """

    poll_min_s: float = 0.5
    poll_max_s: float = 5.0
    same_table: bool = True


class LogFacts(Struct, frozen=True):
    """What a cursor knows about a log. ``check_s``: how often, in seconds, a log whose next commit
    is waited for is examined (0: at each poll). ``server_log``: a server names the table, and need
    not share earlier versions."""

    table: str
    torn_commit_max_s: float = 10.0
    check_s: float = 0.0
    server_log: bool = False


class LogCursor:
    """A place in a table's log, from ``start`` on and up to version ``last``.

    ``before`` is the state of the version before, and ``tag`` its file's, seen before that state
    was read. ``newest`` is the newest version that is known. ``jitter`` gives numbers in [0, 1).
    """

    def __init__(
        self,
        facts: LogFacts,
        start: Offset,
        before: TableState | None,
        tag: str | None,
        jitter: Callable[[], float],
        *,
        newest: int = -1,
        last: int | None = None,
        options: FollowOptions | None = None,
    ) -> None:
        self.state: State = "resuming" if last is None or start.version <= last else "FINISHED"
        self.version, self.before, self.newest = start.version, before, newest
        self._facts, self._options, self._last = facts, options or FollowOptions(), last
        self._jitter = jitter
        self._floor_ms, self._tag = start.timestamp_floor_ms, tag
        self._table_id = start.table_id if before is None else before.table_id
        self._begun, self._due = start.is_begun, start.version  # a version that must be there
        self._commits: list[Commit] = []
        self._listing = ask.Listing((), ())
        self._other_id: str | None = None
        self._torn, self._torn_s = ask.Torn(), 0.0
        self._asked_at = self._check_at = 0.0
        self._watched = False
        self._start_version()

    def _start_version(self) -> None:
        self._polled, self._poll_s = False, self._options.poll_min_s
        self._patience = ask.Patience(self._facts.torn_commit_max_s)

    def next_action(self, now: float) -> CursorAction | None:
        """Return what to do next, None at the end; ``now`` is any steady clock's, in seconds.

        Raises :class:`DataLoss` for a gap, :class:`TableReplaced` for another or an older table,
        :class:`CorruptLog` for a torn commit, :class:`TransientError` for a table that is away.
        """
        while (action := self._choose_action(now)) is None and (following := _NEXT.get(self.state)):
            self.state = following["none"]
        if action is None and self.state != "FINISHED":
            raise self._make_error()
        return action

    def receive(self, answer: CursorAnswer) -> None:
        """Take the answer to the last action."""
        self.state = _NEXT[self.state][self._take_answer(answer)]

    # What each state asks for

    def _choose_action(self, now: float) -> CursorAction | None:
        match self.state:
            case "reading":
                self._asked_at = now
                return ask.ReadCommit(self.version, self.before, self._floor_ms, now)
            case "torn":
                return ask.Pause(self._torn_s)
            case "identifying":
                return ask.ReadTableId(self.version)
            case "whose" if self._options.same_table and self._table_id is not None:
                return ask.ReadTableId(None)
            case "examining":
                return ask.ListLog()
            case "counting":
                return self._ask_for_backlog()
            case "gathering":
                end = self.newest if self._last is None else min(self.newest, self._last)
                count = min(BACKLOG_COMMITS_MAX - 1, end - self.version)
                return ask.ReadMore(self._commits[0], count) if count > 0 else None
            case "delivering":
                return ask.Deliver(self._commits, at_head=self._commits[-1].version >= self.newest)
            case "absent" if now >= self._check_at:
                return ask.ListLog(f"{self.version:020d}")
            case "waiting":
                self.newest = max(self.newest, self.version - 1)  # the log ends there
                pause_s = max(self._choose_poll_time() - now, self._options.poll_min_s)
                # The first one only sets the watch: a commit may have come just before.
                return ask.Wait(pause_s if self._watched else 0.0)
        return self._ask_for_tag()

    def _ask_for_backlog(self) -> ask.ListLog | None:
        """List the log if the commit may be the first one of a backlog."""
        if self.version > self.newest and not self._polled and self.version != self._last:
            return ask.ListLog(format_commit_name(self.version))
        self.newest = max(self.newest, self.version)
        return None

    def _ask_for_tag(self) -> ask.StatCommit | None:
        """Look up the file that a state asks about."""
        match self.state:
            case "resuming" if self._begun and not self._facts.server_log:
                return ask.StatCommit(self._due)
            case "confirming":
                return ask.StatCommit(self.version - 1)
            case "quiet" if self._tag is not None:
                return ask.StatCommit(self.version - 1)
            case "skipped":
                return ask.StatCommit(self.version)
            case "shorter" if self._due > max(self._listing.versions):
                return ask.StatCommit(self._due)
        return None

    def _choose_poll_time(self) -> float:
        """Return when to poll again.

        Hundreds of feeds that began together must not go on polling all at once, each waiting for
        the others' answers, so the shorter pauses differ. With the longest pause, some feeds poll
        together: one by one they take a third more processor time.
        """
        if self._poll_s != self._options.poll_max_s:
            return self._asked_at + self._poll_s * self._draw_share()
        at = self._asked_at + self._poll_s
        return at if self._poll_s < 4 * _TICK_S else round(at / _TICK_S) * _TICK_S

    def _draw_share(self) -> float:
        """Return by how much a pause is shortened: a number between a half and one."""
        return 0.5 + 0.5 * self._jitter()

    # What each answer means

    def _take_answer(self, answer: CursorAnswer) -> Event:
        match answer:
            case ask.CommitsRead(commits) if self.state == "gathering":
                self._table_id = self._commits[0].after.table_id
                self._commits += takewhile(self._is_same_table, commits)
                return "read"
            case ask.CommitsRead(commits, predecessor):
                return self._take_commit(commits[0], predecessor)
            case ask.NotThere():
                self._due = self.version - 1
                stale = answer.asked_at < self._asked_at - self._options.poll_min_s
                return "idle" if answer.idle else "stale" if stale else "missing"
            case ask.Torn():
                self._torn, pause_s = answer, self._patience.pause_s(answer)
                self._torn_s = pause_s or 0.0
                return "broken" if pause_s is None else "torn"
            case ask.FileTag(tag):
                return self._take_tag(tag)
            case ask.Listing():
                return self._take_listing(answer)
            case ask.TableId(table_id):
                self._other_id = table_id
                same = table_id == self._table_id
                return "missing" if table_id is None else "same" if same else "changed"
        return self._take_done()

    def _is_same_table(self, commit: Commit) -> bool:
        return not self._options.same_table or self._table_id in (None, commit.after.table_id)

    def _take_commit(self, commit: Commit, predecessor: ask.FileTag | None) -> Event:
        self._commits = [commit]
        if not self._is_same_table(commit):
            self._other_id = commit.after.table_id
            return "changed"
        if self.before is None:
            return "confirmed"
        if self._tag is None:
            return "unconfirmed"
        if predecessor is None:
            return "read"
        return "confirmed" if predecessor.tag == self._tag else "unconfirmed"

    def _take_tag(self, tag: str | None) -> Event:
        if tag is None:
            return "missing"
        if self.state in ("confirming", "quiet"):
            return "same" if tag == self._tag else "changed"
        return "there"

    def _take_listing(self, answer: ask.Listing) -> Event:
        newest = max(answer.versions, default=-1)
        if self.state == "counting":
            self.newest = max(self.version, newest)
            return "there"
        self._listing = answer
        if self.state == "absent":
            self._check_at = self._asked_at + self._facts.check_s * self._draw_share()
            return "newer" if newest > self.version else "there"
        return "empty" if newest < 0 else "there"

    def _take_done(self) -> Event:
        match self.state:
            case "waiting" if not self._watched:
                self._watched = True
            case "waiting":
                self._polled = True
                self._poll_s = min(self._poll_s * 2, self._options.poll_max_s)
            case "delivering":
                commit = self._commits[-1]
                self.version, self.before = commit.version + 1, commit.after
                self._table_id, self._floor_ms = commit.after.table_id, commit.timestamp_ms
                self._tag = commit.tag
                self._start_version()
                if commit.version == self._last:
                    return "last"
        return "done"

    # How it ends

    def _make_error(self) -> TableError | TransientError:
        table, version = self._facts.table, self.version
        match self.state:
            case "AWAY":
                return make_table_away_error(table, version)
            case "GAP" if version in self._listing.commits:
                return TransientError(f"{table}: version {version} is listed and can't be read")
            case "GAP":
                later = min(v for v in self._listing.versions if v > version)
                return DataLoss(
                    f"the commit is missing, though version {later} exists",
                    table=table,
                    version=version,
                    path=format_commit_name(version),
                    hint="the log was cleaned up or a file was lost; start at a newer version, "
                    "or with a snapshot",
                )
            case "TORN":
                return self._patience.make_error(self._torn, table, version)
            case "WENT_BACK":
                return make_went_back_error(table, version, max(self._listing.versions))
            case "UNPROVEN":
                what = (
                    "the commit before this one has changed or is gone, and this version's "
                    "snapshot can't be built to see whose it is"
                )
                hint = "reset the offset with `tailer offsets reset`, or start with a snapshot"
            case _:
                ids = f"its id was {self._table_id} and is {self._other_id}"
                what = f"the table was replaced by another one: {ids}"
                hint = "reset the offset with `tailer offsets reset` to follow the new table"
        return TableReplaced(what, table=table, version=version, hint=hint)


def make_table_away_error(table: str, version: int) -> TransientError:
    """Return the error of a table that existed and has no version any more.

    It was moved away, or its file system is not mounted: then no other missing file proves
    anything. A deleted table is waited for as well, because it looks the same.
    """
    return TransientError(
        f"{table}, version {version}: the table is gone, its _delta_log has no commit; "
        "the feed waits until it is back: mount or restore it, or stop the feed"
    )


def make_went_back_error(table: str, version: int, newest: int) -> TableReplaced:
    """Return the error of a log that ends before a version that somebody has."""
    return TableReplaced(
        f"the table went back to version {newest}",
        table=table,
        version=version,
        hint="an older copy was restored; reset the offset with `tailer offsets reset`",
    )
