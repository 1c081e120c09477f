"""The command line in processes of its own, as users and service managers run it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.support.forking import Process, start
from tests.support.waiting import PATIENCE_S, eventually

# What asyncio's debug mode says of a step that took long: of the machine, not of the program.
SLOW_STEP = re.compile(r"(\S+ \S+ WARNING )?Executing <.* took \d+\.\d+ seconds$")

# How Python's development mode begins to speak of what was not closed, ended or awaited.
LEFT_BEHIND = (
    "Unclosed ",
    "Task was destroyed",
    "never retrieved",
    "never awaited",
    "ResourceWarning",
    "Exception ignored in",
)


def whole_lines(file: Path) -> list[bytes]:
    """The lines of a file that a program may just be writing: the last one only once it is whole,
    for what one write adds is not seen all at once."""
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def run_tailer(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tailer` to its end. What it leaves open fails the test."""
    with TemporaryFile("w+", encoding="utf-8") as out, TemporaryFile("w+", encoding="utf-8") as err:
        process = start(
            "tailer", *arguments, dev=True, folder=cwd, stdout=out.fileno(), stderr=err.fileno()
        )
        try:
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        errors = [line for line in err if not SLOW_STEP.match(line)]
        check_tidy(errors)
        return subprocess.CompletedProcess(arguments, status, out.read(), "".join(errors))


def check_tidy(errors: list[str]) -> None:
    """Refuse what Python says of connections, files and tasks that a program left behind."""
    left = [line for line in errors if any(sign in line for sign in LEFT_BEHIND)]
    assert not left, f"left behind: {left}\n{errors[-40:]}"


@contextmanager
def running_daemon(config: Path, errors: Path) -> Iterator[Process]:
    """`tailer run`, killed at the end of the block at the latest. What it says of errors is added
    to a file."""
    with errors.open("ab") as file:
        process = start("tailer", "run", config, stderr=file.fileno())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Program:
    """A running `tailer`, its output gathered line by line as it comes. ``within`` is a command
    that runs it in other surroundings, as the same process."""

    def __init__(
        self, *arguments: str | Path, dev: bool = True, within: Sequence[str] = ()
    ) -> None:
        output, errors = os.pipe(), os.pipe()
        self.process = start(
            "tailer", *arguments, dev=dev, within=within, stdout=output[1], stderr=errors[1]
        )
        os.close(output[1])
        os.close(errors[1])
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._gather, args=(pipe[0], lines))
            for pipe, lines in ((output, self.lines), (errors, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _gather(self, descriptor: int, lines: list[str]) -> None:
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            for line in stream:
                if SLOW_STEP.match(line):
                    continue
                with self._changed:
                    lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of standard output, which are events."""
        return [json.loads(line) for line in list(self.lines)]

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Wait for something to be seen in the output; fail if the program ends before."""
        with self._changed:
            seen = self._changed.wait_for(
                lambda: what() or self.process.poll() is not None, PATIENCE_S
            )
            assert seen, f"not seen in {PATIENCE_S} s\n{self}"
        assert what() or self._ended_with(what), f"the program ended\n{self}"

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait for something that is not in the output; fail if the program ends before."""

        def probe() -> object:
            assert self.process.poll() is None, str(self)
            with suppress(ConnectionError):  # it does not listen yet
                return what()
            return None

        eventually(probe, why=lambda: self)

    def _ended_with(self, what: Callable[[], bool]) -> bool:
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return what()

    def wait_for_events(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many lines of standard output; returns all that there are."""
        self.wait_until(lambda: len(self.lines) >= count)
        return self.events

    def wait_a_moment(self, seconds: float = 0.2) -> None:
        """Let the program work for a while, or until it says something."""
        with self._changed:
            self._changed.wait(seconds)

    def wait(self) -> int:
        """Wait for the program's own end; returns its exit status."""
        status = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return status

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def __str__(self) -> str:
        return "\n".join(["stdout:", *self.lines[-20:], "stderr:", *self.errors[-20:]])


@contextmanager
def started(
    *arguments: str | Path, dev: bool = True, within: Sequence[str] = ()
) -> Iterator[Program]:
    """A program that is ended, at the latest, with the block."""
    program = Program(*arguments, dev=dev, within=within)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
        program.wait()
    check_tidy(program.errors)
