"""Real servers that tests start, of the programs that the machine has (Debian's packages)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.components import free_port
from tests.support.waiting import eventually

__all__ = ["START_S", "Server"]

START_S = 100.0


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
        """End it at once, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

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
