"""Signals: one receiver from a process's first moment to its last.

SIGINT and SIGTERM request an orderly end of the command; a second SIGINT ends the process at once.
What does not end within a grace, for a thread that is stuck in a client's call, ends with the
process.
SIGHUP makes a command that has a configuration read it again, and ends any other.

A signal is recorded from :func:`install_receiver` on, even while the command is still being loaded,
and the record is kept. The handlers are never removed: between two receivers a signal would have
its default effect, which is to kill the process while it is ending.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar, NoReturn, TypeVar

from tailer.errors import ungrouping

T = TypeVar("T")

#: The exit status in shells of a program that Ctrl-C has ended.
EXIT_INTERRUPTED = 130
_RECEIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long what is being done may take after a signal; shorter than what runs processes waits.
GRACE_S = 15.0
#: Python needs some milliseconds for its shutdown.
_FINISH_S = 30


class SignalReceiver:
    """Records what signals request, and wakes the tasks that wait for it."""

    #: The receiver of this process, once it is installed.
    installed: ClassVar[SignalReceiver | None] = None

    def __init__(self) -> None:
        #: The signal that requested the end, if one did.
        self.stopped_by: int | None = None
        #: The exit status of the command, once it is done.
        self.exit_status: int | None = None
        #: Whether others may want to see the end of the process, after :meth:`finish_process`.
        self.watched = False
        #: Whether a SIGHUP came that is not handled yet.
        self.hangup = False
        # `nohup` ignores it, and then it ends nothing.
        self.hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._interrupts = 0
        self._waiting: list[Callable[[], None]] = []
        # The kernel may deliver a signal to any thread. Handlers run in the main thread, whose
        # sleep must end for that: asyncio's sleep includes this pipe.
        self._wake, self._wakeup = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def install_handlers(self) -> None:
        """Install this receiver's handlers."""
        for number in _RECEIVED:
            signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                os._exit(EXIT_INTERRUPTED)  # even while threads are working or waiting
        if number == signal.SIGHUP:
            self.hangup = True
        elif self.stopped_by is None:
            self.stopped_by = number
        for wake in list(self._waiting):
            wake()

    def finish_process(self) -> None:
        """Ignore all signals, because the command is done and its exit status must not change.

        Its threads have ended, and so has all that was registered for the end: the process ends
        here. Python would first take apart what was loaded, which takes longer than a small read's
        own end; so it does only after a command that has failed unexpectedly, or for others that
        want to see the end. It then restores the default handlers before the process is gone, and
        if a library's shutdown takes for ever, an alarm ends the process.
        """
        for number in _RECEIVED:
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(_FINISH_S)
        if self.exit_status is not None and not self.watched:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(self.exit_status)

    def must_stop(self, *, on_hangup: bool) -> bool:
        """Return whether the end was requested; ``on_hangup``: SIGHUP requests it, too."""
        if on_hangup and self.hangup and not self.hangup_ignored and self.stopped_by is None:
            self.stopped_by = signal.SIGHUP
        return self.stopped_by is not None

    async def wait_until(self, asked: Callable[[], bool]) -> None:
        """Wait until ``asked`` returns True; it is called after each signal."""
        import asyncio  # only now: signals are received before an event loop is loaded

        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop, of another thread, was just closed
                loop.call_soon_threadsafe(changed.set)

        main = threading.current_thread() is threading.main_thread()
        if main:
            loop.add_reader(self._wake, self._drain_pipe)
        self._waiting.append(wake)
        try:
            while not asked():
                await changed.wait()
                changed.clear()
        finally:
            self._waiting.remove(wake)

    @contextmanager
    def watch_signals(self, begin_grace: Callable[[], None], *, on_hangup: bool) -> Iterator[None]:
        """Let another thread see signals before the main thread, which runs no handler while it
        waits for a file system that does not answer. The first signal that requests the end begins
        the grace, a second SIGINT ends the process. ``on_hangup``: see :meth:`must_stop`.

        A program whose event loop runs in another thread has no such watch.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        seen, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        ending = {signal.SIGINT, signal.SIGTERM}
        if on_hangup and not self.hangup_ignored:
            ending.add(signal.SIGHUP)
        watching = threading.Thread(
            target=self._pass_signals_on, args=(seen, ending, begin_grace), daemon=True
        )
        watching.start()
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
            os.close(wakeup)  # which ends the thread

    def _pass_signals_on(
        self, seen: int, ending: set[int], begin_grace: Callable[[], None]
    ) -> None:
        interrupts = self._interrupts
        while found := os.read(seen, 1):
            number = found[0]
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                os._exit(EXIT_INTERRUPTED)
            if number in ending:
                self.stopped_by = self.stopped_by or number
                begin_grace()
            with suppress(BlockingIOError):  # it is full, and wakes anyway
                os.write(self._wakeup, found)
        os.close(seen)

    def _drain_pipe(self) -> None:
        """Read the pipe's bytes, which only wake: the handler has recorded the signal."""
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass


