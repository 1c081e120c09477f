"""Real servers that tests start, of the programs that the machine has (Debian's packages)."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.support.components import free_port
from tests.support.waiting import eventually

START_S = 250.0


@contextmanager
def standing_still(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a server within the block, with all its processes: the kernel takes connections, and
    nobody answers."""
    family = _family(process)
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: all(map(_is_stopped, family)))
        yield
    finally:
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _family(process: subprocess.Popen[bytes]) -> list[int]:
    """A process and all that come from it."""
    family = [process.pid]
    for pid in family:  # which grows
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has ended meanwhile
                family += map(int, children.read_text().split())
    return family


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process have stopped, or it has ended."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)


def _is_there(pid: int) -> bool:
    """Whether a process has anything left; nobody may have asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Server:
    """A server on a free port, with its data in a folder. ``user`` runs it where the tests run as
    root, if it refuses to be root's."""

    name = ""
    user = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        if self._changes_user():
            shutil.chown(self.folder, self.user)
        self.process: subprocess.Popen[bytes] | None = None

    def _changes_user(self) -> bool:
        return bool(self.user) and os.getuid() == 0

    def _command(self, *command: str | Path) -> list[str]:
        """The command line of a program that ends with this process."""
        before = ["setpriv", "--pdeathsig", "KILL"]
        if self._changes_user():
            user = pwd.getpwnam(self.user)
            before += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return [*before, *map(str, command)]

    def run(self, *command: str | Path) -> None:
        """Run one of its programs to the end."""
        done = subprocess.run(
            self._command(*command),
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=START_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout

    def launch(self, *command: str | Path) -> None:
        """Start it; returns when it answers."""
        with (self.folder / "log").open("ab") as log:
            process = self.process = subprocess.Popen(
                self._command(*command),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

        def said() -> str:
            return (self.folder / "log").read_text()[-4000:]

        def answers() -> bool:
            assert process.poll() is None, said()
            return self.answers()

        eventually(answers, START_S, said)

    def answers(self) -> bool:
        """Whether it takes connections."""
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        """Start it, again if it ran before, with its data; returns when it answers."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it at once with all its processes, as a power cut would: one that PostgreSQL keeps
        for a connection may do what it is asked after the server itself was killed."""
        if self.process is not None:
            family = _family(self.process)
            self.process.kill()
            for pid in family[1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            # While one of them still has the memory that they share, the server does not start.
            eventually(lambda: not any(map(_is_there, family[1:])), START_S)

    def still(self) -> AbstractContextManager[None]:
        """Have it stand still within the block."""
        assert self.process is not None
        return standing_still(self.process)

    def end(self) -> None:
        """End it in order."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(START_S)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
