"""``tailer run --once``: every feed to its table's newest version, then an end and a summary."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import anyio
from msgspec import Struct

from tailer.changes import Offset
from tailer.config.feeds import Config
from tailer.config.readers import Readers
from tailer.daemon.assembly import assemble_feed, check_targets, list_feed_configs
from tailer.daemon.progress_log import ProgressLog
from tailer.daemon.runner import Runner
from tailer.daemon.set_up import set_up_process
from tailer.errors import ConfigError, OffsetHeld, TableError, TailerError, mistakes, printable
from tailer.feed.progress import SlowSink
from tailer.feed.read import ItemSender
from tailer.feed.read_context import ReadContext
from tailer.log.same_table import check_table_exists
from tailer.log.table import TableLog
from tailer.process.signals import EXIT_INTERRUPTED, find_signal_status, run_until_stopped

#: The exit status if some feeds came to their end, and others did not.
EXIT_SOME_FAILED = 3


class OnceOptions(Struct, frozen=True):
    """How far a run goes: to ``until`` at most, or to each table's newest version. ``patience_s``:
    how long a feed that meets nothing but temporary errors, or another owner, is tried, in
    seconds."""

    until: int | None = None
    patience_s: float = 300.0
    as_json: bool = False


class _GivenUp(TailerError):
    """Temporary errors went on for longer than the run's patience."""

    family = "transient"


class _Job:
    """One feed of the run, and how it went."""

    def __init__(self, runner: Runner, options: OnceOptions) -> None:
        self.runner = runner
        self.error: TailerError | str | None = "interrupted before its end"
        self.seconds = 0.0
        self._options = options
        self._first: Offset | None = None
        self._last: int | None = None
        self._stuck: tuple[Offset | None, float] | None = None
        feed = runner.feed
        self._read_function, feed.read_function = feed.read_function, self._read_to_end
        self._start, feed.start = feed.start, self._start_within
        self._log_retry, feed.on_retry = feed.on_retry, self._handle_retry

    async def run(self) -> None:
        """Run the feed until it has come to its end, or can't go on."""
        began = anyio.current_time()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.runner.run)
                tasks.start_soon(self._limit_standby)
                await self.runner.wait_for_rest()
                self.error = self._find_reason()
                await self.runner.end()
                tasks.cancel_scope.cancel()
        finally:
            self.seconds = anyio.current_time() - began

    def _find_reason(self) -> TailerError | str | None:
        if isinstance(self.error, OffsetHeld) or self.runner.error is not None:
            return self.error if isinstance(self.error, OffsetHeld) else self.runner.error
        if self.runner.state == "paused":
            return "it is paused by an order; resume it with `tailer run` and its console"
        return None

    async def _start_within(self, log: TableLog) -> Offset:
        """Return the feed's first offset. Raises :class:`ConfigError` if the run ends before it."""
        offset, until = await self._start(log), self._options.until
        if until is not None and offset.version > until + (not offset.snapshot):
            raise ConfigError(
                f"--until is version {until}, and feed {self.runner.feed.name} starts at version "
                f"{offset.version}; set `from` to a version, or leave --until out"
            )
        return offset

    async def _read_to_end(self, context: ReadContext, sender: ItemSender, _: int | None) -> None:
        """Read to the end of the run, which the first attempt finds."""
        if self._last is None:
            newest, until = await self._find_newest(context.log, sender.at), self._options.until
            context.observer.note_newest(newest)
            self._last = newest if until is None else min(newest, until)
            self._first = sender.at
        await self._read_function(context, sender, self._last)

    async def _find_newest(self, log: TableLog, at: Offset) -> int:
        """Return the table's newest version. One that is away for a while may come back."""
        try:
            return await log.latest_version()
        except TableError:
            if at.table_id is not None:  # the table has existed
                await check_table_exists(log, at.version)
            raise

    def _handle_retry(self, error: TailerError) -> None:
        """Log a temporary error. Raises it for good if the feed has not moved for too long."""
        self._log_retry(error)
        if isinstance(error, SlowSink):  # the sink is called, and has its own time-outs
            return
        at, now = self.runner.feed.progress.offset, anyio.current_time()
        if self._stuck is None or self._stuck[0] != at:
            self._stuck = (at, now)
        elif now - self._stuck[1] >= self._options.patience_s:
            raise _GivenUp(f"{error}; it was tried for {self._options.patience_s:g} s")

    async def _limit_standby(self) -> None:
        await anyio.sleep(self._options.patience_s)
        if (owner := self.runner.build_status(0.0).owner) is not None:
            self.error = OffsetHeld(owner, self.runner.feed.name)
            self.runner.stop()

    def build_outcome(self) -> dict[str, Any]:
        """Return what the summary says of the feed."""
        progress, first = self.runner.feed.progress, self._first
        to = None
        if first is not None and progress.offset is not None:
            to = progress.offset.version - 1
        new = first is not None and (first.snapshot or first.version <= (self._last or 0))
        return {
            "feed": self.runner.feed.name,
            "from": first.version if first is not None and new else None,
            "to": to if first is not None and to is not None and to >= first.version else None,
            "rows": progress.events_delivered,
            "seconds": round(self.seconds, 3),
            "error": None if self.error is None else str(self.error),
        }

    @property
    def is_misconfigured(self) -> bool:
        """Return whether its configuration has to be changed."""
        return isinstance(self.error, ConfigError)


