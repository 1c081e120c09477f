"""Tables that were damaged, or made, to hurt their reader: every file is refused by name or read.

``--randomly-seed`` repeats the damage. Ten times ``TAILER_TORTURE_ROUNDS`` is how much of it there
is (200), or ``TAILER_HOSTILE_CASES``.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.damaged_files import build_tables
from tests.support.source import ROOT

ROUNDS = int(os.environ.get("TAILER_TORTURE_ROUNDS", "20"))
CASES = int(os.environ.get("TAILER_HOSTILE_CASES", 10 * ROUNDS))
WORKERS = 2
# A case takes some milliseconds. Who waits longer than this waits for ever.
CASE_S_MAX = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Worker:
    """A process that judges every second case, begun anew behind one that it did not survive."""

    def __init__(self, tables: Path, seed: int, first: int) -> None:
        self.tables, self.seed, self.next = tables, seed, first
        self.verdicts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        while self.next < CASES:
            self._run_process()

    def _run_process(self) -> None:
        numbers = [str(n) for n in (self.seed, self.next, CASES, WORKERS)]
        command = [
            sys.executable,
            "-m",
            "tests.integration.damaged_files",
            str(self.tables),
            *numbers,
        ]
        began = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            for line in self._lines(process):
                number, word, *_ = line.split(" ", 2)
                if word == "begins":
                    began = line
                else:
                    self._judge(began, line, word)
                    self.next, began = int(number) + WORKERS, ""
            status = process.wait()
        if began or status:
            self.failures.append(f"{began or self.next}: the process ended with {status}")
            self.next = (int(began.split()[0]) if began else self.next) + WORKERS

    def _judge(self, began: str, line: str, word: str) -> None:
        self.verdicts[word] += 1
        if word not in ("refused", "same", "other"):
            self.failures.append(f"{began}: {line}")

    def _lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """The process's lines; it is killed when none comes for too long."""
        lines: queue.Queue[str | None] = queue.Queue()

        def gather() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        reader = threading.Thread(target=gather)
        reader.start()
        try:
            while (line := lines.get(timeout=CASE_S_MAX)) is not None:
                yield line
        except queue.Empty:
            process.kill()
        finally:
            reader.join()


def test_no_damage_hangs_crashes_or_is_believed_against_a_checksum(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    build_tables(tmp_path)
    workers = [Worker(tmp_path, seed, first) for first in range(WORKERS)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [failure for worker in workers for failure in worker.failures]
    verdicts = sum((worker.verdicts for worker in workers), Counter[str]())
    print(dict(verdicts))
    assert not failures, "\n".join([f"{len(failures)} of {CASES}, seed {seed}:", *failures[:10]])
    assert sum(verdicts.values()) == CASES
    # Damage that nobody notices at all would mean that nothing was damaged.
    assert verdicts["refused"] > CASES / 4
