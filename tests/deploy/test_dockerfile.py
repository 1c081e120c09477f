"""The steps of deploy/Dockerfile, run without an engine: each stage in a copy-on-write view of this
machine, then the image's program as its unprivileged user.

This machine stands for the base images: it has a Python, and a compiler in the place of the first
RUN. The image `rust` has nothing to stand for it, so the crate is left out; the release builds it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.sandbox import with_root
from tests.support.source import ROOT
from tests.support.waiting import eventually

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# What is built here beside the sources.
IGNORED = shutil.ignore_patterns("*.so", "__pycache__", "target")


@dataclass
class Stage:
    """One FROM and what follows it; ``upper`` has what its steps have written."""

    folder: Path
    environment: dict[str, str]
    workdir: str = "/"
    user: str = "0:0"
    words: dict[str, list[str]] = field(default_factory=dict)

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def at(self, path: str) -> Path:
        """Where a path of the image, absolute or below its WORKDIR, is written."""
        return self.upper / os.path.join(self.workdir, path).lstrip("/")  # noqa: PTH118  # absolute

    def command(self, *words: str, beside: int | None = None) -> list[str]:
        """What runs a program in the image, as the user of its last USER; ``beside`` another one
        that runs there, by its process. Two views of the same folder may not be made at once."""
        user, group = self.user.split(":")
        rights = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        values = [f"{name}={value}" for name, value in self.environment.items()]
        inside = ["env", "-i", "-C", self.workdir, *values, *rights, *words]
        if beside is not None:
            return ["chroot", f"/proc/{beside}/root", *inside]
        return with_root(self.folder, *inside)

    def take(self, instruction: str, rest: str, stages: dict[str, Stage]) -> None:
        """Do what one instruction says."""
        match instruction:
            case "ENV":
                for name, _, value in (each.partition("=") for each in shlex.split(rest)):
                    old = self.environment.get("PATH", "")
                    self.environment[name] = value.replace("$PATH", old)
            case "ARG":
                name, _, value = rest.partition("=")
                self.environment[name] = value.strip('"')
            case "WORKDIR":
                self.workdir = rest
                self.at(".").mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = rest
            case "COPY":
                self._copy(rest.split(), stages)
            case "RUN" if not rest.startswith("apt-get"):
                # What was downloaded before is not downloaded again.
                command = rest.replace("--no-cache-dir ", "")
                done = subprocess.run(
                    self.command("sh", "-ec", command), capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{rest}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            case "HEALTHCHECK":
                self.words[instruction] = json.loads(rest.partition("CMD ")[2])
            case "ENTRYPOINT" | "CMD":
                self.words[instruction] = json.loads(rest)
            case "RUN" | "VOLUME" | "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                pytest.fail(f"the test does not know {instruction} {rest}")

    def _copy(self, words: list[str], stages: dict[str, Stage]) -> None:
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        if origin == "rust":
            return
        *sources, target = words
        for source in sources:
            found = stages[origin].at(source) if origin else ROOT / source
            if found.is_dir():
                shutil.copytree(
                    found, self.at(target), symlinks=True, dirs_exist_ok=True,
                    ignore=None if origin else IGNORED,
                )  # fmt: skip
            else:
                shutil.copy(found, self.at(target))


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line]


def stage(folder: Path) -> Stage:
    """A stage of the base image `python`: this machine, whose `python` everyone may run."""
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))
    }
    python = Path(sys.executable).resolve()
    path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    made = Stage(folder, inherited | {"PATH": path, "HOME": "/root"})
    for parent in python.parents:  # on this machine it may be in root's home
        mode = parent.stat().st_mode
        if not mode & 1:
            (made.upper / parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
            (made.upper / parent.relative_to("/")).chmod(mode & 0o777 | 0o111)
    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_image_s_steps_make_a_daemon_that_runs_without_rights(tmp_path: Path) -> None:
    stages: dict[str, Stage] = {}
    image = stage(tmp_path / "none")
    for instruction, rest in instructions():
        if instruction == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            image = stages[name] = stage(tmp_path / name)
        else:
            image.take(instruction, rest, stages)
    assert image.user == "10001:10001"
    assert not image.at("/src").exists(), "the image has no sources"

    def output(*words: str) -> str:
        return subprocess.check_output(image.command(*words), text=True)

    version, _, lacks = output(*image.words["ENTRYPOINT"], "--version").partition("(")
    assert version.split()[0] == "delta-tailer"
    assert "rowbytes" not in lacks, "a compiler was there"
    assert output("id", "-u") == "10001\n"
    assert output("sh", "-c", "touch /opt/tailer/x 2>/dev/null || echo refused") == "refused\n"
    table = TableBuilder(image.at("/lake/orders"), pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    table.insert([{"id": 1}, {"id": 2}])
    port = str(free_port())
    image.at("/etc/tailer/tailer.toml").write_text(
        f'[daemon]\nhttp = "127.0.0.1:{port}"\nstate = "/var/lib/tailer/state"\n'
        '[feeds.orders]\ntable = "/lake/orders"\nfrom = "earliest"\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "/var/lib/tailer/orders.jsonl"\n'
    )
    healthy = [word.replace("9464", port) for word in image.words["HEALTHCHECK"]]
    with subprocess.Popen(image.command(*image.words["ENTRYPOINT"], *image.words["CMD"])) as daemon:
        try:
            ask = image.command(*healthy, beside=daemon.pid)

            def is_healthy() -> bool:
                assert daemon.poll() is None, "it has ended"
                return subprocess.run(ask, stderr=subprocess.DEVNULL, check=False).returncode == 0

            eventually(is_healthy)
            events = image.at("/var/lib/tailer/orders.jsonl")
            eventually(lambda: events.exists() and events.read_bytes().count(b"\n") == 2)
            assert events.stat().st_uid == 10001
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait() == 0
        finally:
            daemon.kill()