async def run_once(config: Config, options: OnceOptions, readers: Readers | None = None) -> int:
    """Run all feeds to their ends by these readers, and print how each went; return the exit
    status.

    0 if each has come to its end; if none has, 1, or 2 if every failure is an error in the
    configuration; 3 if some have. After a signal, the shell's status for it.
    """
    logger = set_up_process(config)
    with mistakes() as part:
        readers = readers or Readers()
        config = await readers.complete_config(config)
        jobs, refused = await _make_jobs(config, options, logger, part, readers)
    check_targets(config)
    log = ProgressLog(logger)
    progress = {job.runner.feed.name: job.runner.feed.progress for job in jobs}
    runs = partial(log.run_all, [job.run for job in jobs], progress, config.progress_s)
    stopped = await run_until_stopped(runs, grace_s=config.stop_s)
    log.log_end(progress, "on request" if stopped else "because every feed has ended")
    outcomes = [*(job.build_outcome() for job in jobs), *refused]
    for outcome in outcomes:
        print(json.dumps(outcome) if options.as_json else printable(_format_outcome(outcome)))
    if stopped:
        return find_signal_status() or EXIT_INTERRUPTED
    failed = [outcome for outcome in outcomes if outcome["error"] is not None]
    if len(failed) < len(outcomes):
        return EXIT_SOME_FAILED if failed else 0
    wrong = failed and not refused and all(job.is_misconfigured for job in jobs)
    return 2 if wrong else 1 if failed else 0


class _Jobs(NamedTuple):
    """The feeds of a run, and the summary's entries for tables that are not followed."""

    jobs: list[_Job]
    refused: list[dict[str, Any]]


async def _make_jobs(
    config: Config, options: OnceOptions, logger: logging.Logger, part: Any, readers: Readers
) -> _Jobs:
    refused: list[dict[str, Any]] = []

    def refuse(name: str, sentence: str) -> None:
        nothing = {"from": None, "to": None, "rows": 0, "seconds": 0.0}
        refused.append({"feed": name, **nothing, "error": sentence})

    jobs = []
    for feed in (await list_feed_configs(config, refuse)).values():
        with part():
            parts = assemble_feed(config, feed)
            parts.read_function = readers.make_read_function(feed)
            jobs.append(_Job(Runner(parts, feed.sink.type, logger=logger), options))
    return _Jobs(jobs, refused)


def _format_outcome(outcome: Mapping[str, Any]) -> str:
    """Return a line of the summary for people."""
    feed, first, last, error = (outcome[name] for name in ("feed", "from", "to", "error"))
    if first is None and error is None:
        return f"{feed}: nothing is new"
    versions = "no version" if last is None else f"versions {first} to {last}"
    done = f"{versions}, {outcome['rows']} rows in {outcome['seconds']:.1f} s"
    return f"{feed}: {done}" if error is None else f"{feed}: failed ({done}): {error}"
