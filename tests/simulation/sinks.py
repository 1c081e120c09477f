"""Simulated sinks: where events go, judged as they arrive.

A sink of another kind is simulated by a double of its contract that hands what became visible to
its target: :meth:`Target.take`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from sinks.formats.json_formats import keyed_settings
from sinks.messages import in_flight
from sinks.messages.messages import Messages, RequestLimits
from sinks.messages.sink import MessageSink
from tailer.changes import METADATA_FIELDS, ChangeBatch, Notice, Offset
from tailer.errors import RowsRefused, TransientError
from tailer.sink import Sink, SinkTraits
from tests.simulation.judge import Delivered, HistoryRow, Judge
from tests.simulation.model import LEAVING, Row
from tests.simulation.world import Process, World

#: A message each, for a history has few events.
_LIMITS, _IN_FLIGHT = RequestLimits(messages=1, bytes=10**6), 3
_METADATA = tuple(f.name for f in METADATA_FIELDS)


def delivered_rows(batch: ChangeBatch) -> list[Delivered]:
    """Return a batch's rows as the judge compares them."""
    if not batch.num_rows:
        return []
    names = [name for name in batch.rows.schema.names if name not in _METADATA]
    values = zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True)
    kinds, versions = (batch.rows.column(n).to_pylist() for n in _METADATA[:2])
    ids = batch.event_ids().to_pylist()
    snapshot = batch.offset.snapshot
    before = [None] * len(ids) if batch.before is None else batch.before.to_pylist()
    found = []
    for one, version, kind, row, old in zip(ids, versions, kinds, values, before, strict=True):
        if old is not None:  # an update in one row
            image = tuple(old[name] for name in names)
            found.append(Delivered(f"{one} before", version, "update_preimage", image, snapshot))
        found.append(Delivered(one, version, kind, row, snapshot))
    return found


class Target:
    """What a sink writes to. It outlives the processes, and knows the newest writer's epoch; of a
    copy of the table, ``rows`` are the rows by their id.

    ``on_write`` is called with the process that makes events visible, and with the events.
    """

    def __init__(
        self,
        world: World,
        name: str,
        judge: Judge,
        on_write: Callable[[Process | None, list[Delivered]], None],
    ) -> None:
        self.world = world
        self.name = name
        self.judge = judge
        self.on_write = on_write
        #: Writes that a process began after another one had taken its feed over.
        self.late_writes: dict[str, int] = {}
        self.epoch = 0
        self.owner: str | None = None
        #: The offset in the state's file, as JSON.
        self.saved: dict[str, Any] | None = None
        self.progress: Offset | None = None
        self.poison: set[object] = set()
        self.rows: dict[object, Row] = {}
        self.history: list[HistoryRow] = []

    def copy_rows(self, events: list[Delivered]) -> None:
        """Store events in the copy of the table, and judge it."""
        for event in events:
            if event.kind in LEAVING:
                self.rows.pop(event.row[0], None)
            else:
                self.rows[event.row[0]] = event.row
        self.judge.copied(self.rows.values())

    def damage(self) -> None:
        """Change a mirror's rows behind its feed's back."""
        rows, rng = self.rows, self.world.rng
        for key in rng.sample(sorted(rows, key=str), min(len(rows), 2)):
            if rng.random() < 0.5:
                del rows[key]
            else:
                rows[key] = (key, -7, *rows[key][2:])
        rows[-999] = (-999, 0)
        self.judge.damages += 1

    def parking(self) -> Target:
        """Return where rows go that this target refuses; for the judge, they are delivered."""
        return Target(self.world, f"{self.name}'s park", self.judge, self.on_write)

    def begins(self) -> None:
        """Judge the beginning of a write: a process whose feed was taken over stops."""
        process = self.world.current()
        late = None if process is None else self.late_writes.get(process.name)
        if process is None or late is None:
            return
        if late:
            self.world.broken(f"P6: {process} writes again, though another one has taken over")
        self.late_writes[process.name] = late + 1

    def take(self, writer: Process | None, events: list[Delivered]) -> None:
        """Make events visible."""
        if self.poison and any(event.row[0] in self.poison for event in events):
            raise RowsRefused(f"{self.name} does not take this row")
        self.on_write(writer, events)
        self.judge.delivered(events)


class PlainSink(Sink):
    """A sink without progress: what was written twice is there twice."""

    traits = SinkTraits(spans=True)

    def __init__(self, target: Target) -> None:
        self.target = target
        self.world = target.world

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002  # one target, one feed
        """See :class:`tailer.sink.Sink`."""
        await self.world.request(f"open {self.target.name}", lambda: None)
        return None

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        await self.send(delivered_rows(batch), f"{batch.offset.position}")

    async def send(self, events: list[Delivered], where: str) -> None:
        """Send events in one request."""
        world, name = self.world, self.target.name
        if world.fault("sink refuses", name):
            raise TransientError(f"{name} is busy")
        if world.fault("sink slow", name):
            await _wait(world)
        world.tell(f"{name} <- {len(events)} events from {where}")
        self.target.begins()
        writer = world.current()
        await world.request(f"write {name}", lambda: self.target.take(writer, events))

    async def announce(self, notice: Notice) -> None:
        """See :class:`tailer.sink.Sink`."""
        world, name = self.world, self.target.name
        if notice.kind != "heartbeat":
            world.tell(f"{name} <- {notice.kind} of version {notice.version}")
        judge = self.target.judge
        await world.request(f"announce {name}", lambda: judge.noticed(notice))

    async def aclose(self) -> None:
        """See :class:`tailer.sink.Sink`."""