def install_receiver() -> None:
    """Receive signals from now on, for the life of the process.

    The main thread calls this before anything else; another call has no effect.
    """
    if SignalReceiver.installed is None:
        receiver = SignalReceiver.installed = SignalReceiver()
        # The first function that is registered runs last. Of others, such as a measurement of
        # coverage, one may be registered already.
        receiver.watched = "atexit" in sys.modules
        import atexit

        atexit.register(receiver.finish_process)
        receiver.install_handlers()


def end_process(status: int) -> NoReturn:
    """End the process with the command's exit status."""
    if SignalReceiver.installed is not None:
        SignalReceiver.installed.exit_status = status
    sys.exit(status)


def leave_process(status: int) -> NoReturn:
    """End the process at once, whatever its threads wait for."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(status)


def reinstall_handlers() -> None:
    """Install the handlers again after a library has set its handlers, if signals are received."""
    if SignalReceiver.installed is not None:
        SignalReceiver.installed.install_handlers()


async def wait_for_stop_signal(*, on_hangup: bool = False) -> None:
    """Return as soon as a signal requests the end; never, if no signals are received."""
    receiver = SignalReceiver.installed
    if receiver is None:
        import anyio  # see :meth:`SignalReceiver.wait_until`

        await anyio.sleep(math.inf)
    else:
        await receiver.wait_until(lambda: receiver.must_stop(on_hangup=on_hangup))


def find_signal_status() -> int | None:
    """Return the exit status for the signal that requested the end; None without one."""
    receiver = SignalReceiver.installed
    return None if receiver is None or receiver.stopped_by is None else 128 + receiver.stopped_by


@contextmanager
def _limit_grace(seconds: float | None, overdue: Callable[[], int]) -> Iterator[Callable[[], None]]:
    """Provide what starts the grace. If the block has not ended by then, the process ends, with
    the status that ``overdue`` returns. It is called in a thread: the event loop may be stuck."""
    if seconds is None:
        yield lambda: None
        return

    def end() -> None:
        try:
            status = overdue()
        finally:
            os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True

    unstarted = threading.Semaphore()

    def start() -> None:
        if unstarted.acquire(blocking=False):  # it is asked for in several threads
            timer.start()

    try:
        yield start
    finally:
        timer.cancel()


def _say_overdue() -> int:
    sys.stderr.write("tailer: the current work does not end and is abandoned\n")
    sys.stderr.flush()
    return find_signal_status() or 1


async def run_until_stopped(
    work: Callable[[], Awaitable[None]],
    on_hangup: Callable[[], Awaitable[None]] | None = None,
    *,
    grace_s: float | None = None,
    overdue: Callable[[], int] = _say_overdue,
) -> bool:
    """Run some work to its end, or until a signal requests the end; the work is then cancelled.

    ``on_hangup`` handles SIGHUP; without it, SIGHUP ends the work, too. If signals are not
    received, because another program is the caller, the work just runs. Returns whether a signal
    ended it; if the end is requested before the work begins, it is not started. Work that has not
    ended ``grace_s`` seconds after the signal, if there is a limit, ends with the process:
    ``overdue`` says so, and returns the exit status.
    """
    import anyio  # see :meth:`SignalReceiver.wait_until`

    receiver = SignalReceiver.installed
    if receiver is None:
        await work()
        return False
    if receiver.must_stop(on_hangup=on_hangup is None):
        return True
    stopped = False
    with (
        ungrouping(),
        _limit_grace(grace_s, overdue) as begin_grace,
        receiver.watch_signals(begin_grace, on_hangup=on_hangup is None),
    ):
        async with anyio.create_task_group() as tasks:

            async def wait_for_stop() -> None:
                nonlocal stopped
                await wait_for_stop_signal(on_hangup=on_hangup is None)
                stopped = True
                begin_grace()
                tasks.cancel_scope.cancel()

            async def wait_for_hangups(answer: Callable[[], Awaitable[None]]) -> None:
                while True:
                    await receiver.wait_until(lambda: receiver.hangup)
                    receiver.hangup = False
                    await answer()

            async def work_to_its_end() -> None:
                await work()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_stop)
            if on_hangup is not None:
                tasks.start_soon(wait_for_hangups, on_hangup)
            tasks.start_soon(work_to_its_end)
    return stopped
