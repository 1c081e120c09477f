"""One feed's life in the daemon: standby, running, retrying, paused, failed, stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import anyio

from tailer.changes import Offset
from tailer.daemon.retention import Outlook
from tailer.errors import TailerError, TransientError, healing
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.policy import FeedPaused
from tailer.feed.progress import FeedState
from tailer.feed.run import Feed, run_feed
from tailer.feed.selection import Where
from tailer.offsets.held import HeldOffsets
from tailer.sink import reopen

__all__ = ["Event", "FeedStatus", "Runner", "State"]

State = Literal["running", "paused", "stopped", "failed", "ended"]
Event = Literal[
    "pause", "resume", "stop", "skip", "change", "end",  # orders
    "held_up", "failed", "finished",  # how an attempt ended by itself
]  # fmt: skip

#: Which events lead from a state to another one. Any other event changes nothing: an order that
#: comes while an attempt fails is carried out. Into ``running`` the feed starts from its saved
#: offset, also out of ``running``. Paused, a feed stays this process's own; stopped or failed,
#: another process may take it.
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

#: How often a standby looks whether it still is one, for its state to be shown.
_STANDBY_LOOK_S = 0.2
_RATE_S = 1.0
#: So many things that hold up a feed are known to be told already.
_TOLD_MAX = 100


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """What a feed is doing; JSON by :meth:`to_json`.

    Times are in seconds, ``offset`` the saved one; ``seconds_to_loss`` None: nothing unread may be
    removed. ``lease`` is held, waiting (for the process named in ``owner``) or none; ``orders``
    what its operator wants of it (:meth:`tailer.feed.orders.Orders.to_json`).
    """

    name: str
    table: str
    sinks: list[str]
    state: FeedState
    offset: dict[str, Any] | None
    lag_versions: int
    lag_seconds: float
    lag_bytes: int
    events: int
    events_per_s: float
    last_error: str | None
    seconds_to_loss: float | None
    lease: Literal["held", "waiting", "none"]
    owner: str | None
    resnapshots: int
    orders: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def _bug(e: Exception) -> TailerError:
    return TailerError(
        f"unexpected error {type(e).__name__}: {e}; this is a bug, and the log has the traceback"
    )


class Runner:
    """Runs one feed, and does with it what its operator wants."""

    def __init__(
        self,
        feed: Feed,
        sinks: list[str],
        *,
        paused: bool,
        logger: logging.Logger,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.feed = feed
        self.sinks = sinks
        self.logger = logger
        self._on_failure = on_failure
        self.error: TailerError | None = None
        self.outlook = Outlook(feed.log, feed.progress)
        self._offsets = HeldOffsets(feed.offsets)
        feed.offsets = self._offsets
        feed.on_retry = self._tell_retry
        self._told: set[str] = set()
        self._told_at = 0
        self.state: State = "paused" if paused else "running"
        self._changed = anyio.Event()
        self._resumed = False  # by an order that the kept ones must not undo
        self._ended = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._rate = (0.0, 0, 0.0)

    # Its life

    async def run(self) -> None:
        """Until :meth:`end`. Errors of the feed are kept and logged; bugs too, with traceback."""
        try:
            while self.state != "ended":
                changed = self._changed
                if self.state == "running":
                    if outcome := await self._attempt():
                        self.transition(outcome)
                else:
                    await self._rest()
                    await changed.wait()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await self._give_up()
                    await self.feed.log.store.aclose()
            except (TailerError, OSError) as e:  # nobody waits for it, and other feeds go on
                self.log(logging.WARNING, "ended", f"was not given up in order: {e}")
            finally:
                self._ended.set()

    def transition(self, event: Event) -> None:
        """Go to the state that an event leads to, and end the attempt under way."""
        following = _NEXT[self.state].get(event)
        if following is None:
            return
        self.state = following
        self._changed.set()
        self._changed = anyio.Event()
        if self._scope is not None:
            self._scope.cancel()

    async def _attempt(self) -> Event | None:
        """Run the feed once; how that ended, None if an order has ended it."""
        try:
            with anyio.CancelScope() as self._scope:
                return await self._follow()
        finally:
            self._scope = None
        return None

    async def _follow(self) -> Event:
        feed, self.error = self.feed, None
        feed.progress.state = "starting"
        try:
            if not self._offsets.held:
                await self._take()
            if feed.orders.paused:
                self.log(logging.INFO, "paused", "paused by an order given before this start")
                return "held_up"
            self.log(logging.INFO, "following", f"following {feed.log.store.root}")
            await run_feed(feed)
        except FeedPaused as e:
            self.error = e
            self.log(logging.WARNING, "paused", f"paused: {e}")
            return "held_up"
        except TailerError as e:
            self.error = feed.progress.error = e
            self.log(logging.ERROR, "failed", f"stopped: {e}", family=e.family)
            return "failed"
        except Exception as e:  # noqa: BLE001  # logged with its traceback
            # A bug. Its feed goes no further, and the others need not stop for it.
            self.error = _bug(e)
            feed.progress.failed(self.error)
            more: dict[str, Any] = {"family": self.error.family, "exc_info": e}
            self.log(logging.ERROR, "failed", f"stopped: {self.error}", **more)
            return "failed"
        return "finished"  # it had a last version

    def _tell_retry(self, error: TailerError) -> None:
        """Log what a feed is held up by, each thing once until the feed has got on."""
        told, delivered = str(error), self.feed.progress.versions_delivered
        if delivered != self._told_at or len(self._told) >= _TOLD_MAX:
            self._told_at = delivered
            self._told.clear()
        if told not in self._told:
            self._told.add(told)
            self.log(logging.WARNING, "retrying", f"tries again: {error}", family=error.family)

    async def _take(self) -> None:
        """Become the feed's owner and take up its orders; tried again while that may heal."""
        backoff = self.feed.options.retry.backoff(self.feed.jitter)
        while True:
            try:
                with healing("the offset can't be acquired"):
                    await self._acquire()
                    return await self._recall()
            except TransientError as e:
                await self._give_up()
                self.feed.progress.retried(e)
                self.feed.on_retry(e)
                await anyio.sleep(backoff.next_s(e.retry_after_s))

    async def _acquire(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def tell() -> None:
                while True:
                    await anyio.sleep(_STANDBY_LOOK_S)
                    if self._offsets.waiting_for and self.feed.progress.state != "standby":
                        self.feed.progress.state = "standby"
                        owner = self._offsets.waiting_for
                        self.log(logging.INFO, "standby", f"waiting as a standby for {owner}")

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

    async def _recall(self) -> None:
        """Take up what was ordered before this process had the feed, and keep what was since."""
        orders = self.feed.orders
        kept = await self._offsets.load_orders()
        orders.recall(kept)
        place = await self._place()
        if place is not None:
            orders.skips = {v for v in orders.skips if v >= place.version}
        if self._resumed:
            orders.paused = self._resumed = False
        if orders.kept() != kept:
            await self._offsets.save_orders(orders.kept())

    async def _rest(self) -> None:
        """Paused it keeps the feed from others; stopped or failed it does not."""
        if self.state in ("paused", "stopped", "failed"):
            self.feed.progress.state = self.state
        if self.state != "paused":
            await self._give_up()
        if self.state == "failed":
            self._on_failure()

    async def _give_up(self) -> None:
        if self._offsets.held:
            await self._offsets.give_up()
        self.feed.progress.lease_held = False

    def log(self, level: int, event: str, text: str, **more: Any) -> None:
        """A line about this feed: its name, what happened, and the rest as fields."""
        exc_info = more.pop("exc_info", None)
        fields = {"feed": self.feed.name, "event": event, **more}
        self.logger.log(level, "feed %s %s", self.feed.name, text, extra=fields, exc_info=exc_info)

    # What its operator wants

    # All but a stop is kept beside the offset, so that a restart or a standby goes by it too. Where
    # that fails a TransientError says so, and the order lasts as long as the process.

    async def _keep(self) -> None:
        await self._offsets.save_orders(self.feed.orders.kept())

    async def pause(self) -> None:
        """Finish the batch in hand and wait; the feed stays this process's own."""
        self.feed.orders.paused = True
        self.transition("pause")
        await self._keep()

    async def resume(self) -> None:
        """Go on from the saved offset; a schema that it was paused or failed for is accepted."""
        self.feed.orders.paused = False
        self._resumed = not self._offsets.held and self.state != "running"
        if isinstance(self.error, FeedPaused):
            self.feed.orders.accepted.add(self.error.version)
        elif self.error is not None and self.error.family == "schema":
            version = getattr(self.error, "version", None)
            if isinstance(version, int):
                self.feed.orders.accepted.add(version)
        self.transition("resume")
        await self._keep()

    def stop(self) -> None:
        """Finish the batch in hand, and leave the feed to whoever wants it."""
        self.transition("stop")

    async def skip_version(self, version: int) -> None:
        """Pass over a version that is not delivered whole, and go on; its record says so.

        Raises :class:`ConfigError` for one that was delivered, or is far from coming.
        """
        self.feed.orders.check_skip(version, await self._place(), self.feed.progress.newest_known)
        self.feed.orders.skips.add(version)
        self.transition("skip")
        await self._keep()

    async def unskip_version(self, version: int) -> None:
        """Deliver a version after all that was to be skipped, while it is not passed.

        Raises :class:`ConfigError` for one that is not to be skipped, or no longer.
        """
        self.feed.orders.take_back_skip(version)
        self.transition("change")  # it may be on its way to the sink as skipped
        await self._keep()

    async def _place(self) -> Offset | None:
        """Where the feed is, also if it has not begun in this process; None if nobody knows."""
        try:
            return self.feed.progress.offset or await self._offsets.load()
        except TailerError:
            return None

    async def resnapshot(self, where: Where | None = None) -> None:
        """Read the table once more while the changes go on."""
        self.feed.orders.resnapshots.append(ResnapshotRequest(where))
        self.transition("change")
        await self._keep()

    async def end(self) -> None:
        """End it for good; returns when the batch in hand is written and the feed given up."""
        self.transition("end")
        await self._ended.wait()

    async def reopen(self) -> None:
        """Have the sinks reopen files that were rotated."""
        for sink in (self.feed.sink, self.feed.park):
            await reopen(sink)

    # What it is doing

    @property
    def ready(self) -> bool:
        """Following, its last attempt not failed; or resting because it is to."""
        if self.state in ("paused", "stopped"):
            return True
        return self.feed.progress.state == "standby" or (
            self.error is None and self.feed.progress.ready
        )

    @property
    def failed(self) -> bool:
        """Whether it ended with an error and waits for somebody."""
        return self.state == "failed"

    @property
    def last_error(self) -> str | None:
        """The error that it failed or is paused with, or that it is trying to overcome."""
        error = self.error or self.feed.progress.error
        return None if error is None else str(error)

    def status(self, now: float) -> FeedStatus:
        """The feed's status; ``now`` is any steady clock's, in seconds."""
        progress = self.feed.progress
        since, events, rate = self._rate
        if now - since >= _RATE_S:
            rate = (progress.events_delivered - events) / (now - since) if since else 0.0
            self._rate = (now, progress.events_delivered, rate)
        to_loss = progress.seconds_to_loss()
        waiting = self._offsets.waiting_for
        return FeedStatus(
            name=self.feed.name,
            table=self.feed.log.store.root,
            sinks=self.sinks,
            state=progress.state,
            offset=progress.offset.to_json() if progress.offset else None,
            lag_versions=progress.lag_versions(),
            lag_seconds=round(progress.lag_seconds(), 3),
            lag_bytes=progress.lag_bytes(),
            events=progress.events_delivered,
            events_per_s=round(rate, 1),
            last_error=self.last_error,
            seconds_to_loss=None if to_loss == float("inf") else round(to_loss, 1),
            lease="held" if self._offsets.held else "waiting" if waiting else "none",
            owner=waiting,
            resnapshots=len(self.feed.orders.resnapshots),
            orders=self.feed.orders.to_json(),
        )
