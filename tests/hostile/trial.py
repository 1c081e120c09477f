"""A daemon with limited memory, in which feeds of hostile tables stand beside one that goes on.

    python -m tests.hostile.trial [WORD ...]

tries each attack whose name has one of the words, and prints a line for each: what came of it, and
the most memory that the daemon had.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.attack import Attack, ids_table
from tests.support.programs import whole_lines
from tests.support.waiting import eventually

#: Address space that the daemon may have: most of it is reserved by libraries and never touched.
ADDRESS_BYTES_MAX = 4 * 2**30
#: What the daemon may take with the default configuration: itself, two batches, the page and the
#: comparison's own memory.
RESIDENT_MIB_MAX = 700
PATIENCE_S = float(os.environ.get("TAILER_HOSTILE_S", "150"))


@dataclass(frozen=True)
class Outcome:
    """What each feed said as it ended, the rows that it delivered, and the daemon's peak."""

    said: Mapping[str, str]
    rows: Mapping[str, int]
    peak_mib: int


class _Daemon:
    def __init__(self, folder: Path, attacks: Mapping[str, Attack]) -> None:
        self.folder = folder
        self.attacks = {f"h{i}": attack for i, attack in enumerate(attacks.values())}
        self.titles = dict(zip(self.attacks, attacks, strict=True))
        self.beside = ids_table(folder / "beside")
        config = '[daemon]\nhttp = ""\nlog_format = "json"\n' + _feed("beside", {})
        for name, attack in self.attacks.items():
            attack.make(folder / name)
            config += _feed(name, attack.options or {})
        (folder / "tailer.toml").write_text(config)
        self.log = folder / "log.jsonl"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailer", "run", str(folder / "tailer.toml")],
                stdout=log,
                stderr=log,
            )
        limits = (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX)
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, limits)
        resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, 0))

    def said(self) -> dict[str, str]:
        """What each feed said as it failed."""
        found = {}
        for line in whole_lines(self.log):
            entry = json.loads(line) if line.startswith(b"{") else {}
            if entry.get("event") == "failed":
                found[entry["feed"]] = entry["message"]
        return found

    def rows(self, name: str) -> int:
        return len(whole_lines(self.folder / f"{name}.jsonl"))

    def _ended(self, name: str) -> bool:
        wanted = self.attacks[name].rows
        return name in self.said() or (wanted is not None and self.rows(name) >= wanted)

    def wait(self) -> None:
        """Wait until each feed has ended, and the one beside them has delivered a row since."""
        self._until(lambda: all(map(self._ended, self.attacks)), "the hostile feeds end")
        before = self.rows("beside")
        self.beside.insert([{"id": 1}])
        self._until(lambda: self.rows("beside") > before, "the feed beside them goes on")

    def _until(self, what: object, why: str) -> None:
        def seen() -> bool:
            status = self.process.poll()
            assert status is None, f"the daemon ended with {status}: {self.text()}"
            return bool(what())  # type: ignore[operator]

        eventually(seen, PATIENCE_S, lambda: f"{why}; peak {self.peak_mib()} MiB {self.text()}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def peak_mib(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
        raise AssertionError("the kernel does not tell the peak")


def _feed(name: str, options: Mapping[str, object]) -> str:
    lines = {"table": name, "from": "earliest", **options}
    settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    return f"[feeds.{name}]\n{settings}sink = {{type = 'jsonl', path = '{name}.jsonl'}}\n"


def try_attacks(folder: Path, attacks: Mapping[str, Attack]) -> Outcome:
    """Run a daemon on these attacks until each feed has ended."""
    daemon = _Daemon(folder, attacks)
    try:
        daemon.wait()
        peak_mib, said = daemon.peak_mib(), daemon.said()
    finally:
        daemon.process.kill()
        daemon.process.wait()
    titles = daemon.titles
    return Outcome(
        {titles[name]: text for name, text in said.items() if name in titles},
        {title: daemon.rows(name) for name, title in titles.items()},
        peak_mib,
    )


def main(words: Sequence[str]) -> None:
    """Try attacks one by one."""
    from tests.hostile.data_files import DATA_FILES
    from tests.hostile.logs import HEAVY_LOGS, LOGS

    for name, attack in {**DATA_FILES, **LOGS, **HEAVY_LOGS}.items():
        if words and not any(word in name for word in words):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = try_attacks(Path(folder), {name: attack})
                text = found.said.get(name) or f"{found.rows[name]} rows"
                line = f"{found.peak_mib} MiB: {text}"
            except AssertionError as e:
                line = f"FAILED {e}"
        print(f"{name} {time.monotonic() - began:.1f} s {line[:900]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
