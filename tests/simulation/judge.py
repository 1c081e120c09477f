"""The judge: whether what reached a sink and what was saved keep the promises, after every step.

One judge stands at one sink. It knows the table's model, and what may be missing because a notice
said so. The numbers are those of the promises in docs/reliability.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from tailer.changes import Notice, Offset
from tests.simulation.model import LEAVING, Event, Row, shown
from tests.simulation.world import World
from tests.simulation.writer import SimulatedTable


class Delivered(Struct, frozen=True):
    """One event as a sink got it; ``snapshot`` says that it is a row of a snapshot."""

    id: str
    version: int
    kind: str
    row: Row
    snapshot: bool


class HistoryRow(Struct):
    """A row of a history: its values, the version that it began with, and the one that ended it."""

    values: Row
    begun: int
    ended: int | None

    @property
    def key(self) -> object:
        """The row's id."""
        return self.values[0]


class Judge:
    """Judges one sink of one feed. ``start`` is the first offset that was saved.

    ``derived``: the feed finds changes by comparing rows. ``even``: it selects rows with even ids.
    ``by_row``: the events of one row follow one another, and those of others need not.
    """

    def __init__(
        self,
        world: World,
        table: SimulatedTable,
        name: str,
        *,
        derived: bool = False,
        even: bool = False,
        by_row: bool = False,
    ) -> None:
        self.by_row = by_row
        self.derived = derived
        self.even = even
        self.world = world
        self.table = table
        self.name = name
        self.start: Offset | None = None
        self.started_at = 0.0
        #: The newest offset by where it is kept: in the state's file, with the sink's data.
        self.saved: dict[str, Offset] = {}
        self.seen: dict[str, Delivered] = {}
        #: What came before the feed was taken back, and comes again.
        self.seen_before: dict[str, Delivered] = {}
        #: How often a mirror's rows were changed, and how many of these were repaired.
        self.damages = self.repaired_damages = 0
        self.of_version: defaultdict[int, Counter[Event]] = defaultdict(Counter)
        self.of_snapshot: defaultdict[int, Counter[Row]] = defaultdict(Counter)
        self.events = 0
        #: The notices by kind.
        self.notices: Counter[str] = Counter()
        #: Versions, and snapshots' versions, of which rows may be missing: a notice says so.
        self.excused: set[int] = set()
        self.excused_snapshots: set[int] = set()
        #: The versions of snapshots that stand in for the versions up to them.
        self.snapshots: set[int] = set()
        self._whole = 0
        #: The newest version that came, of all rows or of each, and which rows came with it.
        self._newest: defaultdict[object, int] = defaultdict(lambda: -1)
        self._coming: defaultdict[object, set[object]] = defaultdict(set)

    # What the sink got

    def delivered(self, events: Sequence[Delivered]) -> None:
        """Judge events in the order in which they became visible to the sink's readers."""
        last = -1
        for event in events:
            self.events += 1
            known = self.seen.get(event.id) or self.seen_before.get(event.id)
            if known is not None and known != event:
                self.world.broken(f"P4: event {event.id} came as {known} and as {event}")
            if event.id not in self.seen:
                self.seen[event.id] = event
                self._first_time(event)
            if not event.snapshot:
                if event.version < last:
                    self.world.broken(f"P3: {event} came after version {last} in one batch")
                last = event.version

    def _all(self, version: int) -> Counter[Event]:
        found = self.table.versions[version]
        return found.derived if self.derived else found.events

    def _wanted(self, version: int) -> Counter[Event]:
        found = self._all(version)
        if not self.even:
            return found
        return Counter({e: count for e, count in found.items() if _is_even(e[1])})

    def _rows(self, version: int) -> Counter[Row]:
        """Return the rows of a version that are selected."""
        rows = self.table.versions[version].rows
        if not self.even:
            return rows
        return Counter({row: count for row, count in rows.items() if _is_even(row)})

    def _first_time(self, event: Delivered) -> None:
        if event.version >= len(self.table.versions):
            self.world.broken(f"P2: {event} is of a version that does not exist")
        if event.snapshot:
            found = self.of_snapshot[event.version]
            found[event.row] += 1
            if found[event.row] > self._rows(event.version)[event.row]:
                self.world.broken(f"P2: {event} is not in the snapshot, or is there less often")
            return
        change = (event.kind, event.row)
        counts = self.of_version[event.version]
        counts[change] += 1
        if counts[change] > self._wanted(event.version)[change]:
            self.world.broken(f"P2: {event} is no change of version {event.version}")
        key = event.row[0]
        among = key if self.by_row else None
        newest, coming = self._newest[among], self._coming[among]
        if event.version < newest and event.version not in self.excused:
            self.world.broken(f"P3: {event} first came after version {newest}")
        if event.version > newest:
            self._newest[among] = event.version
            coming.clear()
        # Per key: what leaves comes first.
        if event.kind not in LEAVING:
            coming.add(key)
        elif key in coming and event.version == self._newest[among]:
            self.world.broken(f"P3: {event} came after the row that replaces it")

    def noticed(self, notice: Notice) -> None:
        """Take note of what a notice says is missing from now on, and judge whether it is so."""
        self.notices[notice.kind] += 1
        if notice.kind == "snapshot_end" and notice.details["reason"] == "resnapshot":
            self.notices["resnapshot"] += 1
        if notice.kind == "skipped_version":
            self.excused.add(notice.version)
        elif notice.kind == "data_loss":
            details = notice.details
            first, last = int(details["first_version"]), int(details["last_version"])
            versions = range(first, last + 1)
            if not any(map(self.table.is_lost, versions)):
                self.world.broken(f"P1: a notice says that versions {first} to {last} lost "
                                  "something, and nothing is gone")  # fmt: skip
            self.excused.update(versions)
            if notice.offset.snapshot:
                self.excused_snapshots.add(notice.offset.version)

    def obeyed(self, resnapshots: list[float]) -> bool:
        """Return whether the orders of these times to read the table again are carried out. Those
        from before the feed had a place are carried out by its first snapshot, if it has one."""
        if self.start is not None and self.start.snapshot:
            resnapshots = [at for at in resnapshots if at >= self.started_at]
        return self.notices["resnapshot"] >= len(resnapshots)

    # What was saved

    def offset_saved(self, offset: Offset, where: str) -> None:
        """Judge an offset that was saved: all before it must be delivered."""
        if self.start is None:
            self.start, self.started_at = offset, self.world.now
        before = self.saved.get(where)
        self.saved[where] = offset
        if before is not None and offset.position < before.position:
            same = offset.version == before.version and offset.version in self.excused
            if not same and not offset.snapshot:
                self.world.broken(f"P1: the offset went back from {before.position} to "
                                  f"{offset.position} in the {where}")  # fmt: skip
        if offset.snapshot:
            self.snapshots.add(offset.version)
            self._whole = max(self._whole, offset.version)
            self._check_snapshot(offset)
            return
        self._whole = max(self._whole, self.start.version)
        while self._whole < offset.version:
            self._check_version(self._whole)
            self._whole += 1
        if offset.index:
            unselected = self._all(offset.version) - self._wanted(offset.version)
            count = self.of_version[offset.version].total() + unselected.total()
            if count < offset.index and offset.version not in self.excused:
                self.world.broken(f"P1: offset {offset.position} was saved, and only {count} "
                                  "changes of its version were delivered")  # fmt: skip

    def knows_table(self) -> bool:
        """Return whether a saved offset names its table."""
        return any(offset.table_id is not None for offset in self.saved.values())

    def _check_version(self, version: int) -> None:
        if version in self.excused and version >= len(self.table.versions):
            return  # the operator had it skipped before it was there
        if version >= len(self.table.versions):
            self.world.broken(f"P2: the offset passed version {version}, which does not exist")
        if version in self.snapshots:
            missing: Counter[Any] = self._rows(version) - self.of_snapshot[version]
            excused = self.excused_snapshots
        else:
            missing = self._wanted(version) - self.of_version[version]
            excused = self.excused
        if missing and version not in excused:
            self.world.broken(f"P1: the offset passed version {version}, and {dict(missing)} "
                              "was not delivered")  # fmt: skip

    def _check_snapshot(self, offset: Offset) -> None:
        unselected = self.table.versions[offset.version].rows - self._rows(offset.version)
        got = self.of_snapshot[offset.version].total() + unselected.total()
        if got < offset.index and offset.version not in self.excused_snapshots:
            self.world.broken(f"P1: {offset.position} of a snapshot was saved, and only {got} of "
                              "its rows were delivered")  # fmt: skip

    def rewound(self, offset: Offset) -> None:
        """Take note that the feed was taken back: what is behind the offset comes again."""
        first = offset.version
        for event in [event for event in self.seen.values() if event.version >= first]:
            self.seen_before[event.id] = self.seen.pop(event.id)
        for counts in (self.of_version, self.of_snapshot):
            for version in [version for version in counts if version >= first]:
                del counts[version]
        self.snapshots = {version for version in self.snapshots if version < first}
        self.saved = {"sink": offset}
        self._whole = min(self._whole, first)
        self._newest.clear()
        self._coming.clear()

    # What a copy of the table has

    def _find_judged_version(self) -> int | None:
        """Return the version that a copy should have; None within one, or if rows may lack."""
        at = self.saved["sink"]
        return at.version - 1 if self.has_all_rows and not (at.index or at.snapshot) else None

    @property
    def has_all_rows(self) -> bool:
        """Whether all rows came since the table's first version, or a snapshot."""
        whole = self.start is not None and (self.start.snapshot or not self.start.version)
        return whole and not self.excused and not self.excused_snapshots

    def repaired(self, rows: Iterable[Row], damages: int) -> None:
        """Judge a mirror after a repair, which began when there were so many damages."""
        self.repaired_damages = damages
        if self.saved:
            self.copied(rows)

    def recorded(self, history: Sequence[HistoryRow]) -> None:
        """Judge a history: behind a version's last change, it has the rows of this version and of
        any earlier one."""
        last = self._find_judged_version()
        if last is None or last < 0:
            return
        assert self.start is not None
        first = self.start.version
        for number in {last, self.world.rng.randint(min(first, last), last)}:
            version = self.table.versions[number]
            valid = (
                shown(row.values, version.columns)
                for row in history
                if row.begun <= number and (row.ended is None or row.ended > number)
            )
            if (found := Counter(valid)) != (right := self._rows(number)):
                self.world.broken(f"P2: the history has {dict(found - right)} besides the rows of "
                                  f"version {number}, and lacks {dict(right - found)}")  # fmt: skip

    def copied(self, rows: Iterable[Row]) -> None:
        """Judge a copy that was begun with the table's first rows: behind a version's last change,
        it has the rows of the version."""
        at = self.saved["sink"]
        if self._find_judged_version() is None or self.damages > self.repaired_damages:
            return
        version = self.table.versions[at.version - 1]
        found = Counter(shown(row, version.columns) for row in rows)
        right = self._rows(at.version - 1)
        if at.version and found != right:
            lacks, more = dict(right - found), dict(found - right)
            self.world.broken(f"P2: the copy of version {version.number} lacks {lacks}, and has "
                              f"{more} besides")  # fmt: skip

    # The end

    def finished(self) -> bool:
        """Return whether the saved offset is after the last version."""
        saved = self.saved.get("sink") or self.saved.get("file")  # the sink knows best
        if saved is None or saved.snapshot or self.table.last is None:
            return False
        if self.table.went_back_to is not None:
            return saved.version == self.table.last + 1
        return saved.version > self.table.last

    def check_end(self) -> None:
        """Judge the whole: the events applied to the rows at the start give the newest rows."""
        assert self.start is not None
        if self.excused or self.excused_snapshots or self.table.went_back_to is not None:
            return
        first, newest = self.start, self.table.newest
        width = newest.columns
        rows: Counter[Row] = Counter()
        at = first.version if first.snapshot else first.version - 1
        if at >= 0:
            rows = _widened(self._rows(at), width)
        for version in range(at + 1, newest.number + 1):
            for (kind, row), count in self.of_version[version].items():
                rows[shown(row, width)] += -count if kind in LEAVING else count
        if rows != _widened(self._rows(newest.number), width) and not (
            self.snapshots - {first.version}
        ):
            self.world.broken("P2: the events applied to the first rows do not give the last rows")


def _is_even(row: Row) -> bool:
    return isinstance(row[0], int) and row[0] % 2 == 0


def _widened(rows: Counter[Row], columns: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[shown(row, columns)] += count
    return found
