"""The supervisor: all feeds of a configuration, and the actions on them while they run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from tailer.config.feeds import Config, FeedConfig
from tailer.config.readers import Readers
from tailer.daemon.assembly import (
    assemble_feed,
    check_targets,
    find_pattern_feeds,
    make_feed_sink,
    make_offset_store,
)
from tailer.daemon.discovery import is_pattern
from tailer.daemon.metrics import MetricFamilies
from tailer.daemon.parked import drop_parked, list_parked, replay_parked
from tailer.daemon.progress_log import ProgressLog
from tailer.daemon.recent import SAMPLE_S
from tailer.daemon.reload import find_feed_changes
from tailer.daemon.rewind import find_offset, rewind_feed, save_offset
from tailer.daemon.runner import FeedStatus, Runner
from tailer.errors import (
    ConfigError,
    SchemaChanged,
    TableError,
    TailerError,
    TransientError,
    unexpected,
)
from tailer.feed.progress import FeedProgress
from tailer.offsets import OffsetStore
from tailer.process.memory import return_freed_memory
from tailer.process.threads import run_blocking
from tailer.shape.columns import TableColumns
from tailer.shape.expressions import parse_condition
from tailer.shape.selection import Selection
from tailer.shape.shaper import Shaper
from tailer.store.traffic import Traffic

#: While progress reports are off: how often to check whether a reload has switched them on.
_REPORTS_CHECK_S = 60.0
#: When, after the start, feeds that are paused are measured first.
_FIRST_LOOK_S = 1.0
#: Requests wait at most this long for a slow store, before they get the feeds known so far.
_FIRST_ANSWER_S = 3.0
#: How often to look at the feeds' states, for the history of them.
_STATES_LOOK_S = 1.0


class Supervisor:
    """Runs feeds, starts and ends those of patterns, and follows its operator's orders.

    ``load`` reads the configuration again; feeds with an unchanged configuration are left alone.
    ``readers`` make what reads their tables.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Awaitable[Config]],
        families: MetricFamilies,
        traffic: Traffic | None,
        logger: logging.Logger,
        readers: Readers | None = None,
    ) -> None:
        self.config = config
        self._load = load
        self._families = families
        self._traffic = traffic
        self._logger = logger
        self._readers = readers or Readers()
        self._runners: dict[str, Runner] = {}
        self._configs: dict[str, FeedConfig] = {}
        self._tasks: Any = None
        self._refused: dict[str, set[str]] = {}  # why tables are not followed, by their pattern
        #: The patterns whose tables were never found, and why not.
        self._unseen: dict[str, str] = {}
        self._expect_patterns({})
        self._looked = anyio.Event()
        self._failed = anyio.Event()
        self._change = anyio.Lock()
        self._progress = ProgressLog(logger)
        check_targets(config)
        self._tables = {
            name: self._make_runner(config, feed)
            for name, feed in config.feeds.items()
            if not is_pattern(feed.table)
        }

    def _make_runner(self, config: Config, feed: FeedConfig) -> Runner:
        parts = assemble_feed(config, feed, self._families, self._traffic)
        parts.read_function = self._readers.make_read_function(feed)
        runner = Runner(
            parts,
            feed.sink.type,
            logger=self._logger,
            on_failure=lambda: self._failed.set(),  # noqa: PLW0108  # there is a new one each time
        )
        if config.token:  # rows are shown to those who have it
            parts.progress.on_rows = runner.last_rows.keep_rows
        return runner

    # Its life

    async def run(self) -> None:
        """Run until cancelled, or until every feed has failed and no new one is possible."""
        async with anyio.create_task_group() as self._tasks:
            for name, runner in self._tables.items():
                self._start_feed(name, self.config.feeds[name], runner)
            # A store may stand still for minutes, and the feeds that are there run.
            self._tasks.start_soon(self._answer_early)
            self._tasks.start_soon(self._measure_forever)
            self._tasks.start_soon(self._report_forever)
            self._tasks.start_soon(self._remember_forever)
            await self._discover_all()
            self._looked.set()
            self._tasks.start_soon(self._discover_forever)
            while not self._has_all_failed():
                self._failed = anyio.Event()
                await self._failed.wait()
            self._tasks.cancel_scope.cancel()

    def _has_all_failed(self) -> bool:
        patterns = any(is_pattern(feed.table) for feed in self.config.feeds.values())
        return not patterns and all(runner.has_failed for runner in self._runners.values())

    def _start_feed(self, name: str, feed: FeedConfig, runner: Runner | None = None) -> None:
        runner = runner or self._make_runner(self.config, feed)
        self._runners[name], self._configs[name] = runner, feed
        self._tasks.start_soon(runner.run)

    async def _end_feed(self, name: str) -> None:
        runner = self._runners.pop(name)
        del self._configs[name]
        await runner.end()
        self._progress.remove_feed(name, runner.feed.progress)
        self._families.forget_feed(name)

    async def _answer_early(self) -> None:
        await anyio.sleep(_FIRST_ANSWER_S)
        self._looked.set()

    def _expect_patterns(self, old: Mapping[str, FeedConfig]) -> None:
        """Count the tables of patterns that are new or have changed as never found."""
        feeds = self.config.feeds
        unchanged = {n: why for n, why in self._unseen.items() if old.get(n) == feeds.get(n)}
        self._unseen = unchanged | {
            name: "its tables are looked for"
            for name, feed in feeds.items()
            if is_pattern(feed.table) and old.get(name) != feed
        }

    async def _discover_forever(self) -> None:
        while True:
            patterns = [f for f in self.config.feeds.values() if is_pattern(f.table)]
            await anyio.sleep(min((f.discover_s for f in patterns), default=3600.0))
            try:
                await self._discover_all()
            except ConfigError as e:
                self.log_refused(e)

    async def _discover_all(self) -> list[str]:
        """Follow the tables that patterns find now; return the feeds that were started."""
        started: list[str] = []
        wrong: list[ConfigError] = []

        async def search(feed: FeedConfig) -> None:
            try:
                started.extend(await self._discover_pattern(feed))
            except ConfigError as e:
                wrong.append(e)
            except TailerError as e:
                self._logger.warning("feed %s: %s", feed.name, e, extra={"feed": feed.name})
                if feed.name in self._unseen:
                    self._unseen[feed.name] = str(e)

        # Side by side: a store that stands still keeps the tables of no other pattern waiting.
        async with anyio.create_task_group() as searches:
            for feed in self.config.feeds.values():
                if is_pattern(feed.table):
                    searches.start_soon(search, feed)
        if wrong:
            raise wrong[0]
        return sorted(started)

    async def _discover_pattern(self, feed: FeedConfig) -> list[str]:
        found = await find_pattern_feeds(self.config, feed)
        started: list[str] = []
        of_pattern = {"feed": feed.name, "event": "refused"}
        async with self._change:
            if self.config.feeds.get(feed.name) != feed:  # read again during the search
                return started
            self._unseen.pop(feed.name, None)
            known = {name for name in self._runners if name.startswith(f"{feed.name}/")}
            followed = set()  # and refused at a start: what somebody makes ends no feed that runs
            for name in sorted(known):
                table = self._configs[name].table
                if table in found.refused:
                    followed.add(table)
                elif name not in found.feeds or table != found.feeds[name].table:
                    self._logger.info("feed %s: its table is gone", name, extra={"feed": name})
                    await self._end_feed(name)
            refused = {reason for table, reason in found.refused.items() if table not in followed}
            for sentence in sorted(refused - self._refused.get(feed.name, set())):  # each once
                self._logger.error("feed %s: %s", feed.name, sentence, extra=of_pattern)
            self._refused[feed.name] = refused
            for name in sorted(found.feeds.keys() - self._runners.keys()):
                try:
                    self._start_feed(name, found.feeds[name])
                except ConfigError as e:  # its folder's name does not fit the sink; others' do
                    self._logger.warning("feed %s: %s", name, e, extra={"feed": name})
                except Exception as e:  # a bug, for which the others go on
                    message = f"feed {name}: {unexpected(e)}"
                    self._logger.exception(message, extra={"feed": name})
                else:
                    started.append(name)
        return started

    async def _measure_forever(self) -> None:
        await anyio.sleep(min(_FIRST_LOOK_S, self.config.measure_s))
        # Feeds that run read the same log anyway; nothing else measures the idle ones.
        await self._measure_runners([runner for runner in self._runners.values() if runner.idle])
        while True:
            await anyio.sleep(self.config.measure_s)
            await self._measure_runners(list(self._runners.values()))

    async def _report_forever(self) -> None:
        last = anyio.current_time()
        while True:
            period = self.config.progress_s
            await anyio.sleep(period or _REPORTS_CHECK_S)
            if period:
                now = anyio.current_time()
                self._progress.log_report(self._feeds_progress(), now - last)
                last = now

    async def _remember_forever(self) -> None:
        sampled = 0.0
        while True:
            due = anyio.current_time() - sampled >= SAMPLE_S
            for runner in self._runners.values():
                runner.past.note_state(runner.last_error)
                if due:
                    runner.past.add_sample()
            if due:
                sampled = anyio.current_time()
                await run_blocking(return_freed_memory)
            await anyio.sleep(_STATES_LOOK_S)

    def _feeds_progress(self) -> dict[str, FeedProgress]:
        return {name: runner.feed.progress for name, runner in self._runners.items()}

    def log_end(self, why: str) -> None:
        """Log the totals once, when the process ends."""
        self._progress.log_end(self._feeds_progress(), why)

    def log_overdue(self) -> int:
        """Log which feeds do not end within the time for it; return the exit status. Called in a
        thread, while the event loop may be stuck."""
        for runner in list(self._runners.values()):
            if not runner.has_ended:
                why = runner.last_error or "its sink has not returned from a call"
                runner.log_event(
                    logging.ERROR, "given_up",
                    f"has not ended for {self.config.stop_s:g} s (stop_s) and is abandoned: {why}; "
                    "the next start resumes from its saved offset",
                )  # fmt: skip
        logging.shutdown()
        return 0

    async def _measure_runners(self, runners: list[Runner]) -> None:
        """Examine what is unread, for each of these feeds that is behind."""
        measures = [(r, m) for r in runners for m in (r.measure_unread, r.measure_parked)]
        for runner, measure in measures:
            try:
                await measure()
            except (TailerError, OSError) as e:
                runner.log_event(logging.DEBUG, "measure", f"can't be measured: {e}")
            except Exception as e:  # noqa: BLE001  # a bug in figures need not stop the feeds
                runner.log_event(logging.ERROR, "measure", f"can't be measured: {e}", exc_info=e)

    # Actions

    async def wait_for_discovery(self) -> None:
        """Wait until the tables of all patterns were looked for, or the daemon has run for a few
        seconds: a request during the start gets all feeds."""
        with anyio.move_on_after(_FIRST_ANSWER_S):
            await self._looked.wait()

    def list_statuses(self) -> list[FeedStatus]:
        """Return every feed's status, by name."""
        now = anyio.current_time()
        return [runner.build_status(now) for _, runner in sorted(self._runners.items())]

    def find_unready(self) -> dict[str, str]:
        """Return the feeds that are not ready, and why; a pattern until its tables were found."""
        return self._unseen | {
            name: runner.last_error or runner.feed.progress.state
            for name, runner in self._runners.items()
            if not runner.ready
        }

    def find_failures(self) -> dict[str, str]:
        """Return the feeds that have failed, and why."""
        return {n: str(r.last_error) for n, r in self._runners.items() if r.has_failed}

    def is_misconfigured(self) -> bool:
        """Return whether every failed feed failed because of its configuration."""
        errors = [runner.error for runner in self._runners.values() if runner.has_failed]
        return bool(errors) and all(isinstance(error, ConfigError) for error in errors)

    def find_runner(self, feed: str) -> Runner:
        """Return one feed. Raises KeyError if no feed has that name."""
        return self._runners[feed]

    async def rewind(self, feed: str, to: str) -> None:
        """See :func:`tailer.daemon.rewind.rewind_feed`. Raises :class:`ConfigError` unless the feed
        is stopped or has failed."""
        async with self._hold_feed(feed) as (runner, configured, store):
            sink = make_feed_sink(self.config, configured)
            offset, _ = await rewind_feed(self.config, configured, store, sink, to)
            runner.feed.progress.note_saved_offset(offset)
            await runner.measure_parked()

    async def set_offset(self, feed: str, start: str | None, index: int = 0) -> None:
        """Let a feed go on at change ``index`` of another place, as ``from`` names it; None: where
        it began. Raises as :meth:`rewind`."""
        async with self._hold_feed(feed) as (runner, configured, store):
            offset = None
            if start is not None:
                offset = await find_offset(self.config, configured, start, index)
            sink = make_feed_sink(self.config, configured)
            await save_offset(self.config, offset, configured, store, sink)
            runner.feed.progress.note_saved_offset(offset)
            await runner.measure_parked()

    @asynccontextmanager
    async def _hold_feed(self, feed: str) -> AsyncIterator[tuple[Runner, FeedConfig, OffsetStore]]:
        """Acquire the offset of a feed. Raises :class:`ConfigError` unless it is stopped or has
        failed."""
        runner = self.find_runner(feed)
        if runner.state not in ("stopped", "failed") or runner.feed.progress.lease_held:
            raise ConfigError(f"the feed {feed!r} is {runner.state}; stop it first")
        store = make_offset_store(self.config, feed)
        try:
            await store.acquire()
            try:
                yield runner, self._configs[feed], store
            finally:
                await store.release()
        except TransientError as e:
            raise TableError(f"the order can't be followed now ({e}); give it again") from e

    async def list_parked(self, feed: str) -> list[dict[str, Any]]:
        """See :func:`tailer.daemon.parked.list_parked`."""
        self.find_runner(feed)
        return await list_parked(self.config, self._configs[feed])

    async def replay_parked(self, feed: str, ids: Collection[str]) -> str:
        """See :func:`tailer.daemon.parked.replay_parked`; return what came of it. Raises as
        :meth:`rewind`."""
        async with self._hold_feed(feed) as (runner, configured, store):
            try:
                result = await replay_parked(self.config, configured, store, ids)
            finally:
                await runner.measure_parked()
        still = f", {len(result.refused)} still refused" if result.refused else ""
        why = f": {result.refused[0][1]}" if result.refused else ""
        return f"{result.delivered} rows delivered{still}{why}"

    async def drop_parked(self, feed: str, ids: Collection[str]) -> str:
        """See :func:`tailer.daemon.parked.drop_parked`; return what came of it. Raises as
        :meth:`rewind`."""
        async with self._hold_feed(feed) as (runner, configured, _):
            count = await drop_parked(self.config, configured, ids)
            await runner.measure_parked()
        return f"{count} rows dropped"

    async def resnapshot(self, feed: str, where: str | None = None) -> None:
        """See :meth:`Runner.order_resnapshot`. Raises :class:`ConfigError` for a bad ``where``:
        kept as an order, it would stop the feed at every start."""
        runner = self.find_runner(feed)
        parsed = None
        if where:
            try:
                parsed = parse_condition(where)
                state = (await runner.feed.log.load_snapshot()).state
                Shaper(Selection(), TableColumns()).check_condition(parsed, state)
            except (ConfigError, SchemaChanged) as e:
                raise ConfigError(f"where {e}") from None
            except TransientError as e:
                raise TableError(f"where can't be checked now ({e}); give the order again") from e
        await runner.order_resnapshot(parsed)

    def log_refused(self, error: TailerError) -> None:
        """Log that a new configuration was refused."""
        self._logger.error("configuration not taken: %s", error, extra={"event": "reload"})

    async def handle_hangup(self) -> None:
        """Handle SIGHUP: :meth:`reload_config`. A configuration with a mistake changes nothing."""
        try:
            await self.reload_config()
        except TailerError as e:
            self.log_refused(e)

    def _restore_unchangeable(self, config: Config) -> Config:
        """Return a new configuration, with what a running process can't change restored: with
        another state folder, its feeds would lose their offsets."""
        kept = {key: getattr(self.config, key) for key in ("http", "state", "token")}
        for key, value in kept.items():
            if getattr(config, key) != value:
                self._logger.warning(
                    "daemon.%s has changed, which takes effect at the next start", key,
                    extra={"event": "reload"},
                )  # fmt: skip
        return replace(config, **kept)

    async def reopen_sinks(self) -> None:
        """Have all sinks reopen files that were rotated."""
        for runner in list(self._runners.values()):
            await runner.reopen_sinks()

    async def reload_config(self) -> dict[str, list[str]]:
        """Read the configuration again: start new feeds, end removed ones, restart changed ones.

        Returns the names under ``started``, ``stopped`` and ``restarted``. A configuration with a
        mistake changes nothing and raises :class:`ConfigError`. The address, the state and the
        token cannot be changed by a reload. Sinks always reopen files that were rotated. Any other
        error is a bug, which changes nothing either: the traceback is logged.
        """
        await self.reopen_sinks()
        try:
            return await self._apply_config()
        except TailerError:
            raise
        except Exception as e:
            self._logger.exception("a reload failed", extra={"event": "reload"})
            raise unexpected(e) from e

    async def _apply_config(self) -> dict[str, list[str]]:
        async with self._change:
            config = self._restore_unchangeable(await self._load())
            changes = find_feed_changes(self._configs, self.config.feeds, config.feeds)
            for feed in config.feeds.values():
                if not is_pattern(feed.table):
                    assemble_feed(config, feed)  # an error in any of them changes nothing
            check_targets(config)
            old, self.config = self.config.feeds, config
            self._expect_patterns(old)
            async with anyio.create_task_group() as ends:  # each finishes its current batch
                for name in changes.ended:
                    ends.start_soon(self._end_feed, name)
            for name, feed in changes.started.items():
                self._start_feed(name, feed)
        summary = changes.summarize(await self._discover_all())
        extra = {"event": "reload", **summary}
        self._logger.info("configuration read again: %s", summary, extra=extra)
        return summary
