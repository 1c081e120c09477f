"""Signals: one receiver from a process's first moment to its last.

SIGINT and SIGTERM ask a command to end in order; a second SIGINT ends the process at once. SIGHUP
asks a command that has a configuration to read it again, and ends any other.

What was asked for is noted as soon as :func:`install` has run, while the command is still being
loaded, too, and stays noted. The handlers are never taken back: between two receivers a signal
would do what it does by default, which is to kill the process in the middle of its end.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import ClassVar

__all__ = [
    "EXIT_INTERRUPTED",
    "SignalReceiver",
    "install",
    "listen",
    "signalled",
    "stop_asked",
    "until_stopped",
]

#: What shells say of a program that Ctrl-C has ended.
EXIT_INTERRUPTED = 130
_RECEIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Python itself needs some milliseconds for its end.
_FINISH_S = 30


class SignalReceiver:
    """Notes what signals ask for, and wakes those that wait for it."""

    #: The one of this process, once it is installed.
    installed: ClassVar[SignalReceiver | None] = None

    def __init__(self) -> None:
        #: The signal that asked for the end, if one did.
        self.stopped_by: int | None = None
        #: Whether a SIGHUP came that nobody has taken up yet.
        self.hangup = False
        # `nohup` has it so, and then it ends nothing.
        self.hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._interrupts = 0
        self._waiting: list[Callable[[], None]] = []
        # The kernel may hand a signal to any thread. Handlers run in the main one, and what it
        # sleeps in must end for that: asyncio sleeps with this pipe in view.
        self._wake, wakeup = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def listen(self) -> None:
        """Have the signals come here."""
        for number in _RECEIVED:
            signal.signal(number, self._receive)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                os._exit(EXIT_INTERRUPTED)  # whatever any thread is doing or waiting for
        if number == signal.SIGHUP:
            self.hangup = True
        elif self.stopped_by is None:
            self.stopped_by = number
        for wake in list(self._waiting):
            wake()

    def finish(self) -> None:
        """The command is done, its threads have ended and its status is known, which no signal is
        to change any more: Python puts the default handlers back before it is gone. Should some
        library's end take for ever, the process is ended by an alarm."""
        for number in _RECEIVED:
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(_FINISH_S)

    def must_stop(self, *, on_hangup: bool) -> bool:
        """Whether the end was asked for; ``on_hangup``: SIGHUP asks for it, too."""
        if on_hangup and self.hangup and not self.hangup_ignored and self.stopped_by is None:
            self.stopped_by = signal.SIGHUP
        return self.stopped_by is not None

    async def until(self, asked: Callable[[], bool]) -> None:
        """Wait until that is so; it is looked at behind each signal."""
        import asyncio  # on demand: this module is the first that a process loads

        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop, of another thread, was closed just now
                loop.call_soon_threadsafe(changed.set)

        main = threading.current_thread() is threading.main_thread()
        if main:
            loop.add_reader(self._wake, self._drain)
        self._waiting.append(wake)
        try:
            while not asked():
                await changed.wait()
                changed.clear()
        finally:
            self._waiting.remove(wake)

    def _drain(self) -> None:
        """The bytes only wake; what they stand for was noted by the handler."""
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass


def install() -> None:
    """Receive signals from now on, for the life of the process. Called by its main thread, first of
    all; calling it again changes nothing."""
    if SignalReceiver.installed is None:
        receiver = SignalReceiver.installed = SignalReceiver()
        atexit.register(receiver.finish)  # the first that is registered runs last
        receiver.listen()


def listen() -> None:
    """Take the signals back from a library that has its own handlers, if they were received."""
    if SignalReceiver.installed is not None:
        SignalReceiver.installed.listen()


async def stop_asked(*, on_hangup: bool = False) -> None:
    """Return as soon as a signal asks for the end; never, where none is received."""
    from anyio import sleep_forever

    receiver = SignalReceiver.installed
    if receiver is None:
        await sleep_forever()
    else:
        await receiver.until(lambda: receiver.must_stop(on_hangup=on_hangup))


def signalled() -> int | None:
    """The exit status that the signal which asked for the end stands for; None: there was none."""
    receiver = SignalReceiver.installed
    return None if receiver is None or receiver.stopped_by is None else 128 + receiver.stopped_by


async def until_stopped(
    work: Callable[[], Awaitable[None]], on_hangup: Callable[[], Awaitable[None]] | None = None
) -> bool:
    """Run some work to its end, or until a signal asks for that; the work is then cancelled.

    ``on_hangup`` is what SIGHUP asks for; without it, SIGHUP ends the work, too. Where signals are
    not received, because another program has called us, the work is just done. Returns whether a
    signal ended it; work that was asked to end before it began is not begun.
    """
    import anyio

    from tailer.errors import first_error

    receiver = SignalReceiver.installed
    if receiver is None:
        await work()
        return False
    if receiver.must_stop(on_hangup=on_hangup is None):
        return True
    stopped = False
    try:
        async with anyio.create_task_group() as tasks:

            async def wait_for_stop() -> None:
                nonlocal stopped
                await stop_asked(on_hangup=on_hangup is None)
                stopped = True
                tasks.cancel_scope.cancel()

            async def wait_for_hangups(answer: Callable[[], Awaitable[None]]) -> None:
                while True:
                    await receiver.until(lambda: receiver.hangup)
                    receiver.hangup = False
                    await answer()

            async def work_to_its_end() -> None:
                await work()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_stop)
            if on_hangup is not None:
                tasks.start_soon(wait_for_hangups, on_hangup)
            tasks.start_soon(work_to_its_end)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return stopped
