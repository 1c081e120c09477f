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
from tailer.offsets import OffsetStore
from tailer.sink import reopen

__all__ = ["FeedStatus", "Runner"]

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


class _Held(OffsetStore):
    """An offset store that stays acquired while its feed starts again, or is paused."""

    def __init__(self, inner: OffsetStore) -> None:
        self.inner = inner
        self.held = False

    @property
    def waiting_for(self) -> str | None:
        return self.inner.waiting_for

    async def acquire(self) -> None:
        if not self.held:
            await self.inner.acquire()
            self.held = True

    async def check(self) -> None:
        await self.inner.check()

    async def load(self) -> Offset | None:
        return await self.inner.load()

    async def save(self, offset: Offset) -> None:
        await self.inner.save(offset)

    async def clear(self) -> None:
        await self.inner.clear()

    async def load_orders(self) -> dict[str, Any]:
        return await self.inner.load_orders()

    async def save_orders(self, orders: dict[str, Any]) -> None:
        if self.held:  # else they are kept from when it is
            await self.inner.save_orders(orders)

    async def release(self) -> None:
        """Not yet: :meth:`give_up` does."""

    async def give_up(self) -> None:
        self.held = False
        await self.inner.release()


def _bug(e: Exception) -> TailerError:
    return TailerError(
        f"an error that is not expected, {type(e).__name__}: {e}; it is a bug, whose traceback is "
        "in the log"
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
        self._offsets = _Held(feed.offsets)
        feed.offsets = self._offsets
        feed.on_retry = self._tell_retry
        self._told: set[str] = set()
        self._told_at = 0
        self._wanted: Literal["run", "pause", "stop", "fail", "end"] = "pause" if paused else "run"
        self._changed = anyio.Event()
        self._resumed = False  # by an order that the kept ones must not undo
        self._ended = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._rate = (0.0, 0, 0.0)

    # Its life

    async def run(self) -> None:
        """Until :meth:`end`. Errors of the feed are kept and logged; bugs too, with traceback."""
        try:
            while self._wanted != "end":
                changed = self._changed
                if self._wanted == "run":
                    await self._attempt()
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

    async def _attempt(self) -> None:
        feed, self.error = self.feed, None
        feed.progress.state = "starting"
        with anyio.CancelScope() as self._scope:
            try:
                if not self._offsets.held:
                    await self._take()
                if feed.orders.paused:
                    self._wanted = "pause"
                    self.log(logging.INFO, "paused", "paused by an order given before this start")
                    return
                self.log(logging.INFO, "following", f"following {feed.log.store.root}")
                await run_feed(feed)
                self._wanted = "stop"  # it had a last version
            except FeedPaused as e:
                self.error, self._wanted = e, "pause"
                self.log(logging.WARNING, "paused", f"paused: {e}")
            except TailerError as e:
                self.error, self._wanted = e, "fail"
                feed.progress.error = e
                self.log(logging.ERROR, "failed", f"stopped: {e}", family=e.family)
            except Exception as e:  # noqa: BLE001  # logged with its traceback
                # A bug. Its feed goes no further, and the others need not stop for it.
                self.error = feed.progress.error = _bug(e)
                self._wanted = "fail"
                feed.progress.failed(self.error)
                more: dict[str, Any] = {"family": self.error.family, "exc_info": e}
                self.log(logging.ERROR, "failed", f"stopped: {self.error}", **more)
        self._scope = None

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
        retry = self.feed.options.retry
        pause = retry.pause_min_s
        while True:
            try:
                with healing("the offset can't be acquired"):
                    await self._acquire()
                    return await self._recall()
            except TransientError as e:
                await self._give_up()
                self.feed.progress.retried(e)
                self.feed.on_retry(e)
                await anyio.sleep(e.retry_after_s or pause * (0.5 + self.feed.jitter() / 2))
                pause = min(pause * 2, retry.pause_max_s)

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
        states: dict[str, FeedState] = {"pause": "paused", "stop": "stopped", "fail": "failed"}
        if self._wanted in states:
            self.feed.progress.state = states[self._wanted]
        if self._wanted != "pause":
            await self._give_up()
        if self._wanted == "fail":
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

    def _want(self, what: Literal["run", "pause", "stop", "end"], *, again: bool = False) -> None:
        if self._wanted == what and not again:
            return
        self._wanted = what
        self._changed.set()
        self._changed = anyio.Event()
        if self._scope is not None:
            self._scope.cancel()

    # All but a stop is kept beside the offset, so that a restart or a standby goes by it too. Where
    # that fails a TransientError says so, and the order lasts as long as the process.

    async def _keep(self) -> None:
        await self._offsets.save_orders(self.feed.orders.kept())

    async def pause(self) -> None:
        """Finish the batch in hand and wait; the feed stays this process's own."""
        self.feed.orders.paused = True
        self._want("pause")
        await self._keep()

    async def resume(self) -> None:
        """Go on from the saved offset; a schema that it was paused or failed for is accepted."""
        self.feed.orders.paused = False
        self._resumed = not self._offsets.held and self._wanted != "run"
        if isinstance(self.error, FeedPaused):
            self.feed.orders.accepted.add(self.error.version)
        elif self.error is not None and self.error.family == "schema":
            version = getattr(self.error, "version", None)
            if isinstance(version, int):
                self.feed.orders.accepted.add(version)
        self._want("run")
        await self._keep()

    def stop(self) -> None:
        """Finish the batch in hand, and leave the feed to whoever wants it."""
        self._want("stop")

    async def skip_version(self, version: int) -> None:
        """Pass over a version that is not delivered whole, and go on; its record says so.

        Raises :class:`ConfigError` for one that was delivered, or is far from coming.
        """
        self.feed.orders.check_skip(version, await self._place(), self.feed.progress.newest_known)
        self.feed.orders.skips.add(version)
        if self._wanted in ("run", "fail"):
            self._want("run", again=True)
        await self._keep()

    async def unskip_version(self, version: int) -> None:
        """Deliver a version after all that was to be skipped, while it is not passed.

        Raises :class:`ConfigError` for one that is not to be skipped, or no longer.
        """
        self.feed.orders.take_back_skip(version)
        if self._wanted == "run":  # it may be on its way to the sink as skipped
            self._want("run", again=True)
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
        if self._wanted == "run":
            self._want("run", again=True)
        await self._keep()

    async def end(self) -> None:
        """End it for good; returns when the batch in hand is written and the feed given up."""
        self._want("end")
        await self._ended.wait()

    async def reopen(self) -> None:
        """Have the sinks reopen files that were rotated."""
        for sink in (self.feed.sink, self.feed.park):
            await reopen(sink)

    # What it is doing

    @property
    def ready(self) -> bool:
        """Following, its last attempt not failed; or resting because it is to."""
        if self._wanted in ("pause", "stop"):
            return True
        return self.feed.progress.state == "standby" or (
            self.error is None and self.feed.progress.ready
        )

    @property
    def failed(self) -> bool:
        """Whether it ended with an error and waits for somebody."""
        return self._wanted == "fail"

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
