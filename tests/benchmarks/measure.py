"""What one run of a program costs: time, processor time and memory of its whole process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.benchmarks.tables import bench_folder

__all__ = ["ROOT", "Cost", "Peak", "environment", "measure", "median_cost"]

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
# Looking for new processes reads all of /proc, which would itself disturb what is measured.
POLLS_PER_SEARCH = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and processor seconds (user and system), and the peak of the resident MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


class Peak(threading.Thread):
    """Watches a process and its descendants, and keeps the highest sum of their resident bytes.

    Pages that two of the processes share count twice, as they do in `ps`.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._root = psutil.Process(pid)
        self._end = threading.Event()

    def run(self) -> None:
        polls = 0
        tree = [self._root]
        while not self._end.wait(POLL_S):
            if polls % POLLS_PER_SEARCH == 0:
                tree = self._search()
            polls += 1
            self.bytes = max(self.bytes, sum(map(_resident, tree)))

    def stop(self) -> None:
        """End the watch; `bytes` is final."""
        self._end.set()
        self.join()

    def _search(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return [self._root]


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def environment() -> dict[str, str]:
    """Ours, but with modules compiled once, as an installed program has them.

    The byte code is kept in the cache folder, whatever the shell says of writing it.
    """
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": str(bench_folder() / "bytecode")}


def measure(command: Sequence[str | Path]) -> Cost:
    """Run `command` in the project's folder to its end; a failure shows its stderr and exits.

    The processor time is the kernel's account of the child and of all descendants it waited for.
    """
    # A file and no pipe: nobody need read along while the program is timed.
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment()
        )
        peak = Peak(child.pid)
        peak.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        peak.stop()
        if child.returncode != 0:
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace"))
            sys.exit(f"{' '.join(map(str, command))}: exit status {child.returncode}")
    # A peak between two polls shows in the kernel's own figure, which is of the largest process.
    peak_mib = max(peak.bytes / 2**20, usage.ru_maxrss / 2**10)
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak_mib)


def median_cost(costs: Sequence[Cost]) -> Cost:
    """The median of each figure by itself."""
    return Cost(
        median(cost.wall_s for cost in costs),
        median(cost.cpu_s for cost in costs),
        median(cost.peak_mib for cost in costs),
    )