class TransactionalSink(PlainSink):
    """A sink that keeps its progress with the data, in one transaction, and fences older ones."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._epoch = -1

    async def open(self, feed: str) -> Offset | None:  # noqa: ARG002  # one target, one feed
        """See :class:`tailer.sink.Sink`."""
        target = self.target

        def opened() -> tuple[int, Offset | None]:
            target.epoch += 1
            return target.epoch, target.progress

        self._epoch, progress = await self.world.request(f"open {target.name}", opened)
        return progress

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        await self._commit(delivered_rows(batch), batch.next_offset, f"{batch.offset.position}")

    async def announce(self, notice: Notice) -> None:
        """See :class:`tailer.sink.Sink`."""
        if notice.kind != "heartbeat":
            await self._commit([], notice.next_offset, notice.kind, notice)

    async def _commit(
        self, events: list[Delivered], following: Offset, where: str, notice: Notice | None = None
    ) -> None:
        world, target, epoch, writer = self.world, self.target, self._epoch, self.world.current()
        if world.fault("sink slow", target.name):
            await _wait(world)
        world.tell(f"{target.name} <- transaction of {len(events)} events from {where}")

        def committed() -> None:
            if epoch != target.epoch:
                raise TransientError(f"{target.name}: a newer producer has taken over")
            judge = target.judge
            for event in events:
                again = event.id in judge.seen and not event.snapshot
                if again and event.version not in judge.excused:
                    world.broken(f"P5: {event} is committed a second time")
            target.take(writer, events)
            if notice is not None:
                judge.noticed(notice)
            target.progress = following
            judge.offset_saved(following, "sink")
            self._stored(events)

        await world.request(f"commit {target.name}", committed)
        self._done()

    async def set_offset(self, feed: str, offset: Offset | None) -> None:  # noqa: ARG002
        """See :class:`tailer.sink.Sink`."""
        target = self.target
        assert offset is not None, "nobody forgets it here"

        def moved() -> None:
            self._fence()
            self._go_back(offset)
            target.progress = offset
            target.judge.rewound(offset)

        await self.world.request(f"set {target.name}", moved)

    def _fence(self) -> None:
        """Have transactions of earlier processes refused."""
        self.target.epoch += 1

    def _go_back(self, offset: Offset) -> None:
        """Forget what is behind an offset, where the target keeps versions."""

    def _stored(self, events: list[Delivered]) -> None:
        """Take note of a transaction's events where they are stored."""

    def _done(self) -> None:
        """Take note of a transaction whose answer has come."""


class CopySink(TransactionalSink):
    """A sink that keeps a copy of the table, like a Delta table: each commit is the one behind that
    which its writer knows, and the first one makes the table."""

    async def open(self, feed: str) -> Offset | None:
        """See :class:`tailer.sink.Sink`."""
        if self.target.progress is not None:
            return await super().open(feed)
        self._epoch = 0
        await self.world.request(f"open {self.target.name}", lambda: None)
        return None

    def _stored(self, events: list[Delivered]) -> None:
        self.target.epoch += 1
        self.target.copy_rows(events)

    def _done(self) -> None:
        self._epoch += 1


class InFlightSink(MessageSink):
    """A sink of messages with several requests on their way, as those of AWS and webhooks are: the
    events of one row follow one another."""

    kind = "in_flight"
    piece_rows = 7

    def __init__(self, target: Target) -> None:
        given = {name: one.default for name, one in keyed_settings("rows").items()}
        super().__init__("rows", {**given, "key": ["id"]})
        self.target = target
        self._plain = PlainSink(target)

    async def _connect(self) -> Offset | None:
        return await self._plain.open(self._feed)

    async def _disconnect(self) -> None:
        """Nothing is open."""

    async def _send_messages(self, messages: Messages, then: Offset) -> None:
        events = {event.id: event for event in delivered_rows(messages.batch)}

        async def send(request: Messages) -> None:
            found = [events[one] for one in request.ids.to_pylist()]
            await self._plain.send(found, f"{then.position}")

        await in_flight.send_requests(messages, _LIMITS, _IN_FLIGHT, send, self._note_taken)

    async def announce(self, notice: Notice) -> None:
        await super().announce(notice)
        await self._plain.announce(notice)


async def _wait(world: World) -> None:
    await anyio.sleep(world.rng.uniform(1.0, 30.0))
    world.current()
