"""One feed's life in the daemon: standby, running, retrying, paused, failed, stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import anyio

from tailer.changes import Offset
from tailer.daemon.recent import LastRows, RecentPast
from tailer.daemon.remedies import find_remedy
from tailer.daemon.retention import Outlook
from tailer.errors import ConfigError, TailerError, TransientError, healing, unexpected
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.parking import Parked
from tailer.feed.policy import FeedPaused
from tailer.feed.progress import FeedState, SlowSink
from tailer.feed.publish import find_saved_offset
from tailer.feed.run import Feed, run_feed
from tailer.feed.sink_calls import UnexplainedError
from tailer.offsets.held import HeldOffsets
from tailer.process.threads import run_blocking
from tailer.shape.expressions import Condition

State = Literal["running", "paused", "stopped", "failed", "ended"]
Event = Literal[
    "pause", "resume", "stop", "skip", "change", "end",  # orders
    "held_up", "failed", "finished",  # how an attempt ended by itself
]  # fmt: skip

#: Which events lead from a state to another one. Any other event changes nothing. An order during
#: a failing attempt is carried out. Entering ``running``, also from ``running``, the feed starts
#: from its saved offset. A paused feed is still owned by this process; a stopped or failed feed can
#: be taken by another process.
_NEXT: dict[State, dict[Event, State]] = {
    "running": {
        "pause": "paused", "stop": "stopped", "skip": "running", "change": "running",
        "held_up": "paused", "failed": "failed", "finished": "stopped", "end": "ended",
    },
    "paused": {"resume": "running", "stop": "stopped", "end": "ended"},
    "stopped": {"resume": "running", "pause": "paused", "end": "ended"},
    "failed": {
        "resume": "running", "skip": "running", "pause": "paused", "stop": "stopped", "end": "ended"
    },
    "ended": {},
}  # fmt: skip

#: How often a standby checks whether it still is one, so that its state is shown.
_STANDBY_LOOK_S = 0.2
_RATE_S = 1.0
#: The number of causes of delay that are remembered as logged.
_LOGGED_ERRORS_MAX = 100


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """What a feed is doing; JSON by :meth:`to_json`.

    Times are in seconds, ``offset`` is the saved one; ``seconds_to_loss`` None: nothing unread may
    be removed, and ``lag_rows`` None: unknown. ``snapshot`` is how far a snapshot is
    (:meth:`FeedProgress.describe_snapshot`), and ``parked`` what the file of parked rows has
    (:meth:`ParkedFile.measure`), None if there is none. ``lease`` is held, waiting (for the process
    named in ``owner``) or none; ``orders`` are its operator's
    (:meth:`tailer.feed.orders.Orders.to_json`). ``remedy`` is what to do about ``last_error``
    (:meth:`tailer.daemon.remedies.Remedy.to_json`).
    """

    name: str
    table: str
    sink: str
    state: FeedState
    offset: dict[str, Any] | None
    lag_versions: int
    lag_seconds: float
    lag_bytes: int
    lag_rows: int | None
    snapshot: dict[str, float | None] | None
    parked: dict[str, int] | None
    events: int
    events_per_s: float
    last_error: str | None
    remedy: dict[str, Any] | None
    seconds_to_loss: float | None
    lease: Literal["held", "waiting", "none"]
    owner: str | None
    resnapshots: int
    orders: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


class Runner:
    """Runs one feed, and carries out its operator's orders."""

    def __init__(
        self,
        feed: Feed,
        sink_type: str,
        *,
        logger: logging.Logger,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.feed = feed
        self.sink_type = sink_type
        self.logger = logger
        self._on_failure = on_failure
        self.error: TailerError | None = None
        self.outlook = Outlook(feed.log, feed.progress)
        self.past = RecentPast(feed.progress)
        self.last_rows = LastRows()
        self._offsets = HeldOffsets(feed.offsets)
        feed.offsets = self._offsets
        # A look at the target connects, and disconnects, with the sink that an attempt writes to.
        self._sink_turn = anyio.Lock()
        feed.on_retry = self._log_retry
        feed.on_park = self._log_parked
        self._logged: set[str] = set()
        self._logged_at = 0
        self.state: State = "running"
        self._changed = anyio.Event()
        self._resumed = False  # by an order that the saved ones must not undo
        self._ended = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._rate = (0.0, 0, 0.0)

    # Its life

    async def run(self) -> None:
        """Run until :meth:`end`. Errors of the feed are kept and logged; bugs too, with
        traceback."""
        try:
            while self.state != "ended":
                changed = self._changed
                if self.state == "running":
                    if outcome := await self._run_until_order():
                        self.transition(outcome)
                else:
                    await self._enter_rest()
                    await changed.wait()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await self._release_offset()
                    await self.feed.log.store.aclose()
            except (TailerError, OSError) as e:  # nothing awaits it, and other feeds continue
                self.log_event(logging.WARNING, "ended", f"was not released cleanly: {e}")
            finally:
                self._ended.set()

    def transition(self, event: Event) -> None:
        """Enter the state that an event leads to, and end the current attempt."""
        following = _NEXT[self.state].get(event)
        if following is None:
            return
        self.state = following
        self._changed.set()
        self._changed = anyio.Event()
        if self._scope is not None:
            self._scope.cancel()

    async def _run_until_order(self) -> Event | None:
        """Run the feed once. Return how it ended, None if an order has ended it."""
        try:
            with anyio.CancelScope() as self._scope:
                return await self._follow_table()
        finally:
            self._scope = None
        return None

    async def _follow_table(self) -> Event:
        feed, self.error = self.feed, None
        feed.progress.state = "starting"
        try:
            if not self._offsets.held:
                await self._take_ownership()
            if feed.orders.paused:
                self.log_event(logging.INFO, "paused", "paused by an order given before this start")
                return "held_up"
            self.log_event(logging.INFO, "following", f"following {feed.log.store.root}")
            async with self._sink_turn:
                await run_feed(feed)
        except FeedPaused as e:
            self.error = feed.progress.error = e
            self.log_event(logging.WARNING, "blocked", f"waits for its operator: {e}")
            return "held_up"
        except TailerError as e:
            self.error = feed.progress.error = e
            self.log_event(logging.ERROR, "failed", f"stopped: {e}", family=e.family)
            return "failed"
        except Exception as e:  # noqa: BLE001  # logged with its traceback
            # A bug. Its feed ends, but the others need not stop because of it.
            self.error = unexpected(e)
            feed.progress.note_failure(self.error)
            more: dict[str, Any] = {"family": self.error.family, "exc_info": e}
            self.log_event(logging.ERROR, "failed", f"stopped: {self.error}", **more)
            return "failed"
        return "finished"  # it had a last version

    def _log_retry(self, error: TailerError) -> None:
        """Log what delays a feed, each cause once until the feed has made progress."""
        text, delivered = str(error), self.feed.progress.versions_delivered
        if delivered != self._logged_at or len(self._logged) >= _LOGGED_ERRORS_MAX:
            self._logged_at = delivered
            self._logged.clear()
        if text not in self._logged:
            self._logged.add(text)
            does = "waits" if isinstance(error, SlowSink) else "tries again"
            cause = error.__cause__ if isinstance(error, UnexplainedError) else None
            more: dict[str, Any] = {"family": error.family, "exc_info": cause}
            self.log_event(logging.WARNING, "retrying", f"{does}: {error}", **more)

    def _log_parked(self, parked: Parked) -> None:
        self.log_event(logging.WARNING, "parked", str(parked), rows=parked.rows)

    async def _take_ownership(self) -> None:
        """Become the feed's owner and load its orders; tried again while the error is temporary."""
        backoff = self.feed.options.retry.make_backoff(self.feed.jitter)
        while True:
            try:
                with healing("the offset can't be acquired"):
                    await self._acquire_offset()
                    return await self._load_orders()
            except TransientError as e:
                await self._release_offset()
                await self.feed.pause_before_retry(e, backoff)

    async def _acquire_offset(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def tell() -> None:
                while True:
                    await anyio.sleep(_STANDBY_LOOK_S)
                    if self._offsets.waiting_for and self.feed.progress.state != "standby":
                        self.feed.progress.state = "standby"
                        owner = self._offsets.waiting_for
                        self.log_event(logging.INFO, "standby", f"waiting as a standby for {owner}")

            tasks.start_soon(tell)
            try:
                await self._offsets.acquire()
            except TailerError as e:
                error: TailerError | None = e
            else:
                error = None
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
        self.feed.progress.lease_held = True

    async def _load_orders(self) -> None:
        """Load the orders given before this process had the feed, and save those given since."""
        orders = self.feed.orders
        kept = await self._offsets.load_orders()
        orders.restore_orders(kept)
        place = await self._find_place()
        if place is not None:
            orders.skips = {v for v in orders.skips if v >= place.version}
        if self._resumed:
            orders.paused = self._resumed = False
        if orders.to_saved_json() != kept:
            await self._offsets.save_orders(orders.to_saved_json())

    async def _enter_rest(self) -> None:
        """Note the state of rest. Release the feed for other processes, unless it is paused."""
        if self.state in ("paused", "stopped", "failed"):
            self.feed.progress.state = "blocked" if self.is_blocked else self.state
        if self.state != "paused":
            await self._release_offset()
        if self.state == "failed":
            self._on_failure()

    async def _release_offset(self) -> None:
        if self._offsets.held:
            self._offsets.held = False
            await self._offsets.inner.release()
        self.feed.progress.lease_held = False

    def log_event(self, level: int, event: str, text: str, **more: Any) -> None:
        """Log a line about this feed: its name, what happened, and the rest as fields."""
        exc_info = more.pop("exc_info", None)
        fields = {"feed": self.feed.name, "event": event, **more}
        self.logger.log(level, "feed %s %s", self.feed.name, text, extra=fields, exc_info=exc_info)

    def note_order(self, level: int, order: str, outcome: str) -> None:
        """Log an order that was given, and remember it for the console."""
        self.log_event(level, "order", f"order {order}: {outcome}")
        self.past.note_order(order, outcome)

    # What its operator orders

    # All orders but a stop are saved with the offset, so that they hold after a restart and for a
    # standby. If saving fails, a TransientError is raised, and the order ends with the process.

    async def _save_orders(self) -> None:
        await self._offsets.save_orders(self.feed.orders.to_saved_json())

    async def pause(self) -> None:
        """Finish the current batch and wait; this process still owns the feed."""
        self.feed.orders.paused = True
        if self.state == "paused":
            self.feed.progress.state = "paused"  # no longer blocked
        self.transition("pause")
        await self._save_orders()

    async def resume(self) -> None:
        """Continue from the saved offset; accept a schema that it was paused or failed for."""
        error = self.error
        if isinstance(error, FeedPaused) or (error is not None and error.family == "schema"):
            version = getattr(error, "version", None)
            if isinstance(version, int):
                self.feed.orders.accepted.add(version)
                self.log_event(logging.INFO, "order", f"accepts the schema of version {version}")
        await self.start()

    async def start(self) -> None:
        """Continue from the saved offset; a schema that it waits for is not accepted by that."""
        self.feed.orders.paused = False
        self._resumed = not self._offsets.held and self.state != "running"
        self.transition("resume")
        await self._save_orders()

    def stop(self) -> None:
        """Finish the current batch, and release the feed so that another process can take it."""
        self.transition("stop")

    async def skip_version(self, version: int) -> None:
        """Skip a version that is not completely delivered, and continue; its notice says so.

        Raises :class:`ConfigError` for a version that was delivered, or is far in the future.
        """
        self.feed.orders.check_skip(
            version, await self._find_place(), self.feed.progress.newest_known
        )
        self.feed.orders.skips.add(version)
        self.transition("skip")
        await self._save_orders()

    async def unskip_version(self, version: int) -> None:
        """Deliver a version after all that was to be skipped, unless it is passed already.

        Raises :class:`ConfigError` for a version without an order to skip it.
        """
        self.feed.orders.take_back_skip(version)
        self.transition("change")  # it may be on its way to the sink as skipped
        await self._save_orders()

    async def _find_place(self) -> Offset | None:
        """Return where the feed is, even if it has not started in this process; None if unknown."""
        try:
            return self.feed.progress.offset or await self._offsets.load()
        except TailerError:
            return None

    async def measure_parked(self) -> None:
        """Look how much is parked in the feed's file."""
        if (file := self.feed.parked) is not None:
            self.feed.progress.parked = await run_blocking(file.measure)

    async def measure_unread(self) -> None:
        """Examine what is unread, also of a feed that does not run here or can't begin: its saved
        offset is looked up without acquiring it. Raises what the log raises."""
        progress = self.feed.progress
        if progress.state in ("following", "standby") and not progress.lag_versions():
            return
        if progress.known_offset is None or (self.idle and not self._offsets.held):
            found = await self._find_saved_offset()
            if found is not None and (progress.offset is None or self.idle):
                progress.note_saved_offset(found)
        await self.outlook.update_progress()

    async def _find_saved_offset(self) -> Offset | None:
        """Look up where the feed is; where it runs, in its saved offset alone."""
        try:
            self._sink_turn.acquire_nowait()
        except anyio.WouldBlock:
            return await self.feed.offsets.load()
        try:
            return await find_saved_offset(self.feed.name, self.feed.sink, self.feed.offsets)
        finally:
            self._sink_turn.release()

    @property
    def idle(self) -> bool:
        """Whether it is paused, stopped or failed."""
        return self.state in ("paused", "stopped", "failed")

    async def order_resnapshot(self, where: Condition | None = None) -> None:
        """Read the table once more while changes continue."""
        self.feed.orders.resnapshots.append(ResnapshotRequest(where))
        self.transition("change")
        await self._save_orders()

    async def stop_resnapshots(self) -> None:
        """Read the table's rows no further than they are, and none of those that wait in line.
        Raises :class:`ConfigError` if there is nothing to stop."""
        if not self.feed.orders.resnapshots:
            raise ConfigError(f"the feed {self.feed.name!r} is in no resnapshot")
        self.feed.orders.resnapshots.clear()
        self.transition("change")
        await self._save_orders()

    async def end(self) -> None:
        """End it for good; return when the current batch is written and the feed is released."""
        self.transition("end")
        await self._ended.wait()

    async def wait_for_rest(self) -> None:
        """Return when it does not run any more: it has come to its end, failed, or waits for an
        operator."""
        while self.state == "running":
            await self._changed.wait()

    @property
    def has_ended(self) -> bool:
        """Return whether it has come to its end, and has released the feed."""
        return self._ended.is_set()

    async def reopen_sinks(self) -> None:
        """Have its sinks reopen files that were rotated."""
        for sink in (self.feed.sink, self.feed.park):
            if sink is not None:
                await sink.reopen()

    # What it is doing

    @property
    def ready(self) -> bool:
        """Return whether it is paused or stopped by an order or in standby, or runs without an
        error."""
        if self.state in ("paused", "stopped"):
            return not self.is_blocked
        return self.feed.progress.state == "standby" or (
            self.error is None and self.feed.progress.ready
        )

    @property
    def is_blocked(self) -> bool:
        """Return whether it waits for its operator's answer, and not because of an order."""
        waits = self.state == "paused" and isinstance(self.error, FeedPaused)
        return waits and not self.feed.orders.paused

    @property
    def has_failed(self) -> bool:
        """Return whether it ended with an error and waits for its operator."""
        return self.state == "failed"

    @property
    def last_error(self) -> str | None:
        """Return the error that it failed or is paused with, or that it retries after."""
        error = self._present_error
        return None if error is None else str(error)

    @property
    def _present_error(self) -> TailerError | None:
        return self.error or self.feed.progress.error

    def build_status(self, now: float) -> FeedStatus:
        """Return the feed's status; ``now`` is any steady clock's, in seconds."""
        progress = self.feed.progress
        since, events, rate = self._rate
        if now - since >= _RATE_S:
            rate = (progress.events_delivered - events) / (now - since) if since else 0.0
            self._rate = (now, progress.events_delivered, rate)
        to_loss = progress.seconds_to_loss()
        waiting = self._offsets.waiting_for
        remedy = find_remedy(self._present_error)
        return FeedStatus(
            name=self.feed.name,
            table=self.feed.log.store.root,
            sink=self.sink_type,
            state=progress.state,
            offset=progress.known_offset.to_json() if progress.known_offset else None,
            lag_versions=progress.lag_versions(),
            lag_seconds=round(progress.lag_seconds(), 3),
            lag_bytes=progress.lag_bytes(),
            lag_rows=progress.lag_rows(),
            snapshot=progress.describe_snapshot(),
            parked=progress.parked,
            events=progress.events_delivered,
            events_per_s=round(rate, 1),
            last_error=self.last_error,
            remedy=remedy.to_json() if remedy else None,
            seconds_to_loss=None if to_loss == float("inf") else round(to_loss, 1),
            lease="held" if self._offsets.held else "waiting" if waiting else "none",
            owner=waiting,
            resnapshots=len(self.feed.orders.resnapshots),
            orders=self.feed.orders.to_json(),
        )
